"""Sightings: rows of single units of the next layer, found in what changes between two neighbouring points."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy.linalg import svd

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.layers import Around, Front, Geometry, Indices, Layer, Pair

# Weight of the intercept beside the gradients: so small that rows at different places stay nearly orthogonal although
# all have an intercept, and so large that it keeps its digits.
_INTERCEPT = 1e-2
# Of what lies outside of a unit's receptive field: a row of a unit has none but by what known rows share with it.
_OUTSIDE = 5e-2
# Of what lies within: some of it is taken away with known rows.
_INSIDE = 0.5
# Singular values below this part of the largest are not told from zero.
_RANK = 1e-6
# Known units that switched may span this part of all directions; others hardly show beside more.
_CROWDED = 0.5
# The ridge of normal equations, of their trace, and what they may leave of a row that is explained.
_RIDGE, _NEARLY, _TINY = 1e-12, 0.1, 1e-300
# The cosine from which on two rows are the same.
SAME = 1 - 1e-6


@dataclass(frozen=True, eq=False)
class Observation:
    """A point that was asked, with logits and Jacobian there."""

    point: Array
    values: Array
    jacobian: Array

    def piece(self, centre: Array) -> Array:
        """K×(d+1): [J, value at ``centre``] of the affine function around this point."""
        values = self.values + self.jacobian @ (centre - self.point)
        return np.hstack([self.jacobian, values[:, None]])

    @cached_property
    def scales(self) -> Array:
        """The singular values of the Jacobian."""
        return np.asarray(np.linalg.svd(self.jacobian, compute_uv=False))


@dataclass(frozen=True, eq=False)
class Change:
    """What is left of the change between two points once known units are taken away.

    rows:   m×(d+1), orthonormal: the space of rows of the unknown units that switched
    known:  (d+1)×f, orthonormal: the space of the rows of the known ones
    full:   whether more units may have switched than can show, or known ones leave too little of the rows
    most:   how many can: as many as there are outputs, or units on in a later layer
    """

    around: Around
    rows: Array
    known: Array
    full: bool
    most: int


@dataclass(frozen=True, eq=False)
class Sighting:
    """A row that belongs to one channel, as a condition on its kernel (t numbers) and bias.

    All kernels in span(``kernel``, ``free``) have this row: ``kernel`` t numbers of length one; ``free`` t×k,
    orthonormal, is what nothing shows here, for it was off or lies in the padding.
    row: m numbers, in the basis of the change
    places: one place for a ReLU that switched, two for a max-pool that turned from one to the other
    equations: k×(t+1), that kernel and bias solve: in units of the row, so that many of them are weighed as exact as
        they are; a max-pool shows no bias, and leaves zeros for it
    error: how much of the row they do not explain
    sure: whether nothing else explains the row, and no part of the kernel lies in the padding, where others look alike
    """

    change: Change
    places: tuple[int, ...]
    row: Array
    kernel: Array
    free: Array
    equations: Array
    error: float
    sure: bool

    @property
    def pooled(self) -> bool:
        """Whether a max-pool turned from one unit to another, which shows no bias."""
        return len(self.places) == 2

    @property
    def kernel_equations(self) -> Array:
        """k×t: those for the kernel alone."""
        bias = self.equations[:, -1:]
        length = float(np.linalg.norm(bias))
        unit = bias / length if length else bias
        kernels = self.equations[:, :-1]
        return np.asarray(kernels - unit @ (unit.T @ kernels))

    def bias(self, kernel: Array) -> float:
        """The bias that this sighting of a ReLU says, for this kernel."""
        left, bias = self.equations[:, :-1] @ kernel, self.equations[:, -1]
        return -float(left @ bias) / max(float(bias @ bias), 1e-300)


def change_between(front: Front, layer: Layer, first: Observation, second: Observation, error: float) -> Change:
    """What neither the front nor the known channels of the next layer explain.

    error: the length that the change of a piece may have where nothing switched
    """
    around, there = front.at(first.point), front.at(second.point)
    switched = (around.through(layer), there.through(layer)) if len(layer.kernels) else (around, there)
    change = _weighted(second.piece(first.point) - first.piece(first.point))
    known = _weighted(switched[0].switched(switched[1]).toarray())
    basis = np.linalg.svd(known, full_matrices=False) if len(known) else None
    space = np.empty((change.shape[1], 0)) if basis is None else basis[2][basis[1] > _RANK * basis[1][0]].T
    left = change - (change @ space) @ space.T
    _, sizes, rows = np.linalg.svd(left, full_matrices=False)
    rank = int((sizes > error).sum())
    shown = min(int((one.scales > error).sum()) for one in (first, second))
    crowded = space.shape[1] > _CROWDED * len(space)
    return Change(around, rows[:rank], space, rank >= shown or crowded, shown)


def sightings_in(front: Front, geometry: Geometry, change: Change, tolerance: float) -> list[Sighting]:
    """What the change shows of the layer of this geometry that follows the front."""
    if change.full or not len(change.rows):
        return []
    pieces = change.around.pieces.toarray()
    likely = (_sighting(geometry, change, pieces, places, tolerance) for places in _likely(front, geometry, change))
    found = [one for one in likely if one is not None]
    alike = np.array([[abs(one.row @ other.row) > SAME for other in found] for one in found])
    return [replace(one, sure=one.sure and alike[i].sum() == 1) for i, one in enumerate(found)]


def unit_rows(geometry: Geometry, pieces: Array, places: tuple[int, ...]) -> Array:
    """(t+1)×(d+1): the rows of w, which are added up with the kernel and the bias to a unit's row."""
    rows = _rows_at(geometry, pieces, places[0])
    return rows if len(places) == 1 else rows - _rows_at(geometry, pieces, places[1])


def _rows_at(geometry: Geometry, pieces: Array, place: int) -> Array:
    taps = geometry.taps[place]
    rows = np.zeros((len(taps) + 1, pieces.shape[1]))
    rows[:-1][taps >= 0] = pieces[taps[taps >= 0]]
    rows[-1, -1] = 1.0
    return rows


def _weighted(rows: Array) -> Array:
    result = np.array(rows)
    result[:, -1] *= _INTERCEPT
    return result


def _explains(change: Change, rows: Array) -> bool:
    """Whether some row of the change is nearly a combination of these, by normal equations: a quick look.

    The gradient alone counts: a unit that switches here has no value here, and rounding makes rows of values alone.
    """
    used = np.flatnonzero(rows[:, :-1].any(axis=0))
    read, shared = rows[:, used], rows[:, used] @ change.known[used]
    normal = read @ read.T
    ridge = _RIDGE * np.trace(normal) + _TINY  # of the whole: what known rows leave may be nothing
    normal -= shared @ shared.T
    seen = read @ change.rows[:, used].T
    normal[np.diag_indices_from(normal)] += ridge
    return bool(np.linalg.eigvalsh(seen.T @ np.linalg.solve(normal, seen))[-1] > 1 - _NEARLY)


def _sighting(
    geometry: Geometry, change: Change, pieces: Array, places: tuple[int, ...], tolerance: float
) -> Sighting | None:
    rows = _weighted(unit_rows(geometry, pieces, places))
    if not _explains(change, rows[:-1]):
        return None
    rows = rows[:-1] if len(places) == 2 else rows
    rows -= (rows @ change.known) @ change.known.T
    used = np.flatnonzero(rows.any(axis=0))
    if not len(used):  # all that the unit reads is off
        return None
    orthogonal, triangle = np.linalg.qr(rows[:, used].T)
    # The faster driver was seen not to converge on rows of zeros.
    left, sizes, right = svd(triangle.T, lapack_driver="gesvd")
    right = right @ orthogonal.T
    rank = int((sizes > _RANK * sizes[0]).sum())
    scales, right = sizes[:rank], right[:rank]
    turn, fits, _ = np.linalg.svd(change.rows[:, used] @ right.T, full_matrices=False)
    row = turn[:, 0] @ change.rows
    shown = row[used] @ right.T
    row[used] -= shown @ right
    error = float(np.linalg.norm(row))
    if error > tolerance or (len(fits) > 1 and fits[1] > 1 - 1e-3):
        return None
    sure = bool((geometry.taps[list(places)] >= 0).all())
    equations = scales[:, None] * left[:, :rank].T
    equations -= np.outer(shown, shown @ equations) / (shown @ shown)
    if len(places) == 2:
        equations = np.hstack([equations, np.zeros((rank, 1))])
    taps = geometry.taps.shape[1]
    free, sizes = np.linalg.svd(left[:taps, rank:], full_matrices=False)[:2]
    free = free[:, sizes > _RANK]
    kernel = (left[:, :rank] @ (shown / scales))[:taps]
    kernel -= free @ (free.T @ kernel)
    length = float(np.linalg.norm(kernel))
    return Sighting(change, places, turn[:, 0], kernel / length, free, equations, error, sure) if length else None


# -- where to look


def reach(front: Front, geometry: Geometry) -> tuple[Indices, Indices]:
    """2×places each: the first pixels that units read along both axes, and the pixels behind the last."""
    jump, start, size = np.ones(2, dtype=np.intp), np.zeros(2, dtype=np.intp), np.ones(2, dtype=np.intp)
    stages = [layer.geometry.stage for layer in front.layers]
    for stage in stages:
        start -= np.array(stage.padding) * jump
        size += (np.array(stage.kernel) - 1) * jump
        jump *= stage.stride
        if stage.pool is not None:
            size += (np.array(stage.pool.size) - 1) * jump
            jump *= stage.pool.stride
    start -= np.array(geometry.stage.padding) * jump
    size += (np.array(geometry.stage.kernel) - 1) * jump
    grid = np.array(np.unravel_index(np.arange(geometry.places), geometry.grid))
    first = start[:, None] + grid * (jump * geometry.stage.stride)[:, None]
    return first, first + size[:, None]


def _likely(front: Front, geometry: Geometry, change: Change) -> list[tuple[int, ...]]:
    """Places, and pairs of places of one max-pool, whose receptive fields hold all of some row."""
    first, last = reach(front, geometry)
    margin = max(_extent(front))
    singles = [(int(i),) for i in range(geometry.places)]
    pool = geometry.stage.pool
    pairs: list[Pair] = []
    if pool is not None and pool.kind == "max":
        pairs = [pair for cell in geometry.cells for pair in combinations((int(i) for i in cell if i >= 0), 2)]
    candidates: list[tuple[int, ...]] = [*singles, *dict.fromkeys(pairs)]
    low = np.array([first[:, list(places)].min(axis=1) for places in candidates]).T
    high = np.array([last[:, list(places)].max(axis=1) for places in candidates]).T
    likely = _energies(front, change.rows, low - margin, high + margin) > 1 - _OUTSIDE
    likely &= _energies(front, change.rows, low, high) > _INSIDE
    return [candidates[i] for i in np.flatnonzero(likely)]


def _extent(front: Front) -> Pair:
    """By how much rows of known units may reach out of a receptive field that they overlap."""
    if not front.layers:
        return 0, 0
    first, last = reach(Front(front.inputs, front.layers[:-1]), front.layers[-1].geometry)
    pool = front.layers[-1].geometry.stage.pool
    more = np.zeros(2, dtype=np.intp) if pool is None else np.array(pool.size) - 1
    rows, columns = (last - first)[:, 0] - 1 + more
    return int(rows), int(columns)


def _energies(front: Front, rows: Array, low: Indices, high: Indices) -> Array:
    """The largest part of any row of the space that lies in each box."""
    channels, height, width = front.inputs
    images = rows[:, :-1].reshape(len(rows), channels, height, width)
    products = np.einsum("mchw,nchw->hwmn", images, images)
    total = np.zeros((height + 1, width + 1, len(rows), len(rows)))
    total[1:, 1:] = products.cumsum(axis=0).cumsum(axis=1)
    (top, left), (bottom, right) = (np.clip(box, 0, np.array([[height], [width]])) for box in (low, high))
    inside = total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
    result: Array = np.linalg.eigvalsh(inside)[:, -1]
    return result
