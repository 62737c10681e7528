"""Asking for TwoLayer: how exact the answers are, the line on which to search, and what its first answers show."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from relumine.oracle.base import Answer, Array, Offer, Oracle
from relumine.oracle.logits import LogitLink
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.search import Line, LineSearch, Sight, piece_errors
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.polish.answers import Remembering
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.two_layer.mending import LineFindings
from relumine.reconstruct.verification.comparison import Comparison
from relumine.reconstruct.verification.domain import Domain

# How far out the line is searched. A kink lies beyond T with probability 2/(πT); beyond it is found off the line.
_FAR = {"float64": 1e5, "float32": 1e3}
# Neighbours this close lie in one cell nearly always; a smooth function still changes visibly between them.
_NEAR = {"float64": 1e-5, "float32": 1e-3}
# Noise is looked for at this part of that distance, where a smooth function changes by as little; it is noise if the
# change is at least the second number of the other, and a unit is not told apart where it is more than the third.
_CLOSER, _AS_LARGE, _COARSE = 1e-3, 0.5, 0.03
# So many pairs of neighbours are asked until one lies in one linear region.
_PAIRS = 3


class _Tap:
    """Remembers the last answer as the target gave it."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.last = Answer(np.empty((0, 0)))

    @property
    def offer(self) -> Offer:
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        self.last = self._oracle(inputs, gradients=gradients)
        return self.last


class Asker:
    """Asks gradients and remembers all answers; ``limit`` of them at most.

    differences: makes gradients of values, where no others are offered
    """

    def __init__(
        self,
        meter: Metered,
        rng: np.random.Generator,
        limit: int,
        domain: Domain | None = None,
        differences: Callable[[Oracle], Oracle] | None = None,
    ) -> None:
        self._meter = meter
        self._limit = limit
        self._tap = _Tap(meter)
        self._asked = 0
        alone = differences is not None
        self.link = LogitLink(self._tap, values_only=alone) if meter.offer.values == "probabilities" else None
        source = self.link or meter
        self.oracle = Remembering(differences(source) if differences else source)
        self.comparison = Comparison(self.oracle, rng, domain)
        self.noise = Noise(0.0)
        self.blurred = False  # by noise that is not rounding

    @property
    def offer(self) -> Offer:
        """What the target offers."""
        return self._meter.offer

    @property
    def exhausted(self) -> bool:
        """Whether the limit is reached."""
        return self._asked > self._limit

    def ask_on(self, line: Line, t: list[float]) -> tuple[Answer, list[Sight]]:
        """Gradients at these places of a line, and what they show."""
        points = self.comparison.representable(line.points(t))
        answer = self.ask(points)
        return answer, line.sights(t, points, answer, self.noise)

    def ask(self, points: Array) -> Answer:
        """Gradients at these points, or the end of the run if they are too many."""
        self._asked += len(points)
        if self.exhausted:
            raise Stop(Outcome.NOT_THIS_CLASS, f"{self._limit} gradient queries were not enough; raise `limit`")
        return self.oracle(points, gradients=True)

    def seen(self) -> Observations:
        """The first answer of each pair that was asked to calibrate, which was three times at most."""
        answers = self.oracle.answers()
        count = len(answers.jacobians)
        every = Observations(answers.points[:count], answers.values[:count], answers.jacobians, self.noise)
        return every.at(slice(0, 2 * _PAIRS, 2))  # what follows lies on a line, which shows one direction only

    # -- calibration

    def calibrate(self) -> tuple[Line, float, Answer]:
        """Find the noise, see that the gradient is constant nearby, and choose a line on which answers are finite."""
        near = _NEAR[self.offer.dtype]
        changed = 0
        for _ in range(_PAIRS):
            line, answer = self._start(near)
            shown = np.concatenate([answer.values.ravel(), answer.jacobians.ravel()])
            self.noise = noise_in(shown, self.offer.dtype)
            if self.link is not None:
                self.noise = replace(self.noise, relative=self.noise.relative / self.link.kept)
            self._refuse_rounded_probabilities()
            size = float(np.linalg.norm(answer.jacobians[0]))
            change = float(np.linalg.norm(answer.jacobians[1] - answer.jacobians[0]))
            same = change <= self.noise.of(size, answer.jacobians[0].size)
            if not same and self._blurs(line, near, answer):
                return line, near, answer
            self._refuse_foreign_gradients(line, near, answer)
            if same:
                return line, near, answer
            changed += 1
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"{changed} of {changed} gradients changed within {near:g}")

    def _blurs(self, line: Line, near: float, answer: Answer) -> bool:
        """Whether gradients change by as much on a thousandth of the way: then it is noise, and its size is known."""
        closer = self.ask(self.comparison.representable(line.points([_CLOSER * near])))
        first, second = answer.jacobians[1] - answer.jacobians[0], closer.jacobians[0] - answer.jacobians[0]
        deviation = float(np.linalg.norm(second)) / np.sqrt(2 * second.size)
        # A breakpoint between the points would change them by a matrix of rank one.
        independent = np.linalg.norm(second - first) > np.linalg.norm(second) / 2
        size = float(np.linalg.norm(answer.jacobians[0])) / np.sqrt(second.size)
        as_large = np.linalg.norm(second) > _AS_LARGE * np.linalg.norm(first)
        self.blurred = bool(independent and as_large and deviation <= _COARSE * size)
        if self.blurred:
            # Noise counts as rounding of the same deviation: the error of a rounded number is uniform.
            self.noise = Noise(self.noise.relative, float(np.sqrt(3) * deviation))
        return self.blurred

    def _refuse_rounded_probabilities(self) -> None:
        if self.link is not None and noise_in(self._tap.last.jacobians, self.offer.dtype).absolute > 0:
            raise Stop(Outcome.NOT_THIS_CLASS, "rounded probabilities do not show logits; offer logits, or more digits")

    def _refuse_foreign_gradients(self, line: Line, near: float, answer: Answer) -> None:
        """Between two close points values must change as the gradients there say, or in between if there is a kink."""
        points = self.comparison.representable(line.points([0.0, near]))
        changed = answer.values[1] - answer.values[0]
        said = answer.jacobians @ (points[1] - points[0])
        allowed = 4 * float(piece_errors(answer.jacobians, points, self.noise).max()) + 16 * self.noise.of(
            float(np.abs(answer.values).max()), 1
        )
        missed = np.maximum(said.min(axis=0) - changed, changed - said.max(axis=0)).max()
        if missed > max(allowed, 0.1 * float(np.abs(said).max())):
            raise Stop(
                Outcome.NOT_THIS_CLASS, "the values do not change as the gradients say: they are of another thing"
            )

    def _start(self, near: float) -> tuple[Line, Answer]:
        for _ in range(12):
            line = self.comparison.line()
            answer = self.ask(self.comparison.representable(line.points([0.0, near])))
            if np.isfinite(answer.values).all():
                return line, answer
            self.comparison.scale /= 2
        raise Stop(Outcome.SATURATED)

    # -- the line

    def opened(self, line: Line, near: float, answer: Answer) -> LineFindings:
        """What is known once both ends of the line are answered as well."""
        low, high = self._range(line, answer)
        for _ in range(40):
            ends, seen = self.ask_on(line, [low, high])
            lost = [not np.isfinite(values).all() for values in ends.values]
            if not any(lost):
                break
            low, high = (low / 2 if lost[0] else low), (high / 2 if lost[1] else high)
        else:
            raise Stop(Outcome.SATURATED)
        points = self.comparison.representable(line.points([0.0, near]))
        sights = [*line.sights([0.0, near], points, answer, self.noise), *seen]
        search = LineSearch(line, sights, self.noise, independent=self._independent(ends, answer))
        return LineFindings(search, sights[0])

    def _range(self, line: Line, answer: Answer) -> tuple[float, float]:
        # Rounding hides where tangents meet that are seen from afar.
        far = min(_FAR[self.offer.dtype], max(100.0, 0.05 / max(self.noise.absolute, 1e-300)))
        if self.link is not None:
            slope = answer.jacobians[0] @ line.direction
            spread = float(np.ptp(slope)) if len(slope) > 1 else float(abs(slope[0]))
            far = min(far, 0.5 * self.link.limit / max(spread, 1e-300))
        low, high = line.within(self.offer.box)
        return max(-far, low), min(far, high)

    def _independent(self, ends: Answer, answer: Answer) -> bool:
        """Whether a jump of rank one means one kink: not if all jumps point to the same output direction."""
        sizes = [0.0, 0.0]
        for jump in (ends.jacobians[1] - ends.jacobians[0], ends.jacobians[1] - answer.jacobians[0]):
            found = np.linalg.svd(jump, compute_uv=False)[:2]
            sizes = [max(pair) for pair in zip(sizes, [*found, 0.0][:2], strict=True)]
        size = float(np.linalg.norm(answer.jacobians[0]))
        return sizes[1] > 16 * self.noise.of(size, answer.jacobians[0].size)
