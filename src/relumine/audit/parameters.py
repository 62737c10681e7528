"""Parameters: how many of the target's own numbers a clone holds, up to what no answer can tell.

Units may come in another order and another positive scale, and those of a single hidden layer also turned around
(relu(z) = relu(−z) + z: the difference is linear, and the clone's ``skip`` holds it). Behind a softmax, a number
that is added to all classes alike cannot be seen. For the target's owner only: nobody else knows the truth.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from relumine.oracle.base import Array, Oracle
from relumine.reconstruct.network import Network
from relumine.reconstruct.verification import fresh_points, relative_gap

# A parameter is recovered that differs by less than this, relative to the largest of its row.
TOLERANCE = 1e-6

# How well a network that is read from a module must predict what the module does, in the module's precision.
_SAME = {"float64": 1e-9, "float32": 1e-4}
_POINTS = 20


def true_network(target: Oracle) -> Network | None:
    """The fully connected ReLU network that a torch module is, if it is one: read off, then held against it."""
    module = getattr(target, "module", None)
    if module is None or target.offer.values not in ("real", "logits", "probabilities"):
        return None
    weights, biases = _layers(module.state_dict())
    offer = target.offer
    if not _fit(weights, biases, offer.dimension, offer.outputs):
        return None
    network = Network(weights, biases, offer.inputs, values=offer.values)
    points = fresh_points(offer, _POINTS, np.random.default_rng(0))
    return network if relative_gap(network.predict, target, points) < _SAME[offer.dtype] else None


def _layers(state: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The matrices of a state dict in their order, each with the bias of the same name."""
    arrays = {name: tensor.detach().cpu().numpy().astype(np.float64) for name, tensor in state.items()}
    names = [name for name, array in arrays.items() if array.ndim == 2 and name.endswith("weight")]
    weights = tuple(arrays[name] for name in names)
    biases = tuple(arrays.get(name.removesuffix("weight") + "bias", np.zeros(len(arrays[name]))) for name in names)
    return weights, biases


def first_layer(target: Oracle) -> tuple[Array, Array] | None:
    """Rows and biases of the fully connected layer that takes a torch module's inputs, if there is one."""
    module = getattr(target, "module", None)
    weights, biases = ((), ()) if module is None else _layers(module.state_dict())
    return (weights[0], biases[0]) if weights and weights[0].shape[1] == target.offer.dimension else None


def _fit(weights: tuple[Array, ...], biases: tuple[Array, ...], dimension: int, outputs: int) -> bool:
    """Whether each layer takes what the one before gives."""
    widths = [dimension, *(len(weight) for weight in weights)]
    fitting = all(weight.shape[1] == width for weight, width in zip(weights, widths, strict=False))
    return bool(weights) and fitting and widths[-1] == outputs and all(bias.ndim == 1 for bias in biases)


def recovered_share(clone: Network, truth: Network) -> float:
    """The share of the truth's parameters that the clone holds; 0 if it has another number of layers."""
    total = sum(array.size for array in (*truth.weights, *truth.biases))
    if len(clone.weights) != len(truth.weights) or clone.weights[0].shape[1] != truth.weights[0].shape[1]:
        return 0.0
    recovered = 0
    theirs, ours = truth.weights[0], clone.weights[0]
    turned_offset: Array = np.zeros(len(truth.biases[-1]))
    for layer in range(len(truth.weights) - 1):
        pairs = Pairs(theirs, truth.biases[layer], ours, clone.biases[layer], either_way=clone.skip is not None)
        recovered += pairs.same
        theirs = truth.weights[layer + 1] * pairs.lengths
        ours = clone.weights[layer + 1][:, pairs.partners] * pairs.partner_lengths
        # A unit turned around leaves its linear part in skip and offset: w relu(−z) = w relu(z) − w z.
        turned = pairs.signs < 0
        turned_offset = ours[:, turned] @ pairs.biases[turned]
    return float((recovered + _last(truth, clone, theirs, ours, turned_offset)) / total)


def _last(truth: Network, clone: Network, theirs: Array, ours: Array, turned_offset: Array) -> int:
    """How many numbers of the last layer are the same."""
    if ours.shape != theirs.shape:
        return 0
    true_offset, offset = truth.biases[-1], clone.biases[-1] - turned_offset
    if len(true_offset) > 1 and "probabilities" in (truth.values, clone.values):
        theirs, ours, true_offset, offset = (part - part.mean(axis=0) for part in (theirs, ours, true_offset, offset))
    size = max(float(np.abs(true_offset).max(initial=0)), float(np.abs(theirs).max(initial=0)))
    same_outputs = _same(theirs.T, ours.T)
    return int(same_outputs.sum() + (np.abs(true_offset - offset) <= TOLERANCE * size).sum())


def _same(theirs: Array, ours: Array) -> NDArray[np.bool_]:
    """Which numbers are equal, relative to the largest of their row."""
    result: NDArray[np.bool_] = np.abs(theirs - ours) <= TOLERANCE * np.abs(theirs).max(axis=1, keepdims=True)
    return result


class Pairs:
    """The units of a layer and the recovered ones that they are, by assignment; all scaled to length 1.

    rows, recovered: the true units, and their partners the way around they are meant
    paired:          whether a unit has a partner; the others stand beside one that is none of theirs
    """

    def __init__(self, rows: Array, biases: Array, ours: Array, our_biases: Array, either_way: bool) -> None:
        self.lengths = _lengths(rows)
        self.rows, self.biases = rows / self.lengths[:, None], biases / self.lengths
        our_lengths = _lengths(ours)
        ours, our_biases = ours / our_lengths[:, None], our_biases / our_lengths
        likeness = self.rows @ ours.T + np.outer(self.biases, our_biases)
        sizes = 1 + self.biases[:, None] ** 2, 1 + our_biases**2
        squares = sizes[0] + sizes[1] - 2 * (np.abs(likeness) if either_way else likeness)
        # Of squares, two wrong pairs may sum to less than a right one and a wrong one; of distances never.
        found, partners = linear_sum_assignment(np.sqrt(np.maximum(squares, 0)))
        self.partners = np.zeros(len(rows), dtype=np.intp)
        self.partners[found] = partners
        self.paired = np.zeros(len(rows), dtype=bool)
        self.paired[found] = True
        self.signs = np.where(likeness[np.arange(len(rows)), self.partners] < 0, -1.0, 1.0) if either_way else 1.0
        self.signs = self.signs * np.ones(len(rows))
        self.recovered = ours[self.partners] * self.signs[:, None]
        self.recovered_biases = our_biases[self.partners] * self.signs
        self.partner_lengths = np.where(self.paired, our_lengths[self.partners], 0.0)

    @property
    def same(self) -> int:
        """How many numbers of the layer were recovered."""
        allowed = TOLERANCE * np.maximum(np.abs(self.biases), np.abs(self.rows).max(axis=1))
        same_biases = np.abs(self.biases - self.recovered_biases) <= allowed
        return int((_same(self.rows, self.recovered).sum(axis=1) + same_biases)[self.paired].sum())


def _lengths(rows: Array) -> Array:
    lengths: Array = np.linalg.norm(rows, axis=1)
    return np.where(lengths > 0, lengths, 1.0)
