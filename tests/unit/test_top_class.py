"""TwoLayer where one output is explained at a time: the same networks, and never a wrong one."""

import numpy as np
import pytest

import relumine as rl
from problems import DEGENERATE, FOREIGN, Boxed, Capped, Problem, error, recovered, two_hidden_layers, two_layer

RECOVERED = rl.Outcome.RECOVERED
probabilities = {"values": "probabilities"}


def run(problem: Problem, rng: int = 0, most: int = 5000) -> rl.Reconstruction:
    """A run that may ask so many rows of any kind and no more."""
    return rl.TwoLayer()(Capped(problem.oracle, most), rng=rng)


# What is recovered


@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize(("d", "h", "K"), [(20, 20, 3), (40, 8, 10), (5, 30, 3), (30, 12, 2), (3, 1, 4)])
def test_recovers_fresh_targets_from_the_top_class(d, h, K, bias, values):
    for seed in range(2):
        problem = two_layer(d, h, K, bias=bias, seed=seed, gradients="top", values=values)
        result = run(problem, rng=seed)
        assert result.outcome is RECOVERED
        assert error(result, problem) <= 1e-8
        assert result.hidden == (h,)
        if h <= d:
            assert result.clone.skip is None


def test_mnist_sized_targets_cost_little_more_than_one_gradient_per_unit():
    for seed in range(2):
        problem = two_layer(784, 64, 10, seed=seed, gradients="top")
        result = run(problem, rng=seed)
        assert result.outcome is RECOVERED
        assert error(result, problem) <= 1e-9
        assert result.spent.gradient_queries <= 1.4 * 64
        assert result.spent.value_queries <= 44 + 2.5 * 64


@pytest.mark.parametrize("shown", [0, 2])
def test_an_output_of_ones_choice_shows_all_units_too(shown):
    problem = two_layer(20, 12, 3, gradients=shown)
    result = run(problem)
    assert result.outcome is RECOVERED
    assert error(result, problem) <= 1e-9


def test_units_that_the_explained_output_does_not_see_are_not_overlooked():
    """Output 0 reaches no unit: explained alone it shows nothing, and nothing is called recovered."""
    problem = two_layer(12, 6, 3, gradients=0)
    W = problem.W.copy()
    W[0] = 0
    result = run(problem.changed(W=W))
    assert result.outcome is not RECOVERED


def test_a_unit_without_weight_on_some_outputs_shows_where_another_is_on_top():
    runs = []
    for seed in range(8):
        problem = two_layer(10, 8, 4, seed=seed, gradients="top")
        W = problem.W.copy()
        W[seed % 4, 3] = 0
        problem = problem.changed(W=W)
        runs.append((problem, run(problem, rng=seed)))
    assert recovered(runs, 1e-8) >= 7  # one output may be on top all along a boundary


@pytest.mark.parametrize("gradients", ["top", 0, 1])
def test_one_of_two_probabilities_is_enough(gradients):
    problem = two_layer(20, 12, 2, gradients=gradients, **probabilities)
    result = run(problem)
    assert result.outcome is RECOVERED
    assert error(result, problem) <= 1e-9


def test_a_box_is_searched_from_inside():
    for seed in range(3):
        problem = two_layer(20, 12, 4, seed=seed, gradients="top")
        result = rl.TwoLayer()(Boxed(problem.oracle, (0.0, 1.0)), rng=seed)
        x = np.random.default_rng(seed).uniform(size=(5000, 20))
        assert result.outcome is RECOVERED
        assert np.abs(result.predict(x) - problem.predict(x)).max() <= 1e-9


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_lines_of_a_small_box_start_where_there_is_room(seed):
    """Compared points may be corners of the box, which random directions leave at once."""
    problem = two_layer(10, 20, 3, seed=seed, gradients="top", values="probabilities")
    result = rl.TwoLayer()(Boxed(problem.oracle, (-2.0, 2.0)), rng=seed)
    x = np.random.default_rng(seed).uniform(-2, 2, (5000, 10))
    assert result.outcome is RECOVERED
    assert np.abs(result.predict(x) - problem.predict(x)).max() <= 1e-7


@pytest.mark.parametrize("sharper", [1, 10])
def test_saturated_probabilities_show_their_units_where_classes_meet(sharper):
    """Ten times as large logits leave 1 − p < 1e-8 at most points."""
    for seed in range(2):
        problem = two_layer(20, 12, 4, seed=seed, gradients="top", **probabilities)
        problem = problem.changed(W=sharper * problem.W, c=sharper * problem.c)
        result = run(problem, rng=seed)
        assert result.outcome is RECOVERED
        assert error(result, problem) <= 1e-7


def test_float32_is_as_exact_as_it_allows():
    for seed in range(3):
        problem = two_layer(50, 32, 10, seed=seed, gradients="top", dtype="float32")
        result = run(problem, rng=seed)
        assert result.outcome is RECOVERED
        assert error(result, problem) <= 6e-5


# What is not


# Of two seeds, those recovered where it is not both: units that are on where every probability is saturated, and a unit
# without weight on an output that is on top all along its boundary.
SOME = {("always_on_units", "probabilities"): 0, ("zero_output_weights", "logits"): 1}


@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_targets_are_recovered_or_it_says_so(name, values):
    problems = [DEGENERATE[name](3, seed, gradients="top", values=values) for seed in range(2)]
    runs = ((problem, run(problem, rng=seed)) for seed, problem in enumerate(problems))
    # Probabilities are decomposed by differences of values, and as exact as these are (test_values.py).
    assert recovered(runs, 1e-8 if values == "logits" else 1e-6) >= SOME.get((name, values), 2)


@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_other_targets_are_never_called_recovered(make, values):
    for seed in range(2):
        result = run(make(3, seed, gradients="top", values=values), rng=seed)
        assert result.outcome in (rl.Outcome.NOT_THIS_CLASS, rl.Outcome.NOT_PIECEWISE_LINEAR)


def test_gradients_of_something_else_are_noticed():
    problem = two_layer(10, 6, 3, gradients="top")

    def query(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        answer = problem.oracle(x, gradients=gradients)
        return answer.values, None if answer.gradients is None else np.abs(answer.gradients)

    result = rl.TwoLayer()(rl.FunctionOracle(query, problem.offer), rng=0)
    assert result.outcome is rl.Outcome.NOT_THIS_CLASS


# Which method comes next


def test_auto_asks_for_values_alone_what_explanations_do_not_show():
    problem = two_layer(12, 6, 3, gradients=0)
    W = problem.W.copy()
    W[0] = 0
    problem = problem.changed(W=W)
    result = rl.Auto()(Capped(problem.oracle, 5000), rng=0)
    assert result.outcome is RECOVERED
    assert error(result, problem) <= 1e-7


def test_auto_asks_no_values_where_gradients_showed_more_layers():
    result = rl.Auto()(Capped(two_hidden_layers(3, gradients="top").oracle, 5000), rng=0)
    assert result.outcome is rl.Outcome.NOT_THIS_CLASS
    assert not any("from values" in phase for phase in result.spent.phases)
