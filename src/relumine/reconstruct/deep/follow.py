"""Follow a deeper unit's boundary across the boundaries of the last known layer's units.

Where it meets the boundary of unit k it bends: its normal n changes by A_k·n_k, where A_k is the deeper unit's weight
for k. So crossing all of them tells its whole row, also where more features are on than there are inputs, and whichever
way around the units are turned. At a corner of its region many can be crossed at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from relumine.oracle.base import Array
from relumine.reconstruct.deep.layers import Layers, Mask
from relumine.reconstruct.deep.search import Search

# The boundary is looked for again on a stretch this many times as long as it is away from the corner.
_WIDE = 20.0
# Corners lie within this distance of the origin in every coordinate.
REACH = 32.0
# So many corners are visited of one boundary, and so many of these may show nothing.
_CORNERS = 10
_FAILURES = 3


@dataclass(eq=False)
class Boundary:
    """A deeper unit's boundary: a point of it, its normal there, and its weights for the units it was followed across.

    The normal keeps its scale from region to region, and the weights have the same.
    """

    point: Array
    normal: Array
    weights: Array
    known: Mask


@dataclass(frozen=True, eq=False)
class _Corner:
    """Where boundaries meet: of which units, their normals and on which side of them we are; and the other walls."""

    point: Array
    meeting: NDArray[np.intp]
    normals: Array
    side: Array


class Follower:
    """Follows boundaries across those of the last of these layers; the ones below are left alone."""

    def __init__(self, layers: Layers, search: Search) -> None:
        self.layers = layers
        self.search = search

    def boundary(self, point: Array, normal: Array) -> Boundary:
        """One that is to be followed from here."""
        width = self.layers.widths[-1]
        return Boundary(point, normal, np.zeros(width), np.zeros(width, dtype=bool))

    def follow(self, boundary: Boundary) -> bool:
        """From corner to corner; whether all of its weights are known then."""
        failed = 0
        for _ in range(_CORNERS):
            if boundary.known.all() or failed >= _FAILURES:
                break
            corner = self._corner(boundary)
            if corner is None:
                failed += 1
                continue
            new = corner.meeting[~boundary.known[corner.meeting]][: len(corner.point) - 2]
            if not len(new):
                self._pass(boundary, corner)
            elif not self._cross(boundary, corner, new):
                failed += 1
        return bool(boundary.known.all())

    def local(self, point: Array) -> tuple[Array, Array]:
        """Normals and signals of the last layer's units in the region of this point."""
        return self.layers.slopes(point[None])[-1][0], self.layers.signals(point[None])[-1][0]

    def _corner(self, boundary: Boundary) -> _Corner | None:
        """A corner of the region on the boundary, close to units' boundaries that it was not followed across yet."""
        point = boundary.point
        signals = np.concatenate([each[0] for each in self.layers.signals(point[None])])
        slopes = np.concatenate([each[0] for each in self.layers.slopes(point[None])])
        side = np.where(signals > 0, 1.0, -1.0)
        sizes = np.linalg.norm(slopes, axis=1)
        last = slice(len(slopes) - len(boundary.known), None)
        room = np.minimum(1e-3 * sizes, np.abs(signals) / 2)  # from the boundaries of the layers below
        room[last] = 0.0
        likes = np.where(boundary.known, 0.0, self.search.rng.exponential(size=len(boundary.known)) ** 2)
        found = linprog(
            (likes * side[last] / np.maximum(sizes[last], 1e-12)) @ slopes[last],
            -slopes * side[:, None],
            side * (signals - slopes @ point) - room,
            boundary.normal[None],
            np.array([boundary.normal @ point]),
            bounds=[(-REACH, REACH)] * len(point),
            method="highs",
        )
        if found.status != 0:
            return None
        there = slopes[last] @ (found.x - point) + signals[last]
        close = 1e-7 * sizes[last] * (1 + float(np.linalg.norm(found.x)))
        meeting = np.flatnonzero((np.abs(there) <= close) & (sizes[last] > 0))
        normals = slopes[last][meeting]
        system = np.concatenate([normals, boundary.normal[None]])
        exactly = np.linalg.lstsq(system, np.append(-there[meeting], 0.0), rcond=1e-10)[0]
        return _Corner(found.x + exactly, meeting, normals, side[last][meeting])

    def _behind(self, boundary: Boundary, corner: _Corner, crossed: Mask) -> tuple[Array, Array]:
        """A little step from the corner across these of the units that meet there, and a direction across the boundary.

        The step stays on this side of the other units; the direction comes closer to none of those that meet there.
        """
        sizes = np.linalg.norm(corner.normals, axis=1)
        way = np.where(crossed, -corner.side, corner.side) * sizes
        system = np.concatenate([corner.normals, boundary.normal[None]])
        step = np.linalg.lstsq(system, np.append(way, 0.0), rcond=1e-10)[0]
        step *= (
            self.search.precision.beside
            * (1 + float(np.linalg.norm(corner.point)))
            / max(float(np.linalg.norm(step)), 1e-12)
        )
        free = complement(corner.normals)
        return step, free.T @ (free @ boundary.normal)

    def _pass(self, boundary: Boundary, corner: _Corner) -> None:
        """Go on behind units whose weights are known: where the boundary runs there is known too, without a query."""
        crossed = self.search.rng.random(len(corner.meeting)) < 0.5
        step, along = self._behind(boundary, corner, crossed)
        turned = -corner.side * boundary.weights[corner.meeting] * crossed
        normal = boundary.normal + turned @ corner.normals
        if abs(float(normal @ along)) > 1e-3 * np.linalg.norm(normal) * np.linalg.norm(along):
            boundary.point = corner.point + step - along * float(normal @ step) / float(normal @ along)
            boundary.normal = normal

    def _cross(self, boundary: Boundary, corner: _Corner, new: NDArray[np.intp]) -> bool:
        """Look for the boundary behind these units at the corner; whether it was there."""
        crossed = np.isin(corner.meeting, new)
        step, along = self._behind(boundary, corner, crossed)
        scale, steepness = float(np.linalg.norm(boundary.normal)), float(np.linalg.norm(along))
        if steepness < 1e-3 * scale:
            return False
        centre, small = corner.point + step, float(np.linalg.norm(step))
        reach = along * _WIDE * small * scale / steepness**2
        first = len(self.search.book.steps().left)
        if not self.search.stretch(centre - reach, centre + reach):
            return False
        normals = corner.normals[crossed]
        for kink, normal in self._kinks(first):
            factors, _, rank, _ = np.linalg.lstsq(
                np.concatenate([normal[None], normals]).T, boundary.normal, rcond=1e-10
            )
            rest = boundary.normal - factors[0] * normal - factors[1:] @ normals
            met = abs(float(normal @ (kink - corner.point))) <= 1e-2 * small
            if rank == len(factors) and met and np.linalg.norm(rest) <= 100 * self.search.precision.same * scale:
                boundary.weights[new] = factors[1:] * corner.side[crossed]
                boundary.known[new] = True
                boundary.point, boundary.normal = kink, factors[0] * normal
                return True
        return False

    def _kinks(self, first: int) -> list[tuple[Array, Array]]:
        """Where the steps since have kinks, and their normals."""
        kinks, steps = self.search.book.kinks(first)
        return [(kinks[i], steps.normals[i]) for i in np.flatnonzero(steps.kinked)]


def complement(vectors: Array) -> Array:
    """Orthonormal rows that span what is orthogonal to these rows."""
    if not len(vectors):
        return np.eye(vectors.shape[1])
    _, sizes, basis = np.linalg.svd(vectors)
    return np.asarray(basis[int((sizes > 1e-9 * sizes[0]).sum()) :])
