"""From records to curves: the best attack at each budget, and the queries that each milestone took.

Nothing is interpolated or assumed between two budgets: a milestone's price is what a case really spent, and between
the largest budget that missed it and that price nothing is known.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from relumine.audit.knowledge import leaves_values
from relumine.audit.levels import LEVELS, Level, contained_in, values_beside
from relumine.audit.result import MILESTONES, Curve, CurveKey, Need, Point, Record, Spread, Status, Usefulness
from relumine.defend import parse

# A curve is called "reached" from this agreement on.
REACHED = "95"

# Measures that cannot be taken of every clone.
_NOT_OF_ALL = ("accuracy", "transfer", "parameters_recovered", "r2")

# Outcomes that mean: the endpoint, or the budget, would not have given one answer more.
_CUT_OFF = ("REFUSED", "BUDGET_EXHAUSTED")


def curves_of(
    records: Collection[Record],
    levels: Sequence[Level],
    *,
    stopped: Mapping[CurveKey, str] | None = None,
    usefulness: Mapping[CurveKey, Usefulness | None] | None = None,
) -> tuple[Curve, ...]:
    """A curve for each level and defence that has records: levels in the given order, without defence first.

    stopped:    why no larger budget was tried
    usefulness: of what is shown there
    """
    defences = sorted({record.case.defence for record in records}, key=lambda words: words != "")
    found = []
    for level in levels:
        for defence in defences:
            own = seen_at(level, defence, records)
            if any(one.case.level == level.name for one in own):
                key = (level.name, defence)
                found.append(_curve(level, defence, own, (stopped or {}).get(key, ""), (usefulness or {}).get(key)))
    return tuple(found)


def seen_at(level: Level, defence: str, records: Collection[Record]) -> list[Record]:
    """The records of a level and of all whose answers are part of its own, behind the same defence.

    A defence changes values and maps apart from each other, and each map for itself: who sees more can ignore it. And
    what reached the values without a defence reaches them behind one that leaves them as they are.
    """
    seen = {(name, defence) for name in (level.name, *contained_in(level))}
    if defence and leaves_values(defence):
        seen |= {(name, "") for name in values_beside(level)}
    return [one for one in records if (one.case.level, one.case.defence) in seen]


def _curve(level: Level, defence: str, records: list[Record], stopped: str, useful: Usefulness | None) -> Curve:
    needs = needs_of(records, level.name)
    return Curve(
        level=level.name,
        label=level.label,
        defence=defence,
        changes=parse(defence).changes if defence else "",
        baseline=level.baseline,
        attacks=tuple(dict.fromkeys(_named(record, level.name) for record in records)),
        points=points_of(records, level.name),
        needs=needs,
        status=_status(_own(records, level.name), needs),
        stopped=stopped,
        usefulness=useful,
    )


def points_of(records: Collection[Record], level: str = "") -> tuple[Point, ...]:
    """At each budget the best attack of it and of smaller ones, from the first at which there is any clone."""
    groups = _by_budget(records)
    points = (_point(budget, [one for one in records if one.case.budget <= budget], level) for budget, _ in groups)
    return tuple(point for point in points if point is not None)


def _by_budget(records: Collection[Record]) -> list[tuple[int, list[Record]]]:
    """From the smallest budget to the largest."""
    budgets = sorted({record.case.budget for record in records})
    return [(budget, [one for one in records if one.case.budget == budget]) for budget in budgets]


def _own(records: Collection[Record], level: str) -> list[Record]:
    """Without those of other levels: what was tried there does not show that enough was tried here."""
    return [one for one in records if level in ("", one.case.level)]


def _named(record: Record, level: str) -> str:
    """The attack, with the level that it looked at if that is a part of this one."""
    own = level in ("", record.case.level)
    return record.case.attack if own else f"{record.case.attack}, of {LEVELS[record.case.level].label}"


def _point(budget: int, records: list[Record], level: str) -> Point | None:
    groups: dict[tuple[str, int], list[Record]] = {}
    for one in records:
        groups.setdefault((_named(one, level), one.case.budget), []).append(one)
    # Of equally good ones the cheapest.
    name, used = max(groups, key=lambda key: (*_merit(groups[key]), -sum(one.queries for one in groups[key])))
    own = [one for one in groups[name, used] if one.measures is not None]
    measured = [one.measures for one in own if one.measures is not None]
    if not measured:
        return None
    return Point(
        budget=budget,
        attack=name,
        queries=float(np.mean([one.queries for one in own])),
        floats=float(np.mean([one.spent.get("floats", 0) for one in own])),
        exact=sum(one.exact for one in own),
        agreement=spread([one.agreement for one in measured]),
        gaussian_agreement=spread([one.gaussian_agreement for one in measured]),
        worst_gap=spread([one.worst_gap for one in measured]),
        highest=max(one.measures.agreement for one in records if one.measures is not None),
        tried=_tried([one for one in _own(records, level) if one.case.budget == budget]),
        **{name: _over_known([getattr(one, name) for one in measured]) for name in _NOT_OF_ALL},
    )


def _merit(records: list[Record]) -> tuple[int, float]:
    """How often exact, then how much agreement; a seed that ended without a clone has none."""
    agreements = [0.0 if one.measures is None else one.measures.agreement for one in records]
    return sum(one.exact for one in records), float(np.mean(agreements))


def _over_known(numbers: list[float | None]) -> Spread | None:
    known = [number for number in numbers if number is not None]
    return spread(known) if known else None


def spread(numbers: Sequence[float]) -> Spread:
    """Mean, smallest and largest of what the seeds gave."""
    return Spread(float(np.mean(numbers)), float(min(numbers)), float(max(numbers)), len(numbers))


def needs_of(records: Collection[Record], level: str = "") -> tuple[Need, ...]:
    """The queries to each milestone: in each seed those of the cheapest case that reached it, whatever its attack."""
    reaches = {f"{100 * share:.0f}": agrees(share) for share in MILESTONES}
    reaches["exact"] = lambda record: record.exact
    return tuple(_need(milestone, records, level, reached) for milestone, reached in reaches.items())


def agrees(milestone: float) -> Callable[[Record], bool]:
    """Whether a record's clone agrees with the target on at least this share of the test inputs."""
    return lambda record: record.measures is not None and record.measures.agreement >= milestone


def _need(milestone: str, records: Collection[Record], level: str, reaches: Callable[[Record], bool]) -> Need:
    cheapest = []
    for seed in sorted({record.case.seed for record in records}):
        reached = [one for one in records if one.case.seed == seed and reaches(one)]
        if reached:
            cheapest.append(min(reached, key=lambda one: one.queries))
    return Need(
        milestone=milestone,
        queries=spread([one.queries for one in cheapest]) if cheapest else None,
        floats=float(np.mean([one.spent.get("floats", 0) for one in cheapest])) if cheapest else None,
        tried=max((_tried(group) for _, group in _by_budget(_own(records, level))), default=0),
        missed=_missed(records, level, reaches),
    )


def _missed(records: Collection[Record], level: str, reaches: Callable[[Record], bool]) -> int:
    """The most queries tried at a budget at which no case reached it, none ended by an error, and none before did."""
    most = 0
    for _, group in _by_budget(records):
        if any(map(reaches, group)):
            break
        own = _own(group, level)
        if not any(one.failed for one in own):
            most = max(most, _tried(own))
    return most


def _tried(records: list[Record]) -> int:
    """Queries that were put to use at one budget in every seed: an attack that gave up early tried no more than that.

    Who is refused, or has no budget left, could not have asked more: then it is what the case allowed.
    """
    used: dict[int, int] = {}
    for record in records:
        seed = record.case.seed
        used[seed] = max(used.get(seed, 0), 0 if record.failed else _used(record))
    return min(used.values(), default=0)


def _used(record: Record) -> int:
    case = record.case
    cut_off = record.outcome in _CUT_OFF or (case.defence != "" and parse(case.defence).remembers)
    return max(case.budget, record.queries) if cut_off else record.queries


def _status(records: list[Record], needs: tuple[Need, ...]) -> Status:
    reached = {need.milestone for need in needs if need.queries is not None}
    if "exact" in reached:
        return "exact"
    if REACHED in reached:
        return "reached"
    return "inconclusive" if any(record.failed for record in records) else "not reached"


def cheapest(curves: Sequence[Curve], milestone: str) -> Curve | None:
    """Where the milestone took the fewest queries, on average over the seeds that reached it."""
    found = [(need.queries.mean, curve) for curve in curves if (need := curve.need(milestone)).queries is not None]
    return min(found, key=lambda pair: pair[0])[1] if found else None
