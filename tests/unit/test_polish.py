"""Polishing: least squares over every answer paid for, and what it says about its own accuracy."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import relumine as rl
from problems import Problem, error, network, two_layer
from relumine import defend
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.polish.answers import Answers, Remembering
from relumine.reconstruct.polish.method import polished
from relumine.reconstruct.polish.step import ShallowStep


def exact(problem: Problem) -> Network:
    return Network(problem.weights, problem.biases, problem.offer.inputs, values=problem.values)


def shaken(problem: Problem, size: float, seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    truth = exact(problem)
    return replace(truth, weights=tuple(W + size * rng.standard_normal(W.shape) for W in truth.weights))


def asked(problem: Problem, gradients: int = 60, values: int = 200, seed: int = 0) -> Answers:
    rng = np.random.default_rng(seed)
    oracle = Remembering(problem.oracle)
    oracle(rng.standard_normal((gradients, problem.A.shape[1])), gradients=True)
    oracle(rng.standard_normal((values, problem.A.shape[1])), gradients=False)
    return oracle.answers()


def worst(found: Network, problem: Problem) -> float:
    x = np.random.default_rng(9).standard_normal((1000, problem.A.shape[1]))
    return float(np.abs(found.logits(x) - problem.logits(x)).max())


@pytest.mark.parametrize("widths", [(8, 6, 3), (8, 6, 1), (8, 6, 5, 2), (6, 3)])
def test_a_network_that_is_nearly_right_becomes_as_exact_as_rounding_allows(widths):
    problem = network(*widths, decimals=5)
    rough, noise = shaken(problem, 1e-3), Noise(2.2e-16, 0.5e-5)
    fit = polished(rough, asked(problem), noise)
    assert worst(fit.network, problem) < 1e-4 < worst(rough, problem)
    assert 0.7 < fit.misfit < 1.3


@pytest.mark.parametrize("K", [1, 3])
def test_it_says_how_exact_it_can_be(K):
    problem = two_layer(8, 6, K, decimals=4)
    fit = polished(shaken(problem, 1e-4), asked(problem), Noise(2.2e-16, 0.5e-4))
    simulated = fit.uncertainty(np.random.default_rng(9).standard_normal((1000, 8)), np.random.default_rng(1))
    assert simulated.max() / 3 < worst(fit.network, problem) < 3 * simulated.max()


def test_a_network_without_one_of_its_units_is_told_from_a_right_one():
    problem = two_layer(8, 6, 3, decimals=4)
    truth = exact(problem)
    less = replace(
        truth, weights=(truth.weights[0][:-1], truth.weights[1][:, :-1]), biases=(truth.biases[0][:-1], truth.biases[1])
    )
    assert polished(less, asked(problem), Noise(2.2e-16, 0.5e-4)).misfit > 10


def test_exact_answers_never_make_a_network_worse():
    problem = two_layer(8, 6, 3)
    assert worst(polished(exact(problem), asked(problem), Noise(2.2e-16)).network, problem) < 1e-13


def test_the_gradient_of_one_cell_counts_once():
    problem = two_layer(8, 6, 3, decimals=3)
    oracle = Remembering(problem.oracle)
    point = np.random.default_rng(0).standard_normal((1, 8))
    oracle(np.concatenate([point, point + 1e-9, point]), gradients=True)
    answers = oracle.answers()
    assert len(answers.jacobians) == 1
    assert len(answers.values) == 3


@pytest.mark.parametrize("linear", [False, True])
def test_a_step_meets_the_answers_as_well_as_any_move_can(linear):
    """Beside the derivative taken by differences, and numpy's least squares."""
    d, h, K, n, m = 9, 5, 3, 40, 15
    rng = np.random.default_rng(0)
    shapes = [(h, d), (K, h), (h,), (K,), *([(K, d)] if linear else [])]
    parts, points = [rng.standard_normal(shape) for shape in shapes], rng.standard_normal((n, d))
    on = points @ parts[0].T + parts[2] > 0

    def predicted(A, W, b, c, skip=0.0):
        values = ((points @ A.T + b) * on) @ W.T + c + (points @ skip.T if linear else 0)
        jacobians = np.einsum("ni,ki,id->nkd", on[:m], W, A) + skip
        return np.concatenate([(values / of_value[:, None]).ravel(), (jacobians / of_entry[:, None, None]).ravel()])

    of_value, of_entry = rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, m)
    sizes = np.cumsum([0, *(part.size for part in parts)])
    derivative = np.empty((n * K + m * K * d, sizes[-1]))
    for i in range(sizes[-1]):  # predictions are at most bilinear, so that central differences are exact
        move = np.eye(1, sizes[-1], i)[0]
        moves = [move[a:b].reshape(shape) for (a, b), shape in zip(pairwise(sizes), shapes, strict=True)]
        ahead, behind = ([p + s * q for p, q in zip(parts, moves, strict=True)] for s in (1, -1))
        derivative[:, i] = (predicted(*ahead) - predicted(*behind)) / 2
    residuals = rng.standard_normal(len(derivative))
    hidden = (points @ parts[0].T + parts[2]) * on
    step = ShallowStep((parts[0], parts[1]), points, on, hidden, (of_value, of_entry), linear=linear)
    move = step(residuals[: n * K].reshape(n, K), residuals[n * K :].reshape(m, K, d))
    found = np.concatenate([p.ravel() for p in (move.rows, move.weights, move.biases, move.offsets, move.linear)])
    best = np.linalg.lstsq(derivative, residuals, rcond=1e-10)[0]
    assert np.allclose(derivative @ found, derivative @ best, atol=1e-6)


# Through the public doors


@pytest.mark.parametrize(("decimals", "agreement"), [(6, 0.9999), (4, 0.99)])
def test_rounded_answers_of_ten_outputs(decimals, agreement):
    x = np.random.default_rng(3).standard_normal((10_000, 50))
    for seed in range(2):
        problem = two_layer(50, 32, 10, seed=seed)
        said, unsaid = defend.parse(f"round:{decimals}")(problem.oracle), problem.changed(decimals=decimals).oracle
        result = rl.TwoLayer()(said if seed else unsaid, rng=seed)
        truth, told = problem.predict(x), result.predict(x)
        assert result.outcome is rl.Outcome.RECOVERED
        assert np.mean(truth.argmax(1) == told.argmax(1)) >= agreement
        assert np.abs(told - truth).max() <= 3 * result.evidence.accuracy * np.abs(truth).max()
        assert result.evidence.accuracy <= 20 * 10.0**-decimals


def test_rounded_answers_of_a_large_network():
    problem = two_layer(784, 24, 10, decimals=4)
    result = rl.TwoLayer()(problem.oracle, rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    x = np.random.default_rng(5).standard_normal((2000, 784))
    found, truth = result.predict(x), problem.predict(x)
    assert np.mean(found.argmax(axis=1) == truth.argmax(axis=1)) > 0.995
    assert np.abs(found - truth).max() / np.abs(truth).max() < 2 * result.evidence.accuracy < 4e-3


def test_exact_answers_have_no_accuracy_to_state():
    assert rl.TwoLayer()(two_layer(12, 9, 3).oracle, rng=0).evidence.accuracy is None


@pytest.mark.parametrize("seed", range(4))
def test_float32_values_show_networks(seed):
    problem = two_layer(12, 5, 3, seed=seed, dtype="float32", gradients="none")
    result = rl.TwoLayerFromValues()(problem.oracle, rng=seed)
    assert result.outcome is rl.Outcome.RECOVERED
    assert error(result, problem, 1000) <= 1e-5
