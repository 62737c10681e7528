"""Known units fitted once more to differences of pieces, in which unknown units may have switched as well.

What unknown units leave of a difference has low rank. Outputs that are orthogonal to it show known units only, and give
linear equations for their rows; inputs that are orthogonal to it give the same for their outputs.
"""

import numpy as np
from scipy.sparse import coo_array

from relumine.oracle.base import Array
from relumine.reconstruct.tensor.units import Units

# By how much normal equations are damped: what the differences do not tell stays as it was.
_DAMPING = 1e-10


def refined(units: Units, switched: Array, left: Array, error: float) -> Units:
    """One turn of alternating least squares.

    switched: n×m, by how much each unit counts in a difference
    left:     n×K×(d+1), what known units leave of it
    error:    the least singular value of what unknown units make
    """
    ways, sizes, rows = np.linalg.svd(left, full_matrices=False)
    free = [np.eye(left.shape[1]) - (u := way[:, size > error]) @ u.T for way, size in zip(ways, sizes, strict=True)]
    change = _solved(switched, units.outputs, free, left)
    new = Units(units.outputs, units.rows + change)
    left = left - np.einsum("ni,ik,id->nkd", switched, units.outputs, change, optimize=True)
    free = [np.eye(left.shape[2]) - (r := row[size > error]).T @ r for row, size in zip(rows, sizes, strict=True)]
    return Units(new.outputs + _solved(switched, new.rows, free, left.transpose(0, 2, 1)), new.rows)


def _solved(switched: Array, factors: Array, free: list[Array], left: Array) -> Array:
    """m×q: the least changes c with free_n·(Σ_i switched_ni·factors_i·c_iᵀ − left_n) = 0, by least squares."""
    places, units, numbers = [], [], []
    p = factors.shape[1]
    for n, projector in enumerate(free):
        chosen = np.flatnonzero(switched[n])
        numbers.append((projector @ (factors[chosen] * switched[n, chosen, None]).T).ravel())
        places.append(np.repeat(np.arange(n * p, (n + 1) * p), len(chosen)))
        units.append(np.tile(chosen, p))
    shape = (len(free) * p, len(factors))
    terms = coo_array((np.concatenate(numbers), (np.concatenate(places), np.concatenate(units))), shape=shape).tocsr()
    right = np.concatenate([projector @ some for projector, some in zip(free, left, strict=True)])
    normal = (terms.T @ terms).toarray()
    normal[np.diag_indices_from(normal)] += _DAMPING * float(normal.diagonal().max())
    result: Array = np.linalg.solve(normal, terms.T @ right)
    return result
