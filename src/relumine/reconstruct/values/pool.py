"""The units that several lines showed, each as it was seen best.

One line may hide units: two kinks too close to tell, or one beyond its ends, where a box or a softmax ends it. Units
that another line shows are told from those already known by their rows, biases and outputs. What a line took for one
unit and was two is a unit that does not help: least squares over values gives it another weight than the line did.
"""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.lines.shallow import Shallow

# Two units are the same if rows, biases and outputs differ by less than this, or by _TIMES their errors.
_SAME, _TIMES = 0.1, 3.0
# Units known worse than this are of no use.
_WORST = 0.3
# A unit whose weight by least squares differs from what a line showed by more than this part of it is none.
_STRANGE = 0.6


@dataclass(frozen=True, eq=False)
class CandidateUnit:
    """w·relu(a·x + b): ``row`` a has length one, and errs by ``error``."""

    output: Array
    row: Array
    bias: float
    error: float


class CandidatePool:
    """Units; ``size`` is the typical length of the points that matter."""

    def __init__(self, size: float) -> None:
        self._size = size
        self._units: list[CandidateUnit] = []

    def __len__(self) -> int:
        return len(self._units)

    def add(self, model: Shallow, errors: Array) -> None:
        """Take note of all units of a model, whose rows err by this."""
        for output, row, bias, error in zip(model.outputs, model.rows, model.biases, errors, strict=True):
            if error < _WORST:
                self._add(CandidateUnit(output, row, float(bias), float(error)))

    def _add(self, unit: CandidateUnit) -> None:
        for i, known in enumerate(self._units):
            if self._same(known, unit):
                self._units[i] = min(known, unit, key=lambda one: one.error)
                return
        self._units.append(unit)

    def _same(self, one: CandidateUnit, other: CandidateUnit) -> bool:
        allowed = max(_SAME, _TIMES * (one.error + other.error))
        sign = float(np.copysign(1.0, one.row @ other.row))
        largest = max(float(np.linalg.norm(one.output)), float(np.linalg.norm(other.output)))
        return bool(
            np.linalg.norm(one.row - sign * other.row) <= allowed
            and abs(one.bias - sign * other.bias) <= allowed * self._size
            and np.linalg.norm(one.output - other.output) <= 2 * allowed * largest
        )

    def model(self, points: Array, logits: Array, errors: Array) -> Shallow | None:
        """The function of these units that meets the logits best, or None if there are too few of them."""
        units = list(self._units)
        while units and len(points) > len(units) + points.shape[1] + 1:
            found = _weighed(units, points, logits, errors)
            shown = np.array([unit.output for unit in units])
            strange = np.linalg.norm(found.outputs - shown, axis=1) / np.linalg.norm(shown, axis=1)
            worst = int(np.argmax(strange))
            if strange[worst] <= _STRANGE:
                return found
            del units[worst]
        return None


def _weighed(units: list[CandidateUnit], points: Array, logits: Array, errors: Array) -> Shallow:
    """Outputs, linear term and offset by least squares, each logit weighed by its error."""
    rows, biases = np.array([unit.row for unit in units]), np.array([unit.bias for unit in units])
    hidden = np.maximum(points @ rows.T + biases, 0)
    features = np.hstack([hidden, points, np.ones((len(points), 1))])
    weights = [
        np.linalg.lstsq(features / error[:, None], logit / error, rcond=1e-10)[0]
        for logit, error in zip(logits.T, errors.T, strict=True)
    ]
    found = np.array(weights)
    count = len(units)
    return Shallow(found[:, count:-1], found[:, -1], found[:, :count].T.copy(), rows, biases)
