"""How a clone of one exactly answered output is compared: few fresh values, and both sides of its boundaries."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.two_layer.agreement import TwoLayerRun

# Fresh values compared, at least, and per unit.
_FEWEST, _PER_UNIT = 4, 1 / 16
# How close every boundary is approached from either side, as powers of ten. Two parallel units taken for one differ
# from it between their boundaries only, and by rounding's tolerance the closest points show a gap of 1e-9.
_CLOSE = ((-9.5, -8.5), (-6.5, -4.5), (-4.0, -0.5))
# Moves towards several boundaries at once: each leaves a millionth of the way where rows are dependent.
_TURNS = 3
# A value that differs by more than this part of the largest contradicts, or than this multiple of what the model misses
# where it was fitted.
_ROUNDING, _MISSED = 2e-13, 30.0


class BothSides(TwoLayerRun):
    """A run whose answers with gradients agree with the signs of all units, at many points besides those compared."""

    @abstractmethod
    def _answered(self) -> tuple[Array, Array]:
        """Points off the searched line that were asked with gradients, and the values there."""

    @property
    def _settled(self) -> bool:
        """Whether this holds; otherwise the clone is compared as any other."""
        return True

    @property
    def _fresh_points(self) -> int:
        """Fresh values besides the answers with gradients, all of which agree with the signs of all units."""
        if not self._settled:
            return super()._fresh_points
        proofs = self.settings.points - len(self._answered()[0])
        return max(_FEWEST, proofs, int(_PER_UNIT * self._units))

    @property
    def _tolerance(self) -> float:
        """What rounding explains: parallel units taken for one may differ from it by 1e-6, and less close to it."""
        if not self._settled:
            return super()._tolerance
        points, values = self._answered()
        missed = float(np.abs(self._model().values(points) - values).max(initial=0)) / self.comparison.size
        return min(self._noise_explains, max(_ROUNDING, _MISSED * missed))

    def _challenge(self) -> None:
        """Ask values close to every boundary, on both sides of the same place.

        Two units of opposite outputs taken for one lie on one side of its boundary here and on the other side there.
        """
        if not self._settled:
            return super()._challenge()
        model = self._model()
        if not model.units:
            return
        rank = int(np.linalg.matrix_rank(model.rows))
        at_once = 3 * self.offer.dimension // 4 if rank == model.units else rank // 2
        groups = np.array_split(self.rng.permutation(model.units), -(-model.units // max(1, at_once)))
        points = [point for powers in _CLOSE for group in groups for point in self._close_to(model, group, powers)]
        with self.meter.phase("verify"):
            self.comparison.ask(np.array(points))

    def _close_to(self, model: Shallow, units: NDArray[np.intp], powers: tuple[float, float]) -> list[Array]:
        gram, start = model.rows @ model.rows.T, self.comparison.fresh(1)[0]
        small = self.rng.choice([-1.0, 1.0], len(units)) * 10.0 ** self.rng.uniform(*powers, len(units))
        points = []
        for side in (small, -small):
            point = start
            for _ in range(_TURNS):
                point = self.comparison.beside(model, gram, units, point, side)
            points.append(point)
        return points
