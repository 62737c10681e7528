"""SHAP values of trees: they are what they say, and students of them need fewer queries than students of values."""

import warnings

import lightgbm
import numpy as np
import pytest
import shap
import xgboost
from scipy.special import log_softmax, logit
from sklearn import datasets
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import relumine as rl
from relumine.explain.tree_shap import TreeShap
from relumine.oracle.boosted import boosted
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.contributions import FromContributions
from relumine.reconstruct.portfolio.families import KINDS
from relumine.reconstruct.portfolio.method import Portfolio

DATA = {name: getattr(datasets, f"load_{name}")(return_X_y=True) for name in ("wine", "breast_cancer", "diabetes")}
QUIET = {"n_estimators": 20, "verbose": -1}


def explained(model: object, data: str, **how: str) -> tuple[TreeShap, np.ndarray]:
    x, y = DATA[data]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    return TreeShap(rl.PredictorOracle(boosted(model) or model, **how)), x


def scores(oracle: TreeShap, values: np.ndarray) -> np.ndarray:
    """Values as contributions sum to them, up to what all classes have in common."""
    if oracle.offer.explained != "logits":
        return values
    return logit(values) if values.shape[1] == 1 else log_softmax(np.log(values), axis=1)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (xgboost.XGBClassifier(n_estimators=20), "wine"),
        (xgboost.XGBClassifier(n_estimators=20), "breast_cancer"),
        (xgboost.XGBRegressor(n_estimators=20), "diabetes"),
        (lightgbm.LGBMClassifier(**QUIET), "wine"),
        (lightgbm.LGBMClassifier(**QUIET), "breast_cancer"),
        (lightgbm.LGBMRegressor(**QUIET), "diabetes"),
        (HistGradientBoostingClassifier(max_iter=20), "wine"),
        (HistGradientBoostingClassifier(max_iter=20), "breast_cancer"),
        (GradientBoostingClassifier(n_estimators=20), "breast_cancer"),
        (GradientBoostingClassifier(n_estimators=20), "wine"),
        (GradientBoostingClassifier(n_estimators=20, init="zero"), "wine"),
        (HistGradientBoostingRegressor(max_iter=20), "diabetes"),
        (RandomForestClassifier(20, random_state=0), "wine"),
        (DecisionTreeClassifier(max_depth=4, random_state=0), "breast_cancer"),
        (make_pipeline(StandardScaler(), RandomForestRegressor(20, random_state=0)), "diabetes"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_contributions_and_a_base_value_sum_to_the_output(model, data):
    oracle, x = explained(model, data)
    answer = oracle(x, gradients=True)
    assert answer.jacobians.shape == (len(x), oracle.offer.outputs, x.shape[1])
    assert np.array_equal(answer.values, oracle.oracle(x, gradients=False).values)
    rest = scores(oracle, answer.values) - answer.jacobians.sum(axis=2)
    if oracle.offer.explained == "logits" and rest.shape[1] > 1:
        rest -= rest.mean(axis=1, keepdims=True)
    assert np.ptp(rest, axis=0).max() < 1e-4 * max(1, np.abs(answer.values).max())


@pytest.mark.parametrize("kind", [lightgbm.LGBMRegressor(**QUIET), xgboost.XGBRegressor(n_estimators=20)], ids=type)
def test_libraries_compute_what_the_package_shap_computes(kind):
    oracle, x = explained(kind, "diabetes")
    expected = shap.TreeExplainer(kind).shap_values(x)
    assert np.abs(oracle(x, gradients=True).jacobians[:, 0] - expected).max() < 1e-3


@pytest.mark.parametrize(
    "model",
    [SVC(), LogisticRegression(max_iter=3), make_pipeline(PolynomialFeatures(2), RandomForestClassifier(3))],
    ids=["SVC", "logistic", "other features"],
)
def test_other_models_have_none(model):
    with pytest.raises(rl.MisuseError, match="SHAP values are"):
        explained(model, "wine")


def test_splits_of_categories_have_none():
    """shap reads them as thresholds, and its contributions do not sum to the model."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(8, size=300), rng.standard_normal(300)]).astype(float)
    model = HistGradientBoostingClassifier(max_iter=5, categorical_features=[0]).fit(x, np.isin(x[:, 0], [1, 4, 6]))
    with pytest.raises(rl.MisuseError, match="splits of categories"):
        TreeShap(rl.PredictorOracle(model))


def test_labels_have_none():
    with pytest.raises(rl.MisuseError, match="SHAP values sum to numbers"):
        explained(RandomForestClassifier(3), "wine", values="label")


def agreement(oracle: TreeShap, student: rl.Reconstruction, test: np.ndarray) -> float:
    """Share of the same classes, or R²."""
    values, found = oracle(test, gradients=False).values, student.predict(test)
    if oracle.offer.values == "real":
        return 1 - float(((found - values) ** 2).mean() / values.var())
    return float((found.argmax(axis=1) == values.argmax(axis=1)).mean())


def students(oracle: TreeShap, pool: np.ndarray, test: np.ndarray, count: int) -> tuple[float, float]:
    """Of contributions, and the best of values alone; both with the same number of queries."""
    answer = oracle(pool[:count], gradients=True)
    of_shap = FromContributions().fit(oracle.offer, pool[:count], answer, 0, Spent())
    alone = [Portfolio(kind).fit(oracle.oracle.offer, pool[:count], answer, 0, Spent()) for kind in KINDS]
    return agreement(oracle, of_shap, test), max(agreement(oracle, one, test) for one in alone)


@pytest.mark.parametrize("seed", [5, 6])
def test_an_additive_model_falls_to_few_queries(seed):
    """Each of 50 queries tells all ten functions that Friedman's target sums up."""
    x, y = datasets.make_friedman1(3000, noise=0.5, random_state=seed)
    model = xgboost.XGBRegressor(n_estimators=100, max_depth=1, learning_rate=0.3).fit(x[:1500], y[:1500])
    oracle = TreeShap(rl.PredictorOracle(boosted(model)))
    of_shap, alone = students(oracle, x[1500:2000], x[2000:], 50)
    assert of_shap > 0.97
    assert of_shap > alone + 0.1


MODELS = {
    "XGBoost": xgboost.XGBRegressor(n_estimators=60, max_depth=4, learning_rate=0.2),
    "LightGBM": lightgbm.LGBMRegressor(n_estimators=60, verbose=-1),
    "HistGradientBoosting": HistGradientBoostingRegressor(max_iter=60),
    "RandomForest": RandomForestRegressor(30, random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_deeper_trees_take_a_quarter_of_the_queries(name):
    x, y = datasets.make_friedman1(3000, noise=0.5, random_state=7)
    model = MODELS[name].fit(x[:1500], y[:1500])
    oracle = TreeShap(rl.PredictorOracle(boosted(model) or model))
    few, same = students(oracle, x[1500:2000], x[2000:], 50)
    _, many = students(oracle, x[1500:2000], x[2000:], 200)
    assert few > same + 0.08
    assert few > many - 0.05


@pytest.mark.parametrize(
    "model",
    [
        xgboost.XGBClassifier(n_estimators=10, max_depth=2),
        lightgbm.LGBMClassifier(n_estimators=10, verbose=-1),
        HistGradientBoostingClassifier(max_iter=10),
        GradientBoostingClassifier(n_estimators=10),
        RandomForestClassifier(10, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_an_audit_has_a_level_for_them_that_is_no_safer_than_values(model):
    x, y = DATA["wine"]
    result = rl.audit(model.fit(x, y), x, y, levels=["probabilities", "shap"], budget=10, seeds=1, progress=False)
    values, contributions = result.curves
    assert contributions.level == "shap"
    assert "learned, contributions" in contributions.attacks
    assert contributions.baseline == "probabilities"
    best = [max(point.agreement.mean for point in curve.points) for curve in (values, contributions)]
    assert best[1] >= best[0] > 0.3
    assert not [record.error for record in result.records if record.failed]
