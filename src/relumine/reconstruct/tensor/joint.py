"""Units that share a pattern: what is known of them together, as units that do the same at every answered input.

Of m units with one pattern the tensor shows the sum of v_i∘ã_i, so their rows are some m vectors of a known space. The
ones that are on exactly where the pattern says form a cone in it. Its edges span the true rows with positive weights.
"""

from itertools import combinations

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.tensor.decomposition import Tensor, terms_of
from relumine.reconstruct.tensor.units import Units

# Edges are intersections of m − 1 of N planes: for four units of 20 points 1,140 candidates.
_MOST_UNITS = 4
# How far from the edges to the middle of the cone rows are put. Of 0, 0.3 and 0.6 the second was best
# from 20 MNIST images (at worst 99.86 % instead of 99.80 % and 99.84 %; four trained 784-128-10).
_INWARD = 0.3
# Rounding leaves an edge this far outside of the planes that it lies in.
_ROUNDING = 1e-9


def jointly(tensor: Tensor, rng: np.random.Generator, most: int) -> Units | None:
    """As many units as switch in this tensor; those with a pattern of their own are the target's."""
    fewer, outputs = tensor.reduced()
    terms = terms_of(fewer, rng, most)
    if terms is None:
        return None
    everywhere = np.concatenate([tensor.base[None], tensor.points])
    directions, rows, first = [], [], 0
    for pattern in terms.patterns:
        count = pattern.outputs.shape[1]
        space = terms.rows[first : first + count]
        first += count
        signs = 2 * np.array([0.0, *pattern.points]) - 1
        turn = _edges(signs[:, None] * (everywhere @ space.T))
        rows.append(turn @ space)
        directions.append((outputs @ pattern.outputs @ np.linalg.inv(turn)).T)
    return Units(np.concatenate(directions), np.concatenate(rows))


def _edges(planes: Array) -> Array:
    """m×m: independent c of length one with planes·c ≥ 0, near the edges of the cone of all such c."""
    m = planes.shape[1]
    planes = planes / np.linalg.norm(planes, axis=1, keepdims=True)
    if m == 1 or m > _MOST_UNITS:
        middle = np.sign(planes.sum(axis=0))
        return np.diag(np.where(middle == 0, 1.0, middle))
    normals = [np.linalg.svd(planes[list(some)])[2][-1] for some in combinations(range(len(planes)), m - 1)]
    edges = np.array([sign * normal for normal in normals for sign in (1.0, -1.0)])
    inside = edges[(edges @ planes.T).min(axis=1) > -_ROUNDING]
    if len(inside) < m:
        return np.eye(m)
    chosen = [inside[int(np.argmin(inside @ inside.mean(axis=0)))]]
    for _ in range(m - 1):
        basis = np.linalg.qr(np.array(chosen).T)[0]
        away = np.linalg.norm(inside - inside @ basis @ basis.T, axis=1)
        chosen.append(inside[int(np.argmax(away))])
    edges = np.array(chosen)
    moved: Array = (1 - _INWARD) * edges + _INWARD * edges.mean(axis=0)
    return moved
