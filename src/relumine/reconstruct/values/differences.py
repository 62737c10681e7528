"""DifferencesRun: several outputs from values alone, by the tensor of Jacobians that are differences of values.

Each Jacobian is d + 1 values and two that check it, and little more than h/K of them show all units; once those before
it span the rows of all units, h + 3 values: fewer values than the network has parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from relumine.oracle.base import Answer, Array, InFront, Oracle, joined
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.run import TensorRun
from relumine.reconstruct.two_layer.asker import Asker
from relumine.reconstruct.verification.comparison import Comparison

# A step is this part of the input's length. A Jacobian then errs by rounding/_STEP of its length, and one of h random
# units is crossed by about 2.5·h·_STEP of the Jacobians: most of those are found by their check, and asked beside. Six
# 784-128-10 took 10,725 values in the mean; at 1e-5 the span is known too badly (11,407), at 1e-4 one took 12,691.
_STEP = 3e-5
# What is not along a step, but in a span known by such steps, errs by this many times as much.
_SPANNED = 3.0
# The error of one value, a sum over units: a few rounding units.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)
# Checks are asked in a random direction, this many steps away: they show 7e-10 of a Jacobian that is missed.
_FARTHER = 3.0
# By how many such errors of the largest value the check may differ: it is a sum of d differences.
_CHECKED = 64
# What of a Jacobian lies outside the span of those before it is a new direction if it is larger than this part of it.
_NEW = 1e-6
# Jacobians less exact than this are left to the longer steps of a line: ten times what random networks have.
_COARSE = 1e-9
# How far beside, in units of the distance between two fresh points, and how often.
_BESIDE, _TIMES = 0.01, 4


class SpanDifferences(InFront):
    """Jacobians of a piecewise linear function by differences of its values, NaN where a breakpoint lies too close.

    All Jacobians lie in the span of the units' rows. So steps are taken within the span of those seen first; only if
    the value in a random direction contradicts, across it too.

    span: an orthonormal basis, m×d, of what is known of it
    """

    def __init__(
        self, oracle: Oracle, step: Callable[[Array], float], rng: np.random.Generator, span: Array | None = None
    ) -> None:
        super().__init__(oracle, replace(oracle.offer, gradients="all"))
        self._step = step
        self._rng = rng
        self._span = np.empty((0, oracle.offer.dimension)) if span is None else span

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        if not gradients:
            return self._oracle(inputs, gradients=False)
        return joined(self.offer, [self._at(point) for point in inputs], gradients=True)

    def _at(self, point: Array) -> Answer:
        check = self._rng.standard_normal(len(point))
        check *= _FARTHER * self._step(point) / np.linalg.norm(check)
        answers = self._oracle(np.array([point, point + check, point - check]), gradients=False).values
        here, ahead, behind = answers
        allowed = _CHECKED * _ROUNDING * np.abs(answers).max()
        jacobian = np.full((len(here), len(point)), np.nan)
        if np.abs(ahead + behind - 2 * here).max() <= allowed:  # no bend, and not saturated
            jacobian = self._along(self._span, point, here)
            if np.abs(here + jacobian @ check - ahead).max() > allowed:
                across = np.linalg.qr(self._span.T, mode="complete")[0][:, len(self._span) :].T
                jacobian += self._along(across, point, here)
                if np.abs(here + jacobian @ check - ahead).max() <= allowed:
                    self._span = widened(self._span, jacobian)
                else:
                    jacobian[:] = np.nan
        return Answer(here[None], jacobian[None])

    def _along(self, directions: Array, point: Array, here: Array) -> Array:
        """K×d: the part of the Jacobian along these orthonormal directions."""
        step = self._step(point)
        if not len(directions):
            return np.zeros((len(here), len(point)))
        values = self._oracle(point + step * directions, gradients=False).values
        result: Array = (values - here).T @ directions / step
        return result


def widened(span: Array, rows: Array) -> Array:
    """An orthonormal basis of this span and these rows, n×d."""
    _, sizes, beyond = np.linalg.svd(rows - rows @ span.T @ span, full_matrices=False)
    new = beyond[sizes > _NEW * np.linalg.norm(rows)]
    basis: Array = np.linalg.qr(np.vstack([span, new]).T)[0].T
    return basis


@dataclass(frozen=True)
class _TensorSettings:
    most: int
    points: int


class DifferencesRun(TensorRun):
    """The state of one reconstruction.

    limit: of value queries
    near:  where to look
    span:  of the units' rows, if any of it is known
    """

    def __init__(
        self,
        points: int,
        limit: int,
        meter: Metered,
        near: Comparison,
        rng: np.random.Generator,
        span: Array | None = None,
    ) -> None:
        limit //= meter.offer.dimension + 2
        asker = Asker(meter, rng, limit, near.domain, lambda oracle: SpanDifferences(oracle, self._step, rng, span))
        super().__init__(_TensorSettings(limit, points), meter, rng, asker)
        self.comparison.scale = near.scale

    def _step(self, point: Array) -> float:
        box, root = self.offer.box, sqrt(len(point))
        if box is not None:
            return _STEP * (box[1] - box[0]) / 4 * root
        return _STEP * max(float(np.linalg.norm(point)), self.comparison.scale * root)

    def _attempt(self) -> None:
        self._find()
        self._agree()  # which polishes and compares; what was compared before would be asked again
        self._compare_saturated()
        self._meet()

    def _first(self) -> Observations:
        points, answer = self._ask(self._fresh(1))
        size = float(np.linalg.norm(answer.jacobians)) or 1.0
        error = _ROUNDING * float(np.abs(answer.values).max()) * answer.jacobians.size**0.5 / self._step(points[0])
        self.asker.noise = Noise(max(_SPANNED * _ROUNDING / _STEP, error / size))
        if self.noise.relative > _COARSE:
            raise Stop(Outcome.NOT_THIS_CLASS, "values dwarf their slopes: differences lose too many digits")
        return Observations(points, answer.values, answer.jacobians, self.noise)

    def _ask(self, points: Array) -> tuple[Array, Answer]:
        asked = [self._in_one_region(self._inside(point)) for point in points]
        self.meter.found(self._units)
        answer = joined(self.asker.oracle.offer, [each for _, each in asked], gradients=True)
        return np.array([point for point, _ in asked]), answer

    def _explain(self, point: Array) -> bool:
        return super()._explain(self._near(point, _BESIDE))  # the value at the point itself is known

    def _in_one_region(self, point: Array) -> tuple[Array, Answer]:
        """A point here, or beside it, around which values are linear as far as a step goes."""
        for _ in range(_TIMES):
            answer = self.asker.ask(point[None])
            if np.isfinite(answer.jacobians).all() or not np.isfinite(answer.values).all():
                return point, answer
            self.asker.oracle.forget()
            point = self._inside(self._near(point, _BESIDE))
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"{_TIMES} of {_TIMES} gradients by differences contradict a value")

    def _inside(self, point: Array) -> Array:
        """The point, so far from the walls of a box that steps stay inside."""
        low, high = self.offer.box or (-np.inf, np.inf)
        room = _FARTHER * self._step(point)
        return self.comparison.representable(np.clip(point, low + room, high - room))
