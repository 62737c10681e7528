"""FiniteDifferences: gradients from value queries (the paper's appendix C)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, InFront, Oracle, checked_inputs, in_parts

Step = Callable[[Array], float]


class FiniteDifferences(InFront):
    """An oracle with gradients in front of one that need have none.

    Each gradient is d + 1 value queries: f at x, and at x moved by ``step`` along each axis. Where f is linear
    between these points (no kink within ``step``) the difference is the gradient, up to rounding: the values' error
    divided by ``step``. So the longest step that stays within the linear region is the best.

    step: a positive number, such as ``paper_step(...)``, or a function of the input

    To have value queries counted, put the meter inside: ``FiniteDifferences(Metered(oracle), step)``.
    Axes along which a step would leave the offer's box are walked backwards.
    """

    def __init__(self, oracle: Oracle, step: float | Step) -> None:
        if oracle.offer.values not in ("real", "logits", "probabilities"):
            raise MisuseError(f"FiniteDifferences: expected values that are numbers, got {oracle.offer.values!r}")
        super().__init__(oracle, replace(oracle.offer, gradients="all"))
        self._step = (lambda _: step) if isinstance(step, int | float) else step
        if isinstance(step, int | float):
            _require_positive(step)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs)
        if not gradients:
            return self._oracle(rows, gradients=False)
        d = rows.shape[1]
        return in_parts(self.offer, rows, d * (d + 1), self._differences)

    def _differences(self, rows: Array) -> Answer:
        n, d = rows.shape
        points = np.stack([self._points(row) for row in rows])
        answers = self._oracle(points.reshape(-1, d), gradients=False).values.reshape(n, d + 1, -1)
        moved = self._distances(points)
        jacobians = (answers[:, 1:] - answers[:, :1]) / moved[:, :, None]
        return Answer(answers[:, 0], jacobians.transpose(0, 2, 1))

    def _points(self, row: Array) -> Array:
        """(d+1)×d: the input, and the input moved along each axis."""
        step = self._step(row)
        _require_positive(step)
        highest = np.inf if self.offer.box is None else self.offer.box[1]
        steps = np.where(row + step > highest, -step, step)
        return np.vstack([row, row + np.diag(steps)])

    def _distances(self, points: Array) -> Array:
        """n×d: how far each axis was moved, in numbers as the target sees them (a step is rounded when added)."""
        seen = points.astype(self.offer.dtype).astype(np.float64)
        moved: Array = np.diagonal(seen[:, 1:] - seen[:, :1], axis1=1, axis2=2)
        if not moved.all():
            raise MisuseError(f"step: so small that {self.offer.dtype} inputs do not move; choose a longer one")
        return moved


def paper_step(delta: float, epsilon: float, l: float, h: int) -> float:
    """The step s = δε / (2(2−δ)lh) of the paper's theorem 3.

    Printed is …lε in the theorem and …lh in its proof; the proof is right. With it, all points that Algorithm 1a may
    ask on its line (u + iεv with |i| ≤ l/ε) have their steps within their linear regions with probability 1 − δ/(2−δ).
    """
    if not 0 < delta < 1 or min(epsilon, l, h) <= 0:
        raise MisuseError(
            f"paper_step: expected 0 < delta < 1 and positive epsilon, l, h; got {delta}, {epsilon}, {l}, {h}"
        )
    return delta * epsilon / (2 * (2 - delta) * l * h)


def _require_positive(step: float) -> None:
    if not (np.isfinite(step) and step > 0):
        raise MisuseError(f"step: expected a positive number, got {step}")


class CentralDifferences(InFront):
    """Gradients of a smooth target from value queries, 2d + 1 for each: f at x, and on both sides along each axis.

    Between rounding/step and step² the error is least at a step of ∛rounding, where both leave ∛rounding² of it.
    """

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle, replace(oracle.offer, gradients="all"))
        self._step = float(np.cbrt(np.finfo(oracle.offer.dtype).eps))

    @property
    def error(self) -> float:
        """What of a gradient is wrong, relative to its size."""
        return self._step**2

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        if not gradients:
            return self._oracle(inputs, gradients=False)
        answers = [self._differences(row) for row in inputs]
        return Answer(np.array([value for value, _ in answers]), np.array([jacobian for _, jacobian in answers]))

    def _differences(self, row: Array) -> tuple[Array, Array]:
        steps = self._step * max(1.0, float(np.sqrt(np.mean(row**2)))) * np.eye(len(row))
        points = np.vstack([row, row + steps, row - steps]).astype(self.offer.dtype).astype(np.float64)
        values = self._oracle(points, gradients=False).values
        right, left = slice(1, 1 + len(row)), slice(1 + len(row), None)
        moved = np.diagonal(points[right] - points[left])
        return values[0], ((values[right] - values[left]) / moved[:, None]).T
