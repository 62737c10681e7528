"""The paper's claims beside what was measured here."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from relumine.study.designs import (
    GRADIENT,
    LITTLE,
    MEMBERSHIP,
    MEMBERSHIP_LOGITS,
    ONE_WEIGHT,
    SMOOTHGRAD,
    CurveDesign,
    FigureName,
    Panel,
)
from relumine.study.results import MeasuredPoint, Results, queries_to_reach
from relumine.text import percent

# better, same or short of what the paper says; open where the rows at hand cannot tell.
Verdict = Literal["better", "same", "short", "open"]
# The accuracy until which queries are counted. target: 95 % of the target's, or what gradient queries reach if that is
# less; original: the target's own, within half a point, and the former is told besides; first: what the smallest budget
# of gradient queries reaches; both: the highest that both kinds reach.
Level = Literal["target", "original", "first", "both"]

# "n times fewer queries" is read off a log-scale plot: half a decade either way is the same.
_HALF_A_DECADE = sqrt(10)
# Accuracies are the same within a point.
_POINT = 0.01
# A student is as good as its target within this.
_HALF_A_POINT = 0.005
# Where the paper names no accuracy, "reconstructed" is taken to mean this share of the target's.
_RECONSTRUCTED = 0.95


@dataclass(frozen=True)
class Finding:
    """What was found here, in words, how it compares, and how many seeds every number in it has at least."""

    ours: str
    verdict: Verdict
    seeds: int = 0


NOTHING = Finding("not run", "open")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about one of its figures, how it is checked, and why it may be short if known."""

    figure: FigureName
    subject: str
    says: str
    check: Callable[[Results], Finding]
    why_short: str = ""


def as_good_as_target(results: Results, *, panel: str, budget: int) -> Finding:
    """The student has the target's accuracy, within half a point, after ``budget`` gradient queries."""
    of = results.panel(panel)
    point, target = _at(results.points(of, GRADIENT), budget), results.target_accuracy(of)
    if point is None or target is None:
        return NOTHING
    words = f"{_told(point)} with {_queries(budget, GRADIENT)}, target {percent(target)}"
    return Finding(words, "same" if point.mean >= target - _HALF_A_POINT else "short", point.seeds)


def accuracy_at(results: Results, *, panel: str, curve: str, budget: int, accuracy: float) -> Finding:
    """``accuracy`` after ``budget`` queries; of students of values by the better of both losses, and both are told."""
    of, kind = results.panel(panel), GRADIENT if curve == "gradient" else MEMBERSHIP
    point = _at(results.points(of, kind), budget)
    if point is None:
        return NOTHING
    words, best = f"{_told(point)} with {_queries(budget, kind)}", point.mean
    logits = _at(results.points(of, MEMBERSHIP_LOGITS), budget)
    if kind is MEMBERSHIP and logits is not None:
        words, best = f"{words}; compared by logits {_told(logits)}", max(best, logits.mean)
    return Finding(words, _verdict(best, accuracy - _POINT, accuracy + _POINT), point.seeds)


def times_fewer(results: Results, *, panel: str, factor: float, level: float | Level = "target") -> Finding:
    """Gradient queries needed to reach a level are ``factor`` times fewer than membership queries."""
    of = results.panel(panel)
    counted = _counted(results, of, level)
    if counted is None:
        return NOTHING
    reached, few, many, asked, seeds = counted
    if few is None:
        either = "neither reaches" if many is None else "gradient queries do not reach"
        return Finding(f"{either} {percent(reached)} with {asked:,}", "short", seeds)
    if many is None:  # the ratio is a lower bound, if values were asked for as often
        if asked < few:
            words = f"{few:,.0f} gradient queries reach {percent(reached)}, {asked:,} membership queries do not"
            return Finding(words, "open", seeds)
        words = f"more than {_times(asked / few)} fewer to reach {percent(reached)} ({few:,.0f}, and never)"
        verdict = _ratio_compared(asked / few, factor)
        return Finding(words, "open" if verdict == "short" else verdict, seeds)
    besides = [f"{few:,.0f} and {many:,.0f}", _by_seed(results, of, level), _by_logits(results, of, reached, few)]
    words = f"{_times(many / few)} fewer to reach {percent(reached)} ({'; '.join(filter(None, besides))})"
    if level == "original" and (near := _counted(results, of, "target")) and near.ratio:
        words += f"; {_times(near.ratio)} to reach {percent(near.level)}"
    return Finding(words, _ratio_compared(many / few, factor), seeds)


class _Counted(NamedTuple):
    """Gradient and membership queries until ``level``: the largest numbers asked, and the numbers of seeds."""

    level: float
    few: float | None
    many: float | None
    asked: int
    seeds: int

    @property
    def ratio(self) -> float | None:
        """How many times fewer; None if either never gets there."""
        return None if self.few is None or self.many is None else self.many / self.few


def _counted(results: Results, panel: Panel, level: float | Level, seed: int | None = None) -> _Counted | None:
    """Both curves until the level; None if there is none of either."""
    gradient, membership = (results.points(panel, curve, seed=seed) for curve in (GRADIENT, MEMBERSHIP))
    if not gradient or not membership:
        return None
    highest, target = [max(p.mean for p in some) for some in (gradient, membership)], results.target_accuracy(panel)
    levels: dict[float | Level, float] = {
        "target": min(_RECONSTRUCTED * (target or 1.0), highest[0]),
        "original": (target or 1.0) - _HALF_A_POINT,
        "first": gradient[0].mean,
        "both": min(highest),
    }
    reached = levels.get(level) or float(level)
    few, many = queries_to_reach(gradient, reached), queries_to_reach(membership, reached)
    return _Counted(reached, few, many, membership[-1].budget, min(p.seeds for p in (*gradient, *membership)))


def _by_seed(results: Results, panel: Panel, level: float | Level) -> str:
    """The lowest and the highest ratio of single seeds, counted by the same rule on their own curves."""
    single = [_counted(results, panel, level, seed) for seed in range(panel.plan.seeds)]
    counted = [one.ratio for one in single if one is not None]
    ratios = [ratio for ratio in counted if ratio is not None]
    if len(counted) < 2 or not ratios:
        return ""
    without = len(counted) - len(ratios)
    never = f", never in {without} of {len(counted)}" if without else ""
    return f"by seed {_times(min(ratios))} to {_times(max(ratios))}{never}"


def _by_logits(results: Results, panel: Panel, level: float, few: float) -> str:
    """The same against values compared by logits, a stronger student than the paper's."""
    if not (points := results.points(panel, MEMBERSHIP_LOGITS)):
        return ""
    many = queries_to_reach(points, level)
    return f"values by logits {'never' if many is None else _times(many / few)}"


def no_difference(results: Results, *, data: str, curve: str = SMOOTHGRAD.name) -> Finding:
    """SmoothGrad is as good as the raw gradient on some data: within two points on average over panels and budgets."""
    kind = SMOOTHGRAD if curve == SMOOTHGRAD.name else LITTLE
    gaps: dict[str, float] = {}
    seeds: list[int] = []
    for panel in (panel for panel in results.figure.panels if panel.data == data):
        raw = {point.budget: point for point in results.points(panel, GRADIENT)}
        smooth = {point.budget: point for point in results.points(panel, kind)}
        gaps |= {f"{panel.title}, {b:,}": smooth[b].mean - raw[b].mean for b in raw if b in smooth}
        seeds += [min(smooth[b].seeds, raw[b].seeds) for b in raw if b in smooth]
    if not gaps:
        return NOTHING
    mean, worst = fmean(gaps.values()), min(gaps, key=lambda where: gaps[where])
    words = f"SmoothGrad {_points(mean)} on average; at worst {_points(gaps[worst])} ({worst} queries)"
    return Finding(words, _verdict(mean, -2 * _POINT, 2 * _POINT), min(seeds))


def works_better(results: Results, *, panel: str, than: str) -> Finding:
    """One pair of networks ends closer to its target than another: on average over budgets, and at none farther.

    By more than a point, with one λ for all students, as the paper has it.
    """
    panels = [results.panel(name) for name in (panel, than)]
    points = [{point.budget: point for point in results.points(each, ONE_WEIGHT)} for each in panels]
    budgets = sorted(points[0].keys() & points[1].keys())
    if not budgets:
        return NOTHING
    targets = [results.target_accuracy(each) or 1.0 for each in panels]
    ours, theirs = ([t - some[b].mean for b in budgets] for t, some in zip(targets, points, strict=True))
    told = (" / ".join(f"{100 * each:.1f}" for each in some) for some in (ours, theirs))
    words = f"{' and '.join(told)} points short of their targets with {' / '.join(f'{b:,}' for b in budgets)} queries"
    better = fmean(ours) < fmean(theirs) - _POINT
    farther = any(mine > other + _POINT for mine, other in zip(ours, theirs, strict=True))
    seeds = min(point.seeds for some in points for point in some.values())
    return Finding(words, "same" if better and not farther else "short", seeds)


def _at(points: list[MeasuredPoint], budget: int) -> MeasuredPoint | None:
    return next((point for point in points if point.budget == budget), None)


def _verdict(ours: float, low: float, high: float) -> Verdict:
    """The same from ``low`` to ``high``."""
    return "better" if ours > high else "same" if ours >= low else "short"


def _ratio_compared(ours: float, theirs: float) -> Verdict:
    return _verdict(ours, theirs / _HALF_A_DECADE, theirs * _HALF_A_DECADE)


def _told(point: MeasuredPoint) -> str:
    return f"{percent(point.mean)}{point.spread}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


def _queries(budget: int, curve: CurveDesign) -> str:
    kind = "membership" if curve.loss == "membership" else "gradient"
    return f"{budget:,} {kind} {'query' if budget == 1 else 'queries'}"


_CHECKS = {
    check.__name__: check for check in (as_good_as_target, accuracy_at, times_fewer, no_difference, works_better)
}


def _claim(check: dict[str, Any], **told: Any) -> Claim:
    return Claim(check=partial(_CHECKS[check.pop("kind")], **check), **told)


# A line per claim; ``check``: a function of this module by its name, and its arguments.
_LINES = (Path(__file__).parent / "claims.jsonl").read_text("utf-8").splitlines()
CLAIMS: tuple[Claim, ...] = tuple(_claim(**json.loads(line)) for line in _LINES)


def findings(results: Mapping[FigureName, Results]) -> list[tuple[Claim, Finding]]:
    """Every claim about the figures at hand, with what was found."""
    return [(claim, claim.check(results[claim.figure])) for claim in CLAIMS if claim.figure in results]
