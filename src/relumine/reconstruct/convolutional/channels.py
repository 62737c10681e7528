"""Channels: kernels and biases that several sightings agree on.

Weight sharing is the proof. A sighting leaves its channel's kernel in a small subspace of all kernels; two such
subspaces of different channels, or of what is no unit of this layer, have no common vector, unless by chance.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.layers import Geometry, Layer
from relumine.reconstruct.convolutional.sightings import SAME, Sighting

# A common vector of two subspaces is proved by so many more dimensions than they need.
_MARGIN = 3
# So many places at which it was seen make a channel; two may agree by chance where images are small. Sightings at one
# place are no proof: what is no unit of this layer looks there like itself.
_PLACES = 3
# So many of them must be sure, since others may be taken for units beside them; where more places agree, one is enough.
_SURE, _AGREED = 2, 5
# Turns of reweighting, the misfit that rounding may leave, and the sightings that are fitted: the best ones.
_REWEIGHTED, _ROUNDING, _FITTED = 4, 1e-15, 40
# So many sightings prove a bias, which agree up to a multiple of the tolerance for directions.
_BIASES, _ALIKE = 2, 1e2
# A vector of which less than this part is seen is not seen.
_SHOWN = 0.1
# A kernel of one number only is no channel: where a known unit switches although rounding hides it, its own row shows.
_ALONE = 0.999
# A unit that takes part in a max-pool is on, and its neighbours are below it: so many votes more for one orientation.
_VOTES = 1.0


@dataclass(eq=False)
class Channel:
    """``kernel``: t numbers, of length one, but for what is in the span of ``free`` (t×k), which nothing shows so far.

    bias: None until sightings agree on it: max-pools do not show it, and one sighting of a ReLU may be another unit's
    seen: its sightings
    """

    kernel: Array
    free: Array
    bias: float | None = None
    seen: list[Sighting] = field(default_factory=list)
    oriented: bool = False

    @property
    def places(self) -> int:
        """At how many places it was seen."""
        return len({one.places for one in self.seen})

    @property
    def complete(self) -> bool:
        """Whether kernel and bias are proved."""
        known = self.bias is not None and not self.free.shape[1]
        sure = sum(one.sure for one in self.seen)
        return known and self.places >= (_PLACES if sure >= _SURE else _AGREED) and sure > 0

    @property
    def alone(self) -> bool:
        """Whether one number is all of the kernel: then it is a known feature, of which nothing shows beside it."""
        return not self.free.shape[1] and float(np.abs(self.kernel).max()) > _ALONE

    def takes(self, sighting: Sighting, tolerance: float) -> bool:
        """Take one more sighting of it, unless it is none, or one that shows nothing of it."""
        found = common(self.kernel, self.free, sighting.kernel, sighting.free, tolerance)
        if found is None or not self._bias_fits(sighting, tolerance):
            return False
        self.seen.append(sighting)
        if self.free.shape[1]:
            self.kernel, self.free = found
        self.settle(tolerance)
        return True

    def _bias_fits(self, sighting: Sighting, tolerance: float) -> bool:
        if self.bias is None or sighting.pooled or self.free.shape[1]:
            return True
        return abs(sighting.bias(self.kernel) - self.bias) <= _ALIKE * tolerance * (1 + abs(self.bias))

    def settle(self, tolerance: float) -> None:
        """Learn the bias once two sightings agree on it; those that say otherwise are not of this channel."""
        shown = [one for one in self.seen if not one.pooled]
        if self.bias is not None or self.free.shape[1] or len(shown) < _BIASES:
            return
        self.refit()
        biases = np.array([one.bias(self.kernel) for one in shown])
        near = np.abs(biases[:, None] - biases) <= _ALIKE * tolerance * (1 + np.abs(biases))
        if near.sum(axis=1).max() < _BIASES:
            return
        agree = near[int(near.sum(axis=1).argmax())]
        self.seen = [one for one in self.seen if one.pooled]
        self.seen += [one for one, right in zip(shown, agree, strict=True) if right]
        self.refit()
        self.bias = _best([one for one, right in zip(shown, agree, strict=True) if right], self.kernel)

    def refit(self) -> None:
        """The vector that the best sightings agree on, by least squares in which each counts as exact as it is."""
        best = sorted(self.seen, key=lambda one: one.error)[:_FITTED]
        parts = [one.kernel_equations for one in best]
        misfits = np.ones(len(parts))
        for _ in range(_REWEIGHTED):
            weighed = [part / misfit for part, misfit in zip(parts, misfits, strict=True)]
            stack = np.concatenate([*weighed, self.free.T / misfits.min()])
            vector = np.linalg.svd(np.linalg.qr(stack, mode="r"))[2][-1]
            misfits = np.array([np.linalg.norm(part @ vector) for part in parts]) + _ROUNDING
        self.kernel = vector * np.sign(vector @ self.kernel)
        shown = [one for one in best if not one.pooled]
        if self.bias is not None and shown:
            self.bias = _best(shown, self.kernel)


class Channels:
    """The channels of one layer, as they are found."""

    def __init__(self, geometry: Geometry, tolerance: float) -> None:
        self.geometry = geometry
        self.tolerance = tolerance
        self.found: list[Channel] = []
        self.unexplained: list[Sighting] = []

    def restart(self) -> None:
        """Keep what is proved; everything else is seen again, better, once proved channels are taken away."""
        self.found = [channel for channel in self.found if channel.complete]
        self.unexplained = []

    def layer(self) -> Layer:
        """The channels of which kernel, bias and orientation are proved."""
        complete = [channel for channel in self.found if channel.complete]
        self.orient(complete)
        proved = [channel for channel in complete if channel.oriented]
        proved = sorted(proved, key=lambda one: -len(one.seen))[: self.geometry.stage.channels]
        kernels = np.array([one.kernel for one in proved]).reshape(len(proved), self.geometry.taps.shape[1])
        return Layer(self.geometry, kernels, np.array([one.bias for one in proved], dtype=np.float64))

    @property
    def progress(self) -> tuple[int, int, int]:
        """What grows while channels are found: their number, numbers of kernels shown, and proved channels."""
        free = sum(channel.free.shape[1] for channel in self.found)
        return len(self.found), -free, sum(channel.complete for channel in self.found)

    @property
    def whole(self) -> bool:
        """Whether all channels are proved."""
        wanted, complete = self.geometry.stage.channels, self.progress[2]
        return wanted is not None and complete >= wanted

    @property
    def pending(self) -> list[Channel]:
        """Those of which nothing but the bias is missing."""
        return [channel for channel in self.found if channel.bias is None and not channel.free.shape[1]]

    def add(self, sightings: Iterable[Sighting]) -> None:
        """Put new sightings to the channels that they show, and look for new channels among the others."""
        left = self._left([one for one in sightings if len(one.kernel) - one.free.shape[1] - 1 >= _MARGIN])
        self.found = [channel for channel in self.found if not channel.alone]
        for one in left:
            channel = next((new for other in self.unexplained if (new := paired(one, other, self.tolerance))), None)
            self.unexplained.append(one)
            if channel is not None:
                channel.settle(self.tolerance)
                self.found.append(channel)
                others = [other for other in self.unexplained if all(other is not seen for seen in channel.seen)]
                self.unexplained = self._left(others)

    def _left(self, sightings: list[Sighting]) -> list[Sighting]:
        """Those that no channel explains, and that are not what an explained one was taken for besides."""
        taken = [any(channel.takes(one, self.tolerance) for channel in self.found) for one in sightings]
        rows: dict[int, list[Array]] = {}
        for one, right in zip(sightings, taken, strict=True):
            if right:
                rows.setdefault(id(one.change), []).append(one.row)
        return [
            one
            for one, right in zip(sightings, taken, strict=True)
            if not right and all(abs(one.row @ row) <= SAME for row in rows.get(id(one.change), []))
        ]

    def orient(self, channels: list[Channel]) -> None:
        """Turn these channels so that they are on where they are positive, as far as max-pools show."""
        for channel in channels:
            channel.refit()
            votes = sum(_vote(self.geometry, one, channel) for one in channel.seen)
            if votes < 0:
                channel.kernel = -channel.kernel
                channel.bias = None if channel.bias is None else -channel.bias
            channel.oriented = abs(votes) > _VOTES


def paired(first: Sighting, second: Sighting, tolerance: float) -> Channel | None:
    """The channel that both show, if they do.

    One of them must be sure: two that are not may both be taken for units beside them, with a shifted kernel.
    """
    if first.change is second.change or first.places == second.places or not (first.sure or second.sure):
        return None
    found = common(first.kernel, first.free, second.kernel, second.free, tolerance)
    return None if found is None else Channel(*found, seen=[first, second])


def common(kernel: Array, free: Array, other: Array, others: Array, tolerance: float) -> tuple[Array, Array] | None:
    """The one kernel in span(kernel, free) and span(other, others), but for what is free in both, which comes with it.

    None if there is none, or if so few numbers are shown that any two would have one.
    """
    if free.shape[1] > others.shape[1]:
        kernel, free, other, others = other, others, kernel, free
    left, sizes, right = np.linalg.svd(free.T @ others)
    both = int((sizes > 1 - tolerance**2).sum())
    unknown = free @ left[:, :both]
    a = np.hstack([kernel[:, None], free @ left[:, both:]])
    b = np.hstack([other[:, None], others @ right[both:].T])
    if a.shape[1] + b.shape[1] > len(kernel) - both - _MARGIN:
        return None
    turn, sizes, _ = np.linalg.svd(a.T @ b)
    if int((sizes > 1 - tolerance**2).sum()) != 1:
        return None
    vector = a @ turn[:, 0]
    if min(abs(vector @ kernel), abs(vector @ other)) < _SHOWN or np.abs(vector).max() > _ALONE:
        return None
    return vector, unknown


def _best(sightings: list[Sighting], kernel: Array) -> float:
    """The bias that they say, each as far as it is exact."""
    weights = 1 / (np.array([one.error for one in sightings]) + _ROUNDING) ** 2
    return float(weights @ [one.bias(kernel) for one in sightings] / weights.sum())


def _vote(geometry: Geometry, sighting: Sighting, channel: Channel) -> float:
    """+1 if the pre-activations around this max-pool are as they must be, −1 if they are so the other way around."""
    if geometry.stage.pool is None or geometry.stage.pool.kind != "max":
        return 0.0
    cells = geometry.cells[(geometry.cells == sighting.places[0]).any(axis=1)]
    if not len(cells):  # a window that would reach out of the grid is left out
        return 0.0
    cell = cells[0]
    others = [int(i) for i in cell if i >= 0 and i not in sighting.places]
    wanted = sighting.places if sighting.pooled else others
    if not wanted:
        return 0.0
    taps = geometry.taps[list(wanted)]
    values = np.where(taps >= 0, sighting.change.around.values[taps], 0.0) @ channel.kernel + (channel.bias or 0.0)
    return float(np.sign(values.mean())) * (1.0 if sighting.pooled else -1.0)
