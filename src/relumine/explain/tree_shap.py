"""TreeShap: SHAP values of tree ensembles (Lundberg et al. 2020, TreeSHAP), what most explanation services answer.

φ_j(x) is what feature j adds to the model's output at x: the φ_j and a base value, which is the same for all inputs,
sum to that output. XGBoost and LightGBM compute them themselves, of scikit-learn's trees the package shap does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, Offer, ValueKind, checked_answer, checked_inputs, in_parts
from relumine.oracle.boosted import BoostedClassifier, BoostedRegressor
from relumine.oracle.predictor import PredictorOracle

# n×d inputs to n×R×d contributions.
Contributions = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class TreeShap:
    """Answers the model's own values, and in place of gradients the contributions of the features to each output.

    Of two classes that one number tells apart (its log-odds), each class has half of it, with opposite signs: the
    softmax of base and contributions is then the class's probability, as it is for more classes.
    """

    oracle: PredictorOracle

    def __post_init__(self) -> None:
        if self.oracle.offer.values == "label":
            raise MisuseError("SHAP values sum to numbers, the model is asked for labels")
        explained_by(self.oracle.model)

    @property
    def offer(self) -> Offer:
        """With a contribution per output and feature; ``explained`` says what they sum to."""
        kind, _ = explained_by(self.oracle.model)
        explained = None if kind == self.oracle.offer.values else kind
        return replace(self.oracle.offer, gradients="all", explained=explained, contributions=True)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        offer = self.offer
        rows = checked_inputs(offer, inputs, gradients=gradients)
        if not gradients:
            return self.oracle(rows, gradients=False)
        answer = in_parts(offer, rows, offer.outputs * offer.dimension, self._explained)
        return checked_answer(offer, len(rows), answer, gradients=True)

    def _explained(self, rows: Array) -> Answer:
        _, contributions = explained_by(self.oracle.model)
        found = contributions(rows)
        if found.shape[1] == 1 and self.oracle.offer.outputs == 2:
            found = np.concatenate([-found, found], axis=1) / 2
        return Answer(self.oracle(rows, gradients=False).values, found)


def explained_by(model: object) -> tuple[ValueKind, Contributions]:
    """What SHAP values of this model sum to, and how they are computed; a MisuseError for other models than trees."""
    if isinstance(model, BoostedClassifier | BoostedRegressor):
        kind: ValueKind = "logits" if isinstance(model, BoostedClassifier) else "real"
        return kind, lambda rows: model.contributions(rows)[:, :, :-1]
    scale, trees = _behind_scalers(model)
    return _kind_of(trees), lambda rows: _by_shap(trees, scale(rows))


def _behind_scalers(model: Any) -> tuple[Callable[[Array], Array], Any]:
    """The last step of a pipeline whose others change each feature by itself, so that features stay what they are."""
    from sklearn.base import OneToOneFeatureMixin
    from sklearn.pipeline import Pipeline

    if not isinstance(model, Pipeline):
        return lambda rows: rows, model
    *scalers, (_, last) = model.steps
    if not all(isinstance(scaler, OneToOneFeatureMixin) for _, scaler in scalers):
        raise MisuseError("SHAP values are of the features that the last step sees, which are not the inputs")
    return (lambda rows: model[:-1].transform(rows) if scalers else rows), last


# By what their SHAP values sum to, scikit-learn's trees: forests average probabilities, boosting sums log-odds.
_TREES: dict[ValueKind, str] = {
    "probabilities": "RandomForestClassifier ExtraTreesClassifier DecisionTreeClassifier",
    "logits": "HistGradientBoostingClassifier GradientBoostingClassifier",
    "real": "RandomForestRegressor ExtraTreesRegressor DecisionTreeRegressor HistGradientBoostingRegressor "
    "GradientBoostingRegressor",
}


def _kind_of(model: object) -> ValueKind:
    own = {base.__name__ for base in type(model).__mro__ if base.__module__.startswith("sklearn.")}
    found = next((kind for kind, names in _TREES.items() if own & set(names.split())), None)
    if found is None:
        raise MisuseError(f"SHAP values are computed of trees only, got {type(model).__name__}")
    if getattr(model, "is_categorical_", None) is not None:  # shap reads their splits as thresholds
        raise MisuseError("SHAP values are not computed of splits of categories")
    return found


def _by_shap(model: Any, rows: Array) -> Array:
    try:
        import shap
    except ImportError as error:
        raise MisuseError("SHAP values of scikit-learn's trees need shap: pip install 'relumine[trees]'") from error
    found = [
        np.asarray(shap.TreeExplainer(part).shap_values(rows, check_additivity=False), dtype=np.float64)
        for part in _per_class(model)
    ]
    if len(found) > 1:
        return np.stack(found, axis=1)
    return found[0][:, None] if found[0].ndim == 2 else np.moveaxis(found[0], 2, 1)


def _per_class(model: Any) -> list[Any]:
    """The model; of gradient boosting for each class the regressor that its trees are, which shap wants one by one."""
    from sklearn.dummy import DummyRegressor
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    if not isinstance(model, GradientBoostingClassifier):
        return [model]
    parts = [GradientBoostingRegressor(learning_rate=model.learning_rate) for _ in model.estimators_.T]
    for part, trees in zip(parts, model.estimators_.T, strict=True):
        part.estimators_, part.init_ = trees[:, None], DummyRegressor()
        part.init_.constant_ = np.zeros(1)  # the base value is no contribution
    return parts
