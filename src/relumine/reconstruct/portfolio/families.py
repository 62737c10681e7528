"""Families of students from scikit-learn, each a function from answers to a predictor.

Settings are scikit-learn's own where nothing is said: these students are to be no worse than what its users fit.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.oracle.logits import class_probabilities
from relumine.reconstruct.portfolio.answers import LearnedAnswers

# n×d inputs to n×count probabilities, or to n×1 numbers of a regression.
Predictor = Callable[[Array], Array]
Learn = Callable[[Array, LearnedAnswers, int], Predictor]
Make = Callable[[int], Any]

# A boosted regressor is fitted per output.
_MOST_OUTPUTS = 3
# Kernel ridge regression solves for as many numbers: 4,000 take 2 s and 128 MB, and both grow with the square or cube.
_MOST_OF_KERNELS = 4000

Kind = Literal["linear", "kernel", "nearest", "forest", "boosted"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Family:
    """Students of one form: ``learn`` fits one to inputs standardised by ``scaling`` ("columns" or "whole")."""

    name: str
    scaling: str
    learn: Learn


def families(kind: Kind, answers: LearnedAnswers) -> list[Family]:
    """Those of a kind that fit these answers."""
    of_classes = _CLASSIFIERS[kind] if answers.classes is not None else {}
    of_numbers = _REGRESSORS[kind] if answers.numbers is not None else {}
    if kind == "boosted" and answers.classes is not None and answers.shares.shape[1] > _MOST_OUTPUTS:
        of_numbers = {}
    # Trees do not care how columns are scaled.
    scalings = ("columns",) if kind in ("forest", "boosted") else ("columns", "whole")
    learners = {name: classifier(make) for name, make in of_classes.items()} | of_numbers
    return [Family(name, scaling, learn) for name, learn in learners.items() for scaling in scalings]


def classifier(make: Make) -> Learn:
    """Of probabilities of all classes, whichever of them were seen."""

    def learn(rows: Array, answers: LearnedAnswers, seed: int) -> Predictor:
        assert answers.classes is not None
        present = np.unique(answers.classes)
        if len(present) == 1:
            return lambda rows: np.eye(answers.count)[np.full(rows.shape[0], present[0])]
        model = _fitted(make(seed), rows, answers.classes)

        def predict(rows: Array) -> Array:
            shares = np.zeros((rows.shape[0], answers.count))
            shares[:, present] = _probabilities(model, rows)
            return shares

        return predict

    return learn


def _probabilities(model: Any, rows: Array) -> Array:
    """What the model answers; of one that has margins only, their softmax, whose largest is the margins' own."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(rows))
    margins = model.decision_function(rows)
    return class_probabilities(margins[:, None] if margins.ndim == 1 else margins)


def _regressor(make: Make, *, single: bool = False) -> Learn:
    """Of logits, or of a regression's numbers; ``single``: a model per output."""

    def learn(rows: Array, answers: LearnedAnswers, seed: int) -> Predictor:
        assert answers.numbers is not None
        mean, scale = answers.numbers.mean(axis=0), float(answers.numbers.std()) or 1.0
        wanted = (answers.numbers - mean) / scale
        models = [_fitted(make(seed), rows, part) for part in (wanted.T if single else [wanted])]

        def predict(rows: Array) -> Array:
            numbers = mean + scale * np.hstack([model.predict(rows).reshape(len(rows), -1) for model in models])
            return class_probabilities(numbers) if answers.count else numbers

        return predict

    return learn


def _of_shares(make: Make) -> Learn:
    """Of probabilities, which trees average; of a regression's numbers where there are no classes."""

    def learn(rows: Array, answers: LearnedAnswers, seed: int) -> Predictor:
        model = _fitted(make(seed), rows, answers.shares)
        return lambda rows: model.predict(rows).reshape(len(rows), -1)

    return learn


def _fitted(model: Any, rows: Array, wanted: NDArray[Any]) -> Any:
    """With no more inputs than a kernel has time for, and no more neighbours than there are inputs."""
    if hasattr(model, "n_neighbors"):
        model.set_params(n_neighbors=min(model.n_neighbors, len(rows)))
    most = _MOST_OF_KERNELS if hasattr(model, "kernel_params") else rows.shape[0]
    with warnings.catch_warnings(action="ignore"):  # of convergence: what is not good is not chosen
        return model.fit(rows[:most], wanted[:most])


def _of(name: str, **settings: Any) -> Make:
    """A model of scikit-learn's, by module and class; loaded when it is made, because that takes a second."""
    module, kind = name.split(".")

    def make(seed: int) -> Any:
        model = getattr(import_module(f"sklearn.{module}"), kind)(**settings)
        return model.set_params(random_state=seed) if "random_state" in model.get_params() else model

    return make


_CLASSIFIERS: dict[Kind, dict[str, Make]] = {
    "linear": {"logistic regression": _of("linear_model.LogisticRegression", max_iter=300)},
    "kernel": {f"SVM with C = {cost:g}": _of("svm.SVC", C=cost) for cost in (1, 10)},
    "nearest": {f"{count} nearest": _of("neighbors.KNeighborsClassifier", n_neighbors=count) for count in (1, 5)},
    "forest": {
        "random forest": _of("ensemble.RandomForestClassifier"),
        "extra trees": _of("ensemble.ExtraTreesClassifier"),
    },
    "boosted": {"boosted trees": _of("ensemble.HistGradientBoostingClassifier")},
}
_REGRESSORS: dict[Kind, dict[str, Learn]] = {
    "linear": {"ridge regression": _regressor(_of("linear_model.RidgeCV", alphas=np.logspace(-6, 3, 10)))},
    "kernel": {
        f"kernel ridge with α = {penalty:g}": _regressor(_of("kernel_ridge.KernelRidge", kernel="rbf", alpha=penalty))
        for penalty in (1e-3, 0.1)
    },
    "nearest": {"mean of 5 nearest": _of_shares(_of("neighbors.KNeighborsRegressor", n_neighbors=5))},
    "forest": {"regression forest": _of_shares(_of("ensemble.ExtraTreesRegressor", max_features=1 / 3))},
    "boosted": {"boosted regression": _regressor(_of("ensemble.HistGradientBoostingRegressor"), single=True)},
}
