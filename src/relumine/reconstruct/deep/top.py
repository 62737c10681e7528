"""Top: what remains above the known layers, if it is one hidden layer, by the tensor of its Jacobians (tensor/)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.deep.all_on import AllOn
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.search import TensorSearch

# Whether one hidden layer is left is decided after this many answers, and after multiples of the inputs per output.
_ANSWERS, _PER_OUTPUT, _AGAIN = 32, 2, 4
# If it is, and has no more units than inputs, units show after so many answers beyond the inputs per output; each that
# does is worth so many more: two answers of a deeper network may happen to differ by one unit.
_FIRST, _PER_UNIT = 8, 3


class Top:
    """The last hidden layer and the output weights; it is searched in the region's coordinates.

    ask: answers at inputs, with Jacobians by these
    tolerance: a linear term smaller than this part of the Jacobians is none
    """

    def __init__(
        self,
        ask: Callable[[Array], tuple[Array, Answer]],
        region: AllOn,
        noise: Noise,
        rng: np.random.Generator,
        tolerance: float,
    ) -> None:
        self._ask, self._region, self._noise, self._rng, self._tolerance = ask, region, noise, rng, tolerance
        self._left = self._enough = 0
        self._search: TensorSearch | None = None

    def found(self, outputs: int) -> Shallow | None:
        """The layer, if what remains has one hidden layer and no linear term."""
        inputs = len(self._region.to_layer)
        self._left, self._enough = _ANSWERS + _PER_OUTPUT * inputs // outputs, _FIRST + inputs // outputs
        try:
            points, answer = self._asked(self._fresh(1))
            while not len(points):  # saturated probabilities tell nothing
                points, answer = self._asked(self._fresh(1))
            first = Observations(points, answer.values, answer.jacobians, self._noise)
            self._search = TensorSearch(self._asked, self._fresh, self._near, first, self._rng)
            return self._plain(self._search)
        except (Stop, np.linalg.LinAlgError):
            return None

    def _plain(self, search: TensorSearch) -> Shallow:
        while True:
            search.run()
            plain = _shallow(search).plain(self._tolerance)
            if plain is not None:
                return self._of_layer(plain)
            search.gather(self._fresh(_AGAIN))

    def _of_layer(self, plain: Shallow) -> Shallow:
        """The same as a function of the pre-activations of the last known layer, with rows of length one."""
        rows = plain.rows @ np.linalg.pinv(self._region.to_layer @ self._region.lift)
        lengths = np.linalg.norm(rows, axis=1)
        outputs = plain.outputs * lengths[:, None]
        return replace(plain, outputs=outputs, rows=rows / lengths[:, None], biases=plain.biases / lengths)

    def _fresh(self, count: int) -> Array:
        found: Array = self._region.points(count) @ self._region.inward.T
        return found

    def _near(self, centre: Array, radius: float) -> Array:
        found: Array = centre + min(radius, 1.0) * (self._fresh(1)[0] - centre)
        return found

    def _asked(self, places: Array) -> tuple[Array, Answer]:
        self._left -= len(places)
        search = self._search
        if self._left < 0 or (
            search is not None
            and len(search.seen) > self._enough + _PER_UNIT * len(search.units)
            and search.unexplained(search.main)
        ):
            raise Stop(Outcome.NOT_THIS_CLASS)
        points, answer = self._ask(places @ self._region.lift.T)
        return points @ self._region.inward.T, Answer(answer.values, answer.jacobians @ self._region.lift)


def _shallow(search: TensorSearch) -> Shallow:
    """What the search knows, with rows of length one."""
    rows, linear = search.units.rows, search.linear()
    lengths = np.linalg.norm(rows[:, :-1], axis=1)
    outputs = search.units.outputs * lengths[:, None]
    return Shallow(linear[:, :-1], linear[:, -1], outputs, rows[:, :-1] / lengths[:, None], rows[:, -1] / lengths)
