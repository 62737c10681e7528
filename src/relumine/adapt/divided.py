"""DividedByInput: gradients from explanations that are the input times the gradient."""

import numpy as np

from relumine.adapt.base import Adapter, as_seen
from relumine.oracle.base import Answer, Array

# What stands in for an input coordinate that is 0, as a share of the input's size (at least 1).
_NUDGE = 2.0**-20


class DividedByInput(Adapter):
    """Divides each explanation by the input.

    For x ⊙ ∇f(x) the quotient is the gradient, and each coordinate keeps its relative precision. So it is for
    integrated gradients, DeepLift and the like where f is linear between 0 and x up to a positive factor, as in a
    network of one hidden layer without biases. Coordinates that are 0 are asked a little beside it, and these rows'
    values asked for separately.
    """

    def _with_gradients(self, rows: Array) -> Answer:
        asked = self._without_zeros(rows)
        answer = self._oracle(asked, gradients=True)
        values = answer.values.copy()
        moved = (asked != rows).any(axis=1)
        if moved.any():
            values[moved] = self._oracle(rows[moved], gradients=False).values
        return Answer(values, answer.jacobians / as_seen(self.offer, asked)[:, None, :])

    def _without_zeros(self, rows: Array) -> Array:
        nudge = _NUDGE * np.maximum(1, np.abs(rows).max(axis=1, keepdims=True, initial=0))
        highest = np.inf if self.offer.box is None else self.offer.box[1]
        return np.where(np.abs(rows) > nudge * _NUDGE, rows, np.where(rows + nudge > highest, -nudge, nudge))
