"""The decomposition of differences of affine pieces into units, each proved by its own activation pattern.

M_n = Σ_i g_ni v_i ã_iᵀ: the column space of all M_n, one below the other, is spanned by the vectors g_i⊗v_i where the
rows ã_i are independent. Patterns that span it give every ã_i by least squares; that ã_i·[x, 1] is positive exactly
where g_i says that the unit switched is a proof that costs no queries: another row has these signs with probability
2^−N (De Lathauwer 2006; Dreesen, Ishteva, Schoukens 2015 for the decomposition).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import svd

from relumine.oracle.base import Array
from relumine.reconstruct.tensor.alternating import alternated
from relumine.reconstruct.tensor.errors import largest
from relumine.reconstruct.tensor.patterns import OnLines, Pattern, apart, patterns_in
from relumine.reconstruct.tensor.units import Units, no_units

# Largest eigenvalue gap of a pattern that may be a unit's, unless noise makes it larger. Measured: those of true
# patterns are below 1e-14 (float64) and 1e-12 (float32), and with two outputs those of others come down to 1e-7.
_GAP = 1e-13
# Where noise makes it larger than this, true patterns cannot be told from others.
_LARGEST_GAP = 1e-2
# Turns of alternating least squares. One gains a digit or two, which eigenvectors lose where the gap is small.
_TURNS = 2
# Terms explain the tensor if what they leave is no larger than this many errors.
_SLACK = 4
# The sine of the angle below which a term lies in the span of others; with noise this many times the root of its gap.
_DEPENDENT, _DEPENDENT_BY_NOISE = 1e-3, 8.0
# A pattern's gap is the squared sine of an angle, which is bounded by the norm of the errors over the least singular
# value; and a row's error at an input is normal with this many deviations as a bound.
_SINES, _DEVIATIONS = 6.0, 4.0


@dataclass(frozen=True, eq=False)
class Tensor:
    """Differences M_n (N×K×(d+1)) between the pieces at ``points`` N×(d+1) and at ``base``, [x, 1] or a multiple.

    error: the length that one M_n may have where no unit switched
    deviation: the standard deviation of what rounding adds to every number, independently
    on: on which lines through the base points are; None if each is on a line of its own
    """

    differences: Array
    points: Array
    base: Array
    error: float
    deviation: float = 0.0
    on: OnLines | None = None

    @property
    def places(self) -> OnLines:
        """Where on which line each point is."""
        return self.on or apart(len(self.points))

    def spread(self, rows: int, columns: int) -> float:
        """The largest singular value of errors in an unfolding of this shape."""
        return float(self.error * np.sqrt(len(self.points)) + largest(self.deviation, rows, columns))

    @property
    def gap(self) -> float:
        """By how much the eigenvalue of a true pattern may be off."""
        N, K = self.differences.shape[:2]
        left, sizes = self.spectrum()
        turned = self.deviation * (np.sqrt(N * K) + np.sqrt(left.shape[1]))
        least = float(sizes[-1])
        return float(max(_GAP, 4 * N * (self.error / least) ** 2, _SINES * (turned / least) ** 2))

    @property
    def rank(self) -> int:
        """How many units switch, if their rows are independent."""
        return len(self.spectrum()[1])

    def spectrum(self) -> tuple[Array, Array]:
        """The column space: orthonormal NK×r, and its singular values."""
        N, K, D = self.differences.shape
        left, sizes = _svd(self.differences.reshape(N * K, D))
        rank = int((sizes > self.spread(N * K, D)).sum())
        return left[:, :rank], sizes[:rank]

    def at(self, chosen: NDArray[np.bool_]) -> "Tensor":
        """Only some of the points."""
        on = self.places.at(chosen)
        return replace(self, differences=self.differences[chosen], points=self.points[chosen], on=on)

    def telling(self) -> NDArray[np.bool_]:
        """N: the points that tell units apart.

        Where K units or more switch at one point only, or beyond one place of a line only, all of e_n⊗Rᴷ belongs to the
        column space, and with every pattern the same one with or without these points.
        """
        telling = np.ones(len(self.points), dtype=bool)
        while telling.any():
            some, outputs = self.at(telling).reduced()
            left = some.spectrum()[0]
            if not left.size:
                return np.zeros_like(telling)
            blocks = left.reshape(len(some.points), -1)
            alone = np.concatenate([choices[1:] for choices in some.places.thresholds])
            shown = (alone @ blocks).reshape(len(alone), outputs.shape[1], -1)
            sizes = np.linalg.eigvalsh(shown @ shown.transpose(0, 2, 1))[:, 0] / alone.sum(axis=1)
            full = sizes > 1 - _LARGEST_GAP**2
            if not full.any():
                break
            telling[np.flatnonzero(telling)[alone[full].any(axis=0)]] = False
        return telling

    def reduced(self) -> tuple["Tensor", Array]:
        """The same in a basis K×k of the outputs that it reaches, which probabilities, for one, make fewer."""
        K = self.differences.shape[1]
        flat = np.moveaxis(self.differences, 1, 0).reshape(K, -1)
        directions, sizes, _ = np.linalg.svd(flat, full_matrices=False)
        basis = directions[:, sizes > self.spread(*flat.shape)]
        fewer = np.einsum("nkd,kj->njd", self.differences, basis)
        return replace(self, differences=fewer), basis


def _svd(matrix: Array) -> tuple[Array, Array]:
    """Left singular vectors and singular values; the fast driver may not converge where many of these are zero."""
    try:
        left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        left, sizes, _ = svd(matrix, full_matrices=False, lapack_driver="gesvd")
    return left, sizes


@dataclass(frozen=True, eq=False)
class Terms:
    """Patterns that explain a ``tensor``, with output directions K×m each; ``rows``: of all of them, one per term.

    inverse: of the terms, as columns; others: patterns that are sums of these
    """

    tensor: Tensor
    patterns: list[Pattern]
    rows: Array
    inverse: Array
    others: list[Pattern]

    @property
    def counts(self) -> list[int]:
        """How many units share each pattern."""
        return [p.outputs.shape[1] for p in self.patterns]


def decomposed(tensor: Tensor, rng: np.random.Generator, most: int) -> Units | None:
    """The units that can be told apart in this tensor; None if its patterns do not explain all of it.

    most: patterns are enumerated if there are no more than of so many points, each on a line of its own
    """
    fewer, outputs = tensor.reduced()
    terms = terms_of(fewer, rng, most)
    if terms is None:
        return None
    counts, inverse = terms.counts, terms.inverse
    doubtful = [(np.abs(inverse @ _terms(p)) > _dependent(fewer.gap, fewer)).any(axis=1) for p in terms.others]
    alone = (np.repeat(counts, counts) == 1) & ~np.any([np.zeros(len(inverse), dtype=bool), *doubtful], axis=0)
    every = np.repeat(np.array(terms.patterns, dtype=object), counts)
    single = [p for p, sure in zip(every, alone, strict=True) if sure]
    directions = np.array([outputs @ p.outputs[:, 0] for p in single]).reshape(-1, len(outputs))
    units = Units(directions, terms.rows[alone])
    lengths = np.linalg.norm(inverse[alone], axis=1)
    return _proved(units, single, tensor, lengths) if single else no_units(len(outputs), tensor.points.shape[1] - 1)


def terms_of(fewer: Tensor, rng: np.random.Generator, most: int) -> Terms | None:
    """Terms whose sum is this tensor, which reaches all its outputs."""
    left = fewer.spectrum()[0]
    N, K, D = fewer.differences.shape
    rank = left.shape[1]
    if rank == 0 or K < 2 or (rank >= N * K and N > 1) or rank >= D:
        return None
    gap = fewer.gap
    if gap > _LARGEST_GAP:
        return None
    basis = left.reshape(N, K, rank)
    patterns = (
        patterns_in(basis, gap, fewer.places) if 2**most >= fewer.places.patterns else alternated(basis, gap, rng)
    )
    chosen, others = _independent(patterns, left, _dependent(gap, fewer))
    if sum(p.outputs.shape[1] for p in chosen) != rank:
        return None
    flat = fewer.differences.reshape(N * K, D)
    for _ in range(_TURNS):
        chosen = _refitted(chosen, flat)
    terms = np.concatenate([_terms(p) for p in chosen], axis=1)
    inverse = np.linalg.pinv(terms)
    rows = inverse @ flat
    if np.linalg.norm(flat - terms @ rows, ord=2) > _SLACK * fewer.spread(N * K, D):
        return None
    return Terms(fewer, chosen, rows, inverse, others)


def _refitted(patterns: list[Pattern], flat: Array) -> list[Pattern]:
    """One turn of alternating least squares: rows from output directions, and these from the rows."""
    terms = np.concatenate([_terms(p) for p in patterns], axis=1)
    shown = flat @ np.linalg.pinv(np.linalg.pinv(terms) @ flat)
    refitted, column = [], 0
    for p in patterns:
        count = p.outputs.shape[1]
        blocks = shown[:, column : column + count].reshape(len(p.points), -1, count)
        outputs = np.einsum("n,nkm->km", p.points, blocks) / p.points.sum()
        refitted.append(Pattern(p.points, outputs))
        column += count
    return refitted


def _terms(pattern: Pattern) -> Array:
    """NK×m: g⊗v for every output direction."""
    terms: Array = pattern.points[:, None, None] * pattern.outputs
    return terms.reshape(-1, pattern.outputs.shape[1])


def _dependent(gap: float, tensor: Tensor) -> float:
    return max(_DEPENDENT, _DEPENDENT_BY_NOISE * float(np.sqrt(gap))) if tensor.deviation else _DEPENDENT


def _independent(patterns: list[Pattern], left: Array, dependent: float) -> tuple[list[Pattern], list[Pattern]]:
    """Patterns whose terms are a basis, those of few points first, and patterns that are sums of these.

    Two units that switch at point n only, and two at m only, share an output direction if there are three outputs:
    with it, points n and m together look like a pattern too. What is part of such sums is not sure.
    """
    basis, chosen, others = np.empty((left.shape[1], 0)), [], []
    for pattern in sorted(patterns, key=lambda p: float(p.points.sum())):
        shown = left.T @ _terms(pattern) / np.sqrt(pattern.points.sum())
        new, sizes, turn = np.linalg.svd(shown - basis @ (basis.T @ shown), full_matrices=False)
        count = int((sizes > dependent).sum())
        if count:
            basis = np.hstack([basis, new[:, :count]])
            chosen.append(Pattern(pattern.points, pattern.outputs @ turn[:count].T))
        if count < len(sizes):
            others.append(pattern)
    return chosen, others


def _proved(units: Units, patterns: list[Pattern], tensor: Tensor, lengths: Array) -> Units:
    """Those that are off at the base and on exactly where they switched, turned around where need be.

    lengths: of the combinations of answers that are the rows; rounding has no say where it may have turned the sign
    """
    everywhere = np.concatenate([tensor.base[None], tensor.points])
    expected = np.array([[0.0, *p.points] for p in patterns]) * 2 - 1
    signals = units.rows @ everywhere.T
    bound = _DEVIATIONS * tensor.deviation * np.outer(lengths, np.linalg.norm(everywhere, axis=1))
    unclear = np.abs(signals) < bound
    agree = np.sign(signals) * expected
    turn = np.where(np.where(unclear, 0.0, agree).sum(axis=1) < 0, -1.0, 1.0)
    right = ((agree == turn[:, None]) | unclear).all(axis=1) & ~unclear.all(axis=1)
    return units.turned(turn).at(right)
