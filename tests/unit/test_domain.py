"""Domain: a clone that is called recovered is right where the target's inputs are."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import relumine as rl
from problems import Boxed, Problem, linear, network, two_layer
from relumine.reconstruct.verification.domain import Domain

RECOVERED = rl.Outcome.RECOVERED
METHODS = [rl.Linear, rl.Deep, rl.Auto, rl.TwoLayerFromValues]


def moved(problem: Problem, centre: np.ndarray, scale: np.ndarray) -> Problem:
    """The same target behind a scaler: x ↦ f((x − centre) / scale)."""
    A = problem.A / scale
    return problem.changed(A=A, b=problem.b - A @ centre)


def far_data(d: int, rng: np.random.Generator, n: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    centre, scale = 10 ** rng.uniform(3, 6) * rng.standard_normal(d), 10 ** rng.uniform(2, 5) * rng.uniform(0.5, 2, d)
    return centre, scale, centre + scale * rng.standard_normal((n, d))


def error(result: rl.Reconstruction, problem: Problem, x: np.ndarray) -> float:
    truth = problem.predict(x)
    return float(np.abs(result.predict(x) - truth).max() / np.ptp(truth, axis=0).max())


@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_data_at_another_scale_are_where_the_clone_is_right(values):
    without = []
    for seed in range(5):
        centre, scale, data = far_data(6, np.random.default_rng(seed))
        problem = moved(two_layer(6, 5, 3, seed=seed, values=values), centre, scale)
        given, other = (rl.Auto(inputs=inputs)(problem.oracle, rng=seed) for inputs in (data, None))
        assert given.outcome is RECOVERED
        assert given.hidden == (5,)
        assert error(given, problem, data) < 1e-8
        if other.outcome is RECOVERED:
            without.append(error(other, problem, data))
    # Without the data units show far from the origin, if not all that is asked is saturated.
    assert len(without) >= 4
    assert max(without) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_every_method_recovers_where_the_inputs_are_and_says_where(method):
    target = linear(3) if method is rl.Linear else two_layer(6, 4, 3, seed=2)
    centre, scale, data = far_data(target.offer.dimension, np.random.default_rng(3))
    problem = moved(target, centre, scale)
    if method is rl.TwoLayerFromValues:
        problem = problem.changed(gradients="none")
    result = method(inputs=data)(problem.oracle, rng=0)
    assert result.outcome is RECOVERED
    assert error(result, problem, data) < 1e-6
    assert f"at {len(data)} given inputs" in result.evidence.where
    assert result.evidence.verification_points >= len(data)


def test_a_float32_target_is_asked_at_numbers_it_can_represent():
    rng = np.random.default_rng(0)
    data = (300 + 10 * rng.standard_normal((100, 6))).astype(np.float32)
    problem = moved(two_layer(6, 5, 3, seed=1), np.full(6, 300.0), np.full(6, 10.0)).changed(dtype="float32")
    problem = problem.changed(A=problem.A, b=problem.b)
    result = rl.Auto(inputs=data)(problem.oracle, rng=0)
    assert result.outcome is RECOVERED
    assert error(result, problem, data.astype(np.float64)) < 1e-3
    domain, z = Domain.of(problem.offer, data), rng.standard_normal((50, 6))
    asked = domain.outward(domain.representable(z))
    np.testing.assert_array_equal(asked, asked.astype(np.float32))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", [rl.Linear, rl.Auto, rl.Deep, rl.TwoLayer])
def test_a_bend_only_where_the_data_are_is_noticed(method, seed):
    """A bump in the orthant of the data: a point in 2^12 of N(0, I) is near it."""
    rng = np.random.default_rng(seed)
    W, d = rng.standard_normal((2, 12)), 12

    def query(x, gradients):
        outside = 50 * np.maximum(-x, 0).sum(axis=1)
        bump = np.maximum(1 - outside, 0)
        slopes = np.where((bump > 0)[:, None], 50.0 * (x < 0), 0.0)
        return x @ W.T + bump[:, None], W[None] + np.repeat(slopes[:, None], 2, axis=1)

    oracle = rl.FunctionOracle(query, rl.Offer((d,), 2, values="real"))
    data = np.abs(rng.standard_normal((100, d)))
    inputs = {} if method is rl.TwoLayer else {"inputs": data}  # all coordinates positive is what it tries by itself
    assert method(**inputs)(oracle, rng=seed).outcome is not RECOVERED


@pytest.mark.parametrize("far", [1e2, 1e4, 1e7])
def test_a_unit_far_from_the_origin_is_not_overlooked(far):
    problem, rng = two_layer(6, 5, 2, seed=4), np.random.default_rng(0)
    centre = far * np.ones(6)
    problem = problem.changed(b=np.append(-problem.A[0] @ centre, problem.b[1:]))
    data = centre + rng.standard_normal((100, 6))
    result = rl.Auto(inputs=data)(problem.oracle, rng=0)
    assert result.outcome is RECOVERED or far > 1e2  # further out rounding may hide what is right
    assert result.outcome is not RECOVERED or error(result, problem, data) < 1e-6
    if far < 1e5:  # without the data it shows at some scale
        assert rl.Auto()(problem.oracle, rng=0).outcome is RECOVERED


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("far", [3e6, 1e8, 1e10])
def test_without_inputs_a_unit_that_switches_far_out_is_missed_by_no_recovered_clone(seed, far):
    problem = two_layer(6, 5, 2, seed=seed)
    problem = problem.changed(b=np.append(-far * np.linalg.norm(problem.A[0]), problem.b[1:]))
    beyond = 2 * far * problem.A[0] / np.linalg.norm(problem.A[0]) + np.random.default_rng(0).standard_normal((50, 6))
    result = rl.Auto()(problem.oracle, rng=seed)
    assert result.outcome is not RECOVERED or np.allclose(result.predict(beyond), problem.predict(beyond), rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("far", [1e2, 1e4, 1e6])
def test_one_hidden_layer_is_right_where_a_unit_switches_far_out(far, K, seed):
    problem = two_layer(8, 6, K, seed=seed)
    problem = problem.changed(b=np.append(-far * np.linalg.norm(problem.A[0]), problem.b[1:]))
    beyond = 2 * far * problem.A[0] / np.linalg.norm(problem.A[0]) + np.random.default_rng(0).standard_normal((50, 8))
    result = rl.TwoLayer()(problem.oracle, rng=seed)
    assert result.outcome is RECOVERED
    assert result.evidence.where == "at 1e-3 to 1e12 times N(0, I)"
    for inputs in (beyond, beyond - beyond.mean(axis=0)):
        assert np.abs(result.predict(inputs) - problem.predict(inputs)).max() <= 1e-9 * far


@pytest.mark.parametrize("seed", range(4))
def test_one_output_with_biases_far_smaller_than_inputs_is_right_where_they_matter(seed):
    problem = two_layer(12, 4, seed=seed)
    problem = problem.changed(b=1e-8 * problem.b)
    result = rl.TwoLayer()(problem.oracle, rng=seed)
    assert result.outcome is RECOVERED
    assert error(result, problem, 1e-8 * np.random.default_rng(seed).standard_normal((100, 12))) < 1e-7


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", [rl.Auto, rl.TwoLayerFromValues])
def test_columns_that_matter_only_at_their_own_scale_are_right_in_a_recovered_clone(method, seed):
    rng = np.random.default_rng([seed, 1])
    scale = 10.0 ** rng.permutation(np.linspace(-6, 6, 8))
    problem = moved(two_layer(8, 10, 3, seed=seed), np.zeros(8), scale)
    result = method()(problem.oracle, rng=seed)
    assert result.outcome is not RECOVERED or error(result, problem, scale * rng.standard_normal((100, 8))) < 1e-7


@pytest.mark.parametrize("scale", [1e-10, 1e-6, 1e-4, 1e-2])
def test_the_papers_method_sees_small_biases_where_the_data_are(scale):
    problem = two_layer(10, 4, paper=True, seed=1)
    problem = problem.changed(b=scale * np.ones(4))
    data = scale * np.random.default_rng(0).standard_normal((50, 10))
    for method in (rl.PaperTwoLayer(4), rl.PaperTwoLayer(4, inputs=data)):
        assert method(problem.oracle, rng=0).outcome is not RECOVERED
    unbiased = problem.changed(b=np.zeros(4))
    result = rl.PaperTwoLayer(4, inputs=data)(unbiased.oracle, rng=0)
    assert result.outcome is RECOVERED
    assert error(result, unbiased, data) < 1e-9


@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
@pytest.mark.parametrize("seed", range(2))
def test_scalers_in_front_of_trained_classifiers(load, seed):
    x, y = load(return_X_y=True)
    model = make_pipeline(StandardScaler(), MLPClassifier((16,), max_iter=60, random_state=seed)).fit(x, y)
    result = rl.Auto(inputs=x)(rl.SklearnOracle(model, values="probabilities"), rng=seed)
    assert result.outcome is RECOVERED
    np.testing.assert_allclose(result.predict(x), model.predict_proba(x), atol=1e-9)


def test_without_inputs_it_says_at_which_scales_it_compared():
    result = rl.Auto()(network(10, 6, 2).oracle, rng=0)
    assert result.outcome is RECOVERED
    assert result.evidence.where == "at 1e-3 to 1e12 times N(0, I)"
    assert rl.TwoLayer()(network(10, 6, 2).oracle, rng=0).evidence.where == result.evidence.where


@pytest.mark.parametrize("seed", range(4))
def test_a_unit_in_one_corner_of_a_box_is_found(seed):
    rng = np.random.default_rng(seed)
    problem, corner = two_layer(8, 6, 2, seed=seed), rng.integers(0, 2, 8)
    row = 2.0 * corner - 1
    problem = problem.changed(A=np.vstack([row, problem.A[1:]]), b=np.append(0.5 - row @ corner, problem.b[1:]))
    result = rl.Auto()(Boxed(problem.oracle, (0.0, 1.0)), rng=seed)
    assert result.outcome is RECOVERED
    assert error(result, problem, np.abs(corner - 0.05 * rng.uniform(size=(50, 8)))) < 1e-8


def test_inputs_are_flattened_and_counted_once():
    data = np.repeat(np.random.default_rng(0).standard_normal((20, 2, 4)), 2, axis=0)
    result = rl.Auto(inputs=data)(two_layer(8, 4, 2).oracle, rng=0)
    assert result.outcome is RECOVERED
    assert "at 20 given inputs" in result.evidence.where


@pytest.mark.parametrize("inputs", [np.zeros(8), np.zeros((0, 8)), np.zeros((3, 7)), np.full((3, 8), np.nan)])
def test_inputs_that_do_not_fit_are_misuse(inputs):
    with pytest.raises(rl.MisuseError, match="inputs: expected"):
        rl.Auto(inputs=inputs)(two_layer(8, 4, 2).oracle, rng=0)


def test_a_clone_with_a_linear_part_is_polished():
    """In float32 all answers polish the network; its linear part sees directions that its first layer does not."""
    rng = np.random.default_rng(0)
    A, W, S = rng.standard_normal((2, 6)) / 2, rng.standard_normal((3, 2)), rng.standard_normal((3, 6))
    weights = [matrix.astype(np.float32) for matrix in (A, W, S)]

    class Skipping(torch.nn.Module):
        def forward(self, x):
            a, w, s = (torch.from_numpy(matrix) for matrix in weights)
            return torch.relu(x @ a.T) @ w.T + x @ s.T

    oracle = rl.TorchOracle(Skipping(), 6, values="logits", dtype="float32")
    result = rl.Deep()(oracle, rng=0)
    x = rng.standard_normal((100, 6)).astype(np.float32).astype(np.float64)
    assert result.outcome is RECOVERED
    np.testing.assert_allclose(result.predict(x), oracle(x, gradients=False).values, atol=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_points_at_which_probabilities_are_saturated_prove_no_linear_model(seed):
    """Nearly all of them are: a clone that only knows the classes of forty points is wrong elsewhere."""
    problem = two_layer(30, 16, 2, seed=seed, values="probabilities", dtype="float32")
    sharp = problem.changed(W=300 * problem.W, c=300 * problem.c)
    x = np.random.default_rng(seed).standard_normal((2000, 30))
    assert np.mean(sharp.predict(x).max(axis=1) < 0.999) < 0.1
    result = rl.Linear()(sharp.oracle, rng=seed)
    assert result.outcome is not RECOVERED or np.abs(result.predict(x) - sharp.predict(x)).max() < 1e-2


def test_a_linear_model_whose_probabilities_are_saturated_is_recovered_all_the_same():
    problem = linear(3, values="probabilities")
    sharp = problem.changed(A=100 * problem.A)
    assert rl.Linear()(sharp.oracle, rng=0).outcome is RECOVERED
