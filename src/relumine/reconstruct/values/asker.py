"""ValueAsker: asks for values with few digits, keeps every answer, and says by how much each may err."""

import numpy as np

from relumine.oracle.base import Array
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.values.fit import KnownValues, Link
from relumine.reconstruct.verification.domain import Domain

# By how much a computed value errs at most, and typically, in rounding units of the terms that it is the sum of.
_AT_MOST, _TYPICALLY = 4.0, 0.5


class ValueAsker:
    """Answers as they are, ``count`` of them known; ``steep`` is how large a gradient's entries are."""

    def __init__(self, meter: Metered, noise: Noise, limit: int, domain: Domain) -> None:
        self.noise = noise
        self.steep = 0.0
        self.link = Link.SOFTMAX if meter.offer.values == "probabilities" else Link.NONE
        self._meter = meter
        self._limit = limit
        self._domain = domain
        self._points = np.empty((0, meter.offer.dimension))
        self._values = np.empty((0, meter.offer.outputs))

    @property
    def count(self) -> int:
        """How many answers are known."""
        return len(self._points)

    def __call__(self, points: Array) -> None:
        """Ask at these points, or beside them where the target's numbers are."""
        if self.count + len(points) > self._limit:
            raise Stop(Outcome.NOT_THIS_CLASS, f"{self._limit} value queries were not enough; raise `limit`")
        points = self._domain.representable(points)  # so that it answers at these very points
        self.keep(points, self._meter(points, gradients=False).values)

    def keep(self, points: Array, values: Array) -> None:
        """Take note of answers."""
        self._points = np.concatenate([self._points, points])
        self._values = np.concatenate([self._values, values])

    def learn(self, model: Shallow) -> None:
        """How steep the target is, from a model of it."""
        slopes = np.linalg.norm(model.jacobians(self._points), axis=2)
        self.steep = float(slopes.max(initial=0)) / np.sqrt(self._points.shape[1])

    def known(self) -> KnownValues:
        """All answers beside the errors to expect of them."""
        sizes = self._sizes(self._points, self._values)
        errors = self.noise.absolute / np.sqrt(3) + _TYPICALLY * self.noise.relative * sizes
        return KnownValues(self._points, self._values, errors + 1e-300, self.link)

    def bounds(self, points: Array, answers: Array) -> Array:
        """n×K: by how much the answers at these points err at most."""
        return self.noise.absolute + _AT_MOST * self.noise.relative * self._sizes(points, answers)

    def _sizes(self, points: Array, answers: Array) -> Array:
        """n×K: how large the terms are that the answers are the sums of."""
        far = self.steep * np.linalg.norm(points, axis=1)[:, None]
        if self.link is Link.SOFTMAX:
            result: Array = answers * (1 + far)
            return result
        return np.repeat(np.abs(answers).max(axis=1, keepdims=True, initial=0) + far, answers.shape[1], axis=1)
