"""Defences one by one: what each still shows, what it refuses, and how it is asked for."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.datasets import load_digits

import relumine as rl
from problems import Counting, Offering, two_layer
from relumine import defend

D, K = 8, 4
TARGET = two_layer(D, 9, K).oracle
PROBABILITIES = two_layer(D, 9, K, values="probabilities").oracle
X = np.random.default_rng(1).standard_normal((40, D))
TRUTH = TARGET(X, gradients=True)
DOCS = Path(__file__).parents[2] / "docs"


def shown(spec: str, oracle: rl.Oracle = TARGET, x: np.ndarray = X, rng: int = 0) -> rl.Answer:
    guarded = defend.parse(spec)(oracle, rng=rng)
    return guarded(x, gradients=guarded.offer.gradients != "none")


# What is still shown


def test_rounded_numbers_have_no_further_digits():
    answer = shown("round:3")
    for numbers, truth in ((answer.values, TRUTH.values), (answer.jacobians, TRUTH.jacobians)):
        assert np.abs(1000 * numbers - np.round(1000 * numbers)).max() < 1e-9
        assert np.abs(numbers - truth).max() <= 0.0005 * (1 + 1e-9)


@pytest.mark.parametrize(("of", "kept"), [("values", "jacobians"), ("gradients", "values")])
@pytest.mark.parametrize("spec", ["round:1", "noise:0.3", "noise:0.3,consistent"])
def test_what_is_not_chosen_stays_as_it_is(spec, of, kept):
    answer = shown(f"{spec},{of}")
    changed = "values" if kept == "jacobians" else "jacobians"
    assert (getattr(answer, kept) == getattr(TRUTH, kept)).all()
    assert (getattr(answer, changed) != getattr(TRUTH, changed)).any()


def test_coarsely_rounded_probabilities_are_not_offered_as_such():
    assert defend.Rounded(PROBABILITIES, 3).offer.values == "probabilities"
    assert defend.Rounded(PROBABILITIES, 1).offer.values == "real"
    assert defend.Rounded(PROBABILITIES, 1, "gradients").offer.values == "probabilities"
    assert defend.Rounded(two_layer(D, 9, 1, values="probabilities").oracle, 1).offer.values == "probabilities"
    rl.Metered(defend.Rounded(PROBABILITIES, 1))(X, gradients=True)


@pytest.mark.parametrize("k", [1, 3, D, 100])
def test_at_most_k_features_are_shown_and_they_are_the_largest(k):
    maps = shown(f"topk:{k}").jacobians
    assert ((maps != 0).sum(axis=2) <= k).all()
    assert (maps[maps != 0] == TRUTH.jacobians[maps != 0]).all()
    hidden = np.where(maps == 0, np.abs(TRUTH.jacobians), 0).max(axis=2)
    assert (hidden <= np.where(maps != 0, np.abs(maps), np.inf).min(axis=2)).all()


def test_of_equal_features_no_more_than_k_are_shown():
    flat = rl.FunctionOracle(lambda x, _: (x[:, :1], np.ones((len(x), 1, D))), rl.Offer((D,), 1))
    assert (shown("topk:3", flat).jacobians.sum(axis=2) == 3).all()


def test_signs_and_magnitudes_are_halves_of_the_truth():
    signs, magnitudes = shown("sign").jacobians, shown("magnitude").jacobians
    assert set(np.unique(signs)) <= {-1, 0, 1}
    assert (magnitudes >= 0).all()
    assert (signs * magnitudes == TRUTH.jacobians).all()


def test_normalised_maps_do_not_tell_their_scale():
    larger = rl.FunctionOracle(lambda x, _: (TRUTH.values, 8 * TRUTH.jacobians), TARGET.offer)
    for spec in ("maxnorm", "heatmap:8", "heatmap:8,signed", "sign"):
        assert (shown(spec).jacobians == shown(spec, larger).jacobians).all()
        assert np.allclose(np.abs(shown(spec).jacobians).max(axis=2), 1)


@pytest.mark.parametrize("spec", ["maxnorm", "heatmap:8", "heatmap:8,signed", "sign", "topk:2"])
def test_a_gradient_of_zero_stays_zero(spec):
    flat = rl.FunctionOracle(lambda x, _: (x[:, :1], np.zeros((len(x), 1, D))), rl.Offer((D,), 1))
    assert not shown(spec, flat).jacobians.any()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_picture_has_as_many_shades_as_its_bits(bits):
    x = np.random.default_rng(2).standard_normal((500, D))
    for kind, lowest in (("magnitude", 0), ("signed", -1)):
        shades = np.unique(shown(f"heatmap:{bits},{kind}", x=x).jacobians)
        assert len(shades) <= 2**bits
        assert shades.min() >= lowest
        assert shades.max() == 1
    assert np.abs(shown("heatmap:16").jacobians - shown("magnitude+maxnorm").jacobians).max() < 1e-4


def test_the_top_class_alone_is_explained():
    answer = shown("top")
    top = TRUTH.values.argmax(axis=1)
    assert answer.jacobians.shape == (40, 1, D)
    assert (answer.jacobians[:, 0] == TRUTH.jacobians[np.arange(40), top]).all()


def test_the_top_class_of_noisy_values_is_the_one_they_show():
    answer = shown("noise:5,values+top")
    assert (answer.jacobians[:, 0] == TRUTH.jacobians[np.arange(40), answer.values.argmax(axis=1)]).all()
    assert (answer.values.argmax(axis=1) != TRUTH.values.argmax(axis=1)).any()


def test_a_label_says_no_more_than_the_class():
    scaled = rl.FunctionOracle(lambda x, _: (3 * TARGET(x, gradients=False).values + 1, None), TARGET.offer)
    answer = shown("label")
    assert (answer.values == np.eye(K)[TRUTH.values.argmax(axis=1)]).all()
    assert answer.gradients is None
    assert (defend.LabelOnly(scaled)(X, gradients=False).values == answer.values).all()
    assert (shown("label:kept").jacobians == TRUTH.jacobians).all()


@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_the_label_of_one_output_is_yes_or_no(values):
    target = two_layer(D, 9, 1, values=values).oracle
    threshold = 0 if values == "logits" else 0.5
    assert (shown("label", target).values == (target(X, gradients=False).values > threshold)).all()


# The output defences that the Adversarial Robustness Toolbox has too


def test_only_confident_classes_are_shown():
    truth = PROBABILITIES(X, gradients=False).values
    values = shown("high-confidence:0.3", PROBABILITIES).values
    assert (values == np.where(truth >= 0.3, truth, 0)).all()
    assert defend.HighConfidence(PROBABILITIES).offer.values == "real"


@pytest.mark.parametrize("outputs", [1, 2, K])
def test_the_reverse_sigmoid_is_as_published(outputs):
    target = two_layer(D, 9, outputs, values="probabilities").oracle
    truth = target(X, gradients=False).values
    both = truth if outputs > 1 else np.hstack([truth, 1 - truth])
    expected = (both - 0.7 * (expit(0.4 * logit(both)) - 0.5)).clip(0, 1)
    expected /= expected.sum(axis=1, keepdims=True)
    assert np.allclose(shown("reverse-sigmoid:0.7,0.4", target).values, expected[:, :outputs], atol=1e-12)


@pytest.mark.parametrize("values", [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.25] * 4])
def test_the_reverse_sigmoid_bears_extreme_probabilities(values):
    target = rl.FunctionOracle(
        lambda x, _: (np.tile(values, (len(x), 1)), None), rl.Offer((D,), K, "probabilities", "none")
    )
    answer = shown("reverse-sigmoid:5,3", target).values
    assert np.isfinite(answer).all()
    assert np.allclose(answer.sum(axis=1), 1)


# Noise


def test_fresh_noise_is_averaged_away_and_consistent_noise_is_not():
    many = np.repeat(X[:1], 4000, axis=0)
    fresh, consistent = shown("noise:0.5", x=many), shown("noise:0.5,consistent", x=many)
    for numbers, truth in ((fresh.values, TRUTH.values[0]), (fresh.jacobians, TRUTH.jacobians[0])):
        assert np.abs(numbers.mean(axis=0) - truth).max() < 0.04
        assert np.allclose(numbers.std(axis=0), 0.5, atol=0.04)
    assert np.ptp(consistent.values, axis=0).max() == 0
    assert np.ptp(consistent.jacobians, axis=0).max() == 0
    assert np.abs(consistent.values[0] - TRUTH.values[0]).max() > 0.1


def test_consistent_noise_differs_from_input_to_input_and_is_of_the_right_size():
    x = np.random.default_rng(4).standard_normal((3000, D))
    noise = shown("noise:0.5,consistent", x=x).values - TARGET(x, gradients=False).values
    assert np.allclose(noise.std(axis=0), 0.5, atol=0.03)
    assert np.abs(np.corrcoef(noise.T) - np.eye(K)).max() < 0.08
    assert len(np.unique(noise)) == noise.size


def test_multiplicative_noise_grows_with_the_number():
    many = np.repeat(X[:1], 4000, axis=0)
    answer = shown("noise:0.2,multiplicative", x=many)
    assert np.allclose(answer.jacobians.std(axis=0), 0.2 * np.abs(TRUTH.jacobians[0]), rtol=0.1)


def test_inputs_that_are_one_to_the_target_get_one_noise():
    """Else a float32 target's noise could be averaged over inputs that differ in their last digits only."""
    target = two_layer(D, 9, K, dtype="float32").oracle
    guarded = defend.GaussianNoise(target, 0.5, repeat="consistent", rng=0)
    row = X[:1].astype(np.float32).astype(np.float64)
    near = row * (1 + np.array([[0.0], [1e-10], [-1e-10]]))
    assert np.ptp(guarded(near, gradients=True).jacobians, axis=0).max() == 0
    zeros = np.array([[0.0], [-0.0]]) * np.ones(D)
    assert np.ptp(guarded(zeros, gradients=False).values, axis=0).max() == 0


def test_noisy_probabilities_are_probabilities():
    values = shown("noise:3", PROBABILITIES).values
    assert (values >= 0).all()
    assert np.allclose(values.sum(axis=1), 1)


# SmoothGrad


def test_smoothgrad_averages_at_a_known_cost():
    inner = Counting(TARGET)
    guarded = defend.SmoothGradDefence(inner, 400, 0.3, rng=0)
    answer = guarded(X[:3], gradients=True)
    assert np.allclose(answer.values, TRUTH.values[:3], rtol=0, atol=1e-12)
    noise = 0.3 * np.random.default_rng(9).standard_normal((4000, D))
    expected = np.stack([TARGET(x + noise, gradients=True).jacobians.mean(axis=0) for x in X[:3]])
    assert np.abs(answer.jacobians - expected).max() < 0.15
    assert (inner.gradient_queries, inner.value_queries) == (1200, 3)
    guarded(X[:5], gradients=False)
    assert (inner.gradient_queries, inner.value_queries) == (1200, 8)


def test_smoothgrad_stays_in_the_box():
    def within(x, _):
        assert x.min() >= 0
        assert x.max() <= 1
        return x[:, :1], np.ones((len(x), 1, D))

    target = rl.FunctionOracle(within, rl.Offer((D,), 1, box=(0, 1)))
    assert shown("smoothgrad:20,3", target, np.full((2, D), 0.5)).jacobians.shape == (2, 1, D)


def test_smoothgrad_refuses_gradients_of_varying_classes():
    with pytest.raises(rl.MisuseError, match="top class afterwards"):
        defend.parse("top+smoothgrad:5,0.1")(TARGET)
    assert defend.parse("smoothgrad:5,0.1+top")(TARGET).offer.gradients == "top"


# Refusals


@pytest.mark.parametrize(
    ("spec", "bad"), [("box:-1,1", np.full(D, 1.01)), ("near:2", np.full(D, -2.01)), ("box:-1,9+near:2", np.full(D, 3))]
)
@pytest.mark.parametrize("gradients", [False, True])
def test_a_request_with_a_refused_row_tells_nothing_but_which(spec, bad, gradients):
    inner = Counting(TARGET)
    guarded = defend.parse(spec)(inner)
    good = np.random.default_rng(0).uniform(-1, 1, (5, D))
    mixed = np.insert(good, [1, 4], bad, axis=0)
    with pytest.raises(rl.RefusedError, match="2 of 7 rows are refused, the first is row 1") as caught:
        guarded(mixed, gradients=gradients)
    assert caught.value.rows == (1, 5)
    assert inner.queries == 0
    kept = np.delete(mixed, caught.value.rows, axis=0)
    assert (guarded(kept, gradients=gradients).values == TARGET(kept, gradients=False).values).all()


def test_a_box_is_offered_so_that_methods_stay_inside():
    guarded = defend.InputBox(Offering(TARGET, box=(-3, 0.5)), -1, 1)
    assert guarded.offer.box == (-1, 0.5)
    target = two_layer(12, 9, 3).oracle
    for asker in (rl.TwoLayer(), rl.Auto()):
        assert asker(defend.InputBox(target, 0, 1), 0).outcome is rl.Outcome.RECOVERED
    rl.Linear()(defend.InputBox(target, 0, 1), 0)
    rl.TwoLayerFromValues()(defend.InputBox(target, 0, 1), 0)
    with pytest.raises(rl.RefusedError):
        defend.InputBox(target, 0, 1)(np.full((1, 12), -1e-12), gradients=False)


def test_a_rule_of_one_s_own_refuses_what_is_not_like_the_data():
    data = np.random.default_rng(0).standard_normal((100, D))
    guarded = defend.Refusing(TARGET, lambda rows: np.abs(rows).max(axis=1) > 6, "it is not like the data")
    assert len(guarded(data + 0.1, gradients=True)) == 100
    with pytest.raises(rl.RefusedError, match="it is not like the data"):
        guarded(data[:1] + 10, gradients=False)
    assert guarded.changes == "Refuses some inputs: it is not like the data."
    assert len(guarded(np.empty((0, D)), gradients=False)) == 0


def test_a_refusal_ends_a_run_as_an_oracle_s_failure_does():
    with pytest.raises(rl.OracleFailedError, match="refused"):
        rl.TwoLayer()(defend.FarInputs(TARGET, 0.01), 0)


@pytest.mark.parametrize("budget", [1, 7, 50])
def test_a_budget_is_never_exceeded(budget):
    inner = Counting(TARGET)
    guarded = defend.Budget(inner, budget)
    rng = np.random.default_rng(budget)
    for n in rng.integers(0, 9, 60):
        try:
            guarded(X[:n], gradients=bool(n % 2))
        except rl.BudgetError:
            assert inner.queries + n > budget
    assert inner.queries == guarded.used <= budget
    assert rl.TwoLayer()(defend.Budget(TARGET, 12), 0).outcome is rl.Outcome.BUDGET_EXHAUSTED


def test_each_defended_oracle_has_a_budget_of_its_own():
    chain = defend.parse("budget:5")
    for _ in range(3):
        assert len(chain(TARGET)(X[:5], gradients=False)) == 5


# Watching


@pytest.mark.parametrize("asker", [rl.TwoLayer(), rl.TwoLayerFromValues(), rl.Auto()], ids=lambda a: type(a).__name__)
def test_line_searches_are_noticed_and_refused_from_then_on(asker):
    inner = Counting(TARGET)
    guarded = defend.LineWatch(inner)
    with pytest.raises(rl.RefusedError, match="too many lie on lines"):
        asker(guarded, 0)
    asked = inner.queries
    assert guarded.detected
    with pytest.raises(rl.RefusedError) as caught:
        guarded(X, gradients=False)
    assert caught.value.rows == tuple(range(len(X)))
    assert inner.queries == asked


def test_lines_are_noticed_after_as_many_rows_as_said():
    guarded = defend.LineWatch(TARGET, patience=4, window=10)
    line = X[0] + np.linspace(-1, 1, 20)[:, None] * X[1]
    for row in line[:5]:  # the third is the first on a line with two others
        guarded(row[None], gradients=False)
    assert not guarded.detected
    with pytest.raises(rl.RefusedError):
        guarded(line[5:6], gradients=False)


def test_lines_are_noticed_among_other_questions_within_the_window():
    rng = np.random.default_rng(0)
    mixed = [row for t in np.linspace(-1, 1, 30) for row in (X[0] + t * X[1], *rng.standard_normal((4, D)))]
    with pytest.raises(rl.RefusedError):
        defend.LineWatch(TARGET)(np.array(mixed), gradients=False)
    assert len(defend.LineWatch(TARGET, window=5)(np.array(mixed), gradients=False)) == 150


@pytest.mark.parametrize("spec", ["lines", "prada"])
def test_who_shows_data_is_answered(spec):
    images = load_digits().data / 16
    target = two_layer(64, 20, 10).oracle
    guarded = defend.parse(spec)(target)
    order = np.random.default_rng(0).permutation(len(images))[:600]
    assert len(guarded(images[order], gradients=False)) == 600
    assert not guarded.detected


def test_repeated_questions_are_no_lines():
    guarded = defend.LineWatch(TARGET, patience=1)
    assert len(guarded(np.repeat(X, 5, axis=0), gradients=False)) == 200


def test_too_few_inputs_for_lines_are_refused():
    with pytest.raises(rl.MisuseError, match="at least 5 inputs"):
        defend.LineWatch(two_layer(2, 3, 1).oracle)


def test_unnatural_distances_are_noticed():
    rng = np.random.default_rng(0)
    seeds = rng.standard_normal((20, D))
    steps = np.concatenate([seeds + 0.01 * i * np.sign(rng.standard_normal(seeds.shape)) for i in range(10)])
    guarded = defend.DistanceWatch(TARGET)
    with pytest.raises(rl.RefusedError, match="not those of data"):
        guarded(steps, gradients=False)
    with pytest.raises(rl.RefusedError):
        defend.DistanceWatch(TARGET, window=50)(np.repeat(X[:1], 60, axis=0), gradients=False)


# Names


def test_the_registry_is_complete_and_its_examples_work():
    listed = {kind.defended for kind in defend.DEFENCES}
    defined = {
        thing
        for thing in vars(defend).values()
        if isinstance(thing, type) and issubclass(thing, defend.Defended) and thing is not defend.Defended
    }
    assert defined - listed == {defend.Refusing}  # takes a function, which has no words
    for kind in defend.DEFENCES:
        assert kind.changes == defend.parse(kind.example).changes
        assert kind.defended.__doc__


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("", "expected one of round, noise"),
        ("blur:3", "defence 'blur:3': expected one of round, noise"),
        ("round:4+", "expected one of round, noise"),
        ("round", "decimals is not given"),
        ("round:", "decimals must be a whole number, got ''"),
        ("round:x", "expected 'round:DECIMALS,.both.values.gradients.', such as 'round:6'.* got 'x'"),
        ("round:1.5", "must be a whole number, got '1.5'"),
        ("round:inf", "must be a whole number, got 'inf'"),
        ("noise:nan", "must be a number, got 'nan'"),
        ("noise:1,loud", "got 'loud'"),
        ("noise:1,fresh,consistent", "got 'consistent'"),
        ("sign:3", "expected 'sign'.* got '3'"),
        ("round:16", "0 to 15 decimals, got 16"),
        ("noise:0", "a positive standard deviation, got 0.0"),
        ("noise:-1", "a positive standard deviation, got -1.0"),
        ("topk:0", "at least 1 feature"),
        ("heatmap:1", "2 to 16 bits"),
        ("smoothgrad:0,1", "at least 1 sample"),
        ("smoothgrad:5,0", "a positive standard deviation"),
        ("box:1,0", "low < high"),
        ("near:0", "a positive reach"),
        ("budget:0", "at least 1 row"),
        ("lines:0", "a patience of at least 1"),
        ("lines:1,1", "a window of at least 2"),
        ("prada:1", "a threshold in"),
        ("prada:0.9,3", "a window of at least 20"),
        ("high-confidence:0.2", "expected probabilities, got 'logits'"),
        ("label+top", "an oracle that offers gradients"),
        ("label:kept+noise:0.1", "values that are numbers"),
    ],
)
def test_wrong_words_are_answered_with_what_there_is(spec, match):
    with pytest.raises(rl.MisuseError, match=match):
        defend.parse(spec)(TARGET)


@pytest.mark.parametrize("spec", ["high-confidence:1.5", "reverse-sigmoid:0", "reverse-sigmoid:1,-1"])
def test_wrong_settings_of_probabilities_are_refused(spec):
    with pytest.raises(rl.MisuseError, match="expected"):
        defend.parse(spec)(PROBABILITIES)


def test_what_cannot_be_told_is_refused():
    with pytest.raises(rl.MisuseError, match="one real output"):
        defend.LabelOnly(two_layer(D, 9, 1).oracle)
    with pytest.raises(rl.MisuseError, match="gradients of all outputs"):
        defend.TopClass(two_layer(D, 9, K, gradients=1).oracle)


def test_the_first_of_a_chain_stands_next_to_the_target():
    outer = defend.parse("noise:1e+0,consistent + round:1")(TARGET, rng=0)
    assert isinstance(outer, defend.Rounded)
    assert isinstance(outer.oracle, defend.GaussianNoise)
    values = outer(X, gradients=False).values
    assert np.allclose(values, np.round(values, 1))
    assert str(defend.parse("round:4,values+top")) == "round:4,values+top"


def test_a_chain_can_be_sent_to_another_process():
    chain = defend.parse("noise:0.5,consistent+topk:2")
    assert pickle.loads(pickle.dumps(chain)) == chain


def test_two_noises_of_a_chain_are_independent():
    once = shown("noise:1,consistent").values - TRUTH.values
    second = shown("noise:1,consistent+noise:1,consistent").values - TRUTH.values - once
    assert abs(np.corrcoef(once.ravel(), second.ravel())[0, 1]) < 0.3


# The page


def test_the_page_lists_every_defence_with_what_it_changes():
    page = (DOCS / "defences.md").read_text()
    for kind in defend.DEFENCES:
        usage = kind.usage.replace("|", "\\|")
        assert f"| `{usage}` | `{kind.example}` | {kind.changes} |" in page, kind.name
