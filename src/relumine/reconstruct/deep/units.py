"""Units of the next layer, put together from sightings.

A kink has a normal in input space. Pulled back through the known layers it is the unit's row on the features that are
on there, up to a factor, and its bias by the same factor. Two sightings are of the same unit if they agree, up to a
factor, on the features that both show; together they show more of the row.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.deep.book import Book, Steps
from relumine.reconstruct.deep.layers import Layers, Mask
from relumine.reconstruct.deep.precision import Precision

# Sightings that agree on fewer features may do so by chance; the bias must agree besides.
_LEAST = 2


@dataclass(frozen=True, eq=False)
class Sighting:
    """A unit's row (of length one) on the features ``shown``, its bias, and where it was seen: step, line, point."""

    row: Array
    shown: Mask
    bias: float
    step: int
    line: int
    point: Array


def sightings(layers: Layers, points: Array, steps: Steps, precision: Precision, first: int) -> list[Sighting]:
    """The kinks of these steps that no known unit explains, pulled back to the features; steps count from ``first``."""
    at = np.flatnonzero(steps.kinked)
    kinks = points[steps.left[at]] + steps.share[at, None] * (points[steps.right[at]] - points[steps.left[at]])
    new = ~layers.explains(kinks, precision.kink)
    at, kinks = at[new], kinks[new]
    if not len(layers):
        everything = np.ones(points.shape[1], dtype=bool)
        offsets = -np.einsum("nd,nd->n", steps.normals[at], kinks)
        return [
            Sighting(steps.normals[i], everything, float(offsets[j]), first + int(i), int(steps.line[i]), kinks[j])
            for j, i in enumerate(at)
        ]
    slopes, features, on = layers.feature_slopes(kinks), layers.features(kinks), layers.on(kinks)
    found = []
    for i, k in enumerate(at):
        back = _pulled_back(slopes[i], on[i], steps.normals[k], precision.same)
        if back is not None:
            place = first + int(k), int(steps.line[k]), kinks[i]
            found.append(Sighting(back, on[i], -float(back @ features[i]), *place))
    return found


def _pulled_back(slopes: Array, on: Mask, normal: Array, tolerance: float) -> Array | None:
    """The row, of length one; None if the normal does not come from the features that are on, or in several ways."""
    on = on & (np.linalg.norm(slopes, axis=1) > 0)
    if not on.any() or on.sum() > len(normal):
        return None
    found, _, rank, _ = np.linalg.lstsq(slopes[on].T, normal, rcond=1e-9)
    if rank < on.sum() or float(np.linalg.norm(slopes[on].T @ found - normal)) > tolerance:
        return None
    row = np.zeros(len(on))
    row[on] = found / np.linalg.norm(found)
    return row


@dataclass(eq=False)
class Unit:
    """What is known of one unit, in the scale of its first sighting."""

    row: Array
    shown: Mask
    bias: float
    seen: list[tuple[Sighting, float]] = field(default_factory=list)
    aimed: int = 0  # how often in vain
    contested: int = 0  # how often it was seen again because it depends on other units

    @property
    def complete(self) -> bool:
        """Whether the row is known on every feature."""
        return bool(self.shown.all())

    @property
    def lines(self) -> set[int]:
        """The lines on which it was seen."""
        return {one.line for one, _ in self.seen}

    @property
    def plane(self) -> tuple[Array, float]:
        """Row and bias, the row of length one."""
        size = float(np.linalg.norm(self.row))
        return self.row / size, self.bias / size

    def absorb(self, one: Sighting, factor: float) -> None:
        """Learn what this sighting shows: every number is the mean over the sightings that show it."""
        self.seen.append((one, factor))
        if np.any(one.shown & ~self.shown):
            self.aimed = 0
        self.shown = self.shown | one.shown
        shown = np.array([each.shown for each, _ in self.seen])
        rows = np.array([each.row * scale for each, scale in self.seen])
        self.row = rows.sum(axis=0) / np.maximum(shown.sum(axis=0), 1)
        self.bias = float(np.mean([each.bias * scale for each, scale in self.seen]))


def gather(units: list[Unit], seen: list[Sighting], tolerance: float) -> list[Unit]:
    """Each sighting given to the unit it agrees with, or made a new one; units that turn out equal are joined."""
    units = list(units)
    for one in sorted(seen, key=lambda each: -int(each.shown.sum())):
        _give(units, [(one, 1.0)], one.row, one.shown, one.bias, tolerance)
    while True:
        joined: list[Unit] = []
        for unit in sorted(units, key=lambda each: -int(each.shown.sum())):
            _give(joined, unit.seen, unit.row, unit.shown, unit.bias, tolerance, unit.aimed)
        if len(joined) == len(units):
            return joined
        units = joined


def _give(
    units: list[Unit],
    seen: list[tuple[Sighting, float]],
    row: Array,
    shown: Mask,
    bias: float,
    tolerance: float,
    aimed: int = 0,
) -> None:
    factors = _factors(units, row, shown, bias, tolerance)
    matches = np.flatnonzero(factors)
    if matches.size:
        unit, factor = units[int(matches[0])], float(factors[matches[0]])
    else:
        unit, factor = Unit(row, shown, bias, aimed=aimed), 1.0
        units.append(unit)
    for one, scale in seen:
        unit.absorb(one, scale * factor)


def _factors(units: list[Unit], row: Array, shown: Mask, bias: float, tolerance: float) -> Array:
    """By what row and bias must be multiplied to agree with each unit; 0 where they do not."""
    if not units:
        return np.zeros(0)
    common = np.array([unit.shown for unit in units]) & shown
    rows = np.array([unit.row for unit in units]) * common
    biases = np.array([unit.bias for unit in units])
    its = row * common
    factors = (rows @ row + biases * bias) / np.maximum((its**2).sum(axis=1) + bias**2, 1e-300)
    size = np.linalg.norm(rows, axis=1)
    # The bias may be large against the row: both must agree by themselves.
    agree = np.linalg.norm(rows - factors[:, None] * its, axis=1) <= tolerance * size
    agree &= np.abs(biases - factors * bias) <= tolerance * (size + np.abs(biases))
    agree &= common.sum(axis=1) >= min(_LEAST, len(row))
    return np.where(agree, factors, 0.0)


def crossings(
    layers: Layers, book: Book, rows: Array, biases: Array, precision: Precision
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each unit: at how many steps it changes sides and must show, and at how many of these it does.

    A unit of the next layer shows wherever it is crossed, unless the layers above are off altogether, so that the
    gradient is zero. One of a deeper layer, whose row on these features holds in one region only, does not.
    """
    steps = book.steps()
    signals = layers.features(book.points) @ rows.T + biases
    left, right = signals[steps.left], signals[steps.right]
    # Steps across a kink may be so short that rounding moves a boundary past either end: that is no crossing.
    close = (precision.kink * (1 + np.linalg.norm(book.points[steps.left], axis=1)))[:, None]
    crossed = (left * right < 0) & (np.minimum(np.abs(left), np.abs(right)) > close)
    at_kink = np.abs(left + steps.share[:, None] * (right - left))
    shown = (at_kink <= close) | (crossed & (at_kink <= 10 * precision.same * np.abs(right - left)))
    alive = np.abs(book.jacobians).max(axis=(1, 2), initial=0) > 0
    must_show = (alive[steps.left] & alive[steps.right])[:, None]
    return (shown | (crossed & must_show)).sum(axis=0), shown.sum(axis=0)
