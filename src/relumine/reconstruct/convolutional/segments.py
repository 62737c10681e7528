"""Segments: pairs of points so close that fewer unknown units switch between them than there are outputs."""

from collections.abc import Callable

import numpy as np
from scipy.ndimage import gaussian_filter

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.biases import crossing, shown
from relumine.reconstruct.convolutional.features import lacks
from relumine.reconstruct.convolutional.layers import Front, Geometry, Layer, Shape
from relumine.reconstruct.convolutional.sightings import Change, Observation, change_between, unit_rows

# Points on a segment: one more than pairs. More save a query in so many, fewer see more different images.
_POINTS = 4
# The first step, relative to the image; it is adapted to how many units switch.
_STEP = 3e-3
# So many of the rows that the outputs can show should be taken.
_SHARE = 0.65
# Sizes of images relative to the scale of the inputs, as powers of ten; smoothness and density of their texture. Flat
# and sparse images switch units that noise never does.
_SIZES = (-0.7, 1.3)
_SMOOTH = (0.0, 0.7, 1.5, 2.5)
_SPARSE = (0.05, 0.2, 1.0, 1.0)
_FAINT = 0.03
# A bias that does not show is sought between pre-activations of these sizes (relative to the inputs' scale), in images
# so much larger, where the others of its pool are lower by so many times as much.
_BIASES, _LARGE, _APART = (0.3, 6.0), 300.0, 3.0
# A way is halved so often where too many units switch on it, and found in so many moves through known layers.
_HALVINGS, _MOVES = 3, 8
# So many answers say where a bias lies: each takes the singular values of all features' rows.
_RECENT = 24
# Halvings of a way between two images, at most, until a few units switch on it: a step is 3e-3 of an image.
_NARROWED = 9


def texture(shape: Shape, rng: np.random.Generator) -> tuple[Array, Array]:
    """A random image, and how strong it is at each pixel: strong and weak places, smooth or not, dense or sparse."""
    strength = np.exp(noise((1, *shape[1:]), 4.0, rng)) * np.ones(shape)
    strength = strength * np.where(rng.uniform(size=(1, *shape[1:])) < rng.choice(_SPARSE), 1.0, _FAINT)
    image = strength * noise(shape, float(rng.choice(_SMOOTH)), rng)
    image += rng.integers(2) * noise(shape, 5.0, rng) + rng.integers(2) * rng.standard_normal((shape[0], 1, 1))
    size = 10.0 ** rng.uniform(*_SIZES)
    return size * image.ravel(), size * strength.ravel()


def noise(shape: Shape, smooth: float, rng: np.random.Generator) -> Array:
    """Of length one per pixel; where it is smooth, units that are pooled switch together."""
    image = gaussian_filter(rng.standard_normal(shape), (0, smooth, smooth), mode="wrap")
    result: Array = image / max(float(image.std()), 1e-12)
    return result


class Segments:
    """Asks points on segments, and keeps them for later layers.

    ask: from a point to what was answered there, at that point rounded to the target's precision
    start: a fresh image, and the size of its steps at each pixel
    error: from an observation to how much a piece like it may change where nothing switched
    """

    def __init__(
        self,
        shape: Shape,
        ask: Callable[[Array], Observation],
        start: Callable[[], tuple[Array, Array]],
        error: Callable[[Observation], float],
        rng: np.random.Generator,
    ) -> None:
        self._shape = shape
        self._ask, self._start, self._error, self._rng = ask, start, error, rng
        self.pairs: list[tuple[Observation, Observation]] = []
        self.starts: list[Observation] = []
        self._step = _STEP
        self._left = 0

    def again(self, front: Front, known: Layer) -> list[Change]:
        """What is left of the changes seen so far, behind this front and the known channels of the next layer."""
        return [self.change(front, known, pair) for pair in self.pairs]

    def change(self, front: Front, known: Layer, pair: tuple[Observation, Observation]) -> Change:
        """What known layers and channels do not explain."""
        return change_between(front, known, *pair, self._error(pair[0]))

    def next(self, front: Front, known: Layer) -> Change:
        """One more pair."""
        if not self._left:
            point, strength = self._start()
            self._direction = strength * noise(self._shape, float(self._rng.choice(_SMOOTH)), self._rng).ravel()
            self._last = self._ask(point)
            self.starts.append(self._last)
            self._left = _POINTS - 1
        new = self._ask(self._last.point + self._step * self._direction)
        self.pairs.append((self._last, new))
        self._last, self._left = new, self._left - 1
        change = self.change(front, known, self.pairs[-1])
        wanted = max(1.0, _SHARE * change.most)
        self._step *= 0.4 if change.full else float(np.clip(wanted / max(len(change.rows), 1), 0.6, 2.0))
        return change

    def crossing(self, front: Front, known: Layer, kernels: Array) -> list[Change]:
        """Short ways on which a feature of each of these channels, whose biases are not known, switches on."""
        seen = [shown(front, known, kernels, one) for one in self.starts[-_RECENT:]]
        changes: list[Change] = []
        for channel, kernel in enumerate(kernels):
            for _ in range(_NARROWED):
                ends = crossing(front, known.geometry, kernel, channel, seen)
                if ends is None:
                    break
                if np.linalg.norm(ends[1] - ends[0]) <= _STEP * np.linalg.norm(ends[0]):
                    changes += self._pieces(front, known, self._ask(ends[0]), self._ask(ends[1]), _HALVINGS)
                    break
                self.starts.append(self._ask((ends[0] + ends[1]) / 2))
                seen.append(shown(front, known, kernels, self.starts[-1]))
        return changes

    def enlarged(self, front: Front, known: Layer, channels: Array) -> list[Change]:
        """A short way through a large image on which one pool of each channel, whose bias is not known, switches on.

        Of an image so large that biases hardly matter, few other units switch beside one whose pre-activation is led
        from below any bias to above it.
        """
        geometry, (point, _) = known.geometry, self._start()
        bias = (
            float(np.exp(self._rng.uniform(*np.log(_BIASES)))) * float(point.std()) / 10.0 ** self._rng.uniform(*_SIZES)
        )
        point = point * (_LARGE * bias / float(point.std()))
        around, goals, chosen = front.at(point), [], []
        for weights in channels:
            values = geometry.read(around.values) @ weights[:-1]
            inside = (geometry.taps[geometry.cells] >= 0).all(axis=(1, 2)) & (geometry.cells >= 0).all(axis=1)
            cell = geometry.cells[self._rng.choice(np.flatnonzero(inside))]
            order = np.argsort(np.argsort(-values[cell]))  # the first of the pool stays it
            chosen += [(weights, int(i)) for i in cell]
            goals.append(-_APART * bias * order)
        middle = _led(front, geometry, point, chosen, np.concatenate(goals))
        rows = _rows_of(front, geometry, middle, chosen)
        way = np.linalg.pinv(rows[:, :-1], rcond=1e-3) @ np.full(len(rows), bias)
        first, last = self._ask(middle - way), self._ask(middle + way)
        self.starts += [first]
        return self._pieces(front, known, first, last, _HALVINGS)

    def towards(self, front: Front, known: Layer, first: Observation, last: Observation) -> list[Change]:
        """Neighbours on this way between which a channel that is not known switches on; at its end one is."""
        whole = front.and_(known)
        for _ in range(_NARROWED):
            middle = self._ask((first.point + last.point) / 2)
            first, last = (first, middle) if lacks(whole, middle) else (middle, last)
        return self._pieces(front, known, first, last, _HALVINGS)

    def _pieces(self, front: Front, known: Layer, first: Observation, last: Observation, halvings: int) -> list[Change]:
        change = self.change(front, known, (first, last))
        if not change.full or not halvings:
            self.pairs.append((first, last))
            return [change]
        middle = self._ask((first.point + last.point) / 2)
        halves = ((first, middle), (middle, last))
        return [piece for a, b in halves for piece in self._pieces(front, known, a, b, halvings - 1)]


def _rows_of(front: Front, geometry: Geometry, point: Array, units: list[tuple[Array, int]]) -> Array:
    """The rows [gradient, value] of these units, each a channel at a place."""
    pieces = front.at(point).pieces.toarray()
    return np.array([weights @ unit_rows(geometry, pieces, (place,)) for weights, place in units])


def _led(front: Front, geometry: Geometry, point: Array, units: list[tuple[Array, int]], goals: Array) -> Array:
    """The point moved until these units have these values."""
    for _ in range(_MOVES):
        rows = _rows_of(front, geometry, point, units)
        point = point - np.linalg.pinv(rows[:, :-1], rcond=1e-3) @ (rows[:, -1] - goals)
    return point
