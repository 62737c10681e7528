"""Cells: regions of the input in which the known layers are affine, chosen so that as many features are on as can be.

Inside such a region the next layer is like a first layer: its units are hyperplanes of the features, all features that
are on show at once, and no kink of a known layer gets in the way. Regions are polytopes, so linear programmes find them
and points in them; neither costs a query.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linprog

from relumine.oracle.base import Array
from relumine.reconstruct.deep.layers import Layers, Mask

# Points keep random distances from the walls, spread by this many powers of e: regions have long corners.
_SPREAD = 1.5
# A region must leave room for points this far from its walls, relative to its size.
_ROOM = 1e-5
# Number of further regions chosen at random.
_MORE = 2
# Extreme points are looked for this many times further out.
FURTHER = 8
# Features that are to be just on are at most this far on.
JUST_ON = 5e-4


@dataclass(frozen=True, eq=False)
class Region:
    """{x : walls·x + offsets > 0} within ``bounds``, and the affine map from x to the features there."""

    walls: Array
    offsets: Array
    slope: Array
    start: Array
    on: Mask
    bounds: tuple[float, float]

    def inside(
        self, rng: np.random.Generator, *, on_plane: tuple[Array, float] | None = None, small: Mask | None = None
    ) -> Array | None:
        """A point with random distances from the walls.

        ``on_plane``: on this hyperplane of the features, row·φ + bias = 0. ``small``: features that are just on.
        """
        share = np.exp(_SPREAD * rng.standard_normal(len(self.walls)))
        share /= share.max()
        if small is not None:
            share[-len(small) :][small] = 1e-4
        near = self._deepest(share, on_plane, small)
        if near is not None or on_plane is None:
            return near
        return replace(self, bounds=_wider(self.bounds))._deepest(share, on_plane, small)

    def _deepest(
        self, share: Array, on_plane: tuple[Array, float] | None = None, small: Mask | None = None
    ) -> Array | None:
        """The point whose distances from the walls are these shares of the largest number possible."""
        d = self.walls.shape[1]
        reach = np.linalg.norm(self.walls, axis=1) * share
        above, most = np.hstack([-self.walls, reach[:, None]]), self.offsets
        if small is not None:
            sizes = np.linalg.norm(self.slope[small], axis=1)
            above = np.concatenate([above, np.hstack([self.slope[small], np.zeros((len(sizes), 1))])])
            most = np.concatenate([most, JUST_ON * sizes - self.start[small]])
        equal: dict[str, Array] = {}
        if on_plane is not None:
            normal, offset = on_plane[0] @ self.slope, float(on_plane[0] @ self.start) + on_plane[1]
            size = float(np.linalg.norm(normal)) or 1.0
            equal = {"A_eq": np.append(normal / size, 0.0)[None], "b_eq": np.array([-offset / size])}
        found = linprog(
            np.append(np.zeros(d), -1.0), above, most, bounds=[self.bounds] * d + [(0, None)], method="highs", **equal
        )
        if found.status != 0 or found.x[-1] < _ROOM * (self.bounds[1] - self.bounds[0]):
            return None
        point: Array = found.x[:-1]
        return point

    def extreme(self, direction: Array, rng: np.random.Generator) -> Array | None:
        """A point far along this direction of the features, a little inside."""
        centre = self._deepest(np.ones(len(self.walls)))
        if centre is None:
            return None
        bounds = [_wider(self.bounds)] * len(centre)
        found = linprog(-(direction @ self.slope), -self.walls, self.offsets, bounds=bounds, method="highs")
        inward = rng.uniform(0.01, 0.04)  # corners are met again and again, and no point is to be asked twice
        return None if found.status != 0 else (1 - inward) * found.x + inward * centre


def _wider(bounds: tuple[float, float]) -> tuple[float, float]:
    return FURTHER * bounds[0], FURTHER * bounds[1]


def views(layers: Layers, bounds: tuple[float, float], rng: np.random.Generator) -> list[Region]:
    """Regions that together show every feature, if that can be: the first with as many on as possible."""
    found = [_rich_cell(layers, bounds, None)]
    for feature in range(layers.widths[-1]):
        if not any(cell.on[feature] for cell in found):
            found.append(_rich_cell(layers, bounds, None, prefer=feature))
    return found + [_rich_cell(layers, bounds, rng) for _ in range(_MORE)]


def cell_around(layers: Layers, point: Array, bounds: tuple[float, float], flip: int | None = None) -> Region:
    """The region of this point; or, if a feature is given, the one behind that feature's boundary."""
    masks = [signal[0] > 0 for signal in layers.signals(point[None])]
    if flip is not None:
        masks[-1][flip] ^= True
    return _cell(layers, bounds, lambda i, *_: masks[i])


def _rich_cell(
    layers: Layers, bounds: tuple[float, float], rng: np.random.Generator | None, prefer: int | None = None
) -> Region:
    """Layer by layer, the units that can be on together given those below: ``prefer`` above all, then at random."""

    def choose(i: int, walls: Array, offsets: Array, normals: Array, signals: Array) -> Mask:
        likes = np.ones(len(normals)) if rng is None else np.exp(2 * rng.standard_normal(len(normals)))
        if prefer is not None and i + 1 == len(layers):
            likes[prefer] = 100.0
        return normals @ _most_on(walls, offsets, normals, signals, likes, bounds) + signals > 0

    return _cell(layers, bounds, choose)


def _cell(layers: Layers, bounds: tuple[float, float], choose: Callable[..., Mask]) -> Region:
    """The region in which those units are on that ``choose`` names layer by layer, given the walls so far."""
    d = layers.rows[0].shape[1]
    slope, start = np.eye(d), np.zeros(d)
    walls, offsets = np.empty((0, d)), np.empty(0)
    on = np.ones(d, dtype=bool)
    for i, (rows, biases) in enumerate(zip(layers.rows, layers.biases, strict=True)):
        normals, signals = rows @ slope, rows @ start + biases
        on = choose(i, walls, offsets, normals, signals)
        side = np.where(on, 1.0, -1.0)
        walls = np.concatenate([walls, normals * side[:, None]])
        offsets = np.concatenate([offsets, signals * side])
        slope, start = normals * on[:, None], signals * on
    return Region(walls, offsets, slope, start, on & (np.linalg.norm(slope, axis=1) > 0), bounds)


def _most_on(
    walls: Array, offsets: Array, normals: Array, signals: Array, likes: Array, bounds: tuple[float, float]
) -> Array:
    """A point inside the walls at which many of these signals are positive by a margin, those most liked first."""
    d, count = walls.shape[1], len(normals)
    margin = 0.02 * (bounds[1] - bounds[0])
    sizes = np.linalg.norm(normals, axis=1)
    room = np.linalg.norm(walls, axis=1) * margin / 4
    # Unknowns: the point, and for every signal min(distance, margin), whose weighted sum is to be large.
    found = linprog(
        np.concatenate([np.zeros(d), -likes]),
        A_ub=np.block([[-walls, np.zeros((len(walls), count))], [-normals, np.diag(sizes)]]),
        b_ub=np.concatenate([offsets - np.minimum(room, 1e9), signals]),
        bounds=[bounds] * d + [(None, margin)] * count,
        method="highs",
    )
    point: Array = found.x[:d] if found.status == 0 else np.zeros(d)
    return point
