"""Families of students from scikit-learn, each a function from answers to a predictor.

Settings are scikit-learn's own where nothing is said: these students are to be no worse than what its users fit.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.portfolio.answers import LearnedAnswers, shares_of
from relumine.reconstruct.portfolio.scaling import Scaling

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
    learners = {name: _classifier(make) for name, make in of_classes.items()} | of_numbers
    return [Family(name, scaling, learn) for name, learn in learners.items() for scaling in scalings]


def scaled(predictor: Predictor, scaling: Scaling) -> Predictor:
    """A predictor of standardised inputs as one of inputs."""
    return lambda rows: predictor(scaling(rows))


def _classifier(make: Make) -> Learn:
    def learn(rows: Array, answers: LearnedAnswers, seed: int) -> Predictor:
        assert answers.classes is not None
        present = np.unique(answers.classes)
        if len(present) == 1:
            return lambda rows: np.eye(answers.count)[np.full(len(rows), present[0])]
        model = _fitted(make(seed), rows, answers.classes)

        def predict(rows: Array) -> Array:
            shares = np.zeros((len(rows), answers.count))
            shares[:, present] = _probabilities(model, rows)
            return shares

        return predict

    return learn


def _probabilities(model: Any, rows: Array) -> Array:
    """What the model answers; of one that has margins only, their softmax, whose largest is the margins' own."""
    if hasattr(model, "predict_proba"):
        result: Array = model.predict_proba(rows)
        return result
    margins = model.decision_function(rows)
    return shares_of(margins[:, None] if margins.ndim == 1 else margins)


def _regressor(make: Make) -> Learn:
    """Of logits, or of a regression's numbers."""

    def learn(rows: Array, answers: LearnedAnswers, seed: int) -> Predictor:
        assert answers.numbers is not None
        mean, scale = answers.numbers.mean(axis=0), float(answers.numbers.std()) or 1.0
        models = _per_output(make, rows, (answers.numbers - mean) / scale, seed)

        def predict(rows: Array) -> Array:
            numbers = mean + scale * np.hstack([model.predict(rows).reshape(len(rows), -1) for model in models])
            return shares_of(numbers) if answers.count else numbers

        return predict

    return learn


def _of_shares(make: Make) -> Learn:
    """Of probabilities, which trees average; of a regression's numbers where there are no classes."""

    def learn(rows: Array, answers: LearnedAnswers, seed: int) -> Predictor:
        model = _fitted(make(seed), rows, answers.shares)
        return lambda rows: model.predict(rows).reshape(len(rows), -1)

    return learn


def _per_output(make: Make, rows: Array, numbers: Array, seed: int) -> list[Any]:
    model = make(seed)
    if "HistGradientBoosting" not in type(model).__name__:
        return [_fitted(model, rows, numbers)]
    return [_fitted(make(seed), rows, column) for column in numbers.T]


def _fitted(model: Any, rows: Array, wanted: NDArray[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: what is not good is not chosen
        return model.fit(rows, wanted)


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=300)


def _ridge(seed: int) -> Any:
    from sklearn.linear_model import RidgeCV

    return RidgeCV(np.logspace(-6, 3, 10))


def _svm(cost: float) -> Make:
    def make(seed: int) -> Any:
        from sklearn.svm import SVC

        return SVC(C=cost)

    return make


def _kernel_ridge(penalty: float) -> Make:
    def make(seed: int) -> Any:
        from sklearn.kernel_ridge import KernelRidge

        return _OfTheFirst(KernelRidge(kernel="rbf", alpha=penalty))

    return make


@dataclass(frozen=True)
class _OfTheFirst:
    """A model of no more inputs than it has time and memory for."""

    model: Any

    def fit(self, rows: Array, wanted: NDArray[Any]) -> Any:
        """The fitted model."""
        return self.model.fit(rows[:_MOST_OF_KERNELS], wanted[:_MOST_OF_KERNELS])


def _nearest(count: int) -> Make:
    def make(seed: int) -> Any:
        from sklearn.neighbors import KNeighborsClassifier

        return _AtMost(KNeighborsClassifier, count)

    return make


def _nearest_regression(count: int) -> Make:
    def make(seed: int) -> Any:
        from sklearn.neighbors import KNeighborsRegressor

        return _AtMost(KNeighborsRegressor, count)

    return make


@dataclass(frozen=True)
class _AtMost:
    """Nearest neighbours, fewer than ``count`` where there are fewer inputs."""

    kind: Any
    count: int

    def fit(self, rows: Array, wanted: NDArray[Any]) -> Any:
        """The fitted model."""
        return self.kind(min(self.count, len(rows))).fit(rows, wanted)


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(random_state=seed)


def _extra_trees(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(random_state=seed)


def _forest_regression(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(max_features=1 / 3, random_state=seed)


def _boosted(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=seed)


def _boosted_regression(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(random_state=seed)


_CLASSIFIERS: dict[Kind, dict[str, Make]] = {
    "linear": {"logistic regression": _logistic},
    "kernel": {f"SVM with C = {cost:g}": _svm(cost) for cost in (1, 10)},
    "nearest": {f"{count} nearest": _nearest(count) for count in (1, 5)},
    "forest": {"random forest": _forest, "extra trees": _extra_trees},
    "boosted": {"boosted trees": _boosted},
}
_REGRESSORS: dict[Kind, dict[str, Learn]] = {
    "linear": {"ridge regression": _regressor(_ridge)},
    "kernel": {f"kernel ridge with α = {penalty:g}": _regressor(_kernel_ridge(penalty)) for penalty in (1e-3, 0.1)},
    "nearest": {"mean of 5 nearest": _of_shares(_nearest_regression(5))},
    "forest": {"regression forest": _of_shares(_forest_regression)},
    "boosted": {"boosted regression": _regressor(_boosted_regression)},
}
