"""Where a channel whose kernel is known switches on: what answers say of its bias, without a query.

A Jacobian is a combination of the rows of the features that are on. With all kernels known these rows are, up to which
of them are on, so least squares tells that, and each answer bounds each bias from both sides.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork
from relumine.reconstruct.convolutional.layers import Front, Geometry, Layer
from relumine.reconstruct.convolutional.sightings import Observation

# A feature is on if its part of a Jacobian is larger than this part of the largest, and off below the other one.
_ON, _OFF = 1e-4, 1e-7
# Of a Jacobian no more than this part may be left, or a channel that is not known is on.
_LEFT = 1e-6
# Singular values below this part of the largest are not told from zero.
_RANK = 1e-6
# A way is searched on so many points at once, so often, for the ends of a bias's interval, each widened by this part.
_GRID, _TURNS, _WIDER = 64, 4, 0.1


@dataclass(frozen=True, eq=False)
class Shown:
    """Features of channels at an answer: ``values`` (channels×features) without bias, and which are on and off."""

    seen: Observation
    values: Array
    on: NDArray[np.bool_]
    off: NDArray[np.bool_]


def shown(front: Front, known: Layer, kernels: Array, seen: Observation) -> Shown:
    """Which features of channels with these kernels (n×t) are on here; neither where the answer does not tell."""
    geometry, around = known.geometry, front.at(seen.point)
    values, places = pooled(geometry, around.values, kernels)
    rows = np.array(
        [
            _row(geometry, around.pieces, kernel, int(place))
            for kernel, row in zip(kernels, places, strict=True)
            for place in row
        ]
    )
    others = around.through(known).pieces
    others = others[np.flatnonzero(np.diff(others.indptr)), :-1].toarray()
    every = np.vstack([rows, others])
    left, sizes, right = np.linalg.svd(every, full_matrices=False)
    rank = int((sizes > _RANK * sizes[0]).sum())
    parts = (seen.jacobian @ right[:rank].T / sizes[:rank]) @ left[:, :rank].T
    missed = np.linalg.norm(seen.jacobian - parts @ every) > _LEFT * np.linalg.norm(seen.jacobian)
    told = np.linalg.norm(left[:, :rank], axis=1)[: len(rows)] > 1 - _RANK  # the others depend on each other
    told &= (not missed) & (np.linalg.norm(rows, axis=1) > 0)
    lengths = np.linalg.norm(parts, axis=0)[: len(rows)] * np.linalg.norm(rows, axis=1)
    most = float(np.linalg.norm(seen.jacobian))
    on, off = told & (lengths > _ON * most), told & (lengths < _OFF * most)
    return Shown(seen, values, on.reshape(values.shape), off.reshape(values.shape))


def pooled(geometry: Geometry, features: Array, kernels: Array) -> tuple[Array, NDArray[np.intp]]:
    """channels×features (and more axes): pre-activations without bias of what a pool takes, and at which place."""
    values = np.moveaxis(np.tensordot(geometry.read(features), kernels, axes=(1, 1)), -1, 0)
    cells = np.where((geometry.cells < 0).reshape(*geometry.cells.shape, *[1] * (features.ndim - 1)), -np.inf, 0.0)
    at = values[:, geometry.cells] + cells
    best = at.argmax(axis=2)
    places = geometry.cells[np.arange(len(geometry.cells)), best] if features.ndim == 1 else best
    return at.max(axis=2), places


def crossing(
    front: Front, geometry: Geometry, kernel: Array, channel: int, seen: list[Shown]
) -> tuple[Array, Array] | None:
    """Two points on a way between answers, as near as is known, between which a feature of the channel switches on."""
    values = np.array([one.values[channel] for one in seen])
    on, off = (np.array([getattr(one, name)[channel] for one in seen]) for name in ("on", "off"))
    if not on.any() or not off.any():
        return None
    high, low = values[on].min(), values[off].max()  # the bias lies between −high and −low
    if low >= high:
        return None
    low, high = low - _WIDER * (high - low), high + _WIDER * (high - low)
    points = np.array([one.seen.point for one in seen])
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    step = np.where(
        on[:, None] & off[None],
        apart[:, :, None] / np.where(on[:, None] & off[None], values[:, None] - values, 1.0),
        np.inf,
    )
    last, first, feature = np.unravel_index(int(step.argmin()), step.shape)
    if not np.isfinite(step[last, first, feature]):
        return None
    begin, way = points[first], points[last] - points[first]
    ends = []
    for goal in (low, high):
        left, right = 0.0, 1.0
        for _ in range(_TURNS):
            at = np.linspace(left, right, _GRID)
            points_there = begin + at[:, None] * way
            features = ConvolutionalNetwork(front).logits(points_there) if front.layers else points_there
            reached = pooled(geometry, features.T, kernel[None])[0][0, feature] > goal
            n = max(int(reached.argmax()) if reached.any() else _GRID - 1, 1)
            left, right = float(at[n - 1]), float(at[n])
        ends.append(begin + (left if goal == low else right) * way)
    return ends[0], ends[1]


def _row(geometry: Geometry, pieces: "object", kernel: Array, place: int) -> Array:
    taps = geometry.taps[place]
    inside = taps >= 0
    return np.asarray((kernel[inside] @ pieces[taps[inside]])[:-1])  # type: ignore[index]
