"""TensorRun: a network with one hidden layer and several outputs, from the tensor of a few Jacobians."""

from contextlib import suppress

import numpy as np

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.search import TensorSearch
from relumine.reconstruct.two_layer.agreement import EXACT, TwoLayerRun

# Inputs are asked at this multiple of the scale of the data: a unit that none of them switches costs a query later.
# Ten random 100-64-10 with biases took 18.3 gradient queries each at N(0, I), and 14.1 at 4 times that.
LARGER = 4.0
# Behind a softmax logits tell missing units as far out as this; further out their digits are lost.
_SCALES = (8.0, 32.0, 128.0)
# After this many compared points in a row whose Jacobian shows no new unit, something else is wrong.
_IN_VAIN = 3
# Rounded answers are averaged until the clone is this exact, relative to the largest answer, or four times as many were
# asked. Of 784-64-10 with four decimals 16 gradient queries leave 7e-4 and an agreement of 99.9 % to 99.97 %.
_PRECISE, _DOUBLINGS = 3e-4, 2


class TensorRun(TwoLayerRun):
    """The state of one reconstruction by the tensor."""

    search: TensorSearch | None = None
    _doublings = 0  # how often as many answers were asked to be averaged

    @property
    def _state(self) -> int | None:
        return None if self.search is None else self._units

    @property
    def _units(self) -> int:
        return len(self._searched.units) if self.search is not None else 0

    @property
    def _searched(self) -> TensorSearch:
        assert self.search is not None
        return self.search

    @property
    def _nearly(self) -> bool:
        """Behind rounded answers the line that follows tells more than the same search once more."""
        return self.noise.absolute == 0 and super()._nearly

    def _find(self) -> None:
        with self.meter.phase("calibrate"):
            seen = self._first()
        far = self.offer.box is None
        beyond = far and self.asker.link is None
        self.search = TensorSearch(self._ask, self._fresh, self._near, seen, self.rng, far=far, beyond=beyond)
        with self.meter.phase("search"):
            self.search.run()

    def _first(self) -> Observations:
        """The first answer, and how exact it is."""
        line, near, answer = self.asker.calibrate()
        points = self.comparison.representable(line.points([0.0, near]))
        return Observations(points[:1], answer.values[:1], answer.jacobians[:1], self.noise)

    def _ask(self, points: Array) -> tuple[Array, Answer]:
        asked = self.comparison.representable(points)
        answer = self.asker.ask(asked)
        self.meter.found(self._units)
        return asked, answer

    @property
    def _scale(self) -> float:
        """Larger inputs let units switch whatever their biases are; probabilities would saturate."""
        return LARGER if self.offer.box is None and self.asker.link is None else 1.0

    def _fresh(self, count: int) -> Array:
        return self._scale * self.comparison.fresh(count)

    def _near(self, centre: Array, radius: float) -> Array:
        """A random point about this far from a centre, in units of the distance between two fresh points."""
        box = self.offer.box
        width = self._scale * self.comparison.scale if box is None else (box[1] - box[0]) / 4
        return centre + radius * width * self.rng.standard_normal(len(centre))

    def _raw(self) -> Shallow:
        search = self._searched
        rows = search.units.rows
        lengths = np.linalg.norm(rows[:, :-1], axis=1)
        linear = search.linear()
        outputs = search.units.outputs * lengths[:, None]
        return Shallow(linear[:, :-1], linear[:, -1], outputs, rows[:, :-1] / lengths[:, None], rows[:, -1] / lengths)

    def _compare(self) -> None:
        """Also far out where probabilities are near 0 and 1: what is mended there cannot be told from them later."""
        super()._compare()
        if self.offer.box is None and self.asker.link is not None and not self.asker.blurred:
            while self._found_far():
                pass

    def _found_far(self) -> bool:
        """Whether Jacobians show units where logits far out, at an input and its opposite, are not as predicted."""
        before = self._units
        points = np.array(_SCALES)[:, None] * self.comparison.fresh(len(_SCALES))
        points = self.comparison.representable(np.stack([points, -points], axis=1).reshape(-1, points.shape[1]))
        with self.meter.phase("verify"):
            values = self.asker.oracle(points, gradients=False).values
        for point, value in zip(points, values, strict=True):  # what one shows may explain those further out
            if np.isfinite(value).all():
                missed = np.abs(self._model().values(point[None])[0] - value).max()
                if missed > self._noise_explains * max(np.abs(value).max(), self.comparison.size):
                    self._explain(point)
        return self._units > before

    def _explain(self, point: Array) -> bool:
        """Ask the Jacobian at a point that contradicts the model; whether that shows new units."""
        before = self._units
        with self.meter.phase("mend"):
            self._searched.add(point[None], self._searched.main)
            self._searched.run()
        return self._units > before

    def _polish(self) -> None:
        """Behind rounding more answers with gradients make the fit more exact: twice as many, until it is."""
        super()._polish()
        while self.noise.absolute > 0 and self._doublings < _DOUBLINGS:
            if self._uncertainty is None or self._uncertainty <= _PRECISE * self.comparison.size:
                return
            self._doublings += 1
            with self.meter.phase("average"):
                self._average(self._fresh(len(self.asker.oracle.answers().jacobians)))
            super()._polish()

    def _average(self, points: Array) -> None:
        if not self.asker.blurred:
            self._ask(points)
            return
        # Blurred values do not say that a unit is missing; these answers do, and signs that noise turned look like one.
        with suppress(Stop):
            self._searched.gather(points)
            self._searched.run()

    def _mend(self) -> None:
        if self.asker.blurred:
            return  # values are not as exact as the fit: what contradicts is noise
        futile = 0
        while len(wrong := self._wrong()):
            futile = 0 if self._explain(self.comparison.points[wrong[futile % len(wrong)]]) else futile + 1
            if futile == _IN_VAIN and self.noise.floor > EXACT:
                return  # rounding may be at fault, not a unit: polishing will tell
            if futile == _IN_VAIN:
                raise Stop(Outcome.NOT_THIS_CLASS, "what differs at fresh points is not made of single units")
