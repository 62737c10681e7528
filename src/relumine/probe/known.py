"""Known: what a preflight knows of an endpoint so far, and how it asks on."""

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from relumine.oracle.base import Array, GradientKind
from relumine.oracle.metering.metered import Metered

Classes: TypeAlias = GradientKind | int


class Known:
    """The offer, corrected by what was seen, and what an offer does not say.

    decimals: values are rounded to this many; None if they are not
    epsilon:  the smallest relative difference of two values
    at_zero:  the values at 0, if that may be asked
    scale:    the size of inputs at which values show slopes
    """

    def __init__(self, meter: Metered, rng: np.random.Generator) -> None:
        self.meter = meter
        self.rng = rng
        self.offer = meter.offer
        self.decimals: int | None = None
        self.epsilon = float(np.finfo(self.offer.dtype).eps)
        self.at_zero: Array | None = None
        self.scale = 1.0
        self.one_by_one = False
        self.remarks: list[str] = []

    def correct(self, **fields: object) -> None:
        """The offer says something else from now on."""
        self.offer = replace(self.offer, **fields)  # type: ignore[arg-type]

    @property
    def quantum(self) -> float:
        """One unit of the last decimal of rounded values, else 0."""
        return 0.0 if self.decimals is None else 10.0**-self.decimals

    def gaussian(self, count: int) -> Array:
        """Random inputs without zeros, which float32 can hold."""
        if self.offer.box is not None:
            low, high = self.offer.box
            rows = self.rng.uniform(low + 0.2 * (high - low), high - 0.2 * (high - low), (count, self.offer.dimension))
        else:
            rows = self.rng.standard_normal((count, self.offer.dimension))
        rows = np.where(np.abs(rows) < 0.01, np.copysign(0.01, rows), rows)
        return rows.astype(np.float32).astype(np.float64)

    def values(self, points: Array) -> Array:
        """Ask for values alone."""
        return self.meter(points, gradients=False).values

    def possible(self, values: Array) -> list[Classes]:
        """Which outputs one map may explain: what is offered first."""
        if self.offer.gradients == "all":
            return ["all"]
        tops = np.unique(values.argmax(axis=1))
        others: list[Classes] = ["top", *range(self.offer.outputs)]
        if len(tops) == 1 and self.offer.gradients in ("top", int(tops[0])):
            self.remarks.append(f"all inputs were of class {tops[0]}: whether others are explained is not known")
        return [self.offer.gradients, *(other for other in others if other != self.offer.gradients)]
