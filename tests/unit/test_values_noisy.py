"""TwoLayerFromValues behind float32 and rounding: as exact as the noise allows, and it says how exact that is."""

import numpy as np
import pytest

import relumine as rl
from problems import FOREIGN, Capped, Offering, Problem, linear, two_layer
from relumine import defend

RECOVERED = rl.Outcome.RECOVERED


def run(problem: Problem, rng: int = 0, most: int = 20_000) -> rl.Reconstruction:
    return rl.TwoLayerFromValues()(Capped(problem.changed(gradients="none").oracle, most), rng=rng)


def errors(result: rl.Reconstruction, problem: Problem) -> np.ndarray:
    """At 10,000 Gaussian points, relative to the largest value."""
    x = np.random.default_rng(3).standard_normal((10_000, problem.A.shape[1]))
    truth = problem.predict(x)
    return np.abs(result.predict(x) - truth) / np.abs(truth).max()


@pytest.mark.parametrize("decimals", [6, 5, 4])
@pytest.mark.parametrize(("d", "h", "K"), [(12, 5, 3), (20, 10, 1), (30, 12, 10)])
def test_rounded_values_are_enough(d, h, K, decimals):
    for seed in range(2):
        problem = two_layer(d, h, K, seed=seed).changed(decimals=decimals)
        result = run(problem, rng=seed)
        assert result.outcome is RECOVERED
        assert result.hidden == (h,)
        assert result.clone.skip is None
        assert errors(result, problem).max() <= 2 * result.evidence.accuracy
        assert result.evidence.accuracy <= 10.0**-decimals
        assert result.spent.gradient_queries == 0


@pytest.mark.parametrize("said", [True, False], ids=["said", "unsaid"])
@pytest.mark.parametrize(("d", "h", "K"), [(12, 5, 3), (20, 10, 1)])
def test_float32_values_are_enough(d, h, K, said):
    for seed in range(3):
        problem = two_layer(d, h, K, seed=seed, dtype="float32", gradients="none")
        oracle = problem.oracle if said else Offering(problem.oracle, dtype="float64")
        result = rl.TwoLayerFromValues()(oracle, rng=seed)
        assert result.outcome is RECOVERED
        assert errors(result, problem).max() <= max(2 * result.evidence.accuracy, 1e-6)
        assert result.evidence.accuracy <= 1e-6


def test_a_defence_that_rounds_is_noticed_though_the_offer_says_nothing():
    problem = two_layer(12, 5, 3, seed=3, gradients="none")
    result = rl.TwoLayerFromValues()(defend.parse("round:4")(problem.oracle), rng=0)
    assert result.outcome is RECOVERED
    assert errors(result, problem).max() <= 2 * result.evidence.accuracy


def test_kinks_that_are_too_close_to_tell_on_a_line_do_not_matter():
    for seed in range(2):
        problem = two_layer(10, 16, 2, seed=seed).changed(decimals=4)
        result = run(problem, rng=seed)
        assert result.outcome is RECOVERED
        assert errors(result, problem).max() <= 2 * result.evidence.accuracy


@pytest.mark.parametrize(("d", "h", "K"), [(12, 5, 3), (15, 8, 1)])
@pytest.mark.parametrize("decimals", [6, 4])
def test_rounded_probabilities_are_enough(d, h, K, decimals):
    for seed in range(2):
        problem = two_layer(d, h, K, seed=seed, values="probabilities").changed(decimals=decimals)
        result = run(problem, rng=seed)
        assert result.outcome is RECOVERED
        assert errors(result, problem).max() <= 3 * result.evidence.accuracy
        assert result.evidence.accuracy <= 5 * 10.0**-decimals


def test_units_that_do_not_change_probabilities_are_left_out():
    problem = two_layer(30, 12, 3, seed=1, values="probabilities").changed(decimals=5)
    result = run(problem)
    assert result.outcome is RECOVERED
    assert result.hidden == (12,)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("K", [1, 3])
def test_rounded_values_inside_a_box_are_enough(K, seed):
    problem = two_layer(6, 8, K, seed=seed, gradients="none").changed(decimals=5)
    oracle = Offering(problem.oracle, box=(-1.0, 1.0))
    result = rl.TwoLayerFromValues()(Capped(oracle, 20_000), rng=seed)
    assert result.outcome is RECOVERED
    x = np.random.default_rng(3).uniform(-1, 1, (10_000, 6))
    truth = problem.predict(x)
    assert np.abs(result.predict(x) - truth).max() <= 2 * result.evidence.accuracy * np.abs(truth).max()


@pytest.mark.parametrize("K", [1, 3])
def test_more_units_than_a_linear_term_has_numbers(K):
    problem = two_layer(4, 14, K, seed=1).changed(decimals=6)
    result = run(problem)
    assert result.outcome is RECOVERED
    assert errors(result, problem).max() <= 2 * result.evidence.accuracy


def test_a_linear_target_has_no_units():
    result = run(linear(3).changed(decimals=5))
    assert result.outcome is RECOVERED
    assert result.hidden == ()


@pytest.mark.parametrize("decimals", [1, 2])
def test_where_digits_are_too_few_it_says_so_and_gives_what_it_has(decimals):
    problem = two_layer(12, 5, 3).changed(decimals=decimals)
    result = run(problem)
    assert result.outcome is rl.Outcome.NOT_VERIFIED
    assert "so few digits" in result.evidence.remark
    assert errors(result, problem).max() <= (0.01 if decimals == 2 else 0.5)


@pytest.mark.parametrize("name", FOREIGN)
def test_rounded_foreign_targets_are_never_recovered(name):
    for K, decimals in ((1, 6), (3, 5)):
        result = run(FOREIGN[name](K, 0).changed(decimals=decimals))
        assert result.outcome is not RECOVERED
        assert result.evidence.remark
