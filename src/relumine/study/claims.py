"""The paper's claims beside what was measured here."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Literal, NamedTuple, Protocol

from relumine.study.designs import GRADIENT, LITTLE, MEMBERSHIP, SMOOTHGRAD, CurveDesign, FigureName, Panel
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
        words = f"{percent(point.mean)}{point.spread} with {_queries(self.budget, GRADIENT)}, target {percent(target)}"
        return Finding(words, "same" if point.mean >= target - _HALF_A_POINT else "short", point.seeds)


@dataclass(frozen=True)
class AccuracyAt:
    """``accuracy`` after ``budget`` queries."""

    panel: str
    curve: CurveDesign
    budget: int
    accuracy: float

    def __call__(self, results: Results) -> Finding:
        point = _at(results.points(results.panel(self.panel), self.curve), self.budget)
        if point is None:
            return NOTHING
        words = f"{percent(point.mean)}{point.spread} with {_queries(self.budget, self.curve)}"
        return Finding(words, _compared(point.mean, self.accuracy), point.seeds)


@dataclass(frozen=True)
class TimesFewer:
    """Gradient queries needed are ``factor`` times fewer than membership queries.

    level: to reach this accuracy; "target": 95 % of the target's accuracy, or what gradient queries reach if that is
    less; "original": the target's own accuracy, within half a point; "first": what the smallest budget of gradient
    queries reaches; "both": the highest that both kinds reach.
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
        numbers = f"{counted.few:,.0f} and {counted.many:,.0f}{self._by_seed(results, panel)}"
        words = f"{_times(ratio)} fewer to reach {percent(counted.level)} ({numbers})"
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
        ratios = [one.many / one.few for one in counted if one.few is not None and one.many is not None]
        if len(counted) < 2 or not ratios:
            return ""
        without = len(counted) - len(ratios)
        never = f", never in {without} of {len(counted)}" if without else ""
        return f"; by seed {_times(min(ratios))} to {_times(max(ratios))}{never}"

    def _level(
        self, results: Results, panel: Panel, gradient: list[MeasuredPoint], membership: list[MeasuredPoint]
    ) -> float:
        if self.level == "first":
            return gradient[0].mean
        if self.level == "both":
            return min(max(point.mean for point in points) for points in (gradient, membership))
        if self.level == "target":
            return reconstructed_level(results, panel, gradient)
        if self.level == "original":
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


@dataclass(frozen=True)
class HardlyAny:
    """Gradients hardly help: less than half a decade at the highest level that both kinds of queries reach."""

    panel: str

    def __call__(self, results: Results) -> Finding:
        return TimesFewer(self.panel, 1, "both")(results)


@dataclass(frozen=True)
class NoDifference:
    """SmoothGrad is as good as the raw gradient on some data: within ``points`` on average over panels and budgets."""

    data: str
    curve: CurveDesign = SMOOTHGRAD
    points: float = 0.02

    def __call__(self, results: Results) -> Finding:
        gaps: dict[str, float] = {}
        seeds: list[int] = []
        for panel in (panel for panel in results.figure.panels if panel.data == self.data):
            raw = {point.budget: point for point in results.points(panel, GRADIENT)}
            smooth = {point.budget: point for point in results.points(panel, self.curve)}
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
    """One pair of networks ends closer to its target than another, by more than a point on average over budgets."""

    panel: str
    than: str

    def __call__(self, results: Results) -> Finding:
        panels = [results.panel(name) for name in (self.panel, self.than)]
        missing = [_missing(results, panel) for panel in panels]
        if missing[0] is None or missing[1] is None:
            return NOTHING
        seeds = min(point.seeds for panel in panels for point in results.points(panel, GRADIENT))
        words = (
            f"short of the target by {100 * missing[0]:.1f} points on average, the reverse by {100 * missing[1]:.1f}"
        )
        return Finding(words, "same" if missing[0] < missing[1] - _POINT else "short", seeds)


def reconstructed_level(results: Results, panel: Panel, gradient: list[MeasuredPoint]) -> float:
    """95 % of the target's accuracy, or the best that gradient queries reach if that is less."""
    target = results.target_accuracy(panel) or 1.0
    return min(_RECONSTRUCTED * target, max((point.mean for point in gradient), default=1.0))


def _missing(results: Results, panel: Panel) -> float | None:
    points, target = results.points(panel, GRADIENT), results.target_accuracy(panel)
    return fmean(target - point.mean for point in points) if points and target is not None else None


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


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


def _queries(budget: int, curve: CurveDesign) -> str:
    kind = "membership" if curve.loss == "membership" else "gradient"
    return f"{budget:,} {kind} {'query' if budget == 1 else 'queries'}"


CLAIMS: tuple[Claim, ...] = (
    Claim("main", "MNIST 1-layer", "one gradient query gives the target's accuracy", AsGoodAsTarget("mnist linear", 1)),
    Claim(
        "main",
        "MNIST 1-layer",
        "1000× fewer queries, to be as good as the target",
        TimesFewer("mnist linear", 1000, "original"),
    ),
    Claim(
        "main",
        "MNIST 1-layer",
        "1000× fewer queries, to 95 % of the target's accuracy",
        TimesFewer("mnist linear", 1000),
        "the paper counts until a student is as good as the target; values alone come within 5 % of that much earlier",
    ),
    Claim("main", "MNIST 2-layer", "100× fewer queries", TimesFewer("mnist two_layer", 100)),
    Claim("main", "MNIST conv", "95 % with 10 gradient queries", AccuracyAt("mnist conv", GRADIENT, 10, 0.95)),
    Claim("main", "MNIST conv", "95 % with 1,000 membership", AccuracyAt("mnist conv", MEMBERSHIP, 1000, 0.95)),
    Claim("main", "MNIST conv", "100× fewer queries, to reach 95 %", TimesFewer("mnist conv", 100, 0.95)),
    Claim("main", "CIFAR10 conv", "at least 100× fewer queries", TimesFewer("cifar10 conv", 100, "both")),
    Claim("main", "CIFAR10 VGG11", "10× fewer queries to reach 75 %", TimesFewer("cifar10 vgg11", 10, 0.75)),
    Claim(
        "main",
        "CIFAR10 VGG11",
        "10× fewer, at the highest accuracy that both reach",
        TimesFewer("cifar10 vgg11", 10, "both"),
    ),
    Claim("main", "CIFAR10 ResNet-18", "10× fewer queries to reach 75 %", TimesFewer("cifar10 resnet18", 10, 0.75)),
    Claim(
        "main",
        "CIFAR10 ResNet-18",
        "10× fewer, at the highest accuracy that both reach",
        TimesFewer("cifar10 resnet18", 10, "both"),
    ),
    Claim("main", "MNIST SmoothGrad", "practically no difference from raw gradients", NoDifference("mnist")),
    Claim(
        "main",
        "CIFAR10 SmoothGrad",
        "practically no difference from raw gradients",
        NoDifference("cifar10"),
        "at σ_D maps hardly depend on the image: half of each is common to all, and those of 100 images have three "
        "directions, where raw gradients have more than fifty (a table in docs/learned.md); with a tenth of that noise "
        "they have forty and more, and students learn as much as from raw gradients (figure noise)",
    ),
    Claim(
        "unknown-class", "MNIST 1-layer by 2-layer", "100× fewer queries", TimesFewer("mnist linear by two_layer", 100)
    ),
    Claim(
        "unknown-class",
        "MNIST 2-layer by 1-layer",
        "10× fewer queries at first",
        TimesFewer("mnist two_layer by linear", 10, "first"),
    ),
    Claim(
        "unknown-class",
        "MNIST 2-layer by conv",
        "works much better than conv by 2-layer",
        WorksBetter("mnist two_layer by conv", "mnist conv by two_layer"),
        "the reverse works as well here: with 1,000 gradient queries both students are within 1.5 points of their "
        "targets. Values correct what the gradients of another class cannot match: at λ = 10 the 2-layer student's "
        "squared error is a third of that at λ = 0.1 (a table in docs/learned.md)",
    ),
    Claim(
        "unknown-class",
        "CIFAR10 ResNet-18 by VGG11",
        "10× fewer queries",
        TimesFewer("cifar10 resnet18 by vgg11", 10),
        "at the accuracy of 1,000 gradient queries, a point below, it is more than eight times; students of another "
        "class gain little from the next 9,000 gradients, and values catch up",
    ),
    Claim(
        "unknown-class",
        "CIFAR10 VGG11 by ResNet-18",
        "gradients help very little",
        HardlyAny("cifar10 vgg11 by resnet18"),
    ),
    Claim("gaussian", "MNIST 2-layer", "at least 1000× fewer queries", TimesFewer("mnist two_layer", 1000, "both")),
    Claim("gaussian", "MNIST conv", "84 % with 10 gradient queries", AccuracyAt("mnist conv", GRADIENT, 10, 0.84)),
    Claim(
        "gaussian",
        "MNIST conv",
        "71 % with 10,000 membership",
        AccuracyAt("mnist conv", MEMBERSHIP, 10_000, 0.71),
        "probabilities are saturated at Gaussian inputs, and cross-entropy sees no more than them; the same answers "
        "compared by logits give far more than the paper's 71 %, as the curve below shows",
    ),
    Claim(
        "gaussian",
        "CIFAR10 conv",
        "50 % with 10 gradient queries",
        AccuracyAt("cifar10 conv", GRADIENT, 10, 0.50),
        "a third of the hidden units that images switch on are on at none of 1,000 Gaussian inputs, so that no "
        "gradient there tells of them; MNIST's conv net has no such unit (a table in docs/learned.md)",
    ),
    Claim(
        "gaussian", "CIFAR10 conv", "11 % with 10,000 membership", AccuracyAt("cifar10 conv", MEMBERSHIP, 10_000, 0.11)
    ),
    Claim(
        "noise",
        "CIFAR10 SmoothGrad, σ = 0.1 σ_D",
        "practically no difference from raw gradients",
        NoDifference("cifar10", LITTLE),
    ),
)


def findings(results: Mapping[FigureName, Results]) -> list[tuple[Claim, Finding]]:
    """Every claim about the figures at hand, with what was found."""
    return [(claim, claim.check(results[claim.figure])) for claim in CLAIMS if claim.figure in results]
