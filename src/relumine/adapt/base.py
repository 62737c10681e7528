"""Adapter: an oracle in front of an oracle, which makes gradients of its explanations."""

from abc import ABC, abstractmethod

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, InFront, Offer, Oracle, checked_inputs


class Adapter(InFront, ABC):
    """Lets values pass, and makes gradients where gradients are asked for."""

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        return self._with_gradients(rows) if gradients else self._oracle(rows, gradients=False)

    @abstractmethod
    def _with_gradients(self, rows: Array) -> Answer:
        """Values, and gradients made of explanations."""


class AdapterByValues(Adapter):
    """Makes the gradients of each input by asking further values around it."""

    def __init__(self, oracle: Oracle) -> None:
        if oracle.offer.values not in ("real", "logits", "probabilities"):
            raise MisuseError(f"{type(self).__name__}: expected values that are numbers, got {oracle.offer.values!r}")
        super().__init__(oracle)

    def _with_gradients(self, rows: Array) -> Answer:
        answer = self._oracle(rows, gradients=True)
        maps = self._plain(answer.jacobians)
        made = [self._gradients(*row) for row in zip(rows, answer.values, maps, strict=True)]
        return Answer(answer.values, np.stack(made) if made else maps)

    @abstractmethod
    def _plain(self, maps: Array) -> Array:
        """Maps without what depends on the explainer."""

    @abstractmethod
    def _gradients(self, row: Array, values: Array, maps: Array) -> Array:
        """The gradients at one input, of its plain maps."""


def inside(offer: Offer, points: Array) -> Array:
    """Points that may be asked: those outside the box are moved to its edge."""
    return points if offer.box is None else points.clip(*offer.box)


def as_seen(offer: Offer, points: Array) -> Array:
    """Points as the target sees them, in its precision."""
    return points.astype(offer.dtype).astype(np.float64)
