"""Probabilities turned into logits before a student is fitted, where their digits allow.

Probabilities are flat nearly everywhere, and so are their gradients: a student that answers the same everywhere matches
most of them. Of the logits behind them no such student is close.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, Offer, explained_outputs
from relumine.oracle.logits import complement_kept, in_logits, saturated
from relumine.reconstruct.noise import noise_in

# Probabilities of float32 sum to 1 and their gradients to 0 far better than this; with noise in them they do not.
_SLACK, _ROUNDINGS, _TINY = 1e-4, 100, 1e-300
# Saturated answers are left out if they are few. Of many the rest would be those near boundaries only.
_KNOWN = 0.9


@dataclass(frozen=True, eq=False)
class Queried:
    """Inputs n×d and what was answered; explained n×R×K: of which combinations of outputs, if not of those offered."""

    offer: Offer
    inputs: Array
    answer: Answer
    explained: Array | None = None


def in_logits_if_known(offer: Offer, inputs: Array, answer: Answer) -> Queried | None:
    """Answers of logits, without those that are saturated; None where logits cannot be known."""
    if offer.values != "probabilities" or offer.explained is not None or offer.random:
        return None
    if not _have_digits(offer, answer):
        return None
    if answer.gradients is None or offer.gradients == "all" or offer.outputs == 1:
        logits, explained = in_logits(offer, answer), None
    else:
        gradients, explained = _of_odds(offer, answer)
        logits = Answer(in_logits(offer, Answer(answer.values)).values, gradients)
    known = ~saturated(logits)
    if known.mean() < _KNOWN:
        return None
    kept = Answer(logits.values[known], None if logits.gradients is None else logits.gradients[known])
    return Queried(
        replace(offer, values="logits"), inputs[known], kept, None if explained is None else explained[known]
    )


def _of_odds(offer: Offer, answer: Answer) -> tuple[Array, Array]:
    """One class's gradient of p as that of its log-odds, n×1×d, and which combination of logits these are, n×1×K.

    log(p/(1 − p)) = z − log Σ exp z_j over the other classes j, so its gradient is ∇z − Σ q_j ∇z_j, where q are the
    others' shares, which the values tell. Where 1 − p has lost its digits both are 0: nothing is compared there.
    """
    p = answer.values
    own = np.eye(offer.outputs)[explained_outputs(offer.gradients, p)[:, 0]]
    rest = p * (1 - own)
    others = rest.sum(axis=1, keepdims=True)
    kept: NDArray[np.bool_] = complement_kept(others, offer.dtype)
    each = np.where(kept, (p * own).sum(axis=1, keepdims=True) * others, np.inf)
    shares = rest / np.where(kept, others, np.inf)
    return answer.jacobians / each[:, None], np.where(kept, own - shares, 0.0)[:, None]


def _have_digits(offer: Offer, answer: Answer) -> bool:
    """Whether probabilities and their gradients are neither rounded nor visibly noisy."""
    p, gradients = answer.values, answer.gradients
    if any(noise_in(some, offer.dtype).absolute > 0 for some in (p, gradients) if some is not None):
        return False
    if offer.outputs == 1:
        return True
    if np.abs(p.sum(axis=1) - 1).max(initial=0) > _SLACK:
        return False
    return gradients is None or gradients.shape[1] == 1 or _cancel(p, gradients, float(np.finfo(offer.dtype).eps))


def _cancel(p: Array, gradients: Array, unit: float) -> bool:
    """Whether gradients of all probabilities sum to 0, as far as the target's rounding lets them.

    The gradient of a p close to 1 has the rounding errors of its logit's, whose size the runner-up's ∇p/p tells.
    """
    largest = np.abs(gradients).max(axis=2)
    runner_up = p.argsort(axis=1)[:, -2:-1]
    size = np.take_along_axis(largest, runner_up, 1) / np.maximum(np.take_along_axis(p, runner_up, 1), _TINY)
    allowed = _SLACK * largest.max(axis=1) + _ROUNDINGS * unit * size[:, 0]
    return bool((np.abs(gradients.sum(axis=1)).max(axis=1) <= allowed).all())
