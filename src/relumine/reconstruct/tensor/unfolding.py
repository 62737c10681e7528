"""Units from Jacobians: the terms v_i∘g_i∘a_i of the tensor J_n = V·diag(g_n)·A, whatever the activation.

One of two unfoldings shows h as its rank: (NK)×d where h < d and h < NK, N×(Kd) where h < N and h < Kd. The rank-one
elements of its space are two factors of every term, and least squares gives the third (De Lathauwer 2006; Dreesen,
Ishteva and Schoukens 2015 for the Jacobians of any activation).
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.tensor.rank_one import RankOneTerms, rank_one_terms

# Points per h/K at which the terms of random networks were found in every case (784-64-10, 50-32-10, 50-32-3; 1.6 was
# enough in all but one of 72), and some to spare. h/(K − 1) + 1 is the least that determines them (Domanov, De
# Lathauwer).
_PER_UNIT = 1.7
_MORE = 2
# A term is in the space if its squared distance is below this, or below this many times what noise leaves. Rounding
# alone makes 1e-15 of it; those of what is no term stayed above 1e-8.
_EXACT = 1e-13
_NOISE_MARGIN = 100.0


@dataclass(frozen=True, eq=False)
class Directions:
    """h units: ``outputs`` h×K and ``rows`` h×d of length one, and how strongly each is on at each point: N×h."""

    outputs: Array
    rows: Array
    slopes: Array


@dataclass(frozen=True, eq=False)
class Unfolding:
    """The Jacobians N×k×d in a basis K×k of the outputs that they reach, and the singular values of both unfoldings."""

    jacobians: Array
    basis: Array
    noise: Noise

    @property
    def flat(self) -> Array:
        """(Nk)×d."""
        return self.jacobians.reshape(-1, self.jacobians.shape[2])

    @property
    def long(self) -> Array:
        """N×(kd)."""
        return self.jacobians.reshape(len(self.jacobians), -1)

    @property
    def rank(self) -> int:
        """h where it is less than d."""
        return _rank(_sizes(self.flat), self.noise, self.flat.size)

    def wanted(self) -> int | None:
        """How many points to have before a decomposition is worth a try; None if no number will do.

        N points show a rank below Nk if there are enough of them; until then half as many more are asked.
        """
        N, k, d = (int(size) for size in self.jacobians.shape)
        rank = self.rank
        if rank < min(d, N * k):
            return max(ceil(_PER_UNIT * rank / k), rank // max(k - 1, 1)) + _MORE
        if rank < d:
            return N + max(2, N // 2)
        units = _rank(_sizes(self.long), self.noise, self.long.size)
        # Generic uniqueness (Domanov, De Lathauwer): h ≤ (k − 1)(d − 1) where N ≥ h.
        if k < 2 or min(N, units) > (k - 1) * (d - 1):
            return None
        return units + _MORE if units < N else N + max(2, N // 2)

    def decomposed(self, rng: np.random.Generator) -> Directions | None:
        """All units, or None if not as many terms were found as the rank says."""
        N, k, d = self.jacobians.shape
        if k < 2:
            return None
        if self.rank < d:
            terms = self._terms(self.flat, (N, k), rng)
            if terms is None:
                return None
            rows = _third(terms, self.flat)
            sizes = np.linalg.norm(rows, axis=1, keepdims=True)
            return Directions(terms.right @ self.basis.T, rows / sizes, (terms.left * sizes).T)
        terms = self._terms(self.long.T, (k, d), rng)
        if terms is None:
            return None
        return Directions(terms.left @ self.basis.T, terms.right, _third(terms, self.long.T).T)

    def _terms(self, matrix: Array, shape: tuple[int, int], rng: np.random.Generator) -> RankOneTerms | None:
        left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
        rank = _rank(sizes, self.noise, matrix.size)
        if rank == 0 or rank >= len(matrix):
            return None
        left_over = self.noise.of(float(sizes[0]), matrix.size) / float(sizes[rank - 1])
        tolerance = max(_EXACT, _NOISE_MARGIN * left_over**2)
        terms = rank_one_terms(left[:, :rank].reshape(*shape, rank), tolerance, rng)
        return terms if len(terms) == rank else None


def unfolded(jacobians: Array, noise: Noise) -> Unfolding:
    """In the outputs that they reach: of probabilities, all but one."""
    flat = np.moveaxis(jacobians, 1, 0).reshape(jacobians.shape[1], -1)
    directions, sizes, _ = np.linalg.svd(flat, full_matrices=False)
    basis = directions[:, : _rank(sizes, noise, flat.size)]
    return Unfolding(np.einsum("nkd,kj->njd", jacobians, basis), basis, noise)


def _third(terms: RankOneTerms, matrix: Array) -> Array:
    """The third factor of every term, m×…, by least squares from an unfolding whose columns the others span."""
    products = np.einsum("sn,sk->nks", terms.left, terms.right).reshape(-1, len(terms))
    return np.asarray(np.linalg.lstsq(products, matrix, rcond=None)[0], dtype=np.float64)


def _sizes(matrix: Array) -> Array:
    return np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=np.float64)


def _rank(sizes: Array, noise: Noise, count: int) -> int:
    """How many singular values of a matrix of ``count`` numbers noise does not explain."""
    return int((sizes > noise.of(float(sizes[0]), count)).sum()) if sizes.size else 0
