"""The kinks of a piecewise-linear function of one variable, from values that err by a known bound.

Over short steps such errors are all that differences show. So a piece is seen over its whole length: it is a run of
samples that lie on a line as well as they are known. Where two neighbouring runs meet, samples are taken on both sides
of the meeting; they prolong the runs if the kink is the only one there, and show what lies between if it is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.result import Outcome, Stop

# How far out breakpoints are looked for, in units of the line's direction.
_FAR = 1000.0
# Samples taken first, evenly in arctan t, as kinks are spread.
_FIRST = 25
# Samples may miss the line through them by this many of their bounds.
_SLACK = 1.5
# Fewer samples may lie on a line by chance, above all if there is one output only.
_RUN, _RUN_SINGLE = 3, 4
# A meeting is off by no more than this, times what the bounds of its pieces make of it.
_SAFE = 2.0
# Samples closer than what changes the values by this many bounds show nothing more.
_NARROW = 8.0
_ROUNDS = 40
# Kinks take about eight samples each; where _FREE more are needed, nothing lies on a line.
_FREE, _PER_PIECE = 120, 16
# Pieces of a curve, other than of a line with kinks, meet at places that are known no better than this part of their
# lengths. Of _ENOUGH pieces few do so by chance.
_BLUNT, _ENOUGH = 0.05, 24


@dataclass(frozen=True, eq=False)
class ValuePiece:
    """f(t) = value + slope·(t − at), seen for low ≤ t ≤ high; all others are K numbers.

    error, tilt: by how much value and slope may err
    """

    low: float
    high: float
    at: Array
    value: Array
    slope: Array
    error: Array
    tilt: Array

    def __call__(self, t: float) -> Array:
        return self.value + self.slope * (t - self.at)

    def error_at(self, t: float) -> Array:
        """K: by how much the piece may err at t."""
        result: Array = self.error + self.tilt * np.abs(t - self.at)
        return result


@dataclass(frozen=True, eq=False)
class Meeting:
    """Where two neighbouring pieces meet: ``t``, which may be off by ``error``; whether all outputs ``agree``."""

    t: float
    error: float
    agree: bool


def meeting(left: ValuePiece, right: ValuePiece) -> Meeting:
    """Where these pieces meet, from all outputs, each weighed by what is known of it."""
    change = right.slope - left.slope
    middle = (left.high + right.low) / 2
    errors = left.error_at(middle) + right.error_at(middle)
    steep = float(np.sum((change / errors) ** 2))
    if steep == 0:
        return Meeting(middle, np.inf, False)
    t = middle + float(np.sum(change * (left(middle) - right(middle)) / errors**2)) / steep
    apart = np.abs(left(t) - right(t))
    agree = bool((apart <= 3 * (left.error_at(t) + right.error_at(t))).all())
    return Meeting(t, _SAFE / steep**0.5, agree)


@dataclass(frozen=True, eq=False)
class Shown:
    """What a line shows: its pieces from left to right, and the kinks between them."""

    pieces: list[ValuePiece]

    @property
    def kinks(self) -> list[float]:
        """One less than there are pieces, in order."""
        return [float(np.clip(meeting(a, b).t, a.high, b.low)) for a, b in pairwise(self.pieces)]

    @property
    def jumps(self) -> Array:
        """m×K: by how much the slope changes at each kink."""
        result: Array = np.diff([piece.slope for piece in self.pieces], axis=0)
        return result

    @property
    def room(self) -> float:
        """The narrowest piece between two kinks, relative to how far out it is."""
        kinks = np.array(self.kinks)
        return float((np.diff(kinks) / (1 + np.abs(kinks[1:]))).min(initial=1.0))


class NoisyLine:
    """Asks ``values(list of t) -> n×K``, which err by no more than ``bounds(t, values) -> n×K``; ``ends`` limit t.

    most: pieces looked for; there may be more
    """

    def __init__(
        self,
        values: Callable[[list[float]], Array],
        bounds: Callable[[Array, Array], Array],
        ends: tuple[float, float],
        most: int,
    ) -> None:
        self._values = values
        self._bounds = bounds
        self._ends = max(-_FAR, ends[0]), min(_FAR, ends[1])
        self._most = most
        self._t, self._f, self._errors = np.empty(0), np.empty((0, 0)), np.empty((0, 0))

    def shown(self) -> Shown:
        """Sample until every kink that the values can show lies between two pieces."""
        low, high = np.arctan(self._ends)
        spread = [float(t) for t in np.tan(np.linspace(low, high, _FIRST + 2)[1:-1])]
        self._sample(spread + [end * share for end in self._ends for share in (1.0, 0.8, 0.6)])
        for _ in range(_ROUNDS):
            runs = self._runs()
            asked = self._missing(runs)
            pieces = [self._piece(*run) for run in runs if self._long(run)]
            if not asked or len(pieces) > self._most:
                break
            if len(self._t) > _FREE + _PER_PIECE * len(pieces) or _is_curve(pieces):
                raise Stop(Outcome.NOT_PIECEWISE_LINEAR, "values do not lie on a line however close they are")
            self._sample(asked)
        return Shown([self._piece(*run) for run in self._runs() if self._long(run)])

    def _sample(self, places: list[float]) -> None:
        new = np.setdiff1d(places, self._t)
        values = self._values([*new])
        known = np.isfinite(values).all(axis=1)
        t = np.concatenate([self._t, new[known]])
        f = np.concatenate([self._f.reshape(-1, values.shape[1]), values[known]])
        order = np.argsort(t)
        self._t, self._f = t[order], f[order]
        self._errors = self._bounds(self._t, self._f)

    # -- runs: samples first … last − 1

    def _piece(self, first: int, last: int) -> ValuePiece:
        t, f = self._t[first:last, None], self._f[first:last]
        weight = 1 / self._errors[first:last] ** 2
        total = weight.sum(axis=0)
        at, value = (weight * t).sum(axis=0) / total, (weight * f).sum(axis=0) / total
        along = (weight * (t - at) ** 2).sum(axis=0)
        slope = (weight * (t - at) * (f - value)).sum(axis=0) / along
        return ValuePiece(float(t[0, 0]), float(t[-1, 0]), at, value, slope, total**-0.5, along**-0.5)

    def _straight(self, first: int, last: int) -> bool:
        piece = self._piece(first, last)
        misses = np.abs(piece.value + piece.slope * (self._t[first:last, None] - piece.at) - self._f[first:last])
        return bool((misses <= _SLACK * self._errors[first:last]).all())

    def _long(self, run: tuple[int, int]) -> bool:
        return run[1] - run[0] >= (_RUN if self._f.shape[1] > 1 else _RUN_SINGLE)

    def _runs(self) -> list[tuple[int, int]]:
        """All samples cut into runs that lie on a line each."""
        lasts = []
        for first in range(len(self._t)):
            last = min(first + 2, len(self._t))
            while last < len(self._t) and self._straight(first, last + 1):
                last += 1
            lasts.append(last)
        return _cut(0, len(lasts), lasts)

    # -- where to ask next

    def _missing(self, runs: list[tuple[int, int]]) -> list[float]:
        asked: set[float] = set()
        for run in runs:
            if not self._long(run):
                asked |= self._between(range(max(run[0] - 1, 0), min(run[1], len(self._t) - 1)))
        for a, b in pairwise(runs):
            if self._long(a) and self._long(b):
                asked |= self._beside(a, b)
        return sorted(asked)

    def _between(self, samples: range) -> set[float]:
        """The middles of these samples and the next ones, where these are not too close to tell more."""
        middles = np.tan((np.arctan(self._t[:-1]) + np.arctan(self._t[1:])) / 2)
        return {float(middles[i]) for i in samples if self._t[i + 1] - self._t[i] > self._narrow(i)}

    def _narrow(self, i: int) -> float:
        steep = np.abs(np.diff(self._f, axis=0) / np.diff(self._t)[:, None]).max(axis=0)
        with np.errstate(divide="ignore"):
            return _NARROW * float((np.maximum(self._errors[i], self._errors[i + 1]) / steep).min())

    def _beside(self, a: tuple[int, int], b: tuple[int, int]) -> set[float]:
        """On both sides of where two runs meet, unless that is known well enough; between them if they do not meet."""
        left, right = self._piece(*a), self._piece(*b)
        met = meeting(left, right)
        if not met.agree or not left.high - met.error <= met.t <= right.low + met.error:
            return self._between(range(a[1] - 1, b[0]))
        if right.low - left.high <= max(3 * met.error, self._narrow(a[1] - 1)):
            return set()
        inside = (left.high + 0.1 * met.error, right.low - 0.1 * met.error)
        return {t for t in (met.t - met.error, met.t + met.error) if inside[0] < t < inside[1]}


def _is_curve(pieces: list[ValuePiece]) -> bool:
    """Whether the pieces of a smooth curve look like this: no kink is sharp."""
    blunt = [meeting(a, b).error > _BLUNT * min(a.high - a.low, b.high - b.low) for a, b in pairwise(pieces)]
    return len(blunt) >= _ENOUGH and sum(blunt) > 0.7 * len(blunt)


def _cut(low: int, high: int, lasts: list[int]) -> list[tuple[int, int]]:
    """low … high − 1 cut into runs, the longest first; a run that starts at i may end at lasts[i]."""
    if low >= high:
        return []
    first = max(range(low, high), key=lambda i: min(lasts[i], high) - i)
    last = min(lasts[first], high)
    return [*_cut(low, first, lasts), (first, last), *_cut(last, high, lasts)]
