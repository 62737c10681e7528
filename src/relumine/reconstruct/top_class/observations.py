"""TopGradients: what answers show that come with one gradient instead of K.

The gradient of the output c that is explained (the largest one, say) is a mix of the K gradients of the logits: that of
z_c alone where logits are answered; ∇log p_c = ∇z_c − Σ p_k ∇z_k where probabilities are. Either way it jumps by a
multiple of a unit's row where that unit is switched on, and the values say with which weights it mixes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, Offer, explained_outputs
from relumine.oracle.logits import LogitLink
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.noise import Noise


@dataclass(frozen=True, eq=False)
class TopGradients:
    """n answers with one gradient each.

    ``points`` n×d, ``values`` n×K (logits), ``tops`` n (which output is explained), ``mixes`` n×K, and ``gradients``
    n×d = Σ_k mixes_k ∇z_k.
    """

    points: Array
    values: Array
    tops: NDArray[np.intp]
    mixes: Array
    gradients: Array

    def __len__(self) -> int:
        return len(self.points)

    @property
    def explained(self) -> Array:
        """n: the value of the explained output."""
        return np.take_along_axis(self.values, self.tops[:, None], axis=1)[:, 0]

    def of_one(self, first: int, second: int, noise: Noise) -> bool:
        """Whether two samples close to each other show the same output; of outputs that tie any may be shown."""
        tops = self.tops[[first, second]]
        one, other = np.abs(np.diff(self.values[[first, second]][:, tops], axis=1))[:, 0]
        size = float(np.abs(self.values[[first, second]]).max())
        return bool(tops[0] == tops[1] or min(one, other) <= noise.of(size) / 4)

    def at(self, rows: list[int]) -> "TopGradients":
        """These of them."""
        return TopGradients(
            self.points[rows], self.values[rows], self.tops[rows], self.mixes[rows], self.gradients[rows]
        )

    def and_then(self, others: "TopGradients") -> "TopGradients":
        """These and, after them, those."""
        return TopGradients(
            np.concatenate([self.points, others.points]),
            np.concatenate([self.values, others.values]),
            np.concatenate([self.tops, others.tops]),
            np.concatenate([self.mixes, others.mixes]),
            np.concatenate([self.gradients, others.gradients]),
        )


class OneGradient:
    """An oracle of values in front of one that explains one output; ``explained`` asks for the gradients as well.

    Probabilities are turned into logits, centred over the classes; saturated ones are NaN (see LogitLink).
    """

    def __init__(self, meter: Metered) -> None:
        self._meter = meter
        self._offer = replace(meter.offer, gradients="none")
        self.link: LogitLink | None = None
        if meter.offer.values == "probabilities":
            self.link = LogitLink(meter, values_only=True)
            self._offer = self.link.offer
        self.alike = np.arange(meter.offer.outputs)

    @property
    def offer(self) -> Offer:
        """Values, and no gradients of all outputs."""
        return self._offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        return (self.link or self._meter)(inputs, gradients=gradients and self._offer.gradients != "none")

    def learn_alike(self, values: Array) -> None:
        """Outputs that are equal at all these points are one output: which of them is on top tells nothing."""
        same = np.abs(values[:, :, None] - values[:, None, :]).max(axis=0, initial=0) <= 1e-12 * np.abs(values).max()
        self.alike = same.argmax(axis=1)

    def explained(self, points: Array) -> TopGradients:
        """Ask at these points with gradients."""
        answer = self._meter(points, gradients=True)
        tops = explained_outputs(self._meter.offer.gradients, answer.values)[:, 0]
        mixes, gradients = np.eye(self.offer.outputs)[tops], answer.jacobians[:, 0]
        values = answer.values
        if self.link is not None:
            explained = np.take_along_axis(values, tops[:, None], axis=1)
            mixes, gradients = mixes - values, gradients / np.maximum(explained, np.finfo(np.float64).tiny)
            values = self.link.logits(values)
        return TopGradients(points, values, self.alike[tops], mixes, gradients)
