"""Layers: the part of a deep network that is known, and what it says about a point.

With the first layers known, the rest happens in their *features* φ, the outputs of the last known layer:
f(x) = g(φ(x)). The next layer's units are fixed hyperplanes of φ, whatever they look like in x.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from relumine.oracle.base import Array

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers known so far: rows of length one, turned the right way around."""

    rows: tuple[Array, ...] = ()
    biases: tuple[Array, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def widths(self) -> tuple[int, ...]:
        """Units per known layer."""
        return tuple(len(biases) for biases in self.biases)

    @property
    def below(self) -> "Layers":
        """All but the last."""
        return Layers(self.rows[:-1], self.biases[:-1])

    def with_layer(self, rows: Array, biases: Array) -> "Layers":
        """One layer more."""
        return Layers((*self.rows, rows), (*self.biases, biases))

    def signals(self, points: Array) -> list[Array]:
        """For each known layer n×h: what goes into its relu."""
        found: list[Array] = []
        for rows, biases in zip(self.rows, self.biases, strict=True):
            found.append((np.maximum(found[-1], 0) if found else points) @ rows.T + biases)
        return found

    def inputs(self, signals: Array, rng: np.random.Generator) -> Array:
        """n×d: inputs at which the last layer has these signals; nearly, if that takes features that are negative."""
        for i in range(len(self) - 1, 0, -1):
            features = np.array([nnls(self.rows[i], signal)[0] for signal in signals - self.biases[i]])
            off = -features.mean() * rng.exponential(size=features.shape)  # no unit is to be on its boundary
            signals = np.where(features > 0, features, off)
        return np.asarray(np.linalg.lstsq(self.rows[0], (signals - self.biases[0]).T)[0].T, dtype=np.float64)

    def features(self, points: Array) -> Array:
        """n×h: the outputs of the last known layer; the points themselves if there is none."""
        return np.maximum(self.signals(points)[-1], 0) if self.rows else points

    def slopes(self, points: Array) -> list[Array]:
        """For each known layer n×h×d: the derivatives of its signals."""
        found: list[Array] = []
        for rows, signal in zip(self.rows, [None, *self.signals(points)], strict=False):
            if signal is None:
                found.append(np.broadcast_to(rows, (len(points), *rows.shape)))
            else:
                found.append(rows @ (found[-1] * (signal > 0)[:, :, None]))
        return found

    def on(self, points: Array) -> Mask:
        """n×h: which features are on; the inputs themselves always are."""
        if not self.rows:
            return np.ones(points.shape, dtype=bool)
        result: Mask = self.signals(points)[-1] > 0
        return result

    def feature_slopes(self, points: Array) -> Array:
        """n×h×d: the derivatives of the features."""
        if not self.rows:
            return np.broadcast_to(np.eye(points.shape[1]), (len(points), *[points.shape[1]] * 2))
        result: Array = self.slopes(points)[-1] * self.on(points)[:, :, None]
        return result

    def explains(self, points: Array, tolerance: float) -> Mask:
        """n: whether a point lies on the boundary of a known unit, up to this distance relative to the point's size."""
        explained = np.zeros(len(points), dtype=bool)
        allowed = tolerance * (1 + np.linalg.norm(points, axis=1))[:, None]
        for signal, slope in zip(self.signals(points), self.slopes(points), strict=True):
            steepness = np.linalg.norm(slope, axis=2)
            explained |= np.any((np.abs(signal) <= allowed * steepness) & (steepness > 0), axis=1)
        return explained
