"""Small targets with known answers, and oracles that count, break or lie for the tests.

>>> problem = two_layer(20, 8, 3, seed=1)
>>> result = rl.TwoLayer()(problem.oracle, rng=0)
>>> assert error(result, problem) < 1e-9
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import pytest
from scipy.special import expit, softmax

import relumine as rl
from relumine.reconstruct.activation import Activation

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Problem:
    """A fully connected network whose parameters the tests know and whose ``oracle`` answers as it is told to.

    weights, biases: one per layer, float64 arrays that ``dtype`` can represent
    dtype:           the precision in which the oracle computes
    values:          what the oracle answers; "probabilities" puts a softmax (K=1: a sigmoid) behind the network
    gradients:       "all", "top", an output's index or "none", as in an Offer
    decimals:        the oracle's numbers are rounded to this many decimals, if given
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activation: str = "relu"
    dtype: Literal["float32", "float64"] = "float64"
    values: Literal["real", "logits", "probabilities"] = "real"
    gradients: Literal["all", "top", "none"] | int = "all"
    decimals: int | None = None

    @property
    def A(self) -> Array:
        """h×d: the first layer."""
        return self.weights[0]

    @property
    def b(self) -> Array:
        """h: the first layer's biases."""
        return self.biases[0]

    @property
    def W(self) -> Array:
        """K×h: the last layer."""
        return self.weights[-1]

    @property
    def c(self) -> Array:
        """K: the last layer's biases."""
        return self.biases[-1]

    @property
    def offer(self) -> rl.Offer:
        return rl.Offer(
            inputs=(self.A.shape[1],),
            outputs=len(self.c),
            values=self.values,
            gradients=self.gradients,
            dtype=self.dtype,
        )

    @property
    def oracle(self) -> rl.FunctionOracle:
        """A fresh oracle in front of this network."""
        return rl.FunctionOracle(self._query, self.offer)

    def predict(self, x: Array) -> Array:
        """The truth: the network's outputs of the offered kind, in float64 and never rounded."""
        return _finish(self._logits(np.asarray(x, dtype=np.float64)), self.values)

    def logits(self, x: Array) -> Array:
        """The truth before any softmax."""
        return self._logits(np.asarray(x, dtype=np.float64))

    def jacobian(self, x: Array) -> Array:
        """The true n×K×d Jacobian of ``predict``, in float64 and never rounded."""
        return self._jacobian(np.asarray(x, dtype=np.float64))

    def changed(self, **fields: object) -> "Problem":
        """A copy with other fields; A, b, W, c may be given by these names."""
        for name, (layers, i) in {
            "A": ("weights", 0),
            "b": ("biases", 0),
            "W": ("weights", -1),
            "c": ("biases", -1),
        }.items():
            if name in fields:
                changed = list(fields.get(layers, getattr(self, layers)))
                changed[i] = np.asarray(fields.pop(name), dtype=self.dtype).astype(np.float64)
                fields[layers] = tuple(changed)
        return replace(self, **fields)

    def _layers(self, dtype: object) -> list[tuple[Array, Array]]:
        return [(W.astype(dtype), b.astype(dtype)) for W, b in zip(self.weights, self.biases, strict=True)]

    def _signals(self, x: Array) -> tuple[list[Array], Array]:
        """Pre-activations of every hidden layer, and the outputs before any softmax."""
        *hidden, (W, c) = self._layers(x.dtype)
        signal, before = x, []
        for A, b in hidden:
            before.append(signal @ A.T + b)
            signal = Activation(self.activation)(before[-1])
        return before, signal @ W.T + c

    def _logits(self, x: Array) -> Array:
        return self._signals(x)[1]

    def _jacobian(self, x: Array) -> Array:
        before, logits = self._signals(x)
        weights = [W for W, _ in self._layers(x.dtype)]
        n, K = logits.shape
        J = np.broadcast_to(weights[-1], (n, *weights[-1].shape))
        for A, z in zip(weights[-2::-1], before[::-1], strict=True):
            J = (
                (J * Activation(self.activation).derivative(z).astype(z.dtype)[:, None, :]).reshape(n * K, len(A)) @ A
            ).reshape(n, K, A.shape[1])
        if self.values != "probabilities":
            return np.array(J)
        p = _finish(logits, "probabilities")[:, :, None]
        return p * (1 - p) * J if K == 1 else p * (J - (p * J).sum(axis=1, keepdims=True))

    def _query(self, x: Array, gradients: bool) -> tuple[Array, Array | None]:
        x = x.astype(self.dtype)
        logits = self._logits(x)
        values = _finish(logits, self.values)
        if not gradients or self.gradients == "none":
            return self._rounded(values), None
        J = self._jacobian(x)
        if self.gradients != "all":
            column = values.argmax(axis=1) if self.gradients == "top" else self.gradients
            J = J[np.arange(len(x)), column][:, None, :]
        return self._rounded(values), self._rounded(J)

    def _rounded(self, numbers: Array) -> Array:
        return numbers if self.decimals is None else np.round(numbers, self.decimals)


def _finish(logits: Array, values: str) -> Array:
    if values != "probabilities":
        return logits
    return expit(logits) if logits.shape[1] == 1 else softmax(logits, axis=1)


def network(
    *widths: int,
    bias: bool = True,
    seed: int = 0,
    dtype: Literal["float32", "float64"] = "float64",
    **fields: object,
) -> Problem:
    """A random network with these widths, inputs first and outputs last, e.g. ``network(20, 10, 5, 3)``."""
    rng = np.random.default_rng([seed, *widths])

    def representable(numbers: Array) -> Array:
        return numbers.astype(dtype).astype(np.float64)

    weights, biases = [], []
    for i, (wide, narrow) in enumerate(pairwise(widths)):
        # He's scale keeps the signal's size from layer to layer; the last layer has no ReLU behind it.
        scale = np.sqrt((2 if i else 1) / wide)
        weights.append(representable(rng.standard_normal((narrow, wide)) * scale))
        biases.append(representable(rng.standard_normal(narrow) * 0.5 * bias))
    fields.setdefault("values", "real" if widths[-1] == 1 else "logits")
    return Problem(tuple(weights), tuple(biases), dtype=dtype, **fields)


def two_layer(
    d: int,
    h: int,
    K: int = 1,
    *,
    bias: bool = True,
    seed: int = 0,
    dtype: Literal["float32", "float64"] = "float64",
    paper: bool = False,
    **fields: object,
) -> Problem:
    """A random network with one hidden layer: x ↦ W relu(Ax + b) + c.

    ``paper`` keeps to the paper's model class: unit rows, no biases, K = 1, |w_i| in [0.5, 1.5].
    Other fields of Problem (values, gradients, decimals, activation) may be given too.
    """
    problem = network(d, h, K, bias=bias and not paper, seed=seed, dtype=dtype, **fields)
    if not paper:
        return problem
    assert K == 1, "the paper's model class has one output"
    rng = np.random.default_rng([seed, d, h])
    rows = problem.A / np.linalg.norm(problem.A, axis=1, keepdims=True)
    return problem.changed(A=rows, W=rng.choice([-1, 1], (1, h)) * rng.uniform(0.5, 1.5, (1, h)))


# Degenerate and foreign targets. ``K`` and ``seed`` may be chosen; the rest is small and fixed.


def dead_units(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Three units that are never active: zero rows with negative or zero bias."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    A, b = problem.A.copy(), problem.b.copy()
    A[:3], b[:3] = 0, [-1, -0.5, 0]
    return problem.changed(A=A, b=b)


def always_on_units(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Two units whose kink is ten thousand away: linear wherever anybody asks."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    b = problem.b.copy()
    b[:2] = 1e4
    return problem.changed(b=b)


def duplicate_units(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Two units equal to others, and one that is twice another."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    A, b = problem.A.copy(), problem.b.copy()
    A[1], b[1] = A[0], b[0]
    A[3], b[3] = A[2], b[2]
    A[5], b[5] = 2 * A[4], 2 * b[4]
    return problem.changed(A=A, b=b)


def opposite_units(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Two pairs of units with opposite rows and biases: each pair shares its kink."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    A, b = problem.A.copy(), problem.b.copy()
    A[1], b[1] = -A[0], -b[0]
    A[3], b[3] = -A[2], -b[2]
    return problem.changed(A=A, b=b)


def cancelling_units(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """A pair of opposite units whose jumps cancel (relu(z) − relu(−z) = z), and a pair that vanishes altogether."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    A, b, W = problem.A.copy(), problem.b.copy(), problem.W.copy()
    A[1], b[1], W[:, 1] = -A[0], -b[0], -W[:, 0]
    A[3], b[3], W[:, 3] = A[2], b[2], -W[:, 2]
    return problem.changed(A=A, b=b, W=W)


def parallel_units(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Three units with the same row and different biases."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    A = problem.A.copy()
    A[1] = A[0]
    A[2] = -A[0]
    return problem.changed(A=A)


def zero_output_weights(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Units that reach no output, and one output that sees no unit."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    W = problem.W.copy()
    W[:, :2] = 0
    if K > 1:
        W[0] = 0
    return problem.changed(W=W)


def parallel_outputs(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Every output is a multiple of one: all jumps have the same output direction."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    return problem.changed(W=np.outer(np.linspace(-1, 2, K) if K > 1 else [1.0], problem.W[0]))


def one_sign(K: int = 1, seed: int = 0, **fields: object) -> Problem:
    """All output weights positive: f is convex."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    return problem.changed(W=np.abs(problem.W))


def wide(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """More units than inputs."""
    return two_layer(6, 25, K, seed=seed, **fields)


def linear(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """No hidden layer."""
    return network(12, K, seed=seed, **fields)


def constant(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """The same answer everywhere."""
    problem = network(12, K, seed=seed, **fields)
    return problem.changed(A=np.zeros((K, 12)))


def zero(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """The answer 0 everywhere."""
    return constant(K, seed, **fields).changed(c=np.zeros(K))


def two_hidden_layers(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """A deeper ReLU network: not of the two-layer class."""
    return network(12, 9, 6, K, seed=seed, **fields)


def smooth(K: int = 3, seed: int = 0, activation: str = "tanh", **fields: object) -> Problem:
    """Not piecewise linear."""
    return two_layer(12, 9, K, seed=seed, activation=activation, **fields)


def softplus(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Nearly, but not, piecewise linear."""
    return smooth(K, seed, "softplus", **fields)


def rounded(K: int = 3, seed: int = 0, decimals: int = 6, **fields: object) -> Problem:
    """Answers rounded to a few decimals."""
    return two_layer(12, 9, K, seed=seed, decimals=decimals, **fields)


def behind_softmax(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Answers probabilities and their gradients."""
    return two_layer(12, 9, K, seed=seed, values="probabilities", **fields)


def dead_region(K: int = 3, seed: int = 0, **fields: object) -> Problem:
    """Every unit is off around the origin: slope 0 there, kinks far out."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    return problem.changed(b=-2 - np.abs(problem.b))


def close_kinks(K: int = 3, seed: int = 0, gap: float = 1e-7, **fields: object) -> Problem:
    """Two parallel units so close that any fixed step takes both at once."""
    problem = two_layer(12, 9, K, seed=seed, **fields)
    A, b = problem.A.copy(), problem.b.copy()
    A[1], b[1] = A[0], b[0] + gap
    return problem.changed(A=A, b=b)


# Ones that are one-hidden-layer ReLU networks: a two-layer method must recover each of them, or say that it did not.
DEGENERATE: dict[str, Callable[..., Problem]] = {
    maker.__name__: maker
    for maker in (
        dead_units,
        always_on_units,
        duplicate_units,
        opposite_units,
        cancelling_units,
        parallel_units,
        zero_output_weights,
        parallel_outputs,
        one_sign,
        wide,
        linear,
        constant,
        zero,
        dead_region,
        close_kinks,
    )
}

# Ones that are not: a two-layer method must never call them recovered.
FOREIGN: dict[str, Callable[..., Problem]] = {maker.__name__: maker for maker in (two_hidden_layers, smooth, softplus)}

# Of these, those that are one hidden layer of another activation.
SMOOTH = ("smooth", "softplus")


class Counting:
    """Counts for itself, independently of Metered: rows of each kind, numbers returned, calls, repeated rows."""

    def __init__(self, oracle: rl.Oracle) -> None:
        self._oracle = oracle
        self.value_queries = 0
        self.gradient_queries = 0
        self.floats = 0
        self.calls = 0
        self.asked: list[tuple[bytes, bool]] = []

    @property
    def offer(self) -> rl.Offer:
        return self._oracle.offer

    @property
    def queries(self) -> int:
        return self.value_queries + self.gradient_queries

    @property
    def repeated(self) -> int:
        """Rows that had been asked before in the same way."""
        return len(self.asked) - len(set(self.asked))

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        answer = self._oracle(inputs, gradients=gradients)
        self.calls += 1
        if gradients:
            self.gradient_queries += len(inputs)
            self.floats += np.size(answer.gradients)
        else:
            self.value_queries += len(inputs)
        self.floats += np.size(answer.values)
        self.asked += [(np.ascontiguousarray(row).tobytes(), gradients) for row in inputs]
        return answer


class TooManyQueries(BaseException):
    """Not an Exception, so that no reconstructor can take it for a failure of the oracle."""


class Capped(Counting):
    """Ends the test when more than ``cap`` rows have been asked: nothing may go on for ever."""

    def __init__(self, oracle: rl.Oracle, cap: int) -> None:
        super().__init__(oracle)
        self._cap = cap

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        if self.queries + len(inputs) > self._cap:
            raise TooManyQueries(f"{self.queries} rows asked, {len(inputs)} more wanted, {self._cap} allowed")
        return super().__call__(inputs, gradients=gradients)


class Boxed:
    """Offers a box, and lets the test fail where a question lies outside of it."""

    def __init__(self, oracle: rl.Oracle, box: tuple[float, float]) -> None:
        self._oracle, self._box = oracle, box

    @property
    def offer(self) -> rl.Offer:
        return replace(self._oracle.offer, box=self._box)

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        low, high = self._box
        if inputs.min() < low or inputs.max() > high:
            pytest.fail(f"asked at {inputs.min()} … {inputs.max()}, outside of {self._box}")
        return self._oracle(inputs, gradients=gradients)


class Offering:
    """Answers as the oracle inside, but offers something else: ``Offering(oracle, dtype="float64")``."""

    def __init__(self, oracle: rl.Oracle, **changes: object) -> None:
        self._oracle = oracle
        self._changes = changes

    @property
    def offer(self) -> rl.Offer:
        return replace(self._oracle.offer, **self._changes)

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        return self._oracle(inputs, gradients=gradients)


class Breaking:
    """Raises ``failure`` as soon as more than ``after`` rows would have been answered."""

    def __init__(self, oracle: rl.Oracle, after: int, failure: BaseException | None = None) -> None:
        self._oracle = oracle
        self._left = after
        self._failure = failure or ConnectionError("the target hung up")

    @property
    def offer(self) -> rl.Offer:
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        self._left -= len(inputs)
        if self._left < 0:
            raise self._failure
        return self._oracle(inputs, gradients=gradients)


class Lying:
    """Passes every answer through ``lie`` from the ``after``-th row on (NaN, other shapes, other numbers)."""

    def __init__(self, oracle: rl.Oracle, lie: Callable[[rl.Answer], rl.Answer], after: int = 0) -> None:
        self._oracle = oracle
        self._lie = lie
        self._left = after

    @property
    def offer(self) -> rl.Offer:
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        self._left -= len(inputs)
        answer = self._oracle(inputs, gradients=gradients)
        return answer if self._left >= 0 else self._lie(answer)


class Noisy:
    """Adds fresh Gaussian noise to every number, and says so in its offer."""

    def __init__(self, oracle: rl.Oracle, scale: float, rng: int = 0) -> None:
        self._oracle = oracle
        self._scale = scale
        self._rng = np.random.default_rng(rng)

    @property
    def offer(self) -> rl.Offer:
        return replace(self._oracle.offer, random=True)

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        answer = self._oracle(inputs, gradients=gradients)
        jacobians = None if answer.gradients is None else self._blurred(answer.gradients)
        return rl.Answer(self._blurred(answer.values), jacobians)

    def _blurred(self, numbers: Array) -> Array:
        return numbers + self._scale * self._rng.standard_normal(numbers.shape)


class Predicts(Protocol):
    def predict(self, x: Array) -> Array: ...


def error(
    result: Predicts, problem: Predicts, n: int = 10_000, *, dimension: int | None = None, seed: int = 7
) -> float:
    """max |f̂ − f| / max |f| on n fresh Gaussian points (absolute where f is 0)."""
    d = problem.A.shape[1] if dimension is None else dimension
    x = np.random.default_rng([seed, 20]).standard_normal((n, d))
    truth = problem.predict(x)
    largest = np.abs(truth).max()
    return float(np.abs(result.predict(x) - truth).max() / (largest if largest > 0 else 1.0))


def recovered(runs: Iterable[tuple[Problem, rl.Reconstruction]], tolerance: float) -> int:
    """How many of the runs are called recovered; every one of those must be right."""
    good = [(problem, result) for problem, result in runs if result.outcome is rl.Outcome.RECOVERED]
    for problem, result in good:
        assert error(result, problem) <= tolerance
    return len(good)
