"""Search: asks the target along lines until every kink on them is proven, and writes everything into the book."""

import numpy as np

from relumine.oracle.base import Answer, Array, Oracle
from relumine.oracle.link import LogitLink
from relumine.oracle.metered import Metered
from relumine.reconstruct.comparison import Comparison
from relumine.reconstruct.deep_book import Book
from relumine.reconstruct.line import Line, LineSearch
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.result import Outcome, Stop

# How far out a whole line is searched. A kink lies beyond T with probability 2/(πT).
_FAR = 1e3
# Neighbours this close lie in one cell nearly always; a smooth function still changes visibly between them.
_NEAR = {"float64": 1e-5, "float32": 1e-3}


class Search:
    """Who asks for gradients."""

    def __init__(self, meter: Metered, limit: int, rng: np.random.Generator) -> None:
        self.offer = meter.offer
        self.link = LogitLink(meter) if meter.offer.values == "probabilities" else None
        self.oracle: Oracle = self.link or meter
        self.comparison = Comparison(self.oracle, rng)
        self.book = Book(self.offer.dimension, self.offer.outputs)
        self.noise = Noise(0.0)
        self.rng = rng
        self._limit = limit

    def ask(self, points: Array) -> tuple[Array, Answer, int]:
        """Ask at these inputs, rounded to what the target can represent; also the row of the first in the book."""
        if self.book.count + len(points) > self._limit:
            raise Stop(Outcome.INCOMPLETE, f"{self._limit} gradient queries were not enough; raise `limit`")
        points = self.comparison.representable(points)
        answer = self.oracle(points, gradients=True)
        if not np.isfinite(answer.values).all():
            raise Saturated
        first = self.book.count
        self.book.add(points, answer)
        return points, answer, first

    def calibrate(self) -> None:
        """Find the noise, and see that the gradient is constant nearby."""
        near = _NEAR[self.offer.dtype]
        for _ in range(3):
            line = self._start(near)
            values, jacobians = self.book.values, self.book.jacobians[-2:]
            self.noise = noise_in(np.concatenate([values.ravel(), jacobians.ravel()]), self.offer.dtype)
            change = float(np.linalg.norm(jacobians[1] - jacobians[0]))
            if change <= self.noise.of(float(np.linalg.norm(jacobians[0])), jacobians[0].size):
                return
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"3 of 3 gradients changed within {near:g} of {line.start.shape}")

    def _start(self, near: float) -> Line:
        for _ in range(12):
            line = self.comparison.line()
            try:
                self.ask(line.points([0.0, near]))
            except Saturated:
                self.comparison.scale /= 2
                continue
            return line
        raise Stop(Outcome.SATURATED)

    def whole_line(self) -> None:
        """All kinks of a random line, as far out as answers can be trusted."""
        line = self.comparison.line()
        low, high = line.within(self.offer.box)
        far = _FAR
        for _ in range(40):
            try:
                self._search(line, [max(-far, low), 0.0, min(far, high)])
            except Saturated:
                far /= 2
                continue
            return
        raise Stop(Outcome.SATURATED)

    def stretch(self, start: Array, stop: Array) -> bool:
        """All kinks between two points, given in the book's coordinates; False where answers are saturated."""
        start, stop = self.book.outward(start), self.book.outward(stop)
        try:
            self._search(Line(start, stop - start), [0.0, 1.0])
        except Saturated:
            return False
        return True

    def _search(self, line: Line, t: list[float]) -> None:
        places: dict[float, int] = {}
        search: LineSearch | None = None
        while t:
            points, answer, first = self.ask(line.points(t))
            places |= {place: first + i for i, place in enumerate(t)}
            sights = line.sights(t, points, answer, self.noise)
            if search is None:
                independent = self.offer.outputs > 1
                search = LineSearch(line, sights, self.noise, independent=independent, certain=True)
            else:
                search.add(sights)
            t = search.questions()
        assert search is not None
        self.book.add_line(search, places)


class Saturated(Exception):
    """An answer could not be known; never seen outside."""
