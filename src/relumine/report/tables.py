"""The report's tables: what is in them. The template says how it is written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relumine.audit.curves import cheapest
from relumine.audit.result import MILESTONES, AuditResult, Control, Curve, Record
from relumine.audit.severity import rank
from relumine.report import wording
from relumine.text import NOTHING

COLUMNS = (*(f"{100 * share:.0f}" for share in MILESTONES), "exact")

# How curves ended, in words that claim no more than was seen.
_ENDS = {
    "exact": "recovered exactly",
    "reached": "imitated",
    "not reached": "not reconstructed by these attacks",
    "inconclusive": "could not be decided",
}

# Rows written out; the result file has all of them.
_MOST_FAILURES = 20


def end_of(curve: Curve) -> str:
    """How the curve ended; where nothing was reached, within how many queries that was tried."""
    within = f" within {curve.tried:,} queries" if curve.status == "not reached" else ""
    return f"{_ENDS[curve.status]}{within}"


def winners(curve: Curve) -> str:
    """The attacks that were best at some budget, the most frequent first."""
    frequent = Counter(point.attack for point in curve.points).most_common()
    return "; ".join(wording.short(name, 60) for name, _ in frequent) or NOTHING


def defences(result: AuditResult) -> list[list[Curve]]:
    """What each defence buys, and what it costs the honest reader: a group per exposed output, undefended first."""
    levels = dict.fromkeys(curve.level for curve in result.curves if curve.defence)
    groups = ([curve for curve in result.curves if curve.level == level] for level in levels)
    return [sorted(group, key=lambda curve: bool(curve.defence)) for group in groups]


def key_figures(result: AuditResult) -> list[tuple[str, str]]:
    """The numbers behind the verdict: the cheapest copy, the same without explanations, exactness, and a limit."""
    plain = [curve for curve in result.curves if not curve.defence]
    curves = [curve for curve in plain if curve.level in result.about.exposed] or plain
    figures = [*_copied(result, curves, plain), *_recovered(curves)]
    levels = {curve.level for curve in curves}
    limits = {one.label: one.suggested for one in result.controls if one.suggested is not None and one.level in levels}
    none_left = ", ".join(wording.short(label, 80) for label, limit in limits.items() if not limit)
    if figures and none_left:
        figures.append(("do not expose", f"{none_left}: no limit is small enough"))
    elif figures and limits:
        what = "for what is exposed" if result.about.exposed else "if all of this is exposed"
        figures.append((f"{min(limits.values()):,}", f"queries per client at most, {what}"))
    return figures


def actions(result: AuditResult) -> list[tuple[str, list[Control]]]:
    """What to do about each output, the gravest first: what is exposed today, and apart from that what-ifs."""
    gravest = sorted(result.controls, key=lambda control: -rank(control.severity))
    headings = {True: "Exposed today", False: "If it were exposed"}
    found = [(heading, [one for one in gravest if one.exposed is exposed]) for exposed, heading in headings.items()]
    return [(heading, controls) for heading, controls in found if controls]


def _copied(result: AuditResult, curves: list[Curve], plain: list[Curve]) -> Iterator[tuple[str, str]]:
    """None where a constant guess would do as well."""
    curve = cheapest(curves, "95")
    if curve is None or (result.about.majority or 0) >= 0.95:
        return
    yield curve.need("95").taken, f"queries copy 95 % of the decisions, from {wording.short(curve.label, 80)}"
    baseline = next((one for one in plain if one.level == curve.baseline), None)
    if baseline is not None:
        name = wording.short(baseline.label, 80)
        yield baseline.need("95").taken, f"queries for the same from {name}, without explanations"


def _recovered(curves: list[Curve]) -> Iterator[tuple[str, str]]:
    curve = cheapest(curves, "exact")
    if curve is not None:
        name = wording.short(curve.label, 80)
        yield curve.need("exact").taken, f"queries recover the model exactly, from {name}"


@dataclass(frozen=True)
class Cases:
    """What became of the cases, and the errors of those that failed."""

    outcomes: tuple[tuple[str, int], ...]
    failures: tuple[tuple[Record, int], ...]
    left_out: int

    @property
    def total(self) -> int:
        """How many were run."""
        return sum(number for _, number in self.outcomes)


def cases(records: Sequence[Record]) -> Cases:
    """The records, counted; failures with the same error are one."""
    alike = Counter((record.case.level, record.case.defence, record.error) for record in records if record.failed)
    first = {(r.case.level, r.case.defence, r.error): r for r in reversed(records) if r.failed}
    failures = tuple((first[key], number) for key, number in alike.most_common(_MOST_FAILURES))
    outcomes = tuple(Counter(record.outcome.lower().replace("_", " ") for record in records).most_common())
    return Cases(outcomes, failures, len(alike) - len(failures))
