"""Boosted trees of XGBoost and LightGBM behind scikit-learn's interface, whichever way they were trained or saved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array
from relumine.oracle.logits import class_probabilities


@dataclass(frozen=True, eq=False)
class BoostedRegressor:
    """``contributions`` are TreeSHAP's, computed by the library itself: n×K×(d+1), the expected value last."""

    n_features_in_: int
    predict: Callable[[Array], Array]
    contributions: Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class BoostedClassifier:
    """``margin`` is n×K, or n×1 for two classes: the log-odds of the second."""

    n_features_in_: int
    classes: int
    margin: Callable[[Array], Array]
    contributions: Callable[[Array], Array]

    @property
    def classes_(self) -> "np.ndarray":
        """Numbers, as both libraries have them."""
        return np.arange(self.classes)

    def decision_function(self, rows: Array) -> Array:
        """The sums of the trees."""
        return self.margin(rows).reshape(len(rows), -1)

    def predict_proba(self, rows: Array) -> Array:
        return class_probabilities(self.decision_function(rows))

    def predict(self, rows: Array) -> "np.ndarray":
        return np.asarray(self.predict_proba(rows).argmax(axis=1))


Boosted = BoostedRegressor | BoostedClassifier


def boosted(model: object) -> Boosted | None:
    """The interface in front of a Booster, or of the scikit-learn wrapper around one; None for other models."""
    library = type(model).__module__.partition(".")[0]
    if library == "xgboost":
        return of_xgboost(model.get_booster() if hasattr(model, "get_booster") else model)
    if library == "lightgbm":
        return of_lightgbm(model.booster_ if hasattr(model, "booster_") else model)
    return None


def of_xgboost(booster: Any) -> Boosted:
    """``booster``: an xgboost.Booster."""
    import json

    import xgboost

    learner = json.loads(booster.save_config())["learner"]
    objective: str = learner["objective"]["name"]
    best = booster.attr("best_iteration")  # of early stopping: the trees after it are not used
    rounds = (0, 0 if best is None else int(best) + 1)
    names, types = booster.feature_names, booster.feature_types

    def asked(rows: Array, **how: bool) -> Array:
        matrix = xgboost.DMatrix(rows, feature_names=names, feature_types=types, enable_categorical=True)
        return np.asarray(booster.predict(matrix, iteration_range=rounds, **how), dtype=np.float64)

    def contributions(rows: Array) -> Array:
        found = asked(rows, pred_contribs=True)
        return found if found.ndim == 3 else found[:, None]

    width = int(booster.num_features())
    kind, _, detail = objective.partition(":")
    if kind not in ("binary", "multi"):
        return BoostedRegressor(width, asked, contributions)
    if detail == "hinge":
        raise MisuseError(f"model: expected an objective with probabilities, got {objective}")
    classes = max(int(learner["learner_model_param"]["num_class"]), 2)
    return BoostedClassifier(width, classes, lambda rows: asked(rows, output_margin=True), contributions)


def of_lightgbm(booster: Any) -> Boosted:
    """``booster``: a lightgbm.Booster."""
    width = int(booster.num_feature())

    def asked(rows: Array, **how: bool) -> Array:
        return np.asarray(booster.predict(rows, num_threads=1, **how), dtype=np.float64)

    def contributions(rows: Array) -> Array:
        return asked(rows, pred_contrib=True).reshape(len(rows), -1, width + 1)

    objective = next(iter(str(booster.dump_model(num_iteration=1).get("objective", "")).split()), "")
    if objective not in ("binary", "multiclass"):
        if objective in ("multiclassova", "cross_entropy", "cross_entropy_lambda"):
            raise MisuseError(f"model: expected the objective binary, multiclass or a regression's, got {objective}")
        return BoostedRegressor(width, asked, contributions)
    classes = max(int(booster.num_model_per_iteration()), 2)
    return BoostedClassifier(width, classes, lambda rows: asked(rows, raw_score=True), contributions)
