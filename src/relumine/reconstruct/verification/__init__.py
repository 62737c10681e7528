"""Verification: no reconstruction is called recovered before it met the target where its inputs lie (domain.py)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.errors import BudgetError
from relumine.oracle.base import Answer, Array, DType, Offer, Oracle
from relumine.oracle.logits import in_logits
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import noise_in
from relumine.reconstruct.result import Clone, Evidence, Outcome, Reconstruction
from relumine.reconstruct.verification.domain import Domain, fresh_points

__all__ = ["BENT", "FRESH_POINTS", "TOLERANCE", "Met", "fresh_points", "gaps", "met", "relative_gap", "verified"]

# Largest gap, relative to the largest answer, at which a clone counts as equal. float64 leaves room for sums over
# thousands of units; in float32 the target itself is only known to about 1e-6 of its largest value.
TOLERANCE: dict[DType, float] = {"float64": 1e-9, "float32": 1e-4}

# By default this many fresh points are compared: disagreement on less than 8 % of them at 95 % confidence. Exact
# methods add points that lie close to the boundaries they found, where a wrong one would show.
FRESH_POINTS = 40

# A larger gap, relative to the largest answer, is a target of another kind; a smaller one may be rounding.
BENT = 1e-3

# By how many rounding units of the largest answer one may be off: it is a sum of many products. A probability by
# fewer: it was summed over classes and divided.
_ROUNDING, _DIGITS = 64, 8
# Places at which a clone is wrong after which those further away tell no more.
_CONTRADICTIONS = 3
# A probability closer than this to 0 or 1 tells little but the class. Where fewer than so many answers tell more, or
# none at some scale, as many are asked for at boundaries of the clone's classes, between some of these points, halved
# to rounding; four times as many where hardly any answer tells more: of 8 such points all missed a unit that flipped
# one class in a hundred.
_SATURATED, _TOLD, _SILENT, _TRIED, _HALVINGS = 1e-3, 8, 4, 400, 50
# Fewer answers than this do not tell by themselves how much answers vary; predictions at _DRAWS points do.
_FEW, _DRAWS = 10, 50
# Coordinates whose slopes differ by more are compared at so many points at which they do not; smaller ones keep seven
# of nine digits at N(0, I).
_UNEVEN, _AT_COLUMNS = 100, 4
# A gap elsewhere may be this multiple of the gap that a method found and accepted: noise that it knows of.
_ACCEPTED = 10


@dataclass(frozen=True, eq=False)
class Met:
    """A comparison: its largest ``gap``, ``points`` asked and their ``values``, which are ``wrong``, and where."""

    gap: float
    points: Array
    values: Array
    wrong: NDArray[np.intp]
    where: str

    @property
    def evidence(self) -> Evidence:
        """What it proves by itself."""
        return Evidence().and_met(self.gap, len(self.points), self.where)


def met(
    clone: Clone, oracle: Oracle, domain: Domain, rng: np.random.Generator, tolerance: float, noise: float = 0.0
) -> Met:
    """Compare at all places of the domain; at the first only, if the clone is far off there.

    Where it is wrong at some of them, places further away are left out: near contradictions are mended best.

    noise: of one answer, relative to its size, if that is more than rounding
    """
    seen = [*domain.places(rng).values(), _where_columns_count(clone, domain, rng)]
    places = [domain.representable(points) for points in seen if len(points)]
    answers = [oracle(places[0], gradients=False).values]
    # Without biases a clone is as precise at small inputs as at large ones, and biases that it lacks show there.
    biased = not isinstance(clone, Network) or any(bias.any() for bias in clone.biases)
    usual = _spread(answers[0]) if biased else 0.0
    draw = rng.spawn(1)[0]

    def size(points: Array) -> float:
        if len(points) >= _FEW:
            return usual
        # Few answers may be alike by chance, as f(x) and f(−x) of one output: the clone tells what is usual there.
        others = draw.choice([-1.0, 1.0], (_DRAWS, points.shape[1])) * points[draw.integers(len(points), size=_DRAWS)]
        return max(usual, _spread(clone.predict(domain.representable(others))))

    found = [gaps(clone, oracle.offer, places[0], answers[0], size(places[0]), noise)]
    if len(places) > 1 and found[0].max() <= max(tolerance, BENT):
        ends = np.cumsum([len(points) for points in places[1:]])[:-1]
        answers += np.split(oracle(np.concatenate(places[1:]), gradients=False).values, ends)
    # What rounding to decimals hides, told from answers no larger than the first: large ones have no such digits.
    numbers = np.concatenate([values.ravel() for values in answers])
    hidden = noise_in(numbers[np.abs(numbers) <= np.abs(answers[0]).max()], oracle.offer.dtype).absolute
    where = domain.where if len(answers) == len(places) else "at N(0, I)"
    for points, values in zip(places[1:], answers[1:], strict=False):
        if sum(part.max() > tolerance for part in found) == _CONTRADICTIONS:
            break
        found.append(gaps(clone, oracle.offer, points, values, size(points), noise, hidden))
    told = [int(_telling(oracle.offer, values).sum()) for values in answers]
    if isinstance(clone, Network) and (sum(told) < _TOLD or not all(told)) and len(found) == len(places) > 1:
        count = _TOLD if sum(told) >= _TOLD else _SILENT * _TOLD
        tried = domain.near_and_far(_TRIED, rng)  # where answers nearby tell enough, those that lie far out
        tried = tried if count > _TOLD else tried[::2]
        places.append(domain.representable(_between_classes(clone, tried, count, rng)))
        answers.append(oracle(places[-1], gradients=False).values)
        # Where classes are equally likely logits are sums of large numbers, and rounded as these are.
        further = np.maximum(1.0, np.abs(places[-1]).max(axis=1) / np.abs(places[0]).max())
        largest = max(1.0, float(np.abs(clone.logits(places[0])).max()))
        found.append(np.abs(clone.predict(places[-1]) - answers[-1]).max(axis=1) / (largest * further))
    points, values, missed = (np.concatenate(parts[: len(found)]) for parts in (places, answers, found))
    return Met(float(missed.max()), points, values, np.flatnonzero(missed > tolerance), where)


def _where_columns_count(clone: Clone, domain: Domain, rng: np.random.Generator) -> Array:
    """Points at which each coordinate moves the clone's units as much as any other; none if they do at N(0, I).

    At N(0, I) the slopes along a coordinate of large units, such as salaries beside shares, are lost in rounding. In
    float32 all slopes that are a hundredth of others have too few digits to be held against anything.
    """
    offer = domain.offer
    if offer.box is not None or offer.dtype == "float32" or not isinstance(clone, Network):
        return np.empty((0, offer.dimension))
    rows = clone.weights[0] if clone.skip is None else np.concatenate([clone.weights[0], clone.skip])
    sizes = np.linalg.norm(rows, axis=0)
    counting = sizes > _ROUNDING * np.finfo(np.float64).eps * sizes.max()  # of a smaller one rounding is all there is
    if not counting.any() or sizes.max() <= _UNEVEN * sizes[counting].min():
        return np.empty((0, offer.dimension))
    usual = np.linalg.norm(sizes) / np.sqrt(len(sizes))
    return rng.standard_normal((_AT_COLUMNS, len(sizes))) * np.where(counting, usual / np.where(counting, sizes, 1), 1)


def _telling(offer: Offer, answers: Array) -> NDArray[np.bool_]:
    """n: which answers tell more than a class; all but saturated probabilities do."""
    if offer.values != "probabilities":
        return np.ones(len(answers), dtype=np.bool_)
    return np.asarray(np.abs(answers - 0.5).min(axis=1) < 0.5 - _SATURATED)


def _between_classes(clone: Network, points: Array, count: int, rng: np.random.Generator) -> Array:
    """Up to so many points at which a clone is undecided, between such of these that it puts in different classes."""

    def classes(at: Array) -> Array:
        logits = clone.logits(at)
        return np.asarray(logits.argmax(axis=1) if logits.shape[1] > 1 else logits[:, 0] > 0)

    pairs = rng.permutation(len(points)).reshape(2, -1)
    one, other = points[pairs[:, classes(points[pairs[0]]) != classes(points[pairs[1]])][:, :count]]
    own = classes(one)
    for _ in range(_HALVINGS):
        middle = (one + other) / 2
        same = (classes(middle) == own)[:, None]
        one, other = np.where(same, middle, one), np.where(same, other, middle)
    return np.asarray((one + other) / 2)


def _spread(answers: Array) -> float:
    return float(np.ptp(answers, axis=0).max())


def gaps(
    clone: Clone, offer: Offer, points: Array, answers: Array, usual: float, noise: float, hidden: float = 0.0
) -> Array:
    """n: |prediction − answer| beyond rounding (and what decimals hide), relative to the spread of the answers.

    Of these points, or the usual one if that is larger: a constant that is large must not hide what varies.
    Probabilities are compared as logits, where their digits show them: a wrong one must not hide behind saturation.
    """
    rounding = float(np.finfo(offer.dtype).eps)
    missed = np.abs(clone.predict(points) - answers).max(axis=1)
    if offer.values != "probabilities" or not isinstance(clone, Network):
        missed -= _ROUNDING * rounding * np.abs(answers).max() + hidden
        return np.asarray(np.maximum(missed, 0) / (max(_spread(answers), usual) or 1.0))
    truth, said = in_logits(offer, Answer(answers)).values, clone.logits(points)
    said = said - said.mean(axis=1, keepdims=True) if offer.outputs > 1 else said
    # A probability that was computed as 1 − p has the rounding error of p.
    smallest = np.minimum(answers.min(axis=1), 1 - answers.max(axis=1) if offer.outputs == 1 else 1.0)
    unsure = _DIGITS * max(noise, rounding)
    by_logits = np.abs(said - truth).max(axis=1) - unsure / np.maximum(smallest, 1e-300)
    missed = np.fmax(by_logits, missed - unsure)  # logits are unknown where they are saturated
    return np.asarray(np.maximum(missed, 0) / max(1.0, float(np.abs(said).max())))


def tolerated(offer: Offer, evidence: Evidence) -> float:
    """The largest gap elsewhere of a clone that equals the target as this evidence says."""
    accepted = _ACCEPTED * max(evidence.verification_gap or 0.0, evidence.accuracy or 0.0)
    return max(TOLERANCE[offer.dtype], min(accepted, BENT))


def verified(
    result: Reconstruction,
    meter: Metered,
    rng: np.random.Generator,
    domain: Domain | None = None,
    tolerance: float | None = None,
) -> Reconstruction:
    """A recovered clone compared at all places of the domain; NOT_VERIFIED where it differs.

    domain: in the coordinates of ``meter``; without it N(0, I) at several scales, or the box
    """
    domain, evidence, before = domain or Domain.of(meter.offer, None), result.evidence, meter.spent
    if result.outcome is not Outcome.RECOVERED or result.clone is None or evidence.where == domain.where:
        return result
    try:
        with meter.phase("verify"):
            allowed = max(tolerance or 0.0, tolerated(meter.offer, evidence))
            found = met(result.clone, meter, domain, rng, allowed, evidence.noise_floor or 0.0)
        outcome = Outcome.NOT_VERIFIED if len(found.wrong) else Outcome.RECOVERED
        evidence = evidence.and_met(found.gap, len(found.points), found.where)
    except BudgetError as error:
        outcome, evidence = Outcome.BUDGET_EXHAUSTED, replace(evidence, remark=str(error))
    spent = result.spent.then(meter.spent.since(before))
    return replace(result, outcome=outcome, spent=spent, evidence=evidence)


def relative_gap(predict: Callable[[Array], Array], oracle: Oracle, inputs: Array) -> float:
    """Largest |prediction − answer| at ``inputs``, relative to the largest |answer| there. Asks value queries."""
    answers = oracle(inputs, gradients=False).values
    largest = np.abs(answers).max(initial=0)
    gap = np.abs(predict(inputs) - answers).max(initial=0)
    return float(gap / largest) if largest > 0 else float(gap)
