"""Observations in terms of known features, and the row space that all of them share.

Around a point J = H·G with G the Jacobian of the features, which is known, so H follows by least squares for all
features that are on. What follows the features is V·diag(g)·A there: however many features there are, the rows of all
H lie in the row space of A. Features that are off in some answers are no hindrance: each column is the same
combination of a few (low-rank completion, entry by entry exact).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.layers import Front
from relumine.reconstruct.convolutional.sightings import Observation

# Below this part of the largest, a singular value is none.
_DEPENDENT = 1e-6
# Equations of which some direction keeps less than this part (squared) are not solved: they would blow up rounding.
_TOLD = 1e-6
# Equations beyond the unknowns that prove a rank, or that an answer lies in a space.
_SPARE = 4
# Singular values are those of units where the next one is smaller than this part of them.
_GAP = 3e-2
# An answer has a row of its own if so many errors are left of it.
_OUTSIDE = 30.0
_TINY = 1e-300
# An answer of which more than this part lies outside the span of the features that are on shows one that is missing:
# channels are known to 1e-8 and better (float32: 1e-4), and one that is missing leaves about its share of the answer.
_MISSING = 1e-3
# Sets of points that are tried as the first block.
_BLOCKS = 16


@dataclass(frozen=True, eq=False)
class Pulled:
    """An observation in terms of features: ``piece`` K×(F+1) is [H, constant], for features ``on`` and known."""

    features: Array
    piece: Array
    on: NDArray[np.bool_]


def pulled(front: Front, seen: Observation) -> Pulled:
    """The Jacobian of what follows the front, for the features that do not depend on each other around the point."""
    pieces = front.at(seen.point).pieces
    features = pieces[:, -1].toarray().ravel()
    on = np.flatnonzero(features != 0)
    rows = pieces[on, :-1].toarray()
    found, _, rank, _ = lstsq(rows.T, seen.jacobian.T, cond=_DEPENDENT, lapack_driver="gelsy")
    known = np.append(features != 0, True)
    if rank < len(on):  # what is part of a dependency is not known, and neither is the constant
        left, sizes, _ = np.linalg.svd(rows)
        free = left[:, int((sizes > _DEPENDENT * sizes[0]).sum()) :]
        known[on[np.linalg.norm(free, axis=1) > _DEPENDENT]] = False
        known[-1] = False
    piece = np.zeros((len(seen.values), len(features) + 1))
    piece[:, on] = found.T
    piece[:, -1] = seen.values - found.T @ features[on]
    return Pulled(features, piece, known)


def lacks(front: Front, seen: Observation) -> bool:
    """Whether a feature is on here that the front does not have: the Jacobian is no combination of those it has."""
    pieces = front.at(seen.point).pieces
    rows = pieces[np.flatnonzero(np.diff(pieces.indptr)), :-1].toarray()
    if len(rows) >= rows.shape[1]:
        return False
    basis = np.linalg.qr(rows.T)[0]
    left = seen.jacobian - (seen.jacobian @ basis) @ basis.T
    return float(np.linalg.norm(left)) > _MISSING * float(np.linalg.norm(seen.jacobian))


class RowSpace:
    """The row space of all H: ``rows`` r×F, right for the features that are ``known``; ``error``: of a number of H."""

    def __init__(self, seen: list[Pulled]) -> None:
        self._h = np.array([one.piece[:, :-1] for one in seen])
        self._on = np.array([one.on[:-1] for one in seen])
        features = self._h.shape[2]
        self.rows, self.known, self.error = np.zeros((0, features)), np.zeros(features, dtype=bool), 0.0
        self.factors, self.inside = np.zeros((len(seen), 0, 0)), np.zeros(len(seen), dtype=bool)
        self._begin()
        self._complete()

    @property
    def rank(self) -> int:
        """How many rows the first layer shows."""
        return len(self.rows)

    def _begin(self) -> None:
        """The points whose common features show most of the space, and are more than it needs."""
        order, K = overlapping(self._on), self._h.shape[1]
        for count in np.unique(np.linspace(2, len(order), _BLOCKS).astype(int)):
            common = np.asarray(self._on[order[:count]].all(axis=0))
            block = self._h[order[:count]][:, :, common].reshape(count * K, -1)
            if min(block.shape) <= _SPARE + self.rank:
                continue
            _, sizes, right = np.linalg.svd(block, full_matrices=False)
            rank = 1 + int(np.argmax(sizes[:-_SPARE] / np.maximum(sizes[1 : 1 - _SPARE or None], _TINY)))
            if rank > self.rank and sizes[rank] < _GAP * sizes[rank - 1]:
                self.rows = np.zeros((rank, len(common)))
                self.rows[:, common], self.known = right[:rank], common
                rest = np.prod(np.array(block.shape) - rank)
                self.error = max(float(np.linalg.norm(sizes[rank:])) / np.sqrt(rest), _TINY)

    def _complete(self) -> None:
        """Answers by the features that are known, features by these answers, until neither is more."""
        before = -1
        while self.rank and before != (before := int(self.known.sum())):
            self.factors, self.inside = self._factors()
            if before < len(self.known):
                self._columns(self.factors, self.inside)

    def _factors(self) -> tuple[Array, NDArray[np.bool_]]:
        """n×K×r: C with H = C·rows, and n: where that is so; not where too little is known, or a row is missing."""
        n, K, _ = self._h.shape
        factors, inside = np.zeros((n, K, self.rank)), np.zeros(n, dtype=bool)
        for i in range(n):
            used = self._on[i] & self.known
            rows, given = self.rows[:, used], self._h[i][:, used]
            if used.sum() < self.rank + _SPARE:
                continue
            solution, _, rank, _ = np.linalg.lstsq(rows.T, given.T, rcond=np.sqrt(_TOLD))
            factors[i] = solution.T
            left = float(np.sqrt(np.mean((given - factors[i] @ rows) ** 2)))
            inside[i] = rank == self.rank and left < _OUTSIDE * self.error
        return factors, inside

    def _columns(self, factors: Array, inside: NDArray[np.bool_]) -> None:
        """Columns of further features, each by the answers in which it is on."""
        r, new = self.rank, ~self.known
        normal = np.einsum("nka,nkb->nab", factors[inside], factors[inside]).reshape(-1, r * r)
        on = self._on[inside][:, new].astype(np.float64)
        systems = (on.T @ normal).reshape(-1, r, r)
        given = np.einsum("nka,nkf,nf->fa", factors[inside], self._h[inside][:, :, new], on)
        sizes = np.linalg.eigvalsh(systems)
        enough = (sizes[:, 0] > _TOLD * sizes[:, -1]) & (on.sum(axis=0) * self._h.shape[1] >= r + _SPARE)
        places = np.flatnonzero(new)[enough]
        self.rows[:, places] = np.linalg.solve(systems[enough], given[enough][:, :, None])[:, :, 0].T
        self.known[places] = True

    def whole(self, seen: list[Pulled]) -> list[int]:
        """The answers of which everything is known in this space."""
        known = [one.on[-1] and not (one.features != 0)[~self.known].any() for one in seen]
        return [int(i) for i in np.flatnonzero(self.inside & known)]


def overlapping(on: NDArray[np.bool_]) -> list[int]:
    """Points in an order in which each leaves as many common features as can be."""
    order = [int(on.sum(axis=1).argmax())]
    common = on[order].all(axis=0)
    while len(order) < len(on):
        left = (on & common).sum(axis=1).astype(float)
        left[order] = -1
        order.append(int(left.argmax()))
        common &= on[order[-1]]
    return order
