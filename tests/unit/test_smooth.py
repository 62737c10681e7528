"""One hidden layer of any smooth activation is recovered, and told by its name."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import relumine as rl
from problems import Boxed, Capped, Problem, error, network, two_layer

NAMES = ["gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "softplus", "elu"]
# sigmoid(z) = (1 + tanh(z/2))/2: answers cannot tell the two apart.
CALLED = {name: name for name in NAMES} | {"sigmoid": "tanh"}


def run(problem: Problem, seed: int = 0) -> rl.Reconstruction:
    return rl.TwoLayer()(Capped(problem.oracle, 5_000), rng=seed)


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize(("dtype", "exact"), [("float64", 1e-9), ("float32", 1e-4)])
def test_every_activation_is_recovered_and_named(activation, values, dtype, exact):
    problem = two_layer(20, 12, 5, activation=activation, values=values, dtype=dtype)
    result = run(problem)
    assert result.outcome is rl.Outcome.RECOVERED
    assert result.activation == CALLED[activation]
    assert result.hidden == (12,)
    assert error(result, problem) <= exact


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
@pytest.mark.parametrize(("d", "h", "K"), [(50, 32, 10), (784, 64, 10), (50, 32, 3)])
def test_a_few_queries_are_enough(activation, d, h, K):
    problem = two_layer(d, h, K, seed=3, activation=activation)
    result = run(problem)
    assert result.outcome is rl.Outcome.RECOVERED
    assert result.spent.gradient_queries <= 2.5 * h / K + 8
    assert error(result, problem) <= 1e-9


def test_more_units_than_inputs_show_in_the_other_unfolding():
    problem = two_layer(10, 24, 6, seed=1, activation="silu")
    result = run(problem)
    assert result.outcome is rl.Outcome.RECOVERED
    assert error(result, problem) <= 1e-9


@pytest.mark.parametrize("activation", ["tanh", "gelu", "silu", "softplus"])
@pytest.mark.parametrize(("d", "h", "K"), [(12, 9, 1), (6, 25, 2)])
def test_one_output_or_too_many_units_are_told_apart_on_far_lines(activation, d, h, K):
    for seed in range(2):
        problem = two_layer(d, h, K, seed=seed, activation=activation)
        result = run(problem, seed)
        assert result.outcome is rl.Outcome.RECOVERED
        assert (result.hidden, result.activation) == ((h,), activation)
        assert error(result, problem) <= 1e-9


MODELS = {
    "iris, more units than inputs": (MLPClassifier((16,), activation="tanh", max_iter=300, random_state=0), load_iris),
    "breast cancer behind a scaler, all units saturated near the origin": (
        make_pipeline(StandardScaler(), MLPClassifier((16,), activation="tanh", max_iter=300, random_state=0)),
        load_breast_cancer,
    ),
    "digits behind a scaler": (
        make_pipeline(StandardScaler(), MLPClassifier((16,), activation="logistic", max_iter=50, random_state=0)),
        load_digits,
    ),
    "diabetes, one output": (
        MLPRegressor(hidden_layer_sizes=(16,), activation="logistic", max_iter=300, random_state=0),
        load_diabetes,
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_networks_of_scikit_learn_are_right_on_their_own_data(name):
    model, load = MODELS[name]
    X, y = load(return_X_y=True)
    oracle = rl.SklearnOracle(model.fit(X, y))
    result = rl.TwoLayer()(Capped(oracle, 5_000), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    assert result.hidden == (16,)
    np.testing.assert_allclose(result.predict(X), oracle(X, gradients=False).values, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("activation", ["tanh", "gelu", "softplus"])
@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_values_alone_are_enough_where_there_are_several_outputs(activation, values):
    problem = two_layer(20, 12, 5, seed=4, activation=activation, values=values, gradients="none")
    result = rl.TwoLayerFromValues()(Capped(problem.oracle, 1_000), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    assert (result.hidden, result.activation) == ((12,), activation)
    assert error(result, problem) <= 1e-7


def test_a_box_is_kept_to():
    problem = two_layer(20, 12, 5, seed=1, activation="tanh")
    result = rl.TwoLayer()(Boxed(problem.oracle, (-1.0, 1.0)), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    inside = np.random.default_rng(0).uniform(-1, 1, (1000, 20))
    np.testing.assert_allclose(result.predict(inside), problem.predict(inside), atol=1e-9)


@pytest.mark.parametrize(("K", "activation"), [(1, "tanh"), (3, "softplus"), (6, "tanh")])
def test_two_hidden_layers_are_never_called_one(K, activation):
    result = run(network(12, 9, 6, K, activation=activation))
    assert result.outcome in (rl.Outcome.NOT_PIECEWISE_LINEAR, rl.Outcome.NOT_THIS_CLASS, rl.Outcome.NOT_VERIFIED)
    assert result.evidence.remark


@pytest.mark.parametrize("activation", [torch.nn.Mish(), torch.nn.Softsign()])
@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_an_unknown_activation_is_tabulated_and_the_exported_clone_decides_alike(activation, values, tmp_path):
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(20, 12), activation, torch.nn.Linear(12, 5)).double()
    module = module if values == "logits" else torch.nn.Sequential(module, torch.nn.Softmax(dim=1))
    oracle = rl.TorchOracle(module, 20, values=values)
    result = rl.TwoLayer()(Capped(oracle, 1_000), rng=0)
    assert result.outcome is rl.Outcome.NOT_VERIFIED
    assert "tabulated" in result.evidence.remark
    assert (result.hidden, result.activation) == ((12,), "tabulated")
    fresh = np.random.default_rng(1).standard_normal((2000, 20))
    expected, predicted = oracle(fresh, gradients=False).values, result.predict(fresh)
    assert np.abs(predicted - expected).max() <= 3e-3 * np.abs(expected).max()
    assert (predicted.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.995
    result.save(tmp_path / "clone.onnx")
    np.testing.assert_allclose(result.to_torch()(torch.tensor(fresh)).detach(), predicted, atol=1e-9)
