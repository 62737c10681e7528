"""One output: units from pieces on twelve lines through one point, h + 6 gradient queries and a few.

With one output the tensor of Jacobians is a matrix, and its column space shows no unit by itself. On lines through one
base it does (thresholds.py). Answers are asked, each in the widest gap between two pieces of a line that differ, until
further ones add nothing to the rank of what was seen; then all patterns follow, and from them all rows.
"""

from itertools import pairwise

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.patterns import OnLines
from relumine.reconstruct.tensor.run import LARGER, TensorRun
from relumine.reconstruct.tensor.search import TensorSearch
from relumine.reconstruct.tensor.units import Units, no_units
from relumine.reconstruct.two_layer.agreement import EXACT
from relumine.reconstruct.two_layer.both_sides import BothSides
from relumine.reconstruct.two_layer.thresholds import Decoded, Sample, decoded, listable

# Lines through the base. With fewer, sums of units pass for units more often; with more, choices are too many to list.
_LINES = 12
# How far out they are asked, in units of the distance between fresh points.
_FAR = 4.0
# Answers in a row that add nothing to the rank, before patterns are looked for.
_FREE = 4
# An answer that shows a piece once more counts as this part of one that adds nothing.
_AGAIN = 0.1
# Lines that are asked further where choices on twelve are too many to list, which is from 140 answers on.
_DEEP = 8
# Units told apart, at most: choices on eight lines are listed up to 330 answers.
_MOST = 320
# Once this many are seen, it is tried on up to ten lines whether a unit switches within this t: of 250 units one does
# in 44 % of the cases, of 1,000 in 90 %. Where two do not, the search goes on; else a line is searched.
_MANY, _PROBED, _NEARBY = 60, 10, 0.0073
# Decodings in vain before a line is searched instead: of 80 random 50-32-1 none took more than two.
_ATTEMPTS = 3
# Lines that are opened after each of them.
_MORE = 2
# Where units stay inconsistent, the worst of them are looked at, on the lines where least is known of each.
_WORST, _WIDEST = 2, 2
# Signs at this many points prove a unit that is seen alone.
_PROOFS = 20


class OneOutputSearch(TensorSearch):
    """Everything seen so far, the units that explain it, and what is left; on lines through the first base."""

    def begin(self) -> None:
        """Open the first lines."""
        self._lines: list[Line] = []
        self._on: list[dict[float, int]] = []  # for every line the places of its answers among those seen
        self._ends: list[tuple[int, float]] = []
        self._near_base: list[bool] = []  # whether a unit switches close to the base, on the first lines
        self._listed: int | None = None  # on this many lines patterns are listed; None: on all
        self._taken = {0}
        self.open(_LINES)

    def open(self, count: int) -> None:
        """Ask on further lines through the base, too."""
        for _ in range(count):
            self._ends += [(len(self._lines), _FAR), (len(self._lines), -_FAR)]
            self._lines.append(Line(self.seen.points[0], self.fresh_point() / LARGER))
            self._on.append({0.0: 0})

    def run(self) -> None:
        """Ask until everything seen is explained."""
        self._take_in()
        if len(self.units) and self._singles():
            return
        # Forget the units, not the answers: two that share a pattern were taken for one, and further answers tell.
        self.units = no_units(self.outputs, self.dimension)
        self.rest = self._scaled(self.seen.pieces)
        self._decode_all()

    def _take_in(self) -> None:
        """Answers that were asked elsewhere are on lines of their own."""
        for place in sorted(set(self.unexplained(self.main)) - self._taken):
            self._lines.append(Line(self.seen.points[0], self.seen.points[place] - self.seen.points[0]))
            self._on.append({0.0: 0, 1.0: place})
            self._taken.add(place)

    def _decode_all(self) -> None:
        for _ in range(_ATTEMPTS):
            self._extend()
            if self._decode():
                self._refit()
                return
        raise Stop(Outcome.NOT_THIS_CLASS, "units on lines through one point stay inconsistent: search a line")

    # -- one unit

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

    def _extend(self) -> None:
        """Ask until the rank of what is left grows no more."""
        basis, in_vain = np.empty((0, self.dimension + 1)), 0.0
        for _, _, place in self._answers(self._listed):
            basis, in_vain = self._counted(basis, in_vain, place)
        while in_vain < _FREE and (wanted := self._next()) is not None:
            basis, in_vain = self._counted(basis, in_vain, self._ask_at(*wanted))
            if len(basis) > min(self.dimension, _MOST) or (len(basis) >= _MANY and self._crowded()):
                raise Stop(Outcome.NOT_THIS_CLASS, "more units switch than can be told apart: search a line")
            if self._listed is None and not listable([len(on) - 1 for on in self._on]):
                self._listed = _DEEP
                self._extend()
                return

    def _crowded(self) -> bool:
        """Whether breakpoints are so dense around the base that more units are likely than can be told apart."""
        near = self._near_base
        while len(near) < _PROBED and near.count(False) < 2:
            place = len(self.seen)
            self.gather(self._lines[len(near)].points([_NEARBY]))
            self._taken.add(place)
            near.append(float(np.linalg.norm(self.rest[place] - self.rest[0])) > self._error(0, place))
            if near[-1]:
                self._on[len(near) - 1][_NEARBY] = place
        return near.count(False) < 2

    def _answers(self, lines: int | None = None) -> list[tuple[int, float, int]]:
        """Line, t and place of all answers but the base, in the order in which they were asked; of the first lines."""
        every = ((i, t, place) for i, on in enumerate(self._on[:lines]) for t, place in on.items() if place)
        return sorted(every, key=lambda answer: answer[2])

    def _counted(self, basis: Array, in_vain: float, place: int) -> tuple[Array, float]:
        """The basis with what is left at this place, and how many answers in a row have added nothing."""
        left = (self.rest[place] - self.rest[0])[0]
        error = self._error(0, place)
        repeats = any(place in on.values() and self._beside(on, place) for on in self._on)
        for _ in range(2):
            left = left - (left @ basis.T) @ basis
        size = float(np.linalg.norm(left))
        if size <= error:
            return basis, in_vain + (_AGAIN if repeats else 1.0)
        return np.concatenate([basis, left[None] / size]), 0.0

    def _beside(self, on: dict[float, int], place: int) -> bool:
        """Whether an earlier answer of the same line shows the same piece."""
        others = [other for other in on.values() if other < place]
        apart = np.linalg.norm(self.rest[others] - self.rest[place], axis=(1, 2)).min(initial=np.inf)
        return bool(apart <= self._error(place, *others))

    def _next(self) -> tuple[int, float] | None:
        """The end of a line, or else the middle of the widest gap between neighbouring answers that differ."""
        for i, end in self._ends:
            if end not in self._on[i]:
                return i, end
        gaps = [(i, low, high) for i, on in enumerate(self._on[: self._listed]) for low, high in pairwise(sorted(on))]
        places = np.array([(self._on[i][low], self._on[i][high]) for i, low, high in gaps]).T
        apart = np.linalg.norm(self.rest[places[0]] - self.rest[places[1]], axis=(1, 2))
        far = np.linalg.norm(self.seen.points, axis=1)[places].max(axis=0) / self._column
        widths = np.array([np.arctan(high) - np.arctan(low) for _, low, high in gaps])
        widths[apart <= self.error * np.maximum(1.0, far)] = 0.0
        i, low, high = gaps[int(np.argmax(widths))]
        middle = float(np.tan((np.arctan(low) + np.arctan(high)) / 2))
        return (i, middle) if widths.max() > 0 and low < middle < high else None

    def _ask_at(self, line: int, t: float) -> int:
        place = len(self.seen)
        self.gather(self._lines[line].points([t]))
        self._on[line][t] = place
        self._taken.add(place)
        return place

    # -- decoding

    def _decode(self) -> bool:
        """Find units by their patterns; ask more where these are too many, or not consistent."""
        answers = self._answers()
        lines, t, places = (np.array(column) for column in zip(*answers, strict=True))
        differences = (self.rest[places] - self.rest[0])[:, 0]
        if np.linalg.norm(differences, axis=1).max() <= self._error(*places):
            return True
        sample = Sample(OnLines(lines, t), self._homogeneous(list(places)), self._homogeneous([0])[0])
        found = decoded(sample, differences, self._error(*places), self._rng, self._listed)
        if found is not None and found.proven.all():
            self.accept(self._turned(found.jumps))
            return not self.unexplained(self.main)
        if found is None:
            self.open(_MORE)
            wanted = self._ends[-2 * _MORE :]
        else:
            wanted = self._doubted(found, answers)
        for where in wanted:
            self._ask_at(*where)
        return False

    def _doubted(self, found: Decoded, answers: list[tuple[int, float, int]]) -> list[tuple[int, float]]:
        """Where to ask because units that switch there are not consistent."""
        worst = np.argsort(found.quality)[: min(_WORST, int((~found.proven).sum()))]
        wanted = dict.fromkeys(gap for i in worst for gap in self._before(found.patterns[i], answers))
        return [(i, t) for i, t in wanted if t not in self._on[i]]

    def _before(self, pattern: Array, answers: list[tuple[int, float, int]]) -> list[tuple[int, float]]:
        """The middles of the widest gaps of lines in which a unit of this pattern switches."""
        gaps = []
        for i, on in enumerate(self._on):
            switched = [t for (line, t, _), is_on in zip(answers, pattern, strict=True) if line == i and is_on]
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
            self.units, self.rest = no_units(self.outputs, self.dimension), pieces
            self.accept(units)


class OneOutputRun(BothSides, TensorRun):
    """The state of one reconstruction by lines through one point."""

    def _find(self) -> None:
        with self.meter.phase("calibrate"):
            seen = self._first()
        if self.noise.floor > EXACT:
            raise Stop(Outcome.NOT_THIS_CLASS, "few digits leave the patterns of one output unclear: search a line")
        self.search = OneOutputSearch(self._ask, self._fresh, self._near, seen, self.rng)
        self.search.begin()
        with self.meter.phase("search"):
            self.search.run()

    @property
    def seen(self) -> Observations | None:
        """All answers with gradients, if a search began."""
        return None if self.search is None else self.search.seen

    def _answered(self) -> tuple[Array, Array]:
        seen = self._searched.seen
        return seen.points, seen.values
