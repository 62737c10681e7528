"""ScaledInputs: smoothed gradients asked so far out that the smoothing does not matter."""

from dataclasses import replace

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, InFront, Oracle, checked_inputs


class ScaledInputs(InFront):
    """The target seen from afar: f(factor · u) as a function of u, with its gradients.

    SmoothGrad averages gradients at x + noise, and the noise does not grow with x. At ``factor`` times the distance all
    those points lie in one linear region, except next to its boundary, so the average is the gradient. A clone of this
    oracle is the target's with its first layer multiplied by ``factor``.

    power: 2 where explanations are squares of gradients
    """

    def __init__(self, oracle: Oracle, factor: float, *, power: int = 1) -> None:
        if not (np.isfinite(factor) and factor > 1):
            raise MisuseError(f"factor: expected a number above 1, got {factor}")
        if oracle.offer.box is not None:
            raise MisuseError(f"ScaledInputs: inputs must lie in {oracle.offer.box}, so there is no way out")
        super().__init__(oracle, replace(oracle.offer, random=False))
        self.factor = float(factor)
        self._power = power

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        answer = self._oracle(self.factor * rows, gradients=gradients)
        return Answer(answer.values, self.factor**self._power * answer.jacobians if gradients else None)
