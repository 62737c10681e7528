"""Gates: conditions under which an audit fails, for CI pipelines.

condition = [ level ":" ] "queries-to-" ( "50" | "90" | "95" | "99" | "exact" ) ( "<" | "<=" ) queries
          | [ level ":" ] "agreement-at-" queries ( ">" | ">=" ) share

A gate *fails* where a case has crossed its threshold, in any seed. It *passes* only where enough queries were tried
without crossing it. Everything else is *undecided*: cases that ended by an error, a budget smaller than the threshold,
a target that a constant guess agrees with.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relumine.audit.levels import LEVELS
from relumine.audit.result import Curve, Gate, GateStatus, Need, Point
from relumine.errors import MisuseError

GRAMMAR = (
    "expected 'queries-to-95 < 1000' (or -50, -90, -99, -exact) or 'agreement-at-100 > 0.9', with or without a level "
    f"in front ('gradients: queries-to-95 < 1000'; levels: {', '.join(LEVELS)})"
)

_CONDITION = re.compile(
    r"""\s* (?: (?P<level> [a-z][a-z-]*) \s* : )?
        \s* (?: queries-to-(?P<milestone> 50|90|95|99|exact) | agreement-at-(?P<at> \d[\d,_]*) )
        \s* (?P<sign> <=|<|>=|>)
        \s* (?P<number> \d[\d,_]*(?:\.\d+)?) \s* (?P<percent> %)? \s*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Condition:
    """When a gate fails.

    text:      as it was written
    level:     what must be exposed for it to be judged, "" for everything that is
    milestone: of which the queries count ("95", "exact"), or None where it is about an agreement …
    at:        … at so many queries
    threshold: queries, or a share
    inclusive: whether the threshold itself fails
    """

    text: str
    level: str
    milestone: str | None
    at: int
    threshold: float
    inclusive: bool


def parse_condition(text: str) -> Condition:
    """The condition that a text states, or a MisuseError that shows how one is written."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise MisuseError(f"condition {text!r}: {GRAMMAR}")
    level, milestone, sign = match["level"] or "", match["milestone"], match["sign"]
    if level and level not in LEVELS:
        raise MisuseError(f"condition {text!r}: there is no level {level!r}; {GRAMMAR}")
    if sign[0] != ("<" if milestone else ">"):
        raise MisuseError(
            f"condition {text!r}: it says when the audit fails: with too {'few' if milestone else 'high'} "
            f"{'queries' if milestone else 'an agreement'}, so with '{'<' if milestone else '>'}'; {GRAMMAR}"
        )
    number = _number(match["number"]) / (100 if match["percent"] else 1)
    at = int(_number(match["at"])) if match["at"] else 0
    _check(text, milestone, at, number, bool(match["percent"]))
    return Condition(" ".join(text.split()), level, milestone, at, number, sign.endswith("="))


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _check(text: str, milestone: str | None, at: int, number: float, percent: bool) -> None:
    if milestone and (percent or number != int(number) or number < 1):
        raise MisuseError(f"condition {text!r}: queries are a whole number of at least 1; {GRAMMAR}")
    if milestone is None and not 0 < number <= 1:
        raise MisuseError(f"condition {text!r}: an agreement is a share from 0 to 1, or in per cent; {GRAMMAR}")
    if milestone is None and at < 1:
        raise MisuseError(f"condition {text!r}: an agreement needs at least 1 query; {GRAMMAR}")


def judge(condition: Condition, curves: Sequence[Curve], majority: float | None = None) -> Gate:
    """How a condition ended, by the curves of the target as it is: those behind a defence are what-ifs.

    majority: what a constant guess agrees with; agreement that is not above it shows nothing
    """
    own = [curve for curve in curves if not curve.defence and condition.level in ("", curve.level)]
    if not own:
        what = f"at the level {condition.level!r}" if condition.level else "without a defence"
        return Gate(condition.text, "undecided", f"nothing was tried {what}")
    if _trivial(condition, majority):
        return Gate(
            condition.text,
            "undecided",
            f"always guessing one class agrees with the target on {majority:.1%} of the inputs, so this says nothing",
        )
    verdicts = [_by_need(condition, curve) if condition.milestone else _by_points(condition, curve) for curve in own]
    for status in ("failed", "undecided"):
        reasons = [reason for found, reason in verdicts if found == status]
        if reasons:
            return Gate(condition.text, status, "; ".join(reasons))
    return Gate(condition.text, "passed", "; ".join(reason for _, reason in verdicts))


def _trivial(condition: Condition, majority: float | None) -> bool:
    if majority is None or condition.milestone == "exact":
        return False
    return majority >= (condition.threshold if condition.milestone is None else int(condition.milestone) / 100)


_Verdict = tuple[GateStatus, str]


def _by_need(condition: Condition, curve: Curve) -> _Verdict:
    assert condition.milestone is not None
    need = curve.need(condition.milestone)
    what = _goal(condition.milestone)
    # The most queries that may be asked without failing.
    allowed = int(condition.threshold) - (0 if condition.inclusive else 1)
    if need.queries is not None and need.queries.low <= allowed:
        return "failed", f"{curve.label}: {what} with {need.queries.low:,.0f} queries"
    if need.missed >= allowed:
        return "passed", f"{curve.label}: not {what} by these attacks with {need.missed:,} queries"
    return "undecided", f"{curve.label}: {_open_question(curve, need, allowed)}"


def _goal(milestone: str) -> str:
    return "reconstructed exactly" if milestone == "exact" else f"{milestone} % agreement reached"


def _open_question(curve: Curve, need: Need, allowed: int) -> str:
    if curve.status == "inconclusive":
        return "cases ended with an error"
    if need.queries is not None:
        return (
            f"reached with {need.queries.low:,.0f} queries and not with {need.missed:,}; {allowed:,} lies between, try "
            "that budget"
        )
    return f"only {need.missed:,} queries were tried without an error, {allowed:,} are needed to tell"


def _by_points(condition: Condition, curve: Curve) -> _Verdict:
    crossing = [point for point in curve.points if point.queries <= condition.at and _crosses(condition, point)]
    if crossing:
        worst = max(crossing, key=lambda point: point.agreement.high)
        return "failed", f"{curve.label}: {worst.agreement.high:.1%} agreement with {worst.queries:,.0f} queries"
    if curve.status == "inconclusive":
        return "undecided", f"{curve.label}: cases ended with an error"
    # Whoever asks more than that without crossing has not crossed it at that number either.
    beyond = [point for point in curve.points if point.queries >= condition.at]
    if beyond and not _crosses(condition, beyond[0]):
        seen = beyond[0]
        return "passed", f"{curve.label}: at most {seen.agreement.high:.1%} agreement with {seen.queries:,.0f} queries"
    tried = curve.need("exact").tried
    if not beyond and tried >= condition.at:
        return "passed", f"{curve.label}: none of these attacks made a better clone with {tried:,} queries"
    if beyond:
        return (
            "undecided",
            f"{curve.label}: crossed with {beyond[0].queries:,.0f} queries; try the budget {condition.at:,}",
        )
    return "undecided", f"{curve.label}: only {tried:,} queries were tried"


def _crosses(condition: Condition, point: Point) -> bool:
    highest = point.agreement.high
    return highest >= condition.threshold if condition.inclusive else highest > condition.threshold
