"""Polishing: all parameters of a network moved together to meet every answer already paid for. Asks nothing.

A unit found at one kink is known as well as two answers show it. All answers together show it better: each value and
each gradient is one more equation. Which units are on at each point is taken as known, so the equations are a product
of the layers' parameters; Gauss and Newton's method linearises them. With one hidden layer each step is solved at once
(polish_step.py); with more of them, or without gradients, LSMR solves it without ever writing the matrix down.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq
from scipy.sparse.linalg import LinearOperator, lsmr

from relumine.oracle.base import Answer, Array, Offer, Oracle, joined
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.polish_step import LARGEST, ShallowStep

# Steps of Gauss and Newton; the first does nearly all, the others follow the patterns that it changed.
_STEPS = 6
# Steps end when one lowers the misfit by less than this part of it.
_GAIN = 1e-3
# Inner iterations of LSMR per step.
_INNER = 1000
# Products per inner iteration beyond which they take too long.
_LARGEST = 5e6
# A unit whose signal is smaller than this part of what it is at points as far out may be on or off.
_NEAR = 0.03
# Through so many random directions a gradient is seen at a sixteenth of its size squared at least, nearly surely.
_PROBES = 8
# Values of points further out than this many √d show more about directions than the rest can be told from.
_FAR = 3.0

# The error of a sum over units, in rounding units of its size: measured on float32 networks of 20 to 1,000 units.
_SUMS = 0.5

Pattern = list[NDArray[np.bool_]]


class Remembering:
    """An oracle that keeps every answer that passes through, for a later fit."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._points: dict[bool, list[Array]] = {False: [], True: []}
        self._answers: dict[bool, list[Answer]] = {False: [], True: []}

    @property
    def offer(self) -> Offer:
        """The offer of the oracle inside."""
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        answer = self._oracle(inputs, gradients=gradients)
        self._points[gradients].append(inputs)
        self._answers[gradients].append(answer)
        return answer

    def answers(self) -> "Answers":
        """All of them; points where something is not finite (saturated) tell nothing and are left out.

        The gradient of one cell, asked again, is rounded in the same way: it tells nothing new, and counts once.
        """
        answers = [*self._answers[True], *self._answers[False]]
        none = np.empty((0, self.offer.dimension))
        points = np.concatenate([none, *self._points[True], *self._points[False]])
        values = joined(self.offer, answers, gradients=False).values
        known = np.flatnonzero(np.isfinite(values).all(axis=1))
        jacobians = [jacobian for answer in self._answers[True] for jacobian in answer.jacobians]
        new = _first_of_each(jacobians, known[known < len(jacobians)])
        order = np.concatenate([new, np.setdiff1d(known, new)])
        shape = (len(new), self.offer.gradient_rows, self.offer.dimension)
        return Answers(points[order], values[order], np.array([jacobians[i] for i in new]).reshape(shape))


def _first_of_each(jacobians: list[Array], places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of these places at which a Jacobian stands for the first time."""
    seen: dict[float, Array] = {}
    first = []
    for i in places:
        size = float(np.vdot(jacobians[i], jacobians[i]))  # quicker to look up than so many numbers
        if size not in seen or not np.array_equal(seen[size], jacobians[i]):
            seen[size] = jacobians[i]
            first.append(i)
    return np.array(first, dtype=np.intp)


@dataclass(frozen=True, eq=False)
class Answers:
    """``points`` n×d and their ``values`` n×K; the first m points also have ``jacobians`` m×K×d."""

    points: Array
    values: Array
    jacobians: Array

    def errors(self, noise: Noise) -> tuple[Array, Array]:
        """n and m: the expected error of one value, and of one entry of a Jacobian."""
        rounding = noise.absolute / np.sqrt(3)  # a number rounded is off by anything up to half a unit
        entries = np.sqrt([np.vdot(each, each) / each.size for each in self.jacobians])
        typical = float(np.sqrt(np.mean(entries**2))) if len(entries) else 0.0
        sizes = np.abs(self.values).max(axis=1, initial=0) + typical * np.linalg.norm(self.points, axis=1)
        floor = _SUMS * noise.relative * max(typical, float(sizes.max(initial=0)) * 1e-12) or 1e-300
        far = np.linalg.norm(self.points, axis=1) / (_FAR * np.sqrt(self.points.shape[1]))
        return rounding * np.maximum(1, far) + _SUMS * noise.relative * sizes + 1e-300, np.full(
            len(entries), rounding + floor
        )

    def distrust(self, noise: Noise) -> Array:
        """n: the expected difference between a value and a network whose weights are as exact as one gradient."""
        of_value, of_entry = self.errors(noise)
        result: Array = of_value + float(of_entry.max(initial=0)) * np.linalg.norm(self.points, axis=1)
        return result


class Polished:
    """A network that was polished, beside the answers that it was polished with."""

    def __init__(self, fit: "_Fit") -> None:
        self._fit = fit

    @property
    def network(self) -> Network:
        """The network that meets all answers best."""
        return self._fit.network

    @property
    def misfit(self) -> float:
        """How far the answers are from it, in units of their expected errors: about one for a right network."""
        return self._fit.misfit

    @property
    def whole(self) -> bool:
        """Whether all parameters were fitted; else only the biases were."""
        return self._fit.whole

    def uncertainty(self, points: Array, rng: np.random.Generator) -> Array | None:
        """n×K: by how much the values at these points would change with other noise of the same size.

        One draw of such noise is fitted as the answers were. The largest number at many points is what the noise
        allows; nothing is asked. None if only biases were fitted: that says nothing about the rest.
        """
        if not self.whole:
            return None
        noise = rng.standard_normal(self._fit.residuals.size)
        moved = self._fit.moved(self._fit.solved(noise))
        result: Array = np.abs(moved.logits(points) - self.network.logits(points))
        return result


def polished(network: Network, answers: Answers, noise: Noise) -> Polished:
    """The network that meets all answers best, starting from this one; itself if no step is for the better.

    Where all parameters take too long, only the biases are fitted, to the values: these are what a search finds least
    exactly. So it is for large networks whose answers are not rounded: there nothing else is far off.
    """
    fit = _Fit(network, answers, noise)
    if not fit.whole:
        return Polished(_Fit(fit.moved(fit.biases()), answers, noise))
    for _ in range(_STEPS):
        better = _improved(fit, answers, noise)
        if better is None:
            break
        gain, fit = fit.misfit - better.misfit, better
        if gain < _GAIN * fit.misfit:
            break
    return Polished(fit)


def _improved(fit: "_Fit", answers: Answers, noise: Noise) -> "_Fit | None":
    step = fit.solved(fit.residuals)
    for share in (1.0, 0.3):  # a full step may leave the patterns for which it was computed
        better = _Fit(fit.moved(share * step), answers, noise)
        if better.misfit < fit.misfit:
            return better
    return None


class _Fit:
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
        """Who solves for all parameters at once, if there is one hidden layer and it is not too wide."""
        network, answers = self.network, self.answers
        if len(network.hidden) != 1 or not len(answers.jacobians) or network.weights[-1].size > LARGEST:
            return None
        first, last = network.weights
        on, hidden, linear = self._on[0], self.signals[1], network.skip is not None
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
        move = lstsq(system, missing.ravel(), cond=1e-10, lapack_driver="gelsy", check_finite=False)[0]
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
        intos = [
            gram + (signal * share[:, None] ** 2).T @ signal for gram, signal in zip(grams, self.signals, strict=True)
        ]
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
    def signals(self) -> list[Array]:
        """What enters each layer."""
        signals = [self.answers.points]
        for weight, bias, on in zip(self.network.weights, self.network.biases, self._on, strict=False):
            signals.append((signals[-1] @ weight.T + bias) * on)
        return signals

    @cached_property
    def values(self) -> Array:
        """What the network answers."""
        network = self.network
        values: Array = self.signals[-1] @ network.weights[-1].T + network.biases[-1]
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
            change = self.signals[i] @ weights[i].T + biases[i] + (change @ network.weights[i].T if i else 0)
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
            weights[i] = weights[i] + back.T @ self.signals[i]
            biases.insert(0, back.sum(axis=0))
            if i:
                back = (back @ network.weights[i]) * self._on[i - 1]
        return np.concatenate([part.ravel() for part in (*weights, *biases, *([] if skip is None else [skip]))])

    # -- patterns

    @cached_property
    def _on(self) -> Pattern:
        """Patterns in which a unit close to its boundary is on where the answered gradient says so.

        A boundary is only known as well as noise allows; a point in a narrow cell may lie on its other side.
        """
        network, jacobians = self.network, self.answers.jacobians
        signals, on = _signals(network, self.answers.points)
        lengths = 1 + np.linalg.norm(self.answers.points[: len(jacobians)], axis=1)
        widths = [np.linalg.norm(weight, axis=1) for weight in network.weights]
        near = [
            np.abs(signal[: len(jacobians)]) <= _NEAR * lengths[:, None] * width
            for signal, width in zip(signals, widths, strict=False)
        ]
        for row in _doubtful(network, jacobians, on, near):
            _match(network, jacobians[row], [layer[row] for layer in on], [layer[row] for layer in near])
        return on

    @cached_property
    def _sloped(self) -> Pattern:
        return [on[: len(self.answers.jacobians)] for on in self._on]


def _doubtful(network: Network, jacobians: Array, on: Pattern, near: Pattern) -> NDArray[np.intp]:
    """The gradients of which so much is missing that it may be worth while to turn one of the units near there.

    Of a single layer that is seen without computing all gradients: through a few random directions what is missing
    looks about as large as it is, and turning a unit is only for the better if that is half of its jump at least.
    """
    doubtful = np.logical_or.reduce([layer.any(axis=1) for layer in near], axis=0)
    if len(near) != 1 or not len(jacobians):
        return np.flatnonzero(doubtful)
    first, last = network.weights
    probes = np.random.default_rng(0).standard_normal((first.shape[1], _PROBES)) / np.sqrt(_PROBES)
    missing = jacobians @ probes - (last * on[0][: len(jacobians), None, :]) @ (first @ probes)
    missing = missing if network.skip is None else missing - network.skip @ probes
    jumps = (last**2).sum(axis=0) * (first**2).sum(axis=1)
    smallest = np.where(near[0], jumps, np.inf).min(axis=1)
    return np.flatnonzero(doubtful & (64 * (missing**2).sum(axis=(1, 2)) > smallest))


def _match(network: Network, jacobian: Array, on: Pattern, near: Pattern) -> None:
    """Turn units near their boundary on or off, the one that helps most first, while the gradient comes closer."""
    for _ in range(sum(int(layer.sum()) for layer in near)):
        best, layer, unit = 0.0, -1, -1
        for i, (gains, candidates) in enumerate(zip(_gains(network, jacobian, on), near, strict=True)):
            allowed = np.where(candidates, gains, 0.0)
            if allowed.max(initial=0) > best:
                best, layer, unit = float(allowed.max()), i, int(allowed.argmax())
        if layer < 0:
            return
        on[layer][unit] = ~on[layer][unit]
        near[layer][unit] = False


def _gains(network: Network, jacobian: Array, on: Pattern) -> list[Array]:
    """For every hidden unit: by how much |answer − prediction|² falls if this unit is turned."""
    behind: list[Array] = []  # by each layer's signals, the derivative of these by the input
    rows = np.eye(0)
    for i, weight in enumerate(network.weights[:-1]):
        rows = weight if i == 0 else weight @ (on[i - 1][:, None] * rows)
        behind.append(rows)
    ahead = [network.weights[-1]]  # the derivative of the outputs by what each layer puts out, after its relu
    for weight, layer in zip(network.weights[-2:0:-1], on[:0:-1], strict=True):
        ahead.insert(0, (ahead[0] * layer) @ weight)
    missing = jacobian - ahead[0] @ (on[0][:, None] * behind[0])
    missing = missing if network.skip is None else missing - network.skip
    gains = []
    for before, after, layer in zip(behind, ahead, on, strict=True):
        size = (after**2).sum(axis=0) * (before**2).sum(axis=1)
        along = ((missing.T @ after) * before.T).sum(axis=0)
        gains.append(2 * np.where(layer, -1.0, 1.0) * along - size)
    return gains


def _signals(network: Network, points: Array) -> tuple[list[Array], Pattern]:
    """Every hidden layer's signals before its relu, and which are on."""
    signals, on, entering = [], [], points
    for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
        signals.append(entering @ weight.T + bias)
        on.append(signals[-1] > 0)
        entering = np.maximum(signals[-1], 0)
    return signals, on


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
