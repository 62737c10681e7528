"""The orientation of units where their rows are dependent, as in a layer with more units than inputs.

A deeper boundary that was followed across all of them (follow.py) has told its weights A_k, and its normal is the
sum of A_k·n_k over those units that are on: linear equations for the activation pattern. A few boundaries are enough.
"""

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.deep.follow import REACH, Boundary, Follower, complement
from relumine.reconstruct.deep.layers import Layers, Mask
from relumine.reconstruct.deep.search import Search

# At most this many boundaries are followed for each one whose equations are needed.
_BOUNDARIES = 3
# A unit is turned around (1) or not (0); found to be so up to this.
_SURE = 1e-3


def turned_by_following(layers: Layers, rows: Array, biases: Array, search: Search) -> tuple[Array, Array] | None:
    """The next layer's rows and biases the right way around, or None if that could not be told."""
    follower = Follower(layers.with_layer(rows, biases), search)
    system, target = np.empty((0, len(rows))), np.empty(0)
    for boundary in _boundaries(follower, _BOUNDARIES * (1 + -(-len(rows) // rows.shape[1]))):
        follower.follow(boundary)
        equations, right = _equations(follower, boundary)
        system, target = np.concatenate([system, equations]), np.concatenate([target, right])
        flip = _solved(system, target)
        if flip is not None:
            sign = np.where(flip, -1.0, 1.0)
            return rows * sign[:, None], biases * sign
    return None


def _boundaries(follower: Follower, count: int) -> list[Boundary]:
    """Deeper boundaries that were seen, some of them."""
    search = follower.search
    kinks, steps = search.book.kinks()
    new = steps.kinked & (np.abs(np.nan_to_num(kinks)).max(axis=1, initial=0) < REACH)
    at = np.flatnonzero(new)
    at = at[~follower.layers.explains(kinks[at], search.precision.kink)]
    return [follower.boundary(kinks[i], steps.normals[i]) for i in search.rng.permutation(at)[:count]]


def _equations(follower: Follower, boundary: Boundary) -> tuple[Array, Array]:
    """n = Σ_k A_k (p_k − m_k) n_k: p_k says on which side of unit k the point lies, m_k whether k is turned around.

    What those units contribute whose A_k is not known is projected away.
    """
    normals, signals = follower.local(boundary.point)
    free = complement(normals[~boundary.known]) / float(np.linalg.norm(boundary.normal))
    weighted = (boundary.weights * boundary.known)[:, None] * normals
    return -free @ weighted.T, free @ (boundary.normal - weighted[signals > 0].sum(axis=0))


def _solved(system: Array, target: Array) -> Mask | None:
    """Which units are turned around, once that is determined and every answer is 0 or 1."""
    if len(system) < system.shape[1]:
        return None
    found, _, rank, _ = np.linalg.lstsq(system, target, rcond=1e-7)
    flip: Mask = found > 0.5
    return flip if rank == system.shape[1] and np.abs(found - flip).max() <= _SURE else None
