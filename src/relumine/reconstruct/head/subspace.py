"""The row space of a head's first layer: what all its Jacobians have in common, at any depth.

J_head(φ) = (…)·diag(g)·A, so the rows of all Jacobians lie in the row space of A. With h < F that is a small part of
feature space, and everything further happens there: J_φ need be known along h directions only, and features that are
off at an input do not matter as long as the others show these directions.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, Offer
from relumine.oracle.logits import in_logits
from relumine.oracle.metering.metered import Metered, Spent
from relumine.reconstruct.head.asker import HeadAsker, Observation
from relumine.reconstruct.head.pullback import OUTSIDE, pulled_back

# Singular values above this many times those of the errors belong to units.
_ABOVE = 4.0
# Rows beyond the rank that show that it is not limited by their number.
_SPARE = 3
# Answers in which a feature was on determine its column if they are independent up to this.
_DEPENDENT = 1e-4
# By how many times more than rounding a gradient may leave the row space before a new unit is suspected.
_LEAVES = 30.0


@dataclass(frozen=True, eq=False)
class RowSpace:
    """An orthonormal ``basis`` r×F, and for which features too few answers determine it."""

    basis: Array
    undetermined: NDArray[np.bool_]


def row_space(asker: HeadAsker, seen: list[Observation]) -> RowSpace | None:
    """The row space of these Jacobians; None if more of them would show more.

    Columns that were not known in some answers follow from the others: each is a combination, known from the answers
    that show it, of the same r columns. Answers that show the fewest columns are left out if they must be.
    """
    best = sorted(seen, key=lambda one: -int((one.pulled.known & asker.live).sum()))
    found = (_row_space(asker, best[:count]) for count in range(len(best), 1, -1))
    return next((space for space in found if space is not None), None)


def _row_space(asker: HeadAsker, seen: list[Observation]) -> RowSpace | None:
    rows = np.concatenate([one.pulled.rows for one in seen])
    known = np.repeat([one.pulled.known for one in seen], [len(one.pulled.rows) for one in seen], axis=0)
    always: NDArray[np.bool_] = known.all(axis=0) & asker.live
    if not always.any():
        return None
    shown = len(rows) - (len(seen) if asker.offer.values == "probabilities" and asker.offer.outputs > 1 else 0)
    left, sizes, right = np.linalg.svd(rows[:, always], full_matrices=False)
    error = max(one.pulled.error * float(np.sqrt(np.mean(one.pulled.rows[:, one.pulled.known] ** 2))) for one in seen)
    rank = int((sizes > _ABOVE * error * (np.sqrt(len(rows)) + np.sqrt(always.sum()))).sum())
    whole = rank == always.sum() == asker.live.sum()
    if not rank or (not whole and rank > min(shown, int(always.sum())) - _SPARE):
        return None
    basis, undetermined = np.zeros((rank, rows.shape[1])), np.zeros(rows.shape[1], dtype=bool)
    basis[:, always] = right[:rank]
    factors = left[:, :rank]
    for j in np.flatnonzero(asker.live & ~always):
        here = known[:, j]
        solution, _, of, _ = np.linalg.lstsq(factors[here], rows[here, j], rcond=_DEPENDENT)
        basis[:, j] = solution / sizes[:rank]
        undetermined[j] = of < rank
    return RowSpace(np.ascontiguousarray(np.linalg.qr(basis.T)[0].T), undetermined)


class LeftTheRowSpaceError(Exception):
    """The gradient at this input has a part outside: a unit was on that never was before."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class InRowSpace(Metered):
    """A meter in front of a meter: the target as a function of B·φ, at the asker's inputs only."""

    def __init__(self, asker: HeadAsker, basis: Array) -> None:
        self._asker, self._meter = asker, asker.meter
        self._onto = asker.backbone.onto(basis)
        self._basis = basis
        self._offer = replace(asker.offer, inputs=(len(basis),), box=None)
        if asker.offer.values == "probabilities":
            self._offer = replace(self._offer, values="logits")
        self.points = (asker.features @ basis.T).astype(asker.offer.dtype).astype(np.float64)
        self._places = {row.tobytes(): i for i, row in reversed(list(enumerate(self.points)))}
        seen = max((one.pulled.outside for one in asker.asked.values()), default=0.0)
        limit = OUTSIDE[asker.offer.dtype]
        self._outside = min(limit, _LEAVES * max(seen, float(np.finfo(asker.offer.dtype).eps)))
        self.error = 0.0
        self._pulled: dict[int, Array] = {}
        self.phase = asker.meter.phase  # type: ignore[method-assign]
        self.found = asker.meter.found  # type: ignore[method-assign]

    @property
    def offer(self) -> Offer:
        return self._offer

    @property
    def spent(self) -> Spent:
        return self._meter.spent

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        places = [self._places[np.ascontiguousarray(row).tobytes()] for row in inputs]
        answer = self._meter(self._asker.rows[places], gradients=gradients)
        if self._asker.offer.values == "probabilities":
            answer = in_logits(self._asker.offer, answer)
        if not gradients:
            return answer
        pulled = [self._pulled_back(i, one) for i, one in zip(places, answer.jacobians, strict=True)]
        shape = (len(places), self.offer.gradient_rows, self.offer.dimension)
        return Answer(answer.values, np.array(pulled).reshape(shape))

    def _pulled_back(self, place: int, gradients: Array) -> Array:
        if not np.isfinite(gradients).all():  # saturated
            return np.full((len(gradients), len(self._basis)), np.nan)
        if place not in self._pulled:
            found = pulled_back(gradients, self._jacobian(place), self.offer.dtype)
            if found.outside > self._outside and place not in self._asker.asked:
                raise LeftTheRowSpaceError(place)
            self.error = max(self.error, found.error)
            self._pulled[place] = found.rows
        return self._pulled[place]

    def _jacobian(self, place: int) -> Array:
        """r×d: B·J_φ, of the Jacobian that was computed before if it was kept."""
        kept = self._asker.kept.get(place)
        if kept is None:
            return self._onto.jacobian(self._asker.rows[place])
        result: Array = self._basis @ kept
        return result
