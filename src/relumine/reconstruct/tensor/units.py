"""Units: hidden ReLU units in the form in which the tensor shows them, and what they add to each affine piece."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array


@dataclass(frozen=True, eq=False)
class Units:
    """m units: ``outputs`` m×K and ``rows`` m×(d+1), the bias last. A unit is on where its row times [x, 1] is > 0."""

    outputs: Array
    rows: Array

    def __len__(self) -> int:
        return len(self.rows)

    def and_(self, other: "Units") -> "Units":
        """These and others."""
        return Units(np.concatenate([self.outputs, other.outputs]), np.concatenate([self.rows, other.rows]))

    def at(self, chosen: NDArray[np.bool_]) -> "Units":
        """Some of them."""
        return Units(self.outputs[chosen], self.rows[chosen])

    def turned(self, signs: Array) -> "Units":
        """Each with both its row and its output times ±1: the same jump, on at the other side."""
        return Units(self.outputs * signs[:, None], self.rows * signs[:, None])

    @property
    def energies(self) -> Array:
        """m: the squared length of the jump that each makes."""
        result: Array = (self.outputs**2).sum(axis=1) * (self.rows**2).sum(axis=1)
        return result

    def on(self, points: Array) -> NDArray[np.bool_]:
        """n×m: which are on."""
        result: NDArray[np.bool_] = lifted(points) @ self.rows.T > 0
        return result

    def pieces(self, points: Array) -> Array:
        """n×K×(d+1): the affine function that they add to each piece."""
        K, D = self.outputs.shape[1], self.rows.shape[1]
        active = self.on(points)[:, None, :] * self.outputs.T
        result: Array = (active.reshape(len(points) * K, len(self)) @ self.rows).reshape(len(points), K, D)
        return result


def no_units(outputs: int, dimension: int) -> Units:
    """None, of a network with these sizes."""
    return Units(np.empty((0, outputs)), np.empty((0, dimension + 1)))


def lifted(points: Array) -> Array:
    """[x, 1]."""
    return np.hstack([points, np.ones((len(points), 1))])
