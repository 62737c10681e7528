"""ExplainedRun: three probabilities or more of which one is explained, from values, where gradients say how they vary.

The gradient of log p_c is a mix of the gradients of all logits, so it lies in the span of the units' rows. As many
gradients as there are units show that span, and differences of values are taken within it (differences.py).
"""

import numpy as np

from relumine.oracle.base import Array, explained_outputs
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.noise import noise_in
from relumine.reconstruct.values.differences import widened
from relumine.reconstruct.values.method import EXACT, TwoLayerFromValues, ValuesRun
from relumine.reconstruct.verification.domain import Domain

# Gradients in a row that add nothing to the span, before values are asked.
_FREE = 3
# The gradient of a p this close to 1 has lost more digits than a difference of values; so many are asked at most.
_SATURATED, _LOST = 1e-6, 20


class ExplainedRun(ValuesRun):
    """The state of one reconstruction; ``most`` gradient queries at most."""

    def __init__(self, meter: Metered, rng: np.random.Generator, *, most: int, points: int) -> None:
        super().__init__(TwoLayerFromValues(points=points), meter, Domain.of(meter.offer, None), rng)
        self._most = most

    def reconstruct(self) -> None:
        """Learn the span of the rows, then decompose."""
        with self.meter.phase("span"):
            self.span = self._spanned()
        super().reconstruct()

    def _spanned(self) -> Array:
        span, in_vain, lost = np.empty((0, self.offer.dimension)), 0, 0
        for _ in range(self._most):
            if in_vain == _FREE or lost == _LOST or len(span) == self.offer.dimension:
                break
            answer = self.meter(self.comparison.fresh(1), gradients=True)
            shown = np.concatenate([answer.values.ravel(), answer.jacobians.ravel()])
            if noise_in(shown, self.offer.dtype).floor > EXACT:
                break
            explained = answer.values[0, explained_outputs(self.offer.gradients, answer.values)[0]]
            size = float(np.linalg.norm(answer.jacobians))
            if 1 - float(explained[0]) < _SATURATED or size == 0:
                lost += 1
                continue
            wider = widened(span, answer.jacobians[0] / size)
            in_vain = in_vain + 1 if len(wider) == len(span) else 0
            span = wider
        return span
