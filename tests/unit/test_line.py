"""The parts of the two-layer search: kinks on a line, mending, noise, orientation, comparison."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relumine as rl
from problems import Problem, close_kinks, opposite_units, two_layer
from relumine.reconstruct.lines.search import Line, LineSearch
from relumine.reconstruct.lines.shallow import Shallow, rank_one
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.two_layer.mending import LineFindings, Ray
from relumine.reconstruct.verification.comparison import Comparison

EXACT = Noise(2.220446049250313e-16)


def line_through(problem: Problem, seed: int) -> Line:
    return Line(*np.random.default_rng([seed, 5]).standard_normal((2, problem.A.shape[1])))


def true_kinks(problem: Problem, line: Line) -> np.ndarray:
    return -(problem.A @ line.start + problem.b) / (problem.A @ line.direction)


def search_on(problem: Problem, line: Line, *, independent: bool, most: int = 500) -> LineSearch:
    """A search that has asked until it is content."""
    oracle, asked = problem.oracle, 0

    def sights(t: list[float]):
        points = line.points(t)
        return line.sights(t, points, oracle(points, gradients=True), EXACT)

    search = LineSearch(line, sights([0.0, 1e-5, -1e5, 1e5]), EXACT, independent=independent)
    while questions := search.questions():
        asked += len(questions)
        assert asked <= most, "the search goes on for ever"
        search.add(sights(questions))
    return search


def as_shallow(problem: Problem) -> Shallow:
    """The target itself, its linear term zero."""
    K, d = len(problem.c), problem.A.shape[1]
    lengths = np.linalg.norm(problem.A, axis=1)
    return Shallow(
        np.zeros((K, d)),
        problem.c,
        problem.W.T * lengths[:, None],
        problem.A / lengths[:, None],
        problem.b / lengths,
    )


# The line


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(2, 20), st.integers(1, 25), st.integers(2, 6), st.integers(0, 1000))
def test_with_independent_outputs_every_kink_is_found_to_machine_precision(d, h, K, seed):
    problem = two_layer(d, h, K, seed=seed)
    line = line_through(problem, seed)
    expected = np.sort(true_kinks(problem, line))
    expected = expected[np.abs(expected) < 1e5]
    found = search_on(problem, line, independent=True).kinks()
    assert len(found) == len(expected)
    assert np.allclose([kink.t for kink in found], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_a_kink_carries_its_units_row_bias_and_output(seed):
    problem = two_layer(10, 8, 3, seed=seed)
    line = line_through(problem, seed)
    order = np.argsort(true_kinks(problem, line))
    for kink, unit in zip(search_on(problem, line, independent=True).kinks(), order, strict=True):
        length = np.linalg.norm(problem.A[unit])
        rising = np.sign(problem.A[unit] @ line.direction)
        assert np.allclose(kink.row, rising * problem.A[unit] / length, atol=1e-8)
        assert np.isclose(kink.bias, rising * problem.b[unit] / length, atol=1e-6)
        assert np.allclose(kink.output, problem.W[:, unit] * length, atol=1e-8)


@pytest.mark.parametrize("seed", range(10))
def test_one_output_finds_many_kinks_and_is_right_about_those_it_has_proven(seed):
    problem = two_layer(10, 20, seed=seed)
    line = line_through(problem, seed)
    expected = np.sort(true_kinks(problem, line))
    search = search_on(problem, line, independent=False)
    assert len(search.kinks()) >= 0.4 * len(expected)
    for gap in search.gaps:
        inside = expected[(expected > gap.left.t) & (expected < gap.right.t)]
        assert len(inside) >= 1
        if gap.left_clear and gap.right_clear:
            assert len(inside) == 1
            assert abs(gap.t - inside[0]) <= 1e-6 * (1 + abs(gap.t))


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9])
def test_close_kinks_are_told_apart_when_outputs_are_independent(gap):
    for seed in range(5):
        problem = close_kinks(3, seed, gap)
        line = line_through(problem, seed)
        assert len(search_on(problem, line, independent=True).kinks()) == 9


@pytest.mark.parametrize("K", [1, 3])
def test_huge_biases_do_not_make_the_search_go_on(K):
    """Rounding errors are those of the terms that cancel: a miss may be larger than the sum explains."""
    for seed in range(10):
        problem = two_layer(8, 16, K, seed=seed)
        problem = problem.changed(b=problem.b * 10 ** np.random.default_rng(seed).uniform(0, 6, 16))
        search_on(problem, line_through(problem, seed), independent=K > 1, most=200)


def test_points_are_on_the_line_and_within_the_box():
    line = Line(np.array([0.5, 0.2]), np.array([1.0, -2.0]))
    low, high = line.within((0.0, 1.0))
    assert np.allclose(line.points([low, high]), [[0.1, 1.0], [0.6, 0.0]])
    assert line.within(None) == (-np.inf, np.inf)
    assert Line(np.array([0.5, 0.2]), np.array([1.0, 0.0])).within((0.0, 1.0)) == (-0.5, 0.5)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_rank_one_is_exact_on_rank_one_and_zero_on_zero(K, d, seed):
    rng = np.random.default_rng(seed)
    jump = np.outer(rng.standard_normal(K), rng.standard_normal(d))
    assert np.allclose(np.outer(*rank_one(jump)), jump, rtol=1e-12, atol=1e-14)
    assert not np.outer(*rank_one(np.zeros((K, d)))).any()


# Mending


def test_differences_stay_current_while_kinks_come_and_go():
    """What refresh() keeps up to date equals what is computed afresh."""
    problem = two_layer(6, 12, seed=3)
    line = line_through(problem, 3)
    oracle = problem.oracle
    search = search_on(problem, line, independent=False)
    start = line.points([0.0])
    reference = line.sights([0.0], start, oracle(start, gradients=True), EXACT)[0]
    found = LineFindings(search, reference)
    ray, rng = Ray(np.random.default_rng(0).standard_normal(6)), np.random.default_rng(1)
    points = []
    for place in (0.3, 1.0, 0.7):
        point = line.start + place * (ray.end - line.start)
        ray.insert(place, found.witnesses)
        found.add(point[None], oracle(point[None], gradients=True))
        points.append(point)
        t = [float(rng.uniform(-3, 3))]
        search.add(line.sights(t, line.points(t), oracle(line.points(t), gradients=True), EXACT))
    found.refresh()
    answers, model = oracle(np.array(points), gradients=True), found.model()
    assert ray.places == [0.3, 0.7, 1.0]
    assert ray.rows == [0, 2, 1]
    assert np.allclose(found._values, answers.values - model.values(np.array(points)), atol=1e-9)
    assert np.allclose(found._jacobians, answers.jacobians - model.jacobians(np.array(points)), atol=1e-9)


def test_the_model_equals_the_target_on_the_searched_line():
    problem = two_layer(6, 12, 3, seed=4)
    line = line_through(problem, 4)
    search = search_on(problem, line, independent=True)
    reference = next(sight for sight in search.sights if sight.t == 0.0)
    points = line.points(np.linspace(-20, 20, 301))
    assert np.allclose(LineFindings(search, reference).model().values(points), problem.predict(points), atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_wrong_gaps_lie_in_what_is_left_off_the_line_and_others_do_not(seed):
    problem = two_layer(40, 40, seed=seed)
    line = line_through(problem, seed)
    oracle, rng = problem.oracle, np.random.default_rng(seed)
    t = np.array([0.0, -1e5, 1e5, *np.tan(np.pi * (np.arange(1, 120) / 120 - 0.5))])
    search = LineSearch(
        line, line.sights([*t], line.points(t), oracle(line.points(t), gradients=True), EXACT), EXACT, independent=False
    )
    reference = next(sight for sight in search.sights if sight.t == 0.0)
    found = LineFindings(search, reference)
    points = rng.standard_normal((60, 40))
    found.add(points, oracle(points, gradients=True))
    left, _ = found.left()
    true = true_kinks(problem, line)
    taken = [gap for gap in search.gaps if gap.inside]  # for one kink; others show that they are not
    wrong = [gap for gap in taken if ((true > gap.left.t) & (true < gap.right.t)).sum() > 1]
    assert len(wrong) >= 2
    places = found.doubted(left)
    assert len(places) >= len(wrong) - 1  # of three kinks in a gap one may never have shown
    assert all(any(gap.left.t < place < gap.right.t for gap in wrong) for place in places)


# Noise


def numbers(count: int = 40, size: float = 1.0) -> np.ndarray:
    return size * np.random.default_rng(0).standard_normal(count)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_exact_answers_show_no_noise(size):
    assert noise_in(numbers(size=size), "float64") == EXACT


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_float32_shows_whatever_the_offer_says(size):
    shown = numbers(size=size).astype(np.float32).astype(np.float64)
    for dtype in ("float32", "float64"):
        noise = noise_in(shown, dtype)
        assert noise.relative == pytest.approx(1.19e-7, rel=0.01)
        assert noise.absolute == 0


@pytest.mark.parametrize("decimals", range(1, 9))
def test_rounding_shows(decimals):
    noise = noise_in(np.round(numbers(), decimals), "float64")
    assert noise.absolute == pytest.approx(0.5 * 10.0**-decimals)


@pytest.mark.parametrize("few", [[], [0.0], [0.0, 0.0], [1.0], [0.5, 0.5], [7.0], [0.25]])
def test_a_number_or_two_show_nothing(few):
    """A constant that happens to be round is no evidence that the target rounds."""
    assert noise_in(np.array(few), "float64").floor < 1e-12


def test_the_floor_is_honest():
    """Rounded or single-precision numbers differ from the truth by no more than the noise says."""
    truth = numbers(1000)
    for shown in (np.round(truth, 4), truth.astype(np.float32).astype(np.float64)):
        noise = noise_in(shown, "float64")
        assert np.abs(shown - truth).max() <= noise.relative * np.abs(truth).max() + noise.absolute


# Orientation


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(2, 12), st.integers(1, 12), st.integers(1, 4), st.integers(0, 1000))
def test_turning_units_around_changes_nothing_and_plain_turns_them_back(d, h, K, seed):
    problem = two_layer(d, h, K, seed=seed)
    plain = as_shallow(problem)
    turned = np.random.default_rng(seed).random(h) < 0.5
    # relu(z) = relu(−z) + z
    skewed = Shallow(
        plain.outputs[turned].T @ plain.rows[turned],
        plain.offset + plain.outputs[turned].T @ plain.biases[turned],
        plain.outputs,
        np.where(turned[:, None], -1, 1) * plain.rows,
        np.where(turned, -1, 1) * plain.biases,
    )
    x = np.random.default_rng(0).standard_normal((200, d))
    assert np.allclose(skewed.values(x), problem.predict(x), atol=1e-10)
    assert np.allclose(skewed.jacobians(x), problem.jacobian(x), atol=1e-10)
    found = skewed.plain(1e-9)
    if h <= d or (K > 1 and h <= d * K / 2):
        assert found is not None
    if found is not None:
        assert not found.jacobian.any()
        assert np.allclose(found.values(x), problem.predict(x), atol=1e-8)


def test_opposite_units_with_one_kink_need_the_linear_term():
    problem = opposite_units(3, 1)
    result = rl.TwoLayer()(problem.oracle, rng=0)
    assert result.clone.skip is not None
    assert result.hidden == (7,)


def test_no_units_is_a_linear_network():
    clone = Shallow(np.ones((2, 3)), np.zeros(2), np.empty((0, 2)), np.empty((0, 3)), np.empty(0))
    network = clone.network(rl.Offer((3,), 2, "logits"), 1e-9)
    assert network.hidden == ()
    assert np.allclose(network.predict(np.eye(3)), 1)


def test_units_without_outputs_do_not_disturb_the_orientation():
    plain = as_shallow(two_layer(5, 4, 2, seed=1))
    silent = Shallow(
        plain.jacobian,
        plain.offset,
        np.vstack([plain.outputs, np.zeros(2)]),
        np.vstack([plain.rows, plain.rows[:1]]),
        np.append(plain.biases, 3.0),
    )
    x = np.random.default_rng(0).standard_normal((50, 5))
    found = silent.plain(1e-9)
    assert found is not None
    assert np.allclose(found.values(x), plain.values(x))


@pytest.mark.parametrize("K", [1, 3])
def test_fitting_finds_biases_that_were_disturbed(K):
    problem = two_layer(6, 5, K, seed=2)
    exact = as_shallow(problem)
    disturbed = Shallow(exact.jacobian, exact.offset + 1e-4, exact.outputs, exact.rows, exact.biases - 1e-4)
    x = np.random.default_rng(0).standard_normal((400, 6))
    x = x[np.abs(exact.active(x)).min(axis=1) > 1e-3]  # which units are on is taken as known
    fitted = disturbed.fitted(x, problem.predict(x), np.full(len(x), 1e-9))
    assert np.abs(fitted.biases - exact.biases).max() < 1e-10


# Comparison


@pytest.mark.parametrize("K", [1, 3])
def test_a_right_model_passes_every_challenge(K):
    for seed in range(5):
        problem = two_layer(8, 12, K, seed=seed)
        comparison = Comparison(rl.Metered(problem.oracle), np.random.default_rng(seed))
        model = as_shallow(problem)
        comparison.ask(comparison.fresh(40))
        comparison.challenge(model)
        assert comparison.gap(model) < 1e-12
        assert len(comparison.points) > 40


def merged(problem: Problem) -> Shallow:
    """The target, but its first two units, of which one output sees opposite weights, taken for one."""
    exact = as_shallow(problem)
    jump = exact.outputs[0, 0] * exact.rows[0] + exact.outputs[1, 0] * exact.rows[1]
    length = np.linalg.norm(jump)
    bias = (exact.outputs[:2, 0] @ exact.biases[:2]) / length
    return Shallow(
        exact.jacobian,
        exact.offset,
        np.vstack([np.full((1, 1), length), exact.outputs[2:]]),
        np.vstack([jump / length, exact.rows[2:]]),
        np.append(bias, exact.biases[2:]),
    )
