"""Slopes of the values, by which every guess at what explanations are is judged; and what maps add up to.

Explanations that are no function of the gradient are told by the latter.
"""

from typing import NamedTuple

import numpy as np

from relumine.adapt.base import as_seen, inside
from relumine.oracle.base import Array, DType, explained_outputs
from relumine.probe.known import Known

_POINTS = 3
_DIRECTIONS = 2  # at each point: a kink spoils one of them at most times

# Step of a slope, as a share of the input's size; how far a slope may be off, as a share of their size, to count as
# predicted.
_STEP: dict[DType, float] = {"float64": 2.0**-17, "float32": 2.0**-11}
_TOLERANCE: dict[DType, float] = {"float64": 1e-5, "float32": 1e-2}
# Beyond this no guess can be told from another.
_COARSEST = 0.2
# Path integrals are sums of a few dozen steps.
_COMPLETE = 0.1
_AXES = 4


class Slopes(NamedTuple):
    """Slopes of the values: at ``points[i]`` along ``directions[i, j]``, ``slopes[i, j]`` (one per output)."""

    points: Array
    directions: Array
    slopes: Array
    tolerance: float


def measured_slopes(known: Known, points: Array, values: Array, directions: Array | None = None) -> Slopes | None:
    """Slopes along directions, random ones at the first points if none are given; None if rounding hides them."""
    n, d = points.shape
    if directions is None:
        n = min(n, _POINTS)
        directions = known.gaussian(n * _DIRECTIONS).reshape(n, _DIRECTIONS, d)
    moves = _step(known, points[:n], values) * directions
    rows = np.concatenate([(points[:n, None] + sign * moves).reshape(-1, d) for sign in (1, -1)])
    rows = inside(known.offer, rows)
    ahead, behind = np.split(known.values(rows), 2)
    seen = np.split(as_seen(known.offer, rows), 2)
    moved = (seen[0] - seen[1]).reshape(moves.shape)
    lengths = np.abs(moved).max(axis=2, keepdims=True)
    slopes = (ahead - behind).reshape(n, directions.shape[1], -1) / lengths
    spread = float(np.sqrt(np.mean(slopes**2)))
    rounding = known.epsilon * float(np.abs(values).max()) + known.quantum / 2
    tolerance = max(_TOLERANCE[known.offer.dtype], 8 * rounding / float(lengths.min()) / max(spread, 1e-300))
    return None if tolerance > _COARSEST else Slopes(points[:n], moved / lengths, slopes, tolerance)


def _step(known: Known, points: Array, values: Array) -> Array:
    size = np.sqrt(np.mean(points**2, axis=1)).reshape(-1, 1, 1)
    step: Array = _STEP[known.offer.dtype] * size
    if known.decimals is not None:
        # Long enough to stand out of the rounding, if values change by their own size over the input's size.
        step = np.maximum(step, size * min(400 * known.quantum / float(np.abs(values).max()), 2.0**-4))
    return step


def predict(known: Known, measured: Slopes, values: Array, gradients: Array, *, scaled: bool = False) -> bool:
    """Whether these gradients predict the slopes, up to a positive factor if ``scaled``; notes of which outputs."""
    for classes in known.possible(values):
        rows = explained_outputs(classes, values)
        slopes = np.take_along_axis(measured.slopes, rows[:, None, :], axis=2)
        predicted = np.einsum("ijd,ird->ijr", measured.directions, gradients)
        if scaled:
            factors = (predicted * slopes).sum(axis=1) / np.maximum((predicted**2).sum(axis=1), 1e-300)
            if (factors < 0).any():
                continue
            predicted = factors[:, None, :] * predicted
        # Kinks within a step spoil some slopes; a wrong guess spoils all.
        size = float(np.sqrt(np.mean(slopes**2)))
        gaps = np.abs(predicted - slopes).max(axis=2).ravel()
        if size > 0 and np.median(gaps) <= measured.tolerance * size:
            known.correct(gradients=classes)
            return True
    return False


def is_ablation(known: Known, points: Array, values: Array, maps: Array) -> bool:
    """Whether each number is f(x) − f(x without that coordinate); notes of which outputs."""
    where = largest_coordinates(maps[0])
    without = np.repeat(points[:1], len(where), axis=0)
    without[range(len(where)), where] = 0
    if known.offer.box is not None and not known.offer.box[0] <= 0 <= known.offer.box[1]:
        return False
    changes = values[0] - known.values(without)
    for classes in known.possible(values):
        expected = changes[:, explained_outputs(classes, values)[0]].T
        gap = np.abs(maps[0][:, where] - expected).max()
        if gap <= max(1e-3, 100 * known.epsilon) * np.abs(expected).max() + known.quantum * 2:
            known.correct(gradients=classes)
            return True
    return False


def is_complete(known: Known, values: Array, maps: Array, slack: float = _COMPLETE) -> bool | None:
    """Whether maps sum up to f(x) − f(0); None where 0 may not be asked. Notes of which outputs."""
    if known.at_zero is None:
        return None
    sums = maps.sum(axis=2)
    for classes in known.possible(values):
        changes = np.take_along_axis(values - known.at_zero, explained_outputs(classes, values), axis=1)
        size = float(np.sqrt(np.mean(changes**2)))
        if size > 0 and np.median(np.abs(sums - changes)) <= slack * size and _together(sums, changes):
            if known.offer.gradients != "all":
                known.correct(gradients=classes)
            return True
    return False


def largest_coordinates(maps: Array) -> list[int]:
    """Some coordinates where the maps of one input are largest."""
    return [int(i) for i in np.argsort(-np.abs(maps).sum(axis=0))[:_AXES]]


def _together(sums: Array, changes: Array) -> bool:
    """Whether the two move together, so that equal sizes are no accident."""
    first, second = sums.ravel(), changes.ravel()
    return bool(first @ second > 0.8 * np.linalg.norm(first) * np.linalg.norm(second))
