"""AllOn: inputs at which all units of the known layers are on, chosen so that those of the next layer differ.

There the known layers are one linear map, and what remains is a network of their pre-activations. If a first layer has
no more units than inputs, its pre-activations can be chosen freely. Where few of them are large, the signs of the next
layer's rows decide which of its units are on: each is on at about half of such points. Where all are large, the units
of trained networks are on nearly everywhere, or nearly nowhere.
"""

import numpy as np
from scipy.optimize import linprog, nnls

from relumine.oracle.base import Array
from relumine.reconstruct.deep.duals import PatternLayer

# Large pre-activations are of this many times their usual size, others of this part of it; so many are large. Measured
# on trained networks 784-64-32-10: every unit of the second layer is on at 15 % to 83 % of such points.
_FAR, _NEAR, _LARGE = 4.0, 0.03, 2.0
# Along missing rows directions are this many times longer.
_TOWARDS = 3.0
# Those that were negative, and should hardly be seen, are of this part: float32 tells them from zero.
_TINY = 1e-3
# Vertices of a region that are mixed to a point, and the part of the centre in it.
_MIXED, _CENTRE = 4, 0.03


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
        self._first = maps[0] @ self.lift
        self._walls = np.concatenate([each @ self.lift for each in maps])
        self.thresholds = np.concatenate([layer.above for layer in layers])
        self._vertices = np.empty((0, self.lift.shape[1]))
        self.rows = np.empty((0, len(self.to_layer)))  # orthonormal: what is known of the next layer's row space

    def shrink(self, factor: float) -> None:
        """Choose smaller pre-activations from now on."""
        self._usual = factor * self._usual
        if self._box is None:
            self._bounds = [(factor * low, factor * high) for low, high in self._bounds]

    def points(self, count: int, missing: Array | None = None) -> Array:
        """Random points: of two one with few large pre-activations, one in a random direction of the next layer's rows.

        missing: combinations of rows of that layer which are to be large at half of the latter, of either sign
        """
        ways = self._ways(count // 2 if len(self.rows) else 0, missing)
        if self._free:
            shape = count - len(ways), len(self._usual)
            large = self._rng.random(shape) < _LARGE / shape[1]
            large[np.arange(len(large)), self._rng.integers(shape[1], size=len(large))] = True
            sizes = np.concatenate(
                [self._rng.exponential(size=shape) * np.where(large, _FAR, _NEAR), self._along(ways)]
            )
            return np.asarray((self.thresholds + self._usual * sizes) @ self.lift.T)
        return np.asarray(self._mixed(count, ways) @ self.lift.T)

    def _ways(self, count: int, missing: Array | None) -> Array:
        """n×h: directions of the row space."""
        ways = self._rng.standard_normal((count, len(self.rows)))
        if missing is not None and len(missing):
            there = missing @ self.rows.T
            there /= np.linalg.norm(there, axis=1, keepdims=True)
            ways[::2] += _TOWARDS * self._rng.standard_normal((len(ways[::2]), len(there))) @ there
        return ways

    def _along(self, ways: Array) -> Array:
        """Positive pre-activations, relative to usual ones, that the rows map to these directions, or close to them."""
        found = np.array([nnls(self.rows * self._usual, way)[0] for way in ways]).reshape(-1, len(self._usual))
        found *= (
            _FAR * self._rng.uniform(size=(len(ways), 1)) / np.maximum(found.max(axis=1, initial=0), 1e-300)[:, None]
        )
        return np.asarray(found + _NEAR * self._rng.exponential(size=found.shape))

    def _mixed(self, count: int, ways: Array) -> Array:
        vertices = [self._best(-way @ self.rows @ self.to_layer @ self.lift) for way in ways]
        vertices += [self._vertex() for _ in range(max(count, 2 * _MIXED) - len(ways))]
        self._vertices = np.concatenate([self._vertices, vertices])
        chosen = self._rng.integers(len(self._vertices), size=(count, _MIXED))
        chosen[:, 0] = len(self._vertices) - 1 - np.arange(count)
        shares = self._rng.exponential(size=chosen.shape) ** 4
        shares /= shares.sum(axis=1, keepdims=True)
        mixed = np.einsum("nv,nvm->nm", shares, self._vertices[chosen])
        result: Array = mixed + _CENTRE * (self._vertices.mean(axis=0) - mixed)
        return result

    def _vertex(self) -> Array:
        """Where few pre-activations are large, by a random linear programme."""
        wanted = self._rng.exponential(size=len(self._first))
        large = self._rng.random(len(wanted)) < self._rng.uniform() ** 3 / 2
        return self._best(np.where(large, -wanted, wanted) @ self._first)

    def _best(self, costs: Array) -> Array:
        found = linprog(costs, -self._walls, -self.thresholds, bounds=self._bounds, method="highs")
        if found.status != 0:
            raise NeverOn
        result: Array = found.x
        return result

    def lifted(self, points: Array) -> Array:
        """Points of the region that are like these: what a unit above does here, it mostly does there.

        Pre-activations of the first layer that are negative become small; what that does to the next layer is small.
        """
        if self._free:
            least = self.thresholds + _TINY * self._usual * self._rng.exponential(size=(len(points), len(self._usual)))
            return np.asarray(np.maximum(points @ self.to_layer.T, least) @ self.lift.T)
        return self.points(len(points))
