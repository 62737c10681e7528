"""Rank-one terms with binary patterns by alternating eigenvectors, where there are too many points to enumerate.

‖P(g⊗v)‖², with P the projector onto the subspace, is raised by turns over v (a K×K eigenvector) and g (a power step),
from random starts: the subspace power method (Kileel, Pereira 2019) for two factors. A pattern of a ReLU unit is
binary, so what the iteration comes near is rounded and tested exactly.
"""

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.tensor.patterns import Pattern

# Starts at once, steps before g is rounded and tested, and how often a start goes on if the test fails.
_STARTS, _STEPS, _ROUNDS = 128, 12, 6
# Batches in a row without a new pattern end the search.
_PATIENCE = 3


def alternated(basis: Array, tolerance: float, rng: np.random.Generator) -> list[Pattern]:
    """Patterns of the subspace with orthonormal ``basis`` N×K×r, until they span it or no more are found."""
    N, K, r = basis.shape
    found: dict[bytes, Pattern] = {}
    known = np.empty((0, r))
    futile = 0
    while len(known) < r and futile < _PATIENCE:
        before = len(found)
        for pattern in _batch(basis, known, tolerance, rng):
            found.setdefault(pattern.points.tobytes(), pattern)
        terms = [np.kron(p.points[:, None], p.outputs) / np.sqrt(p.points.sum()) for p in found.values()]
        known = np.concatenate(terms, axis=1).T @ basis.reshape(N * K, r) if terms else known
        futile = futile + 1 if len(found) == before else 0
    return list(found.values())


def _batch(basis: Array, known: Array, tolerance: float, rng: np.random.Generator) -> list[Pattern]:
    """What a batch of starts leads to; they begin away from what is known."""
    N, K, r = basis.shape
    starts = rng.standard_normal((_STARTS, r))
    if len(known):
        rows = np.linalg.svd(known, full_matrices=False)[2]
        starts = starts - (starts @ rows.T) @ rows
    elements = (starts @ basis.reshape(N * K, r).T).reshape(_STARTS, N, K)
    g = np.linalg.svd(elements, full_matrices=False)[0][:, :, 0]
    found = []
    for _ in range(_ROUNDS):
        for _ in range(_STEPS):
            g = _step(basis, g)
        right, patterns = _tested(basis, g, tolerance)
        found += patterns
        g = g[~right]
        if not len(g):
            break
    return found


def _step(basis: Array, g: Array) -> Array:
    """One turn over v and one over g, for every start."""
    N, K, r = basis.shape
    shown = (g @ basis.reshape(N, K * r)).reshape(-1, K, r)
    v = np.linalg.eigh(shown @ shown.transpose(0, 2, 1))[1][:, :, -1]
    inner = np.einsum("bk,bkr->br", v, shown)
    turned = (inner @ basis.reshape(N * K, r).T).reshape(-1, N, K)
    moved: Array = np.einsum("bnk,bk->bn", turned, v)
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return moved


def _tested(basis: Array, g: Array, tolerance: float) -> tuple[NDArray[np.bool_], list[Pattern]]:
    """Which starts are at a pattern once they are rounded, and these patterns."""
    N, K, r = basis.shape
    turned = g * np.sign(g.sum(axis=1, keepdims=True))
    patterns = (turned > 0.5 * np.sqrt((turned**4).sum(axis=1, keepdims=True))).astype(np.float64)
    counts = np.maximum(patterns.sum(axis=1), 1)
    shown = (patterns @ basis.reshape(N, K * r)).reshape(-1, K, r)
    sizes, directions = np.linalg.eigh(shown @ shown.transpose(0, 2, 1) / counts[:, None, None])
    right = sizes[:, -1] > 1 - tolerance
    return right, [Pattern(patterns[i], directions[i][:, sizes[i] > 1 - tolerance]) for i in np.flatnonzero(right)]
