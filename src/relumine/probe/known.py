"""Known: what a preflight knows of an endpoint so far, and how it asks on.

What values are (logits, probabilities or labels), how precise, and at which size of inputs they show slopes is looked
at first.
"""

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from relumine.adapt.base import inside
from relumine.oracle.base import Array, DType, GradientKind, Offer, Oracle, ValueKind
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.noise import decimals_of

Classes: TypeAlias = GradientKind | int

_POINTS = 4
# The smallest probability that has digits enough to show slopes.
_SMALLEST: dict[DType, float] = {"float64": 1e-6, "float32": 1e-2}
# Fewer different numbers may be round by chance.
_ENOUGH = 6


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


def answers_in_float32(oracle: Oracle, rng: int | np.random.Generator | None = None) -> bool:
    """Whether one value query is answered in numbers that float32 can hold, if the oracle shows all digits."""
    values = oracle(np.random.default_rng(rng).standard_normal((1, oracle.offer.dimension)), gradients=False).values
    return bool(np.all(values == values.astype(np.float32)))


def look_at_values(known: Known) -> Array:
    """Ask at 0 and at random points of several sizes, and note what the values are."""
    base = known.gaussian(_POINTS)
    sizes = (0.01, 0.1, 100.0) if known.offer.box is None else (0.01, 0.1)
    points = np.concatenate([np.zeros((1, base.shape[1])), base, *(size * base[:1] for size in sizes)])
    points = inside(known.offer, points)
    values = known.values(points)
    known.at_zero = values[0] if not points[0].any() else None
    known.correct(values=_kind_of(values, known.offer))
    look_at_numbers(known, values)
    if known.offer.values == "probabilities":
        usable = {1.0: values[1], 0.1: values[6], 0.01: values[5]}
        fits = [size for size, p in usable.items() if min(p.min(), (1 - p).min()) > _SMALLEST[known.offer.dtype]]
        known.scale = max(fits, default=0.01)
    return values


def look_at_numbers(known: Known, *values: Array) -> None:
    """Note precision and rounding, from all values so far: explanations may be computed more finely than the target."""
    numbers = np.unique(np.concatenate([part.ravel() for part in values]))
    numbers = numbers[(numbers != 0) & (np.abs(numbers) != 1)]
    single = bool(len(numbers)) and bool(np.all(numbers == numbers.astype(np.float32)))
    known.decimals = decimals_of(numbers, single)
    if len(numbers) >= _ENOUGH and known.decimals is None:
        known.correct(dtype="float32" if single else "float64")
    known.epsilon = float(np.finfo(known.offer.dtype).eps)


def _kind_of(values: Array, offer: Offer) -> ValueKind:
    """Probabilities and labels are told by their numbers; logits and other numbers by what is offered."""
    if offer.values == "label":
        return "label"
    whole = bool(np.all(values == np.round(values)))
    if whole and (values.shape[1] == 1 or bool(np.all(np.sort(values, axis=1)[:, :-1] == 0))):
        return "label"
    within = values.min() >= 0 and values.max() <= 1 + 1e-6
    if within and (values.shape[1] == 1 or np.abs(values.sum(axis=1) - 1).max() < 1e-2):
        return "probabilities"
    return "logits" if offer.values in ("probabilities", "logits") else "real"
