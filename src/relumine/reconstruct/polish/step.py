"""One Gauss–Newton step for a network with one hidden layer, solved at once, however large its input is.

The equations of the gradients, J_p = Σ_i s_pi w_i a_iᵀ, have a normal matrix made of Kronecker products: the rows a_i
are eliminated by a matrix with one row for each unit, and what remains for the output weights has one for each unit
and output. The inputs' dimension enters neither. Then the values are met as well: they are few, and what gradients
leave open about them is a covariance with one row for each value (Woodbury's formula). Biases, which no gradient
shows, are the least squares fit to the values under that covariance.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, lstsq, solve_triangular

from relumine.oracle.base import Array

# What gradients do not determine is held by this part of what they determine best.
_RIDGE = 1e-8
# More output weights than this take too long, and of more values some are left out: matrices of this size are factored.
LARGEST = 3000


@dataclass(frozen=True, eq=False)
class ShallowMove:
    """By how much parameters are moved; ``linear`` is K×d, or 0×d without a linear term."""

    rows: Array
    weights: Array
    biases: Array
    offsets: Array
    linear: Array


class ShallowStep:
    """The move that meets answers best: all is factored once, for many residuals.

    first h×d, last K×h: the weights; linear: whether there is a linear term, which moves as well
    points n×d; on, hidden n×h: which units are on there, and what they put out
    of_value n, of_entry m: the expected errors of the values, and of the gradients' entries at the first m points
    """

    def __init__(
        self,
        weights: tuple[Array, Array],
        points: Array,
        on: NDArray[np.bool_],
        hidden: Array,
        errors: tuple[Array, Array],
        *,
        linear: bool,
    ) -> None:
        self._first, self._last = weights
        self._outputs, self._units = self._last.shape
        used = np.unique(np.linspace(0, len(points) - 1, LARGEST // self._outputs).astype(np.intp))
        self._used, self._points, self._hidden, self._per_value = used, points[used], hidden[used], 1 / errors[0][used]
        self._reach = self._reaching(on[used], linear)
        self._on, self._per_entry = on[: len(errors[1])].astype(np.float64), 1 / errors[1]
        self._steep = self._reaching(self._on, linear)

    def _reaching(self, on: NDArray[Any], linear: bool) -> Array:
        """n×K×e: by how much the outputs follow each pre-activation.

        A linear term is one more unit for each output, always on, whose output weights are known.
        """
        reach: Array = on[:, None, :] * self._last
        if not linear:
            return reach
        always = np.broadcast_to(np.eye(self._outputs), (len(on), self._outputs, self._outputs))
        return np.concatenate([reach, always], axis=2)

    def __call__(self, values: Array, jacobians: Array) -> ShallowMove:
        """The move for residuals n×K and m×K×d, both in units of their expected errors."""
        rows, weights = self._of_gradients(jacobians)
        missing = values[self._used].ravel() - self._seen(*self._solved(rows, weights))
        whitened = solve_triangular(self._covariance, np.column_stack([self._biased, missing]), lower=True)
        free = lstsq(whitened[:, :-1], whitened[:, -1], cond=1e-10, lapack_driver="gelsy")[0]
        held = cho_solve((self._covariance, True), missing - self._biased @ free)
        of_rows, of_weights = self._of_values(held)
        rows, weights = self._solved(rows + of_rows, weights + of_weights)
        units = self._units
        return ShallowMove(rows[:units], weights, free[:units], free[units:], rows[units:])

    # -- the gradients' equations: right-hand sides, and their solution

    def _of_gradients(self, jacobians: Array) -> tuple[Array, Array]:
        """e×d and K×h: the derivative's transpose times these residuals."""
        residuals = jacobians * self._per_entry[:, None, None]
        reach = self._steep.reshape(-1, self._steep.shape[2])
        rows: Array = reach.T @ residuals.reshape(-1, residuals.shape[2])
        weights = np.einsum("pki,pi->ki", residuals @ self._first.T, self._on)
        return rows, weights

    def _solved(self, rows: Array, weights: Array) -> tuple[Array, Array]:
        """The normal equations' solution e×d and K×h for right-hand sides of these shapes: rows are eliminated."""
        shares = self._inverse @ rows
        rest = weights - np.einsum("eki,ei->ki", self._coupling, shares @ self._first.T)
        moved = cho_solve((self._schur, True), rest.ravel()).reshape(weights.shape)
        shares = shares - self._inverse @ (np.einsum("eki,ki->ei", self._coupling, moved) @ self._first)
        return shares, moved

    @cached_property
    def _weighted(self) -> tuple[Array, Array]:
        """m×K×e and m×h: what the gradients follow, in units of their errors."""
        return self._steep * self._per_entry[:, None, None], self._on * self._per_entry[:, None]

    @cached_property
    def _inverse(self) -> Array:
        """e×e: the inverse of the rows' normal matrix, which is the same in every input's direction."""
        reach = self._weighted[0].reshape(-1, self._reach.shape[2])
        sizes, directions = np.linalg.eigh(reach.T @ reach)
        result: Array = (directions / np.maximum(sizes, _RIDGE * float(sizes.max()))) @ directions.T
        return result

    @cached_property
    def _coupling(self) -> Array:
        """e×K×h: how equations for rows and for output weights hang together, but for the rows themselves."""
        reach, on = self._weighted
        result: Array = np.tensordot(reach, on, axes=([0], [0])).transpose(1, 0, 2)
        return result

    @cached_property
    def _schur(self) -> Array:
        """The factor of the normal matrix of the output weights, (K·h)×(K·h), once rows are eliminated."""
        outputs, units, on = self._outputs, self._units, self._weighted[1]
        coupling = self._coupling.reshape(len(self._inverse), -1)
        matrix = -(coupling.T @ self._inverse @ coupling).reshape(outputs, units, outputs, units)
        every, unit = np.arange(outputs), np.arange(units)
        matrix[every, :, every, :] += on.T @ on
        rows = self._first @ self._first.T
        matrix *= rows[None, :, None, :]
        # A row may be longer where output weights are smaller. That is left to the rows.
        largest = float(((on**2).sum(axis=0) * rows.diagonal()).max())
        directions = self._last / (np.linalg.norm(self._last, axis=0) + 1e-300)
        matrix[:, unit, :, unit] += largest * np.einsum("ki,li->ikl", directions, directions)
        flat = matrix.reshape(outputs * units, -1)
        flat[np.diag_indices_from(flat)] += _RIDGE * largest
        return np.asarray(cholesky(flat, lower=True, check_finite=False))

    # -- the values' equations

    def _seen(self, rows: Array, weights: Array) -> Array:
        """n·K: by how much values change with these moves, in units of their errors."""
        moved = self._points @ rows.T
        change = np.einsum("pke,pe->pk", self._reach, moved) + self._hidden @ weights.T
        result: Array = (change * self._per_value[:, None]).ravel()
        return result

    def _of_values(self, residuals: Array) -> tuple[Array, Array]:
        """The transpose of that."""
        residuals = residuals.reshape(-1, self._outputs) * self._per_value[:, None]
        rows: Array = np.einsum("pke,pk->ep", self._reach, residuals) @ self._points
        return rows, residuals.T @ self._hidden

    @cached_property
    def _biased(self) -> Array:
        """(n·K)×(h + K): by how much values change with biases and offsets."""
        offsets = np.broadcast_to(np.eye(self._outputs), (len(self._points), self._outputs, self._outputs))
        both = np.concatenate([self._reach[:, :, : self._units], offsets], axis=2)
        return (both * self._per_value[:, None, None]).reshape(-1, both.shape[2])

    @cached_property
    def _covariance(self) -> Array:
        """The factor of the covariance of all values, given the gradients: their own errors, of rows, of weights."""
        n, outputs, units = len(self._points), self._outputs, self._units
        reach = (self._reach * self._per_value[:, None, None]).reshape(n * outputs, -1)
        held = reach @ self._inverse
        matrix = (held @ reach.T).reshape(n, outputs, n, outputs)
        matrix *= (self._points @ self._points.T)[:, None, :, None]
        # By how much values follow output weights, once rows have followed them.
        coupled = (held @ self._coupling.reshape(len(self._inverse), -1)).reshape(n, outputs, outputs, units)
        coupled *= -(self._points @ self._first.T)[:, None, None, :]
        every = np.arange(outputs)
        coupled[:, every, every, :] += (self._hidden * self._per_value[:, None])[:, None, :]
        of_weights = solve_triangular(self._schur, coupled.reshape(n * outputs, -1).T, lower=True, check_finite=False)
        flat = matrix.reshape(n * outputs, -1) + of_weights.T @ of_weights
        flat[np.diag_indices_from(flat)] += 1
        return np.asarray(cholesky(flat, lower=True, check_finite=False))
