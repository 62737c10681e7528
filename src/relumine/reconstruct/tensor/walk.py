"""A walk of a small ball, where more units switch among Gaussian inputs than there are inputs.

Points follow a chord between two fresh inputs, each moved off it at random by a few steps' length. A unit whose
hyperplane the chord crosses is on at some of the points around it and off at the others, in an order of its own, so the
tensor of the last points tells it from the few others that are crossed there. What is known is subtracted: the step is
chosen for the number of *unknown* units that enter, which the rank counts, and grows as they become fewer. Chords go on
through further fresh inputs until Gaussian inputs can be decomposed.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from relumine.reconstruct.tensor.balls import Cluster
    from relumine.reconstruct.tensor.search import TensorSearch

# Chosen on 50-2000-10, seed 0: windows of 10 and 12 points found as many units, and errors grow less with 12; points
# moved off the chord by 4 steps found more units than by 2 or 8.
_WINDOW = 12
_OFF = 4.0
# Unknown units that should enter at a point, per output; at one or more per output they cannot be counted. With 0.4
# refinement could not keep errors small (1e-6 after 600 queries of 50-2000-10, with 0.25 1e-12), and took as many.
_ENTER = 0.25
# The first step, in chords, and by how much one step may differ from the one before.
_FIRST = 1e-3
_SLOWER, _FASTER = 0.85, 1.2
# A window may show this part of as many units as there are inputs.
_FILL = 0.95
# After this many queries known units are fitted once more.
_REFINED = 20
# Fewer points tell nothing apart.
_LEAST = 4


class Walk:
    """Where the ball is, and the last places that were asked."""

    def __init__(self, search: "TensorSearch", cluster: "Cluster") -> None:
        self._search, self.cluster = search, cluster
        self._window = [cluster.base]
        self._step = _FIRST
        self._begin, self._end = search.seen.points[cluster.base], search.fresh_point()
        self._at = 0.0
        self._asked = 0

    def go(self, queries: int) -> None:
        """Ask this many points, and decompose what the last of them show."""
        for _ in range(queries):
            self._go_on()
            self._asked += 1
            if self._asked % _REFINED == 0:
                self._search.refine(self.cluster.members)

    def _go_on(self) -> None:
        place, at = self._ask()
        if place is None:
            return
        entered, rank = self._entered(place)
        outputs = self._search.reached
        if entered >= max(outputs - 1, 2) or (rank > self._cap and len(self._window) < _LEAST):
            self._step *= 0.5
            return
        self._window = [*self._window, place][-_WINDOW:]
        self._at = at
        self._decompose()
        wanted = max(_ENTER * outputs, 1.0) / max(entered, 0.5)
        self._step *= float(np.clip(wanted**0.15, _SLOWER, _FASTER)) if entered or rank else 2.0

    def _ask(self) -> tuple[int | None, float]:
        """The place of the next answer, unless it is saturated, and how far along the chord it is."""
        at = self._at + self._step
        if at > 1:
            self._begin, self._end = self._end, self._search.fresh_point()
            self._step, at = min(self._step, 0.5), min(self._step, 0.5)
        centre = self._begin + at * (self._end - self._begin)
        places = self._search.add(self._search.near(centre, _OFF * self._step)[None], self.cluster)
        return (places[0] if places else None), at

    @property
    def _cap(self) -> int:
        return int(_FILL * self._search.dimension)

    def _entered(self, place: int) -> tuple[int, int]:
        """How many unknown units this answer shows that the window does not, and how many both do."""
        ranks = self._search.ranks(self._window[-1], [*self._window[:-1], place])
        return ranks[-1] - (ranks[-2] if len(ranks) > 1 else 0), ranks[-1]

    def _decompose(self) -> None:
        """Keep the units that the last points tell apart: as many points as do not show too many."""
        search = self._search
        for first in range(len(self._window) - _LEAST + 1):
            others = self._window[first:-1]
            rank = search.ranks(self._window[-1], others)[-1]
            if rank <= min(self._cap, search.room(len(others))):
                while search.tell_apart(self._window[-1], others):
                    pass
                return
