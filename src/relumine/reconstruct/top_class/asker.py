"""TopClassAsker: the questions of method.py. Where to begin, what a line shows, and which line to ask next."""

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array, Offer
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.top_class.line import UnitBoundary, boundaries_by_tangents
from relumine.reconstruct.top_class.observations import OneGradient, TopGradients
from relumine.reconstruct.top_class.slopes import SlopeSearch
from relumine.reconstruct.verification.comparison import Comparison

# How far out a line is searched, and how close two points are that lie in one linear region nearly always (as in
# two_layer/).
_FAR = {"float64": 1e5, "float32": 1e3}
_NEAR = {"float64": 1e-5, "float32": 1e-3}
# Below this noise floor differences of values are slopes.
_EXACT = 1e-12
# This many times as many points are compared where a box limits the search.
_IN_A_BOX = 25
# A line through a compared point begins a little beside it, so that nothing is asked twice.
_ASIDE = 0.01


class TopClassAsker:
    """Asks the oracle: ``comparison`` has the values at fresh points, ``noise`` what the answers look like."""

    def __init__(self, meter: Metered, rng: np.random.Generator, limit: int) -> None:
        self.meter = meter
        self.rng = rng
        self.oracle = OneGradient(meter)
        self.comparison = Comparison(self.oracle, rng)
        self.noise = Noise(0.0)
        self.beside: list[tuple[Array, Array]] = []  # points of lines asked for values, and these
        self._limit = limit
        self._asked = 0

    @property
    def offer(self) -> Offer:
        """What the target promises."""
        return self.meter.offer

    def _ask(self, points: Array) -> TopGradients:
        self._asked += len(points)
        if self._asked > self._limit:
            raise Stop(Outcome.NOT_THIS_CLASS, f"{self._limit} gradient queries were not enough; raise `limit`")
        return self.oracle.explained(points)

    def _ask_on(self, line: Line, t: list[float]) -> TopGradients:
        return self._ask(self.comparison.representable(line.points(t)))

    def values(self, points: Array) -> Array:
        """The logits at these points."""
        return self.oracle(points, gradients=False).values

    def compare(self, count: int) -> None:
        """Ask the values at fresh points; they are compared with every later model."""
        with self.meter.phase("verify"):
            corners = 1 if self.offer.box is None else _IN_A_BOX
            self.comparison.ask(self.comparison.fresh(corners * count))
        self.oracle.learn_alike(self.comparison.answers)

    # -- where to begin

    def calibrate(self) -> tuple[Line, TopGradients]:
        """Find the noise, and a line on which answers are finite; logits' gradients must be constant nearby."""
        near = _NEAR[self.offer.dtype]
        for _ in range(3):
            line, samples = self._finite_line(near)
            shown = np.concatenate([samples.values.ravel(), samples.gradients.ravel()])
            self.noise = noise_in(shown, self.offer.dtype)
            first, second = samples.gradients
            allowed = self.noise.of(float(np.linalg.norm(first)), first.size)
            if samples.tops[0] == samples.tops[1] and float(np.linalg.norm(second - first)) <= allowed:
                self._refuse_foreign_gradients(samples)
                return line, samples
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"3 of 3 gradients changed within {near:g}")

    def _finite_line(self, near: float) -> tuple[Line, TopGradients]:
        for _ in range(12):
            line = self._line()
            samples = self._ask_on(line, [0.0, near])
            if np.isfinite(samples.values).all():
                return line, samples
            self.comparison.scale /= 2
        raise Stop(Outcome.SATURATED)

    def _refuse_foreign_gradients(self, samples: TopGradients) -> None:
        """Between two close points the value must change as the gradient says."""
        moved = samples.points[1] - samples.points[0]
        expected, change = float(samples.gradients[0] @ moved), float(np.diff(samples.explained)[0])
        allowed = 16 * self.noise.of(float(np.abs(samples.values).max()), 1)
        length = float(np.linalg.norm(samples.gradients[0]) * np.linalg.norm(moved)) / np.sqrt(moved.size)
        if abs(change - expected) > allowed + 0.1 * length:
            raise Stop(
                Outcome.NOT_THIS_CLASS, "the values do not change as the gradients say: they are of another thing"
            )

    # -- a line

    def search(self, line: Line, calibrated: TopGradients | None) -> tuple[list[UnitBoundary], TopGradients]:
        """The units that a line shows; ``calibrated`` are the samples from which the first line began."""
        begin = self._begin(line, calibrated)
        cheaply = calibrated is not None and self.noise.floor <= _EXACT and self.offer.box is None
        found = self._by_slopes(line, begin) if cheaply else None
        return found or boundaries_by_tangents(line, begin, self._ask_on, self.noise)

    def _by_slopes(
        self, line: Line, begin: tuple[list[float], TopGradients]
    ) -> tuple[list[UnitBoundary], TopGradients] | None:
        """The cheap way: what it overlooks is found on further lines."""
        search = SlopeSearch(line, self._ask_on, self._values_on, self.noise)
        found = search.seen(begin)
        self.beside += search.beside
        return found

    def _values_on(self, line: Line, t: list[float]) -> tuple[Array, Array]:
        points = self.comparison.representable(line.points(t))
        return points, self.values(points)

    def _begin(self, line: Line, calibrated: TopGradients | None) -> tuple[list[float], TopGradients]:
        """The ends of a line and something between them."""
        low, high = line.within(self.offer.box)
        far = _FAR[self.offer.dtype]
        ends = [max(-far, low), min(far, high)]
        if calibrated is not None:
            return [0.0, _NEAR[self.offer.dtype], *ends], calibrated.and_then(self._ask_on(line, ends))
        return [0.0, *ends], self._ask_on(line, [0.0, *ends])

    def _line(self) -> Line:
        """A random line; in a box one between two points, which is longer than most."""
        if self.offer.box is None:
            return self.comparison.line()
        return _between(*self.comparison.fresh(2))

    def next_line(self, known: TopGradients, wrong: NDArray[np.intp]) -> Line:
        """Through a compared point whose largest output was seldom on top so far: it may see what others do not.

        In a box from a point that is ``wrong`` to one that is not: the segment crosses what is missing.
        """
        line = self.comparison.line()
        if len(self.comparison.points) < 2:
            return line
        shown = np.bincount(known.tops, minlength=self.offer.outputs)
        seldom = shown[self.comparison.answers.argmax(axis=1)] + self.rng.random(len(self.comparison.points))
        start = self.comparison.points[int(np.argmin(seldom))]
        if self.offer.box is not None:
            return _between(*self.comparison.points[self._pair(wrong)])
        return Line(start + _ASIDE * line.direction, line.direction)

    def _pair(self, wrong: NDArray[np.intp]) -> list[int]:
        """A compared point that is wrong and one that is right, as far as there are such."""
        every = np.arange(len(self.comparison.points))
        first = int(self.rng.choice(wrong if len(wrong) else every))
        right = np.setdiff1d(every, wrong)
        return [first, int(self.rng.choice(right if len(right) and len(wrong) else np.delete(every, first)))]


def _between(one: Array, other: Array) -> Line:
    """The line that is at one point for t = −1 and at the other for t = 1."""
    return Line((one + other) / 2, (other - one) / 2)
