"""Search: asks the target along lines until every kink on them is proven, and writes everything into the book."""

from dataclasses import replace
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, Oracle
from relumine.oracle.logits import LogitLink, in_logits
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.deep.book import Book
from relumine.reconstruct.deep.precision import precision_for
from relumine.reconstruct.lines.search import Line, LineSearch, Sight
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.polish.answers import Answers
from relumine.reconstruct.polish.method import polished
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.verification.comparison import Comparison
from relumine.reconstruct.verification.domain import Domain

# How far out a whole line is searched. A kink lies beyond T with probability 2/(πT).
_FAR = 1e3
# Neighbours this close lie in one cell nearly always; a smooth function still changes visibly between them.
_NEAR = {"float64": 1e-5, "float32": 1e-4}

# Pairs of neighbours that are asked first, and at most, if they are all the same.
_STARTS, _MOST_STARTS = 3, 12
# Polishing uses at most this many numbers of gradients per step.
_PRODUCTS = 4e6

# A line that shows fewer kinks per answer than this, after so many answers, is not one of a ReLU network.
_ENOUGH = 200
_KINKS = 0.05


class Search:
    """Asks for gradients along lines, and keeps the answers."""

    def __init__(self, meter: Metered, limit: int, seconds: float, domain: Domain, rng: np.random.Generator) -> None:
        self.offer = meter.offer
        self.oracle: Oracle = LogitLink(meter) if meter.offer.values == "probabilities" else meter
        self.comparison = Comparison(self.oracle, rng, domain)
        self.book = Book(self.offer.dimension, self.offer.outputs)
        self.noise = Noise(0.0)
        self.precision = precision_for(self.noise)
        self.rng = rng
        self._meter = meter
        self._limit = limit
        self._seconds, self._end = seconds, monotonic() + seconds
        self._lost = 0  # answers that were saturated
        self._asked: list[tuple[Array, Answer]] = []  # inputs and logits, where these are not exact

    def ask(self, points: Array) -> tuple[Array, Answer, int]:
        """Ask at these inputs, rounded to what the target can represent; also the row of the first in the book."""
        points, answer = self._asked_at(points)
        if not np.isfinite(answer.values).all():
            raise Saturated
        first = self.book.count
        self._write(points, answer)
        return points, answer, first

    def _asked_at(self, points: Array) -> tuple[Array, Answer]:
        if self.book.count + self._lost + len(points) > self._limit:
            raise Stop(Outcome.INCOMPLETE, f"{self._limit} gradient queries were not enough; raise `limit`")
        if monotonic() > self._end:
            raise Stop(Outcome.INCOMPLETE, f"{self._seconds:g} s were not enough; raise `seconds`")
        points = self.comparison.representable(points)
        return points, self.as_logits(self._meter(points, gradients=True))

    def _write(self, points: Array, answer: Answer) -> None:
        self.book.add(points, answer)
        if not self.precision.exact:
            self._asked.append((points, answer))

    def known(self, points: Array) -> tuple[Array, Answer]:
        """Ask at these inputs; what could not be known is not finite, and not kept."""
        asked, answer = self._asked_at(points)
        finite = np.isfinite(answer.values).all(axis=1)
        self._lost += int((~finite).sum())
        self._write(asked[finite], Answer(answer.values[finite], answer.jacobians[finite]))
        return asked, answer

    def polished(self, network: Network) -> Network:
        """The network moved to meet all answers best, where these are not exact. Asks nothing."""
        if not self._asked:
            return network
        points = np.concatenate([points for points, _ in self._asked])
        values = np.concatenate([answer.values for _, answer in self._asked])
        jacobians = np.concatenate([answer.jacobians for _, answer in self._asked])
        # All that the target sees of an input are the directions of its first layer, mostly far fewer than inputs.
        seen = [network.weights[0], *([] if network.skip is None else [network.skip])]
        basis = np.linalg.svd(np.concatenate(seen), full_matrices=False)[2]
        inner = _turned(network, basis.T)
        points, jacobians = points @ basis.T, jacobians @ basis.T
        # Some of the gradients determine all parameters many times over, and the time is in proportion to them.
        sizes = self.offer.outputs * sum(weight.size for weight in inner.weights)
        order = self.rng.permutation(len(points))
        steep = order[: int(_PRODUCTS / sizes)]
        found = polished(inner, Answers(points[order], values[order], jacobians[steep]), self.noise).network
        return replace(_turned(found, basis), inputs=network.inputs)

    def as_logits(self, answer: Answer) -> Answer:
        """What the target said, as logits where it said probabilities."""
        if self.offer.values != "probabilities":
            return answer
        return in_logits(self.offer, answer)

    def calibrate(self) -> None:
        """Find the noise, and see that the gradient is constant nearby."""
        near = _NEAR[self.offer.dtype]
        changed = starts = 0
        numbers = np.empty(0)
        # Where all units are off, answers are the same few numbers, which do not tell whether they are rounded.
        while starts < _STARTS or (len(np.unique(numbers)) <= self.offer.outputs + 1 and starts < _MOST_STARTS):
            starts += 1
            answer = self._start(near)
            numbers = np.concatenate([numbers, answer.values.ravel(), answer.jacobians.ravel()])
            self.noise = noise_in(numbers, self.offer.dtype)
            if self.noise.absolute > 0:
                raise Stop(Outcome.NOT_THIS_CLASS, "the answers are rounded: deep networks need all their digits")
            before, after = self.book.jacobians[-2:]
            change = float(np.linalg.norm(after - before))
            changed += change > self.noise.of(float(np.linalg.norm(before)), before.size)
        self.precision = precision_for(self.noise)
        # One pair may happen to lie on both sides of a boundary.
        if changed > 1:
            raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"{changed} of {starts} gradients changed within {near:g}")

    def _start(self, near: float) -> Answer:
        """Ask two neighbours, where answers can be trusted; what the target itself said."""
        for _ in range(12):
            points = self.comparison.representable(self.comparison.line().points([0.0, near]))
            answer = self._meter(points, gradients=True)
            logits = self.as_logits(answer)
            if np.isfinite(logits.values).all():
                self.book.add(points, logits)
                return answer
            self.comparison.scale /= 2
        raise Stop(Outcome.SATURATED)

    def recall(self, points: Array, answer: Answer) -> None:
        """Use what another method has asked: every answer, and the line on which most of them lie as a whole line."""
        answer = self.as_logits(answer)
        known = np.isfinite(answer.values).all(axis=1)
        if known.sum() < 2:
            return
        points, answer = points[known], Answer(answer.values[known], answer.jacobians[known])
        first = self.book.count
        self.book.add(points, answer)
        line, at = _common_line(points)
        t = (points[at] - line.start) @ line.direction / float(line.direction @ line.direction)
        at, t = at[np.unique(t, return_index=True)[1]], np.unique(t)
        seen = Answer(answer.values[at], answer.jacobians[at])
        sights = line.sights(list(t), points[at], seen, self.noise)
        self._search(line, sights, dict(zip(t.tolist(), (first + at).tolist(), strict=True)))

    def whole_line(self) -> None:
        """All kinks of a random line, as far out as answers can be trusted."""
        line = self.comparison.line()
        low, high = line.within(self.offer.box)
        far = _FAR
        for _ in range(40):
            try:
                middle = float(self.rng.uniform(-0.1, 0.1))
                self._search(line, *self._ask_on(line, [max(-far, low), middle, min(far, high)]))
            except Saturated:
                far /= 2
                continue
            return
        raise Stop(Outcome.SATURATED)

    def stretch(self, start: Array, stop: Array) -> bool:
        """All kinks between two points, given in the book's coordinates; False where answers are saturated."""
        start, stop = self.book.outward(start), self.book.outward(stop)
        line = Line(start, stop - start)
        try:
            self._search(line, *self._ask_on(line, [0.0, 1.0]), whole=False)
        except Saturated:
            return False
        return True

    def _ask_on(self, line: Line, t: list[float]) -> tuple[list[Sight], dict[float, int]]:
        points, answer, first = self.ask(line.points(t))
        return line.sights(t, points, answer, self.noise), {place: first + i for i, place in enumerate(t)}

    def _search(self, line: Line, sights: list[Sight], places: dict[float, int], whole: bool = True) -> None:
        """Ask between these sights until every kink is proven; ``places`` has the row of the book for each t.

        A whole line that shows hardly any is not one of a ReLU network; a short stretch may be below all rounding.
        """
        search = LineSearch(line, sights, self.noise, independent=self.offer.outputs > 1, certain=True)
        while t := search.questions():
            new, where = self._ask_on(line, t)
            places |= where
            search.add(new)
            if len(search.sights) > _ENOUGH and sum(gap.single for gap in search.gaps) < _KINKS * len(search.sights):
                if not whole:
                    break
                raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"{len(search.sights)} answers on a line show hardly a kink")
        self.book.add_line(search, places)


def _turned(network: Network, basis: Array) -> Network:
    """The network as a function of other coordinates of its inputs."""
    skip = None if network.skip is None else network.skip @ basis
    return replace(
        network, weights=(network.weights[0] @ basis, *network.weights[1:]), skip=skip, inputs=(basis.shape[1],)
    )


def _common_line(points: Array) -> tuple[Line, NDArray[np.intp]]:
    """The line through the outermost two points, scaled so that most lie around t of size one, and the points on it."""
    one = int(np.argmax(np.linalg.norm(points - points.mean(axis=0), axis=1)))
    other = int(np.argmax(np.linalg.norm(points - points[one], axis=1)))
    way = points[other] - points[one]
    way /= float(np.linalg.norm(way)) or 1.0
    closest = points[int(np.argmin(np.linalg.norm(points, axis=1)))]
    start = points[one] + way * float((closest - points[one]) @ way)
    off = points - start
    distance = np.linalg.norm(off - np.outer(off @ way, way), axis=1)
    at = np.flatnonzero(distance <= 1e-14 * float(np.linalg.norm(points[other] - points[one])) + 1e-12)
    return Line(start, way * np.sqrt(points.shape[1])), at


class Saturated(Exception):
    """An answer could not be known; never seen outside."""
