"""Profile: the kinks of a piecewise-linear function of one variable, from its values.

A piece is measured by three close values (they must lie on a line). Where the pieces at both ends of an interval
differ, they meet at t*; if it is the only kink, the value just left of t* lies on the left piece and the value just
right of it on the right piece. That proves it; otherwise the interval is divided.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop

# How far out kinks are looked for, where values have the digits of float64, and where they have fewer.
_FAR, _FAR_SINGLE, _SINGLE = 1e5, 300.0, 1e-9
# A network is flat where all units are off, at one height; so many heights are the steps of rounded values.
_STEPS = 3
# Pieces that are known so badly where they meet that a value this far from there proves nothing are seen from nearer.
_SHARP = 0.02


@dataclass(frozen=True, eq=False)
class _Piece:
    """f(t) = value + slope·(t − at) around ``at``, seen within ``reach`` of it."""

    at: float
    value: Array
    slope: Array
    error: float  # of the value
    reach: float

    def __call__(self, t: float) -> Array:
        return self.value + self.slope * (t - self.at)

    def error_at(self, t: float) -> float:
        """The expected error of the piece at t: that of the slope grows with the distance."""
        return self.error * (1 + abs(t - self.at) / self.reach)


@dataclass(frozen=True, eq=False)
class _Interval:
    left: _Piece
    right: _Piece

    @property
    def width(self) -> float:
        return self.right.at - self.left.at

    @property
    def same(self) -> bool:
        """Whether both ends show the same piece: the same slope, and each other's value."""
        slopes = 4 * (self.left.error / self.left.reach + self.right.error / self.right.reach)
        if np.abs(self.left.slope - self.right.slope).max() > slopes:
            return False
        allowed = 4 * (self.left.error_at(self.right.at) + self.right.error_at(self.left.at))
        miss = np.abs(self.left(self.right.at) - self.right.value).max()
        return bool(max(miss, np.abs(self.right(self.left.at) - self.left.value).max()) <= allowed)

    @property
    def meeting(self) -> float | None:
        """Where the two pieces meet, if between the ends."""
        change = self.right.slope - self.left.slope
        steep = float(change @ change)
        if steep == 0:
            return None
        apart = self.left(self.left.at) - self.right(self.left.at)
        t = self.left.at + float(change @ apart) / steep
        return t if self.left.at < t < self.right.at else None

    @property
    def step(self) -> float:
        """How far from the meeting a value surely lies on one piece."""
        t = self.meeting or 0.0
        steep = float(np.linalg.norm(self.right.slope - self.left.slope))
        return 8 * (self.left.error_at(t) + self.right.error_at(t)) / steep + 1e-9 * (1 + abs(t))


class Profile:
    """Asks ``values(list of t) -> n×K``; ``box`` limits t, ``limit`` the spread of the outputs (saturation)."""

    def __init__(
        self,
        values: Callable[[list[float]], Array],
        noise: Noise,
        *,
        box: tuple[float, float],
        limit: float | None,
        found: Callable[[int], None],
    ) -> None:
        self._values = values
        self._noise = noise
        self._found = found
        self._steepest = 0.0
        self._flat: set[float] = set()
        # Near the start means near for the stretch that may be asked.
        self._room = min(1.0, -box[0], box[1])
        start = self._start()
        low, high = self._ends(start, box, limit)
        self.ends = (low.at, high.at)
        self._open = [_Interval(low, start), _Interval(start, high)]
        self._proven: list[_Interval] = []

    def _start(self) -> _Piece:
        """A piece near t = 0; elsewhere if a kink is just there."""
        for t in (0.0, 0.03, -0.05, 0.11, -0.17):
            piece = self._measure([t * self._room], [0.01 * self._room])[0]
            if piece is not None:
                return piece
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, "the values near the start do not lie on a line")

    def kinks(self) -> list[float]:
        """All kinks between the ends, in order."""
        while self._open:
            self._open = [interval for interval in self._open if not interval.same]
            divided = self._prove(self._open)
            self._open = self._divide(divided)
            self._found(len(self._proven))
        meetings = [(interval.meeting or 0.0, interval) for interval in self._proven]
        return sorted(self._sharpened(t, interval) for t, interval in meetings)

    def _sharpened(self, t: float, interval: _Interval) -> float:
        """The meeting, from pieces measured nearby where they were only seen from afar: slopes err with distance."""
        room = 1 + abs(t)
        left_at, right_at = max(interval.left.at, t - room), min(interval.right.at, t + room)
        if (left_at, right_at) == (interval.left.at, interval.right.at):
            return t
        left = (
            interval.left
            if left_at == interval.left.at
            else self._measure([left_at], [min(room, left_at - interval.left.at) / 4])[0]
        )
        right = (
            interval.right
            if right_at == interval.right.at
            else self._measure([right_at], [min(room, interval.right.at - right_at) / 4])[0]
        )
        if left is None or right is None:
            return t
        return _Interval(left, right).meeting or t

    def _ends(self, start: _Piece, box: tuple[float, float], limit: float | None) -> tuple[_Piece, _Piece]:
        far = _FAR if self._noise.relative < _SINGLE else _FAR_SINGLE
        low, high = max(-far, 0.97 * box[0]), min(far, 0.97 * box[1])
        if limit is not None:
            slope = start.slope
            spread = float(np.ptp(slope)) if len(slope) > 1 else float(abs(slope[0]))
            low, high = max(low, -limit / max(spread, 1e-300)), min(high, limit / max(spread, 1e-300))
        return self._end(low), self._end(high)

    def _end(self, t: float) -> _Piece:
        """The piece at t, or nearer if values there are saturated or on a kink."""
        for _ in range(40):
            piece = self._measure([t], [0.01 * abs(t)])[0]
            if piece is not None:
                return piece
            t *= 0.7
        raise Stop(Outcome.SATURATED, "no finite values far from the start")

    def _measure(self, places: list[float], reaches: list[float]) -> list[_Piece | None]:
        """Pieces around these places; None where three values do not lie on a line even when taken closer."""
        pieces: list[_Piece | None] = [None] * len(places)
        centres: dict[int, Array] = {}
        for attempt in range(3):
            missing = [i for i, piece in enumerate(pieces) if piece is None]
            if not missing:
                break
            reach = {i: reaches[i] * 0.1**attempt for i in missing}
            asked = [t for i in missing for t in (places[i] - reach[i], places[i] + reach[i])]
            values = self._values(asked + ([] if centres else [places[i] for i in missing]))
            if not centres:
                centres = dict(zip(missing, values[len(asked) :], strict=True))
            for i, (before, after) in zip(missing, values[: len(asked)].reshape(len(missing), 2, -1), strict=True):
                pieces[i] = self._piece(places[i], reach[i], before, centres[i], after)
        return pieces

    def _piece(self, t: float, reach: float, before: Array, value: Array, after: Array) -> _Piece | None:
        if not np.isfinite([before, value, after]).all():
            return None
        slope = (after - before) / (2 * reach)
        if not slope.any():
            self._flat.add(float(value[0]))
            if len(self._flat) > _STEPS:
                raise Stop(
                    Outcome.NOT_PIECEWISE_LINEAR, "the values go in steps, as rounded ones do; ask for more digits"
                )
        # Terms that cancel in f round as if they did not: the steepest slope tells what they are like at t.
        self._steepest = max(self._steepest, float(np.abs(slope).max()))
        size = float(np.abs(value).max()) + self._steepest * (1 + abs(t))
        error = 8 * self._noise.relative * size + 2 * self._noise.absolute
        if np.abs(after - 2 * value + before).max() > 4 * error:
            return None
        return _Piece(t, value, slope, error, reach)

    def _prove(self, intervals: list[_Interval]) -> list[_Interval]:
        """Ask on both sides of each meeting; returns the intervals that hold more than the kink there."""
        tried = [(i, i.meeting) for i in intervals if i.meeting is not None and self._is_sharp(i, i.meeting)]
        asked = [t for interval, at in tried for t in (at - interval.step, at + interval.step)]
        values: Iterable[Array] = self._values(asked).reshape(len(tried), 2, -1) if asked else []
        sharp = {id(interval) for interval, _ in tried}
        divided = [interval for interval in intervals if id(interval) not in sharp]
        for (interval, meeting), (before, after) in zip(tried, values, strict=True):
            allowed = 4 * (interval.left.error_at(meeting) + interval.right.error_at(meeting))
            miss = max(
                np.abs(interval.left(meeting - interval.step) - before).max(),
                np.abs(interval.right(meeting + interval.step) - after).max(),
            )
            if miss <= allowed or interval.width < self._narrow * (1 + abs(meeting)):
                self._proven.append(interval)
            else:
                divided.append(interval)
        return divided

    @property
    def _narrow(self) -> float:
        return max(1e-9, 1e3 * self._noise.relative)

    def _is_sharp(self, interval: _Interval, meeting: float) -> bool:
        """Whether the pieces are seen from so near that a value tells whether it lies on them."""
        room = 1 + abs(meeting)
        return interval.step < _SHARP * room or interval.width < self._narrow * room

    def _divide(self, intervals: list[_Interval]) -> list[_Interval]:
        """Measure a piece inside each interval, and go on with the two parts."""
        parts: list[_Interval] = []
        for share in (0.5, 0.4, 0.63, 0.27):  # elsewhere if a kink is just there
            pieces = self._measure(*_inside(intervals, share))
            for interval, piece in zip(intervals, pieces, strict=True):
                if piece is not None:
                    parts += [_Interval(interval.left, piece), _Interval(piece, interval.right)]
            intervals = [interval for interval, piece in zip(intervals, pieces, strict=True) if piece is None]
        if intervals:
            raise Stop(Outcome.NOT_PIECEWISE_LINEAR, "values do not lie on a line however close they are")
        return parts


def _inside(intervals: list[_Interval], share: float) -> tuple[list[float], list[float]]:
    """A place in each interval, where this share of its kinks is expected (arctan t is uniform), and room around it."""
    places, reaches = [], []
    for interval in intervals:
        left, right = np.arctan(interval.left.at), np.arctan(interval.right.at)
        t = float(np.tan(left + share * (right - left)))
        places.append(t)
        reaches.append(min(t - interval.left.at, interval.right.at - t) * 0.05)
    return places, reaches
