"""The architecture of a convolutional network, told by where the rows of its units lie (``patches.py``).

Weight sharing tells the kernel: a patch that returns elsewhere. Its places tell the stride; what is cut off of it at
the borders, the padding; the patches that are a difference of it at two places, the max-pool. Units that are averaged
switch with the same effect on the outputs. Later layers, whose rows overlap, are told by trying: the stage whose
channels explain most of what was seen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import gcd

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.channels import Channels
from relumine.reconstruct.convolutional.layers import Front, Geometry, Layer, Pair, Pool, Shape, Stage
from relumine.reconstruct.convolutional.patches import Patch, patches_in, similar
from relumine.reconstruct.convolutional.segments import Segments
from relumine.reconstruct.convolutional.sightings import Change, Observation, sightings_in
from relumine.reconstruct.result import Outcome, Stop

# So many sightings of kernels tell a stride: one twice too large has a chance of 2^-9 along each axis. Some of them are
# whole and return elsewhere. Within so many pairs of points; without a patch among the first rows, or in the first
# pairs, there are none.
_KERNELS, _WHOLE, _PAIRS, _NONE, _ROWS = 10, 4, 90, 12, 24
# So many at a border tell the padding: with kernels of 5x5 a third of them show all of it.
_BORDER, _BORDER_PAIRS = 16, 20
# Max-pools and average pools that are looked for: size and stride.
_POOLS = ((2, 2), (3, 3), (3, 2))
# Of a max-pool more patches than this share of the kernels seen are differences; of an average pool a few are, where
# two units that it joins switch at once.
_TURNS = 0.1
# Kernels of later layers that are tried, and the largest part of what was seen that is looked at for them.
_SIZES, _SEEN = (3, 5, 1), 40
# So many pairs more are asked where none of these is seen.
_MORE = 15
# A max-pool explains so many times more: most units that switch are those that it turns from one to another.
_TURNED = 1.25


@dataclass(frozen=True, eq=False)
class Kernel:
    """A patch that is a kernel, and the place of its first number: outside of the image where it is cut off."""

    content: Array
    place: Pair


@dataclass(eq=False)
class Architecture:
    """Tells one stage after the other.

    ask: from a point to the answer there; start: a fresh image, and how strong it is at each pixel
    tolerance: how much two directions may differ that are the same
    """

    shape: Shape
    segments: Segments
    ask: Callable[[Array], Observation]
    start: Callable[[], tuple[Array, Array]]
    tolerance: Callable[[], float]
    rng: np.random.Generator
    found: list[tuple[Patch, Change]] = field(default_factory=list)
    effects: list[tuple[Patch, Array]] = field(default_factory=list)

    def first(self) -> Stage:
        """The first stage; a ``Stop`` where there is none to be told."""
        rows = 0
        for count in range(_PAIRS):
            change = self.segments.next(*self._pixels())
            self._look(change)
            rows += 0 if change.full else len(change.rows)
            kernels = self._kernels()
            if len(kernels) >= _WHOLE and len(self._placed(kernels)) >= _KERNELS:
                self._look_at_borders(kernels)
                return self._stage(self._kernels())
            if not self.found and (rows >= _ROWS or count >= _NONE):
                raise Stop(Outcome.NOT_THIS_CLASS, "no unit reads a small part of the image alone")
        raise Stop(Outcome.NOT_THIS_CLASS, "no kernel was seen at several places")

    def _pixels(self) -> tuple[Front, Layer]:
        front = Front(self.shape)
        return front, nothing(front)

    def _look(self, change: Change) -> list[Patch]:
        new = patches_in(change, self.shape, self.tolerance())
        self.found += [(one, change) for one in new]
        if len(new) == len(change.rows) and len(new):
            first, second = self.segments.pairs[-1]
            left = (second.piece(first.point) - first.piece(first.point))[:, :-1] @ change.rows[:, :-1].T
            rows = np.array([one.coordinates for one in new])
            gram = change.rows[:, :-1] @ change.rows[:, :-1].T
            effects = left @ np.linalg.inv(rows @ gram)
            self.effects += list(zip(new, effects.T, strict=True))
        return new

    def _kernels(self) -> list[Patch]:
        """The patches that are kernels: square, not cut off, the smallest that return at other places."""
        whole = [one for one, _ in self.found if one.inside(self.shape) and _square(one, self.tolerance())]
        again = [one for one in whole if any(self._returns(one, other) for other in whole)]
        side = min((one.size[0] for one in again), default=0)
        return [one for one in again if one.size[0] == side]

    def _returns(self, one: Patch, other: Patch) -> bool:
        return one.corner != other.corner and one.shows(other.content, self.tolerance())

    def _look_at_borders(self, whole: list[Patch]) -> None:
        """Points that differ in the outermost pixels alone, where only units switch that read them."""
        frame = np.ones(self.shape)
        frame[:, 1:-1, 1:-1] = 0.0
        step, before = 1.0, len(self.found)
        for _ in range(_BORDER_PAIRS):
            point, strength = self.start()
            move = step * frame.ravel() * strength * self.rng.standard_normal(frame.size)
            self.segments.pairs.append((self.ask(point), self.ask(point + move)))
            change = self.segments.change(*self._pixels(), self.segments.pairs[-1])
            self._look(change)
            step *= 0.3 if change.full else 2.0 if len(change.rows) < 3 else 1.0
            if len(self._placed(whole, before)) >= _BORDER:
                return

    # -- what patches say

    def _stage(self, whole: list[Patch]) -> Stage:
        kernels = self._placed(whole)
        side = whole[0].size[0]
        places = np.array([one.place for one in kernels])
        padding = max(0, -int(places.min()), int((places + side - np.array(self.shape[1:])).max()))
        stride = gcd(*(int(n) for n in (places + padding).ravel()))
        if not 1 <= stride <= side:
            raise Stop(Outcome.NOT_THIS_CLASS, "kernels were not seen at enough places")
        stage = Stage((side, side), (stride, stride), (padding, padding))
        return replace(stage, pool=self._pool(stage, kernels))

    def _placed(self, whole: list[Patch], since: int = 0) -> list[Kernel]:
        """The patches that are one of these kernels, whole or cut off at the borders."""
        kinds: list[Array] = []
        for one in whole:
            if not any(one.shows(kind, self.tolerance()) for kind in kinds):
                kinds.append(one.content)
        placed = [self._as_kernel(one, kind) for one, _ in self.found[since:] for kind in kinds]
        return [one for one in placed if one is not None]

    def _as_kernel(self, patch: Patch, kind: Array) -> Kernel | None:
        """The patch as this kernel, cut off where it touches a border; None if it is not."""
        cuts, place = [slice(None)], []
        for a, n, most, side in zip(patch.corner, patch.size, self.shape[1:], kind.shape[1:], strict=True):
            if n > side or (n < side and a > 0 and a + n < most):
                return None
            before = side - n if a == 0 else 0
            cuts.append(slice(before, before + n))
            place.append(a - before)
        shown = patch.shows(kind[tuple(cuts)], self.tolerance())
        return Kernel(kind, (place[0], place[1])) if shown else None

    def _pool(self, stage: Stage, kernels: list[Kernel]) -> Pool | None:
        """The max-pool by pairs of places that turned, or an average pool by effects that are the same."""
        kinds: list[Array] = []
        for one in kernels:
            if not any(one.content is kind for kind in kinds):
                kinds.append(one.content)
        turned = [pair for one, _ in self.found for pair in self._turned(one, kinds, stage)]
        if len(turned) > _TURNS * len(kernels):
            return next((pool for pool in _pools("max") if all(_joined(pool, *pair) for pair in turned)), None)
        alike = self._alike(stage, kinds)
        rows, columns = Geometry(stage, self.shape).grid
        pools = [*_pools("average"), Pool("average", (rows, columns), (rows, columns))]
        return next((pool for pool in pools if alike and all(_joined(pool, *pair) for pair in alike)), None)

    def _turned(self, patch: Patch, kinds: list[Array], stage: Stage) -> list[tuple[Pair, Pair]]:
        """The two units, by their places in the grid, of whose kernels the patch is the difference."""
        more = [n - k for n, k in zip(patch.size, stage.kernel, strict=True)]
        if not patch.inside(self.shape) or min(more) < 0 or max(more) < 1:
            return []
        for kind, turn in product(kinds, (False, True)):
            image = np.zeros(patch.content.shape)
            corners = [(0, more[1] if turn else 0), (more[0], 0 if turn else more[1])]
            for (y, x), sign in zip(corners, (1.0, -1.0), strict=True):
                image[:, y : y + stage.kernel[0], x : x + stage.kernel[1]] += sign * kind
            if similar(patch.content, image, self.tolerance()):
                places = [self._unit(stage, (patch.corner[0] + y, patch.corner[1] + x)) for y, x in corners]
                return [(places[0], places[1])]
        return []

    def _unit(self, stage: Stage, place: Pair) -> Pair:
        y, x = ((a + p) // s for a, p, s in zip(place, stage.padding, stage.stride, strict=True))
        return y, x

    def _alike(self, stage: Stage, kinds: list[Array]) -> list[tuple[Pair, Pair]]:
        """Units of one channel that had the same effect on the outputs, which nothing but an average gives them."""
        seen = [
            (i, self._unit(stage, one.place), effect)
            for patch, effect in self.effects
            for i, kind in enumerate(kinds)
            if (one := self._as_kernel(patch, kind)) is not None
        ]
        return [
            (here, there)
            for (i, here, a), (j, there, b) in combinations(seen, 2)
            if i == j and here != there and similar(a, b, self.tolerance())
        ]

    # -- later layers

    def next(self, front: Front) -> Stage | None:
        """The stage behind these layers of which most was seen; None if nothing was."""
        sizes = [Stage((k, k), (1, 1), (k // 2, k // 2)) for k in _SIZES]
        changes = self.segments.again(front, nothing(front))[-_SEEN:]
        best, score = self._best(sizes, front, changes)
        if not score:
            changes += [self.segments.next(front, nothing(front)) for _ in range(_MORE)]
            best, score = self._best(sizes, front, changes)
        if not score:
            return None
        k, n = best.kernel[0], min(front.outputs[1:])
        moved = [replace(best, stride=(s, s), padding=(p, p)) for s in (2, 1) for p in sorted({0, k // 2})]
        best, score = self._best(moved, front, changes)
        for pool in _pools("max"):
            if n > pool.size[0] and self._explained(replace(best, pool=pool), front, changes) > _TURNED * score:
                return replace(best, pool=pool)
        return best

    def _best(self, stages: list[Stage], front: Front, changes: list[Change]) -> tuple[Stage, int]:
        """The first of those that explain most."""
        scores = [self._explained(stage, front, changes) for stage in stages]
        return stages[int(np.argmax(scores))], max(scores)

    def _explained(self, stage: Stage, front: Front, changes: list[Change]) -> int:
        """Sightings that fit a channel, of those channels that were seen at enough places."""
        geometry = Geometry(stage, front.outputs)
        if min(geometry.grid) < 1 or min(geometry.pooled) < 1:
            return 0
        channels = Channels(geometry, self.tolerance())
        for change in changes:
            channels.add(sightings_in(front, geometry, change, self.tolerance()))
        return sum(len(one.seen) for one in channels.found if one.places > 2)


def nothing(front: Front) -> Layer:
    """A layer behind these of which no channel is known."""
    channels = front.outputs[0]
    return Layer(Geometry(Stage((1, 1)), front.outputs), np.zeros((0, channels)), np.zeros(0))


def _pools(kind: str) -> list[Pool]:
    return [Pool(kind, (size, size), (stride, stride)) for size, stride in _POOLS]  # type: ignore[arg-type]


def _joined(pool: Pool, first: Pair, second: Pair) -> bool:
    """Whether one window of the pool holds both units."""
    return all(
        max(a, b) < min(a, b) // stride * stride + size
        for a, b, size, stride in zip(first, second, pool.size, pool.stride, strict=True)
    )


def _square(patch: Patch, tolerance: float) -> bool:
    """Whether it may be a kernel: differences of kernels are not square, or zero in a corner."""
    corners = np.abs(patch.content[:, [0, 0, -1, -1], [0, -1, 0, -1]]).max(axis=0)
    return patch.size[0] == patch.size[1] and bool((corners > max(1e-4, 10 * tolerance)).all())
