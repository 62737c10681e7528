"""ScaledByValues: gradients from maps that lost their scale, such as maps divided by their largest number."""

from math import sqrt

import numpy as np

from relumine.adapt.base import AdapterByValues, as_seen, inside
from relumine.errors import BadAnswerError
from relumine.oracle.base import Array, DType, Oracle, explained_outputs

# The first step, as a share of the input's size, and how often it may be divided by 4 to stay in a linear region.
_STEP: dict[DType, float] = {"float64": 2.0**-6, "float32": 2.0**-4}
_SHORTER = 20

# Values lie on a line up to this many of their roundings; slopes of smooth values (probabilities) agree to this share.
_ROUNDINGS = 16

# A factor that is known from another point is confirmed at this share of a step, up to this share of the change.
_SHORT = 2.0**-6
_CONFIRMED = 0.01
_SMOOTH: dict[DType, float] = {"float64": 1e-4, "float32": 5e-3}


class ScaledByValues(AdapterByValues):
    """Multiplies each map by the number that makes it fit the values.

    A map m = c ∇f(x) with an unknown factor c (the same for all coordinates) has lost c alone. The values' slope along
    one direction v is ⟨∇f(x), v⟩, hence 1/c = slope / ⟨m, v⟩. The slope is taken from five values, at x and on both
    sides; where those of neither side lie on a line, there are kinks between, and a shorter step is taken. Points of
    one linear region have the same map and the same factor, so it is found once and then confirmed by two values.

    signed: whether the map has signs. Without, directions are axes: one per output, along which the map is largest,
            and the result is |∇f(x)|.
    """

    def __init__(self, oracle: Oracle, *, signed: bool = True) -> None:
        super().__init__(oracle)
        self._signed = signed
        self._known: list[tuple[Array, Array]] = []

    def _plain(self, maps: Array) -> Array:
        # Divided by its own largest number a map is the same all over a linear region, whatever scale it came with.
        largest = np.abs(maps).max(axis=2, keepdims=True)
        return np.asarray(maps / np.where(largest > 0, largest, 1))

    def _gradients(self, row: Array, values: Array, maps: Array) -> Array:
        if not maps.any():  # where all units are off there is nothing to scale, and no direction to look along
            return maps
        explained = explained_outputs(self.offer.gradients, values[None])[0].tolist()
        equal = _ROUNDINGS * np.finfo(self.offer.dtype).eps * np.abs(maps).max()
        same = [factors for known, factors in self._known if np.abs(known - maps).max() <= equal]
        for factors in same:
            if self._confirmed(row, values[explained], factors[:, None] * maps, explained):
                return factors[:, None] * maps
        if self._signed:
            factors = self._factors(row, maps, _balanced(maps), explained)
        else:
            each = [self._factors(row, maps[[i]], _axes(maps[i]), [output]) for i, output in enumerate(explained)]
            factors = np.concatenate(each)
        self._known.append((maps, factors))
        return factors[:, None] * maps

    def _confirmed(self, row: Array, values: Array, gradients: Array, explained: list[int]) -> bool:
        """Whether the values around x change as these gradients say, on one side at least."""
        direction = _balanced(gradients)[0] if self._signed else _axes(gradients[0])[0]
        step = _SHORT * _STEP[self.offer.dtype] * max(sqrt(len(row)), float(np.linalg.norm(row)))
        points = inside(self.offer, row + step * np.array([[1.0], [-1.0]]) * direction)
        moved = as_seen(self.offer, points) - as_seen(self.offer, row)
        changes = self._oracle(points, gradients=False).values[:, explained] - values
        expected = moved @ gradients.T
        if not self._signed:
            changes, expected = np.abs(changes[:, :1]), np.abs(expected[:, :1])
        rounding = _ROUNDINGS * np.finfo(self.offer.dtype).eps * np.abs(values).max()
        gaps = np.abs(changes - expected).max(axis=1)
        return bool((gaps <= rounding + _CONFIRMED * np.abs(expected).max()).any())

    def _factors(self, row: Array, maps: Array, directions: list[Array], explained: list[int]) -> Array:
        """What the maps must be multiplied by. On a kink there are two slopes: a second direction tells which it is."""
        first = self._candidates(row, maps, directions[0], explained)
        if len(first) == 1:
            return first[0]
        second = self._candidates(row, maps, directions[1], explained)
        gaps = [[float(np.abs(one - other).max()) for other in second] for one in first]
        return first[int(np.argmin([min(row) for row in gaps]))]

    def _candidates(self, row: Array, maps: Array, direction: Array, explained: list[int]) -> list[Array]:
        along = maps @ direction  # 0 where the map vanishes, and so does the factor
        per = np.where(along == 0, np.inf, along)
        found = [slopes[explained] / per for slopes in slopes_along(self._oracle, row, direction)]
        return found if self._signed else [np.abs(factors) for factors in found]


def slopes_along(oracle: Oracle, row: Array, direction: Array) -> list[Array]:
    """K derivatives of the values along a unit vector, from as long a step as finds no kink; two where x is on one."""
    offer = oracle.offer
    step = _STEP[offer.dtype] * max(sqrt(len(row)), float(np.linalg.norm(row)))
    for _ in range(_SHORTER):
        points = inside(offer, row + step * np.array([0, 1, 2, -1, -2])[:, None] * direction)
        values = oracle(points, gradients=False).values
        along = as_seen(offer, points) @ direction
        smooth = offer.values == "probabilities"
        sides = _smooth_slope(values, step, offer.dtype) if smooth else _straight(values, along, offer.dtype)
        if sides:
            return sides
        step /= 4
    raise BadAnswerError("values bend at every step that was tried; their slope, and the map's scale, stay unknown")


def _straight(values: Array, along: Array, dtype: DType) -> list[Array]:
    """The slopes of the sides on which three values lie on a line: one slope if the two agree."""
    rounding = _ROUNDINGS * np.finfo(dtype).eps * np.abs(values).max()
    sides = []
    for near, far in ((1, 2), (3, 4)):
        total = along[far] - along[0]
        if not total:
            continue
        slopes = (values[far] - values[0]) / total
        expected = values[0] + slopes * (along[near] - along[0])
        if np.abs(expected - values[near]).max() <= rounding:
            sides.append(slopes)
    if len(sides) == 2 and np.abs(sides[0] - sides[1]).max() * abs(along[1] - along[0]) <= 4 * rounding:
        return [(values[2] - values[4]) / (along[2] - along[4])]
    return sides


def _smooth_slope(values: Array, step: float, dtype: DType) -> list[Array]:
    """The slope of smooth values, free of their third derivative; none where two estimates are far from each other."""
    short, long = (values[1] - values[3]) / (2 * step), (values[2] - values[4]) / (4 * step)
    agree = np.abs(short - long).max() <= _SMOOTH[dtype] * np.abs(short).max()
    return [(4 * short - long) / 3] if agree else []


def _balanced(maps: Array) -> list[Array]:
    """Two directions along which every map has a good share of its length."""
    lengths = np.linalg.norm(maps, axis=1, keepdims=True)
    units = maps / np.where(lengths > 0, lengths, 1)
    rng = np.random.default_rng(0)
    tries = rng.choice([-1.0, 1.0], size=(64, len(maps))) * rng.uniform(0.5, 1, size=(64, len(maps))) @ units
    tries = np.concatenate([tries, tries + 0.3 * rng.standard_normal(tries.shape) / sqrt(maps.shape[1])])
    tries /= np.maximum(np.linalg.norm(tries, axis=1, keepdims=True), 1e-300)
    shares = (np.abs(tries @ units.T) + np.where(lengths.T > 0, 0, np.inf)).min(axis=1)
    return [tries[:64][shares[:64].argmax()], tries[64:][shares[64:].argmax()]]


def _axes(numbers: Array) -> list[Array]:
    """The two axes along which a map is largest."""
    return list(np.eye(len(numbers))[np.argsort(-np.abs(numbers))[:2]])
