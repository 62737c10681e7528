"""PredictorOracle: any fitted model that predicts, or Python function that does. Values or labels, no gradients."""

import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from relumine.errors import BadAnswerError, MisuseError, RelumineError
from relumine.oracle.base import Answer, Array, Offer, ValueKind, checked_answer, checked_inputs
from relumine.text import one_line

Predict = Callable[[Array], Any]

# Numbers that sum to 1 up to float32's rounding are probabilities.
_ROUNDING = 1e-4


class PredictorOracle:
    """Answers as a fitted classifier or regressor does: scikit-learn's interface is all that is asked for.

    model:  has ``predict_proba``, ``decision_function`` or ``predict`` and ``n_features_in_``: every scikit-learn
            classifier, regressor and pipeline, XGBoost's and LightGBM's models
    values: classifiers answer "probabilities", "logits" (their decision function or margin) or "label", by default the
            first of these that they have; regressors answer "real" numbers
    """

    def __init__(self, model: Any, *, values: ValueKind | None = None) -> None:
        ways, kind = _ways_of(model), type(model).__name__
        if not ways:
            raise MisuseError(
                "model: expected a fitted classifier or regressor with predict_proba, decision_function or predict, "
                f"got {kind}"
            )
        chosen = next(iter(ways)) if values is None else values
        if chosen not in ways:
            raise MisuseError(f"values: {kind} answers {' or '.join(map(repr, ways))}, got {values!r}")
        width = getattr(model, "n_features_in_", None)
        if width is None:
            raise MisuseError(f"model: {kind} is not fitted; call its fit first")
        self.model, self._predict = model, ways[chosen]
        self._classes = model.classes_ if chosen == "label" else None
        first = self._asked(np.zeros((1, int(width))))
        self.offer = Offer((int(width),), first.shape[1], chosen, "none")

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        values = self._asked(rows) if len(rows) else np.empty((0, self.offer.outputs))
        return checked_answer(self.offer, len(rows), Answer(values), gradients=False)

    def _asked(self, rows: Array) -> Array:
        with warnings.catch_warnings(action="ignore"):  # a model of another version, or fitted on named columns
            answer = self._predict(_framed(rows, self.model))
        if isinstance(answer, list):
            kind = type(self.model).__name__
            raise MisuseError(f"model: expected one output to predict, {kind} predicts {len(answer)}")
        return _numbers(answer, len(rows), self._classes)


def _ways_of(model: Any) -> Mapping[ValueKind, Predict]:
    """By what the model can be asked; nothing where it does not predict."""
    numbers = "real" if getattr(model, "classes_", None) is None else "label"
    ways = {"probabilities": "predict_proba", "logits": "decision_function", numbers: "predict"}
    there = {} if isinstance(model, type) else {kind: name for kind, name in ways.items() if hasattr(model, name)}
    return {kind: getattr(model, name) for kind, name in there.items()}  # type: ignore[misc]


def _framed(rows: Array, model: object) -> Any:
    """Rows as the model was fitted on them: with named columns, where it knows names."""
    names = getattr(model, "feature_names_in_", None)
    if names is None or find_spec("pandas") is None:
        return rows
    import pandas

    return pandas.DataFrame(rows, columns=names)


def _numbers(answer: object, count: int, classes: object) -> Array:
    """n×K: numbers as they are, labels by the class that each names."""
    if classes is not None:
        return one_hot(answer, classes)
    return np.asarray(answer, dtype=np.float64).reshape(count, -1)


def one_hot(labels: object, classes: object) -> Array:
    """n×K: 1 for the class that each label names."""
    names, given = np.asarray(classes), np.asarray(labels).reshape(-1)
    hits = given[:, None] == names[None, :]
    if not hits.any(axis=1).all():
        strange = given[~hits.any(axis=1)][0]
        raise BadAnswerError(f"labels: expected one of {', '.join(map(str, names[:8]))}, got {strange!r}")
    return np.asarray(hits, dtype=np.float64)


class FunctionPredictor:
    """A Python function, told by its answers to some inputs: labels, probabilities, logits or real numbers.

    predict: takes n×shape inputs; answers n labels, n×K numbers or n numbers
    inputs:  some that it is for, n×shape
    labels:  theirs, if known: they tell the probability of a class from a real number, and name classes
    values:  what its numbers are, where that cannot be told
    """

    def __init__(
        self,
        predict: Predict,
        inputs: "np.ndarray",
        labels: "np.ndarray | None" = None,
        values: ValueKind | None = None,
    ) -> None:
        self._predict, self._shape, self._dtype = predict, inputs.shape[1:], inputs.dtype
        try:
            answer = np.asarray(self._asked(inputs))
        except RelumineError:
            raise
        except Exception as error:  # a function may raise anything
            raise MisuseError(
                f"predict: expected a function of n inputs, an array of shape {inputs.shape} here, which failed with "
                f"{one_line(error)}; of a function of one input make lambda rows: [predict(row) for row in rows]"
            ) from error
        kind = values or _kind_of(answer, labels)
        self._classes = _classes_of(answer, labels) if kind == "label" else None
        outputs = prod(answer.shape[1:]) if self._classes is None else len(self._classes)
        self.offer = Offer(self._shape, outputs, kind, "none")

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        answer = self._asked(rows.reshape(-1, *self._shape).astype(self._dtype)) if len(rows) else []
        values = _numbers(answer, len(rows), self._classes)
        return checked_answer(self.offer, len(rows), Answer(values), gradients=False)

    def _asked(self, inputs: "np.ndarray") -> Any:
        answer = self._predict(inputs)
        count = len(answer) if hasattr(answer, "__len__") else None
        if count != len(inputs):
            raise BadAnswerError(f"predict: expected an answer for each of {len(inputs)} inputs, got {count}")
        return answer.detach().cpu().numpy() if hasattr(answer, "detach") else answer


def _kind_of(answer: "np.ndarray", labels: "np.ndarray | None") -> ValueKind:
    """What numbers are, by how they look: words and integers are labels, rows that sum to 1 probabilities."""
    if answer.dtype.kind not in "fiub" or (answer.ndim == 1 and answer.dtype.kind in "iub"):
        return "label"
    known = np.unique(labels) if labels is not None else np.empty(0)
    counted = known.dtype.kind in "iubUS"
    shares = bool(((answer >= 0) & (answer <= 1 + _ROUNDING)).all())
    if prod(answer.shape[1:]) > 1:
        sums_to_one = shares and bool(np.abs(answer.sum(axis=1) - 1).max() < _ROUNDING)
        return "probabilities" if sums_to_one else "logits" if counted or labels is None else "real"
    if counted and np.isin(answer, known).all():
        return "label"
    return "probabilities" if counted and shares and len(known) == 2 else "real"


def _classes_of(answer: "np.ndarray", labels: "np.ndarray | None") -> "np.ndarray":
    """All labels that were seen."""
    flat = answer.reshape(-1)
    if labels is None or (labels.dtype.kind in "US") != (flat.dtype.kind in "US"):
        return np.unique(flat)
    return np.unique(np.concatenate([flat, labels]))
