"""The rank-one elements of a space of matrices: the terms of a tensor, whatever the activation.

The Jacobians of V·σ(Ax + b) + c at N points are J_n = V·diag(g_n)·A. As an (NK)×d matrix they have the column space
spanned by the vectors g_i⊗v_i, and these are (generically) its only elements of rank one as N×K matrices.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array

# Rounds of starts. Measured on random networks (784-64-10, 50-32-3; N = 1.6 h/K and more) 5 found all terms.
_ROUNDS = 16
# Turns of the subspace power method before Newton's steps, and these: both past the point where results change.
_TURNS = 10
_STEPS = 12
# Two terms are the same above this likeness; those of different units differ in the third digit or before.
_SAME = 1 - 1e-7


@dataclass(frozen=True, eq=False)
class RankOneTerms:
    """m terms g_i⊗v_i of length one: ``left`` m×N, ``right`` m×K."""

    left: Array
    right: Array

    def __len__(self) -> int:
        return len(self.left)

    def likeness(self, other: "RankOneTerms") -> Array:
        """|cosine| of each of these with each of the others."""
        result: Array = np.abs(self.left @ other.left.T) * np.abs(self.right @ other.right.T)
        return result

    def at(self, chosen: NDArray[np.intp]) -> "RankOneTerms":
        """Only these."""
        return RankOneTerms(self.left[chosen], self.right[chosen])


def rank_one_terms(space: Array, tolerance: float, rng: np.random.Generator) -> RankOneTerms:
    """The rank-one elements of the space with this orthonormal basis (N×K×h), h of them if all are found.

    Starts come from generalised eigenvectors (Harshman, Leurgans et al.) where N ≥ h, else from the subspace power
    method (Kileel, Pereira) in what the terms known so far do not span; each start is refined by Newton's method.

    tolerance: largest squared distance of a term of length one from the space
    """
    N, K, h = space.shape
    found = RankOneTerms(np.empty((0, N)), np.empty((0, K)))
    for i in range(_ROUNDS):
        if len(found) >= h:
            break
        start = _eigenvectors(space, rng) if min(N, K) >= 2 and max(N, K) >= h and i % 2 == 0 else None
        terms, distances = _refined(space, start or _climbed(_rest(space, found), 2 * (h - len(found)) + 8, rng))
        found = _with_new(found, terms.at(np.flatnonzero(distances <= tolerance)))
    return found


def _with_new(found: RankOneTerms, terms: RankOneTerms) -> RankOneTerms:
    for i in range(len(terms)):
        term = terms.at(np.array([i]))
        if not len(found) or found.likeness(term).max() < _SAME:
            found = RankOneTerms(np.vstack([found.left, term.left]), np.vstack([found.right, term.right]))
    return found


def _rest(space: Array, found: RankOneTerms) -> Array:
    """The part of the space orthogonal to the terms found: its maxima lie near the others."""
    coordinates = np.einsum("nkr,sn,sk->rs", space, found.left, found.right, optimize=True)
    complement = np.linalg.qr(coordinates, mode="complete")[0][:, len(found) :]
    result: Array = space @ complement
    return result


def _climbed(space: Array, starts: int, rng: np.random.Generator) -> RankOneTerms:
    """Maxima of ‖P(g⊗v)‖ from random starts, by eigenvectors of N×N and K×K matrices in turn."""
    right = rng.standard_normal((starts, space.shape[1]))
    for _ in range(_TURNS):
        left = _leading(np.einsum("nkr,sk->snr", space, right, optimize=True))
        right = _leading(np.einsum("nkr,sn->skr", space, left, optimize=True))
    return RankOneTerms(left, right)


def _leading(factors: Array) -> Array:
    """For each B the eigenvector of B·Bᵀ with the largest eigenvalue."""
    result: Array = np.linalg.eigh(factors @ factors.transpose(0, 2, 1))[1][:, :, -1]
    return result


def _eigenvectors(space: Array, rng: np.random.Generator) -> RankOneTerms:
    """The terms as eigenvectors of a pencil: two mixtures of slices are G·D·R and G·D'·R with diagonal D and D'."""
    long = space if len(space) >= space.shape[1] else space.transpose(1, 0, 2)
    mixtures = np.einsum("nkr,kj->jnr", long, np.linalg.qr(rng.standard_normal((long.shape[1], 2)))[0])
    vectors = np.real(np.linalg.eig(np.linalg.lstsq(mixtures[0], mixtures[1], rcond=None)[0])[1])
    left, _, right = np.linalg.svd(np.einsum("nkr,rs->snk", space, vectors), full_matrices=False)
    return RankOneTerms(left[:, :, 0], right[:, 0, :])


def _refined(space: Array, terms: RankOneTerms) -> tuple[RankOneTerms, Array]:
    """Newton's method on ‖(I − P)(g⊗v)‖² = 0, and the squared distances that are left."""
    left, right = terms.left, terms.right
    for _ in range(_STEPS):
        left, right = _newton(space, left, right)
    inside = np.einsum("nkr,sn,sk->sr", space, left, right, optimize=True)
    return RankOneTerms(left, right), 1 - (inside * inside).sum(axis=1)


def _newton(space: Array, left: Array, right: Array) -> tuple[Array, Array]:
    N, K, _ = space.shape
    by_right = np.einsum("nkr,sk->snr", space, right, optimize=True)
    by_left = np.einsum("nkr,sn->skr", space, left, optimize=True)
    inside = np.einsum("snr,sn->sr", by_right, left)
    missing = np.maximum(1 - (inside * inside).sum(axis=1), 0)
    system = np.empty((len(left), N + K, N + K))
    # Both factors keep their length: that is the ggᵀ and vvᵀ. The ridge vanishes as the term is met.
    system[:, :N, :N] = np.eye(N) - by_right @ by_right.transpose(0, 2, 1) + left[:, :, None] * left[:, None]
    system[:, N:, N:] = np.eye(K) - by_left @ by_left.transpose(0, 2, 1) + right[:, :, None] * right[:, None]
    system[:, :N, N:] = left[:, :, None] * right[:, None] - by_right @ by_left.transpose(0, 2, 1)
    system[:, N:, :N] = system[:, :N, N:].transpose(0, 2, 1)
    system += (0.3 * missing + 1e-12)[:, None, None] * np.eye(N + K)
    outside = np.hstack(
        [left - np.einsum("snr,sr->sn", by_right, inside), right - np.einsum("skr,sr->sk", by_left, inside)]
    )
    step = np.linalg.solve(system, outside[:, :, None])[:, :, 0]
    return _of_length_one(left - step[:, :N]), _of_length_one(right - step[:, N:])


def _of_length_one(rows: Array) -> Array:
    result: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return result
