"""Two kinks too close to tell on a line, told apart beside it.

Where the target has few digits two boundaries may cross the line between two neighbouring points. The Jacobian then
jumps by o₁⊗r₁ + o₂⊗r₂, which shows the plane of r₁ and r₂ and not the two in it. Around the place where both boundaries
are, that plane is cut into four sectors: on the line one comes from the sector where neither is passed to the one where
both are, and in the two others just one of them is. Halving the angle finds one of these.
"""

from collections.abc import Callable
from math import cos, pi, sin

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.lines.search import Gap, Kink, Line, kink_of
from relumine.reconstruct.lines.shallow import rank_one

# The sector is looked for until it would be narrower than π / 2**_HALVINGS.
_HALVINGS = 10
# How often one comes closer because another unit's boundary lay between.
_CLOSER = 3


def told_apart(line: Line, gap: Gap, room: float, jacobian_at: Callable[[Array], Array]) -> list[Kink] | None:
    """The two kinks of a gap in which no further point fits, or None if they are not two or stay too close.

    room: how far along the line the next other kink is
    """
    _, sizes, rows = np.linalg.svd(gap.jump, full_matrices=False)
    if int((sizes > gap.tolerance).sum()) != 2:
        return None
    plane = rows[:2]
    width = gap.right.t - gap.left.t
    # Far enough for the two not to be the same again, and not so far as the next one.
    radius = float(np.linalg.norm(line.direction) * np.sqrt(width * max(room, width)))
    t = (gap.left.t + gap.right.t) / 2
    middle = line.points([t])[0]
    for _ in range(_CLOSER):
        around = _Around(gap, plane, radius, lambda step: jacobian_at(middle + step))
        first = around.one_passed(plane @ line.direction)
        if first is not None:
            return [kink_of(line, *rank_one(jump), t) for jump in (first, gap.jump - first)]
        if not around.disturbed:
            return None
        radius /= 4
    return None


class _Around:
    """Points on a circle around the place where two boundaries meet, in the plane of their rows."""

    def __init__(self, gap: Gap, plane: Array, radius: float, jacobian_beside: Callable[[Array], Array]) -> None:
        self._gap, self._plane, self._radius, self._jacobian_beside = gap, plane, radius, jacobian_beside
        self.disturbed = False  # by a boundary of another unit

    def one_passed(self, along: Array) -> Array | None:
        """The jump of one unit alone, halving the angle between where both are passed and where none is."""
        along = along / np.linalg.norm(along)
        across = np.array([-along[1], along[0]])
        both, none = 0.0, pi
        for _ in range(_HALVINGS):
            angle = (both + none) / 2
            step = self._radius * (cos(angle) * along + sin(angle) * across) @ self._plane
            jump = self._jacobian_beside(step) - self._gap.left.jacobian
            self.disturbed = self._far(jump - (jump @ self._plane.T) @ self._plane)
            if self.disturbed:
                return None
            if not self._far(jump):
                none = angle
            elif not self._far(self._gap.jump - jump):
                both = angle
            else:
                return jump if self._single(jump) and self._single(self._gap.jump - jump) else None
        return None

    def _single(self, jump: Array) -> bool:
        return not self._far(jump - np.outer(*rank_one(jump)))

    def _far(self, jump: Array) -> bool:
        return float(np.linalg.norm(jump)) > self._gap.tolerance
