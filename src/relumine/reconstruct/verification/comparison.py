"""Comparison: the target's values at points that no search has seen, held against every later model."""

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array, Oracle
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.verification.domain import Domain

# In a box lines start in its inner part, this share of its width.
_INSIDE = 0.9
# Bounds a move to several boundaries at once where rows, which have length one, are dependent; not tuned.
_RIDGE = 1e-6
# So often every boundary is approached. In a plane two units taken for one are right everywhere but in the wedge
# between them: about a third of the points close to it lie inside, and 0.67^16 = 0.2 % of such pairs are overlooked.
_PLANE, _TIMES, _TIMES_IN_A_PLANE = 2, 4, 16


class Comparison:
    """Fresh points, and points close to the recovered boundaries, where a misplaced or double one would show."""

    def __init__(self, oracle: Oracle, rng: np.random.Generator, domain: Domain | None = None) -> None:
        self._oracle = oracle
        self.domain = domain or Domain.of(oracle.offer, None)
        self._rng = rng
        self.scale = 1.0
        self.lost = 0  # points whose answers were saturated
        self.clear()

    def clear(self) -> None:
        """Forget all points, because something was fitted to them."""
        self.points = np.empty((0, self._oracle.offer.dimension))
        self.answers = np.empty((0, self._oracle.offer.outputs))
        self._elsewhere = np.empty(0, dtype=np.bool_)

    @property
    def size(self) -> float:
        """The largest answer where points are fresh, to which gaps are relative."""
        return float(np.abs(self.answers[~self._elsewhere]).max(initial=0)) or 1.0

    def representable(self, points: Array) -> Array:
        """Rounded to the target's precision, so that it computes at these very points and not beside them."""
        return self.domain.representable(points)

    def fresh(self, count: int) -> Array:
        """Points that nobody has seen; smaller ones where answers far out are saturated."""
        points = self.domain.fresh(count, self._rng)
        return self.representable(points if self._oracle.offer.box is not None else points * self.scale)

    def line(self) -> Line:
        """A random line through a fresh point, on which kinks are spread around t of size one."""
        offer = self._oracle.offer
        start = self.fresh(1)[0]
        if offer.box is None:
            return Line(start, self.scale * self._rng.standard_normal(offer.dimension))
        low, high = offer.box
        # Away from the walls, so that points close to this one are answered too.
        middle = (low + high) / 2
        start = self.representable(middle + _INSIDE * (start - middle))
        return Line(start, (high - low) / 4 * self._rng.standard_normal(offer.dimension))

    def ask(self, points: Array) -> None:
        if not len(points):
            return
        self.add(points, self._oracle(points, gradients=False).values)

    def add(self, points: Array, values: Array, *, elsewhere: bool = False) -> None:
        """Take note of the values at these points, ``elsewhere`` if far larger; saturated ones tell nothing."""
        known = np.isfinite(values).all(axis=1)
        self.lost += int((~known).sum())
        self.points = np.concatenate([self.points, points[known]])
        self.answers = np.concatenate([self.answers, values[known]])
        self._elsewhere = np.append(self._elsewhere, np.full(known.sum(), elsewhere))

    def misses(self, model: Shallow) -> Array:
        """n: the largest difference between model and answer at each point, relative to the largest fresh answer.

        Elsewhere, to the answer itself if it is larger.
        """
        sizes = np.maximum(self.size, np.where(self._elsewhere, np.abs(self.answers).max(axis=1, initial=0), 0.0))
        return np.asarray(np.abs(model.values(self.points) - self.answers).max(axis=1, initial=0) / sizes)

    def gap(self, model: Shallow) -> float | None:
        """The largest of these, if anything was compared."""
        return float(self.misses(model).max()) if len(self.points) else None

    def wrong(self, model: Shallow, tolerance: float) -> NDArray[np.intp]:
        """The points that contradict the model."""
        return np.flatnonzero(self.misses(model) > tolerance)

    def challenge(self, model: Shallow) -> None:
        """Ask close to the boundary of every unit, several times over."""
        times = _TIMES_IN_A_PLANE if _rank(model) <= _PLANE else _TIMES
        self.ask(np.concatenate([self.near_boundaries(model) for _ in range(times)]))

    def near_boundaries(self, model: Shallow) -> Array:
        """Fresh points, each moved so that several units' pre-activations are small numbers of random sign and size.

        Each unit is one of these once. Where rows are dependent no point is close to more boundaries than their rank.
        """
        rank = _rank(model)
        per_point = max(1, (self._oracle.offer.dimension if rank == model.units else rank) // 2)
        gram, order = model.rows @ model.rows.T, self._rng.permutation(model.units)
        groups = [order[i : i + per_point] for i in range(0, len(order), per_point)]
        points = [
            self.beside(model, gram, group, start, self._small(len(group)))
            for group, start in zip(groups, self.fresh(len(groups)), strict=True)
        ]
        return np.array(points).reshape(-1, self._oracle.offer.dimension)

    def _small(self, count: int) -> Array:
        signs = self._rng.choice([-1.0, 1.0], count)
        return np.asarray(signs * 10.0 ** self._rng.uniform(-4, -0.5, count))

    def beside(self, model: Shallow, gram: Array, units: NDArray[np.intp], start: Array, small: Array) -> Array:
        """The start moved so that these units' pre-activations are these small multiples of the inputs' scale."""
        missing = small * self.scale - model.active(start[None])[0, units]
        # Nearly the shortest move that does it: rows have length one, and the ridge bounds it where they are dependent.
        shares = np.linalg.solve(gram[np.ix_(units, units)] + _RIDGE * np.eye(len(units)), missing)
        moved: Array = start + shares @ model.rows[units]
        return self.representable(moved)


def _rank(model: Shallow) -> int:
    return int(np.linalg.matrix_rank(model.rows, tol=np.sqrt(_RIDGE))) if model.units else 0
