"""The preflight tells what explanations are, and what it cannot use it does not use."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import relumine as rl
from explainers import METHODS, Shown, explained, random_network, right
from problems import Problem, two_layer

DTYPES = {"float64": torch.float64, "float32": torch.float32}
LOCAL = [name for name in METHODS if name not in ("KernelShap", "Lime")]


def network(dtype: str = "float64", *, bias: bool = True, seed: int = 1) -> torch.nn.Sequential:
    return random_network(16, 12, 4, bias=bias, seed=seed, dtype=DTYPES[dtype])


def probed(oracle: rl.Oracle, seed: int = 0) -> rl.Findings:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return rl.Probe()(oracle, rng=seed)


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_captum_s_is_told(method, bias):
    shown = Shown(method)
    findings = probed(explained(network(bias=bias), shown))
    assert right(findings, shown, bias=bias, dtype="float64"), findings
    assert (findings.recipe is None) == bool(findings.lost)
    assert findings.spent.queries <= (60 if findings.recipe in (None, "gradient") else 120)


@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize("method", ["Saliency", "Saliency(abs=False)", "InputXGradient", "IntegratedGradients"])
def test_float32_and_probabilities(method, values):
    shown = Shown(method, values)
    assert right(probed(explained(network("float32"), shown)), shown, bias=True, dtype="float32")


@pytest.mark.parametrize("classes", ["top", 0, 2])
@pytest.mark.parametrize("method", ["Saliency(abs=False)", "Saliency", "InputXGradient", "max-normalised gradient"])
def test_the_explained_class_is_found(method, classes):
    shown = Shown(method, classes=classes)
    oracle = explained(network(seed=2), shown)
    assert oracle.offer.gradients == "top"
    findings = probed(oracle)
    assert right(findings, shown, bias=True, dtype="float64"), findings
    assert findings.offer.gradients == classes


@pytest.mark.parametrize("decimals", [3, 4, 6])
def test_rounding_is_noticed(decimals):
    shown = Shown("Saliency(abs=False)", decimals=decimals)
    findings = probed(explained(network(), shown))
    assert findings.decimals == decimals
    assert findings.recipe in ("gradient", None)
    assert decimals < 6 or findings.recipe == "gradient"


def test_offers_are_corrected():
    truth = explained(network("float32"), Shown("Saliency(abs=False)", "probabilities"))
    wrong = replace(truth.offer, values="real", dtype="float64")
    findings = probed(explained(network("float32"), Shown("Saliency(abs=False)", "probabilities"), wrong))
    assert findings.offer == truth.offer


def test_labels_and_values_alone_are_said_to_show_nothing():
    def label(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        values = np.eye(3)[(x @ np.arange(18).reshape(6, 3)).argmax(axis=1)]
        return values, np.zeros((len(x), 3, 6)) if gradients else None

    findings = probed(rl.FunctionOracle(label, rl.Offer((6,), 3)))
    assert (findings.offer.values, findings.recipe) == ("label", None)
    findings = probed(two_layer(6, 4, 2, gradients="none").oracle)
    assert (findings.kind, findings.recipe) == ("none", None)
    assert "values" in findings.lost


def test_random_values_are_told():
    rng = np.random.default_rng(0)
    problem = two_layer(6, 4, 2)

    def noisy(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        answer = problem.oracle(x, gradients=gradients)
        return answer.values + 0.01 * rng.standard_normal(answer.values.shape), answer.gradients

    findings = probed(rl.FunctionOracle(noisy, problem.offer))
    assert (findings.kind, findings.recipe, findings.offer.random) == ("random answers", None, True)


def test_explanations_that_mix_a_batch_are_asked_one_by_one():
    problem = two_layer(6, 4, 2)

    def mixing(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        answer = problem.oracle(x, gradients=gradients)
        mixed = answer.jacobians + 0.1 * (len(x) - 1) if gradients else None
        return answer.values, mixed

    oracle = rl.FunctionOracle(mixing, problem.offer)
    findings = probed(oracle)
    assert (findings.recipe, findings.one_by_one) == ("gradient", True)
    x = np.random.default_rng(0).standard_normal((5, 6))
    np.testing.assert_allclose(findings.adapt(oracle)(x, gradients=True).jacobians, problem.jacobian(x))


def test_every_query_is_counted():
    asked = []
    truth = explained(network(), Shown("Saliency"))

    def counting(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        asked.append((len(x), gradients))
        answer = truth(x, gradients=gradients)
        return answer.values, answer.gradients

    spent = probed(rl.FunctionOracle(counting, truth.offer)).spent
    assert spent.gradient_queries == sum(n for n, gradients in asked if gradients)
    assert spent.value_queries == sum(n for n, gradients in asked if not gradients)
    assert list(spent.phases) == ["probe"]


def test_the_same_seed_asks_the_same():
    oracle = explained(network(), Shown("InputXGradient"))
    assert probed(oracle) == probed(oracle)


def test_explanations_without_a_recipe_leave_values():
    oracle = explained(network(), Shown("GuidedBackprop"))
    assert probed(oracle).adapt(oracle).offer.gradients == "none"


def test_inputs_in_a_box():
    problem = two_layer(8, 5, 3)

    def times(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        assert x.min() >= 0
        assert x.max() <= 1
        answer = problem.oracle(x, gradients=gradients)
        return answer.values, np.abs(answer.jacobians) if gradients else None

    findings = probed(rl.FunctionOracle(times, replace(problem.offer, box=(0.0, 1.0))))
    assert findings.recipe == "absolute"


# The adapters, and the exact method behind each


def shown_as(problem: Problem, change: object) -> rl.FunctionOracle:
    def query(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        answer = problem.oracle(x, gradients=gradients)
        return answer.values, change(x[:, None], answer.jacobians) if gradients else None

    return rl.FunctionOracle(query, problem.offer)


def largest(J: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(J).max(axis=2, keepdims=True), 1e-30)


CHANGES = {
    "input-times-gradient": lambda x, J: x * J,
    "absolute": lambda x, J: np.abs(J),
    "squared": lambda x, J: J**2,
    "normalised": lambda x, J: J / largest(J),
    "normalised-input-times-gradient": lambda x, J: x * J / largest(x * J),
    "normalised-absolute": lambda x, J: np.abs(J) / largest(J),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("recipe", CHANGES)
def test_the_exact_method_recovers_the_network_behind_each_adapter(recipe, dtype):
    problem = two_layer(12, 7, 3, seed=3, dtype=dtype)
    oracle = shown_as(problem, CHANGES[recipe])
    findings = probed(oracle)
    assert findings.recipe == recipe
    result = rl.TwoLayer(limit=3000)(findings.adapt(oracle), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    x = np.random.default_rng(5).standard_normal((200, 12))
    gap = np.abs(result.predict(x) - problem.predict(x)).max()
    assert gap <= (1e-9 if dtype == "float64" else 1e-3) * np.abs(problem.predict(x)).max()


@pytest.mark.parametrize("method", ["SmoothGrad", "SmoothGrad of |gradient|", "SmoothGrad squared"])
def test_the_exact_method_recovers_a_network_behind_smoothed_gradients(method):
    module = network()
    oracle = explained(module, Shown(method))
    findings = probed(oracle)
    asked = findings.adapt(oracle)
    result = rl.TwoLayer(limit=3000)(asked, rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    x = np.random.default_rng(5).standard_normal((200, 16))
    expected = module(torch.tensor(x)).detach().numpy()
    clone = findings.restored(result.clone)
    assert np.abs(clone.predict(x) - expected).max() <= 1e-8 * np.abs(expected).max()


@pytest.mark.parametrize("recipe", CHANGES)
def test_adapters_refuse_what_does_not_fit(recipe):
    problem = two_layer(12, 7, 3, seed=3)
    foreign = shown_as(problem, lambda x, J: CHANGES[recipe](x, np.roll(J, 1, axis=2)))
    findings = probed(foreign)
    assert findings.recipe is None
    assert findings.lost
