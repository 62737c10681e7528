"""The units that one line shows when one output is explained at each point of it.

The largest output is a piecewise-linear function with one output, and the gradient that is answered is its gradient. So
its kinks are found and proven as those of a single output are (lines/search.py). Where the same output is on top on
both sides, the kink is a unit's, and the jump a multiple of its row; where another one is, the two outputs meet.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.lines.search import Gap, Line, LineSearch, Sight
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.top_class.observations import TopGradients

# Boundaries with the most similar rows that are compared.
_CANDIDATES = 4


@dataclass(frozen=True, eq=False)
class UnitBoundary:
    """A unit's boundary, row·x + bias = 0 with |row| = 1.

    error: how far the row may be off
    left, right: the samples on both sides
    """

    row: Array
    bias: float
    error: float
    left: int
    right: int

    def is_same(self, other: "UnitBoundary", reach: float) -> bool:
        """Whether both may be one boundary: rows and biases agree, up to sign, as well as they are known.

        ``reach``: how far from the origin kinks were seen; that is what a row's error makes of the bias's.
        """
        sign = float(np.copysign(1.0, self.row @ other.row))
        allowed = 4 * (self.error + other.error) + 1e-9
        apart = float(np.linalg.norm(self.row - sign * other.row))
        return apart <= allowed and abs(self.bias - sign * other.bias) <= allowed * (1 + reach)

    def clear_of(self, points: Array) -> NDArray[np.bool_]:
        """n: whether it is sure on which side of the boundary each point lies."""
        close = (10 * self.error + 1e-9) * (1 + np.linalg.norm(points, axis=1))
        clear: NDArray[np.bool_] = np.abs(points @ self.row + self.bias) > close
        return clear


def boundaries_by_tangents(
    line: Line,
    begin: tuple[list[float], TopGradients],
    ask: Callable[[Line, list[float]], TopGradients],
    noise: Noise,
) -> tuple[list[UnitBoundary], TopGradients]:
    """Every unit whose kink on the line shows in the explained output, proven by gradients on both sides.

    ``begin``: places on the line that were asked already, its ends among them.
    """
    places, known = list(begin[0]), begin[1]

    def look(t: list[float], shown: TopGradients) -> list[Sight]:
        answer = Answer(shown.explained[:, None], shown.gradients[:, None, :])
        return line.sights(t, shown.points, answer, noise)

    search = LineSearch(line, look(*begin), noise, independent=False, certain=True)
    while questions := search.questions():
        new = ask(line, questions)
        places, known = places + questions, known.and_then(new)
        search.add(look(questions, new))
    rows = {t: i for i, t in enumerate(places)}
    seen = []
    for gap in search.gaps:
        left, right = rows[gap.left.t], rows[gap.right.t]
        if _proven(gap) and known.of_one(left, right, noise):
            seen.append(_boundary(line, gap, search.tolerance, left, right))
    return seen, known


def _proven(gap: Gap) -> bool:
    return gap.inside and gap.left_clear and gap.right_clear


def _boundary(line: Line, gap: Gap, tolerance: float, left: int, right: int) -> UnitBoundary:
    (kink,) = gap.kinks(line)
    error = tolerance / float(np.linalg.norm(gap.jump))
    return UnitBoundary(kink.row, kink.bias, error, left, right)


def merged(known: list[UnitBoundary], new: list[UnitBoundary], offset: int, reach: float) -> list[UnitBoundary]:
    """All boundaries, each as the sample that shows its row best; ``offset`` samples were there before the new ones."""
    result = list(known)
    twins = _twins(known, new, reach)
    for seen, twin in zip(new, twins, strict=True):
        placed = replace(seen, left=seen.left + offset, right=seen.right + offset)
        if twin is None:
            result.append(placed)
        elif seen.error < result[twin].error:
            result[twin] = placed
    return result


def _twins(known: list[UnitBoundary], new: list[UnitBoundary], reach: float) -> list[int | None]:
    """For each new boundary the known one that it is, if any."""
    if not known or not new:
        return [None] * len(new)
    cosines = np.abs(np.array([seen.row for seen in new]) @ np.array([seen.row for seen in known]).T)
    closest = [np.argsort(-row)[:_CANDIDATES] for row in cosines]  # parallel units have the same row
    return [
        next((int(i) for i in candidates if known[i].is_same(seen, reach)), None)
        for seen, candidates in zip(new, closest, strict=True)
    ]


def absent(
    known: list[UnitBoundary], shown: NDArray[np.intp], line: Line, samples: TopGradients, resolution: float
) -> int:
    """How many known boundaries this line crosses without a kink, though the output that showed them is on top there.

    A unit of the first layer is where it is everywhere; a bend of a deeper layer is not. ``shown``: those outputs.
    """
    places = (samples.points - line.start) @ line.direction / float(line.direction @ line.direction)
    order = np.argsort(places)
    count = 0
    for unit, output in zip(known, shown, strict=True):
        along = float(unit.row @ line.direction) or 1e-300
        t = -(float(unit.row @ line.start) + unit.bias) / along
        i = int(np.searchsorted(places[order], t))
        if not 0 < i < len(order):
            continue
        beside = order[[i - 1, i]]
        unsure = 10 * unit.error * (1 + float(np.linalg.norm(samples.points[beside], axis=1).max())) / abs(along)
        far = np.abs(places[beside] - t).min() > resolution * (1 + abs(t)) + unsure
        count += bool(far and (samples.tops[beside] == output).all())
    return count
