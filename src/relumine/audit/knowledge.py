"""Knowledge: what an attacker makes of a defence's description. Every attack of an audit knows the defence's settings.

A defence that only holds while nobody knows it is there holds nothing, so the audit grants the attacker its words.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from relumine.audit.levels import LEVELS
from relumine.defend.base import Defended, Settings
from relumine.defend.noise import GaussianNoise, Rounded
from relumine.defend.refuse import FarInputs, OfInputs
from relumine.defend.registry import Chain, parse
from relumine.defend.values import HighConfidence, LabelOnly, ReverseSigmoid
from relumine.defend.watch import DistanceWatch, LineWatch
from relumine.explain.map_kind import GRADIENT, WORDS, MapKind
from relumine.explain.methods import Explanation, explanation_of
from relumine.oracle.base import Oracle
from relumine.oracle.http.oracle import HttpOracle

# A student's own smoothed maps and path integrals are taken from so few points: each step of a fit draws new ones.
_SAMPLES = 4
_STEPS = 8

# Root mean square of inputs at which a watch sees nothing unusual, where data is of size 1.
_UNSUSPICIOUS = 5.0


@dataclass(frozen=True)
class Knowledge:
    """What the attacker knows.

    maps:        what maps are
    noise:       standard deviation of the noise on answers; 0 for none
    consistent:  the same input gets the same noise
    noisy_maps:  the noise is on maps too
    coarse:      answers are rounded or noisy
    true_values: values are the target's own numbers, in full
    rounded:     values are the target's own numbers, rounded
    reach:       inputs of a larger root mean square are refused, or raise suspicion
    window:      number of a client's latest rows that a watch looks at; 0 for none
    cutoff:      smaller probabilities are shown as 0
    distorted:   beta and gamma of a reverse sigmoid on probabilities
    """

    maps: MapKind = GRADIENT
    noise: float = 0.0
    consistent: bool = False
    noisy_maps: bool = False
    coarse: bool = False
    true_values: bool = True
    rounded: bool = False
    reach: float | None = None
    window: int = 0
    cutoff: float | None = None
    distorted: tuple[float, float] | None = None

    @property
    def adaptable(self) -> bool:
        """Whether gradients can be made of the maps.

        Noise does not average out of what is not linear, nor does it leave maps of a linear region alike.
        """
        return self.maps.invertible and (self.maps == GRADIENT or not self.noisy_maps)

    def explanation(self) -> Explanation:
        """What a student's maps are made by."""
        smoothing = None if self.maps.path else self.maps.smoothing
        return explanation_of(self.maps, _STEPS if smoothing is None else min(smoothing.samples, _SAMPLES))


def knowledge_of(level: str, chain: Chain | None, deviation: float = 1.0, maps: MapKind = GRADIENT) -> Knowledge:
    """What the words of a level and of its defences tell, in front of a target that shows ``maps``.

    deviation: of the data, which is σ of the level "smoothgrad", and the best guess where a server does not say its own
    """
    known = Knowledge(LEVELS[level].shows(maps).smoothed_by(deviation))
    for step in chain.steps if chain is not None else ():
        known = _after(known, step.kind.defended, step.kind.defended.completed(dict(step.settings)))
    return known


@cache
def leaves_values(words: str) -> bool:
    """Whether values behind these defences are answered as without them: who asks for values alone meets none."""
    chain = parse(words)
    refusing = any(issubclass(step.kind.defended, OfInputs) or step.kind.defended.remembers for step in chain.steps)
    return not refusing and knowledge_of("gradients", chain).true_values


def maps_of(oracle: Oracle) -> MapKind:
    """What the maps of a target are: as a server's description says, or the explanation that it is asked for."""
    if isinstance(oracle, HttpOracle):
        return WORDS.get(oracle.endpoint.explanation, GRADIENT)
    shown = getattr(oracle, "explanation", None)
    return shown.kind if isinstance(shown, Explanation) else GRADIENT


def unknown_maps(oracle: Oracle) -> str:
    """What weakens an audit of explanations that no attack knows; "" for nothing."""
    word = oracle.endpoint.explanation if isinstance(oracle, HttpOracle) else "gradient"
    said = (
        f"The server's explanations are said to be «{word}», which these attacks take for gradients. An attacker who "
    )
    return "" if word in WORDS else f"{said}knows better may need far fewer queries."


def _after(known: Knowledge, kind: type[Defended], said: Settings) -> Knowledge:
    """What is known once this defence stands in front too."""
    known = replace(known, maps=kind.maps_after(known.maps, said))
    return _TELLS[kind](known, said) if kind in _TELLS else known


def _rounded(known: Knowledge, said: Settings) -> Knowledge:
    if said["of"] == "gradients":
        return replace(known, coarse=True)
    return replace(known, coarse=True, true_values=False, rounded=known.true_values or known.rounded)


def _noise(known: Knowledge, said: Settings) -> Knowledge:
    return replace(
        known,
        coarse=True,
        noise=float(said["sigma"]),
        consistent=said["repeat"] == "consistent",
        noisy_maps=said["of"] != "values",
        true_values=known.true_values and said["of"] == "gradients",
        rounded=known.rounded and said["of"] == "gradients",
    )


def _watched(known: Knowledge, said: Settings) -> Knowledge:
    # Seen from far out all other rows lie in one direction, which looks like a line.
    reach = min(known.reach or _UNSUSPICIOUS, _UNSUSPICIOUS)
    return replace(known, window=max(known.window, int(said["window"])), reach=reach)


_TELLS: dict[type[Defended], Callable[[Knowledge, Settings], Knowledge]] = {
    Rounded: _rounded,
    GaussianNoise: _noise,
    LabelOnly: lambda known, said: replace(known, true_values=False, distorted=None, cutoff=None),
    HighConfidence: lambda known, said: replace(known, true_values=False, cutoff=float(said["cutoff"])),
    ReverseSigmoid: lambda known, said: replace(
        known, true_values=False, distorted=(float(said["beta"]), float(said["gamma"]))
    ),
    FarInputs: lambda known, said: replace(known, reach=min(float(said["reach"]), known.reach or float("inf"))),
    LineWatch: _watched,
    DistanceWatch: _watched,
}
