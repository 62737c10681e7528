"""Corner: the biases of a first layer whose rows are known, where all its pre-activations are nearly zero.

There what the next layer sees hardly changes, so that f = C·relu(Ax + b) + c, one hidden layer with known rows. Which
units are on at an answer halves the intervals of all biases at once; and f − Jx is linear in b and c.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.deep.duals import PatternLayer

# Answers beyond those that determine the biases: most of them are spent on coming close enough to the corner.
_SPARE = 24
# Equations beyond unknowns, so that biases which do not fit show.
_CHECKS = 4


def first_biases(ask: Callable[[Array], tuple[Array, Answer]], layer: PatternLayer, tolerance: float) -> Array | None:
    """The biases of a first layer; None if the answers do not tell.

    ask: answers with Jacobians at inputs
    tolerance: columns that agree up to this are equal
    """
    lift = np.linalg.pinv(layer.rows)
    below, above = layer.below.copy(), layer.above.copy()
    points, values, jacobians = [], [], []
    for _ in range(_SPARE + 2 * len(layer.rows)):
        asked, answer = ask((below + above)[None] / 2 @ lift.T)
        if not len(asked):
            return None
        columns, signals = answer.jacobians[0] @ lift, layer.rows @ asked[0]
        sizes = np.linalg.norm(columns, axis=0)
        on = sizes > tolerance * sizes.max(initial=0)
        if not on.any():
            return None
        below, above = np.where(on, below, np.maximum(below, signals)), np.where(on, np.minimum(above, signals), above)
        points.append(asked[0])
        values.append(answer.values[0])
        jacobians.append(columns * on)
        found = _solved(np.array(jacobians), np.array(values), np.array(points) @ layer.rows.T, tolerance)
        if found is not None:
            return found
    return None


def _solved(columns: Array, values: Array, signals: Array, tolerance: float) -> Array | None:
    """b from the latest answers (n×K×h, n×K, n×h) that agree on the columns of all units that are on."""
    count = _agreeing(columns, tolerance)
    columns, values, signals = columns[-count:], values[-count:], signals[-count:]
    K, h = columns.shape[1:]
    if count * K < h + K + _CHECKS:
        return None
    system = np.concatenate([columns, np.broadcast_to(np.eye(K), (count, K, K))], axis=2).reshape(-1, h + K)
    target = (values - np.einsum("nkh,nh->nk", columns, signals)).ravel()
    found, _, rank, _ = np.linalg.lstsq(system, target, rcond=1e-9)
    missed = np.abs(system @ found - target).max()
    if rank < h + K or missed > tolerance * np.abs(values).max():
        return None
    result: Array = found[:h]
    return result


def _agreeing(columns: Array, tolerance: float) -> int:
    """How many of the latest answers show the same column for every unit that is on."""
    seen, count = np.zeros(columns.shape[1:]), 0
    for column in columns[::-1]:
        shown: NDArray[np.bool_] = column.any(axis=0)
        both = shown & seen.any(axis=0)
        if np.abs(column - seen)[:, both].max(initial=0) > tolerance * np.abs(column).max():
            break
        seen = np.where(shown, column, seen)
        count += 1
    return count
