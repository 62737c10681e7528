"""Channels: kernels and biases that several sightings agree on.

Weight sharing is the proof. A sighting leaves its channel's kernel w in a small subspace of all kernels; two such
subspaces of different channels, or of what is no unit of this layer, have no common vector, unless by chance.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.layers import Geometry
from relumine.reconstruct.convolutional.sightings import Sighting, unit_rows

# A common vector of two subspaces is proved by so many more dimensions than they need.
_MARGIN = 3
# So many places at which it was seen make a channel; two may agree by chance where images are small. Sightings at one
# place are no proof: what is no unit of this layer looks there like itself.
_PLACES = 3
# So many of them must be sure: others may be taken for units beside them.
_SURE = 2
# Turns of reweighting, and the misfit that rounding may leave.
_REWEIGHTED, _ROUNDING = 4, 1e-15
# So many sightings prove a bias, which agree up to a multiple of the tolerance for directions.
_BIASES, _ALIKE = 2, 1e2
# A vector of which less than this part is seen is not seen.
_SHOWN = 0.1
# A unit that takes part in a max-pool is on, and its neighbours are below it: so many votes more for one orientation.
_VOTES = 1.0


@dataclass(eq=False)
class Channel:
    """``weights``: kernel and bias (t+1 numbers, of length one), on where positive; ``seen``: its sightings.

    biased: whether its bias is known: max-pools do not show it, and one sighting of a ReLU may be another unit's
    """

    weights: Array
    seen: list[Sighting] = field(default_factory=list)
    oriented: bool = False
    biased: bool = False

    def fits(self, sighting: Sighting, tolerance: float) -> bool:
        """Whether this is one more sighting of it, and not one that shows nothing of it."""
        free = sighting.free if self.biased and not sighting.pooled else _with_bias(sighting.free)
        if len(self.weights) - free.shape[1] - 1 < _MARGIN:  # one number fits any channel
            return False
        shown = self.weights - free @ (free.T @ self.weights)
        size = float(np.linalg.norm(shown))
        particular = sighting.particular - free @ (free.T @ sighting.particular)
        length = float(np.linalg.norm(particular))
        if size < _SHOWN or length < _SHOWN:
            return False
        particular /= length
        return float(np.linalg.norm(shown - particular * (particular @ shown))) < tolerance * size

    def settle(self, tolerance: float) -> None:
        """Learn the bias once two sightings agree on it; those that say otherwise are not of this channel."""
        shown = [one for one in self.seen if not one.pooled]
        biases = np.array([_bias(one, self.weights) for one in shown])
        near = np.abs(biases[:, None] - biases) <= _ALIKE * tolerance * (1 + np.abs(biases))
        if self.biased or near.sum(axis=1).max(initial=0) < _BIASES:
            return
        agree = near[int(near.sum(axis=1).argmax())]
        self.seen = [one for one in self.seen if one.pooled]
        self.seen += [one for one, right in zip(shown, agree, strict=True) if right]
        self.biased = True
        self.refit()

    @property
    def places(self) -> int:
        """At how many places it was seen."""
        return len({one.places for one in self.seen})

    def refit(self) -> None:
        """The vector that all sightings agree on, by least squares in which each counts as exact as it turns out."""
        pooled = [one.equations for one in self.seen if one.pooled]
        parts = [one.equations for one in self.seen]
        if not self.biased and pooled:
            parts = [*pooled, np.eye(len(self.weights))[-1:]]
        misfits = np.ones(len(parts))
        for _ in range(_REWEIGHTED):
            vector = np.linalg.svd(np.concatenate([e / m for e, m in zip(parts, misfits, strict=True)]))[2][-1]
            misfits = np.array([np.linalg.norm(part @ vector) for part in parts]) + _ROUNDING
        self.weights = vector * np.sign(vector[:-1] @ self.weights[:-1])


class Channels:
    """The channels of one layer, as they are found."""

    def __init__(self, geometry: Geometry, tolerance: float) -> None:
        self.geometry = geometry
        self.tolerance = tolerance
        self.found: list[Channel] = []
        self.unexplained: list[Sighting] = []

    @property
    def complete(self) -> list[Channel]:
        """Those of which kernel and bias are proved."""
        return [
            channel
            for channel in self.found
            if channel.biased and channel.places >= _PLACES and sum(one.sure for one in channel.seen) >= _SURE
        ]

    def add(self, sightings: Iterable[Sighting]) -> None:
        """Put new sightings to the channels that they show, and look for new channels among the others."""
        for one in sightings:
            if len(one.particular) - one.free.shape[1] - 1 < _MARGIN or self._explained(one):
                continue
            channel = next((new for other in self.unexplained if (new := common(one, other, self.tolerance))), None)
            self.unexplained.append(one)
            if channel is not None:
                channel.settle(self.tolerance)
                self.found.append(channel)
                others = [other for other in self.unexplained if all(other is not seen for seen in channel.seen)]
                self.unexplained = [other for other in others if not self._explained(other)]

    def _explained(self, sighting: Sighting) -> bool:
        for channel in self.found:
            if channel.fits(sighting, self.tolerance):
                channel.seen.append(sighting)
                channel.settle(self.tolerance)
                return True
        return False

    def orient(self) -> None:
        """Turn every channel so that it is on where it is positive, as far as max-pools show."""
        for channel in self.found:
            channel.refit()
            votes = sum(_vote(self.geometry, one, channel.weights) for one in channel.seen)
            channel.weights = channel.weights * (-1.0 if votes < 0 else 1.0)
            channel.oriented = abs(votes) > _VOTES


def common(first: Sighting, second: Sighting, tolerance: float) -> Channel | None:
    """The channel that both show: the one vector of both subspaces, if there is just one.

    One of them must be sure: two that are not may both be taken for units beside them, with a shifted kernel.
    """
    if first.change is second.change or first.places == second.places or not (first.sure or second.sure):
        return None
    bias = not (first.pooled and second.pooled)
    a, b = first.basis(bias=bias), second.basis(bias=bias)
    if a.shape[1] + b.shape[1] > len(a) - _MARGIN:
        return None
    left, sizes, _ = np.linalg.svd(a.T @ b)
    if int((sizes > 1 - tolerance**2).sum()) != 1:
        return None
    channel = Channel(a @ left[:, 0])
    channel.seen = [one for one in (first, second) if channel.fits(one, tolerance)]
    return channel if len(channel.seen) == 2 else None


def _bias(sighting: Sighting, weights: Array) -> float:
    """The bias that this sighting of a ReLU says, for this kernel."""
    kernel, bias = sighting.equations[:, :-1] @ weights[:-1], sighting.equations[:, -1]
    return -float(kernel @ bias) / max(float(bias @ bias), 1e-300)


def _with_bias(free: Array) -> Array:
    """An orthonormal basis of this space and the bias."""
    others = free.copy()
    others[-1] = 0.0
    left, sizes, _ = np.linalg.svd(others, full_matrices=False)
    return np.hstack([left[:, sizes > _SHOWN], np.eye(len(free))[:, -1:]])


def _vote(geometry: Geometry, sighting: Sighting, weights: Array) -> float:
    """+1 if the pre-activations around this max-pool are as they must be, −1 if they are so the other way around."""
    if geometry.stage.pool is None or geometry.stage.pool.kind != "max":
        return 0.0
    cells = geometry.cells[(geometry.cells == sighting.places[0]).any(axis=1)]
    if not len(cells):  # a window that would reach out of the grid is left out
        return 0.0
    cell = cells[0]
    others = [int(i) for i in cell if i >= 0 and i not in sighting.places]
    value = {i: float(unit_rows(geometry, sighting.change.around, (i,))[:, -1] @ weights) for i in cell if i >= 0}
    if sighting.pooled:
        return float(np.sign(np.mean([value[i] for i in sighting.places])))
    return -float(np.sign(np.mean([value[i] for i in others]))) if others else 0.0
