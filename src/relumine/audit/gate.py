"""Gates: conditions under which an audit fails, for CI pipelines.

condition = [ level ":" ] "queries-to-" ( "50" | "90" | "95" | "99" | "exact" ) ( "<" | "<=" ) queries
          | [ level ":" ] "agreement-at-" queries ( ">" | ">=" ) share

A gate *fails* where a case has crossed its threshold, in any seed. It *passes* only where enough queries were tried,
the attacks learned something, and the best copy of any seed stayed so far below that the sampling of test inputs cannot
explain it. Everything else is *undecided*: cases that ended by an error, a budget or a pool smaller than the threshold,
a target that a constant guess agrees with.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from relumine.audit.levels import LEVELS
from relumine.audit.result import About, Curve, Gate, GateStatus, Need, Point
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

# Of a normal distribution 95 % lie within this many standard deviations.
Z_95 = 1.96


@dataclass(frozen=True)
class Condition:
    """When a gate fails.

    text:      as it was written
    level:     what must be exposed for it to be judged, "" for everything that is
    milestone: of which the queries count ("95", "exact"), or None where it is about an agreement …
    at:        … at this number of queries
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


def judge(condition: Condition, curves: Sequence[Curve], about: About) -> Gate:
    """How a condition ended, by the curves of the target as it is: defences are what-ifs, and so is what is not
    exposed, where that is known and the condition names no level."""
    named = (condition.level,) if condition.level else about.exposed
    own = [curve for curve in curves if not curve.defence and (not named or curve.level in named)]
    if not own:
        what = f"at the level {condition.level!r}" if condition.level else "without a defence"
        return Gate(condition.text, "undecided", f"nothing was tried {what}")
    if _trivial(condition, about.majority):
        return Gate(
            condition.text,
            "undecided",
            f"always guessing one class agrees with the target on {about.majority:.1%} of the inputs, so this says "
            "nothing",
        )
    verdicts = [_checked(condition, curve, about) for curve in own]
    for status in ("failed", "undecided"):
        reasons = [reason for found, reason in verdicts if found == status]
        if reasons:
            return Gate(condition.text, status, "; ".join(reasons))
    return Gate(condition.text, "passed", "; ".join(reason for _, reason in verdicts))


def _trivial(condition: Condition, majority: float | None) -> bool:
    return majority is not None and condition.milestone != "exact" and majority >= _agreement(condition)


def _agreement(condition: Condition) -> float:
    """The share at which a copy is too good."""
    return condition.threshold if condition.milestone is None else int(condition.milestone) / 100


def allowed(condition: Condition) -> int:
    """The most queries with which the condition is not to hold."""
    if condition.milestone is None:
        return condition.at
    return int(condition.threshold) - (0 if condition.inclusive else 1)


_Verdict = tuple[GateStatus, str]


def _checked(condition: Condition, curve: Curve, about: About) -> _Verdict:
    """The verdict of a curve; a pass only where nothing speaks against the attacks."""
    status, reason = _by_need(condition, curve) if condition.milestone else _by_points(condition, curve)
    if status == "passed" and condition.milestone != "exact" and (doubt := _doubt(condition, curve, about)):
        return "undecided", f"{curve.label}: {doubt}"
    return status, f"{curve.label}: {reason}"


def _doubt(condition: Condition, curve: Curve, about: About) -> str:
    """Why attacks that did not cross the threshold show nothing; "" if they do."""
    queries = allowed(condition)
    if about.pool is not None and about.pool < queries:
        return (
            f"attackers had {about.pool:,} inputs to ask, and an attacker with {queries:,} may do better; give "
            f"{2 * queries:,} with --data, half of which judge copies"
        )
    best = max((point.agreement.mean for point in curve.points), default=0.0)
    if _bound(best, about.test_inputs, -1) <= (about.majority or 0.0):
        return "no copy was better than a constant guess, so these attacks learned nothing; try a larger budget"
    # Every budget up to the first that covers the threshold's.
    near = next((point for point in curve.points if point.budget >= queries), curve.points[-1])
    highest = _bound(near.highest, about.test_inputs, 1)
    if highest >= _agreement(condition):
        return (
            f"the best copy agreed on {near.highest:.1%} of {about.test_inputs:,} test inputs, which may be "
            f"{highest:.1%}; give more inputs with --data"
        )
    return ""


def _bound(share: float, count: int, side: int) -> float:
    """The lower (−1) or upper (1) end of Wilson's interval for a share of ``count`` inputs, at 95 % confidence."""
    if not count:
        return float(side > 0)
    middle = share + Z_95**2 / (2 * count)
    width = Z_95 * sqrt(share * (1 - share) / count + Z_95**2 / (4 * count**2))
    return (middle + side * width) / (1 + Z_95**2 / count)


def _by_need(condition: Condition, curve: Curve) -> _Verdict:
    assert condition.milestone is not None
    need = curve.need(condition.milestone)
    most = allowed(condition)
    if need.queries is not None and need.queries.low <= most:
        return "failed", f"{need.goal} with {need.queries.low:,.0f} queries"
    if need.missed >= most:
        return "passed", f"no {need.goal} by these attacks with {need.missed:,} queries"
    return "undecided", _open_question(curve, need, most)


def _open_question(curve: Curve, need: Need, most: int) -> str:
    if curve.status == "inconclusive":
        return "cases ended with an error"
    if need.queries is not None:
        return (
            f"reached with {need.queries.low:,.0f} queries and not with {need.missed:,}; {most:,} lies between, try "
            "that budget"
        )
    return f"only {need.missed:,} queries were tried without an error, {most:,} are needed to tell"


def _by_points(condition: Condition, curve: Curve) -> _Verdict:
    crossing = [point for point in curve.points if point.queries <= condition.at and _crosses(condition, point)]
    if crossing:
        worst = max(crossing, key=lambda point: point.agreement.high)
        return "failed", f"{worst.agreement.high:.1%} agreement with {worst.queries:,.0f} queries"
    if curve.status == "inconclusive":
        return "undecided", "cases ended with an error"
    # An attack that did not cross the threshold with more queries did not cross it with that number either.
    beyond = next((point for point in curve.points if point.tried >= condition.at), None)
    if beyond is None:
        return "undecided", f"only {max((point.tried for point in curve.points), default=0):,} queries were tried"
    if _crosses(condition, beyond):
        return "undecided", f"crossed with {beyond.queries:,.0f} queries; try the budget {condition.at:,}"
    return "passed", f"at most {beyond.highest:.1%} agreement with {beyond.tried:,} queries"


def _crosses(condition: Condition, point: Point) -> bool:
    highest = point.agreement.high
    return highest >= condition.threshold if condition.inclusive else highest > condition.threshold
