"""A network beside the answers it is to meet: residuals, and which move of all parameters makes them smaller."""

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsmr

from relumine.oracle.base import Array
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.polish.answers import Answers
from relumine.reconstruct.polish.patterns import Pattern, matched
from relumine.reconstruct.polish.step import LARGEST, ShallowStep

# Inner iterations of LSMR per step.
_INNER = 1000
# Products per inner iteration beyond which they take too long.
_LARGEST = 5e6


class NetworkFit:
    """A network beside the answers: residuals, and their derivative by all parameters."""

    def __init__(self, network: Network, answers: Answers, noise: Noise) -> None:
        self.network = network
        self.answers = answers
        self._noise = noise

    @cached_property
    def _errors(self) -> tuple[Array, Array]:
        return self.answers.errors(self._noise)

    @property
    def whole(self) -> bool:
        """Whether all parameters can be fitted in little time."""
        rows, outputs = self.answers.jacobians.shape[:2]
        products = (rows * outputs + len(self.answers.values)) * sum(weight.size for weight in self.network.weights)
        return products <= _LARGEST or (self._noise.absolute > 0 and self._at_once is not None)

    @cached_property
    def residuals(self) -> Array:
        """All answers minus predictions, in units of their expected errors."""
        return self._weighted(self.answers.values - self.values, self.answers.jacobians - self._jacobians())

    @property
    def misfit(self) -> float:
        """The size of the residuals, per number that the parameters leave free: about one for a right network.

        Every hidden unit has a parameter too many: its row may be longer where what it adds to the next layer is less.
        """
        parameters = sum(part.size for part in _parts(self.network)) - sum(self.network.hidden)
        free = max(self.residuals.size - parameters, 1)
        return float(np.sqrt(np.sum(self.residuals**2) / free))

    def solved(self, residuals: Array) -> Array:
        """A move of all parameters that changes the predictions by this in the least squares sense."""
        if self._at_once is not None:
            return self._solved_at_once(self._at_once, residuals)
        scaled = self._scaled
        operator = LinearOperator(
            (residuals.size, sum(part.size for part in _parts(self.network))),
            matvec=lambda move: self._derivative(scaled(move)),
            rmatvec=lambda residuals: scaled(self._adjoint(residuals)),
            dtype=np.float64,
        )
        return scaled(lsmr(operator, residuals, atol=1e-6, btol=1e-6, conlim=0, maxiter=_INNER)[0])

    @cached_property
    def _at_once(self) -> ShallowStep | None:
        """The solver for all parameters at once, if there is one hidden layer and it is not too wide."""
        network, answers = self.network, self.answers
        if len(network.hidden) != 1 or not len(answers.jacobians) or network.weights[-1].size > LARGEST:
            return None
        first, last = network.weights
        on, hidden, linear = self._on[0], self.features[1], network.skip is not None
        return ShallowStep((first, last), answers.points, on, hidden, self._errors, linear=linear)

    def _solved_at_once(self, step: ShallowStep, residuals: Array) -> Array:
        count = self.answers.values.size
        values, jacobians = residuals[:count], residuals[count:]
        move = step(values.reshape(self.answers.values.shape), jacobians.reshape(self.answers.jacobians.shape))
        parts = (move.rows, move.weights, move.biases, move.offsets, move.linear)
        return np.concatenate([part.ravel() for part in parts])

    def biases(self) -> Array:
        """The move of all biases, and of nothing else, that meets the values best."""
        errors = self.answers.distrust(self._noise)
        ahead = np.concatenate(_products(self.network, self._on, self.answers.values.shape), axis=2)
        system = (ahead / errors[:, None, None]).reshape(-1, ahead.shape[2])
        missing = (self.answers.values - self.values) / errors[:, None]
        normal = system.T @ system
        # What values do not determine stays as it is.
        normal[np.diag_indices_from(normal)] += 1e-12 * float(normal.diagonal().max())
        move = np.linalg.solve(normal, system.T @ missing.ravel())
        weights = sum(weight.size for weight in self.network.weights)
        skip = 0 if self.network.skip is None else self.network.skip.size
        return np.concatenate([np.zeros(weights), move, np.zeros(skip)])

    @cached_property
    def _roots(self) -> list[tuple[Array, Array]]:
        """For each layer's weights, and then for each layer's biases: what the moves are multiplied by on either side.

        The equations of the gradients alone, and of one layer alone, have a normal matrix that is a Kronecker product
        (for the first and the last layer; for others nearly). Moves measured by its root are determined about equally
        well, so that LSMR needs few iterations however alike two units are.
        """
        of_value, of_entry = self._errors
        valued = _products(self.network, self._on, self.answers.values.shape)
        biases = [np.tensordot(ahead, ahead / of_value[:, None, None] ** 2, ([0, 1], [0, 1])) for ahead in valued]
        if len(of_entry):
            outs = [np.tensordot(q, q / of_entry[:, None, None] ** 2, ([0, 1], [0, 1])) for q in self._ahead]
            grams, share = _grams(self.network, self._sloped, len(of_entry)), float(np.median(of_entry)) / of_value
        else:
            outs, grams, share = biases, [np.zeros(())] * len(biases), np.ones(len(of_value))
        entering = zip(grams, self.features, strict=True)
        intos = [gram + (feature * share[:, None] ** 2).T @ feature for gram, feature in entering]
        count = len(of_entry) or max(len(of_value), 1)
        weights = [(_inverse_root(out), _inverse_root(into / count)) for out, into in zip(outs, intos, strict=True)]
        return [*weights, *((_inverse_root(out), np.ones((1, 1))) for out in biases)]

    def _scaled(self, moves: Array) -> Array:
        parts = _split(self.network, moves)
        scaled = [
            left @ part.reshape(len(part), -1) @ right for (left, right), part in zip(self._roots, parts, strict=False)
        ]
        of_skip = float(np.sqrt((1 / self._errors[1] ** 2).sum())) or 1.0
        scaled += [part / of_skip for part in parts[len(scaled) :]]
        return np.concatenate([part.ravel() for part in scaled])

    def moved(self, step: Array) -> Network:
        """The network with its parameters moved by this."""
        return _with_parts(
            self.network,
            [a + b for a, b in zip(_parts(self.network), _split(self.network, step), strict=True)],
        )

    # -- predictions, for patterns that are given

    @cached_property
    def features(self) -> list[Array]:
        """What enters each layer."""
        features = [self.answers.points]
        for weight, bias, on in zip(self.network.weights, self.network.biases, self._on, strict=False):
            features.append((features[-1] @ weight.T + bias) * on)
        return features

    @cached_property
    def values(self) -> Array:
        """What the network answers."""
        network = self.network
        values: Array = self.features[-1] @ network.weights[-1].T + network.biases[-1]
        return values if network.skip is None else values + self.answers.points @ network.skip.T

    @cached_property
    def _ahead(self) -> list[Array]:
        return _products(self.network, self._sloped, self.answers.jacobians.shape[:2])

    def _jacobians(self) -> Array:
        result: Array = self._ahead[0] @ self.network.weights[0]
        return result if self.network.skip is None else result + self.network.skip

    def _weighted(self, values: Array, jacobians: Array) -> Array:
        of_value, of_entry = self._errors
        return np.concatenate([(values / of_value[:, None]).ravel(), (jacobians / of_entry[:, None, None]).ravel()])

    # -- the derivative and its adjoint

    def _derivative(self, step: Array) -> Array:
        network, moves = self.network, _split(self.network, step)
        depth = len(network.weights)
        weights, biases = moves[:depth], moves[depth : 2 * depth]
        change = np.zeros_like(self.answers.points)
        for i in range(depth):
            change = self.features[i] @ weights[i].T + biases[i] + (change @ network.weights[i].T if i else 0)
            change = change * self._on[i] if i < depth - 1 else change
        slope: Array = np.zeros(())
        for i in reversed(range(depth)):
            slope = self._ahead[i] @ weights[i] + (slope @ network.weights[i] if i < depth - 1 else 0)
            slope = slope * self._sloped[i - 1][:, None, :] if i else slope
        if network.skip is not None:
            change, slope = change + self.answers.points @ moves[-1].T, slope + moves[-1]
        return self._weighted(change, slope)

    def _adjoint(self, residuals: Array) -> Array:
        network, depth = self.network, len(self.network.weights)
        n, m = self.answers.values.size, self.answers.jacobians.shape
        of_value, of_entry = self._errors
        back = residuals[:n].reshape(self.answers.values.shape) / of_value[:, None]
        slope = residuals[n:].reshape(m) / of_entry[:, None, None]
        skip = None if network.skip is None else back.T @ self.answers.points + slope.sum(axis=0)
        weights: list[Array] = []
        for i in range(depth):
            weights.append(np.tensordot(self._ahead[i], slope, axes=([0, 1], [0, 1])))
            if i < depth - 1:
                slope = (slope @ network.weights[i].T) * self._sloped[i][:, None, :]
        biases: list[Array] = []
        for i in reversed(range(depth)):
            weights[i] = weights[i] + back.T @ self.features[i]
            biases.insert(0, back.sum(axis=0))
            if i:
                back = (back @ network.weights[i]) * self._on[i - 1]
        return np.concatenate([part.ravel() for part in (*weights, *biases, *([] if skip is None else [skip]))])

    # -- patterns

    @cached_property
    def _on(self) -> Pattern:
        return matched(self.network, self.answers.points, self.answers.jacobians)

    @cached_property
    def _sloped(self) -> Pattern:
        return [on[: len(self.answers.jacobians)] for on in self._on]


def _products(network: Network, on: Pattern, shape: tuple[int, ...]) -> list[Array]:
    """For every layer n×K×width: the derivative of the outputs by what that layer puts out, before its relu."""
    products: list[Array] = [np.broadcast_to(np.eye(shape[1]), (*shape, shape[1]))]
    for weight, layer in zip(network.weights[:0:-1], on[::-1], strict=True):
        products.insert(0, (products[0] @ weight) * layer[:, None, :])
    return products


def _grams(network: Network, on: Pattern, count: int) -> list[Array]:
    """For every layer: the sum over all points of R Rᵀ, where R is the derivative of what enters it by the input."""
    first = network.weights[0]
    each = first @ first.T
    grams = [count * np.eye(first.shape[1])]
    if on:
        grams.append(each * (on[0].T.astype(np.float64) @ on[0]))
    for i in range(1, len(on)):
        grams.append(np.zeros((len(network.weights[i]),) * 2))
        for row in range(count):
            gram = each * np.outer(on[0][row], on[0][row])
            for weight, layer in zip(network.weights[1 : i + 1], on[1 : i + 1], strict=True):
                gram = (weight @ gram @ weight.T) * np.outer(layer[row], layer[row])
            grams[-1] += gram
    return grams


def _inverse_root(gram: Array) -> Array:
    """gram^(-1/2); what it does not determine is kept from growing without bound."""
    sizes, directions = np.linalg.eigh(gram)
    largest = float(sizes.max(initial=0)) or 1.0
    result: Array = (directions / np.sqrt(np.maximum(sizes, 1e-10 * largest))) @ directions.T
    return result


def _parts(network: Network) -> list[Array]:
    return [*network.weights, *network.biases, *([] if network.skip is None else [network.skip])]


def _split(network: Network, numbers: Array) -> list[Array]:
    """The flat vector of all parameters, or of moves, in the parameters' shapes."""
    parts = _parts(network)
    ends = np.cumsum([0, *(part.size for part in parts)])
    return [numbers[a:b].reshape(part.shape) for (a, b), part in zip(pairwise(ends), parts, strict=True)]


def _with_parts(network: Network, parts: list[Array]) -> Network:
    depth = len(network.weights)
    skip = None if network.skip is None else parts[-1]
    return replace(network, weights=tuple(parts[:depth]), biases=tuple(parts[depth : 2 * depth]), skip=skip)
