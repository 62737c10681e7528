"""Any model that predicts is a target: its values or labels are those that it gives itself."""

import warnings
from pathlib import Path

import lightgbm
import numpy as np
import pandas
import pytest
import skl2onnx
import skops.io
import xgboost
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC
from sklearn.tree import DecisionTreeClassifier

import relumine as rl
from relumine.oracle.predictor import FunctionPredictor
from relumine.targets import load_target

DATA = {name: getattr(datasets, f"load_{name}")(return_X_y=True) for name in ("wine", "breast_cancer", "diabetes")}

CLASSIFIERS = (
    RandomForestClassifier(4, random_state=0),
    GradientBoostingClassifier(n_estimators=4),
    HistGradientBoostingClassifier(max_iter=4),
    AdaBoostClassifier(n_estimators=4, random_state=0),
    BaggingClassifier(n_estimators=3, random_state=0),
    DecisionTreeClassifier(max_depth=3, random_state=0),
    SVC(),
    NuSVC(nu=0.1),
    LinearSVC(),
    KNeighborsClassifier(),
    KNeighborsClassifier(algorithm="ball_tree", metric="manhattan"),
    GaussianNB(),
    make_pipeline(StandardScaler(), SVC()),
    make_pipeline(PolynomialFeatures(2), StandardScaler(), LogisticRegression()),
    CalibratedClassifierCV(SVC(), cv=3),
    VotingClassifier([("a", GaussianNB()), ("b", DecisionTreeClassifier(max_depth=2))]),
    StackingClassifier([("a", GaussianNB()), ("b", SVC())], cv=3),
)
REGRESSORS = (
    RandomForestRegressor(4, random_state=0),
    ExtraTreesRegressor(4, random_state=0),
    HistGradientBoostingRegressor(max_iter=4),
    SVR(),
    KNeighborsRegressor(),
    GaussianProcessRegressor(alpha=1.0),
    make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge()),
)


def fit(model: object, data: str) -> tuple[object, np.ndarray]:
    x, y = DATA[data]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    return model, x


def expected(model: object, x: np.ndarray) -> np.ndarray:
    if hasattr(model, "predict_proba"):
        return model.predict_proba(x)
    if hasattr(model, "decision_function"):
        return model.decision_function(x).reshape(len(x), -1)
    labels = model.predict(x)
    return np.eye(len(model.classes_))[labels] if hasattr(model, "classes_") else labels.reshape(len(x), -1)


def name_of(model: object) -> str:
    return repr(model)[:40]


@pytest.mark.parametrize("data", ["wine", "breast_cancer"])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=name_of)
def test_a_classifier_saved_by_skops_answers_as_it_does_itself(model: object, data: str, tmp_path: Path) -> None:
    model, x = fit(model, data)
    skops.io.dump(model, tmp_path / "model.skops")
    oracle = load_target(str(tmp_path / "model.skops"))
    assert oracle.offer.values in ("probabilities", "logits", "label")
    assert np.abs(oracle(x, gradients=False).values - expected(model, x)).max() < 1e-12


@pytest.mark.parametrize("model", REGRESSORS, ids=name_of)
def test_a_regressor_is_one(model: object, tmp_path: Path) -> None:
    model, x = fit(model, "diabetes")
    skops.io.dump(model, tmp_path / "model.skops")
    oracle = load_target(str(tmp_path / "model.skops"))
    assert (oracle.offer.values, oracle.offer.outputs, oracle.offer.gradients) == ("real", 1, "none")
    assert np.abs(oracle(x, gradients=False).values - expected(model, x)).max() < 1e-9


@pytest.mark.parametrize("ending", ["json", "ubj"])
@pytest.mark.parametrize("data", ["wine", "breast_cancer", "diabetes"])
def test_xgboost_from_its_own_files(data: str, ending: str, tmp_path: Path) -> None:
    kind = xgboost.XGBRegressor if data == "diabetes" else xgboost.XGBClassifier
    model, x = fit(kind(n_estimators=8, max_depth=4, gamma=1.0), data)
    model.save_model(tmp_path / f"model.{ending}")
    oracle = load_target(str(tmp_path / f"model.{ending}"))
    assert oracle.offer.values == ("real" if data == "diabetes" else "probabilities")
    assert np.abs(oracle(x, gradients=False).values - expected(model, x)).max() < 1e-6


@pytest.mark.parametrize("booster", ["dart", "gbtree"])
def test_xgboost_stops_where_training_did(booster: str, tmp_path: Path) -> None:
    x, y = DATA["breast_cancer"]
    model = xgboost.XGBClassifier(n_estimators=30, booster=booster, early_stopping_rounds=2, learning_rate=1.0)
    model.fit(x[:400], y[:400], eval_set=[(x[400:], y[400:])], verbose=False)
    model.save_model(tmp_path / "model.json")
    values = load_target(str(tmp_path / "model.json"))(x, gradients=False).values
    assert np.abs(values - model.predict_proba(x)).max() < 1e-6


@pytest.mark.parametrize("data", ["wine", "breast_cancer", "diabetes"])
def test_lightgbm_from_its_own_file(data: str, tmp_path: Path) -> None:
    kind = lightgbm.LGBMRegressor if data == "diabetes" else lightgbm.LGBMClassifier
    model, x = fit(kind(n_estimators=8, verbose=-1), data)
    model.booster_.save_model(tmp_path / "model.txt")
    oracle = load_target(str(tmp_path / "model.txt"))
    assert oracle.offer.values == ("real" if data == "diabetes" else "probabilities")
    assert np.abs(oracle(x, gradients=False).values - expected(model, x)).max() < 1e-12


@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(4, random_state=0),
        HistGradientBoostingClassifier(max_iter=4),
        make_pipeline(StandardScaler(), GradientBoostingClassifier(n_estimators=4)),
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestRegressor(4, random_state=0),
        make_pipeline(StandardScaler(), Ridge()),
    ],
    ids=name_of,
)
@pytest.mark.parametrize("data", ["wine", "breast_cancer"])
def test_onnx_files_of_scikit_learn_s_models(model: object, data: str, tmp_path: Path) -> None:
    model, x = fit(model, data)
    x = x.astype(np.float32)
    (tmp_path / "model.onnx").write_bytes(skl2onnx.to_onnx(model, x[:1]).SerializeToString())
    oracle = load_target(str(tmp_path / "model.onnx"))
    assert oracle.offer.values == ("probabilities" if hasattr(model, "predict_proba") else "real")
    assert np.median(np.abs(oracle(x, gradients=False).values - expected(model, x))) < 1e-5
    with pytest.raises(rl.TargetError, match="have no gradients"):
        load_target(str(tmp_path / "model.onnx"), gradients="all")


def test_margins_and_labels_can_be_chosen() -> None:
    model, x = fit(HistGradientBoostingClassifier(max_iter=4), "breast_cancer")
    margin = rl.PredictorOracle(model, values="logits")
    assert (margin.offer.values, margin.offer.outputs) == ("logits", 1)
    assert np.array_equal(margin(x, gradients=False).values[:, 0], model.decision_function(x))
    labels = rl.PredictorOracle(model, values="label")(x, gradients=False).values
    assert np.array_equal(labels.argmax(axis=1), model.predict(x))
    with pytest.raises(rl.MisuseError, match="answers 'probabilities' or 'logits' or 'label', got 'real'"):
        rl.PredictorOracle(model, values="real")


def test_boosters_in_memory_have_margins(tmp_path: Path) -> None:
    from relumine.oracle.boosted import boosted

    model, x = fit(xgboost.XGBClassifier(n_estimators=5), "wine")
    for thing in (model, model.get_booster()):
        values = rl.PredictorOracle(boosted(thing), values="logits")(x, gradients=False).values
        assert np.abs(values - model.predict(x, output_margin=True)).max() < 1e-6


def test_a_model_of_named_columns_gets_names() -> None:
    x, y = DATA["wine"]
    frame = pandas.DataFrame(x, columns=[f"column {i}" for i in range(13)])
    chosen = make_column_transformer((StandardScaler(), ["column 3", "column 7"]), remainder="drop")
    model = make_pipeline(chosen, RandomForestClassifier(3, random_state=0)).fit(frame, y)
    assert np.array_equal(rl.PredictorOracle(model)(x, gradients=False).values, model.predict_proba(frame))


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (RandomForestClassifier(), "is not fitted; call its fit first"),
        (StandardScaler(), "expected a fitted classifier or regressor with predict_proba"),
        (RandomForestClassifier, "expected a fitted classifier or regressor with predict_proba"),
    ],
    ids=["unfitted", "scaler", "class"],
)
def test_what_does_not_predict_is_refused(model: object, complaint: str) -> None:
    with pytest.raises(rl.MisuseError, match=complaint):
        rl.PredictorOracle(model)


def test_models_of_several_labels_at_once_are_refused() -> None:
    x, y = datasets.make_multilabel_classification(60, 5, n_classes=3, random_state=0)
    with pytest.raises(rl.MisuseError, match="expected one output to predict, RandomForestClassifier predicts 3"):
        rl.PredictorOracle(RandomForestClassifier(2).fit(x, y))


X, Y = DATA["wine"]
MODEL = RandomForestClassifier(4, random_state=0).fit(X, Y)
LINEAR = LinearRegression().fit(X, Y)
NAMES = np.array(["red", "rosé", "white"])


@pytest.mark.parametrize(
    ("predict", "labels", "values", "outputs"),
    [
        (MODEL.predict, None, "label", 3),
        (lambda x: NAMES[MODEL.predict(x)], None, "label", 3),
        (lambda x: MODEL.predict(x).astype(float), Y, "label", 3),
        (MODEL.predict_proba, None, "probabilities", 3),
        (lambda x: MODEL.predict_proba(x)[:, 1], Y == 1, "probabilities", 1),
        (lambda x: MODEL.predict_proba(x)[:, 1], None, "real", 1),
        (LINEAR.predict, None, "real", 1),
        (lambda x: LINEAR.predict(x)[:, None], Y + 0.5, "real", 1),
        (lambda x: np.log(MODEL.predict_proba(x) + 0.1), Y, "logits", 3),
        (lambda x: np.stack([LINEAR.predict(x)] * 2, axis=1), Y + 0.5, "real", 2),
    ],
)
def test_functions_are_told_by_their_answers(predict, labels, values, outputs) -> None:
    oracle = FunctionPredictor(predict, X, labels)
    assert (oracle.offer.values, oracle.offer.outputs, oracle.offer.inputs) == (values, outputs, (13,))
    answer = oracle(X, gradients=False).values
    if values == "label":
        assert np.array_equal(answer.argmax(axis=1), MODEL.predict(X))
    else:
        assert np.allclose(answer, np.asarray(predict(X)).reshape(len(X), -1))


def test_a_function_of_images_gets_images() -> None:
    images = np.random.default_rng(0).random((20, 1, 4, 4)).astype(np.float32)
    seen = []

    def predict(x: np.ndarray) -> np.ndarray:
        seen.append((x.shape[1:], x.dtype))
        return x.reshape(len(x), -1).sum(axis=1)

    oracle = FunctionPredictor(predict, images)
    oracle(images.reshape(20, -1), gradients=False)
    assert set(seen) == {((1, 4, 4), np.dtype(np.float32))}


def test_a_function_that_answers_too_few_or_an_unknown_class_is_told() -> None:
    with pytest.raises(rl.BadAnswerError, match="expected an answer for each of 178 inputs, got 177"):
        FunctionPredictor(lambda x: MODEL.predict(x)[1:], X)
    oracle = FunctionPredictor(lambda x: np.where(x[:, 0] > 100, 7, 1), X)
    with pytest.raises(rl.BadAnswerError, match="expected one of 1, got"):
        oracle(X * 100, gradients=False)


def test_a_function_of_one_input_is_told_what_it_should_be() -> None:
    with pytest.raises(rl.MisuseError, match=r"expected a function of n inputs.*lambda rows: \[predict\(row\)"):
        FunctionPredictor(lambda row: float(row[2]), X)
