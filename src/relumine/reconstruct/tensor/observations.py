"""Observations: inputs that were asked, with values and Jacobians in logit space, and the tensor they make."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.noise import Noise


@dataclass(frozen=True, eq=False)
class Observations:
    """``points`` n×d, ``values`` n×K, ``jacobians`` n×K×d (K may be one), and the ``noise`` of one number of them."""

    points: Array
    values: Array
    jacobians: Array
    noise: Noise

    def __len__(self) -> int:
        return len(self.points)

    def and_(self, points: Array, values: Array, jacobians: Array) -> "Observations":
        """These and further ones behind them."""
        return Observations(
            np.concatenate([self.points, points]),
            np.concatenate([self.values, values]),
            np.concatenate([self.jacobians, jacobians]),
            self.noise,
        )

    def at(self, chosen: NDArray[np.intp] | list[int] | slice) -> "Observations":
        """Only those at these places."""
        return Observations(self.points[chosen], self.values[chosen], self.jacobians[chosen], self.noise)

    @property
    def pieces(self) -> Array:
        """n×K×(d+1): [J, f − Jx], the affine function that a piecewise linear target is around each point."""
        offsets = self.values - np.einsum("nkd,nd->nk", self.jacobians, self.points)
        return np.concatenate([self.jacobians, offsets[:, :, None]], axis=2)

    def differences(self, base: int = 0) -> Array:
        """(n−1)×K×(d+1): M_n, all pieces but the base's minus the base's.

        With one hidden layer of ReLUs M_n = V·diag(g_n)·[A b], g_n ∈ {0, 1}: unit i counts where it is not as at the
        base, and its sign is absorbed in V. For any other activation use only the first d columns.
        """
        pieces = self.pieces
        result: Array = np.delete(pieces, base, axis=0) - pieces[base]
        return result
