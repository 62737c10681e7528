"""PulledBack: the answers as the next layer sees them, by the features of the last known layer instead of the inputs.

Where the known layers are right, every gradient is a combination of the slopes of the features that are on; the factors
are the gradient by these features, and it is a combination of the next layer's rows: of those units that are on.
"""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.deep.book import Book
from relumine.reconstruct.deep.layers import Layers, Mask
from relumine.reconstruct.deep.precision import Precision

# Orientation: so many ways of choosing units that are off are tried where the rows are dependent.
_WAYS = 600
# There so many answers of a region are heard, and so many are enough to turn a unit.
_VOTES = 4


@dataclass(frozen=True, eq=False)
class Missing:
    """Gradients by the features less what is explained, the answered points where something is left, and the others."""

    rest: Array
    wrong: NDArray[np.intp]
    right: NDArray[np.intp]


class PulledBack:
    """Grows with the book: features, gradients by the features, and which features are on, at every answered point."""

    def __init__(self, layers: Layers, book: Book, precision: Precision) -> None:
        self.layers = layers
        self.book = book
        self.same = precision.same
        self._close = precision.clear
        self._gradients: list[Array] = []
        self._clear: list[bool] = []
        self._unexplained: list[bool] = []
        self._trusted: list[bool] = []  # off every known boundary, explained, and determined

    def update(self) -> None:
        """Take note of new answers."""
        first = len(self._clear)
        points, jacobians = self.book.points[first:], self.book.jacobians[first:]
        if not len(points):
            return
        clear = ~self.layers.explains(points, self._close)
        slopes, on = self.layers.feature_slopes(points), self.layers.on(points)
        for i in range(len(points)):
            gradients, unique = self._pulled(slopes[i], on[i], jacobians[i])
            rest = float(np.linalg.norm(gradients @ slopes[i] - jacobians[i])) if len(self.layers) else 0.0
            explained = rest <= 10 * self.same * float(np.linalg.norm(jacobians[i]))
            self._gradients.append(gradients)
            self._clear.append(bool(clear[i]))
            self._unexplained.append(bool(clear[i]) and not explained)
            self._trusted.append(bool(clear[i]) and explained and unique)

    def _pulled(self, slopes: Array, on: Mask, jacobian: Array) -> tuple[Array, bool]:
        """The gradient by the features, and whether there is only one."""
        if not len(self.layers):
            return jacobian, True
        gradients = np.zeros((len(jacobian), len(on)))
        if not on.any():
            return gradients, True
        found, _, rank, _ = np.linalg.lstsq(slopes[on].T, jacobian.T, rcond=1e-9)
        gradients[:, on] = found.T
        return gradients, bool(rank == on.sum())

    @property
    def unexplained(self) -> NDArray[np.intp]:
        """Answered points where the known layers do not explain the gradient: a unit that is not known is on there."""
        self.update()
        return np.flatnonzero(self._unexplained)

    def _usable(self) -> tuple[Array, Array, Mask]:
        """Features, gradients and masks where the known layers can be trusted."""
        self.update()
        use = np.array(self._trusted)
        points = self.book.points[use]
        return self.layers.features(points), np.array(self._gradients)[use], self.layers.on(points)

    def missing(self, rows: Array) -> "Missing | None":
        """What no combination of these rows explains; None if nowhere more features are on than there are rows."""
        _, gradients, on = self._usable()
        width = on.shape[1]
        places = np.flatnonzero(self._trusted)
        if len(rows) >= width and np.linalg.matrix_rank(rows, tol=1e-5) == width:
            return Missing(np.empty((0, width)), places[:0], places)
        groups = [(mask, at) for mask, at in _by_mask(on) if mask.sum() > len(rows)]
        if not groups:
            return None
        rest = np.zeros(gradients.shape)
        for mask, at in groups:
            basis = np.linalg.svd(rows[:, mask], full_matrices=False)[2]
            here = gradients[at][:, :, mask]
            sizes = np.linalg.norm(here, axis=(1, 2), keepdims=True)
            left = np.zeros((len(at), *gradients.shape[1:]))
            left[:, :, mask] = (here - here @ basis.T @ basis) / np.where(sizes > 0, sizes, 1.0)
            rest[at] = left
        tell = np.concatenate([at for _, at in groups])
        wrong = np.linalg.norm(rest[tell], axis=2).max(axis=1) > 10 * self.same
        return Missing(rest[tell[wrong]].reshape(-1, width), places[tell[wrong]], places[tell[~wrong]])

    def turned(self, rows: Array, biases: Array) -> tuple[Array, Array] | None:
        """Rows turned so that a unit is on where it takes part in the gradient; None where that cannot be told."""
        features, gradients, on = self._usable()
        positive = features @ rows.T + biases > 0
        votes = np.zeros((2, len(rows)))
        for mask, at in sorted(_by_mask(on), key=lambda group: -int(group[0].sum())):
            if votes.sum(axis=0).min() >= _VOTES and mask.sum() < len(rows):
                break
            for i in at if mask.sum() >= len(rows) else at[:_VOTES]:
                part = _taking_part(rows[:, mask], gradients[i][:, mask], 100 * self.same)
                if part is not None:
                    votes += part & positive[i], part & ~positive[i]
        if np.any(votes.sum(axis=0) == 0) or np.any(votes.min(axis=0) > 0.1 * votes.sum(axis=0)):
            return None
        sign = np.where(votes[0] > votes[1], 1.0, -1.0)
        return rows * sign[:, None], biases * sign


def _by_mask(on: Mask) -> list[tuple[Mask, NDArray[np.intp]]]:
    """The points with the same features on, together."""
    masks, group = np.unique(on, axis=0, return_inverse=True)
    return [(mask, np.flatnonzero(group.ravel() == i)) for i, mask in enumerate(masks)]


def _taking_part(rows: Array, gradients: Array, tolerance: float) -> Mask | None:
    """Which rows the gradients are made of; None where that cannot be told.

    If the rows are dependent there are many ways to make them. Units that are off make the true one stand out: it needs
    fewer rows than chance would have it.
    """
    size = float(np.linalg.norm(gradients))
    if size == 0 or not rows.shape[1]:
        return None
    left, sizes, _ = np.linalg.svd(rows)
    rank = int((sizes > 1e-6 * sizes[0]).sum())
    factors = np.linalg.lstsq(rows.T, gradients.T, rcond=1e-9)[0]  # h×K
    if np.linalg.norm(rows.T @ factors - gradients.T) > tolerance * size:
        return None
    free = left[:, rank:]  # combinations of the rows that vanish
    if not free.shape[1]:
        return np.asarray(np.linalg.norm(factors, axis=1) > tolerance * size)
    if comb(len(rows), free.shape[1]) > _WAYS:
        return None
    best: Mask | None = None
    for off in combinations(range(len(rows)), free.shape[1]):
        chosen = list(off)
        change = np.linalg.lstsq(free[chosen], factors[chosen], rcond=None)[0]
        part = np.linalg.norm(factors - free @ change, axis=1) > tolerance * size
        if best is None or part.sum() < best.sum():
            best = part
    assert best is not None
    return best if best.sum() < rank - 1 else None
