"""The link from probabilities to logits is exact, and says where it cannot be."""

import numpy as np
import pytest

import relumine as rl
from problems import Counting, Problem, linear, two_layer
from relumine.oracle.logits import saturated


def behind_softmax(K: int, scale: float = 1, **fields: object) -> Problem:
    """A network behind a softmax (K = 1: a sigmoid), its logits about ``scale`` large."""
    problem = two_layer(8, 6, K, values="probabilities", **fields)
    return problem.changed(W=scale * problem.W, c=scale * problem.c)


def some_inputs(n: int = 200) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((n, 8))


def true_gradients(problem: Problem, x: np.ndarray) -> np.ndarray:
    return problem.changed(values="logits").jacobian(x)


def centred(numbers: np.ndarray) -> np.ndarray:
    return numbers - numbers.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("scale", [0.01, 1, 30])
def test_logits_are_the_targets_up_to_a_number_per_input(K: int, scale: float) -> None:
    problem = behind_softmax(K, scale)
    x = some_inputs()
    answer = rl.LogitLink(problem.oracle)(x, gradients=True)
    logits, gradients = centred(problem.logits(x)), centred(true_gradients(problem, x))
    assert not saturated(answer).any()
    assert np.abs(answer.values - logits).max() < 1e-13 * max(1, np.abs(logits).max())
    assert np.abs(answer.jacobians - gradients).max() < 1e-13 * np.abs(gradients).max()


@pytest.mark.parametrize("scale", [0.01, 1, 2])
def test_one_probability_gives_the_targets_own_logit(scale: float) -> None:
    problem = behind_softmax(1, scale)
    x = some_inputs()
    answer = rl.LogitLink(problem.oracle)(x, gradients=True)
    assert np.abs(answer.values - problem.logits(x)).max() < 1e-9
    gradients = true_gradients(problem, x)
    assert np.abs(answer.jacobians - gradients).max() < 1e-9 * np.abs(gradients).max()


def test_a_linear_softmax_shows_its_weights() -> None:
    problem = linear(4, values="probabilities")
    answer = rl.LogitLink(problem.oracle)(np.zeros((1, 12)), gradients=True)
    assert np.allclose(answer.jacobians[0] - answer.jacobians[0, :1], problem.A - problem.A[0], rtol=0, atol=1e-14)
    assert np.allclose(answer.values[0] - answer.values[0, 0], problem.b - problem.b[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("gradients", ["top", 0, 1])
def test_one_gradient_of_two_classes_is_enough(gradients: str | int) -> None:
    problem = behind_softmax(2, gradients=gradients)
    link = rl.LogitLink(problem.oracle)
    assert link.offer.gradients == "all"
    answer = link(some_inputs(), gradients=True)
    assert np.allclose(answer.jacobians, centred(true_gradients(problem, some_inputs())), rtol=0, atol=1e-13)


def test_the_offer_is_that_of_a_logit_oracle() -> None:
    inside = behind_softmax(3, dtype="float32").oracle
    link = rl.LogitLink(inside)
    assert (link.offer.values, link.offer.dtype, link.offer.gradients) == ("logits", "float32", "all")
    assert rl.LogitLink(behind_softmax(3, gradients="none").oracle).offer.gradients == "none"
    assert inside.offer.values == "probabilities"


@pytest.mark.parametrize("gradients", ["top", 1])
def test_one_gradient_of_three_classes_is_refused(gradients: str | int) -> None:
    with pytest.raises(rl.MisuseError, match="offer gradients='all'"):
        rl.LogitLink(behind_softmax(3, gradients=gradients).oracle)


@pytest.mark.parametrize("values", ["logits", "real"])
def test_what_is_not_a_probability_is_refused(values: str) -> None:
    with pytest.raises(rl.MisuseError, match="use it as it is"):
        rl.LogitLink(two_layer(8, 6, 3, values=values).oracle)


@pytest.mark.parametrize(("K", "dtype"), [(3, "float64"), (3, "float32"), (1, "float64"), (1, "float32")])
def test_saturated_rows_are_nan_and_the_limit_says_which(K: int, dtype: str) -> None:
    problem = behind_softmax(K, {"float64": 300, "float32": 30}[dtype] if K > 1 else 10, dtype=dtype)
    x = some_inputs(2000)
    link = rl.LogitLink(problem.oracle)
    answer = link(x, gradients=True)
    lost = saturated(answer)
    logits = problem.logits(x)
    # How far the smallest probability (of K = 1: that of the complement) is from 1, in logits.
    depth = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + np.ptp(logits, axis=1)
    depth = depth if K > 1 else logits[:, 0]
    assert 20 < lost.sum() < 1980
    assert (np.isnan(answer.values).all(axis=1) == lost).all()
    assert (np.isnan(answer.jacobians).all(axis=(1, 2)) == lost).all()
    assert lost[depth > link.limit + 0.01].all()
    assert not lost[np.abs(depth) < link.limit - 0.01].any()


def test_the_limits_are_what_the_precision_allows() -> None:
    def limit(K: int, dtype: str) -> float:
        return rl.LogitLink(behind_softmax(K, dtype=dtype).oracle).limit

    assert 650 < limit(3, "float64") < 700
    assert 70 < limit(3, "float32") < 88
    assert 15 < limit(1, "float64") < 20
    assert 6 < limit(1, "float32") < 9


@pytest.mark.parametrize(("K", "scale", "error"), [(3, 250, 1e-13), (1, 5, 1e-9)])
def test_what_is_answered_next_to_the_limit_is_as_good_as_elsewhere(K: int, scale: float, error: float) -> None:
    problem = behind_softmax(K, scale)
    x = some_inputs(2000)
    answer = rl.LogitLink(problem.oracle)(x, gradients=True)
    kept = ~saturated(answer)
    logits, gradients = problem.logits(x), true_gradients(problem, x)
    if K > 1:
        logits, gradients = centred(logits), centred(gradients)
        assert np.ptp(answer.values[kept], axis=1).max() > 500
    assert np.abs(answer.values - logits)[kept].max() < error * np.abs(logits[kept]).max()
    assert np.abs(answer.jacobians - gradients)[kept].max() < error * np.abs(gradients).max()


def test_zero_and_one_are_saturated() -> None:
    offer = rl.Offer((1,), 2, values="probabilities", gradients="none")
    answers = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0], [5e-324, 1.0]])
    link = rl.LogitLink(rl.FunctionOracle(lambda x, _: (answers, None), offer))
    assert saturated(link(np.zeros((4, 1)), gradients=False)).tolist() == [True, False, True, True]


def test_a_meter_inside_counts_saturated_rows_too() -> None:
    counting = Counting(behind_softmax(3, 3000).oracle)
    metered = rl.Metered(counting)
    answer = rl.LogitLink(metered)(some_inputs(), gradients=True)
    assert saturated(answer).any()
    assert metered.spent.gradient_queries == counting.gradient_queries == 200
