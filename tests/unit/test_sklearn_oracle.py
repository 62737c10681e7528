"""SklearnOracle computes what scikit-learn computes, and refuses what it cannot."""

import warnings

import numpy as np
import pytest
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, LinearSVC

import relumine as rl

DATA = {name: getattr(datasets, f"load_{name}")(return_X_y=True) for name in ("diabetes", "wine", "breast_cancer")}


def fit(estimator: object, data: str, *, columns: int = 1, scaled: bool = False, dtype: type = np.float64) -> object:
    x, y = DATA[data]
    x = (StandardScaler().fit_transform(x) if scaled else x).astype(dtype)
    y = np.column_stack([y, y[::-1]]) if columns == 2 else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(x, y)


def network(kind: type = MLPClassifier, **options: object) -> object:
    return kind(**{"hidden_layer_sizes": (9,), "max_iter": 60, "random_state": 0, **options})


def inputs_of(data: str, *, scaled: bool) -> np.ndarray:
    x, _ = DATA[data]
    draws = np.random.default_rng(2).standard_normal((60, x.shape[1]))
    return draws if scaled else x.mean(axis=0) + x.std(axis=0) * draws


REGRESSORS = {
    "linear": (LinearRegression(), 1),
    "linear, no intercept": (LinearRegression(fit_intercept=False), 1),
    "linear, two": (LinearRegression(), 2),
    "ridge": (Ridge(), 2),
    "lasso": (Lasso(), 1),
    "elastic net": (ElasticNet(), 1),
    "scaled ridge": (make_pipeline(StandardScaler(), Ridge()), 1),
    **{a: (network(MLPRegressor, activation=a), 1) for a in ("relu", "tanh", "logistic", "identity")},
    "relu, deep, two": (network(MLPRegressor, hidden_layer_sizes=(9, 7, 5)), 2),
    "scaled network": (make_pipeline(MinMaxScaler(), network(MLPRegressor)), 1),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_predict_the_same(name: str) -> None:
    estimator, columns = REGRESSORS[name]
    estimator = fit(estimator, "diabetes", columns=columns)
    x = inputs_of("diabetes", scaled=False)
    oracle = rl.SklearnOracle(estimator)
    expected = estimator.predict(x).reshape(len(x), -1)
    assert (oracle.offer.values, oracle.offer.outputs, oracle.offer.inputs) == ("real", columns, (10,))
    assert np.abs(oracle(x, gradients=True).values - expected).max() < 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("data", ["wine", "breast_cancer"])
@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        LogisticRegressionCV(cv=3, Cs=3),
        network(),
        network(activation="tanh", hidden_layer_sizes=(6, 5)),
        network(activation="logistic"),
        network(activation="identity"),
    ],
    ids=["logistic", "logistic_cv", "relu", "tanh", "sigmoid", "identity"],
)
def test_classifiers_give_the_same_probabilities(estimator: object, data: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = fit(estimator, data, scaled=True)
    x = inputs_of(data, scaled=True)
    expected = estimator.predict_proba(x)
    oracle = rl.SklearnOracle(estimator)
    assert (oracle.offer.values, oracle.offer.outputs) == ("probabilities", expected.shape[1])
    assert np.abs(oracle(x, gradients=False).values - expected).max() < 1e-12


@pytest.mark.parametrize("data", ["wine", "breast_cancer"])
@pytest.mark.parametrize(
    "scalers",
    [
        [StandardScaler()],
        [StandardScaler(with_mean=False)],
        [StandardScaler(with_std=False), MaxAbsScaler()],
        [MinMaxScaler((-1, 2)), StandardScaler(), MaxAbsScaler()],
        ["passthrough", StandardScaler()],
    ],
    ids=repr,
)
def test_scalers_in_front_are_followed(data: str, scalers: list[object]) -> None:
    estimator = fit(make_pipeline(*scalers, network()), data)
    x = inputs_of(data, scaled=False)
    assert np.abs(rl.SklearnOracle(estimator)(x, gradients=False).values - estimator.predict_proba(x)).max() < 1e-12


@pytest.mark.parametrize("estimator", [LogisticRegression(), network()], ids=["logistic", "network"])
def test_logits_of_two_classes_are_the_log_odds(estimator: object) -> None:
    estimator = fit(estimator, "breast_cancer", scaled=True)
    x = inputs_of("breast_cancer", scaled=True)
    logits = rl.SklearnOracle(estimator, values="logits")(x, gradients=True)
    assert logits.values.shape == (60, 1)
    p = estimator.predict_proba(x)
    near = np.abs(logits.values[:, 0]) < 5
    assert near.any()
    assert np.allclose(logits.values[near, 0], np.log(p[near, 1] / p[near, 0]), rtol=0, atol=1e-12)


def test_both_probabilities_of_two_classes_keep_their_digits() -> None:
    estimator = fit(LogisticRegression(C=1e4, max_iter=1000), "breast_cancer", scaled=True)
    x = inputs_of("breast_cancer", scaled=True)
    logits = rl.SklearnOracle(estimator, values="logits")(x, gradients=True)
    assert np.abs(logits.values).max() > 100
    linked = rl.LogitLink(rl.SklearnOracle(estimator))(x, gradients=True)
    odds = linked.values[:, 1:] - linked.values[:, :1]
    assert np.abs(odds - logits.values).max() < 1e-13 * np.abs(logits.values).max()
    slopes = linked.jacobians[:, 1:] - linked.jacobians[:, :1]
    assert np.abs(slopes - logits.jacobians).max() < 1e-13 * np.abs(logits.jacobians).max()


def test_logits_of_three_classes_are_those_behind_the_softmax() -> None:
    estimator = fit(network(), "wine", scaled=True)
    x = inputs_of("wine", scaled=True)
    logits = rl.SklearnOracle(estimator, values="logits")(x, gradients=True)
    linked = rl.LogitLink(rl.SklearnOracle(estimator))(x, gradients=True)
    assert np.allclose(linked.values, logits.values - logits.values.mean(axis=1, keepdims=True), rtol=0, atol=1e-12)


def test_gradients_of_the_largest_and_of_one_output() -> None:
    estimator = fit(network(), "wine", scaled=True)
    x = inputs_of("wine", scaled=True)
    everything = rl.SklearnOracle(estimator)(x, gradients=True)
    top = rl.SklearnOracle(estimator, gradients="top")(x, gradients=True).jacobians
    second = rl.SklearnOracle(estimator, gradients=1)(x, gradients=True).jacobians
    assert np.array_equal(top[:, 0], everything.jacobians[np.arange(60), everything.values.argmax(axis=1)])
    assert np.array_equal(second[:, 0], everything.jacobians[:, 1])
    assert rl.SklearnOracle(estimator, gradients=None).offer.gradients == "none"


def test_several_labels_are_answered_as_logits() -> None:
    x, y = datasets.make_multilabel_classification(80, 6, n_classes=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator = network().fit(x, y)
    oracle = rl.SklearnOracle(estimator)
    assert (oracle.offer.values, oracle.offer.outputs) == ("logits", 3)
    assert np.allclose(1 / (1 + np.exp(-oracle(x, gradients=False).values)), estimator.predict_proba(x), atol=1e-12)
    with pytest.raises(rl.MisuseError, match=r"answers 'logits' \(one per label\), got 'probabilities'"):
        rl.SklearnOracle(estimator, values="probabilities")


def test_other_linear_classifiers_answer_their_decision_function() -> None:
    for estimator in (LinearSVC(), SGDClassifier(random_state=0)):
        fit(estimator, "wine", scaled=True)
        x = inputs_of("wine", scaled=True)
        oracle = rl.SklearnOracle(estimator)
        assert oracle.offer.values == "logits"
        assert np.allclose(oracle(x, gradients=False).values, estimator.decision_function(x), rtol=1e-12)
    estimator.sparsify()
    assert np.allclose(rl.SklearnOracle(estimator)(x, gradients=False).values, estimator.decision_function(x))


def test_models_trained_in_float32_or_on_named_columns_are_taken() -> None:
    x = inputs_of("wine", scaled=True)
    single = fit(network(), "wine", scaled=True, dtype=np.float32)
    assert single.coefs_[0].dtype == np.float32
    assert np.abs(rl.SklearnOracle(single)(x, gradients=False).values - single.predict_proba(x)).max() < 1e-12
    named = fit(LogisticRegression(), "wine", scaled=True)
    named.feature_names_in_ = np.array([f"column {i}" for i in range(13)], dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rl.SklearnOracle(named).offer.outputs == 3


def test_the_model_may_be_trained_on_without_changing_the_oracle() -> None:
    estimator = fit(network(warm_start=True), "wine", scaled=True)
    x = inputs_of("wine", scaled=True)
    oracle = rl.SklearnOracle(estimator)
    before = oracle(x, gradients=False).values
    for weight in estimator.coefs_:
        weight[:] = 0
    assert np.array_equal(oracle(x, gradients=False).values, before)


@pytest.mark.parametrize(
    "unfitted", [LinearRegression(), MLPClassifier(), make_pipeline(StandardScaler(), Ridge())], ids=repr
)
def test_models_that_are_not_fitted_are_refused(unfitted: object) -> None:
    with pytest.raises(rl.MisuseError, match="is not fitted; call its fit first"):
        rl.SklearnOracle(unfitted)


@pytest.mark.parametrize(
    ("estimator", "complaint"),
    [
        (RandomForestClassifier(3), "expected one of linear models"),
        (SVC(), "expected one of linear models"),
        (PoissonRegressor(), "PoissonRegressor does not compute what its parameters say"),
        (OneVsRestClassifier(LogisticRegression()), "expected one of linear models"),
        (make_pipeline(PolynomialFeatures(2), Ridge()), "got a pipeline with PolynomialFeatures"),
        (make_pipeline(MinMaxScaler(clip=True), Ridge()), "got a pipeline with MinMaxScaler"),
        (network(MLPRegressor, loss="poisson", max_iter=3), "got 'exp'"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_models_of_other_kinds_are_refused(estimator: object, complaint: str) -> None:
    with pytest.raises(rl.MisuseError, match=complaint):
        rl.SklearnOracle(fit(estimator, "wine", scaled=True))


@pytest.mark.parametrize("thing", [3, LinearRegression, lambda x: x])
def test_what_is_no_model_is_refused(thing: object) -> None:
    with pytest.raises(rl.MisuseError, match="expected a scikit-learn model"):
        rl.SklearnOracle(thing)


@pytest.mark.parametrize(
    ("estimator", "data", "values", "complaint"),
    [
        (Ridge(), "diabetes", "logits", "Ridge answers 'real', got 'logits'"),
        (Ridge(), "diabetes", "probabilities", "Ridge answers 'real', got 'probabilities'"),
        (LogisticRegression(), "wine", "real", "LogisticRegression answers 'probabilities' or 'logits', got 'real'"),
    ],
)
def test_values_that_a_model_does_not_have_are_refused(
    estimator: object, data: str, values: str, complaint: str
) -> None:
    with pytest.raises(rl.MisuseError, match=complaint):
        rl.SklearnOracle(fit(estimator, data, scaled=True), values=values)
