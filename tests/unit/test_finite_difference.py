"""Gradients from value queries: exact within a linear region."""

import numpy as np
import pytest

import relumine as rl
from problems import Counting, Problem, constant, linear, two_layer
from relumine.oracle.finite_difference import paper_step


def some_inputs(d: int, n: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, 9]).standard_normal((n, d))


def gradient_error(oracle: rl.Oracle, problem: Problem, x: np.ndarray) -> float:
    truth = problem.jacobian(x)
    return float(np.abs(oracle(x, gradients=True).jacobians - truth).max() / np.abs(truth).max())


def test_the_papers_step_is_right_but_loses_digits() -> None:
    h, delta = 8, 0.1
    problem = two_layer(12, h, paper=True)
    step = paper_step(delta, epsilon=1e-5, l=4 * h / (np.pi * delta), h=h)
    x = some_inputs(12, 20)
    assert 1e-9 < gradient_error(rl.FiniteDifferences(problem.oracle, step), problem, x) < 1e-2


def test_the_papers_step_follows_the_proof() -> None:
    delta, epsilon, l, h = 0.1, 1e-3, 50.0, 7
    step = paper_step(delta, epsilon, l, h)
    # Theorem 3: (1 − δ/2)(1 − 2lhs/ε) ≥ 1 − δ, with equality.
    assert (1 - delta / 2) * (1 - 2 * l * h * step / epsilon) == pytest.approx(1 - delta)
    with pytest.raises(rl.MisuseError, match="paper_step"):
        paper_step(1.5, epsilon, l, h)
    with pytest.raises(rl.MisuseError, match="paper_step"):
        paper_step(delta, 0, l, h)


@pytest.mark.parametrize("problem", [linear(3), constant(3), linear(1), linear(3, dtype="float32")])
def test_without_kinks_any_step_does(problem: Problem) -> None:
    jacobians = rl.FiniteDifferences(problem.oracle, 0.1)(some_inputs(12), gradients=True).jacobians
    assert np.allclose(jacobians, problem.A, atol=1e-11 if problem.dtype == "float64" else 1e-4)


def test_float32_is_given_what_it_allows() -> None:
    problem = two_layer(10, 5, 2, dtype="float32")
    x = some_inputs(10, 20)
    truth = problem.jacobian(x)
    got = rl.FiniteDifferences(problem.oracle, 1e-2)(x, gradients=True).jacobians
    assert np.median(np.abs(got - truth).max(axis=(1, 2))) < 1e-3 * np.abs(truth).max()


def test_a_gradient_costs_its_values_and_a_fixed_step_nothing_more() -> None:
    counting = Counting(two_layer(7, 5, 2).oracle)
    oracle = rl.FiniteDifferences(counting, 1e-6)
    oracle(some_inputs(7), gradients=True)
    assert (counting.value_queries, counting.gradient_queries) == (5 * 8, 0)
    oracle(some_inputs(7), gradients=False)
    assert counting.value_queries == 5 * 9


def test_the_step_may_be_a_function_of_the_input() -> None:
    seen = []

    def step(row: np.ndarray) -> float:
        seen.append(row)
        return 1e-5 * (1 + np.abs(row).max())

    problem = two_layer(7, 5, 2)
    assert gradient_error(rl.FiniteDifferences(problem.oracle, step), problem, some_inputs(7)) < 1e-8
    assert np.array_equal(seen, some_inputs(7))


@pytest.mark.parametrize("step", [0, -1e-3, np.nan, np.inf, lambda row: 0.0, lambda row: np.nan])
def test_steps_that_lead_nowhere_are_refused(step: object) -> None:
    with pytest.raises(rl.MisuseError, match="step: expected a positive number"):
        rl.FiniteDifferences(two_layer(7, 5).oracle, step)(some_inputs(7), gradients=True)


@pytest.mark.parametrize(("dtype", "step"), [("float64", 1e-20), ("float32", 1e-12)])
def test_steps_below_the_resolution_are_refused(dtype: str, step: float) -> None:
    with pytest.raises(rl.MisuseError, match="do not move"):
        rl.FiniteDifferences(two_layer(7, 5, dtype=dtype).oracle, step)(some_inputs(7), gradients=True)


def test_labels_are_refused() -> None:
    offer = rl.Offer((3,), 1, values="label", gradients="none")
    with pytest.raises(rl.MisuseError, match="values that are numbers"):
        rl.FiniteDifferences(rl.FunctionOracle(lambda x, _: (x[:, :1], None), offer), 1e-6)


def test_no_question_leaves_the_box() -> None:
    problem = two_layer(10, 6, 2)
    outside = []

    def query(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, None]:
        outside.append(max(-x.min(), x.max() - 1))
        return problem.predict(x), None

    offer = rl.Offer((10,), 2, gradients="none", box=(0.0, 1.0))
    x = np.random.default_rng(0).uniform(size=(20, 10))
    x[::2, ::3], x[1::2, 1::3], x[0], x[1] = 0, 1, 0, 1
    oracle = rl.FiniteDifferences(rl.FunctionOracle(query, offer), 1e-6)
    assert gradient_error(oracle, problem, x) < 1e-8
    assert max(outside) < 1e-12


def test_a_logit_link_behind_values_only_gives_exact_logit_gradients() -> None:
    problem = two_layer(10, 6, 3, values="probabilities", gradients="none")
    oracle = rl.FiniteDifferences(rl.LogitLink(problem.oracle), 1e-5)
    x = some_inputs(10)
    truth = problem.changed(values="logits").jacobian(x)
    got = oracle(x, gradients=True).jacobians
    assert np.allclose(got, truth - truth.mean(axis=1, keepdims=True), rtol=0, atol=1e-9 * np.abs(truth).max())
