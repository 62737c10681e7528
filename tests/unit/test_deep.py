"""Deep: networks with several hidden layers, met at fresh points."""

import numpy as np
import pytest

import relumine as rl
from problems import Capped, Counting, error, network

RECOVERED = rl.Outcome.RECOVERED


def run(oracle: rl.Oracle, rng: int = 0, most: int = 4000, **options: object) -> rl.Reconstruction:
    """A run that may ask so many rows of any kind and no more."""
    return rl.Deep(**options)(Capped(oracle, most), rng=rng)


@pytest.mark.parametrize(
    ("widths", "most"),
    [
        ((20, 10, 5, 3), 15),
        ((40, 20, 10, 2), 5),
        ((100, 32, 16, 10), 2),
        ((40, 20, 10, 1), 30),
        ((40, 20, 10, 10, 3), 40),
    ],
    ids=str,
)
def test_recovers_fresh_targets_from_few_gradients_per_unit(widths, most):
    for seed in range(2):
        problem = network(*widths, seed=seed)
        result = run(problem.oracle, rng=seed)
        assert result.outcome is RECOVERED
        assert error(result, problem) <= 1e-9
        assert result.hidden == widths[1:-1]
        assert result.spent.gradient_queries <= most * sum(widths[1:-1])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_rows_are_the_targets_rows_up_to_length_and_order():
    problem = network(30, 12, 6, 3, seed=3)
    found = run(problem.oracle).parameters
    first = unit(found["layers.0.weight"]) @ unit(problem.A).T
    order = first.argmax(axis=1)
    np.testing.assert_allclose(first.max(axis=1), 1, atol=1e-9)
    assert sorted(order) == list(range(12))
    # The second layer's columns follow the first layer's order, and make up for the lengths of its rows.
    lengths = np.linalg.norm(problem.A, axis=1)
    second = unit(found["layers.1.weight"]) @ unit((problem.weights[1] * lengths)[:, order]).T
    np.testing.assert_allclose(second.max(axis=1), 1, atol=1e-9)
    assert sorted(second.argmax(axis=1)) == list(range(6))


def test_an_unfinished_run_returns_the_layers_it_proved():
    problem = network(40, 20, 10, 3, seed=0)
    result = rl.Deep(limit=130)(problem.oracle, rng=0)
    assert result.outcome is rl.Outcome.INCOMPLETE
    assert "130 gradient queries" in result.evidence.remark
    first = unit(result.proved.parameters["layers.0.weight"]) @ unit(problem.A).T
    np.testing.assert_allclose(np.sort(first.max(axis=1)), 1, atol=1e-9)


@pytest.mark.parametrize("widths", [(6, 12, 8, 3), (10, 20, 20, 1)], ids=str)
def test_more_units_than_inputs_are_recovered_the_right_way_around(widths):
    """Rows are dependent then, and the span of the gradients tells no orientation."""
    problem = network(*widths, seed=0)
    result = run(problem.oracle)
    assert result.outcome is RECOVERED
    assert error(result, problem) <= 1e-9
    assert result.hidden == widths[1:-1]
    signs = unit(result.parameters["layers.0.weight"]) @ unit(problem.A).T
    np.testing.assert_allclose(signs.max(axis=1), 1, atol=1e-9)


def test_a_coarse_expanding_layer_is_not_called_recovered_and_the_remark_says_why():
    """In float32 boundaries are not known well enough to be followed."""
    results = [run(network(6, 12, 8, 3, seed=seed, dtype="float32").oracle) for seed in range(4)]
    assert {result.outcome for result in results} == {rl.Outcome.INCOMPLETE}
    remarks = [result.evidence.remark for result in results]
    assert all("orientation" in remark for remark in remarks)
    # A unit of the second layer may pass for one of the first, which is not proved.
    assert all("proved: layers of no units" in remark for remark in remarks)
    assert sum("of layer 1, 12 units are complete" in remark for remark in remarks) >= 3


def test_a_unit_of_the_last_layer_that_is_off_at_few_points_is_found():
    """It is on at all but a few of the points asked, and no kink of its own need have been seen."""
    problem = network(20, 10, 8, 2, seed=4)
    biases = [b.copy() for b in problem.biases]
    x = np.random.default_rng(0).standard_normal((20_000, 20))
    signal = np.maximum(x @ problem.A.T + problem.b, 0) @ problem.weights[1][0]
    biases[1][0] = -np.quantile(signal, 0.003)
    rare = problem.changed(biases=tuple(biases))
    result = run(rare.oracle)
    assert result.outcome is RECOVERED
    assert error(result, rare) <= 1e-9
    assert result.hidden == (10, 8)


def test_one_hidden_layer_is_a_deep_network_too():
    problem = network(20, 9, 3, seed=1)
    result = run(problem.oracle)
    assert result.outcome is RECOVERED
    assert result.hidden == (9,)
    assert error(result, problem) <= 1e-9


def test_probabilities_are_enough():
    problem = network(20, 10, 5, 3, seed=2, values="probabilities")
    result = run(problem.oracle)
    assert result.outcome is RECOVERED
    assert error(result, problem) <= 1e-9


def test_float32_is_enough_for_a_clone_as_close_as_its_rounding():
    problem = network(60, 20, 10, 5, seed=0, dtype="float32")
    result = run(problem.oracle)
    assert result.outcome is RECOVERED
    assert error(result, problem) <= 5e-6
    assert result.hidden == (20, 10)


def test_units_that_are_rarely_on_are_found():
    """One unit of the second layer is on at about one Gaussian point in a thousand."""
    problem = network(40, 20, 10, 3, seed=5)
    biases = [b.copy() for b in problem.biases]
    x = np.random.default_rng(0).standard_normal((20_000, 40))
    signal = np.maximum(x @ problem.A.T + problem.b, 0) @ problem.weights[1][0]
    biases[1][0] = -np.quantile(signal, 0.999)
    rare = problem.changed(biases=tuple(biases))
    result = run(rare.oracle)
    assert result.outcome is RECOVERED
    assert error(result, rare) <= 1e-9
    assert result.hidden == (20, 10)


def test_units_that_are_off_wherever_all_signals_below_are_large_are_found():
    for seed in range(3):
        problem = network(60, 24, 12, 8, seed=seed)
        problem.weights[1][:4] -= 0.15  # on only where few of the first layer's signals are large
        problem.weights[1][4:8] += 0.15
        result = run(problem.oracle, rng=seed)
        assert result.outcome is RECOVERED
        assert error(result, problem) <= 1e-9
        assert result.hidden == (24, 12)


def test_units_that_are_on_only_where_one_below_is_very_large_are_overlooked_by_no_recovered_clone():
    found = []
    for seed in range(4):
        problem = network(16, 8, 6, 2, seed=seed)
        biases = [b.copy() for b in problem.biases]
        problem.weights[1][0] = -np.abs(problem.weights[1][0])
        problem.weights[1][0, 3], biases[1][0] = 0.005, -1.0
        rare = problem.changed(biases=tuple(biases))
        result = run(rare.oracle, rng=seed)
        if result.outcome is RECOVERED:
            found.append(result.hidden)
            assert error(result, rare) <= 1e-9
    assert found in (3 * [(8, 6)], 4 * [(8, 6)])


def test_it_counts_every_row_and_repeats_none():
    counting = Counting(network(40, 20, 10, 2, seed=0).oracle)
    spent = rl.Deep()(counting, rng=0).spent
    assert (spent.gradient_queries, spent.value_queries) == (counting.gradient_queries, counting.value_queries)
    assert counting.repeated == 0


def test_a_smooth_target_is_refused():
    problem = network(12, 9, 6, 3, activation="softplus")
    assert run(problem.oracle).outcome is rl.Outcome.NOT_PIECEWISE_LINEAR


@pytest.mark.parametrize("options", [{"limit": 1}, {"points": 0}])
def test_settings_that_cannot_work_are_misuse(options):
    with pytest.raises(rl.MisuseError, match="Deep: expected"):
        rl.Deep(**options)


def test_values_alone_are_misuse():
    with pytest.raises(rl.MisuseError, match="gradients of all outputs"):
        run(network(20, 10, 5, 3, gradients="none").oracle)
