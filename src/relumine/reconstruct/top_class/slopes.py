"""The units of a line at little more than one explanation each: what one gradient does not tell, values do.

A gradient query shows the slope of the explained output along the line; one value beside it shows the slopes of all K.
So every sample shows all K pieces of its linear region as they are on the line, and one kink between two samples is
told from several as in lines/search.py: all outputs' pieces meet at one place. Where the same output is explained on
both sides of a kink, the two gradients differ by a multiple of the unit's row; else one more gradient is asked beside
the kink.

Nothing is proven here by gradients on both sides of each kink. What is taken wrongly shows when values are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.lines.search import Gap, Line, LineSearch, Sight
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.top_class.line import UnitBoundary, boundaries_by_tangents
from relumine.reconstruct.top_class.observations import TopGradients

# The value beside a gradient is asked this far away, in units of 1 + |t|: further would cross kinks, nearer lose
# digits.
_ASIDE = 0.004
# Where it crossed one, which the explained output's slope tells, it is asked on the other side, then nearer.
_NEARER = (1.0, -1.0, 0.2, -0.2, 0.04, -0.04, 8e-3, -8e-3, 1.6e-3)
# Slopes taken in this way are equal if they differ by less, relative to the largest.
_SLOPES = Noise(1e-11)
# Gaps narrower than this part of that are searched by gradients.
_NARROW = 0.05
# A gradient beside a kink, in units of 1 + |t|.
_BESIDE = 1e-6


@dataclass(eq=False)
class SlopeSearch:
    """Searches one line: ``ask`` for gradients, ``values`` for values at some t; ``beside`` are the values asked."""

    line: Line
    ask: Callable[[Line, list[float]], TopGradients]
    values: Callable[[Line, list[float]], tuple[Array, Array]]
    noise: Noise
    beside: list[tuple[Array, Array]] = field(default_factory=list)

    def seen(self, begin: tuple[list[float], TopGradients]) -> tuple[list[UnitBoundary], TopGradients] | None:
        """The units, and all samples; None if the outputs do not tell one kink from several."""
        self._places, self._known = list(begin[0]), begin[1]
        pieces = self._pieces(*begin)
        if not _independent(pieces):
            return None
        search = LineSearch(self.line, pieces, _SLOPES, independent=True)
        while questions := [_inside(gap) for gap in search.gaps if not (gap.single or _narrow(gap))]:
            search.add(self._look(questions))
        found = [self._unit(gap) for gap in search.gaps if _sure(gap)]
        units = [unit for unit in found if unit is not None]
        for gap in search.gaps:
            units += [] if _sure(gap) else self._within(gap)
        return units, self._known

    def _within(self, gap: Gap) -> list[UnitBoundary]:
        """The units of a gap in which values do not tell how many kinks there are: proven by gradients."""
        ends = [gap.left.t, gap.right.t]
        begin = self._known.at([self._places.index(t) for t in ends])
        seen, samples = boundaries_by_tangents(self.line, (ends, begin), self.ask, self.noise)
        offset = len(self._known)
        self._places += [np.nan] * len(samples)  # these are looked up no more
        self._known = self._known.and_then(samples)
        return [replace(unit, left=unit.left + offset, right=unit.right + offset) for unit in seen]

    def _look(self, t: list[float]) -> list[Sight]:
        return self._pieces(t, self._add(t))

    def _add(self, t: list[float]) -> TopGradients:
        new = self.ask(self.line, t)
        self._places, self._known = self._places + t, self._known.and_then(new)
        return new

    def _pieces(self, t: list[float], shown: TopGradients) -> list[Sight]:
        """All outputs' pieces at these places, as functions of t."""
        slopes, errors = self._slopes(t, shown)
        return [
            Sight(at, slope[:, None], slope, values - at * slope, error * (1 + abs(at)))
            for at, slope, values, error in zip(t, slopes, shown.values, errors, strict=True)
        ]

    def _slopes(self, t: list[float], shown: TopGradients) -> tuple[Array, Array]:
        """n×K slopes and their errors, from one value beside each place, or a few where kinks are close."""
        exact = shown.gradients @ self.line.direction
        size = np.abs(shown.values).max(axis=1) + np.abs(exact) * (1 + np.abs(t))
        slopes, errors = np.zeros_like(shown.values), np.zeros(len(t))
        open_ = np.arange(len(t))
        for part in _NEARER:
            steps = part * _ASIDE * (1 + np.abs(np.array(t)[open_])) * np.where(np.array(t)[open_] > 0, -1.0, 1.0)
            points, values = self.values(self.line, [t[i] + step for i, step in zip(open_, steps, strict=True)])
            self.beside.append((points, values))
            slopes[open_] = (values - shown.values[open_]) / steps[:, None]
            errors[open_] = 16 * self.noise.relative * (size[open_] + np.abs(values).max(axis=1)) / np.abs(steps)
            miss = np.abs(np.take_along_axis(slopes, shown.tops[:, None], axis=1)[:, 0] - exact)
            open_ = open_[miss[open_] > 4 * errors[open_]]
            if not len(open_):
                break
        np.put_along_axis(slopes, shown.tops[:, None], exact[:, None], axis=1)
        return slopes, errors

    def _unit(self, gap: Gap) -> UnitBoundary | None:
        """The unit of a gap with one kink, from gradients of one output on both sides of it."""
        left, right = self._places.index(gap.left.t), self._places.index(gap.right.t)
        tops = self._known.tops
        if tops[left] != tops[right]:
            top = int((gap.left.intercept + gap.t * gap.left.slope).argmax())
            step = min(_BESIDE * (1 + abs(gap.t)), 0.1 * (gap.t - gap.left.t), 0.1 * (gap.right.t - gap.t))
            left = left if tops[left] == top else self._ask_beside(gap.t - step)
            right = right if tops[right] == top else self._ask_beside(gap.t + step)
        if self._known.tops[left] != self._known.tops[right]:
            return None
        return self._between(left, right)

    def _ask_beside(self, t: float) -> int:
        self._add([t])
        return len(self._places) - 1

    def _between(self, left: int, right: int) -> UnitBoundary | None:
        both = [left, right]
        t = [self._places[i] for i in both]
        answer = Answer(self._known.explained[both][:, None], self._known.gradients[both][:, None, :])
        first, second = self.line.sights(t, self._known.points[both], answer, self.noise)
        tolerance = self.noise.of(float(np.linalg.norm(self._known.gradients, axis=1).max()), self.line.start.size)
        gap = Gap(first, second, tolerance)
        size = float(np.linalg.norm(gap.jump))
        if size <= tolerance or not gap.inside:
            return None
        (kink,) = gap.kinks(self.line)
        return UnitBoundary(kink.row, kink.bias, tolerance / size, left, right)


def _sure(gap: Gap) -> bool:
    """Whether two outputs bend, and do so at one place."""
    bends = np.sort(np.abs(gap.slope))
    return gap.single and bool(bends[-2] > 1e-6 * bends[-1])


def _inside(gap: Gap) -> float:
    """Where to ask next: among the kinks, but not at an end, where a value that crossed a kink makes pieces meet."""
    room = 0.01 * (gap.right.t - gap.left.t)
    return gap.crossing if gap.left.t + room < gap.crossing < gap.right.t - room else gap.middle


def _narrow(gap: Gap) -> bool:
    """Whether a value beside a sample would lie beyond the gap."""
    return gap.right.t - gap.left.t < _NARROW * _ASIDE * (1 + abs(gap.left.t))


def _independent(pieces: list[Sight]) -> bool:
    """Whether outputs bend differently: else all their pieces meet at one place, however many kinks there are."""
    slopes = np.array([piece.slope for piece in pieces])
    sizes: NDArray[np.float64] = np.linalg.svd(np.diff(slopes, axis=0), compute_uv=False)
    return len(sizes) > 1 and bool(sizes[1] > 1e-6 * sizes[0])
