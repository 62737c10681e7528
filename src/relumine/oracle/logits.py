"""LogitLink: a probability oracle made into a logit oracle, exactly; and the same for answers at hand."""

from dataclasses import replace
from math import log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from relumine.errors import MisuseError
from relumine.oracle.base import (
    Answer,
    Array,
    DType,
    GradientKind,
    InFront,
    Offer,
    Oracle,
    checked_inputs,
    explained_outputs,
)

if TYPE_CHECKING:
    from torch import Tensor

# K ≥ 2: below the smallest normal number divided by the rounding unit, a probability times a small weight is
# subnormal, so its gradient has lost digits. Above it, log p and ∇p/p are as good as the target's own numbers.
_SMALLEST: dict[DType, float] = {
    "float32": float(np.finfo(np.float32).tiny / np.finfo(np.float32).eps),  # 1e-31
    "float64": float(np.finfo(np.float64).tiny / np.finfo(np.float64).eps),  # 1e-292
}

# K = 1: 1 − p has the rounding error of p, so log(1 − p) is wrong by (rounding unit)/(1 − p). From here on that is
# less than 1e-9 (float64) and 1e-4 (float32).
_SMALLEST_COMPLEMENT: dict[DType, float] = {"float32": 1e-3, "float64": 2e-7}


def probabilities_of(logits: Array) -> Array:
    """n×K: a softmax of the logits, or a sigmoid of a single one."""
    return np.asarray(expit(logits) if logits.shape[1] == 1 else softmax(logits, axis=1))


def tensor_probabilities(logits: "Tensor") -> "Tensor":
    """The same of a tensor."""
    return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)


def class_probabilities(logits: Array) -> Array:
    """n×K: of each class, where a single logit tells two apart; both keep their digits when one is nearly 1."""
    both = logits.shape[1] == 1
    return np.hstack([expit(-logits), expit(logits)]) if both else probabilities_of(logits)


class LogitLink(InFront):
    """Answers logits, and their gradients, where the oracle inside answers probabilities.

    K ≥ 2: the logit of class c is log p_c minus the mean of log p over the classes. It equals the target's own logit
    up to a number that is the same for all classes and depends on the input, so all differences between classes are
    the target's. Its gradient is ∇p_c / p_c, centred in the same way: nothing is approximated.
    K = 1: log(p / (1 − p)), which is the target's own logit, and ∇p / (p (1 − p)).

    Saturation. Where a probability is so close to 0 (for K = 1 also to 1) that its digits are lost, the logits cannot
    be known. Such rows are answered with NaN, values and gradients alike, so that a search can turn back:
    ``saturated(answer)`` says which they are, ``limit`` how far logits may lie apart without that.
    So a meter, which refuses NaN, sits inside: ``LogitLink(Metered(oracle))``.

    With K ≥ 3 the gradient of one class alone (the top one, say) does not give the gradient of any logit, nor of any
    difference of two: such an oracle is refused. With K = 2 it does, because ∇p_0 = −∇p_1; its digits are lost sooner.

    values_only: offer no gradients, whatever the oracle inside has
    """

    def __init__(self, oracle: Oracle, *, values_only: bool = False) -> None:
        offer = replace(oracle.offer, gradients="none") if values_only else oracle.offer
        if offer.values != "probabilities":
            raise MisuseError(
                f"LogitLink: expected an oracle whose values are 'probabilities', got {offer.values!r}; use it as it is"
            )
        if offer.gradients not in ("all", "none") and offer.outputs > 2:
            raise MisuseError(
                f"LogitLink: the gradient of one probability of {offer.outputs} does not determine any logit's "
                "gradient; offer gradients='all', or offer gradients='none' and use the values alone"
            )
        gradients: GradientKind = "none" if offer.gradients == "none" else "all"
        super().__init__(oracle, replace(offer, values="logits", gradients=gradients))

    @property
    def limit(self) -> float:
        """The largest difference of two logits (K = 1: the largest logit) that the target's precision can show."""
        smallest = _SMALLEST_COMPLEMENT if self.offer.outputs == 1 or self._alone else _SMALLEST
        return -log(smallest[self.offer.dtype])

    @property
    def kept(self) -> float:
        """This part of the digits is left of a gradient, at least: that of a p close to 1 loses those of 1 − p."""
        return _SMALLEST_COMPLEMENT[self.offer.dtype] if self._alone else 1.0

    @property
    def _alone(self) -> bool:
        """Whether one of two gradients is answered."""
        return self._oracle.offer.gradient_rows < self.offer.gradient_rows

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        return in_logits(self._oracle.offer, self._oracle(rows, gradients=gradients))

    def logits(self, probabilities: Array) -> Array:
        """n×K: the logits of these probabilities, NaN where they cannot be known."""
        return _logits(probabilities, self.offer.dtype)


def in_logits(offer: Offer, answer: Answer) -> Answer:
    """What a LogitLink around an oracle of this offer makes of its answer."""
    if answer.gradients is None:
        return Answer(_logits(answer.values, offer.dtype))
    lost = _lost(answer.values, offer.dtype)
    if answer.values.shape[1] == 2 and answer.gradients.shape[1] == 1:  # one of two, without digits where p is near 1
        lost |= ~complement_kept(answer.values.min(axis=1, keepdims=True), offer.dtype)
    p = np.where(lost, np.nan, answer.values)
    return Answer(_logits(p, offer.dtype), _logit_gradients(p, answer.gradients, offer.gradients))


def saturated(answer: Answer) -> NDArray[np.bool_]:
    """n: the rows of a LogitLink's answer that could not be known."""
    return np.isnan(answer.values[:, 0])


def _centred(numbers: Array) -> Array:
    """Minus the mean over the classes (axis 1)."""
    return np.asarray(numbers - numbers.mean(axis=1, keepdims=True))


def _logits(probabilities: Array, dtype: DType) -> Array:
    p = np.where(_lost(probabilities, dtype), np.nan, probabilities)
    return np.log(p) - np.log1p(-p) if p.shape[1] == 1 else _centred(np.log(p))


def _lost(p: Array, dtype: DType) -> NDArray[np.bool_]:
    """n×1: whether a row's logits cannot be known."""
    smallest = p.min(axis=1, keepdims=True)
    single = (p == p.astype(np.float32)).all(axis=1, keepdims=True)  # computed in float32, whatever was offered
    lost: NDArray[np.bool_] = smallest < np.where(single, _SMALLEST["float32"], _SMALLEST[dtype])
    return lost | ~complement_kept(1 - smallest, dtype) if p.shape[1] == 1 else lost


def complement_kept(complement: Array, dtype: DType) -> NDArray[np.bool_]:
    """Whether a gradient of p still has digits that tell of 1 − p, which is this."""
    return np.asarray(complement >= _SMALLEST_COMPLEMENT[dtype])


def _logit_gradients(p: Array, jacobians: Array, which: GradientKind | int) -> Array:
    if p.shape[1] == 1:
        return np.asarray(jacobians / (p * (1 - p))[:, :, None])
    if jacobians.shape[1] == 1:  # one of two classes
        jacobians = np.where(np.arange(2) == explained_outputs(which, p), 1.0, -1.0)[..., None] * jacobians
    return _centred(jacobians / p[:, :, None])
