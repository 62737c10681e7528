"""Rows seen through a figure: means and spreads over seeds, per panel, curve and budget."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import log10
from statistics import fmean
from typing import Literal

from relumine.study.designs import CurveDesign, Figure, Panel
from relumine.study.experiment import Row

Measure = Literal["test_accuracy", "agreement"]


@dataclass(frozen=True)
class MeasuredPoint:
    """A measure, by default test accuracy, after ``budget`` queries: mean, lowest and highest over seeds."""

    budget: int
    mean: float
    low: float
    high: float
    seeds: int

    @property
    def spread(self) -> str:
        """The lowest and highest in per cent and brackets, to stand after the mean; nothing of one seed."""
        return f" ({100 * self.low:.1f}–{100 * self.high:.1f})" if self.seeds > 1 else ""


class Results:
    """What is known of a figure; rows that are missing or failed leave gaps."""

    def __init__(self, figure: Figure, rows: Iterable[Row]) -> None:
        self.figure = figure
        self.rows = list(rows)
        self._measures = {row.experiment.key: row.measures for row in self.rows if row.measures is not None}
        self._spent = {row.experiment.key: row.spent for row in self.rows if row.spent}

    def panel(self, name: str) -> Panel:
        return next(panel for panel in self.figure.panels if panel.name == name)

    def points(
        self, panel: Panel, curve: CurveDesign, measure: Measure = "test_accuracy", seed: int | None = None
    ) -> list[MeasuredPoint]:
        """The curve's points, by budget; of one seed or of all."""
        known: dict[int, list[float]] = {}
        for experiment in panel.experiments(curve):
            measures = self._measures.get(experiment.key)
            if measures is not None and seed in (None, experiment.seed):
                known.setdefault(experiment.budget, []).append(getattr(measures, measure))
        return [MeasuredPoint(budget, fmean(some), min(some), max(some), len(some)) for budget, some in known.items()]

    def marks(self, panel: Panel) -> list[tuple[CurveDesign, Row]]:
        """What exact methods gave."""
        found = {row.experiment.key: row for row in self.rows if not row.failed}
        marks = [(mark, e.key) for mark in self.figure.marks for e in panel.experiments(mark)]
        return [(mark, found[key]) for mark, key in marks if key in found]

    def floats_per_query(self, panel: Panel, curve: CurveDesign) -> float | None:
        """How many numbers come back for one query."""
        for experiment in panel.experiments(curve):
            spent = self._spent.get(experiment.key)
            if spent is not None:
                return spent["floats"] / (spent["value_queries"] + spent["gradient_queries"])
        return None

    def target_accuracy(self, panel: Panel) -> float | None:
        """Test accuracy of the panel's target; of the one that most rows met, if it was trained more than once."""
        return next(iter(self.target_accuracies(panel)), None)

    def target_accuracies(self, panel: Panel) -> list[float]:
        """Every test accuracy that rows say the target has, the most frequent first.

        There are several where another machine trained it anew: rounding differs, and training makes much of it.
        """
        keys = [experiment.key for experiment in self.figure.of(panel)]
        met = Counter(self._measures[key].target_accuracy for key in keys if key in self._measures)
        return [accuracy for accuracy, _ in met.most_common()]


def queries_to_reach(points: list[MeasuredPoint], level: float) -> float | None:
    """How many queries until the mean accuracy is ``level``, on straight lines over log(queries); None if never."""
    before: MeasuredPoint | None = None
    for point in points:
        if point.mean >= level:
            if before is None:
                return float(point.budget)
            share = (level - before.mean) / (point.mean - before.mean)
            return float(10 ** (log10(before.budget) + share * log10(point.budget / before.budget)))
        before = point
    return None
