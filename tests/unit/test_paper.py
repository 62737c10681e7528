"""PaperTwoLayer: it recovers the paper's model class at the paper's price, and says so when it does not."""

import re
from dataclasses import replace
from math import ceil, log2
from pathlib import Path

import numpy as np
import pytest

import relumine as rl
from problems import DEGENERATE, FOREIGN, Boxed, Counting, error, linear, recovered, two_layer
from relumine.reconstruct.paper import (
    Failure,
    GradientLine,
    binary_search,
    chebyshev_centre,
    pick_x,
    recover_s,
    recover_z,
    refine_z,
)
from relumine.reconstruct.verification import FRESH_POINTS

RECOVERED, FAILED = rl.Outcome.RECOVERED, rl.Outcome.SEARCH_FAILED


def results(d, h, seeds, method=None, **fields):
    for seed in range(seeds):
        problem = two_layer(d, h, seed=seed, paper=True, **fields)
        yield problem, (method or rl.PaperTwoLayer(h))(problem.oracle, rng=seed)


# How often


@pytest.mark.parametrize(
    ("d", "h", "seeds", "fields"),
    [
        (10, 1, 10, {}),
        (100, 4, 20, {}),
        (10, 10, 10, {}),
        (100, 32, 3, {}),
        (20, 8, 20, {"dtype": "float32"}),
    ],
)
def test_recovers_the_papers_model_class_or_says_that_it_did_not(d, h, seeds, fields):
    runs = list(results(d, h, seeds, **fields))
    for problem, result in runs:
        assert result.outcome in (RECOVERED, FAILED)
        if result.outcome is RECOVERED:
            assert error(result, problem, 1000) < (1e-5 if fields else 1e-12)
        else:
            assert result.evidence.remark.startswith("recover Z: ")
    # Expected 97.5 %: half of δ is for kinks beyond ±l, and that bound is sharp. The other half is hardly used.
    assert sum(result.outcome is RECOVERED for _, result in runs) >= 0.8 * seeds


def test_the_clone_is_a_plain_network_of_h_units():
    problem = two_layer(20, 8, seed=1, paper=True)
    result = rl.PaperTwoLayer(8)(problem.oracle, rng=1)
    assert result.hidden == (8,)
    assert set(result.parameters) == {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"}
    assert not result.parameters["layers.0.bias"].any()
    # Its rows are |w_i|·A_i, its output weights the signs of w, in the order of the kinks.
    found = result.parameters["layers.0.weight"] * result.parameters["layers.1.weight"].T
    truth = problem.A * problem.W.T
    assert sorted(found[:, 0]) == pytest.approx(sorted(truth[:, 0]), abs=1e-12)


def test_delta_and_seed_change_the_search_and_the_name_tells_the_configuration():
    assert repr(rl.PaperTwoLayer(8, delta=0.1)) == "PaperTwoLayer(hidden=8, delta=0.1, separation=0.1, bound=None)"
    problem = two_layer(20, 8, paper=True)
    cheap, dear = (rl.PaperTwoLayer(8, delta=delta)(problem.oracle, rng=0).spent for delta in (0.5, 0.001))
    assert cheap.gradient_queries < dear.gradient_queries


# Price


@pytest.mark.parametrize("bound", ["paper", "tight"])
def test_one_new_gradient_per_round_and_the_ends_are_remembered(bound):
    h, method = 8, rl.PaperTwoLayer(8, bound=bound)
    oracle = Counting(two_layer(20, h, seed=1, paper=True).oracle)
    result = method(oracle, rng=0)
    assert result.outcome is RECOVERED
    search = method.search(oracle.offer)
    assert oracle.gradient_queries <= 2 + h * ceil(log2(2 * search.l / search.epsilon))
    assert oracle.repeated == 0
    spent = result.spent
    assert (spent.gradient_queries, spent.value_queries, spent.floats) == (
        oracle.gradient_queries,
        oracle.value_queries,
        oracle.floats,
    )
    assert {name: tally.value_queries for name, tally in spent.phases.items()} == {
        "recover Z": 0,
        "recover s": 2 * h,
        "verify": FRESH_POINTS,
    }


def test_the_tight_bound_saves_a_third():
    oracle = two_layer(20, 8, seed=1, paper=True).oracle
    paper, tight = (rl.PaperTwoLayer(8, bound=bound)(oracle, rng=0).spent for bound in ("paper", "tight"))
    assert tight.gradient_queries < 0.67 * paper.gradient_queries


def test_watchers_see_the_units_come_in():
    seen = []
    oracle = rl.Metered(two_layer(20, 5, paper=True).oracle, watch=lambda progress: seen.append(progress.units))
    rl.PaperTwoLayer(5)(oracle, rng=0)
    assert [n for n in dict.fromkeys(seen) if n is not None] == [1, 2, 3, 4, 5]


# Failure is notified


def test_a_search_without_a_kink_fails_in_its_first_round():
    """Algorithm 1a: failure is the else branch, and only that."""
    result = rl.PaperTwoLayer(3)(linear(K=1).oracle, rng=0)
    assert result.outcome is FAILED
    assert result.clone is None
    assert result.spent.gradient_queries == 3
    assert "0 of 3 kinks" in result.evidence.remark


@pytest.mark.parametrize("hidden", [1, 7, 9, 20])
def test_a_wrong_number_of_units_is_noticed(hidden):
    for seed in range(5):
        result = rl.PaperTwoLayer(hidden)(two_layer(20, 8, seed=seed, paper=True).oracle, rng=seed)
        assert result.outcome is FAILED
        expected = "more than" if hidden < 8 else f"of {hidden} kinks found"
        assert expected in result.evidence.remark


def test_more_units_than_inputs_are_refused_without_a_query():
    result = rl.PaperTwoLayer(30)(two_layer(20, 30, paper=True).oracle, rng=0)
    assert result.outcome is FAILED
    assert "independent" in result.evidence.remark
    assert result.spent.queries == 0


def test_a_kink_beyond_the_ends_of_the_line_is_noticed():
    """With hidden one too small and the last kink out of reach, only recover s can tell."""
    problem = two_layer(10, 2, seed=0, paper=True)
    u, v = np.random.default_rng(0).standard_normal((2, 10))
    A = problem.A.copy()
    # Turn unit 0 so that its kink lies at t = 1e6.
    away = u + 1e6 * v
    A[0] -= away * (A[0] @ away) / (away @ away)
    result = rl.PaperTwoLayer(1)(problem.changed(A=A).oracle, rng=0)
    assert result.outcome is FAILED
    assert result.evidence.remark.startswith("recover s: ")


@pytest.mark.parametrize("name", [*DEGENERATE, *FOREIGN])
def test_no_wrong_network_is_called_recovered(name):
    problem = (DEGENERATE | FOREIGN)[name](K=1)
    for hidden in (7, 9):
        assert rl.PaperTwoLayer(hidden)(problem.oracle, rng=0).outcome is FAILED


def test_a_rarely_active_unit_far_out_is_noticed():
    """The model class has no biases, so verification looks far from the origin, where every biased unit shows."""
    problem = two_layer(10, 4, seed=3, paper=True)
    hidden_unit = problem.changed(b=np.array([0, 0, 0, -4.5]))
    for seed in range(20):
        for hidden in (3, 4):
            assert rl.PaperTwoLayer(hidden)(hidden_unit.oracle, rng=seed).outcome is not RECOVERED


def test_a_budget_too_small_is_an_outcome():
    oracle = rl.Metered(two_layer(20, 8, paper=True).oracle, budget=60)
    result = rl.PaperTwoLayer(8)(oracle, rng=0)
    assert result.outcome is rl.Outcome.BUDGET_EXHAUSTED
    assert result.spent.queries == 60


@pytest.mark.parametrize(
    "options",
    [{"hidden": 0}, {"delta": 0}, {"delta": 1}, {"separation": 0}, {"separation": 1.5}, {"bound": "loose"}],
)
def test_impossible_options_are_misuse(options):
    with pytest.raises(rl.MisuseError, match=f"PaperTwoLayer.{next(iter(options))}: expected"):
        rl.PaperTwoLayer(**{"hidden": 4, **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": 3}, "one output"),
        ({"values": "probabilities"}, "real values"),
        ({"values": "none"}, "real values"),
        ({"box": (0, 1)}, "box around the origin"),
    ],
)
def test_an_offer_that_cannot_be_used_is_misuse(change, message):
    offer = replace(rl.Offer((5,), 1), **change)
    with pytest.raises(rl.MisuseError, match=message):
        rl.PaperTwoLayer(4)(rl.FunctionOracle(lambda x, gradients: (x, None), offer), rng=0)


# Steps


def test_recover_z_returns_weighted_rows_up_to_sign_from_left_to_right():
    problem = two_layer(20, 8, seed=4, paper=True)
    method = rl.PaperTwoLayer(8)
    line = GradientLine(rl.Metered(problem.oracle), method.search(problem.offer), np.random.default_rng(0))
    kinks = recover_z(line, 8)
    u, v = line.at(0), line.at(1) - line.at(0)
    order = np.argsort(-(problem.A @ u) / (problem.A @ v))
    places = (-(problem.A @ u) / (problem.A @ v))[order]
    for kink, place, unit in zip(kinks, places, order, strict=True):
        assert kink.left.t <= place <= kink.right.t
        assert kink.right.t - kink.left.t <= line.search.epsilon
        assert np.abs(kink.jump) == pytest.approx(np.abs(problem.W[0, unit] * problem.A[unit]), abs=1e-12)


def test_binary_search_throws_where_the_gradient_does_not_change():
    problem = two_layer(20, 4, paper=True)
    line = GradientLine(rl.Metered(problem.oracle), rl.PaperTwoLayer(4).search(problem.offer), np.random.default_rng(0))
    kinks = recover_z(line, 4)
    with pytest.raises(Failure):
        binary_search(line, kinks[0].right, kinks[1].left)


@pytest.mark.parametrize(("d", "h"), [(3, 3), (20, 8), (40, 40)])
def test_the_chebyshev_ball_lies_in_the_cell_and_in_the_box(d, h):
    rng = np.random.default_rng([d, h])
    Z = rng.standard_normal((h, d)) * rng.uniform(0.1, 10, (h, 1))
    signs = np.sign(Z @ rng.standard_normal(d))
    centre, radius = chebyshev_centre(Z, signs)
    assert radius > 0
    assert (signs * (Z @ centre) / np.linalg.norm(Z, axis=1)).min() >= radius - 1e-9
    assert np.abs(centre).max() + radius <= 1 + 1e-9


def test_pick_x_stays_in_one_cell_with_full_rank():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((8, 20))
    X = pick_x(Z, rng)
    assert X.shape == (20, 8)
    assert np.linalg.matrix_rank(Z @ X) == 8
    assert (np.sign(Z @ X) == np.sign(Z @ X)[:, :1]).all()


def test_dependent_rows_are_a_failure_of_recover_s():
    Z = np.random.default_rng(0).standard_normal((4, 20))
    Z[3] = Z[0] + Z[1]
    with pytest.raises(Failure, match="dependent"):
        pick_x(Z, np.random.default_rng(0))


def test_recover_s_finds_the_signs_and_refuses_a_z_that_joins_two_units():
    problem = two_layer(20, 6, seed=5, paper=True)
    rng = np.random.default_rng(0)
    flips = rng.choice([-1, 1], 6)
    Z = flips[:, None] * np.abs(problem.W.T) * problem.A
    oracle = rl.Metered(problem.oracle)
    s = recover_s(oracle, Z, rng)
    expected = np.concatenate(
        [np.where(flips > 0, np.sign(problem.W[0]), 0), np.where(flips < 0, np.sign(problem.W[0]), 0)]
    )
    assert (s == expected).all()
    with pytest.raises(Failure, match="recover s"):
        recover_s(oracle, np.vstack([Z[:4], Z[4] + Z[5]]), rng)


# Other oracles


@pytest.mark.parametrize("gradients", ["all", "none"])
def test_a_box_around_the_origin_is_respected(gradients):
    problem = two_layer(10, 4, seed=1, paper=True, gradients=gradients)
    result = rl.PaperTwoLayer(4)(Boxed(problem.oracle, (-0.5, 2.0)), rng=1)
    assert result.outcome is RECOVERED
    assert error(result, problem) < 1e-9


# Algorithm 1-MQ


@pytest.mark.parametrize(("d", "h", "seeds"), [(10, 4, 20), (20, 8, 20), (20, 16, 5)])
def test_values_alone_are_enough(d, h, seeds):
    runs = list(results(d, h, seeds, gradients="none"))
    good = [(problem, result) for problem, result in runs if result.outcome is RECOVERED]
    assert len(good) >= 0.8 * seeds
    for problem, result in good:
        assert result.evidence.verification_gap < 1e-9
        assert error(result, problem, 1000) < 1e-9
        assert result.spent.gradient_queries == 0
    method = rl.PaperTwoLayer(h)
    search = method.search(problem.offer)
    looks = 2 + h * ceil(log2(2 * search.l / search.epsilon)) + h + 1
    assert max(result.spent.value_queries for _, result in runs) <= looks * (d + 1) + 2 * h + 2 * FRESH_POINTS


@pytest.mark.parametrize("h", [4, 16])
def test_refining_takes_the_rounding_errors_out_of_z(h):
    problem = two_layer(20, h, seed=1, paper=True, gradients="none")
    line = GradientLine(rl.Metered(problem.oracle), rl.PaperTwoLayer(h).search(problem.offer), np.random.default_rng(1))
    kinks = recover_z(line, h)
    u, v = line.at(0), line.at(1) - line.at(0)
    truth = np.abs(problem.W.T * problem.A)[np.argsort(-(problem.A @ u) / (problem.A @ v))]
    raw, refined = (np.abs(np.abs(Z) - truth).max() for Z in ([kink.jump for kink in kinks], refine_z(line, kinks)))
    assert refined < 1e-3 * raw


@pytest.mark.parametrize(
    ("bound", "fields"), [("paper", {}), (None, {"dtype": "float32"})], ids=["paper's step", "float32"]
)
def test_a_step_too_small_for_floating_point_is_said_before_any_query(bound, fields):
    problem = two_layer(20, 8, paper=True, gradients="none", **fields)
    result = rl.PaperTwoLayer(8, bound=bound)(problem.oracle, rng=0)
    assert result.outcome is FAILED
    assert "too small for floating point" in result.evidence.remark
    assert result.spent.queries == 0


def test_the_papers_own_step_still_works_for_four_units():
    runs = list(results(10, 4, 20, rl.PaperTwoLayer(4, bound="paper"), gradients="none"))
    assert recovered(runs, 1e-9) >= 17


# docs/paper.md


def test_every_test_that_the_page_names_exists():
    here = Path(__file__).parent
    page = (here.parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")
    written = "".join((here / name).read_text(encoding="utf-8") for name in set(re.findall(r"test_\w+\.py", page)))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in written} == set()
