"""Rank-one terms with binary patterns: all g of a list and v with g⊗v in a given subspace of Rᴺ⊗Rᴷ, by enumeration.

For an orthonormal basis Z of the subspace's complement and Z_g = Σ_n g_n Z_n the matrix Z_g Z_gᵀ is positive
semidefinite, and singular exactly if g⊗v lies in the subspace for some v: its null vector. A null space of dimension m
belongs to m units that switch at the same points.

Points in general position leave all g ∈ {0, 1}ᴺ. Of n points on a line through the base a unit switches at those beyond
one place, on one side: n + 1 patterns instead of 2ⁿ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, prod

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array

# Patterns whose matrices are factored at once: 2^15 of 10×10 take 26 MB and half a second.
_BATCH = 2**15
# Patterns are tried on K and so many random directions of the complement; those that pass, on all of it.
_BESIDES = 6
# Rounding of a determinant of numbers up to one.
_ROUNDING = 1e-14


@dataclass(frozen=True, eq=False)
class OnLines:
    """On which ``line`` through the base each of n points is, and where: at ``t``, the base being at 0."""

    line: NDArray[np.intp]
    t: Array

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> "OnLines":
        """Some of them."""
        return OnLines(self.line[chosen], self.t[chosen])

    @property
    def thresholds(self) -> list[Array]:
        """For every line its possible patterns, each n long: none of its points, or all beyond one of them."""
        every = []
        for line in np.unique(self.line):
            on = self.line == line
            beyond = [on & (self.t * np.sign(t) >= abs(t)) for t in self.t[on]]
            every.append(np.array([np.zeros(len(self.t), dtype=bool), *beyond]).astype(np.float64))
        return every

    @property
    def patterns(self) -> int:
        """How many there are."""
        return prod(int(count) + 1 for count in np.unique(self.line, return_counts=True)[1])


def apart(count: int) -> OnLines:
    """Points each on a line of its own."""
    return OnLines(np.arange(count), np.ones(count))


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where units switch (N of 0 and 1), and an orthonormal basis K×m of their output directions."""

    points: NDArray[np.float64]
    outputs: Array


def patterns_in(basis: Array, tolerance: float, places: OnLines | None = None) -> list[Pattern]:
    """All patterns of the subspace with orthonormal ``basis`` N×K×r, up to this smallest eigenvalue per point."""
    N, K, r = basis.shape
    complement = np.linalg.qr(basis.reshape(N * K, r), mode="complete")[0][:, r:]
    some = complement
    if complement.shape[1] > K + _BESIDES:
        mixed = np.random.default_rng(0).standard_normal((complement.shape[1], K + _BESIDES))
        some = complement @ np.linalg.qr(mixed)[0]
    halves = halved((places or apart(N)).thresholds)
    found = []
    first, second = (_sums(half, some.reshape(N, -1)) for half in halves)
    for patterns in _likely(first, second, halves, K, tolerance):
        found += _tested(patterns, complement.reshape(N, K, -1), tolerance)
    return found


def _likely(
    first: Array, second: Array, halves: tuple[list[Array], list[Array]], K: int, tolerance: float
) -> Iterator[Array]:
    """Patterns, in batches, whose determinant is small enough for a small eigenvalue: none is larger than one.

    first, second: for all choices of thresholds on either half of the lines Z_g, and how many points they have
    """
    sizes = [[len(line) for line in half] for half in halves]
    rows = max(1, _BATCH // len(second))
    for start in range(0, len(first), rows):
        both = (first[start : start + rows, None] + second).reshape(-1, first.shape[1])
        counts = np.maximum(both[:, -1], 1.0)
        mapped = both[:, :-1].reshape(len(both), K, -1)
        grams = mapped @ mapped.transpose(0, 2, 1) / counts[:, None, None]
        others = np.trace(grams, axis1=1, axis2=2) / max(K - 1, 1)
        small = np.linalg.det(grams) <= tolerance * others ** (K - 1) + _ROUNDING
        at = np.flatnonzero(small & (both[:, -1] > 0))
        one, other = np.divmod(at, len(second))
        chosen = [*np.unravel_index(one + start, sizes[0]), *(np.unravel_index(other, sizes[1]) if sizes[1] else ())]
        lines = [*halves[0], *halves[1]]
        if len(at):
            yield np.asarray(sum(line[choice] for line, choice in zip(lines, chosen, strict=True)))


def _sums(half: list[Array], numbers: Array) -> Array:
    """For every choice of one threshold per line the sum of the rows of its points, and their number."""
    numbers = np.hstack([numbers, np.ones((len(numbers), 1))])
    sums = np.zeros((1, numbers.shape[1]))
    for line in half:
        sums = (sums[:, None] + line @ numbers).reshape(-1, numbers.shape[1])
    return sums


def halved(thresholds: list[Array]) -> tuple[list[Array], list[Array]]:
    """The lines in two groups with about as many choices each."""
    groups: tuple[list[Array], list[Array]] = ([], [])
    sizes = [0.0, 0.0]
    for each in sorted(thresholds, key=len, reverse=True):
        smaller = int(sizes[1] < sizes[0])
        groups[smaller].append(each)
        sizes[smaller] += log(len(each))
    return groups


def _tested(patterns: Array, complement: Array, tolerance: float) -> list[Pattern]:
    N, K, _ = complement.shape
    mapped = (patterns @ complement.reshape(N, -1)).reshape(len(patterns), K, -1)
    sizes, directions = np.linalg.eigh(mapped @ mapped.transpose(0, 2, 1) / patterns.sum(axis=1)[:, None, None])
    right = sizes < tolerance
    return [Pattern(patterns[i], directions[i][:, right[i]]) for i in np.flatnonzero(right[:, 0])]
