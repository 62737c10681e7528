"""The paper's claims beside what was measured here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, Protocol

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


class Check(Protocol):
    """Compares a claim with results."""

    def __call__(self, results: Results) -> Finding:
        """What the results say."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about one of its figures, how it is checked, and why it may be short if known."""

    figure: FigureName
    subject: str
    says: str
    check: Check
    why_short: str = ""


@dataclass(frozen=True)
class AsGoodAsTarget:
    """The student has the target's accuracy, within half a point, after ``budget`` gradient queries."""

    panel: str
    budget: int

    def __call__(self, results: Results) -> Finding:
        panel = results.panel(self.panel)
        point, target = _at(results.points(panel, GRADIENT), self.budget), results.target_accuracy(panel)
        if point is None or target is None:
            return NOTHING
        words = f"{_told(point)} with {_queries(self.budget, GRADIENT)}, target {percent(target)}"
        return Finding(words, "same" if point.mean >= target - _HALF_A_POINT else "short", point.seeds)


@dataclass(frozen=True)
class AccuracyAt:
    """``accuracy`` after ``budget`` queries; of students of values by the better of both losses, and both are told."""

    panel: str
    curve: Literal["gradient", "membership"]
    budget: int
    accuracy: float

    def __call__(self, results: Results) -> Finding:
        panel = results.panel(self.panel)
        curve = GRADIENT if self.curve == "gradient" else MEMBERSHIP
        point = _at(results.points(panel, curve), self.budget)
        if point is None:
            return NOTHING
        words, best = f"{_told(point)} with {_queries(self.budget, curve)}", point.mean
        logits = _at(results.points(panel, MEMBERSHIP_LOGITS), self.budget)
        if curve is MEMBERSHIP and logits is not None:
            words, best = f"{words}; compared by logits {_told(logits)}", max(best, logits.mean)
        return Finding(words, _compared(best, self.accuracy), point.seeds)


@dataclass(frozen=True)
class TimesFewer:
    """Gradient queries needed are ``factor`` times fewer than membership queries.

    level: to reach this accuracy; "target": 95 % of the target's accuracy, or what gradient queries reach if that is
    less; "original": the target's own accuracy, within half a point, and 95 % of it is told besides; "first": what the
    smallest budget of gradient queries reaches; "both": the highest that both kinds reach.
    """

    panel: str
    factor: float
    level: float | Literal["target", "original", "first", "both"] = "target"

    def __call__(self, results: Results) -> Finding:
        panel = results.panel(self.panel)
        counted = self._counted(results, panel)
        if counted is None:
            return NOTHING
        if counted.few is None:
            either = "neither reaches" if counted.many is None else "gradient queries do not reach"
            return Finding(f"{either} {percent(counted.level)} with {counted.asked:,}", "short", counted.seeds)
        if counted.many is None:
            return self._beyond(counted, counted.few)
        ratio = counted.many / counted.few
        besides = [self._by_seed(results, panel), self._by_logits(results, panel, counted.level, counted.few)]
        numbers = "; ".join([f"{counted.few:,.0f} and {counted.many:,.0f}", *filter(None, besides)])
        words = f"{_times(ratio)} fewer to reach {percent(counted.level)} ({numbers})"
        if self.level == "original" and (near := TimesFewer(self.panel, self.factor)._counted(results, panel)):
            words += f"; {_times(near.ratio)} to reach {percent(near.level)}" if near.ratio else ""
        return Finding(words, _ratio_compared(ratio, self.factor), counted.seeds)

    def _counted(self, results: Results, panel: Panel, seed: int | None = None) -> "_Counted | None":
        """Both curves until the level; None if there is none of either."""
        gradient, membership = (results.points(panel, curve, seed=seed) for curve in (GRADIENT, MEMBERSHIP))
        if not gradient or not membership:
            return None
        level = self._level(results, panel, gradient, membership)
        few, many = queries_to_reach(gradient, level), queries_to_reach(membership, level)
        return _Counted(level, few, many, membership[-1].budget, min(p.seeds for p in (*gradient, *membership)))

    def _by_seed(self, results: Results, panel: Panel) -> str:
        """The lowest and the highest ratio of single seeds, counted by the same rule on their own curves."""
        single = [self._counted(results, panel, seed) for seed in range(panel.plan.seeds)]
        counted = [one for one in single if one is not None]
        ratios = [one.ratio for one in counted if one.ratio is not None]
        if len(counted) < 2 or not ratios:
            return ""
        without = len(counted) - len(ratios)
        never = f", never in {without} of {len(counted)}" if without else ""
        return f"by seed {_times(min(ratios))} to {_times(max(ratios))}{never}"

    def _by_logits(self, results: Results, panel: Panel, level: float, few: float) -> str:
        """The same against values compared by logits, a stronger student than the paper's."""
        if not (points := results.points(panel, MEMBERSHIP_LOGITS)):
            return ""
        many = queries_to_reach(points, level)
        return f"values by logits {'never' if many is None else _times(many / few)}"

    def _level(
        self, results: Results, panel: Panel, gradient: list[MeasuredPoint], membership: list[MeasuredPoint]
    ) -> float:
        match self.level:
            case "first":
                return gradient[0].mean
            case "both":
                return min(max(point.mean for point in points) for points in (gradient, membership))
            case "target":
                target = results.target_accuracy(panel) or 1.0
                return min(_RECONSTRUCTED * target, max(point.mean for point in gradient))
            case "original":
                return (results.target_accuracy(panel) or 1.0) - _HALF_A_POINT
        return self.level

    def _beyond(self, counted: "_Counted", few: float) -> Finding:
        """Membership queries never got there: the ratio is a lower bound, if they were asked as often."""
        level, largest = percent(counted.level), counted.asked
        if largest < few:
            words = f"{few:,.0f} gradient queries reach {level}, {largest:,} membership queries do not"
            return Finding(words, "open", counted.seeds)
        words = f"more than {_times(largest / few)} fewer to reach {level} ({few:,.0f}, and never)"
        verdict = _ratio_compared(largest / few, self.factor)
        return Finding(words, "open" if verdict == "short" else verdict, counted.seeds)


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


@dataclass(frozen=True)
class NoDifference:
    """SmoothGrad is as good as the raw gradient on some data: within ``points`` on average over panels and budgets."""

    data: str
    curve: Literal["smoothgrad", "little"] = "smoothgrad"
    points: float = 0.02

    def __call__(self, results: Results) -> Finding:
        curve = SMOOTHGRAD if self.curve == "smoothgrad" else LITTLE
        gaps: dict[str, float] = {}
        seeds: list[int] = []
        for panel in (panel for panel in results.figure.panels if panel.data == self.data):
            raw = {point.budget: point for point in results.points(panel, GRADIENT)}
            smooth = {point.budget: point for point in results.points(panel, curve)}
            gaps |= {f"{panel.title}, {b:,}": smooth[b].mean - raw[b].mean for b in raw if b in smooth}
            seeds += [min(smooth[b].seeds, raw[b].seeds) for b in raw if b in smooth]
        if not gaps:
            return NOTHING
        mean, worst = fmean(gaps.values()), min(gaps, key=lambda where: gaps[where])
        words = f"SmoothGrad {_points(mean)} on average; at worst {_points(gaps[worst])} ({worst} queries)"
        verdict: Verdict = "better" if mean > self.points else "same" if mean >= -self.points else "short"
        return Finding(words, verdict, min(seeds))


@dataclass(frozen=True)
class WorksBetter:
    """One pair of networks ends closer to its target than another, by more than a point on average over budgets.

    Judged with one λ for all, as the paper has it; what each gains from its own is told besides.
    """

    panel: str
    than: str

    def __call__(self, results: Results) -> Finding:
        panels = [results.panel(name) for name in (self.panel, self.than)]
        points = [results.points(panel, curve) for curve in (ONE_WEIGHT, GRADIENT) for panel in panels]
        budgets = set.intersection(*({point.budget for point in some} for some in points))
        if not budgets:
            return NOTHING
        targets = [results.target_accuracy(panel) or 1.0 for panel in panels] * 2
        here = [[point for point in some if point.budget in budgets] for some in points]
        missing = [t - fmean(point.mean for point in some) for t, some in zip(targets, here, strict=True)]
        alike, reverse, own, own_reverse = (f"{100 * each:.1f}" for each in missing)
        words = f"at λ = 0.1 {alike} points short of the target on average, the reverse {reverse}; "
        words += f"at λ = 10 {own} and {own_reverse}"
        seeds = min(point.seeds for some in here for point in some)
        return Finding(words, "same" if missing[0] < missing[1] - _POINT else "short", seeds)


def _at(points: list[MeasuredPoint], budget: int) -> MeasuredPoint | None:
    return next((point for point in points if point.budget == budget), None)


def _compared(ours: float, theirs: float) -> Verdict:
    if ours > theirs + _POINT:
        return "better"
    return "same" if ours >= theirs - _POINT else "short"


def _ratio_compared(ours: float, theirs: float) -> Verdict:
    if ours > theirs * _HALF_A_DECADE:
        return "better"
    return "same" if ours >= theirs / _HALF_A_DECADE else "short"


def _told(point: MeasuredPoint) -> str:
    return f"{percent(point.mean)}{point.spread}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


def _queries(budget: int, curve: CurveDesign) -> str:
    kind = "membership" if curve.loss == "membership" else "gradient"
    return f"{budget:,} {kind} {'query' if budget == 1 else 'queries'}"


_CHECKS = {check.__name__: check for check in (AsGoodAsTarget, AccuracyAt, TimesFewer, NoDifference, WorksBetter)}


def _claim(figure: FigureName, subject: str, says: str, check: dict[str, Any], why_short: str = "") -> Claim:
    return Claim(figure, subject, says, _CHECKS[check.pop("kind")](**check), why_short)


# A line per claim; ``check``: a class of this module by its name, and its fields.
_LINES = (Path(__file__).parent / "claims.jsonl").read_text("utf-8").splitlines()
CLAIMS: tuple[Claim, ...] = tuple(_claim(**json.loads(line)) for line in _LINES)


def findings(results: Mapping[FigureName, Results]) -> list[tuple[Claim, Finding]]:
    """Every claim about the figures at hand, with what was found."""
    return [(claim, claim.check(results[claim.figure])) for claim in CLAIMS if claim.figure in results]
