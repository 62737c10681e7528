"""Domain: a clone that is called recovered is right where the target's inputs are."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import relumine as rl
from problems import Problem, linear, network, two_layer
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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_data_at_another_scale_are_where_the_clone_is_right(seed, values):
    centre, scale, data = far_data(6, np.random.default_rng(seed))
    problem = moved(two_layer(6, 5, 3, seed=seed, values=values), centre, scale)
    given, other = (rl.Auto(inputs=inputs)(problem.oracle, rng=seed) for inputs in (data, None))
    assert given.outcome is RECOVERED
    assert given.hidden == (5,)
    assert error(given, problem, data) < 1e-8
    # Without the data no scale that is compared shows it, and that is said.
    assert other.outcome in (rl.Outcome.INCOMPLETE, rl.Outcome.SATURATED)


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
@pytest.mark.parametrize("method", [rl.Linear, rl.Auto, rl.Deep])
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
    assert method(inputs=data)(oracle, rng=seed).outcome is not RECOVERED


@pytest.mark.parametrize(
    ("far", "outcome"),
    [(1e2, RECOVERED), (1e4, rl.Outcome.INCOMPLETE), (1e7, rl.Outcome.INCOMPLETE)],
)
def test_a_unit_far_from_the_origin_is_not_overlooked(far, outcome):
    problem, rng = two_layer(6, 5, 2, seed=4), np.random.default_rng(0)
    centre = far * np.ones(6)
    problem = problem.changed(b=np.append(-problem.A[0] @ centre, problem.b[1:]))
    data = centre + rng.standard_normal((100, 6))
    result = rl.Auto(inputs=data)(problem.oracle, rng=0)
    assert result.outcome is outcome
    assert outcome is not RECOVERED or error(result, problem, data) < 1e-6
    if far < 1e5:  # without the data it shows at some scale
        assert rl.Auto()(problem.oracle, rng=0).outcome is RECOVERED


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2])
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
    assert result.evidence.where == "at 1e-3 to 1e6 times N(0, I)"


def test_inputs_are_flattened_and_counted_once():
    data = np.repeat(np.random.default_rng(0).standard_normal((20, 2, 4)), 2, axis=0)
    result = rl.Auto(inputs=data)(two_layer(8, 4, 2).oracle, rng=0)
    assert result.outcome is RECOVERED
    assert "at 20 given inputs" in result.evidence.where


@pytest.mark.parametrize("inputs", [np.zeros(8), np.zeros((0, 8)), np.zeros((3, 7)), np.full((3, 8), np.nan)])
def test_inputs_that_do_not_fit_are_misuse(inputs):
    with pytest.raises(rl.MisuseError, match="inputs: expected"):
        rl.Auto(inputs=inputs)(two_layer(8, 4, 2).oracle, rng=0)
