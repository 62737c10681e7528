"""Mending: what a line search took for one unit and was two, or never met, shows at points off the line.

On a ray that leaves the line's start, answer and prediction differ by a function that is piecewise affine too, with
kinks only where a unit was overlooked or mistaken. Between two answered points of the ray that one such kink tells
apart, the difference changes by a unit of the target. Where that unit meets the line, inside a gap that was taken for
a single kink, it was overlooked; what remains of the gap's jump is its partner. So the ray names the place on the line
to ask, and one answer there mends two units.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.lines.search import Gap, Kink, LineSearch, Sight
from relumine.reconstruct.lines.shallow import Shallow, rank_one
from relumine.reconstruct.result import Outcome, Stop

# Between points of a ray this close, in units of its length, there is one kink, hardly ever two.
_ALONE = 1e-3
# A line overlooks few units; one that is mended to many more is not that of one hidden layer, but smooth or deep.
_GROWTH, _SPARE = 2, 64
# A row lies in a space if it is no further from it: errors of rows are 1e-10, and a row that does not is as far by
# chance with a probability of 1e-5 per dimension that the space lacks.
_IN_THE_SPACE = 1e-5


@dataclass
class Ray:
    """Answered points start + s·(end − start), s rising from 0: their places, and their rows among all witnesses."""

    end: Array
    places: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def insert(self, place: float, row: int) -> None:
        """Take note of an answer."""
        position = int(np.searchsorted(self.places, place))
        self.places.insert(position, place)
        self.rows.insert(position, row)


@dataclass(frozen=True)
class AskOnLine:
    """Ask on the searched line, at t."""

    t: float


@dataclass(frozen=True)
class AskOnRay:
    """Ask on the ray, at this part of its length."""

    place: float


@dataclass(frozen=True)
class Added:
    """A unit was added; ask nothing."""


Step = AskOnLine | AskOnRay | Added


@dataclass(frozen=True, eq=False)
class _Change:
    """By how much the difference between answer and model changes from one witness to the next."""

    jacobian: Array
    output: Array
    row: Array
    bias: float
    t: float


class LineFindings:
    """All that is known: the line's kinks, units that the searched part of the line does not meet, and witnesses."""

    def __init__(self, search: LineSearch, reference: Sight) -> None:
        self.search = search
        self.reference = reference
        self._beyond: list[Kink] = []
        self._on_line: int | None = None  # kinks that the line showed before mending
        self._modelled: list[Kink] = []
        self._state: tuple[list[Kink], int] = (self._modelled, -1)
        self._built: tuple[tuple[list[Kink], int], Shallow] | None = None
        d, outputs = search.line.start.size, len(reference.slope)
        self._points = np.empty((0, d))
        self._jacobians = np.empty((0, outputs, d))  # answer minus model, kept current by refresh()
        self._values = np.empty((0, outputs))

    # -- the model

    def kinks(self) -> list[Kink]:
        """All kinks, those beyond the searched part last."""
        return [*self.search.kinks(), *self._beyond]

    def model(self) -> Shallow:
        """The function that these kinks make, every unit off at the line's start."""
        state = (self.search.kinks(), len(self._beyond))
        if self._built is None or self._built[0][0] is not state[0] or self._built[0][1] != state[1]:
            self._built = (state, self._build(self.kinks()))
        return self._built[1]

    def _build(self, kinks: list[Kink]) -> Shallow:
        jacobian = self.reference.jacobian
        away = np.array([np.copysign(1.0, kink.t) for kink in kinks])
        return Shallow(
            jacobian,
            self.reference.intercept - jacobian @ self.search.line.start,
            np.array([kink.output for kink in kinks]).reshape(-1, len(jacobian)),
            np.array([kink.row for kink in kinks]).reshape(-1, jacobian.shape[1]) * away[:, None],
            np.array([kink.bias for kink in kinks]).reshape(-1) * away,
        )

    # -- witnesses

    @property
    def witnesses(self) -> int:
        """How many answers off the line are known."""
        return len(self._points)

    def answered(self) -> tuple[Array, Array]:
        """The points of these answers, and the values there."""
        self.refresh()
        return self._points, self._values + self.model().values(self._points)

    def add(self, points: Array, answer: Answer) -> None:
        """Take note of answers off the line."""
        self.refresh()
        model = self.model()
        self._points = np.concatenate([self._points, points])
        self._jacobians = np.concatenate([self._jacobians, answer.jacobians - model.jacobians(points)])
        self._values = np.concatenate([self._values, answer.values - model.values(points)])

    def left(self) -> tuple[Array, int]:
        """A basis r×d of what answered gradients differ by from the model's, and how many of the last add nothing."""
        self.refresh()
        basis, in_vain = np.empty((0, self._jacobians.shape[2])), 0
        for jacobian in self._jacobians:
            output, row = rank_one(jacobian)
            row = row * np.linalg.norm(output)
            for _ in range(2):
                row = row - (row @ basis.T) @ basis
            size = float(np.linalg.norm(row))
            in_vain = in_vain + 1 if size <= self._tolerance else 0
            if in_vain == 0:
                basis = np.concatenate([basis, row[None] / size])
        return basis, in_vain

    def doubted(self, left: Array) -> list[float]:
        """Places in gaps that were taken for one kink and whose rows lie in this space."""
        doubted = []
        for gap in self.search.gaps:
            row = gap.row / np.linalg.norm(gap.row)
            if np.linalg.norm(row - (row @ left.T) @ left) < _IN_THE_SPACE and gap.rank_one and gap.inside:
                doubted.append(self.search.proof(gap))
        return [place for place in doubted if place is not None]

    def refresh(self) -> None:
        """Bring the differences up to date with the kinks: only what changed is computed."""
        state = (self.search.kinks(), len(self._beyond))
        if state[0] is self._state[0] and state[1] == self._state[1]:
            return
        self._state = state
        kinks = self.kinks()
        before, after = {id(kink) for kink in self._modelled}, {id(kink) for kink in kinks}
        gone = [kink for kink in self._modelled if id(kink) not in after]
        new = [kink for kink in kinks if id(kink) not in before]
        for kink, sign in [*((kink, 1.0) for kink in gone), *((kink, -1.0) for kink in new)]:
            across, jump, value = self._contribution(kink)
            self._jacobians[across] += sign * jump
            self._values += sign * value
        self._modelled = kinks

    def _contribution(self, kink: Kink) -> tuple[NDArray[np.bool_], Array, Array]:
        """Which witnesses lie across the kink, by what the Jacobian changes there, and every witness's value."""
        away = np.copysign(1.0, kink.t)
        signals = away * (self._points @ kink.row + kink.bias)
        return signals > 0, away * np.outer(kink.output, kink.row), np.maximum(signals, 0)[:, None] * kink.output

    def _agree(self) -> NDArray[np.bool_]:
        agree: NDArray[np.bool_] = np.linalg.norm(self._jacobians, axis=(1, 2)) <= self._tolerance
        return agree

    @property
    def _tolerance(self) -> float:
        return 4 * self.search.tolerance

    @property
    def _closest(self) -> float:
        """Points of a ray closer than this are not told apart any further."""
        return 1e3 * self.search.noise.relative + 1e-7

    def agrees(self, ray: Ray) -> bool:
        """Whether the model is right at all answered points of this ray."""
        self.refresh()
        return bool(self._agree()[ray.rows].all())

    # -- explaining

    def explain(self, ray: Ray) -> Step | None:
        """What follows from the differences along the ray: where to ask next, or that a unit was added."""
        self.refresh()
        known = len(self.kinks())
        self._on_line = known if self._on_line is None else self._on_line
        if known > _GROWTH * self._on_line + _SPARE:
            raise Stop(Outcome.NOT_THIS_CLASS, "off the line ever more units appear")
        places = self._places(ray)
        for width, first, second in self._changes(ray):
            change = self._single(first, second)
            if change is None:
                continue
            place = self._overlooked(change, first, second, alone=width < _ALONE)
            if place is not None:
                return AskOnLine(place)
            step = self._beyond_the_ends(ray, change, (places[first], places[second]), first, second)
            if step is not None:
                return step
        return None

    def _places(self, ray: Ray) -> dict[int, float]:
        return {-1: 0.0, **dict(zip(ray.rows, ray.places, strict=True))}

    def undecided(self, ray: Ray) -> float | None:
        """Where on the ray to ask next: in the closest pair between which the difference changes."""
        places = self._places(ray)
        for width, first, second in self._changes(ray):
            if width > self._closest:
                return (places[first] + places[second]) / 2
        return None

    def _changes(self, ray: Ray) -> list[tuple[float, int, int]]:
        """Neighbouring witnesses of the ray that differ differently from the model, closest first; -1 is the start."""
        rows, places = [-1, *ray.rows], [0.0, *ray.places]
        pairs = []
        for i in range(len(ray.rows)):
            if float(np.linalg.norm(self._jacobian(rows[i + 1]) - self._jacobian(rows[i]))) > self._tolerance:
                pairs.append((places[i + 1] - places[i], rows[i], rows[i + 1]))
        return sorted(pairs)

    def _jacobian(self, row: int) -> Array:
        # At the line's start the model is right by construction.
        return self._jacobians[row] if row >= 0 else np.zeros_like(self.reference.jacobian)

    def _affine(self, row: int) -> Array:
        """K: the difference's affine function at this witness, taken at the line's start."""
        if row < 0:
            return np.zeros(len(self.reference.slope))
        result: Array = self._values[row] + self._jacobians[row] @ (self.search.line.start - self._points[row])
        return result

    def _single(self, first: int, second: int) -> _Change | None:
        """The change as one unit, if it can be one."""
        jacobian = self._jacobian(second) - self._jacobian(first)
        output, row = rank_one(jacobian)
        along = float(row @ self.search.line.direction)
        if along == 0 or float(np.linalg.norm(jacobian - np.outer(output, row))) > self._tolerance:
            return None
        output, row = output * along, row / along
        t = -float(output @ (self._affine(second) - self._affine(first)) / (output @ output))
        return _Change(jacobian, output, row, -float(row @ self.search.line.start) - t, t)

    def _overlooked(self, change: _Change, first: int, second: int, *, alone: bool) -> float | None:
        """A place between two kinks that a gap holds instead of one, if that explains the change.

        ``alone``: the witnesses are so close that the change is one unit for sure, though it explains nothing yet (the
        gap may hold three): then ask beside its kink.
        """
        gap = self.search.gap_at(change.t)
        if gap is None:
            return None
        missing = min(float(np.linalg.norm(gap.jump - sign * change.jacobian)) for sign in (1, -1))
        # The whole jump changes: the gap is wrong, but this does not show how. Prove its kink.
        if missing <= self._tolerance and (proof := self.search.proof(gap)) is not None:
            return proof
        for pair in self._partners(change, gap):
            apart = abs(pair[0].t - pair[1].t) > self.search.resolution(gap)
            if apart and self._would_explain(gap, pair, first, second):
                return (pair[0].t + pair[1].t) / 2
        if alone and not self.search.closed(gap):
            return change.t + float(np.copysign(min(gap.step, abs(gap.t - change.t) / 2), gap.t - change.t))
        return None

    def _partners(self, change: _Change, gap: Gap) -> Iterator[tuple[Kink, Kink]]:
        for sign in (1.0, -1.0):
            slope = gap.slope - sign * change.output
            intercept = gap.intercept + sign * change.t * change.output
            output, row = rank_one(gap.jump - sign * change.jacobian)
            along = float(row @ self.search.line.direction)
            steep = float(slope @ slope)
            if steep == 0 or along == 0:
                continue
            t = float(-(slope @ intercept) / steep)
            if gap.left.t < t < gap.right.t:
                start = self.search.line.start
                partner = Kink(t, output * along, row / along, -float(row @ start) / along - t)
                yield Kink(change.t, sign * change.output, change.row, change.bias), partner

    def _would_explain(self, gap: Gap, pair: tuple[Kink, Kink], first: int, second: int) -> bool:
        """Whether with these two for the gap's one the change vanishes and no agreement is lost."""
        after = self._jacobians.copy()
        for kink, sign in [*((kink, 1.0) for kink in gap.kinks(self.search.line)), *((kink, -1.0) for kink in pair)]:
            across, jump, _ = self._contribution(kink)
            after[across] += sign * jump
        return self._settles(after, first, second)

    def _settles(self, after: Array, first: int, second: int) -> bool:
        left = after[second] - (after[first] if first >= 0 else 0)
        still = np.linalg.norm(after[self._agree()], axis=(1, 2)) <= self._tolerance
        return float(np.linalg.norm(left)) <= self._tolerance and bool(still.all())

    def _beyond_the_ends(
        self, ray: Ray, change: _Change, between: tuple[float, float], first: int, second: int
    ) -> Step | None:
        """Add a unit that the searched part of the line does not meet, once both sides of its kink on the ray are seen.

        One output proves nothing by itself: two units crossed at once look like a third. Just before the place where
        the change vanishes on the ray, and just behind it, they do not.
        """
        low, high = self.search.ends
        along = float(change.row @ (ray.end - self.search.line.start))
        if low < change.t < high or along == 0:
            return None
        kink = -(float(change.row @ self.search.line.start) + change.bias) / along
        beside = 4 * self._closest
        if not between[0] < kink < between[1]:
            return None
        if kink - between[0] > 2 * beside:
            return AskOnRay(kink - beside)
        if between[1] - kink > 2 * beside:
            return AskOnRay(kink + beside)
        return Added() if self._add_beyond(change, first, second) else None

    def _add_beyond(self, change: _Change, first: int, second: int) -> bool:
        # Off at the line's start, it is on at the second witness: the ray crosses its boundary before that.
        size = float(np.linalg.norm(change.row))
        output = change.output * size * np.copysign(1.0, change.t)
        kink = Kink(change.t, output, change.row / size, change.bias / size)
        after = self._jacobians.copy()
        across, jump, _ = self._contribution(kink)
        after[across] -= jump
        if not self._settles(after, first, second):
            return False
        self._beyond.append(kink)
        return True
