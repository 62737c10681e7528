"""One output: all units from pieces on a few lines through one point, about one gradient query per unit.

With one output the tensor of Jacobians is a matrix, and its column space shows no unit by itself. On lines through one
base it does (thresholds.py). Answers are asked, each where two neighbouring pieces of a line differ most, until further
ones add nothing to the rank of what was seen; then all patterns follow, and from them all rows.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.run import TensorRun
from relumine.reconstruct.tensor.search import TensorSearch
from relumine.reconstruct.tensor.units import Units, no_units
from relumine.reconstruct.two_layer.agreement import EXACT
from relumine.reconstruct.two_layer.thresholds import Sample, decoded

# Lines through the base. With four, sums of units pass for units more often, as their points are fewer per line then.
_LINES = 6
# How far out they are asked, in units of the distance between fresh points. A unit that crosses none of six lines
# within 4 is one in 10^5; beyond all units' breakpoints the two ends of a line show the same sum as those of any other.
_FAR = 4.0
# So many answers in a row add nothing to the rank before patterns are looked for.
_FREE = 4
_ATTEMPTS = 8
# Where units stay inconsistent, the worst of them are looked at, on the lines where least is known of each.
_WORST, _WIDEST = 4, 3
# Fresh values compared, at least; a quarter of the units, where these are more. Every unit has proven itself at every
# point that was asked with gradients, and the last of these were predicted by the others.
_FEWEST = 8
# Signs at so many points prove a unit that is seen alone.
_PROOFS = 20
# An answer that shows a piece once more counts as this part of one that adds nothing.
_AGAIN = 0.1


class OneOutputSearch(TensorSearch):
    """Everything seen so far, the units that explain it, and what is left; around the first base."""

    def __init__(
        self,
        ask: Callable[[Array], tuple[Array, Answer]],
        fresh: Callable[[int], Array],
        near: Callable[[Array, float], Array],
        seen: Observations,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(ask, fresh, near, seen, rng)
        self.lines: list[Line] = []
        self._ranges: list[tuple[float, float]] = []
        self._on: list[dict[float, int]] = []  # for every line the places of its answers among those seen
        self._known: set[int] = {0}
        self._doubted: list[tuple[int, float]] = []  # where to ask because units there are not consistent

    def open(self, line: Line, ends: tuple[float, float]) -> None:
        """Ask on this line through the base, too."""
        self.lines.append(line)
        self._ranges.append(ends)
        self._on.append({0.0: 0})

    def run(self) -> None:
        """Ask until everything seen is explained."""
        self._take_in()
        for _ in range(_ATTEMPTS):
            if self._singles() and self._saturated():
                return
            self._begin_anew()
            self._ask_at([each for each in dict.fromkeys(self._doubted) if not self._asked(*each)])
            self._doubted = []
            self._extend()
            self._decode()
            if not self.unexplained(self.main):
                self._refit()
                return
        raise Stop(Outcome.NOT_THIS_CLASS, "the pieces on lines through one point are not sums of single units")

    def _begin_anew(self) -> None:
        """Forget the units, not the answers: two that share a pattern were taken for one, and further answers tell."""
        self.units = no_units(self.outputs, self.dimension)
        self.rest = self._scaled(self.seen.pieces)

    def _take_in(self) -> None:
        """Answers that were asked elsewhere are on lines of their own."""
        base = self.seen.points[0]
        for place in set(self.unexplained(self.main)) - self._known:
            self.open(Line(base, self.seen.points[place] - base), (-1.0, 1.0))
            self._on[-1][1.0] = place
            self._known.add(place)

    def _singles(self) -> bool:
        """Take what is left at one place for one unit, where signs allow it; whether all is explained."""
        while places := self.unexplained(self.main):
            if not any(self._one(place) for place in places):
                return False
        return True

    def _one(self, place: int) -> bool:
        jump = (self.rest[place] - self.rest[0])[0]
        unexplained = set(self.unexplained(self.main))
        signs = np.sign(self._homogeneous(list(range(len(self.seen)))) @ jump)
        same = [signs[i] == -signs[0] for i in unexplained if np.allclose(self.rest[i], self.rest[place], atol=0)]
        known = [i for i in range(len(self.seen)) if i not in unexplained]
        if (
            len(known) < _PROOFS
            or signs[0] == 0
            or signs[place] != -signs[0]
            or not all(same)
            or not (signs[known] == signs[0]).all()
        ):
            return False
        self.accept(self._turned(jump[None]))
        return True

    def _turned(self, jumps: Array) -> Units:
        """Units with these jumps, off at the base."""
        away = -np.sign(jumps @ self._homogeneous([0])[0])
        return self._unscaled(Units(away[:, None], jumps * away[:, None]))

    # -- asking

    def _saturated(self) -> bool:
        return sum(len(on) for on in self._on) > _FREE + len(self._on)

    def _extend(self) -> None:
        """Ask where neighbouring pieces differ most, until the rank of what is left grows no more."""
        first = [(i, end) for i, ends in enumerate(self._ranges) for end in ends if not self._asked(i, end)]
        self._ask_at(first)
        basis = np.empty((0, self.dimension + 1))
        for place in [place for on in self._on for place in on.values() if place]:
            basis, _ = self._with(basis, place)
        in_vain = 0.0
        while in_vain < _FREE:
            if len(basis) > self.dimension:
                raise Stop(Outcome.NOT_THIS_CLASS, "more units switch than there are inputs: search a line")
            wanted = self._widest(max(1, len(basis) // 16))
            if not wanted:
                return
            for place, fresh in self._ask_at(wanted):
                basis, grows = self._with(basis, place)
                in_vain = 0.0 if grows else in_vain + (1.0 if fresh else _AGAIN)

    def _asked(self, line: int, t: float) -> bool:
        return t in self._on[line] or not np.isfinite(t)

    def _widest(self, count: int) -> list[tuple[int, float]]:
        """The middles of so many gaps between neighbouring answers that differ most, of all lines."""
        gaps = []
        error, norms = self.error, np.linalg.norm(self.seen.points, axis=1)
        for i, on in enumerate(self._on):
            t = sorted(on)
            for low, high in pairwise(t):
                apart = float(np.linalg.norm(self.rest[on[low]] - self.rest[on[high]]))
                if apart > error * max(1.0, norms[on[low]] / self._column, norms[on[high]] / self._column):
                    middle = float(np.tan((np.arctan(low) + np.arctan(high)) / 2))
                    width = float(np.arctan(high) - np.arctan(low))
                    gaps.append((width, i, middle if low < middle < high else (low + high) / 2))
        return [(i, t) for _, i, t in sorted(gaps, reverse=True)[:count]]

    def _ask_at(self, wanted: list[tuple[int, float]]) -> list[tuple[int, bool]]:
        """Ask on the lines; each place with whether its piece was not seen beside it."""
        if not wanted:
            return []
        found = []
        for i, t in wanted:
            before = len(self.seen)
            self.gather(self.lines[i].points([t]))
            if len(self.seen) == before:
                self._ranges[i] = (0.0, 0.0)  # saturated answers tell nothing
                continue
            self._known.add(before)
            others = list(self._on[i].values())
            apart = np.linalg.norm(self.rest[others] - self.rest[before], axis=(1, 2)).min()
            self._on[i][t] = before
            found.append((before, bool(apart > self._error(before, *others))))
        return found

    def _with(self, basis: Array, place: int) -> tuple[Array, bool]:
        """The basis with what is left at this place, and whether that is new."""
        left = (self.rest[place] - self.rest[0])[0]
        for _ in range(2):
            left = left - (left @ basis.T) @ basis
        size = float(np.linalg.norm(left))
        if size <= self._error(0, place):
            return basis, False
        return np.concatenate([basis, left[None] / size]), True

    # -- decoding

    def _decode(self) -> None:
        """Find units by their patterns."""
        pairs = [(i, t, place) for i, on in enumerate(self._on) for t, place in on.items() if place]
        line, t, places = (np.array(column) for column in zip(*pairs, strict=True))
        sample = Sample(t, line, self._homogeneous(list(places)), self._homogeneous([0])[0])
        differences = (self.rest[places] - self.rest[0])[:, 0]
        found = decoded(sample, differences, self._error(*places), self._rng)
        if found is not None and found.proven.all():
            self.accept(self._turned(found.jumps))
        elif found is not None:
            worst = np.argsort(found.quality)[: min(_WORST, int((~found.proven).sum()))]
            self._doubted = [gap for i in worst for gap in self._before(found.patterns[i], pairs)]

    def _before(self, pattern: Array, pairs: list[tuple[int, float, int]]) -> list[tuple[int, float]]:
        """The middles of the widest gaps of lines in which a unit of this pattern switches."""
        gaps = []
        for i, on in enumerate(self._on):
            switched = [t for (line, t, _), is_on in zip(pairs, pattern, strict=True) if line == i and is_on]
            if switched:
                first = min(switched, key=abs)
                last = max((t for t in on if t * first >= 0 and abs(t) < abs(first)), key=abs, default=0.0)
                gaps.append((abs(np.arctan(first) - np.arctan(last)), i, (first + last) / 2))
        return [(i, t) for _, i, t in sorted(gaps, reverse=True)[:_WIDEST]]

    def _refit(self) -> None:
        """All rows anew, from all pieces at once."""
        pieces = self._scaled(self.seen.pieces)
        patterns = self.units.on(self.seen.points).astype(np.float64)
        rows = np.linalg.lstsq(patterns[1:] - patterns[0], (pieces[1:] - pieces[0])[:, 0], rcond=None)[0]
        units = self._turned(rows)
        if (units.on(self.seen.points) == patterns).all():
            self._begin_anew()
            self.accept(units)


class OneOutputRun(TensorRun):
    """The state of one reconstruction by lines through one point."""

    @property
    def _fresh_points(self) -> int:
        return min(self.settings.points, max(_FEWEST, self._units // 4))

    def _searching(self, seen: Observations) -> TensorSearch:
        if self.noise.floor > EXACT:
            raise Stop(Outcome.NOT_THIS_CLASS, "few digits leave the patterns of one output unclear: search a line")
        search = OneOutputSearch(self._ask, self._fresh, self._near, seen, self.rng)
        for _ in range(_LINES):
            line = Line(seen.points[0], self.comparison.line().direction)
            low, high = self.asker.ends(line, seen.jacobians[0])
            search.open(line, (max(low, -_FAR), min(high, _FAR)))
        return search
