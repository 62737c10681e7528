"""ValueAsker: asks for values with few digits, keeps every answer, and says by how much each may err."""

import numpy as np

from relumine.oracle.base import Array
from relumine.oracle.logits import LogitLink
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.values.fit import KnownUnits, answered
from relumine.reconstruct.verification.domain import Domain

# By how much a computed value errs at most, and typically, in rounding units of the terms that it is the sum of.
_AT_MOST, _TYPICALLY = 4.0, 0.5
# A probability shows its logarithm if it is larger than its error by this factor.
_SHOWS = 4.0


class ValueAsker:
    """Answers as they are, or as logits; ``paid`` has all of them, ``steep`` is how large a gradient's entries are."""

    def __init__(self, meter: Metered, noise: Noise, limit: int, domain: Domain) -> None:
        self.noise = noise
        self.paid: list[tuple[Array, Array]] = []
        self.steep = 0.0
        self.probabilities = meter.offer.values == "probabilities"
        self._meter = meter
        self._limit = limit
        self._domain = domain
        self._link = LogitLink(meter) if self.probabilities else None
        self._asked = 0

    def __call__(self, points: Array) -> Array:
        """n×K: the answers."""
        self._asked += len(points)
        if self._asked > self._limit:
            raise Stop(Outcome.NOT_THIS_CLASS, f"{self._limit} value queries were not enough; raise `limit`")
        points = self._domain.representable(points)  # so that it answers at these very points
        values = self._meter(points, gradients=False).values
        self.paid.append((points, values))
        return values

    def everything(self, farthest: float) -> KnownUnits:
        """All that was paid for, at points no farther out than this."""
        points, values = (np.concatenate(parts) for parts in zip(*self.paid, strict=True))
        near = np.linalg.norm(points, axis=1) <= farthest
        return self.known(points[near], values[near])

    def known(self, points: Array, values: Array) -> KnownUnits:
        """These answers beside the errors to expect of them."""
        errors = self.noise.absolute / np.sqrt(3) + _TYPICALLY * self.noise.relative * self._sizes(points, values)
        return KnownUnits(points, values, errors + 1e-300, self.probabilities)

    def bounds(self, points: Array, answers: Array) -> Array:
        """n×K: by how much the answers at these points err at most."""
        return self.noise.absolute + _AT_MOST * self.noise.relative * self._sizes(points, answers)

    def _sizes(self, points: Array, answers: Array) -> Array:
        """n×K: how large the terms are that the answers are the sums of."""
        far = self.steep * np.linalg.norm(points, axis=1)[:, None]
        if self.probabilities:
            result: Array = answers * (1 + far)
            return result
        return np.repeat(np.abs(answers).max(axis=1, keepdims=True, initial=0) + far, answers.shape[1], axis=1)

    def logits(self, points: Array) -> Array:
        """n×K: answers as logits, NaN where rounding hides them."""
        return self.as_logits(points, self(points))

    def as_logits(self, points: Array, values: Array) -> Array:
        """The logits of these answers."""
        if self._link is None:
            return values
        room = np.minimum(values, 1 - values) if values.shape[1] == 1 else values
        shown = (room > _SHOWS * self.bounds(points, values)).all(axis=1, keepdims=True)
        return self._link.logits(np.where(shown, values, 0.0))

    def logit_bounds(self, points: Array, logits: Array) -> Array:
        """n×K: by how much these logits err at most."""
        if not self.probabilities:
            return self.bounds(points, logits)
        p = answered(logits, probabilities=True)
        errors = self.bounds(points, p) / (p * (1 - p) if p.shape[1] == 1 else p)
        result: Array = errors if p.shape[1] == 1 else errors + errors.mean(axis=1, keepdims=True)
        return result
