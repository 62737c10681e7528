"""TopGradients: what answers show that come with one gradient instead of K."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, InFront, explained_outputs
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.noise import Noise


@dataclass(frozen=True, eq=False)
class TopGradients:
    """n answers: ``points`` n×d, ``values`` n×K, ``tops`` n (which output is explained), and its ``gradients`` n×d."""

    points: Array
    values: Array
    tops: NDArray[np.intp]
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
        return TopGradients(self.points[rows], self.values[rows], self.tops[rows], self.gradients[rows])

    def and_then(self, others: "TopGradients") -> "TopGradients":
        """These and, after them, those."""
        return TopGradients(
            np.concatenate([self.points, others.points]),
            np.concatenate([self.values, others.values]),
            np.concatenate([self.tops, others.tops]),
            np.concatenate([self.gradients, others.gradients]),
        )


class OneGradient(InFront):
    """An oracle of values in front of one that explains one output; ``explained`` asks for the gradients as well."""

    def __init__(self, meter: Metered) -> None:
        super().__init__(meter, replace(meter.offer, gradients="none"))
        self._meter = meter
        self.alike = np.arange(meter.offer.outputs)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        return self._meter(inputs, gradients=False)

    def learn_alike(self, values: Array) -> None:
        """Outputs that are equal at all these points are one output: which of them is on top tells nothing."""
        same = np.abs(values[:, :, None] - values[:, None, :]).max(axis=0, initial=0) <= 1e-12 * np.abs(values).max()
        self.alike = same.argmax(axis=1)

    def explained(self, points: Array) -> TopGradients:
        """Ask at these points with gradients."""
        answer = self._meter(points, gradients=True)
        tops = explained_outputs(self._meter.offer.gradients, answer.values)[:, 0]
        return TopGradients(points, answer.values, self.alike[tops], answer.jacobians[:, 0])
