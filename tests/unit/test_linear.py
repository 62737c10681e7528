"""Linear: one answer is a linear model; few answers are one where gradients are partial or absent."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import relumine as rl
from problems import DEGENERATE, FOREIGN, Boxed, Counting, Noisy, error, network

RECOVERED, OTHER_CLASS = rl.Outcome.RECOVERED, rl.Outcome.NOT_THIS_CLASS
LINEAR = ("linear", "constant", "zero")


def tolerance(problem):
    return 1e-9 if problem.dtype == "float64" else 1e-4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("gradients", ["all", "top", "none"])
@pytest.mark.parametrize("values", ["real", "logits", "probabilities"])
@pytest.mark.parametrize("K", [1, 2, 3, 10])
def test_every_linear_model_is_recovered(K, values, gradients, dtype):
    for seed in range(3):
        problem = network(30, K, seed=seed, values=values, gradients=gradients, dtype=dtype)
        oracle = Counting(problem.oracle)
        result = rl.Linear()(oracle, rng=seed)
        assert result.outcome is RECOVERED
        assert result.hidden == ()
        assert error(result, problem, 2000) < tolerance(problem)
        assert (result.spent.gradient_queries, result.spent.value_queries) == (
            oracle.gradient_queries,
            oracle.value_queries,
        )


def spent(problem, rng=0):
    result = rl.Linear()(problem.oracle, rng=rng)
    assert result.outcome is RECOVERED
    return result.spent.gradient_queries, result.spent.value_queries - result.spent.phases["verify"].value_queries


def test_one_gradient_query_is_a_linear_model():
    assert spent(network(784, 10, values="logits")) == (1, 0)


@pytest.mark.parametrize("K", [1, 10])
def test_one_gradient_and_one_value_query_are_a_logistic_or_softmax_model(K):
    assert spent(network(784, K, values="probabilities")) == (1, 1)


def test_values_alone_cost_one_query_per_input_and_a_few():
    assert spent(network(100, 10, values="logits", gradients="none")) == (0, 101 + 3)
    assert spent(network(100, 10, values="probabilities", gradients="none")) == (0, 101 + 3 + 1)


def test_top_class_gradients_cost_one_query_per_class():
    assert spent(network(784, 10, values="logits", gradients="top")) == (10, 3)
    assert spent(network(784, 10, values="probabilities", gradients="top")) == (9, 3 + 1)


def test_a_class_that_is_never_on_top_is_read_from_values():
    problem = network(20, 4, values="logits", gradients="top")
    W, b = problem.A.copy(), problem.b.copy()
    W[3], b[3] = W[:3].mean(axis=0), b[:3].mean() - 1
    result = rl.Linear()(problem.changed(A=W, b=b).oracle, rng=0)
    assert result.outcome is RECOVERED
    assert result.parameters["layers.0.weight"] == pytest.approx(W, abs=1e-12)
    assert result.spent.phases["read the model"].value_queries == 21


def test_the_weights_are_the_targets():
    problem = network(20, 1, values="probabilities")
    result = rl.Linear()(problem.oracle, rng=0)
    assert result.parameters["layers.0.weight"] == pytest.approx(problem.A, abs=1e-12)
    assert result.parameters["layers.0.bias"] == pytest.approx(problem.b, abs=1e-12)


# Other targets


@pytest.mark.parametrize("gradients", ["all", "top", "none"])
@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize("name", [*DEGENERATE, *FOREIGN])
def test_other_targets_are_refused_within_few_queries(name, values, gradients):
    problem = (DEGENERATE | FOREIGN)[name](K=3, values=values, gradients=gradients)
    result = rl.Linear()(problem.oracle, rng=0)
    if name in LINEAR:
        assert result.outcome is RECOVERED
        assert error(result, problem) < 1e-9
    else:
        assert result.outcome in (OTHER_CLASS, rl.Outcome.SATURATED)
        assert result.clone is None
        assert result.spent.queries < 80


def test_a_wide_target_that_is_not_linear_costs_three_values():
    result = rl.Linear()(network(784, 100, 10, gradients="none").oracle, rng=0)
    assert result.outcome is OTHER_CLASS
    assert result.spent.queries == 3


def test_a_bend_far_from_the_origin_is_noticed():
    problem = network(20, 2, 1)
    far = problem.changed(A=problem.A / np.linalg.norm(problem.A, axis=1, keepdims=True), b=np.array([50.0, -8.0]))
    assert rl.Linear()(far.oracle, rng=0).outcome is OTHER_CLASS


# Saturation, boxes, noise, budgets


@pytest.mark.parametrize("gradients", ["all", "top", "none"])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_saturated_probabilities_are_read_elsewhere(dtype, K, gradients):
    problem = network(20, K, seed=1, values="probabilities", gradients=gradients, dtype=dtype)
    steep = problem.changed(A=20 * problem.A)
    shifted = problem.changed(A=3 * problem.A, b=problem.b + 20 * np.eye(K)[0])
    for target in (steep, shifted):
        result = rl.Linear()(target.oracle, rng=0)
        assert result.outcome is RECOVERED
        assert error(result, target) < tolerance(target)


def test_probabilities_that_are_saturated_everywhere_are_an_outcome():
    problem = network(20, 1, values="probabilities")
    result = rl.Linear()(problem.changed(b=np.array([1e5])).oracle, rng=0)
    assert result.outcome is rl.Outcome.SATURATED
    assert result.clone is None


@pytest.mark.parametrize("gradients", ["all", "top", "none"])
@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_the_box_is_respected(values, gradients):
    problem = network(20, 4, values=values, gradients=gradients)
    result = rl.Linear()(Boxed(problem.oracle, (0, 1)), rng=0)
    assert result.outcome is RECOVERED
    assert error(result, problem) < 1e-9


@pytest.mark.parametrize("gradients", ["all", "top", "none"])
def test_rounded_answers_give_a_clone_that_is_not_called_recovered(gradients):
    problem = network(20, 4, gradients=gradients, decimals=6)
    result = rl.Linear()(problem.oracle, rng=0)
    assert result.outcome is rl.Outcome.NOT_VERIFIED
    assert error(result, problem) < 1e-4


def test_noise_is_not_taken_for_another_class():
    result = rl.Linear()(Noisy(network(20, 4).oracle, 0.01), rng=0)
    assert result.outcome is rl.Outcome.NOT_VERIFIED


@pytest.mark.parametrize("budget", [1, 2, 40])
def test_a_budget_too_small_is_an_outcome(budget):
    result = rl.Linear()(rl.Metered(network(20, 4).oracle, budget=budget), rng=0)
    assert result.outcome is rl.Outcome.BUDGET_EXHAUSTED
    assert result.spent.queries <= budget


@pytest.mark.parametrize("values", ["label", "none"])
def test_an_oracle_without_values_is_misuse(values):
    oracle = rl.FunctionOracle(lambda x, gradients: (x, None), rl.Offer((5,), 5, values=values))
    with pytest.raises(rl.MisuseError, match="without values"):
        rl.Linear()(oracle, rng=0)


def test_a_trained_softmax_regression():
    x, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=300).fit(x / 16, y)

    def query(points, gradients):
        p = model.predict_proba(points)
        jacobians = p[:, :, None] * (model.coef_ - (p @ model.coef_)[:, None, :])
        return p, jacobians[np.arange(len(p)), p.argmax(axis=1)][:, None] if gradients else None

    offer = rl.Offer((8, 8), 10, values="probabilities", gradients="top", box=(0, 1))
    result = rl.Linear()(rl.FunctionOracle(query, offer), rng=0)
    assert result.outcome is RECOVERED
    assert np.abs(result.predict(x / 16) - model.predict_proba(x / 16)).max() < 1e-9
