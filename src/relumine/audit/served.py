"""What a server's explanations are, where its description says so, in the words that attacks know."""

from relumine.audit.attacks import Attack, attacks_for
from relumine.defend import Chain, parse
from relumine.oracle.base import Offer, Oracle
from relumine.oracle.http.oracle import HttpOracle

# Names of explanations, as ``relumine probe`` and ``relumine serve`` write them, and what attacks know them as: a level
# whose maps they are, or gradients behind a defence.
_AS_LEVEL = {"smoothed": "smoothgrad", "smoothgrad": "smoothgrad", "integrated-gradients": "integrated-gradients"}
_AS_DEFENCE = {
    "absolute": "magnitude",
    "absolute-gradient": "magnitude",
    "normalised": "maxnorm",
    "normalised-absolute": "magnitude+maxnorm",
}
_PLAIN = ("gradient", "none")


def explanation_of(oracle: Oracle) -> str:
    """What the target's maps are said to be; those of models that are loaded here are gradients."""
    return oracle.endpoint.explanation if isinstance(oracle, HttpOracle) else "gradient"


def attacks_at(
    level: str, offer: Offer, chain: Chain | None, deviation: float, explanation: str = "gradient"
) -> tuple[Attack, ...]:
    """The attacks that fit a level behind a chain of defences, where the target's own maps are ``explanation``."""
    if offer.gradients != "none" and explanation not in _PLAIN:
        level = _AS_LEVEL.get(explanation, level)
        chain = parse(_AS_DEFENCE[explanation]) if explanation in _AS_DEFENCE else chain
    return attacks_for(level, offer, chain, deviation)


def warning_about(explanation: str) -> str:
    """What weakens an audit of explanations that no attack knows; "" for nothing."""
    if explanation in (*_PLAIN, *_AS_LEVEL, *_AS_DEFENCE):
        return ""
    return (
        f"The server's explanations are said to be «{explanation}», which these attacks take for gradients. Who knows "
        "better may need far fewer queries: 'relumine reconstruct' uses them as what they are."
    )
