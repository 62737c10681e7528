"""Ascent: layer after layer by activation patterns, each at points where all units of the layers below are on.

There the layers below are one linear map, so that the next layer is a first layer (duals.py) of freely chosen
pre-activations. The last hidden layer is known by its constant output weights. Rows come from Jacobians alone and are
as exact as these; all biases come last, by one least squares over all answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, Offer
from relumine.reconstruct.deep.all_on import AllOn, NeverOn
from relumine.reconstruct.deep.corner import first_biases
from relumine.reconstruct.deep.duals import DualSearch, PatternLayer
from relumine.reconstruct.deep.last import MissingUnit, left_over
from relumine.reconstruct.deep.layers import Layers, Mask
from relumine.reconstruct.deep.top import Top
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise

# Equations per unit of a layer before it is searched: half of them come from points where a unit is off, and determine
# its dual vector three times. By what part answers grow when that was not enough, and how often, in the first layer and
# in later ones: if a later one is not found soon, its units hardly switch where all below are on.
_EQUATIONS, _MORE, _ROUNDS = 7.0, 0.1, (15, 6)
_FIRST = 6
# With this many times the answers that the equations need, and still too few equations, the same Jacobians return.
_REPEATED = 3
# With one output lines are as cheap: a dual vector takes more points than there are units, all with that unit off.
FEWEST = 2
# Inputs are asked at this multiple of the scale of the data, as those of one hidden layer are (tensor/run.py).
_LARGER = 4.0
# They are smaller by this factor after answers of which less than this part could be known, since probabilities were
# saturated: units are off at about half of large inputs, and some hardly ever at small ones, which costs more.
_SMALLER, _KNOWN = 0.7, 0.7
# Output weights are constant if they explain the Jacobians up to this part.
_CONSTANT = {True: 1e-7, False: 1e-3}
# Answers per unit that are spent on the biases of a first layer, at most.
_BIASED = 3
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
        self.scale = 1.0 if offer.box is not None else _LARGER
        self.most = most
        self._asked = 0  # saturated answers count, too
        self.layers: list[PatternLayer] = []
        self._region: AllOn | None = None  # of the known layers
        self._explained = False  # whether the whole network explains all answers
        self.seen = self.here = self._nothing()  # all answers, and those for the layer that is looked for

    def network(self) -> Network:
        """The whole network; Halted where a layer cannot be found."""
        try:
            while True:
                self.here = self._nothing()
                if self.layers:
                    self._region = AllOn(self.layers, self._usual(), self.offer.box, self.rng)
                    top = Top(self._answered, self._region, self.noise, self.rng, self._constant)
                    last = top.found(self.offer.outputs)
                    if last is not None:
                        return self._with_top(last)
                layer = self._layer()
                outputs = self._outputs(layer)
                self.layers.append(layer)
                if outputs is not None:
                    return self._with_biases(outputs)
        except NeverOn:
            raise Halted(f"the units of layer {len(self.layers)} are never on together") from None

    def mended(self, network: Network, wrong: Array) -> Network | None:
        """The network with what these inputs show, where it was wrong; None if answers there stay unexplained."""
        if not network.hidden or network.skip is not None:
            return None
        known, outputs = Layers(network.weights[:-1], network.biases[:-1]), network.weights[-1]
        self.most = max(self.most, self._asked + 2 * len(wrong))
        shown = wrong
        if len(known.below):
            # What a unit does hardly changes, and all of its row shows, where all units below are on a little at least.
            signals = known.below.signals(wrong)[-1]
            least = np.abs(signals).max(axis=1, keepdims=True) * self.rng.exponential(size=signals.shape)
            inputs = known.below.inputs(np.maximum(signals, self._constant * least), self.rng)
            shown = np.concatenate([wrong, inputs])
        self._answered(shown)
        mended = self._finished(known, outputs)
        return mended if self._explained or mended.hidden[-1] > known.widths[-1] else None

    def first(self) -> tuple[Array, Array] | None:
        """Rows and biases of the first layer, where it is all that was found."""
        if not self.layers or self.offer.box is not None:
            return None
        self.most = self._asked + len(self.layers[0].rows) * _BIASED
        try:
            biases = first_biases(self._answered, self.layers[0], self._constant)
        except Halted:
            return None
        return None if biases is None else (self.layers[0].rows, biases)

    # -- one layer

    def _nothing(self) -> Seen:
        d, K = self.offer.dimension, self.offer.outputs
        return Seen(np.empty((0, d)), np.empty((0, K)), np.empty((0, K, d)))

    @property
    def _constant(self) -> float:
        return _CONSTANT[self.noise.floor < 1e-12]

    def _usual(self) -> Array:
        """The usual size of the first layer's pre-activations."""
        signals = self.seen.points @ self.layers[0].rows.T
        return np.asarray(np.sqrt((signals**2).mean(axis=0)) * self.scale / _LARGER)

    def _points(self, count: int) -> Array:
        """Where to ask for the next layer."""
        return self.scale * self._fresh(count) if self._region is None else self._region.points(count)

    @property
    def _to_layer(self) -> Array:
        """From inputs to what the next layer sees at such points, which is a linear map."""
        return np.eye(self.offer.dimension) if self._region is None else self._region.to_layer

    def _layer(self) -> PatternLayer:
        """Ask until the dual vectors of all units are found, as many points again as are worth it."""
        back = None if self._region is None else np.linalg.pinv(self._to_layer)
        self._answered(self._points(_FIRST))
        tried, known = 0, None
        while True:
            here = self.here
            jacobians = here.jacobians if back is None else here.jacobians @ back
            points = here.points if back is None else here.points @ self._to_layer.T
            search = DualSearch(points, jacobians, self.noise.relative, known, random=back is None)
            if not search.rank:
                raise Halted("all Jacobians are zero")
            if self._region is not None:
                self._region.rows = search.basis
            wanted = _EQUATIONS * search.rank + self.offer.outputs
            each = max(search.equations / len(here.points), 1.0)
            if search.equations < wanted:
                if len(here.points) > _REPEATED * wanted / self.offer.outputs + _FIRST:
                    raise Halted(f"of layer {len(self.layers) + 1}, the same Jacobians return")
                self._answered(self._points(min(ceil((wanted - search.equations) / each), len(here.points))))
                continue
            layer = search.run(self.rng)
            if layer is not None:
                return layer
            tried, known = tried + 1, search.duals
            # A later layer's units may hardly switch where all below are on; more answers show those of a first one.
            hopeless = self._region is not None and 2 * len(search.missing()) > search.rank
            if hopeless or tried > _ROUNDS[len(self.layers) > 0]:
                raise Halted(f"of layer {len(self.layers) + 1}, some of {search.rank} units could not be told apart")
            self._answered(self._points(ceil(_MORE * len(here.points))))

    def _answered(self, points: Array) -> tuple[Array, Answer]:
        """Ask, and keep what could be answered."""
        self._asked += len(points)
        if self._asked > self.most:
            raise Halted(f"{self.most} answers were not enough")
        asked, answer = self._ask(points)
        known = np.isfinite(answer.values).all(axis=1)
        if known.mean() < _KNOWN:
            self.scale *= _SMALLER
            if self._region is not None:
                self._region.shrink(_SMALLER)
        new = Seen(asked[known], answer.values[known], answer.jacobians[known])
        self.here, self.seen = self.here.and_(new), self.seen.and_(new)
        return new.points, Answer(new.values, new.jacobians)

    # -- the last layer

    def _with_top(self, last: Shallow) -> Network:
        on = self.here.points @ self._to_layer.T @ last.rows.T > -last.biases
        self.layers.append(PatternLayer(last.rows, -last.biases, -last.biases, on))
        return self._with_biases(last.outputs.T)

    def _outputs(self, layer: PatternLayer) -> Array | None:
        """K×h: the output weights, if constant ones explain the Jacobians, as above the last hidden layer."""
        back = np.linalg.pinv(layer.rows @ self._to_layer)
        above = self.here.jacobians @ back  # n×K×h: what lies above, zero where a unit is off
        shown = layer.on.sum(axis=0)
        outputs: Array = np.einsum("nkh,nh->kh", above, layer.on) / np.maximum(shown, 1)
        rest = np.linalg.norm(above - outputs * layer.on[:, None, :])
        explained = rest <= self._constant * np.linalg.norm(above)
        return outputs if explained else None

    # -- biases

    def _with_biases(self, outputs: Array) -> Network:
        """All biases, and the output weights' offsets, by least squares over the answers whose patterns are known."""
        thresholds = [(layer.below + layer.above) / 2 for layer in self.layers]
        biases = [-thresholds[0]]
        for layer, lower, upper in zip(self.layers[1:], thresholds[:-1], thresholds[1:], strict=True):
            biases.append(-upper + layer.rows @ lower)
        known = Layers(tuple(layer.rows for layer in self.layers), tuple(biases))
        network = self._finished(known, outputs)
        self.layers[0] = replace(self.layers[0], above=-network.biases[0], below=-network.biases[0])
        return network

    def _finished(self, known: Layers, outputs: Array) -> Network:
        """All biases by least squares, and units of the last hidden layer that only unexplained answers show."""
        allowed, left = 10 * self._constant, len(self.seen.points) + 1
        while True:
            for _ in range(_BIASES):
                found, explained = _biases(known, outputs, self.seen, allowed)
                *parts, offset = np.split(found, np.cumsum(known.widths))
                known = Layers(known.rows, tuple(parts))
                if explained.all():
                    break
            left, before = int((~explained).sum()), left
            more = self._unseen(known, outputs, offset, ~explained) if left < before else None
            if more is None:
                self._explained = bool(explained.all())
                break
            rows, biases = np.vstack([known.rows[-1], more.row]), np.append(known.biases[-1], more.bias)
            known, outputs = known.below.with_layer(rows, biases), np.column_stack([outputs, more.output])
        weights = (*known.rows, outputs)
        return Network(weights, (*known.biases, offset), self.offer.inputs, values=self.offer.values)

    def _unseen(self, known: Layers, outputs: Array, offset: Array, wrong: Mask) -> MissingUnit | None:
        """A unit of the last hidden layer that was off wherever all units below are on."""
        last = Shallow(
            np.zeros((len(outputs), known.rows[-1].shape[1])), offset, outputs.T, known.rows[-1], known.biases[-1]
        )
        seen = self.seen.points[wrong], self.seen.values[wrong], self.seen.jacobians[wrong]
        units = [unit for unit in left_over(known.below, last, *seen, self._constant) if unit.shown.all()]
        return max(units, key=lambda unit: len(unit.members), default=None)


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
