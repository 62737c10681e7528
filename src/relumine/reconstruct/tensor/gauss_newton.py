"""Gauss–Newton with damping over every answer: values and Jacobians, all parameters of one hidden layer at once."""

from dataclasses import replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse.linalg import LinearOperator, lsmr

from relumine.oracle.base import Array
from relumine.reconstruct.network import Network
from relumine.reconstruct.tensor.observations import Observations

# Larger systems (numbers in the matrix) are solved without forming them.
_DENSE = 2**22
_STEPS = 20
# What misses more than this at first, and after a few steps, is not the target: right starts miss 1e-2 and less.
_FAR = 0.1
_FEW = 6
_NEAR = 1e-3
# Products with the matrix in one step of such.
_PRODUCTS = 200


def polished(network: Network, seen: Observations, enough: float) -> tuple[Network, float]:
    """The network moved to explain the answers best, and what it misses, relative to their size.

    enough: stop where no more than this is missed
    """
    fit = _Fit(network, seen)
    damping = 1e-6
    for i in range(_STEPS):
        hopeless = fit.misfit > (_FAR if i < _FEW else _NEAR)
        if fit.misfit <= enough or damping > 1e3 or hopeless:
            break
        trial = _Fit(fit.moved(fit.step(damping)), seen)
        if trial.misfit < fit.misfit:
            slow = trial.misfit > 0.9 * fit.misfit and trial.misfit < 1e-6
            fit, damping = trial, max(damping * 0.1, 1e-15)
            if slow:
                break
        else:
            damping *= 10
    return fit.network, fit.misfit


class _Fit:
    """A network, its pre-activations at the points, and what it misses: values and Jacobians, each relative."""

    def __init__(self, network: Network, seen: Observations) -> None:
        self.network, self.seen = network, seen
        (self.A, self.V), (b, c) = network.weights, network.biases
        z = seen.points @ self.A.T + b
        activation = network.activation
        self.out, self.slope, self.bend = activation(z), activation.derivative(z), activation.curvature(z)
        # A value and a gradient count as much as their sizes say, whatever the units of the inputs are.
        self.weights = 1 / _size(seen.values), 1 / _size(seen.jacobians)
        values = self.out @ self.V.T + c
        jacobians = np.einsum("kh,nh,hd->nkd", self.V, self.slope, self.A, optimize=True)
        if network.skip is not None:
            values, jacobians = values + seen.points @ network.skip.T, jacobians + network.skip
        self.missed = self._weighted(seen.values - values, seen.jacobians - jacobians)
        self.misfit = float(np.sqrt(np.mean(self.missed**2)))
        sizes = [self.A.size, len(b), self.V.size, len(c)]
        self._ends = np.cumsum(sizes)

    def _weighted(self, values: Array, jacobians: Array) -> Array:
        return np.concatenate([self.weights[0] * values.ravel(), self.weights[1] * jacobians.ravel()])

    def _parts(self, step: Array) -> tuple[Array, Array, Array, Array]:
        a, b, v, c = np.split(step, self._ends[:-1])
        return a.reshape(self.A.shape), b, v.reshape(self.V.shape), c

    def moved(self, step: Array) -> Network:
        """The network with this added to its parameters."""
        a, b, v, c = self._parts(step)
        (A, V), (b0, c0) = self.network.weights, self.network.biases
        return replace(self.network, weights=(A + a, V + v), biases=(b0 + b, c0 + c))

    def step(self, damping: float) -> Array:
        """The least-squares step, every parameter in units of its effect."""
        size = int(self._ends[-1])
        if size * len(self.missed) > _DENSE:
            return self._by_products(damping)
        matrix = np.stack([self.forward(column) for column in np.eye(size)], axis=1)
        sizes = np.linalg.norm(matrix, axis=0) + 1e-300
        system = np.vstack([matrix / sizes, np.sqrt(damping) * np.eye(size)])
        wanted = np.concatenate([self.missed, np.zeros(size)])
        q, r = np.linalg.qr(system)
        solution: Array = solve_triangular(r, q.T @ wanted) / sizes
        return solution

    def _by_products(self, damping: float) -> Array:
        """The same by LSMR, every parameter in units of its own size: inputs may have very different ones."""
        sizes = np.concatenate(
            [
                np.broadcast_to(np.sqrt(np.mean(self.A**2, axis=0)), self.A.shape).ravel(),
                np.ones(len(self.A)),
                np.broadcast_to(np.sqrt(np.mean(self.V**2, axis=1, keepdims=True)), self.V.shape).ravel(),
                np.full(len(self.V), _size(self.V)),
            ]
        )
        operator = LinearOperator(
            (len(self.missed), len(sizes)),
            matvec=lambda step: self.forward(sizes * step.ravel()),
            rmatvec=lambda missed: sizes * self.backward(missed.ravel()),
        )
        solution = lsmr(operator, self.missed, damp=np.sqrt(damping), atol=1e-12, btol=1e-12, maxiter=_PRODUCTS)[0]
        result: Array = sizes * solution
        return result

    def forward(self, step: Array) -> Array:
        """The derivative of the answers along this step."""
        a, b, v, c = self._parts(step)
        moved = self.seen.points @ a.T + b
        values = (self.slope * moved) @ self.V.T + self.out @ v.T + c
        slopes = self.bend * moved
        jacobians = np.einsum("nkh,hd->nkd", slopes[:, None] * self.V + self.slope[:, None] * v, self.A, optimize=True)
        jacobians += np.einsum("nkh,hd->nkd", self.slope[:, None] * self.V, a, optimize=True)
        return self._weighted(values, jacobians)

    def backward(self, missed: Array) -> Array:
        """The transpose of ``forward``."""
        n, K = self.seen.values.shape
        values = self.weights[0] * missed[: n * K].reshape(n, K)
        jacobians = self.weights[1] * missed[n * K :].reshape(n, K, -1)
        by_rows = np.einsum("nkd,hd->nkh", jacobians, self.A, optimize=True)
        moved = self.slope * (values @ self.V) + self.bend * np.einsum("nkh,kh->nh", by_rows, self.V)
        a = moved.T @ self.seen.points
        a += np.einsum("nkh,nkd->hd", self.slope[:, None] * self.V, jacobians, optimize=True)
        v = values.T @ self.out + np.einsum("nkh,nh->kh", by_rows, self.slope)
        return np.concatenate([a.ravel(), moved.sum(axis=0), v.ravel(), values.sum(axis=0)])


def _size(numbers: Array) -> float:
    return float(np.sqrt(np.mean(numbers**2))) or 1.0
