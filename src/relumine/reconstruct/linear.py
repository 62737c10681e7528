"""Linear: linear, logistic and softmax regression, read off a handful of answers.

The paper's introduction: the gradient of a linear model is its weights, so one answer is the model. Its footnote: for
logistic regression, f = σ(w·x + b) has ∇f = f·(1 − f)·w. Softmax regression follows in the same way from log p.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from relumine.errors import MisuseError
from relumine.oracle.base import Array, DType, Offer, Oracle
from relumine.oracle.function import FunctionOracle
from relumine.oracle.logits import LogitLink, saturated
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction, Stop, attempt
from relumine.reconstruct.verification import BENT, TOLERANCE, met
from relumine.reconstruct.verification.domain import Domain, fresh_points

# σ(z) is read best where |z| is small: beyond this it is worth asking again closer to z = 0.
_CLEAR_LOGIT = 3.0

# Where to look for a point that is not saturated, if the centre is: multiples of the usual scale.
_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_POINTS_PER_SCALE = 8

# Equations in top-class gradients are asked for until their condition number is below this, if it can be had.
_WELL_CONDITIONED: dict[DType, float] = {"float64": 1e4, "float32": 300.0}

# The search for classes ends when this many points in a row show no new one.
_MISSES = 3

# log p is taken of no less than this.
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Linear:
    """Linear regression, logistic regression, softmax regression, with or without biases.

    All gradients offered: one gradient query. Top-class gradients: about one query per class (K − 1 with
    probabilities). Values alone: d + 1 value queries, after 3 that refuse most other targets. Then verification.

    inputs: the owner's inputs, n×d: where to ask, and where a clone must be right
    """

    inputs: Array | Domain | None = field(default=None, repr=False, compare=False)

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        """Read the weights and biases, then compare with the target at fresh points."""
        _check_offer(oracle.offer)
        generator, domain = np.random.default_rng(rng), Domain.of(oracle.offer, self.inputs)
        meter = domain.standardised(metered(oracle))
        before = meter.spent
        clone: Network | None = None
        evidence = Evidence()

        def run() -> None:
            nonlocal clone, evidence
            clone = _read(meter, generator)
            with meter.phase("verify"):
                found = met(clone, meter, domain, generator, TOLERANCE[meter.offer.dtype])
            evidence = found.evidence
            if len(found.wrong):
                bent = found.gap > BENT and not meter.offer.random
                raise Stop(Outcome.NOT_THIS_CLASS if bent else Outcome.NOT_VERIFIED)

        outcome, remark = attempt(run)
        clone = None if outcome is Outcome.NOT_THIS_CLASS else clone
        evidence = replace(evidence, remark=remark)
        result = Reconstruction(clone, outcome, meter.spent.since(before), evidence, method=repr(self))
        return domain.restored(result)


@dataclass(frozen=True, eq=False)
class _LinearModel:
    """x ↦ Wx + b, the logits where values are probabilities (for K ≥ 2 up to a constant common to all classes)."""

    W: Array
    b: Array


def _read(meter: Metered, rng: np.random.Generator) -> Network:
    offer = meter.offer
    logits = _logits(meter)
    direct = logits.offer.gradients == "all" or (offer.gradients == "top" and offer.outputs == 1)
    if not direct:
        with meter.phase("look for bends"):
            _refuse_bent(logits, rng)
    with meter.phase("read the model"):
        if direct or offer.gradients == "none":
            model = _read_clearly(logits, rng)
        elif offer.values == "probabilities":
            model = _from_top_probabilities(meter, logits, rng)
        else:
            model = _from_top_logits(meter)
    return Network(weights=(model.W,), biases=(model.b,), inputs=offer.inputs, values=offer.values)


def _logits(meter: Metered) -> Oracle:
    """The oracle with logits for probabilities; where only the top of K ≥ 3 has a gradient, without gradients."""
    offer = meter.offer
    if offer.values != "probabilities":
        return meter
    if offer.gradients == "top" and offer.outputs > 2:
        silent = replace(offer, gradients="none")
        return LogitLink(FunctionOracle(lambda x, _: (meter(x, gradients=False).values, None), silent))
    return LogitLink(meter)


def _refuse_bent(logits: Oracle, rng: np.random.Generator) -> None:
    """Three values tell most other targets: that of a linear one half way between two points is the mean of theirs."""
    if logits.offer.random:
        return
    centre = _centre(logits.offer)
    for scale in (1.0, 0.1, 0.01):
        a, b = centre + scale * (fresh_points(logits.offer, 2, rng) - centre)
        answer = logits(np.array([a, (a + b) / 2, b]), gradients=False)
        if not saturated(answer).any():
            first, middle, last = answer.values
            if np.abs(first / 2 + last / 2 - middle).max() > BENT * np.abs(answer.values).max():
                raise Stop(Outcome.NOT_THIS_CLASS, "three points on a line have values that are not on a line")
            return


def _read_clearly(logits: Oracle, rng: np.random.Generator) -> _LinearModel:
    """The model from one answer, or d + 1 values; asked again close to σ's centre if that will be clearer."""
    base = _clear_point(logits, rng)
    model = _read_at(logits, base)
    norm = float(np.sum(model.W**2))
    offset = float(model.W[0] @ base + model.b[0])
    if not isinstance(logits, LogitLink) or len(model.W) > 1 or abs(offset) < _CLEAR_LOGIT or norm == 0:
        return model
    nearer = _into_box(logits.offer, base - model.W[0] * offset / norm)
    return _read_at(logits, nearer)


def _clear_point(logits: Oracle, rng: np.random.Generator) -> Array:
    """The centre of the inputs, or the clearest of some random points if that is saturated."""
    centre = _centre(logits.offer)
    if not isinstance(logits, LogitLink) or not saturated(logits(centre[None], gradients=False))[0]:
        return centre
    away = fresh_points(logits.offer, _POINTS_PER_SCALE * len(_SCALES), rng) - centre
    points = _into_box(logits.offer, centre + np.repeat(_SCALES, _POINTS_PER_SCALE)[:, None] * away)
    answer = logits(points, gradients=False)
    if saturated(answer).all():
        raise Stop(Outcome.SATURATED, f"all {len(points) + 1} points that were tried are saturated")
    return np.asarray(points[np.nanargmin(np.abs(answer.values).max(axis=1))])


def _read_at(logits: Oracle, base: Array) -> _LinearModel:
    """W = J and b = f − Jx from one gradient query at ``base``; from values around it where there are no gradients."""
    if logits.offer.gradients == "none":
        return _from_values(logits, base)
    answer = logits(base[None], gradients=True)
    if saturated(answer)[0]:
        raise Stop(Outcome.SATURATED, "the point that was asked for its gradient is saturated")
    W = answer.jacobians[0]
    return _LinearModel(W, answer.values[0] - W @ base)


def _from_values(logits: Oracle, base: Array) -> _LinearModel:
    """W and b from d + 1 values: a linear model allows steps as large as the inputs, so no digits are lost."""
    steps = np.ones(len(base))
    if logits.offer.box is not None:  # to the farther wall
        low, high = logits.offer.box
        steps = np.where(high - base >= base - low, high - base, low - base)
    middle = logits(base[None], gradients=False).values[0]
    values = np.full((len(base), len(middle)), np.nan)
    unclear = np.ones(len(base), dtype=bool)
    for _ in range(20):
        points = base + np.diag(steps)[unclear]
        values[unclear] = logits(points, gradients=False).values
        unclear = ~_clear(logits, middle, values)
        if not unclear.any():
            W = ((values - middle) / steps[:, None]).T
            return _LinearModel(W, middle - W @ base)
        steps[unclear] /= 4
    raise Stop(Outcome.SATURATED, f"{unclear.sum()} inputs saturate the probabilities however little they change")


def _clear(logits: Oracle, middle: Array, values: Array) -> NDArray[np.bool_]:
    """Which rows of logits are known well."""
    known = np.asarray(~np.isnan(values).any(axis=1))
    if isinstance(logits, LogitLink) and len(middle) == 1:
        known &= np.abs(values - middle).max(axis=1) <= 2 * _CLEAR_LOGIT
    return known


@dataclass(frozen=True, eq=False)
class _Observation:
    """An answer with a top-class gradient: all logits (or log p) at x, and the gradient of the top one."""

    x: Array
    values: Array
    logits: Array
    gradient: Array

    @property
    def top(self) -> int:
        return int(self.values.argmax())


def _from_top_logits(meter: Metered) -> _LinearModel:
    """One row of W from each class's gradient where it is on top; rows of classes never on top from values."""
    seen = _hunt(meter, _centre(meter.offer), lambda seen: len(_rows(seen)) == meter.offer.outputs)
    rows = _rows(seen)
    hidden = [k for k in range(meter.offer.outputs) if k not in rows]
    W = _from_values(meter, seen[0].x).W if hidden else np.zeros((meter.offer.outputs, meter.offer.dimension))
    for k, row in rows.items():
        W[k] = row
    return _LinearModel(W, seen[0].logits - W @ seen[0].x)


def _from_top_probabilities(meter: Metered, logits: Oracle, rng: np.random.Generator) -> _LinearModel:
    """W from ∇log p_top = w_top − Σ p_k·w_k: K − 1 such equations determine all differences of rows."""
    base = _clear_point(logits, rng)
    limit = _WELL_CONDITIONED[meter.offer.dtype]
    seen = _hunt(meter, base, lambda seen: _condition(_coefficients(seen)) < limit)
    if _condition(_coefficients(seen)) >= limit:
        return _from_values(logits, base)
    W = np.linalg.lstsq(_coefficients(seen), np.array([one.gradient for one in seen]), rcond=None)[0]
    return _LinearModel(W, seen[0].logits - W @ base)


def _coefficients(seen: list[_Observation]) -> Array:
    """Row i is e_top − p at the i-th point."""
    return np.array([np.eye(len(one.values))[one.top] - one.values for one in seen])


def _condition(coefficients: Array) -> float:
    """Of the equations for the K − 1 differences: each row of coefficients sums to 0, so the rank is K − 1 at most."""
    sizes = np.linalg.svd(coefficients, compute_uv=False)
    needed = coefficients.shape[1] - 1
    return float(sizes[0] / sizes[needed - 1]) if len(sizes) >= needed and sizes[needed - 1] > 0 else np.inf


def _hunt(meter: Metered, start: Array, enough: Callable[[list[_Observation]], bool]) -> list[_Observation]:
    """Look at points where ever new classes are on top, until it is enough or no more come up."""
    seen = [_look(meter, start)]
    misses = 0
    while not enough(seen) and misses < _MISSES and len(_rows(seen)) < meter.offer.outputs:
        known = len(_rows(seen))
        seen.append(_look(meter, _push_down(meter.offer, seen, 2.0**misses)))
        misses = 0 if len(_rows(seen)) > known else misses + 1
    return seen


def _look(meter: Metered, x: Array) -> _Observation:
    answer = meter(x[None], gradients=True)
    values, gradient = answer.values[0], answer.jacobians[0, 0]
    if meter.offer.values != "probabilities":
        return _Observation(x, values, values, gradient)
    return _Observation(x, values, np.log(np.maximum(values, _TINY)), gradient / values.max())


def _rows(seen: list[_Observation]) -> dict[int, Array]:
    """The gradient last seen for each class that was on top."""
    return {one.top: one.gradient for one in seen}


def _push_down(offer: Offer, seen: list[_Observation], margin: float) -> Array:
    """The nearest point where, by their gradients, all classes seen so far are below the best unseen one.

    Each by another multiple of ``margin``: a tie on top would leave open whose gradient was answered.
    """
    rows, last = _rows(seen), seen[-1]
    unseen = max(last.logits[k] for k in range(offer.outputs) if k not in rows)
    drops = np.array([max(last.logits[k] - unseen + margin * (1 + 0.1 * i / len(rows)), 0) for i, k in enumerate(rows)])
    away = np.linalg.lstsq(np.array([*rows.values()]), -drops, rcond=None)[0]
    return _into_box(offer, last.x + away)


def _centre(offer: Offer) -> Array:
    return np.full(offer.dimension, 0.0 if offer.box is None else sum(offer.box) / 2)


def _into_box(offer: Offer, x: Array) -> Array:
    return x if offer.box is None else np.clip(x, *offer.box)


def _check_offer(offer: Offer) -> None:
    if offer.values not in ("real", "logits", "probabilities"):
        raise MisuseError(
            f"Linear: expected an oracle whose values are real numbers, logits or probabilities, got {offer.values!r}; "
            "without values the biases cannot be found"
        )
