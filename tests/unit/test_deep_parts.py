"""The parts of Deep, each held against a network whose layers are known."""

import numpy as np
import pytest

import relumine as rl
from problems import Problem, network
from relumine.reconstruct.deep.all_on import AllOn
from relumine.reconstruct.deep.book import Book
from relumine.reconstruct.deep.corner import first_biases
from relumine.reconstruct.deep.duals import DualSearch, PatternLayer
from relumine.reconstruct.deep.last import assembled, last_layer
from relumine.reconstruct.deep.layers import Layers
from relumine.reconstruct.deep.precision import precision_for
from relumine.reconstruct.deep.pullback import PulledBack
from relumine.reconstruct.deep.regions import cell_around, views
from relumine.reconstruct.noise import Noise

BOUNDS = (-5.0, 5.0)
SEEDS = [0, 1, 2]
EXACT = precision_for(Noise(float(np.finfo(np.float64).eps)))


def first_layer(problem: Problem) -> Layers:
    return Layers((problem.A,), (problem.b,))


def book_of(problem: Problem, count: int, seed: int) -> Book:
    """Answers at Gaussian points."""
    points = np.random.default_rng(seed).standard_normal((count, problem.offer.dimension))
    book = Book(problem.offer.dimension, problem.offer.outputs)
    book.add(points, rl.Answer(problem.logits(points), problem.jacobian(points)))
    return book


# Dual vectors


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("outputs", [2, 3, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_jacobians_at_random_points_show_a_first_layer(outputs, seed):
    problem, rng = network(40, 20, 10, outputs, seed=seed), np.random.default_rng(seed)
    points = 4 * rng.standard_normal((240 // outputs, 40))
    layer = DualSearch(points, problem.jacobian(points), 1e-16).run(rng)
    cosines = layer.rows @ unit(problem.A).T
    assert sorted(cosines.argmax(axis=1)) == list(range(20))
    np.testing.assert_allclose(cosines.max(axis=1), 1, atol=1e-9)
    on = points @ problem.A.T + problem.b > 0
    assert np.array_equal(layer.on, on[:, cosines.argmax(axis=1)])


def test_jacobians_that_return_are_no_further_equations():
    problem, rng = network(20, 10, 5, 3, seed=0), np.random.default_rng(0)
    points = rng.standard_normal((20, 20))
    once = DualSearch(points, problem.jacobian(points), 1e-16)
    again = np.concatenate([points, points * (1 + 1e-9)])
    assert DualSearch(again, problem.jacobian(again), 1e-16).equations == once.equations


@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_layers_biases_show_at_its_corner(seed):
    problem, rng = network(40, 20, 10, 3, seed=seed), np.random.default_rng(seed)
    sizes = np.linalg.norm(problem.A, axis=1)
    truth = problem.b / sizes
    below, above = -truth - rng.uniform(0.01, 0.1, 20), -truth + rng.uniform(0.01, 0.1, 20)
    layer, asked = PatternLayer(unit(problem.A), below, above, np.zeros((0, 20), dtype=bool)), []

    def ask(points: np.ndarray) -> tuple[np.ndarray, rl.Answer]:
        asked.extend(points)
        return points, rl.Answer(problem.logits(points), problem.jacobian(points))

    np.testing.assert_allclose(first_biases(ask, layer, 1e-7), truth, atol=1e-9)
    assert len(asked) <= 30


@pytest.mark.parametrize("rows_known", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_units_of_two_known_layers_are_on_in_their_region_and_its_coordinates_lead_back(rows_known, seed):
    problem, rng = network(30, 12, 4, 3, 2, seed=seed), np.random.default_rng(seed)
    (A, B, C, _), (a, b, *_) = problem.weights, problem.biases
    nothing = np.zeros((0, 1), dtype=bool)
    first = PatternLayer(A, -a, -a, nothing)
    # Where the first layer is on, the second is B·(Ax + a) + b.
    region = AllOn([first, PatternLayer(B, -B @ a - b, -B @ a - b, nothing)], 4 * np.ones(12), None, rng)
    if rows_known:
        region.rows = np.linalg.svd(C, full_matrices=False)[2]
    points = region.points(20) @ region.inward.T @ region.lift.T
    inner = points @ A.T + a
    assert inner.min() > -1e-9
    assert (np.maximum(inner, 0) @ B.T + b).min() > -1e-9


# Regions


@pytest.mark.parametrize("seed", SEEDS)
def test_views_show_every_feature_and_their_points_have_the_promised_activation_pattern(seed):
    layers, rng = first_layer(network(12, 8, 5, 3, seed=seed)), np.random.default_rng(seed)
    regions = views(layers, BOUNDS, rng)
    assert np.any([region.on for region in regions], axis=0).all()
    for region in regions:
        point = region.inside(rng)
        assert np.array_equal(layers.on(point[None])[0], region.on)
        np.testing.assert_allclose(region.slope @ point + region.start, layers.features(point[None])[0], atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_region_behind_a_boundary_differs_in_that_feature_alone(seed):
    layers, rng = first_layer(network(12, 8, 5, 3, seed=seed)), np.random.default_rng(seed)
    point = rng.standard_normal(12)
    here, there = cell_around(layers, point, BOUNDS), cell_around(layers, point, BOUNDS, flip=3)
    assert np.array_equal(here.on, layers.on(point[None])[0])
    assert np.flatnonzero(here.on != there.on).tolist() == [3]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_point_on_a_hyperplane_of_the_features_lies_on_it_and_in_the_region(seed):
    problem, rng = network(12, 8, 5, 3, seed=seed), np.random.default_rng(seed)
    layers = first_layer(problem)
    region = cell_around(layers, rng.standard_normal(12), BOUNDS)
    inner = region.inside(rng)
    row = np.where(region.on, problem.weights[1][0], 0.0)
    bias = -float(row @ layers.features(inner[None])[0])  # so that the hyperplane meets the region
    point = region.inside(rng, on_plane=(row, bias))
    assert abs(float(row @ layers.features(point[None])[0]) + bias) < 1e-8
    assert np.array_equal(layers.on(point[None])[0], region.on)


# Pull-back


@pytest.mark.parametrize("seed", SEEDS)
def test_pulled_back_gradients_are_made_of_the_next_layers_rows(seed):
    problem = network(20, 8, 4, 3, seed=seed)
    layers, book = first_layer(problem), book_of(problem, 60, seed)
    pulled = PulledBack(layers, book, EXACT)
    assert len(pulled.unexplained) == 0
    assert len(pulled.missing(problem.weights[1]).wrong) == 0
    without = pulled.missing(problem.weights[1][:3])
    on = layers.features(book.points) @ problem.weights[1][3] + problem.biases[1][3] > 0
    assert len(without.wrong) > 0
    assert on[without.wrong].all()
    assert not on[without.right].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_first_layer_unit_leaves_gradients_unexplained(seed):
    problem = network(20, 8, 4, 3, seed=seed)
    book = book_of(problem, 60, seed)
    pulled = PulledBack(Layers((problem.A[1:],), (problem.b[1:],)), book, EXACT)
    on = problem.A[0] @ book.points.T + problem.b[0] > 0
    assert set(pulled.unexplained) <= set(np.flatnonzero(on))
    assert len(pulled.unexplained) > 0.5 * on.sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_unknown_sign_are_turned_to_the_side_on_which_their_unit_is_on(seed):
    problem = network(20, 8, 4, 3, seed=seed)
    pulled = PulledBack(first_layer(problem), book_of(problem, 120, seed), EXACT)
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    rows, biases = pulled.turned(problem.weights[1] * signs[:, None], problem.biases[1] * signs)
    np.testing.assert_array_equal(rows, problem.weights[1])
    np.testing.assert_array_equal(biases, problem.biases[1])


# The last layer


@pytest.mark.parametrize("seed", SEEDS)
def test_least_squares_finds_the_outputs_of_the_last_layer_exactly(seed):
    problem = network(20, 8, 4, 3, seed=seed)
    layers, book, rng = first_layer(problem), book_of(problem, 60, seed), np.random.default_rng(seed)
    fit = last_layer(layers, problem.weights[1], problem.biases[1], book, rng, EXACT)
    assert len(fit.wrong) == 0
    np.testing.assert_allclose(fit.last.outputs.T, problem.W, atol=1e-8)
    found = assembled(layers, fit.last, book, problem.offer, EXACT.fit)
    fresh = rng.standard_normal((100, 20))
    np.testing.assert_allclose(found.predict(fresh), problem.predict(fresh), atol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_unit_of_the_last_layer_is_not_explained_away(seed):
    problem = network(20, 8, 4, 3, seed=seed)
    book, rng = book_of(problem, 60, seed), np.random.default_rng(seed)
    rest = problem.weights[1][1:], problem.biases[1][1:]
    fit = last_layer(first_layer(problem), *rest, book, rng, EXACT)
    assert fit is None or len(fit.wrong) > 0
