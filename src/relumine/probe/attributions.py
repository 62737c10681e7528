"""Explanations that are no function of the gradient, told by what their numbers add up to."""

import numpy as np

from relumine.oracle.base import Array, explained_outputs
from relumine.probe.known import Known

# Path integrals are sums of a few dozen steps.
_COMPLETE = 0.1
_AXES = 4


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
