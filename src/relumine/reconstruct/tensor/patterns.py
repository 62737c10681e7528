"""Rank-one terms with binary patterns: all g ∈ {0, 1}ᴺ and v with g⊗v in a given subspace of Rᴺ⊗Rᴷ, by enumeration.

For an orthonormal basis U of the subspace and U_g = Σ_n g_n U_n the matrix |g|·I − U_g U_gᵀ is positive semidefinite,
and singular exactly if g⊗v lies in the subspace for some v: its null vector. A null space of dimension m belongs to m
units that switch at the same points.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array

# Patterns whose matrices are factored at once: 2^15 of 10×10 take 26 MB and half a second.
_BATCH = 2**15


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where units switch (N of 0 and 1), and an orthonormal basis K×m of their output directions."""

    points: NDArray[np.float64]
    outputs: Array


def patterns_in(basis: Array, tolerance: float) -> list[Pattern]:
    """All patterns of the subspace with orthonormal ``basis`` N×K×r, up to this smallest eigenvalue per point."""
    N = len(basis)
    projector = np.einsum("nkr,mlr->klnm", basis, basis, optimize=True)
    found = []
    for start in range(1, 2**N, _BATCH):
        numbers = np.arange(start, min(start + _BATCH, 2**N))
        found += _patterns_among(((numbers[:, None] >> np.arange(N)) & 1).astype(np.float64), projector, tolerance)
    return found


def _patterns_among(patterns: Array, projector: Array, tolerance: float) -> list[Pattern]:
    K = len(projector)
    shown = np.zeros((len(patterns), K, K))
    for k in range(K):
        for other in range(k + 1):
            shown[:, k, other] = ((patterns @ projector[k, other]) * patterns).sum(axis=1)
    shown /= patterns.sum(axis=1)[:, None, None]
    likely = np.flatnonzero(np.linalg.eigvalsh(shown)[:, -1] > 1 - tolerance)  # eigvalsh reads the lower half only
    found = []
    for i in likely:
        sizes, directions = np.linalg.eigh(shown[i])
        found.append(Pattern(patterns[i], directions[:, sizes > 1 - tolerance]))
    return found
