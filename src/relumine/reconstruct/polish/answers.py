"""The answers already paid for, as polishing needs them: kept as they come, each with the error to expect of it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, Offer, Oracle, joined
from relumine.reconstruct.noise import Noise

# Values of points further out than this many √d show more about directions than the rest can be told from.
_FAR = 3.0

# The error of a sum over units, in rounding units of its size: measured on float32 networks of 20 to 1,000 units.
_SUMS = 0.5
# Where all answers are zero; its square is a number still.
_LEAST = 1e-150


class Remembering:
    """An oracle that keeps every answer that passes through, for a later fit."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._points: dict[bool, list[Array]] = {False: [], True: []}
        self._answers: dict[bool, list[Answer]] = {False: [], True: []}

    @property
    def offer(self) -> Offer:
        """The offer of the oracle inside."""
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        answer = self._oracle(inputs, gradients=gradients)
        self._points[gradients].append(inputs)
        self._answers[gradients].append(answer)
        return answer

    def forget(self) -> None:
        """Leave out the last answer with gradients."""
        self._points[True].pop()
        self._answers[True].pop()

    def answers(self) -> "Answers":
        """All of them; points where something is not finite (saturated) tell nothing and are left out.

        The gradient of one linear region, asked again, is rounded in the same way: it counts once.
        """
        answers = [*self._answers[True], *self._answers[False]]
        none = np.empty((0, self.offer.dimension))
        points = np.concatenate([none, *self._points[True], *self._points[False]])
        values = joined(self.offer, answers, gradients=False).values
        known = np.flatnonzero(np.isfinite(values).all(axis=1))
        jacobians = [jacobian for answer in self._answers[True] for jacobian in answer.jacobians]
        new = _first_of_each(jacobians, known[known < len(jacobians)])
        order = np.concatenate([new, np.setdiff1d(known, new)])
        shape = (len(new), self.offer.gradient_rows, self.offer.dimension)
        return Answers(points[order], values[order], np.array([jacobians[i] for i in new]).reshape(shape))


def _first_of_each(jacobians: list[Array], places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of these places at which a Jacobian stands for the first time."""
    seen: dict[float, Array] = {}
    first = []
    for i in places:
        size = float(np.vdot(jacobians[i], jacobians[i]))  # quicker to look up than the whole Jacobian
        if size not in seen or not np.array_equal(seen[size], jacobians[i]):
            seen[size] = jacobians[i]
            first.append(i)
    return np.array(first, dtype=np.intp)


@dataclass(frozen=True, eq=False)
class Answers:
    """``points`` n×d and their ``values`` n×K; the first m points also have ``jacobians`` m×K×d."""

    points: Array
    values: Array
    jacobians: Array

    def errors(self, noise: Noise) -> tuple[Array, Array]:
        """n and m: the expected error of one value, and of one entry of a Jacobian."""
        rounding = noise.absolute / np.sqrt(3)  # a number rounded is off by anything up to half a unit
        entries = np.sqrt([np.vdot(each, each) / each.size for each in self.jacobians])
        typical = float(np.sqrt(np.mean(entries**2))) if len(entries) else 0.0
        sizes = np.abs(self.values).max(axis=1, initial=0) + typical * np.linalg.norm(self.points, axis=1)
        floor = _SUMS * noise.relative * max(typical, float(sizes.max(initial=0)) * 1e-12) or _LEAST
        far = np.linalg.norm(self.points, axis=1) / (_FAR * np.sqrt(self.points.shape[1]))
        return rounding * np.maximum(1, far) + _SUMS * noise.relative * sizes + _LEAST, np.full(
            len(entries), rounding + floor
        )

    def distrust(self, noise: Noise) -> Array:
        """n: the expected difference between a value and a network whose weights are as exact as one gradient."""
        of_value, of_entry = self.errors(noise)
        result: Array = of_value + float(of_entry.max(initial=0)) * np.linalg.norm(self.points, axis=1)
        return result
