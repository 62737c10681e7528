"""Inputs on lines through the first base: n of them on one line leave n + 1 patterns, where others leave 2ⁿ.

Every input is on a line of its own at first. Where each of them shows further units, more are asked on the lines of the
first few, in between and opposite, so that all patterns can still be tried.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from relumine.reconstruct.tensor.patterns import OnLines

# So many lines are made long. Of 784-128-2, seeds 0 to 5, two lines left units undecided twice; with three and four all
# were told apart, and four take a query more.
_LONG = 3


class BaseLines:
    """On which lines places of a search are; ``beyond``: whether inputs opposite to others may be asked."""

    def __init__(self, beyond: bool) -> None:
        self._beyond = beyond
        self._on: dict[int, tuple[int, float]] = {}  # place: the place at t = 1 of its line, and its own t

    def __bool__(self) -> bool:
        return bool(self._on)

    def add(self, places: list[int], line: int, t: float) -> None:
        """Take note of an answer on the line through an earlier one."""
        self._on |= dict.fromkeys(places, (line, t))

    def of(self, places: list[int]) -> OnLines:
        """Where these places are."""
        line, t = zip(*(self._on.get(place, (place, 1.0)) for place in places), strict=True)
        return OnLines(np.array(line), np.array(t))

    def listed(self, places: list[int], most: int) -> list[int]:
        """As many of these as leave no more than this many patterns: those on the longest lines first."""
        lines = [self._on.get(place, (place, 1.0))[0] for place in places]
        longest = sorted(zip(places, lines, strict=True), key=lambda each: (-lines.count(each[1]), each[1]))
        chosen = [place for place, _ in longest]
        while chosen and self.of(chosen).patterns > most:
            chosen.pop()
        return chosen

    def next(self, members: list[int], apart: Callable[[int, int], float]) -> tuple[int, float]:
        """Line and t of the next input: opposite to those on the first lines, then where neighbours differ most."""
        gaps = []
        for line in [place for place in members if place not in self._on][:_LONG]:
            on = {0.0: 0, 1.0: line} | {t: place for place, (other, t) in self._on.items() if other == line}
            if self._beyond and min(on) == 0:
                gaps.append((np.inf, line, -1.0))
            gaps += [(apart(on[low], on[high]), line, (low + high) / 2) for low, high in pairwise(sorted(on))]
        return max(gaps)[1:]
