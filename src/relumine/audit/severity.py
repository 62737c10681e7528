"""How grave it is to expose an output, and what to do about it, by published thresholds.

OWASP AI Testing Guide 1.0, AITG-APP-09: a copy that agrees with the model on more than 90 % of inputs shows a
vulnerability, less than 75 % is the desired outcome. What lies between is a warning here. An exact copy is critical:
an attacker who has it needs no query any more. Nothing is called low where these attacks learned nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relumine.audit.result import About, Control, Curve, Severity
from relumine.text import percent

VULNERABLE, WARNING = 0.90, 0.75
_VULNERABLE = f"{100 * VULNERABLE:.0f}"  # the milestone

# What a published threshold says an audit must not find, as a gate at the largest budget.
PRESETS = {
    "owasp-aitg": f"agreement-at-{{budget}} > {VULNERABLE}",
    "owasp-aitg-warning": f"agreement-at-{{budget}} >= {WARNING}",
}

# The requirements and techniques that a finding is about.
REFERENCES = {
    "OWASP AITG-APP-09": "testing for model extraction: above 90 % agreement a vulnerability, from 75 % a warning.",
    "OWASP AISVS 1.0, 11.2.2": "limits on queries, sized to the threat of extraction: the limit per client.",
    "OWASP AISVS 1.0, 11.3.1 and 11.3.2": "what is visible outside, calibrated to the risk of extraction: compare the "
    "rows, expose the least that serves.",
    "MITRE ATLAS AML.T0024.002": "extracting a model through its inference interface: what was tried here.",
    "EU AI Act, Article 15(5)": "measures against confidentiality attacks on high-risk systems: evidence for them.",
}

_RANKS: tuple[Severity, ...] = ("unknown", "low", "medium", "high", "critical")


def rank(severity: Severity) -> int:
    """Larger is graver; what is not known comes first."""
    return _RANKS.index(severity)


def severity_of(curve: Curve, about: About) -> Severity:
    """By the best copy of any seed within the queries tried."""
    if curve.need("exact").queries is not None:
        return "critical"
    best, guess = _best(curve), about.majority or 0.0
    if best > VULNERABLE > guess:
        return "high"
    if curve.status == "inconclusive" or best <= guess or guess >= WARNING:
        return "unknown"
    return "medium" if best >= WARNING else "low"


def judged(controls: Sequence[Control], curves: Sequence[Curve], about: About) -> tuple[Control, ...]:
    """The controls with severity and advice; ``controls`` are those of the curves without a defence."""
    plain = {curve.level: curve for curve in curves if not curve.defence}
    grades = {level: severity_of(curve, about) for level, curve in plain.items()}
    graded = [replace(one, exposed=one.level in about.exposed, severity=grades[one.level]) for one in controls]
    return tuple(
        replace(one, action=_action(one, plain[one.level], _instead(plain[one.level], curves, grades)))
        for one in graded
    )


def _best(curve: Curve) -> float:
    return max((point.agreement.high for point in curve.points), default=0.0)


def _instead(curve: Curve, curves: Sequence[Curve], grades: Mapping[str, Severity]) -> str:
    """What could be shown in its place."""
    held = [one.defence for one in curves if one.level == curve.level and one.defence and one.status == "not reached"]
    if held:
        return f", or put it behind {held[0]}, which held within the queries tried"
    if curve.baseline in grades and rank("low") <= rank(grades[curve.baseline]) < rank(grades[curve.level]):
        return f", or show its {curve.baseline} without explanations"
    return ""


def _action(control: Control, curve: Curve, instead: str) -> str:
    """What an owner should do who exposes this, or is about to."""
    if control.severity == "unknown":
        return "Decide nothing by this: these attacks could not show how much it gives away. See the warnings."
    if control.severity == "low":
        return (
            f"Limit each client to the {curve.tried:,} queries that were tried, and audit again before allowing more."
        )
    if control.severity == "medium":
        best = percent(_best(curve))
        return (
            f"Limit queries per client and watch for extraction: a copy agrees on {best} after {curve.tried:,} queries."
        )
    agreed = curve.need(_VULNERABLE).queries
    if control.suggested is None and agreed is not None:
        return (
            f"Limit each client well below the {agreed.low:,.0f} queries after which a copy agreed on {_VULNERABLE} %"
            f"{instead}."
        )
    if control.suggested:
        return f"Limit each client to {control.suggested:,} queries in all{instead}."
    return f"Do not expose it{instead}: no limit on queries is small enough."
