"""The audit's attacks: each behind each defence, on networks small enough to be quick."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import relumine as rl
from problems import error, two_layer
from relumine import defend
from relumine.audit.attacks import Attack, attacks_for
from relumine.audit.data import AuditData
from relumine.audit.levels import LEVELS, PUBLIC_BACKBONE, Setting

D, K, H = 6, 3, 5
FITTED, RECOVERED = rl.Outcome.FITTED, rl.Outcome.RECOVERED


@cache
def target(values: str = "logits", seed: int = 0):
    return two_layer(D, H, K, values=values, seed=seed)


def defended(words: str, level: str = "gradients", values: str = "logits") -> tuple[rl.Oracle, defend.Chain | None]:
    seen = LEVELS[level].of(target(values).oracle)
    chain = defend.parse(words) if words else None
    return (chain(seen, rng=1) if chain else seen), chain


def attacks(words: str, level: str = "gradients", values: str = "logits") -> dict[str, Attack]:
    oracle, chain = defended(words, level, values)
    return {attack.key.name: attack for attack in attacks_for(level, oracle.offer, chain)}


def attacked(
    name: str, words: str, budget: int, level: str = "gradients", values: str = "logits", *, seed: int = 0
) -> tuple[rl.Reconstruction, rl.Metered]:
    meter = rl.Metered(defended(words, level, values)[0], budget=budget)
    return attacks(words, level, values)[name](meter, budget, seed), meter


def agreement(result: rl.Reconstruction, values: str = "logits") -> float:
    x = np.random.default_rng(9).standard_normal((2000, D))
    return float((result.predict(x).argmax(1) == target(values).predict(x).argmax(1)).mean())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", "exact"),
        ("magnitude", "exact, adapted"),
        ("maxnorm", "exact, adapted"),
        ("magnitude+maxnorm", "exact, adapted"),
        ("smoothgrad:4,0.01", "exact, adapted"),
        ("near:3", "exact, adapted"),
        ("lines:10", "exact, adapted"),
        ("prada:0.9", "exact, adapted"),
        ("box:-5,5", "exact"),
        ("budget:5000", "exact"),
        ("round:9", "exact"),
        ("topk:2", "exact, from values"),
        ("sign", "exact, from values"),
        ("heatmap:8", "exact, from values"),
        ("noise:0.1,gradients", "exact, from values"),
    ],
)
def test_exact_attacks_get_past_what_hides_nothing(words, name):
    result, meter = attacked(name, words, 100_000)
    assert result.outcome is RECOVERED
    assert error(result, target()) < 1e-6
    assert result.spent.queries == meter.spent.queries


@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_rounded_values_hide_nothing_either(values):
    result, _ = attacked("exact, from values", "round:5", 100_000, values, values)
    assert result.outcome is RECOVERED
    assert error(result, target(values)) < 1e-3


@pytest.mark.parametrize("words", ["noise:1e-6", "noise:1e-6,consistent", "noise:1e-6,multiplicative"])
def test_noise_is_averaged_away(words):
    result, _ = attacked("exact, adapted", words, 100_000)
    assert result.clone is not None
    assert error(result, target()) < 1e-4


@pytest.fixture
def short_lessons(monkeypatch):
    """Students that learn for a moment: whether anything raises does not depend on how much they learn."""
    monkeypatch.setattr("relumine.audit.attacks._STEPS", {D: 5})


@pytest.mark.parametrize("kind", defend.DEFENCES, ids=lambda kind: kind.name)
def test_whatever_the_defence_an_attack_ends_with_an_outcome(kind, short_lessons):
    values = "probabilities" if kind.name in ("high-confidence", "reverse-sigmoid") else "logits"
    for name, attack in attacks(kind.example, values=values).items():
        for budget in (1, 7, 300):
            meter = rl.Metered(defended(kind.example, values=values)[0], budget=budget)
            result = attack(meter, budget, 0)
            assert isinstance(result.outcome, rl.Outcome), name
            assert result.spent.queries == meter.spent.queries <= budget
            assert result.clone is None or result.predict(np.zeros((2, D))).shape == (2, K)


# Logits are no regression's values, only trees have SHAP values of their own, and only texts have tokens.
NOT_OF_LOGITS = ["values", "shap", "token-gradients", "token-integrated-gradients"]


@pytest.mark.parametrize("level", NOT_OF_LOGITS)
def test_a_level_that_a_target_cannot_give_is_none(level):
    assert LEVELS[level].of(target().oracle) is None


@pytest.mark.parametrize(
    "level",
    [level for level in LEVELS if level not in (*NOT_OF_LOGITS, PUBLIC_BACKBONE)],  # which test_head.py attacks
)
def test_every_level_has_an_attack_that_leaves_a_clone(level, short_lessons):
    results = [attacked(name, "", 64, level)[0] for name in attacks("", level)]
    assert any(result.outcome is FITTED for result in results)


def test_a_label_is_never_reconstructed_exactly():
    assert all(attack.key.kind == "student" for attack in attacks("", "label").values())
    assert all(attack.key.kind == "student" for attack in attacks("label").values())


def test_refused_rows_are_replaced_by_others(short_lessons):
    result, meter = attacked("learned", "near:1", 50)
    assert result.outcome is FITTED
    assert meter.spent.gradient_queries == 50


def test_what_was_answered_before_a_detection_counts(short_lessons):
    oracle = defended("lines:2")[0]
    line = np.linspace(0, 1, 4)[:, None] * np.ones(D)
    pool = np.concatenate([np.random.default_rng(0).standard_normal((64, D)), line])
    with pytest.raises(rl.RefusedError):
        oracle(line, gradients=False)
    result = attacks("lines:2")["learned"](rl.Metered(oracle), 50, 0, pool)
    assert result.outcome is rl.Outcome.REFUSED
    assert "reconstruction" in result.evidence.remark
    fresh = attacks("budget:33")["learned"](rl.Metered(defended("budget:33")[0]), 50, 0, pool)
    assert fresh.outcome is FITTED
    assert fresh.spent.gradient_queries == 33
    assert "budget of 33 rows" in fresh.evidence.remark


@pytest.mark.parametrize("words", ["topk:2", "magnitude", "label:kept", "noise:0.3"])
def test_maps_that_say_something_teach_more_than_values_alone(words):
    """Few queries: four of a network with 6 inputs, 5 units and 3 outputs."""
    with_maps = [agreement(attacked("learned", words, 4, seed=seed)[0]) for seed in range(2)]
    without = [agreement(attacked("values-only student", words, 4, seed=seed)[0]) for seed in range(2)]
    assert np.mean(with_maps) > np.mean(without)


def test_units_of_columns_do_not_matter_to_a_student_of_gradients():
    """Columns from thousandths to thousands: the student is the one of the target in plain units."""
    units = 10.0 ** np.linspace(-3, 3, D)
    plain = target().oracle

    def scaled(x, gradients):
        answer = plain(x / units, gradients=gradients)
        return answer.values, answer.jacobians / units if gradients else None

    pool, x = (np.random.default_rng(seed).standard_normal((200, D)) for seed in (0, 9))
    guesses = []
    for oracle, size in ((plain, 1.0), (rl.FunctionOracle(scaled, plain.offer), units)):
        result = attacks("")["learned"](rl.Metered(oracle), 20, 0, pool * size)
        guesses.append(result.predict(x * size))
    np.testing.assert_allclose(*guesses, atol=1e-2 * np.abs(guesses[0]).max())


def test_gradients_teach_a_student_of_another_class_no_less_than_values_do():
    """Three layers of digits, and students of two: matching every gradient must not cost agreement."""
    rows, labels = load_digits(return_X_y=True)
    rows = rows / 16
    deep = MLPClassifier((32, 16), max_iter=300, random_state=0).fit(rows[:600], labels[:600])
    layers = [nn.Linear(*weights.shape) for weights in deep.coefs_]
    for layer, weights, biases in zip(layers, deep.coefs_, deep.intercepts_, strict=True):
        layer.weight.data, layer.bias.data = torch.tensor(weights.T), torch.tensor(biases)
    module = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).double()
    oracle = rl.TorchOracle(module, input_shape=(64,), gradients="all", values="logits")
    pool, test = rows[600:1100], rows[1100:]
    truth = oracle(test, gradients=False).values.argmax(axis=1)

    def copied(level: str, name: str) -> float:
        view = LEVELS[level].of(oracle)
        attack = {one.key.name: one for one in attacks_for(level, view.offer)}[name]
        return (attack(rl.Metered(view), 300, 0, pool).predict(test).argmax(axis=1) == truth).mean()

    values, gradients = copied("logits", "values-only student"), copied("gradients", "learned")
    assert gradients >= max(values + 0.01, 0.95)
    assert gradients >= copied("top-gradient", "learned") - 0.015


def test_ordinary_requests_tell_where_inputs_are_watched():
    inputs = load_digits().data / 16
    model = MLPClassifier((16,), random_state=0, max_iter=60).fit(inputs, load_digits().target)
    seen = LEVELS["gradients"].of(rl.SklearnOracle(model, values="logits"))
    for words in ("", "lines:10", "prada:0.9"):
        chain = defend.parse(words) if words else None
        oracle = chain(seen, rng=1) if chain else seen
        named = {attack.key.name: attack for attack in attacks_for("gradients", oracle.offer, chain)}
        result = named["exact, ordinary requests"](rl.Metered(oracle, budget=100), 100, 0, inputs[:400])
        answers = seen(inputs[400:], gradients=False).values
        assert (result.predict(inputs[400:]).argmax(1) == answers.argmax(1)).mean() >= 0.99
        assert result.spent.queries <= 100


@pytest.mark.parametrize("level", ["probabilities", "gradients"])
def test_exact_attacks_search_where_the_pool_is(level):
    """Raw features of breast cancer lie between 0.001 and 4,000: at N(0, I) the probabilities tell little."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=60, random_state=0)).fit(inputs, labels)
    oracle = LEVELS[level].of(rl.SklearnOracle(model))
    exact = next(attack for attack in attacks_for(level, oracle.offer) if attack.key.kind == "exact")
    pool, others = inputs[::2], inputs[1::2]
    result = exact(rl.Metered(oracle, budget=1000), 1000, 0, pool)
    assert result.outcome is RECOVERED
    assert np.abs(result.predict(others) - model.predict_proba(others)).max() < 1e-8


def test_a_clone_that_is_wrong_on_the_owners_inputs_is_not_called_exact():
    """Linear everywhere, but for a narrow bump at one of the test inputs, which no attack has."""
    rng = np.random.default_rng(0)
    data, W = rng.standard_normal((60, D)), rng.standard_normal((K, D))
    test = AuditData(data, None, (), "data").halves().test.rows

    def query(x, gradients):
        bump = np.maximum(0, 1 - 1e3 * np.abs(x - test[0]).sum(axis=1))
        return x @ W.T + 100 * bump[:, None] * np.eye(K)[0], np.repeat(W[None], len(x), axis=0) if gradients else None

    oracle = rl.FunctionOracle(query, rl.Offer((D,), K, values="logits"))
    result = rl.audit(oracle, data, levels=["gradients"], budget=200, seeds=1, progress=False)
    assert result.curves[0].status != "exact"
    assert any("wrong on the owner's inputs" in record.remark for record in result.records)


def test_where_explanations_cannot_be_fitted_values_are():
    """SmoothGrad of raw features of breast cancer: its noise is 230 in all, and one of them varies by 0.003."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1e6, max_iter=3000)).fit(inputs, labels)
    deviation = float(inputs.std())
    oracle = LEVELS["smoothgrad"].of(rl.SklearnOracle(model), Setting(deviation, np.random.default_rng(0)))
    found = {attack.key.name: attack for attack in attacks_for("smoothgrad", oracle.offer, deviation=deviation)}
    pool, others = inputs[::2], inputs[1::2]
    for seed in (0, 1):
        result = found["learned"](rl.Metered(oracle, budget=100), 100, seed, pool)
        assert result.outcome is FITTED
        assert (result.predict(others).argmax(1) == model.predict(others)).mean() > 0.8


@pytest.mark.parametrize("budget", [1, 20])
def test_explanations_that_have_vanished_leave_a_student_the_values(budget):
    """Where noise takes inputs far out, probabilities of a network are saturated, and their slopes 1e-137 or 0."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 3))

    def query(x, gradients):
        p = np.exp(x @ A)
        return p / p.sum(axis=1, keepdims=True), 1e-137 * np.ones((len(x), 3, 5))

    oracle = rl.FunctionOracle(query, rl.Offer((5,), 3, values="probabilities"))
    pool = rng.standard_normal((40, 5))
    found = {attack.key.name: attack for attack in attacks_for("smoothgrad", oracle.offer)}
    result = found["learned"](rl.Metered(oracle, budget=budget), budget, 0, pool)
    assert result.clone is not None
    assert budget == 1 or (result.predict(pool).argmax(axis=1) == (pool @ A).argmax(axis=1)).mean() > 0.7
