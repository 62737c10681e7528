"""AllOn: inputs at which all units of the known layers are on, chosen so that those of the next layer differ.

There the known layers are one linear map, and what remains is a network of their pre-activations. If a first layer has
no more units than inputs, its pre-activations can be chosen freely. Where few of them are large, the signs of the next
layer's rows decide which of its units are on: each is on at about half of such points. Where all are large, the units
of trained networks are on nearly everywhere, or nearly nowhere.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from relumine.oracle.base import Array
from relumine.reconstruct.deep.duals import PatternLayer

# Large pre-activations are of this many times their usual size, others of this part of it; so many are large. Measured
# on trained networks 784-64-32-10: every unit of the second layer is on at 15 % to 83 % of such points.
_FAR, _NEAR, _LARGE = 4.0, 0.03, 2.0
# Large ones are at least this part of that, so that a unit with one positive weight is on there whatever its bias.
_LEAST = 0.5
# The largest part of another vertex of a region that is mixed into a point, and the part of the centre in it.
_MIXED, _CENTRE = 0.1, 0.03


class NeverOn(Exception):
    """No input has all units on; never seen outside."""


class AllOn:
    """The polytope in which all units of ``layers`` are on.

    usual: the usual size of the first layer's pre-activations
    box: where inputs must be

    Points are chosen in coordinates ``inward``·x, which ``lift`` leads back: the first layer's pre-activations without
    biases, or the inputs themselves if these must stay in a box.
    """

    def __init__(
        self, layers: list[PatternLayer], usual: Array, box: tuple[float, float] | None, rng: np.random.Generator
    ) -> None:
        self._rng = rng
        self._usual, self._box = usual, box
        maps = [layers[0].rows]
        for layer in layers[1:]:
            maps.append(layer.rows @ maps[-1])
        self.to_layer = maps[-1]
        self._free = box is None and len(layers) == 1
        self.lift = np.linalg.pinv(maps[0]) if box is None else np.eye(maps[0].shape[1])
        self._bounds = [(-_FAR * size, _FAR * size) for size in usual] if box is None else [box] * len(self.lift)
        self.inward = maps[0] if box is None else np.eye(maps[0].shape[1])
        self._features = maps[-1] @ self.lift
        self._usual_inward = usual if box is None else np.ones(len(self.lift))
        self._walls = np.concatenate([each @ self.lift for each in maps])
        self.thresholds = np.concatenate([layer.above for layer in layers])
        self._vertices = np.empty((0, self.lift.shape[1]))
        self._turns = np.empty(0, dtype=np.intp)  # the next features to be large
        self._untold = len(self.to_layer)  # features that were not large yet
        self.rows = np.empty((0, len(self.to_layer)))  # orthonormal: what is known of the next layer's row space

    def shrink(self, factor: float) -> None:
        """Choose smaller pre-activations from now on."""
        self._usual = factor * self._usual
        if self._box is None:
            self._bounds = [(factor * low, factor * high) for low, high in self._bounds]

    def points(self, count: int) -> Array:
        """Random points with few large features; once each was large, half in random directions of the next rows."""
        large = self._large(count if self._untold >= count else count - (count - self._untold) // 2)
        self._untold = max(self._untold - len(large), 0)
        if self._free:
            sizes = np.where(large, _FAR * (_LEAST + self._rng.exponential(size=large.shape)), _NEAR)
            sizes *= np.where(large, 1.0, self._rng.exponential(size=large.shape))
            found = self.thresholds + self._usual * sizes
        else:
            found = self._inside(np.array([self._sparse(each) for each in large]))
        ways = self._rng.standard_normal((count - len(large), len(self.rows)))
        return np.asarray(np.concatenate([found, self._along(ways)]) @ self.lift.T)

    def _large(self, count: int) -> NDArray[np.bool_]:
        """n×h: which features are to be large; each in turn, so that no unit of the next layer is off at all points."""
        width = len(self.to_layer)
        while len(self._turns) < count:
            self._turns = np.concatenate([self._turns, self._rng.permutation(width)])
        turn, self._turns = self._turns[:count], self._turns[count:]
        large = self._rng.random((count, width)) < (_LARGE - 1) / width
        large[np.arange(count), turn] = True
        return large

    def _along(self, ways: Array) -> Array:
        """Where these combinations of the next layer's rows are large."""
        if not self._free:
            best = [self._best(-way @ self.rows @ self._features) for way in ways]
            return self._inside(np.array(best).reshape(-1, self.lift.shape[1]))
        found = np.maximum(ways @ self.rows * self._usual, 0)
        found *= _FAR * self._rng.random((len(ways), 1)) / np.maximum(found.max(axis=1, initial=0), 1e-300)[:, None]
        return np.asarray(self.thresholds + self._usual * (found + _NEAR * self._rng.exponential(size=found.shape)))

    def _inside(self, vertices: Array) -> Array:
        """Points near these vertices of the region: a little towards another one, and towards their mean."""
        self._vertices = np.concatenate([self._vertices, vertices])
        others = self._vertices[self._rng.integers(len(self._vertices), size=len(vertices))]
        found = vertices + _MIXED * self._rng.random((len(vertices), 1)) * (others - vertices)
        result: Array = found + _CENTRE * (self._vertices.mean(axis=0) - found)
        return result

    def _sparse(self, large: NDArray[np.bool_]) -> Array:
        """A vertex at which these features of the last layer are large, and a random mean of the others is least."""
        sizes = np.linalg.norm(self._features * self._usual_inward, axis=1)
        wanted = self._rng.exponential(size=len(sizes)) * ~large / sizes
        last = len(self.thresholds) - len(sizes)
        least = self.thresholds.copy()
        least[last:] += _FAR * self._rng.uniform(_LEAST, 1.0) * sizes * large
        return self._best(wanted @ self._features, least)

    def _best(self, costs: Array, least: Array | None = None) -> Array:
        """The vertex of least costs, where pre-activations are at least so large, if they can be."""
        for bounds in (least, self.thresholds):
            if bounds is not None:
                found = linprog(costs, -self._walls, -bounds, bounds=self._bounds, method="highs")
                if found.status == 0:
                    result: Array = found.x
                    return result
        raise NeverOn
