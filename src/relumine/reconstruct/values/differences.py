"""DifferencesRun: several outputs from values alone, by the tensor of Jacobians that are differences of values.

Each Jacobian is d + 1 values and one that checks it, and about 1.5·h/K of them show all units: fewer values than the
network has parameters.
"""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Answer, Array, joined
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.run import TensorRun
from relumine.reconstruct.two_layer.asker import Asker
from relumine.reconstruct.verification.comparison import Comparison

# A step along an axis is this part of the input's length. A Jacobian then errs by rounding/_STEP of its length, and one
# of h random units is crossed by about 2.5·h·_STEP of the Jacobians: those are found by their check, and asked beside.
# The worst error of five 784-128-10 was 2.5e-8 at 1e-6, 2.5e-9 at 1e-5 and 2.7e-10 at 1e-4, which asked 1 % more.
_STEP = 1e-5
# The error of one value, a sum over units: a few rounding units.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)
# The check is asked in a random direction, this part of a step away.
_PART = 0.5
# By how many such errors of the largest value the check may differ: it is a sum of d differences.
_CHECKED = 64
# Jacobians less exact than this are left to the longer steps of a line: ten times what random networks have.
_COARSE = 1e-9
# How far beside, in units of the distance between two fresh points, and how often.
_BESIDE, _TIMES = 0.01, 4


@dataclass(frozen=True)
class _TensorSettings:
    most: int
    points: int


class DifferencesRun(TensorRun):
    """The state of one reconstruction.

    limit: of value queries
    near:  where to look
    """

    def __init__(self, points: int, limit: int, meter: Metered, near: Comparison, rng: np.random.Generator) -> None:
        limit //= meter.offer.dimension + 2
        asker = Asker(meter, rng, limit, near.domain, self._step)
        super().__init__(_TensorSettings(limit, points), meter, rng, asker)
        self.comparison.scale = near.scale

    def _step(self, point: Array) -> float:
        box = self.offer.box
        return _STEP * (float(np.linalg.norm(point)) if box is None else (box[1] - box[0]) / 4 * len(point) ** 0.5)

    def _attempt(self) -> None:
        self._find()
        self._agree()  # which polishes and compares; what was compared before would be asked again
        self._compare_saturated()

    def _first(self) -> Observations:
        points, answer = self._ask(self._fresh(1))
        size = float(np.linalg.norm(answer.jacobians)) or 1.0
        error = _ROUNDING * float(np.abs(answer.values).max()) * answer.jacobians.size**0.5 / self._step(points[0])
        self.asker.noise = Noise(max(_ROUNDING / _STEP, error / size))
        if self.noise.relative > _COARSE:
            raise Stop(Outcome.NOT_THIS_CLASS, "values dwarf their slopes: differences lose too many digits")
        return Observations(points, answer.values, answer.jacobians, self.noise)

    def _ask(self, points: Array) -> tuple[Array, Answer]:
        asked = [self._in_one_region(point) for point in self.comparison.representable(points)]
        self.meter.found(self._units)
        answer = joined(self.asker.oracle.offer, [each for _, each in asked], gradients=True)
        return np.array([point for point, _ in asked]), answer

    def _explain(self, point: Array) -> bool:
        return super()._explain(self._near(point, _BESIDE))  # the value at the point itself is known

    def _in_one_region(self, point: Array) -> tuple[Array, Answer]:
        """A point here, or beside it, around which values are linear as far as a step goes."""
        for _ in range(_TIMES):
            answer = self.asker.ask(point[None])
            if self._linear_around(point, answer):
                return point, answer
            self.asker.oracle.forget()
            point = self.comparison.representable(self._near(point, _BESIDE))
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"{_TIMES} of {_TIMES} gradients by differences contradict a value")

    def _linear_around(self, point: Array, answer: Answer) -> bool:
        """Whether the value a step away in a random direction is as the Jacobian says."""
        direction = self.rng.standard_normal(len(point))
        if self.offer.box is not None:  # inwards
            direction = np.copysign(direction, np.mean(self.offer.box) - point)
        there = self.comparison.representable(point + _PART * self._step(point) / np.linalg.norm(direction) * direction)
        values = self.asker.oracle(there[None], gradients=False).values
        if not np.isfinite(answer.values).all():
            return True
        missed = np.abs(answer.values[0] + answer.jacobians[0] @ (there - point) - values[0]).max()
        return bool(missed <= _CHECKED * _ROUNDING * np.abs(values).max())
