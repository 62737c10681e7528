"""A layer's rows from Jacobians alone: the vectors that the Jacobians of switched-off points annihilate.

J_n = B_n D_n A, with A the layer, D_n its activation pattern at x_n and B_n whatever lies above. If there are no more
units than inputs, each unit i has a dual vector β_i, A β_i = e_i, and J_n β_i = 0 exactly where the unit is off. So the
stacked Jacobians of a few points have a null vector where a unit is off at all of them, and every other point at
which it is off annihilates it too: that is the proof, and the unit's activation pattern.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from relumine.oracle.base import Array
from relumine.reconstruct.deep.layers import Mask

# Points are ordered along a combination of rows, blurred by up to this part of their spread.
_BLUR = 0.5
# Singular values below this many rounding units of the largest are rounding: the sums behind a Jacobian round too.
_ROUNDING = 30.0
# What an annihilated Jacobian leaves may be this many rounding units times the condition number: the map to a later
# layer adds its own error. Measured on first layers: 1 at most. What others leave must be this many times larger.
_LEFT, _APART = 1e3, 30.0
# Null vectors are found from Gram matrices, which square the condition number.
_COARSE = 1e-6
# Equations that must hold, as a multiple of those that determine a dual vector: where fewer do, it is none mostly.
_SPARE = 1.5
# This many times more vectors than units, and most are none: more points tell.
_FLOOD = 3
# Of fewer points than this multiple of the unknowns of a hyperplane, about half of all sets can be cut off by one.
_TELLING = 2
# Subsets of points per round.
_ROUND = 32
# Rounds without a new unit, besides as many as there were with, after which more points are better than more subsets;
# and rounds in all. Layers of 64 units took 9 to 12 rounds, one of 100 units 76. No clock decides, so that a run that
# is started again asks the same.
_IDLE, _MOST = 20, 200
# Up to this rank subsets that leave no null vector but those of units are tried faster than larger null spaces.
_SMALL = 40
# A vector depends on others if less than this part of it is left besides them.
_DEPENDENT = 1e-4


@dataclass(frozen=True, eq=False)
class PatternLayer:
    """h rows of length one, and what the N points say of their biases: off up to ``below``, on from ``above``.

    on: N×h, the activation pattern; where the Jacobian vanishes it is what the rows say
    """

    rows: Array
    below: Array
    above: Array
    on: Mask


class DualSearch:
    """Looks for the dual vectors of one layer in N Jacobians (N×K×m) at ``points`` N×m.

    relative: the rounding of one number
    known: dual vectors that fewer Jacobians have shown
    random: whether points are far apart, so that part of a Jacobian hardly ever returns in another
    equations: the ranks of all Jacobians together, of those that add something: ``rank`` of them at points where a unit
        is off determine its dual vector
    """

    def __init__(
        self, points: Array, jacobians: Array, relative: float, known: Array | None = None, *, random: bool = True
    ) -> None:
        N, K, m = jacobians.shape
        left, sizes, basis = np.linalg.svd(jacobians.reshape(N * K, m), full_matrices=False)
        self.rank = int((sizes > _ROUNDING * relative * float(sizes.max(initial=0))).sum())
        self._points, self._random = points, random
        self._sizes, self.basis = sizes[: self.rank], basis[: self.rank]
        self._blocks = left[:, : self.rank].reshape(N, K, self.rank)
        condition = float(sizes[0] / self._sizes[-1]) if self.rank else 1.0
        self._tight = _LEFT * relative * condition / np.sqrt(max(N * K, 1))
        self._coarse = max(_COARSE, self._tight / 10)
        shown = np.linalg.svd(self._blocks, compute_uv=False) if self.rank else np.zeros((N, K))
        self._alive = shown[:, 0] > self._coarse if self.rank else np.zeros(N, dtype=bool)
        self._shown = (shown > self._coarse).sum(axis=1)
        new = _new_equations(self._blocks, self._shown, self._tight * _ROUNDING / _LEFT)
        self._ranks = np.where(new > 0, self._shown, 0) if random else new
        self.equations = int(self._shown[new > 0].sum())
        self._seen: set[bytes] = set()
        self._found: list[tuple[Array, Mask]] = []
        for vector in [] if known is None else known @ self.basis.T * self._sizes:
            self._grow(vector / np.linalg.norm(vector))

    def run(self, rng: np.random.Generator) -> PatternLayer | None:
        """The layer, if all its units are found and their signs prove them."""
        alive = np.flatnonzero(self._ranks)
        grams = np.einsum("nkr,nks->nrs", self._blocks, self._blocks)
        tried = rounds = last = 0
        while rounds <= min(_MOST, _IDLE + 2 * last) and len(self._found) <= _FLOOD * self.rank:
            rounds += 1
            before = len(self._found)
            subsets = [self._subset(order, least) for order, least in self._orders(alive, rng)]
            if any(subset is None for subset in subsets):
                return None
            chosen = np.array(subsets, dtype=np.float64)
            squares, vectors = np.linalg.eigh(np.tensordot(chosen, grams, 1))
            for i, dimension in enumerate((squares < self._coarse**2).sum(axis=1)):
                if 0 < dimension <= self._blocks.shape[1]:
                    self._separate(vectors[i][:, :dimension], chosen[i] > 0, grams)
            last = rounds if len(self._found) > before else last
            if len(self._found) >= self.rank and len(self._found) > tried:
                tried = len(self._found)
                layer = self._proved()
                if layer is not None:
                    return layer
        return None

    @property
    def duals(self) -> Array:
        """The dual vectors found so far."""
        found = np.array([vector for vector, _ in self._found]).reshape(-1, self.rank)
        return np.asarray(found / self._sizes @ self.basis)

    def missing(self) -> Array:
        """The rows that are left are combinations of these: they are orthogonal to the dual vectors found so far."""
        found = np.array([vector for vector, _ in self._found]).reshape(-1, self.rank)
        _, sizes, right = np.linalg.svd(found)
        left: Array = right[int((sizes > _DEPENDENT).sum()) :] * self._sizes @ self.basis
        return left

    def _orders(self, alive: NDArray[np.intp], rng: np.random.Generator) -> list[tuple[NDArray[np.intp], float]]:
        """These points in several orders, of which the first ones may share a unit that is off; so many at least.

        Those are far out on one side of a random combination of the rows that are left. Where parts of Jacobians
        return, many of them leave no null vectors of units that are on at some; elsewhere the fewest are best.
        """
        left, orders = self.missing(), []
        for i in range(_ROUND):
            signals, least = rng.standard_normal(len(self._points)), 1.0
            if i % 2 and len(left):
                along = self._points @ (rng.standard_normal(len(left)) @ left)
                signals = along + _BLUR * rng.uniform() * along.std() * signals
                least = float(rng.uniform(1, len(alive))) if i % 4 == 3 and not self._random else least
            orders.append((alive[np.argsort(signals[alive])], least))
        return orders

    def _subset(self, order: NDArray[np.intp], least: float) -> Array | None:
        """Points that leave few null vectors besides those of units that are off at all of them; N, 0 or 1."""
        K = self._blocks.shape[1]
        equations = np.cumsum(self._shown[order])
        count = int(np.searchsorted(equations, self.rank, side="right"))
        free = self.rank - (int(equations[count - 1]) if count else 0)
        count += free > K - 2 or self.rank <= _SMALL
        if count + 2 > len(order):
            return None
        chosen = np.zeros(len(self._ranks))
        chosen[order[: max(count, int(least))]] = 1.0
        return chosen

    def _separate(self, null: Array, chosen: Mask, grams: Array) -> None:
        """Dual vectors in a small null space: those that one more point annihilates, and no other direction."""
        if null.shape[1] == 1:
            self._grow(null[:, 0])
            return
        squares, vectors = np.linalg.eigh(null.T @ grams @ null)
        alone = (squares[:, 0] < self._coarse**2) & (squares[:, 1] > 100 * self._coarse**2)
        for n in np.flatnonzero(alone & ~chosen & (self._ranks >= null.shape[1] - 1)):
            self._grow(null @ vectors[n][:, 0])

    def _grow(self, vector: Array) -> None:
        """Take in all points that annihilate it, and fit it to them; keep it if they determine it and agree."""
        if any(abs(vector @ known) > 1 - _COARSE for known, _ in self._found):
            return
        left = np.where(self._ranks > 0, self._left_by(vector), np.inf)
        # Of the points that are left the least, as many as determine the vector: others may be close to it by chance.
        order = np.argsort(left)
        order = order[: int(np.searchsorted(np.cumsum(self._ranks[order]), _SPARE * self.rank + 1)) + 1]
        if left[order[-1]] > 10 * self._coarse or np.sort(order).tobytes() in self._seen:
            return
        sizes, right = self._fit(order)
        if len(sizes) > 1 and sizes[-2] <= self._tight:  # one more unit is off there: it was on at others
            order = np.flatnonzero(left <= 10 * self._coarse)
            sizes, right = self._fit(order)
        if np.sort(order).tobytes() in self._seen:
            return
        self._seen.add(np.sort(order).tobytes())
        vector = right[-1]
        off = (self._left_by(vector) <= self._tight) & self._alive
        if off.tobytes() in self._seen or int(self._ranks[off].sum()) < _SPARE * self.rank + 1:
            return
        self._seen.add(off.tobytes())
        sizes, right = self._fit(np.flatnonzero(off))
        if sizes[-1] > self._tight or (len(sizes) > 1 and sizes[-2] < max(_APART * sizes[-1], self._tight)):
            return
        left = self._left_by(right[-1])
        annihilated, others = left[off], left[~off & self._alive]
        apart = len(others) and annihilated.max() <= self._tight and others.min() > _APART * annihilated.max()
        if apart and self._halved(off):
            self._found.append((right[-1], off))

    def _halved(self, off: Mask) -> bool:
        """Whether a hyperplane has these points on one side and all others on the other, as a unit's boundary has."""
        points = self._points[self._alive] @ self.basis.T
        if len(points) < _TELLING * (self.rank + 1):
            return True  # any points can be parted by a hyperplane, nearly
        side = np.where(off[self._alive], 1.0, -1.0)
        system = side[:, None] * np.column_stack([points / np.abs(points).max(), np.ones(len(points))])
        parted = linprog(np.zeros(self.rank + 1), system, -np.ones(len(points)), bounds=(None, None), method="highs")
        return bool(parted.status == 0)

    def _fit(self, at: NDArray[np.intp]) -> tuple[Array, Array]:
        """Singular values and right singular vectors of these points' Jacobians."""
        _, sizes, right = np.linalg.svd(self._blocks[at].reshape(-1, self.rank), full_matrices=False)
        return sizes, right

    def _left_by(self, vector: Array) -> Array:
        result: Array = np.linalg.norm(self._blocks @ vector, axis=1)
        return result

    def _proved(self) -> PatternLayer | None:
        """Rows by inverting the dual vectors; proved if each row's signs are the activation pattern that was seen."""
        order = sorted(range(len(self._found)), key=lambda i: -int(self._ranks[self._found[i][1]].sum()))
        chosen: list[int] = []
        basis = np.empty((0, self.rank))
        for i in order:
            rest = self._found[i][0] - basis.T @ (basis @ self._found[i][0])
            if np.linalg.norm(rest) > _DEPENDENT:
                basis = np.concatenate([basis, rest[None] / np.linalg.norm(rest)])
                chosen.append(i)
        if len(chosen) < self.rank:
            return None
        duals = np.array([self._found[i][0] for i in chosen]).T  # of the whitened Jacobians
        rows = np.linalg.solve(duals, self._sizes[:, None] * self.basis)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        alive = self._alive
        off = np.array([self._found[i][1] for i in chosen]).T
        signals = self._points @ rows.T
        turned = np.where(_mean(signals, ~off & alive[:, None]) < _mean(signals, off), -1.0, 1.0)
        rows, signals = rows * turned[:, None], signals * turned
        below = np.where(off, signals, -np.inf).max(axis=0)
        above = np.where(~off & alive[:, None], signals, np.inf).min(axis=0)
        if not (np.isfinite(above) & (below < above)).all():
            return None
        return PatternLayer(rows, below, above, signals > (below + above) / 2)


def _new_equations(blocks: Array, ranks: NDArray[np.intp], tolerance: float) -> NDArray[np.intp]:
    """N: by how much each Jacobian (of N×K×r, of these ranks) adds to any earlier one, where that can be seen.

    Between points that differ in few units part of it returns; this part is no further equation.
    """
    new, width = ranks.copy(), blocks.shape[2]
    for n in range(1, len(blocks)):
        pairs = np.concatenate([blocks[:n], np.broadcast_to(blocks[n], blocks[:n].shape)], axis=1)
        both = (np.linalg.svd(pairs, compute_uv=False) > tolerance).sum(axis=1)
        returned = np.minimum(ranks[:n] + ranks[n], width) - both
        new[n] = max(ranks[n] - int(returned.max()), 0)
    return new


def _mean(numbers: Array, where: Mask) -> Array:
    result: Array = np.where(where, numbers, 0.0).sum(axis=0) / np.maximum(where.sum(axis=0), 1)
    return result
