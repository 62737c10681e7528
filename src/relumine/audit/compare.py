"""What changed between two audits, as of two versions of a model: does the second give away more?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from relumine.audit.gate import Z_95
from relumine.audit.result import AuditResult, Curve, GateStatus, Need, Point
from relumine.text import percent

# What the second audit found, as seen from the first.
Direction = Literal["more", "less", "same", "open"]


@dataclass(frozen=True)
class LevelChange:
    """One figure of a curve in both audits: ``direction`` says whether the second gives away more."""

    exposed: str
    figure: str
    before: str
    after: str
    direction: Direction


@dataclass(frozen=True)
class AuditComparison:
    """Every figure that both audits have.

    remarks: what makes the two hard to compare
    """

    before: str
    after: str
    changes: tuple[LevelChange, ...]
    remarks: tuple[str, ...]

    @property
    def direction(self) -> Direction:
        """Of all: more where anything gives away more, open where that cannot be told."""
        found = {change.direction for change in self.changes}
        return next((one for one in _GRAVEST_FIRST if one in found), "open" if not found else "same")

    @property
    def verdict(self) -> str:
        """In a sentence."""
        names = dict.fromkeys(one.exposed for one in self.changes if one.direction == self.direction)
        return f"{_VERDICTS[self.direction]}{': ' + ', '.join(names) if names and self.direction != 'same' else ''}."


_GRAVEST_FIRST: tuple[Direction, ...] = ("more", "open", "less", "same")
_VERDICTS: dict[Direction, str] = {
    "more": "The second gives away more than the first",
    "less": "The second gives away less than the first, within what was tried",
    "same": "No difference beyond what seeds and sampling explain",
    "open": "It cannot be told whether the second gives away more",
}


def compared(before: AuditResult, after: AuditResult) -> AuditComparison:
    """The second audit against the first, curve by curve."""
    curves = {curve.key: curve for curve in before.curves}
    pairs = [(curves[one.key], one) for one in after.curves if one.key in curves]
    inputs = (before.about.test_inputs, after.about.test_inputs)
    changes = [change for pair in pairs for change in _changes(*pair, inputs)]
    return AuditComparison(
        f"{before.about.target}, {before.about.started}",
        f"{after.about.target}, {after.about.started}",
        (*changes, *_gates(before, after)),
        tuple(_remarks(before, after)),
    )


def _remarks(before: AuditResult, after: AuditResult) -> Iterator[str]:
    for name, what in (("data", "inputs"), ("budget", "budgets"), ("seeds", "numbers of seeds")):
        first, second = getattr(before.about, name), getattr(after.about, name)
        if first != second:
            yield f"The audits used different {what}: {first} and {second}."
    names = [{curve.name for curve in one.curves} for one in (before, after)]
    for only, where in ((names[0] - names[1], "first"), (names[1] - names[0], "second")):
        if only:
            yield f"Only in the {where}: {', '.join(sorted(only))}."


def _changes(before: Curve, after: Curve, inputs: tuple[int, int]) -> Iterator[LevelChange]:
    for need in after.needs:
        old = before.need(need.milestone)
        what = "queries to exact" if need.milestone == "exact" else f"queries to {need.milestone} %"
        open_ = "inconclusive" in (before.status, after.status)
        yield LevelChange(after.name, what, old.taken, need.taken, _of_needs(old, need, open_))
    budgets = {point.budget for point in before.points} & {point.budget for point in after.points}
    if budgets:
        old_point, point = (_at(curve.points, max(budgets)) for curve in (before, after))
        shares = old_point.agreement.mean, point.agreement.mean
        direction = _of_shares(*shares, inputs)
        what = f"agreement at {max(budgets):,}"
        yield LevelChange(after.name, what, percent(shares[0]), percent(shares[1]), direction)


def _at(points: Sequence[Point], budget: int) -> Point:
    return next(point for point in points if point.budget == budget)


def _of_needs(before: Need, after: Need, inconclusive: bool) -> Direction:
    """By the range over seeds: only ranges that do not meet are different."""
    old, new = before.queries, after.queries
    if old is not None and new is not None:
        return "more" if new.high < old.low else "less" if new.low > old.high else "same"
    if new is not None:
        return "more" if new.low <= before.missed else "open"
    if inconclusive:
        return "open"
    if old is not None:
        return "less" if old.high <= after.missed else "open"
    return "same"


def _of_shares(before: float, after: float, inputs: tuple[int, int]) -> Direction:
    """Two shares of test inputs differ where sampling these does not explain it, at 95 % confidence."""
    if not all(inputs):
        return "open"
    share = (before * inputs[0] + after * inputs[1]) / sum(inputs)
    width = Z_95 * sqrt(share * (1 - share) * (1 / inputs[0] + 1 / inputs[1]))
    if abs(after - before) <= width:
        return "same"
    return "more" if after > before else "less"


def _gates(before: AuditResult, after: AuditResult) -> Iterator[LevelChange]:
    statuses = {gate.condition: gate.status for gate in before.gates}
    for gate in after.gates:
        if gate.condition in statuses:
            was = statuses[gate.condition]
            yield LevelChange("gate", gate.condition, was, gate.status, _of_gates(was, gate.status))


def _of_gates(before: GateStatus, after: GateStatus) -> Direction:
    if before == after:
        return "same"
    return "more" if after == "failed" else "open" if after == "undecided" else "less"
