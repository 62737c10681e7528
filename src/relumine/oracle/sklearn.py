"""SklearnOracle: fitted scikit-learn models that answer, with the gradients that scikit-learn does not give."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from relumine.errors import MisuseError
from relumine.oracle.base import Array, GradientKind, ValueKind
from relumine.oracle.logits import class_probabilities
from relumine.oracle.torch import TorchOracle

# What stands behind the last layer: nothing, a softmax, one sigmoid answered as two classes, a sigmoid per label.
Head = Literal["none", "softmax", "two classes", "labels"]

_SUPPORTED = (
    "linear models, LogisticRegression, MLPRegressor, MLPClassifier, and pipelines of these behind "
    "StandardScaler, MinMaxScaler or MaxAbsScaler"
)

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
}


class SklearnOracle(TorchOracle):
    """Answers as a fitted scikit-learn model does, as a float64 module with its parameters.

    estimator: a linear model (anything linear with ``coef_`` and ``intercept_``), LogisticRegression, MLPRegressor or
               MLPClassifier, or a pipeline of scalers with one of these at its end
    values:    regressors answer "real" numbers. Classifiers with probabilities answer "probabilities" (the default)
               or "logits", which for two classes are one number, the log-odds. Classifiers that predict several labels
               at once answer "logits" only, because their probabilities do not sum to 1. Other linear classifiers
               answer their decision function as "logits" (the largest, or the sign of one, is the class) or "real".
    gradients: of every output ("all"), of the largest ("top"), of the output of this index, or of none

    Probabilities of two classes are expit(−z) and expit(z), so that both keep their digits when one is nearly 1.
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        *,
        values: ValueKind | None = None,
        gradients: GradientKind | int | None = "all",
    ) -> None:
        model = _model_of(estimator)
        chosen = model.values[0] if values is None else values
        if chosen not in model.values:
            raise MisuseError(
                f"values: {type(estimator).__name__} answers {' or '.join(map(repr, model.values))}"
                f"{' (one per label)' if model.head == 'labels' else ''}, got {chosen!r}"
            )
        # What the numbers are is known: they need not be told by their looks.
        module = model.module(probabilities=chosen == "probabilities")
        super().__init__(module, len(model.shift), values="real", gradients=gradients)
        self.offer = replace(self.offer, values=chosen)
        # A few random inputs around the training data, for an owner's look at the model.
        inputs = model.shift + model.scale * np.random.default_rng(0).standard_normal((8, len(model.shift)))
        _check_equal(estimator, model, inputs, self(inputs, gradients=False).values, chosen)


@dataclass(frozen=True)
class _Model:
    """x ↦ W_L a(… a(W_1 (x − shift) / scale + b_1) …) + b_L, and what stands behind it."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activation: str
    head: Head
    values: tuple[ValueKind, ...]
    shift: Array
    scale: Array

    def module(self, *, probabilities: bool) -> nn.Module:
        """It, up to the last layer or to the probabilities behind that."""
        parts: list[nn.Module] = [_Scaler(self.shift, self.scale)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            inputs, units = weight.shape
            layer = nn.Linear(inputs, units, dtype=torch.float64)
            layer.load_state_dict({"weight": torch.from_numpy(weight.T.copy()), "bias": torch.from_numpy(bias.copy())})
            parts += [layer, _ACTIVATIONS[self.activation]()]
        parts[-1] = nn.Identity()
        if probabilities:
            parts[-1] = _TwoClasses() if self.head == "two classes" else nn.Softmax(dim=1)
        return nn.Sequential(*parts).requires_grad_(False)


class _Scaler(nn.Module):
    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Array, scale: Array) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(shift))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.shift) / self.scale


class _TwoClasses(nn.Module):
    """expit(−z) and expit(z); of the one near 1 the slope is that of the other, whose digits are all there."""

    def forward(self, logits: Tensor) -> Tensor:
        both = torch.cat([-logits, logits], dim=1)
        return torch.where(both > 0, 1 - torch.sigmoid(-both), torch.sigmoid(both))


def _model_of(estimator: BaseEstimator) -> _Model:
    if not isinstance(estimator, BaseEstimator):
        raise MisuseError(f"estimator: expected a scikit-learn model, got {type(estimator).__name__}")
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        raise MisuseError(f"estimator: {type(estimator).__name__} is not fitted; call its fit first") from None
    *scalers, last = [step for _, step in estimator.steps] if isinstance(estimator, Pipeline) else [estimator]
    if isinstance(last, MLPRegressor | MLPClassifier):
        layers, activation = (last.coefs_, last.intercepts_), last.activation
        head, values = _head_of_network(last)
    elif hasattr(last, "coef_") and hasattr(last, "intercept_"):
        coefficients = np.atleast_2d(last.coef_.toarray() if issparse(last.coef_) else last.coef_)
        layers = [coefficients.T], [np.broadcast_to(last.intercept_, len(coefficients))]
        activation, (head, values) = "identity", _head_of_linear(last)
    else:
        raise MisuseError(f"estimator: expected one of {_SUPPORTED}; got {type(last).__name__}")
    weights, biases = (tuple(np.array(array, dtype=np.float64) for array in arrays) for arrays in layers)
    return _Model(weights, biases, activation, head, values, *_scaling(scalers, len(weights[0])))


def _scaling(scalers: list[Any], dimension: int) -> tuple[Array, Array]:
    """All scalers as one (x − shift) / scale."""
    shift, scale = np.zeros(dimension), np.ones(dimension)
    for inner_shift, inner_scale in [_one_scaling(one, dimension) for one in scalers if one != "passthrough"]:
        shift, scale = shift + scale * inner_shift, scale * inner_scale
    return shift, scale


def _one_scaling(scaler: Any, dimension: int) -> tuple[Array, Array]:
    none, one = np.zeros(dimension), np.ones(dimension)
    if isinstance(scaler, StandardScaler):
        return (scaler.mean_ if scaler.with_mean else none), (scaler.scale_ if scaler.with_std else one)
    if isinstance(scaler, MaxAbsScaler):
        return none, scaler.scale_
    if isinstance(scaler, MinMaxScaler) and not scaler.clip:
        return -scaler.min_ / scaler.scale_, 1 / scaler.scale_
    raise MisuseError(f"estimator: expected one of {_SUPPORTED}; got a pipeline with {scaler!r}")


def _head_of_network(network: MLPRegressor | MLPClassifier) -> tuple[Head, tuple[ValueKind, ...]]:
    if network.out_activation_ == "logistic" and network.n_outputs_ > 1:
        return "labels", ("logits",)
    known: dict[str, tuple[Head, tuple[ValueKind, ...]]] = {
        "identity": ("none", ("real",)),
        "softmax": ("softmax", ("probabilities", "logits")),
        "logistic": ("two classes", ("probabilities", "logits")),
    }
    if network.out_activation_ not in known:
        raise MisuseError(
            f"estimator: expected an output activation identity, softmax or logistic, got {network.out_activation_!r}"
        )
    return known[network.out_activation_]


def _head_of_linear(model: Any) -> tuple[Head, tuple[ValueKind, ...]]:
    if not isinstance(model, LogisticRegression):
        return "none", ("logits", "real") if is_classifier(model) else ("real",)
    return ("two classes" if len(model.classes_) == 2 else "softmax"), ("probabilities", "logits")


def _check_equal(estimator: Any, model: _Model, inputs: Array, ours: Array, values: str) -> None:
    """Refuse what has linear parameters and yet computes something else: Poisson regression, one-versus-rest."""
    if values == "logits" and model.head != "none":
        ours = expit(ours) if model.head == "labels" else class_probabilities(ours)
    with warnings.catch_warnings(action="ignore"):  # a model fitted on named columns is asked without names
        if model.head != "none":
            theirs = estimator.predict_proba(inputs)
        else:
            theirs = estimator.decision_function(inputs) if is_classifier(estimator) else estimator.predict(inputs)
    theirs = np.asarray(theirs, dtype=np.float64).reshape(len(inputs), -1)
    if theirs.shape != ours.shape or not np.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * np.abs(theirs).max()):
        raise MisuseError(
            f"estimator: {type(estimator).__name__} does not compute what its parameters say; "
            f"expected one of {_SUPPORTED}"
        )
