"""One hidden layer from the gradient of one output at a time: directions from kinks, output weights from values.

Where an endpoint explains the largest of K outputs only, a line still shows every unit's boundary (line.py).
On which side a unit is on, and its weights to all K outputs, follow from answers already paid for (fit.py).
What no line has shown yet is looked for on further lines, through regions where other outputs are on top.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array, Offer
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.top_class.asker import TopClassAsker
from relumine.reconstruct.top_class.fit import boundaries, fitted, orientations, polished
from relumine.reconstruct.top_class.line import UnitBoundary, absent, merged
from relumine.reconstruct.top_class.observations import TopGradients
from relumine.reconstruct.verification import TOLERANCE

# A clone that is further off than this is never called recovered, whatever the noise.
_COARSEST = 1e-3
# Above this noise floor biases are not exact as they are found.
_EXACT = 1e-12
# Lines searched at most, and lines in a row that show no unit which was not known.
_LINES = 16
_FUTILE = 5
# In a box each line meets some of the units only: this many times as many are searched.
_IN_A_BOX = 5
# A clone that misses by no more than this many times what it may misses digits, not units.
_NEARLY = 1e3
# Values that are fitted beyond the number of unknowns.
_SPARE = 20
# In a box this many times as many values as unknowns are fitted: a unit may be on in one corner only.
_MOST = 3
# A kink is where a boundary was predicted if it is this close, in units of 1 + |t|; _ABSENT that are not are
# no accident.
_RESOLUTION = {"float64": 1e-5, "float32": 1e-3}
_ABSENT = 3
# Slopes smaller than this part of the offset are rounding: some hundred units of it, summed over as many values.
_DUST = 1e-13


class TopRun:
    """The state of one reconstruction."""

    def __init__(self, meter: Metered, rng: np.random.Generator, *, limit: int, points: int) -> None:
        self.meter = meter
        self.rng = rng
        self.points = points
        self.asker = TopClassAsker(meter, rng, limit)
        self.comparison = self.asker.comparison
        self.seen: list[UnitBoundary] = []
        self.samples: TopGradients | None = None
        self.values = np.empty((0, self.offer.dimension)), np.empty((0, self.offer.outputs))
        self.model: Shallow | None = None

    @property
    def offer(self) -> Offer:
        """What the target promises."""
        return self.meter.offer

    def reconstruct(self) -> None:
        """Search lines until the network that they show agrees with the target."""
        calibrated: TopGradients | None
        with self.meter.phase("calibrate"):
            line, calibrated = self.asker.calibrate()
        self.asker.compare(self.points)
        futile, patience = 0, 1 if self.offer.box is None else _IN_A_BOX
        for _ in range(patience * _LINES):
            with self.meter.phase("search"):
                known = self._search(line, calibrated)
            new = len(self.seen) - known
            futile = 0 if new else futile + 1
            if self._agrees(known_all=not new):
                return
            if futile == patience * _FUTILE:
                break
            with self.meter.phase("search"):
                line, calibrated = self.asker.next_line(self._samples, self._wrong()), None
        raise self._failure(all_shown=futile > 0)

    def _failure(self, *, all_shown: bool) -> Stop:
        gap = self.comparison.gap(self.model) if self.model else None
        if self.asker.noise.absolute > 0:
            return Stop(Outcome.NOT_VERIFIED, "rounded answers do not show the units; ask for more digits")
        if gap is not None and gap <= _NEARLY * self._tolerance:
            return Stop(Outcome.NOT_VERIFIED, "values differ by more than noise explains")
        if all_shown:
            return Stop(Outcome.NOT_VERIFIED, "explanations do not show all units; TwoLayerFromValues() needs none")
        return Stop(Outcome.NOT_THIS_CLASS, "ever more lines show ever more units, which explain nothing elsewhere")

    @property
    def _samples(self) -> TopGradients:
        assert self.samples is not None
        return self.samples

    # -- searching

    def _search(self, line: Line, calibrated: TopGradients | None) -> int:
        """Add what this line shows; returns how many units were known before."""
        try:
            seen, samples = self.asker.search(line, calibrated)
        except Stop as stop:
            if stop.outcome is not Outcome.NOT_PIECEWISE_LINEAR or not self.seen:
                raise
            return len(self.seen)  # kinks too close for values on this line; others were clear
        known, offset = len(self.seen), 0
        if self.samples is not None:
            self._refuse_absent(line, samples)
            offset = len(self.samples)
        reach = float(np.linalg.norm(line.start)) + float(np.linalg.norm(line.direction))
        self.seen = merged(self.seen, seen, offset, reach)
        self.samples = samples if self.samples is None else self.samples.and_then(samples)
        self.meter.found(len(self.seen))
        return known

    def _refuse_absent(self, line: Line, samples: TopGradients) -> None:
        """What bends on one line and not on another is no unit of a first layer."""
        shown = self._samples.tops[[unit.left for unit in self.seen]]
        count = absent(self.seen, shown, line, samples, _RESOLUTION[self.offer.dtype])
        if count >= max(_ABSENT, 0.2 * len(self.seen)):
            raise Stop(Outcome.NOT_THIS_CLASS, f"{count} of {len(self.seen)} units of one line are not on another")

    # -- fitting

    @property
    def _tolerance(self) -> float:
        """How much of the largest answer noise can explain."""
        noise, units = self.asker.noise, len(self.seen) + 1
        rounding = 16 * noise.absolute * np.sqrt(self.offer.dimension * units) / self.comparison.size
        return float(min(max(TOLERANCE["float64"], 500 * noise.relative + rounding), _COARSEST))

    def _agrees(self, *, known_all: bool) -> bool:
        """Whether a network of the boundaries seen so far meets all compared points."""
        rows, biases = boundaries(self.seen, self.offer.dimension)
        signs = orientations(self.seen, self._samples)
        if signs is not None:
            rows, biases = rows * signs[:, None], biases * signs
        elif 0 < len(rows) <= self.offer.dimension and not known_all:
            return False  # units are missing, or there is a linear term: another line will tell
        for model in self._models(rows, biases, straight=signs is None):
            self.model = model
            if self._right() and self._right_at_boundaries():
                return True
        return False

    def _models(self, rows: Array, biases: Array, *, straight: bool) -> Iterator[Shallow]:
        """Ever closer fits, from ever more values."""
        slopes = self.offer.dimension if straight else 0
        exact = self.asker.noise.floor <= _EXACT
        fewest = slopes + _SPARE if straight else 0
        plenty = (slopes + len(rows) + 1) * (1 if self.offer.box is None else _MOST) + _SPARE
        for enough in (*([fewest] if exact else []), plenty):
            self._ask_values(enough)
            points, values = self._known()
            model = fitted(rows, biases, points, values, straight=straight)
            if exact or not model.units:
                yield model
            if model.units:
                yield polished(model, points, values, straight=straight)

    def _ask_values(self, enough: int) -> None:
        """See that ``enough`` values off the lines are known."""
        missing = enough - len(self.values[0])
        if missing <= 0:
            return
        with self.meter.phase("output weights"):
            points = self.comparison.fresh(missing)
            values = self.asker.values(points)
        known = np.isfinite(values).all(axis=1)
        self.values = np.concatenate([self.values[0], points[known]]), np.concatenate([self.values[1], values[known]])

    def _known(self) -> tuple[Array, Array]:
        """All points whose values are known, but for those that are compared, and the values."""
        samples = self._samples
        finite = np.isfinite(samples.values).all(axis=1)
        known = [(samples.points[finite], samples.values[finite]), self.values, *self.asker.beside]
        return np.concatenate([points for points, _ in known]), np.concatenate([values for _, values in known])

    # -- comparing

    def _wrong(self) -> NDArray[np.intp]:
        """Which compared points contradict the network so far."""
        every = np.arange(len(self.comparison.points))
        return every if self.model is None else self.comparison.wrong(self.model, self._tolerance)

    def _right(self) -> bool:
        return not len(self._wrong())

    def _right_at_boundaries(self) -> bool:
        assert self.model is not None
        with self.meter.phase("verify"):
            self.comparison.challenge(self.model)
        return self._right()

    # -- results

    def clone(self) -> Network | None:
        """What was found, if anything."""
        model = self.model
        if model is not None and not model.units:  # slopes fitted to the rounding of a constant are none
            least = _DUST * float(np.abs(model.offset).max(initial=0))
            model = replace(model, jacobian=np.where(np.abs(model.jacobian) > least, model.jacobian, 0.0))
        return None if model is None else model.network(self.offer, 100 * self._tolerance)

    def evidence(self, remark: str) -> Evidence:
        """What the outcome rests on."""
        if self.model is None:
            return Evidence(self.asker.noise.floor, remark=remark)
        gap = self.comparison.gap(self.model)
        return Evidence(self.asker.noise.floor, None, gap, len(self.comparison.points), remark)
