"""What a defended explanation is worth: maps whose worth is known beforehand."""

import numpy as np
import pytest
from scipy.stats import spearmanr

import relumine as rl
from relumine import defend
from relumine.audit import usefulness as module
from relumine.audit.usefulness import usefulness

D = 30
RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((200, D))
# Important coordinates are few: the others move the logits a hundred times less. They lie in the middle, so that
# neither the first nor the last index is a good guess.
ROWS = RNG.choice([-1.0, 1.0], (3, D)) * np.where((np.arange(D) > 11) & (np.arange(D) < 18), 1.0, 0.01)
ROWS *= RNG.uniform(0.9, 1.1, ROWS.shape)


def linear(values="logits", gradients="all", rows=ROWS) -> rl.FunctionOracle:
    """A target whose gradient is the same everywhere."""

    def query(x, wanted):
        logits = x @ rows.T
        maps = np.tile(rows, (len(x), 1, 1))
        if gradients == "top":
            maps = np.take_along_axis(maps, logits.argmax(1)[:, None, None], axis=1)
        return logits, maps if wanted else None

    return rl.FunctionOracle(query, rl.Offer((D,), len(rows), values, gradients))


TARGET = linear()


def worth(words: str, target=TARGET):
    return usefulness(target, defend.parse(words)(target, rng=1), INPUTS, rng=0)


def test_the_undefended_map_is_worth_everything():
    same = usefulness(TARGET, TARGET, INPUTS, rng=0)
    assert same.rank_correlation == pytest.approx(1)
    assert same.top_overlap == pytest.approx(1)
    assert (same.deletion, same.insertion) == (1, 1)
    assert same.inputs == 40


@pytest.mark.parametrize("words", ["magnitude", "maxnorm", "top", "box:-9,9", "round:9"])
def test_what_keeps_the_order_keeps_the_worth(words):
    found = worth(words)
    assert found.rank_correlation == pytest.approx(1)
    assert found.top_overlap == pytest.approx(1)
    assert found.deletion == pytest.approx(1, abs=0.02)


def test_a_map_of_ties_is_worth_nothing():
    found = worth("sign")
    assert found.rank_correlation == 0
    assert found.top_overlap == pytest.approx(0.1)
    assert abs(found.deletion) < 0.15
    assert abs(found.insertion) < 0.15


@pytest.mark.parametrize("important", [slice(0, 6), slice(D - 6, D)], ids=["first", "last"])
def test_ties_get_no_credit_by_the_order_of_coordinates(important):
    rows = np.full((3, D), 0.01)
    rows[:, important] = RNG.uniform(0.9, 1.1, (3, 6)) * [[1.0], [-1.0], [0.5]]
    found = worth("sign", linear(rows=rows))
    assert found.top_overlap == pytest.approx(0.1)
    assert abs(found.deletion) < 0.2


def test_noise_takes_the_worth_away_bit_by_bit():
    little, more, much = (worth(f"noise:{sigma},gradients") for sigma in (0.003, 0.3, 30))
    assert little.rank_correlation > more.rank_correlation > much.rank_correlation
    assert little.deletion > 0.95
    assert abs(much.rank_correlation) < 0.2
    assert abs(much.deletion) < 0.25


def test_the_most_important_coordinates_are_enough_for_faithfulness():
    found = worth("topk:6")
    assert found.deletion > 0.9
    assert found.top_overlap == pytest.approx(1)
    assert found.rank_correlation < 0.9


def test_a_wrong_map_is_worse_than_none():
    upside_down = rl.FunctionOracle(
        lambda x, wanted: (x @ ROWS.T, np.tile(1 / ROWS, (len(x), 1, 1)) if wanted else None), TARGET.offer
    )
    found = usefulness(TARGET, upside_down, INPUTS, rng=0)
    assert found.rank_correlation == pytest.approx(-1)
    assert found.top_overlap == 0
    assert found.deletion < -0.2


def test_ranks_with_ties_are_spearman_s():
    first, second = np.array([3.0, 1, 1, 2, 5, 5]), np.array([1.0, 1, 2, 2, 9, 4])
    assert module._correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)


def test_overlap_is_what_is_expected_of_breaking_ties_at_random():
    numbers, tied = np.arange(20.0), np.ones(20)
    assert module._overlap(numbers, numbers) == 1
    assert module._overlap(numbers, tied) == pytest.approx(0.1)
    half = np.append(np.zeros(16), [1, 1, 1, 1.0])
    assert module._overlap(numbers, half) == pytest.approx(0.5)


def test_the_shown_class_is_the_one_that_is_compared():
    rows = np.zeros((2, D))
    rows[0, :3], rows[1, 3:6] = [1, 2, 3], [3, 2, 1]
    target = linear(rows=rows)
    assert worth("top", target).rank_correlation == pytest.approx(1)
    assert worth("top", linear(gradients="top", rows=rows)).rank_correlation == pytest.approx(1)
    # Noise on values changes which class is shown; its map is the right map of that class.
    assert worth("noise:9,values+top", target).rank_correlation == pytest.approx(1)


def test_one_output_has_an_explanation_too():
    for kind in ("logits", "real"):
        target = linear(kind, rows=ROWS[:1])
        assert usefulness(target, target, INPUTS, rng=0).deletion == 1
        assert abs(worth("sign", target).deletion) < 0.25


def test_nothing_shown_is_worth_nothing_that_could_be_measured():
    assert worth("label") is None
    silent = rl.FunctionOracle(lambda x, _: (x @ ROWS.T, None), rl.Offer((D,), 3, "logits", "none"))
    assert usefulness(silent, silent, INPUTS) is None


def test_refused_inputs_are_left_out():
    found = worth("box:-2,2")
    assert 0 < found.inputs < 40
    assert found.rank_correlation == pytest.approx(1)
    assert worth("box:-0.01,0.01") is None
    assert worth("budget:7").inputs == 7


def test_a_target_that_no_map_explains_has_no_faithfulness():
    constant = linear(rows=np.zeros((3, D)))
    assert usefulness(constant, constant, INPUTS) is None
    blunt = linear(rows=ROWS * 1e-6)
    found = usefulness(blunt, blunt, INPUTS, rng=0)
    assert found.rank_correlation == pytest.approx(1)
    assert (found.deletion, found.insertion) == (None, None)


def test_the_same_seed_gives_the_same_figures():
    assert worth("sign") == worth("sign")
