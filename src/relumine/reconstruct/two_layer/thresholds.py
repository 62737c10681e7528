"""Thresholds: the activation patterns of one output's units, from lines through one point.

Along a line through the base a unit switches once: its pattern there is a threshold, on one side of the base. So a unit
is a choice of one threshold per line. All units' patterns lie in the column space of the pieces' differences, so they
vanish under its left null space Z: Σ over the lines of Z applied to a threshold is zero. That is a subset-sum problem
with a few real numbers per choice, which meeting in the middle solves: all choices of one half of the lines against all
choices of the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array

# So many choices of one half of the lines are listed at most.
_MOST_SUMS = 200_000
# More equations than these are not needed to tell patterns apart.
_EQUATIONS = 8
# So many patterns per unit are looked at; where more fit, too few points tell them apart.
_MOST_PATTERNS = 12
# So many random bases are begun with.
_STARTS = 3
# So many rounds of exchanges are made; random networks take up to 50.
_EXCHANGES = 200
# The quality of a unit all of whose signs are right.
_PROVEN = 3.0
# What is left of a pattern of zeros and ones that others do not span is no shorter than this.
_INDEPENDENT = 1e-6
# A pattern misses zero by rounding, divided by the least determined direction of the pieces; and this safety.
_SAFETY = 30.0


@dataclass(frozen=True, eq=False)
class Sample:
    """Where on which line each piece was seen: ``t`` n, ``line`` n; ``points`` n×(d+1) and ``base`` d+1, as [x, 1]."""

    t: Array
    line: NDArray[np.intp]
    points: Array
    base: Array

    def thresholds(self) -> list[Array]:
        """For every line its possible patterns, each n long: none of its points, or all beyond one of them."""
        every = []
        for line in np.unique(self.line):
            on = self.line == line
            beyond = [on & (self.t * np.sign(t) >= abs(t)) for t in self.t[on]]
            every.append(np.array([np.zeros(len(self.t), dtype=bool), *beyond]).astype(np.float64))
        return every


@dataclass(frozen=True, eq=False)
class Decoded:
    """m×n ``patterns`` and m×(d+1) ``jumps`` of units, and how consistent each is (``proven`` where it is wholly)."""

    patterns: Array
    jumps: Array
    quality: Array

    @property
    def proven(self) -> NDArray[np.bool_]:
        """Which units' signs are as their patterns say, at every point."""
        result: NDArray[np.bool_] = self.quality == _PROVEN
        return result


def decoded(sample: Sample, differences: Array, error: float, rng: np.random.Generator) -> Decoded | None:
    """Units that the differences of pieces, n×(d+1), are sums of; None where patterns are too few or too many.

    error: by how much a difference may be wrong
    """
    left, sizes, _ = np.linalg.svd(differences, full_matrices=True)
    rank = int((sizes > error * np.sqrt(len(differences))).sum())
    if not 0 < rank < len(differences):
        return None
    noise = max(float(sizes[rank:].max(initial=0)), float(np.finfo(np.float64).eps * sizes[0]))
    patterns = _vanishing(
        sample.thresholds(), left[:, rank:], _SAFETY * noise / sizes[rank - 1] * np.sqrt(len(differences)), rank
    )
    if patterns is None or len(patterns) < rank:
        return None
    best: Decoded | None = None
    for _ in range(_STARTS):
        chosen = _basis(patterns, rng.permutation(len(patterns)), rank)
        if chosen is None:
            return None
        found = _exchanged(sample, differences, patterns, chosen)
        if best is None or found.quality.sum() > best.quality.sum():
            best = found
        if best.proven.all():
            break
    return best


def _exchanged(sample: Sample, differences: Array, patterns: Array, chosen: NDArray[np.intp]) -> Decoded:
    """A basis of the patterns in which all units are consistent, or most: one is exchanged for another.

    Besides the units' own patterns sums and differences of them may be thresholds on all lines, like a + b − c. A basis
    with one of these gives the jumps of the units involved wrong, and their signs show it.
    """
    every = np.vstack([sample.base, sample.points]).T
    for _ in range(_EXCHANGES):
        rows: Array = np.linalg.lstsq(patterns[chosen].T, differences, rcond=None)[0].astype(np.float64)
        signals = rows @ every
        quality = _quality(signals, patterns[chosen])
        found = Decoded(patterns[chosen], rows, quality)
        if found.proven.all():
            break
        others = np.setdiff1d(np.arange(len(patterns)), chosen)
        shares = np.linalg.lstsq(patterns[chosen].T, patterns[others].T, rcond=None)[0]
        swaps = [
            swap
            for other, share in zip(others, shares.T, strict=True)
            for swap in _swaps(signals, quality, patterns, chosen, other, share)
        ]
        touched: set[int] = set()
        for _, place, other, circuit in sorted(swaps, key=lambda swap: -swap[0]):
            if touched.isdisjoint(circuit):
                touched |= circuit
                chosen[place] = other
        if not touched:
            break
    return found


def _swaps(
    signals: Array, quality: Array, patterns: Array, chosen: NDArray[np.intp], other: int, share: Array
) -> Iterator[tuple[float, int, int, set[int]]]:
    """Exchanges of a chosen pattern for this one that make units more consistent: gain, place, pattern, circuit."""
    circuit = np.flatnonzero(np.abs(share) > _INDEPENDENT)
    if (quality[circuit] == _PROVEN).all():
        return
    for i, place in enumerate(circuit):
        if quality[place] == _PROVEN:
            continue
        jump = signals[place] / share[place]
        after = signals[circuit] - np.outer(share[circuit], jump)
        after[i] = jump
        meant = patterns[chosen[circuit]].copy()
        meant[i] = patterns[other]
        gain = float(_quality(after, meant).sum() - quality[circuit].sum())
        if gain > _INDEPENDENT:
            yield gain, int(place), int(other), set(map(int, circuit))


def _quality(signals: Array, patterns: Array) -> Array:
    """How many of a unit's signs are as its pattern says, as a share; two more if all are. The base comes first."""
    away = -np.sign(signals[:, :1])
    share = (np.sign(signals[:, 1:]) * away == 2 * patterns - 1).mean(axis=1)
    result: Array = share + (_PROVEN - 1) * (share == 1)
    return result


def _basis(patterns: Array, order: NDArray[np.intp], rank: int) -> NDArray[np.intp] | None:
    """The first patterns in this order that are independent, as many as the rank; None if there are fewer."""
    left, chosen = patterns[order].T.copy(), []
    for i in range(left.shape[1]):
        size = float(np.linalg.norm(left[:, i]))
        if size > _INDEPENDENT:
            chosen.append(order[i])
            unit = left[:, i] / size
            left[:, i + 1 :] -= unit[:, None] * (unit @ left[:, i + 1 :])
        if len(chosen) == rank:
            return np.array(chosen)
    return None


def _vanishing(thresholds: list[Array], null: Array, tolerance: float, rank: int) -> Array | None:
    """All patterns, one threshold per line, that vanish under the null space; None if there are too many."""
    sums = [patterns @ null[:, :_EQUATIONS] for patterns in thresholds]
    width = sums[0].shape[1]
    half = 1
    while half < len(sums) - 1 and prod(len(each) for each in sums[:half]) ** 2 < prod(len(each) for each in sums):
        half += 1
    shapes = [len(each) for each in sums[:half]], [len(each) for each in sums[half:]]
    if max(prod(shapes[0]), prod(shapes[1] or [1])) > _MOST_SUMS:
        return None
    first = _all_sums(sums[:half], width)
    second = -_all_sums(sums[half:], width)
    key = np.argsort(second[:, 0])
    second = second[key]
    low = np.searchsorted(second[:, 0], first[:, 0] - tolerance)
    count = np.searchsorted(second[:, 0], first[:, 0] + tolerance) - low
    if count.sum() > 10 * _MOST_SUMS:
        return None
    one = np.repeat(np.arange(len(first)), count)
    other = np.arange(len(one)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    meet = np.abs(first[one] - second[other]).max(axis=1, initial=0) <= tolerance
    if not 0 < meet.sum() <= _MOST_PATTERNS * (rank + 4):
        return None
    choices = [
        *np.unravel_index(one[meet], shapes[0]),
        *(np.unravel_index(key[other[meet]], shapes[1]) if shapes[1] else ()),
    ]
    patterns = sum(thresholds[i][choice] for i, choice in enumerate(choices))
    found: Array = np.unique(np.asarray(patterns), axis=0)
    return found[found.any(axis=1)]


def _all_sums(each: list[Array], width: int) -> Array:
    sums = np.zeros((1, width))
    for terms in each:
        sums = (sums[:, None] + terms[None]).reshape(-1, width)
    return sums
