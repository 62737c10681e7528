"""Book: everything that was answered with gradients, and what the searched lines showed between their answers."""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.deep.layers import Mask
from relumine.reconstruct.lines.search import LineSearch, Sight


@dataclass(frozen=True, eq=False)
class Steps:
    """From one answered point of a line to the next: n steps, each with one kink or none.

    left, right: n, rows of the points at both ends
    line:        n, the number of the line
    share:       n, how far along the step the kink is, between 0 and 1; NaN where there is none
    normals:     n×d, unit normal of the boundary that makes the kink; 0 where there is none
    """

    left: Array
    right: Array
    line: Array
    share: Array
    normals: Array

    @property
    def kinked(self) -> Mask:
        """n: whether there is a kink."""
        return ~np.isnan(self.share)


class Book:
    """Answers and steps in the order in which they came.

    ``basis`` (m×d, orthonormal rows) is set once the first layer is known: the target depends on ``basis``·x alone, and
    from then on points, gradients and normals are written in these m coordinates.
    """

    def __init__(self, dimension: int, outputs: int) -> None:
        self.basis: Array | None = None
        self.dimension = dimension
        self._points = [np.empty((0, dimension))]
        self._values = [np.empty((0, outputs))]
        self._jacobians = [np.empty((0, outputs, dimension))]
        self._steps: list[tuple[int, int, int, float, Array]] = []
        self.count = 0
        self.lines = 0

    def add(self, points: Array, answer: Answer) -> None:
        """Write down answers."""
        self._points.append(self.inward(points))
        self._values.append(answer.values)
        self._jacobians.append(self.inward(answer.jacobians))
        self.count += len(points)

    def add_line(self, search: LineSearch, places: dict[float, int]) -> None:
        """Write down what a finished search shows; ``places`` has the row of the point asked at each t."""
        for left, right in zip(search.sights[:-1], search.sights[1:], strict=True):
            step = self._step(search, left, right)
            if step is not None:
                self._steps.append((places[left.t], places[right.t], self.lines, *step))
        self.lines += 1

    def _step(self, search: LineSearch, left: Sight, right: Sight) -> tuple[float, Array] | None:
        """Share and normal; None where several kinks could not be told apart."""
        gap = search.gap_at((left.t + right.t) / 2)
        if gap is None:
            return np.nan, np.zeros(self.dimension if self.basis is None else len(self.basis))
        if not gap.rank_one or not gap.inside:
            return None
        share = (gap.t - left.t) / (right.t - left.t)
        return share, self.inward(gap.row / np.linalg.norm(gap.row))

    def inward(self, vectors: Array) -> Array:
        """From inputs (or gradients by them) to the coordinates in which the book is written."""
        return vectors if self.basis is None else vectors @ self.basis.T

    def outward(self, points: Array) -> Array:
        """From these coordinates to inputs."""
        return points if self.basis is None else points @ self.basis

    def rebase(self, basis: Array) -> None:
        """Write everything in the coordinates of ``basis`` from now on."""
        assert self.basis is None
        self.basis = basis
        self._points = [self.inward(points) for points in self._points]
        self._jacobians = [self.inward(jacobians) for jacobians in self._jacobians]
        self._steps = [(*step, self.inward(normal)) for *step, normal in self._steps]  # type: ignore[misc]

    @property
    def points(self) -> Array:
        """n×m: where was asked."""
        self._points = [np.concatenate(self._points)]
        return self._points[0]

    @property
    def values(self) -> Array:
        """n×K: the values there."""
        self._values = [np.concatenate(self._values)]
        return self._values[0]

    @property
    def jacobians(self) -> Array:
        """n×K×m: the gradients there."""
        self._jacobians = [np.concatenate(self._jacobians)]
        return self._jacobians[0]

    def steps(self, since: int = 0) -> Steps:
        """All steps but the first ``since``."""
        found = self._steps[since:]
        width = self.points.shape[1]
        return Steps(
            np.array([step[0] for step in found], dtype=np.intp),
            np.array([step[1] for step in found], dtype=np.intp),
            np.array([step[2] for step in found], dtype=np.intp),
            np.array([step[3] for step in found]),
            np.array([step[4] for step in found]).reshape(-1, width),
        )

    def kinks(self, since: int = 0) -> tuple[Array, Steps]:
        """All steps but the first ``since``, and n×m where their kinks are; NaN where there is none."""
        steps = self.steps(since)
        left, right = self.points[steps.left], self.points[steps.right]
        return left + steps.share[:, None] * (right - left), steps
