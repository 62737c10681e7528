"""Ascent: layer after layer by activation patterns, each at points where all units of the layers below are on.

There the layers below are one linear map, so that the next layer is a first layer (duals.py) of freely chosen
pre-activations. The last hidden layer is known by its constant output weights. Rows come from Jacobians alone and are
as exact as these; all biases come last, by one least squares over all answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from relumine.oracle.base import Answer, Array, Offer
from relumine.reconstruct.deep.duals import DualSearch, PatternLayer
from relumine.reconstruct.deep.layers import Layers
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.search import TensorSearch

# Equations per unit of a layer before it is searched, and by how much they grow when that was not enough, so often.
# Half of them come from points where a unit is off, and determine its dual vector twice or more.
# In later layers the off-sets of units are often nested, and more points are needed to part them; one round of them.
_EQUATIONS, _LATER, _MORE, _ROUNDS = 7.0, 20.0, 1.4, 3
_FIRST = 6
# With fewer outputs too many points must have a unit off together for random ones to do. Three sufficed for first
# layers, but a network of three hidden layers, 40-20-10-10-3, then took half as many queries again as lines do.
FEWEST = 4
# Inputs are asked at this multiple of the scale of the data, as those of one hidden layer are (tensor/run.py).
_LARGER = 4.0
# Pre-activations are chosen up to this many times their usual size.
_FAR = 4.0
# Vertices of a region that are mixed to a point, and the part of the centre in it.
_MIXED, _CENTRE = 4, 0.03
# Output weights are constant if they explain the Jacobians up to this part.
_CONSTANT = {True: 1e-7, False: 1e-3}
# Whether one hidden layer is left is decided after this many answers, and after multiples of the inputs per output.
_TENSOR, _PER_OUTPUT, _AGAIN = 16, 4, 4
# Rounds of the least squares for biases: patterns follow from biases, and biases from patterns.
_BIASES = 6


@dataclass(frozen=True, eq=False)
class Seen:
    """Answers: points n×d, values n×K, Jacobians n×K×d."""

    points: Array
    values: Array
    jacobians: Array

    def and_(self, other: "Seen") -> "Seen":
        """Both."""
        pairs = (self.points, other.points), (self.values, other.values), (self.jacobians, other.jacobians)
        return Seen(*(np.concatenate(pair) for pair in pairs))


class Halted(Exception):
    """The next layer cannot be found in this way; never seen outside."""


class Ascent:
    """The state of one reconstruction by activation patterns.

    ask: answers with Jacobians, at the points that could be answered
    fresh: random inputs
    most: answers after which it gives up
    """

    def __init__(
        self,
        ask: Callable[[Array], tuple[Array, Answer]],
        fresh: Callable[[int], Array],
        offer: Offer,
        noise: Noise,
        rng: np.random.Generator,
        most: int,
    ) -> None:
        self._ask, self._fresh, self.offer, self.noise, self.rng = ask, fresh, offer, noise, rng
        self.scale = 1.0 if offer.box is not None or offer.values == "probabilities" else _LARGER
        self.most = most
        self._asked = 0  # saturated answers count, too
        self.layers: list[PatternLayer] = []
        self.seen = self.here = self._nothing()  # all answers, and those for the layer that is looked for

    def network(self) -> Network:
        """The whole network; Halted where a layer cannot be found."""
        while True:
            family, to_layer = self._family()
            if self.layers:
                last = self._last(family, to_layer)
                if last is not None:
                    return self._with_biases(last)
            layer = self._layer(family, to_layer)
            self.layers.append(layer)
            outputs = self._outputs(layer, to_layer)
            if outputs is not None:
                return self._with_biases(outputs)

    # -- one layer

    def _nothing(self) -> Seen:
        d, K = self.offer.dimension, self.offer.outputs
        return Seen(np.empty((0, d)), np.empty((0, K)), np.empty((0, K, d)))

    def _family(self) -> tuple[Callable[[int], Array], Array]:
        """Random points at which all known units are on, and the linear map from inputs to pre-activations there."""
        if not self.layers:
            return lambda count: self.scale * self._fresh(count), np.eye(self.offer.dimension)
        maps = [self.layers[0].rows]
        for layer in self.layers[1:]:
            maps.append(layer.rows @ maps[-1])
        return _Region(self, maps).points, maps[-1]

    def _layer(self, family: Callable[[int], Array], to_layer: Array) -> PatternLayer:
        back: Array | None = np.linalg.pinv(to_layer).astype(np.float64) if self.layers else None
        wanted = 0.0
        for _ in range(1 if self.layers else _ROUNDS):
            search = self._gathered(family, back, wanted)
            layer = search.run(self.rng)
            if layer is not None:
                return layer
            if not search.found:
                break
            wanted = _MORE * max(search.equations, search.rank)
        raise Halted(f"of layer {len(self.layers) + 1}, some of {search.rank} units could not be told apart")

    def _gathered(self, family: Callable[[int], Array], back: Array | None, wanted: float) -> DualSearch:
        """Ask until there are enough equations for the rank that they show, or as many as are wanted."""
        while True:
            here = self.here
            jacobians = here.jacobians if back is None else here.jacobians @ back
            points = here.points if back is None else here.points @ np.linalg.pinv(back).T
            search = DualSearch(points, jacobians, self.noise.relative)
            each = _LATER if self.layers else _EQUATIONS
            missing = max(wanted, each * search.rank + self.offer.outputs) - search.equations
            if len(here.points) and not search.rank:
                raise Halted("all Jacobians are zero")
            if len(here.points) and missing <= 0:
                return search
            each = search.equations / len(here.points) if len(here.points) else 1.0
            self._keep(family(min(ceil(missing / each), len(here.points)) or _FIRST))

    def _keep(self, points: Array) -> None:
        self._asked += len(points)
        if self._asked > self.most:
            raise Halted(f"{self.most} answers were not enough")
        asked, answer = self._ask(points)
        known = np.isfinite(answer.values).all(axis=1)
        if not known.all():
            self.scale *= 0.7
        new = Seen(asked[known], answer.values[known], answer.jacobians[known])
        self.here, self.seen = self.here.and_(new), self.seen.and_(new)

    # -- the last layer

    def _last(self, family: Callable[[int], Array], to_layer: Array) -> Array | None:
        """The output weights, if what remains has one hidden layer, which is then known: by the tensor of Jacobians."""
        self.here, back = self._nothing(), np.linalg.pinv(to_layer)
        width = len(to_layer)
        most = _TENSOR + _PER_OUTPUT * width // self.offer.outputs

        def ask(points: Array) -> tuple[Array, Answer]:
            if len(self.here.points) + len(points) > most:
                raise Stop(Outcome.NOT_THIS_CLASS)
            before = len(self.here.points)
            self._keep(points @ back.T)
            new = self.here.points[before:] @ to_layer.T
            return new, Answer(self.here.values[before:], self.here.jacobians[before:] @ back)

        def near(centre: Array, radius: float) -> Array:
            found: Array = centre + min(radius, 1.0) * (fresh(1)[0] - centre)
            return found

        def fresh(count: int) -> Array:
            found: Array = family(count) @ to_layer.T
            return found

        try:
            points, answer = ask(fresh(1))
            first = Observations(points, answer.values, answer.jacobians, self.noise)
            search = TensorSearch(ask, fresh, near, first, self.rng)
            while True:
                search.run()
                shallow = _shallow(search)
                plain = shallow.plain(_CONSTANT[self.noise.floor < 1e-12])
                if plain is not None:
                    break
                search.gather(fresh(_AGAIN))
        except (Stop, np.linalg.LinAlgError):
            return None
        thresholds = -plain.biases
        on = self.here.points @ to_layer.T @ plain.rows.T > thresholds
        self.layers.append(PatternLayer(plain.rows, thresholds, thresholds, on))
        return plain.outputs.T

    def _outputs(self, layer: PatternLayer, to_layer: Array) -> Array | None:
        """K×h: the output weights, if constant ones explain the Jacobians, as above the last hidden layer."""
        back = np.linalg.pinv(layer.rows @ to_layer)
        above = self.here.jacobians @ back  # n×K×h: what lies above, zero where a unit is off
        shown = layer.on.sum(axis=0)
        outputs: Array = np.einsum("nkh,nh->kh", above, layer.on) / np.maximum(shown, 1)
        rest = np.linalg.norm(above - outputs * layer.on[:, None, :])
        explained = rest <= _CONSTANT[self.noise.floor < 1e-12] * np.linalg.norm(above)
        return outputs if explained else None

    # -- biases

    def _with_biases(self, outputs: Array) -> Network:
        """All biases, and the output weights' offsets, by least squares over the answers whose patterns are known."""
        thresholds = [(layer.below + layer.above) / 2 for layer in self.layers]
        biases = [-thresholds[0]]
        for layer, lower, upper in zip(self.layers[1:], thresholds[:-1], thresholds[1:], strict=True):
            biases.append(-upper + layer.rows @ lower)
        weights = (*(layer.rows for layer in self.layers), outputs)
        known = Layers(weights[:-1], tuple(biases))
        offset = np.zeros(len(outputs))
        allowed = 10 * _CONSTANT[self.noise.floor < 1e-12]
        for _ in range(_BIASES):
            found, explained = _biases(known, outputs, self.seen, allowed)
            *parts, offset = np.split(found, np.cumsum(known.widths))
            known = Layers(known.rows, tuple(parts))
            if explained.all():
                break
        return Network(weights, (*known.biases, offset), self.offer.inputs, values=self.offer.values)


def _biases(known: Layers, outputs: Array, seen: Seen, allowed: float) -> tuple[Array, NDArray[np.bool_]]:
    """f − Jx is linear in all biases: their least squares over the points whose Jacobian the patterns explain."""
    on = [signal > 0 for signal in known.signals(seen.points)]
    ahead = [np.broadcast_to(outputs, (len(seen.points), *outputs.shape)) * on[-1][:, None, :]]
    for rows, layer in zip(known.rows[:0:-1], on[-2::-1], strict=True):
        ahead.insert(0, (ahead[0] @ rows) * layer[:, None, :])
    jacobians = ahead[0] @ known.rows[0]
    sizes = np.linalg.norm(seen.jacobians, axis=(1, 2))
    explained = np.linalg.norm(jacobians - seen.jacobians, axis=(1, 2)) <= allowed * np.maximum(sizes, sizes.mean())
    K = len(outputs)
    system = np.concatenate([*ahead, np.broadcast_to(np.eye(K), (len(seen.points), K, K))], axis=2)[explained]
    target = (seen.values - np.einsum("nkd,nd->nk", jacobians, seen.points))[explained]
    weight = 1 / (1 + np.linalg.norm(seen.points[explained], axis=1))
    if not len(target):
        raise Halted("no activation patterns explain the Jacobians")
    flat = (system * weight[:, None, None]).reshape(-1, system.shape[2]), (target * weight[:, None]).ravel()
    old = np.concatenate([*known.biases, np.zeros(K)])
    missing = flat[1] - flat[0] @ old  # what no answer determines stays as it is
    return old + np.linalg.lstsq(*(flat[0], missing), rcond=1e-12)[0], explained


def _shallow(search: TensorSearch) -> Shallow:
    """What the search knows, with rows of length one."""
    rows, linear = search.units.rows, search.linear()
    lengths = np.linalg.norm(rows[:, :-1], axis=1)
    outputs = search.units.outputs * lengths[:, None]
    return Shallow(linear[:, :-1], linear[:, -1], outputs, rows[:, :-1] / lengths[:, None], rows[:, -1] / lengths)


class _Region:
    """The polytope in which all units of the known layers are on; points in it are mixed from its vertices."""

    def __init__(self, run: Ascent, maps: list[Array]) -> None:
        self._rng = run.rng
        box = run.offer.box
        first = maps[0]
        thresholds = np.concatenate([layer.above for layer in run.layers])
        if box is None:  # in the pre-activations of the first layer; the input is the shortest that has them
            self._lift = np.linalg.pinv(first)
            usual = np.sqrt(((run.seen.points @ first.T) ** 2).mean(axis=0)) * run.scale / _LARGER
            self._bounds = [(-_FAR * size, _FAR * size) for size in usual]
        else:
            self._lift = np.eye(first.shape[1])
            self._bounds = [box] * first.shape[1]
        self._first = first @ self._lift
        walls = np.concatenate([each @ self._lift for each in maps])
        self._walls, self._offsets = walls, thresholds
        self._vertices = np.empty((0, self._lift.shape[1]))

    def points(self, count: int) -> Array:
        """Random points, some with few large pre-activations."""
        vertices = [self._vertex() for _ in range(max(count, 2 * _MIXED))]
        self._vertices = np.concatenate([self._vertices, vertices])
        chosen = self._rng.integers(len(self._vertices), size=(count, _MIXED))
        chosen[:, 0] = len(self._vertices) - 1 - np.arange(count)
        shares = self._rng.exponential(size=chosen.shape) ** 4
        shares /= shares.sum(axis=1, keepdims=True)
        mixed = np.einsum("nv,nvm->nm", shares, self._vertices[chosen])
        mixed += _CENTRE * (self._vertices.mean(axis=0) - mixed)
        result: Array = mixed @ self._lift.T
        return result

    def _vertex(self) -> Array:
        """Where few first-layer pre-activations are large, by a random linear programme."""
        wanted = self._rng.exponential(size=len(self._first))
        large = self._rng.random(len(wanted)) < self._rng.uniform() ** 3 / 2
        costs = np.where(large, -wanted, wanted) @ self._first
        found = linprog(costs, -self._walls, -self._offsets, bounds=self._bounds, method="highs")
        if found.status != 0:
            raise Halted(f"the units of layer {len(self._offsets)} are never on together")
        vertex: Array = found.x
        return vertex
