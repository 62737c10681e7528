"""The report's tables: what each cell says."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relumine.audit.result import MILESTONES, AuditResult, Control, Curve, Need, Point, Record
from relumine.audit.severity import rank
from relumine.report import wording
from relumine.report.curves import best, looks, queries_to

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


@dataclass(frozen=True)
class MilestoneCell:
    """Queries to one milestone: how many, from where to where, how many were too few, what they cost, and how many
    it takes without explanations."""

    queries: str
    spread: str
    missed: str
    cost: str
    baseline: str
    reached: bool


@dataclass(frozen=True)
class LevelRow:
    """One exposed output."""

    label: str
    look: int
    baseline: str
    end: str
    status: str
    stopped: str
    attacks: str
    cells: tuple[MilestoneCell, ...]


def exposed_outputs(result: AuditResult) -> list[LevelRow]:
    """The short table: what each level of access gives away."""
    curves = [curve for curve in result.curves if not curve.defence]
    plain = {curve.level: curve for curve in curves}
    return [
        LevelRow(
            curve.label,
            look,
            plain[curve.baseline].label if curve.baseline in plain else "",
            end_of(curve),
            curve.status.replace(" ", "-"),
            curve.stopped,
            winners(curve),
            tuple(_cell(curve, plain.get(curve.baseline), milestone, result) for milestone in COLUMNS),
        )
        for curve, look in zip(curves, looks(result, curves), strict=True)
    ]


def end_of(curve: Curve) -> str:
    """How the curve ended; where nothing was reached, within how many queries that was tried."""
    within = f" within {curve.tried:,} queries" if curve.status == "not reached" else ""
    return f"{_ENDS[curve.status]}{within}"


def winners(curve: Curve) -> str:
    """The attacks that were best at some budget, the most frequent first."""
    frequent = Counter(point.attack for point in curve.points).most_common()
    return ", ".join(wording.short(name, 60) for name, _ in frequent) or wording.NOTHING


def _cell(curve: Curve, baseline: Curve | None, milestone: str, result: AuditResult) -> MilestoneCell:
    need, price = _need(curve, milestone), result.about.price
    if need is None or need.queries is None:
        return MilestoneCell(_taken(curve, milestone), "", "", "", _beside(baseline, milestone), False)
    queries = need.queries
    spread = wording.between(queries, wording.count)
    if queries.seeds < result.about.seeds:
        spread = f"{spread} in {queries.seeds} of {result.about.seeds} seeds".strip()
    cost = "" if price is None else wording.money(queries.mean, price)
    missed = f"not with {need.missed:,}" if need.missed else ""
    return MilestoneCell(wording.count(queries.mean), spread, missed, cost, _beside(baseline, milestone), True)


def _beside(baseline: Curve | None, milestone: str) -> str:
    return "" if baseline is None else _taken(baseline, milestone)


def _need(curve: Curve, milestone: str) -> Need | None:
    return next((need for need in curve.needs if need.milestone == milestone), None)


@dataclass(frozen=True)
class DefenceRow:
    """One defence in front of one exposed output."""

    defence: str
    changes: str
    label: str
    look: int
    end: str
    status: str
    attack: str
    agreement: str
    to_95: str
    exact: str
    usefulness: tuple[str, ...]


def defences(result: AuditResult) -> list[list[DefenceRow]]:
    """What each defence buys, and what it costs the honest reader: a group per exposed output, undefended first."""
    levels = dict.fromkeys(curve.level for curve in result.curves if curve.defence)
    return [_group(result, [curve for curve in result.curves if curve.level == level]) for level in levels]


def _group(result: AuditResult, curves: list[Curve]) -> list[DefenceRow]:
    return [
        DefenceRow(
            curve.defence or "none",
            curve.changes,
            curve.label,
            look,
            end_of(curve),
            curve.status.replace(" ", "-"),
            _best_attack(curve),
            wording.per_cent(best(curve, lambda point: point.agreement.mean)) if curve.points else wording.NOTHING,
            _taken(curve, "95"),
            _taken(curve, "exact"),
            _usefulness(curve),
        )
        for curve, look in zip(sorted(curves, key=lambda one: bool(one.defence)), looks(result, curves), strict=True)
    ]


def _best_attack(curve: Curve) -> str:
    known = [point for point in curve.points if not math.isnan(point.agreement.mean)]
    return max(known, key=lambda point: point.agreement.mean).attack if known else wording.NOTHING


def _taken(curve: Curve, milestone: str) -> str:
    """The mean number of queries, or that those tried were not enough."""
    need = _need(curve, milestone)
    if need is None or (need.queries is None and not need.tried):
        return wording.NOTHING
    return f"> {need.tried:,}" if need.queries is None else wording.count(need.queries.mean)


def _usefulness(curve: Curve) -> tuple[str, ...]:
    useful = curve.usefulness
    if useful is None:
        return (wording.NOTHING,) * 4
    return tuple(map(wording.decimal, (useful.rank_correlation, useful.top_overlap, useful.deletion, useful.insertion)))


@dataclass(frozen=True)
class KeyFigure:
    """A number to remember."""

    number: str
    what: str


def key_figures(result: AuditResult) -> list[KeyFigure]:
    """The numbers behind the verdict: the cheapest copy, the same without explanations, exactness, and a limit."""
    plain = [curve for curve in result.curves if not curve.defence]
    curves = [curve for curve in plain if curve.level in result.about.exposed] or plain
    figures = [*_copied(result, curves, plain), *_recovered(curves)]
    levels = {curve.level for curve in curves}
    limits = [one.suggested for one in result.controls if one.suggested is not None and one.level in levels]
    if figures and limits:
        what = "for what is exposed" if result.about.exposed else "if all of this is exposed"
        least = KeyFigure(f"{min(limits):,}", f"queries per client at most, {what}")
        figures.append(least if min(limits) else KeyFigure("do not expose", "some of this: no limit is small enough"))
    return figures


def actions(result: AuditResult) -> list[tuple[str, list[Control]]]:
    """What to do about each output, the gravest first: what is exposed today, and apart from that what-ifs."""
    gravest = sorted(result.controls, key=lambda control: -rank(control.severity))
    headings = {True: "Exposed today", False: "If it were exposed"}
    found = [(heading, [one for one in gravest if one.exposed is exposed]) for exposed, heading in headings.items()]
    return [(heading, controls) for heading, controls in found if controls]


def _copied(result: AuditResult, curves: list[Curve], plain: list[Curve]) -> Iterator[KeyFigure]:
    """None where a constant guess would do as well."""
    cheapest = _cheapest(curves, "95")
    if cheapest is None or (result.about.majority or 0) >= 0.95:
        return
    yield KeyFigure(
        _taken(cheapest, "95"), f"queries copy 95 % of the decisions, from {wording.short(cheapest.label, 80)}"
    )
    baseline = next((curve for curve in plain if curve.level == cheapest.baseline), None)
    if baseline is not None:
        name = wording.short(baseline.label, 80)
        yield KeyFigure(_taken(baseline, "95"), f"queries for the same from {name}, without explanations")


def _recovered(curves: list[Curve]) -> Iterator[KeyFigure]:
    cheapest = _cheapest(curves, "exact")
    if cheapest is not None:
        name = wording.short(cheapest.label, 80)
        yield KeyFigure(_taken(cheapest, "exact"), f"queries recover the model exactly, from {name}")


def _cheapest(curves: list[Curve], milestone: str) -> Curve | None:
    reached = [curve for curve in curves if queries_to(curve, milestone) < math.inf]
    return min(reached, key=lambda curve: queries_to(curve, milestone), default=None)


@dataclass(frozen=True)
class PointRow:
    """One measured point, as numbers."""

    name: str
    budget: str
    queries: str
    floats: str
    attack: str
    measures: tuple[str, ...]


def points(result: AuditResult) -> list[PointRow]:
    """Everything that the leakage chart shows, and what it has no room for."""
    return [
        PointRow(
            wording.short(curve.name, 80),
            f"{point.budget:,}",
            wording.count(point.queries),
            wording.count(point.floats),
            point.attack,
            _measures(point),
        )
        for curve in result.curves
        for point in curve.points
    ]


def _measures(point: Point) -> tuple[str, ...]:
    share = wording.per_cent
    return (
        wording.with_spread(point.agreement, share),
        wording.with_spread(point.gaussian_agreement, share),
        wording.with_spread(point.accuracy, share),
        wording.scientific(point.worst_gap.mean),
        wording.with_spread(point.transfer, share),
        wording.with_spread(point.parameters_recovered, share),
        f"{point.exact} of {point.agreement.seeds}",
    )


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
