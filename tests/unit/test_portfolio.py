"""Students of values alone: as good as what scikit-learn's users fit, whatever the inputs' units."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import relumine as rl
from relumine.audit.asking import Questions
from relumine.audit.attacks import attacks_for
from relumine.audit.levels import LEVELS
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.portfolio.answers import by_columns
from relumine.reconstruct.portfolio.families import KINDS
from relumine.reconstruct.portfolio.method import Portfolio


def served(model, outputs: int, inputs: int) -> rl.Oracle:
    """The model's probabilities."""
    offer = rl.Offer(inputs=(inputs,), outputs=outputs, values="probabilities", gradients="none", dtype="float64")
    return rl.FunctionOracle(lambda rows, gradients: (model.predict_proba(rows), None), offer)


def best(oracle: rl.Oracle, level: str, budget: int, pool, test, seeds=(0,)) -> float:
    """Agreement of the best attack's copies with the oracle, the mean over seeds."""
    view = LEVELS[level].of(oracle)
    truth = oracle(test, gradients=False).values.argmax(axis=1)
    found = []
    for attack in (one for one in attacks_for(level, view.offer) if one.key.kind == "student"):
        copies = [attack(rl.Metered(view, budget=budget), budget, seed, pool) for seed in seeds]
        found.append(np.mean([(copy.predict(test).argmax(axis=1) == truth).mean() for copy in copies]))
    return max(found)


@pytest.mark.parametrize(
    ("model", "least"),
    [(LogisticRegression(), 0.94), (MLPClassifier((16,), max_iter=600, random_state=0), 0.93)],
    ids=["linear", "MLP"],
)
def test_raw_features_hide_nothing_behind_their_units(model, least):
    """Columns from thousandths to thousands: a scaled logistic regression agrees on 95.7 % from 50 labels."""
    rows, labels = load_breast_cancer(return_X_y=True)
    oracle = served(make_pipeline(StandardScaler(), model).fit(rows[:200], labels[:200]), 2, 30)
    assert best(oracle, "label", 50, rows[200:384], rows[384:], seeds=(0, 1)) > least


def test_labels_of_a_pool_are_worth_what_an_svm_makes_of_them():
    rows, labels = load_digits(return_X_y=True)
    network = MLPClassifier((32,), max_iter=300, random_state=0)
    oracle = served(make_pipeline(StandardScaler(), network).fit(rows[:600], labels[:600]), 10, 64)
    pool, test = rows[600:1200], rows[1200:]
    truth = oracle(test, gradients=False).values.argmax(axis=1)
    asked = np.random.default_rng(0).permutation(pool)[:200]
    baseline = make_pipeline(StandardScaler(), SVC()).fit(asked, oracle(asked, gradients=False).values.argmax(axis=1))
    assert best(oracle, "label", 200, pool, test) >= (baseline.predict(test) == truth).mean() - 0.01


def test_probabilities_are_worth_more_than_labels():
    rows, labels = load_digits(return_X_y=True)
    oracle = served(RandomForestClassifier(random_state=0).fit(rows[:600], labels[:600]), 10, 64)
    offer, pool, test = oracle.offer, rows[600:700], rows[1200:]
    answer = oracle(pool, gradients=False)
    copies = {kind: Portfolio(kind).fit(offer, pool, answer, 0, Spent()) for kind in KINDS}
    shares = oracle(test, gradients=False).values
    for kind, copy in copies.items():
        guessed = copy.predict(test)
        assert guessed.shape == shares.shape
        assert (guessed.argmax(axis=1) == shares.argmax(axis=1)).mean() > 0.6, kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("values", ["label", "probabilities", "logits", "real"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_every_kind_of_answer_teaches_something(kind, count, values, outputs):
    """Few answers, one class alone, single outputs: there is always a copy, which answers as many numbers."""
    rng = np.random.default_rng(count)
    rows = rng.standard_normal((count, 4)) * [1, 1e3, 1e-3, 0] + [0, 5e3, 1, 7]
    logits = rows @ rng.standard_normal((4, outputs))
    answers = {
        "label": np.eye(outputs)[logits.argmax(axis=1)] if outputs > 1 else (logits > 0) * 1.0,
        "probabilities": np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        if outputs > 1
        else 1 / (1 + np.exp(-np.clip(logits, -30, 30))),
    }
    answer = rl.Answer(answers.get(values, logits))
    offer = rl.Offer(inputs=(4,), outputs=outputs, values=values, gradients="none", dtype="float64")
    result = Portfolio(kind).fit(offer, rows, answer, 0, Spent())
    guessed = result.predict(rows)
    assert guessed.shape == (count, outputs)
    assert np.isfinite(guessed).all()
    if count == 1 and outputs > 1:
        assert (guessed.argmax(axis=1) == answer.values.argmax(axis=1)).all()


def test_a_regression_is_learned_from_its_numbers():
    rows, _ = load_diabetes(return_X_y=True, scaled=False)
    offer = rl.Offer(inputs=(10,), outputs=1, values="real", gradients="none", dtype="float64")
    weights = np.random.default_rng(0).standard_normal(10) / rows.std(axis=0)
    wanted = (rows @ weights)[:, None]
    result = Portfolio("linear").fit(offer, rows[:60], rl.Answer(wanted[:60]), 0, Spent())
    assert np.abs(result.predict(rows[60:]) - wanted[60:]).max() < 0.05 * wanted.std()


def test_constant_columns_are_only_centred():
    rows = np.array([[1.0, 5.0, 1e9], [3.0, 5.0, 1e9 + 1]])
    scaled = by_columns(rows)(rows)
    assert np.allclose(scaled[:, :2], [[-1, 0], [1, 0]])
    assert np.abs(scaled).max() <= 1


# Beyond the pool


@pytest.mark.parametrize("shape", [(6,), (1, 2, 3)])
def test_budgets_beyond_the_pool_are_mixtures_of_its_inputs(shape):
    rng = np.random.default_rng(0)
    pool = rng.uniform(1000, 1001, (20, 6))
    offer = rl.Offer(inputs=shape, outputs=2, values="label", gradients="none", dtype="float64")
    questions = Questions(offer, pool, rng)
    rows = np.concatenate([questions.draw(15) for _ in range(10)])
    assert rows.min() >= pool.min()
    assert rows.max() <= pool.max()
    assert questions.typical(rows).sum() == questions.typical(rows[:20]).sum() == 20
    assert len(np.unique(rows, axis=0)) == 150
    if len(shape) == 1:
        nearest = np.abs(rows[20:, None] - pool).sum(axis=2).min(axis=1)
        assert 0 < nearest.mean() < np.abs(pool[:, None] - pool).sum(axis=2).mean()


def test_without_a_pool_inputs_are_drawn_at_random():
    offer = rl.Offer(inputs=(3,), outputs=2, values="label", gradients="none", dtype="float64")
    questions = Questions(offer, None, np.random.default_rng(0))
    rows = questions.draw(400)
    assert abs(rows.std() - 1) < 0.1
    assert questions.typical(rows).all()
