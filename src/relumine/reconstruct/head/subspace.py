"""The row space of a head's first layer: what all its Jacobians have in common, at any depth.

J_head(φ) = (…)·diag(g)·A, so the rows of all Jacobians lie in the row space of A. With h < F that is a small part of
feature space, and everything further happens there: J_φ need be known along h directions only, and features that are
off at an input do not matter as long as the others show these directions.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, Offer
from relumine.oracle.logits import in_logits
from relumine.oracle.metering.metered import Metered, Spent
from relumine.reconstruct.head.asker import HeadAsker, Observation
from relumine.reconstruct.head.backbone import Backbone
from relumine.reconstruct.head.pullback import OUTSIDE, Pullback, pulled_back

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

    @property
    def directions(self) -> Array:
        """(r+u)×F: what J_φ must be known along: the basis, as far as it is known, and every other feature."""
        known = np.where(self.undetermined, 0.0, self.basis)
        return np.concatenate([known, np.eye(self.basis.shape[1])[self.undetermined]])

    def pullback(self, found: Pullback) -> Pullback:
        """What was pulled back along these directions, in terms of features."""
        r, rows = len(self.basis), found.rows @ self.directions
        known = np.ones(rows.shape[1], dtype=bool)
        known[self.undetermined] = found.known[r:]
        return replace(found, rows=rows, known=known & found.known[:r].all())


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
    """The gradient at this input contradicts the row space: a unit was on, or a feature, that hardly was before."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class InRowSpace(Metered):
    """A meter in front of a meter: the target as a function of B·φ, at the asker's inputs only."""

    def __init__(self, asker: HeadAsker, space: RowSpace) -> None:
        self._asker, self._meter = asker, asker.meter
        self.space = space
        self._offer = replace(asker.offer, inputs=(len(space.basis),), box=None)
        if asker.offer.values == "probabilities":
            self._offer = replace(self._offer, values="logits")
        self.points = (asker.features @ space.basis.T).astype(asker.offer.dtype).astype(np.float64)
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
        if not gradients:
            return self._in_logits(self._meter(self._asker.rows[places], gradients=False))
        each = [self._explained(place) for place in places]  # one by one: the first that leaves the space is the last
        return Answer(np.concatenate([one.values for one in each]), np.concatenate([one.jacobians for one in each]))

    def _in_logits(self, answer: Answer) -> Answer:
        return in_logits(self._asker.offer, answer) if self._asker.offer.values == "probabilities" else answer

    def _explained(self, place: int) -> Answer:
        answer = self._in_logits(self._asker.gradients(place))
        return Answer(answer.values, self._pulled_back(place, answer.values[0], answer.jacobians[0])[None])

    def observe(self, place: int) -> None:
        """Ask the gradients at one of the asker's inputs."""
        self(self.points[[place]], gradients=True)

    def _pulled_back(self, place: int, logits: Array, gradients: Array) -> Array:
        r = len(self.space.basis)
        if not np.isfinite(gradients).all():  # saturated
            return np.full((len(gradients), r), np.nan)
        if place not in self._pulled:
            asker = self._asker
            found = pulled_back(gradients, self._jacobian(place), self.offer.dtype)
            new = place not in asker.asked
            if new and found.outside > self._outside:
                raise LeftTheRowSpaceError(place)
            shown = self.space.pullback(found)
            asker.asked.setdefault(place, Observation(asker.features[place], logits, np.eye(len(logits)), shown, False))
            missed = (shown.rows - found.rows[:, :r] @ self.space.basis)[:, shown.known]
            if new and np.linalg.norm(missed) > _LEAVES * found.error * np.linalg.norm(shown.rows):
                raise LeftTheRowSpaceError(place)
            self.error = max(self.error, found.error)
            self._pulled[place] = found.rows[:, :r]
        return self._pulled[place]

    def _jacobian(self, place: int) -> Array:
        """(r+u)×d: J_φ along the directions, of the whole that was computed before if it was kept."""
        kept = self._asker.kept.get(place)
        if kept is None:
            return self._onto.jacobian(self._asker.rows[place])
        result: Array = self.space.directions @ kept
        return result

    @cached_property
    def _onto(self) -> Backbone:
        return self._asker.backbone.onto(self.space.directions)
