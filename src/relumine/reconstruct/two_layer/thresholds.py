"""Thresholds: the activation patterns of one output's units, from lines through one point.

Along a line through the base a unit switches once: its pattern there is a threshold, on one side of the base. So a unit
is a choice of one threshold per line. All units' patterns lie in the column space of the pieces' differences, so they
vanish under its left null space Z: Σ over the lines of Z applied to a threshold is zero. That is a subset-sum problem
of real numbers, which meeting in the middle (Horowitz, Sahni 1974) solves: all choices on one half of the lines against
all choices on the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, prod

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.patterns import OnLines, halved

# Choices listed for one half of the lines, at most: sorting them takes a second, and 32 MB each.
_MOST_SUMS = 4_000_000
# Pairs that agree in one equation and are held against the others, at most; and that many at once.
_MOST_PAIRS = 5_000_000
# Halves of the lines are not quite equal: 14 % fewer choices are listed in one of them.
_UNEVEN = 0.3
# How far from zero and one an entry of a pattern may be that follows from others.
_BINARY = 1e-2
# Further equations than these are not needed to tell patterns apart.
_EQUATIONS = 12
# Patterns per unit that are looked at, at most: with 2 all exchanges ended well, with 4.8 none (50-32-1, 16 networks).
_MOST_PATTERNS = 2.5
# Random bases that are begun with.
_STARTS = 3
# Rounds of exchanges; random networks take up to 50.
_EXCHANGES = 200
# The quality of a unit all of whose signs are right.
_PROVEN = 3.0
# What is left of a pattern of zeros and ones that others do not span is no shorter than this.
_INDEPENDENT = 1e-6
# A pattern misses zero by rounding, divided by the least determined direction of the pieces; and this safety.
_SAFETY = 30.0


@dataclass(frozen=True, eq=False)
class Sample:
    """Where ``on`` which line each of n pieces was seen; ``points`` n×(d+1) and ``base`` d+1, as [x, 1]."""

    on: OnLines
    points: Array
    base: Array

    def at(self, chosen: NDArray[np.bool_]) -> "Sample":
        """Some of them."""
        return Sample(self.on.at(chosen), self.points[chosen], self.base)


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


def listable(sizes: list[int]) -> bool:
    """Whether all choices of thresholds can be listed on lines with this many points each."""
    return sum(log(size + 1) for size in sizes) <= 2 * log(_MOST_SUMS) - _UNEVEN


def decoded(
    sample: Sample, differences: Array, error: float, rng: np.random.Generator, lines: int | None = None
) -> Decoded | None:
    """Units that the differences of pieces, n×(d+1), are sums of; None where too many patterns fit.

    error: by how much a difference may be wrong
    lines: on this many, the first ones, patterns are listed; on all others they must follow from that
    """
    listed = sample.on.line < (np.inf if lines is None else lines)
    left, sizes, right = np.linalg.svd(differences[listed], full_matrices=True)
    rank = int((sizes > error * np.sqrt(len(left))).sum())
    if not 0 < rank < len(left):
        return None
    noise = max(float(sizes[rank:].max(initial=0)), float(np.finfo(np.float64).eps * sizes[0]))
    tolerance = _SAFETY * noise / sizes[rank - 1] * np.sqrt(len(left))
    # Equations of their own for pieces that equal the base's would tell nothing of the others.
    mixed = np.linalg.qr(rng.standard_normal((len(left) - rank, len(left) - rank)))[0]
    patterns = _vanishing(sample.on.at(listed).thresholds, left[:, rank:] @ mixed, tolerance, rank)
    if patterns is None:
        return None
    follow = patterns @ left[:, :rank] / sizes[:rank] @ right[:rank] @ differences.T
    patterns = np.round(follow[(np.abs(follow - (follow > 0.5)) < _BINARY).all(axis=1)])
    best: Decoded | None = None
    for _ in range(_STARTS):
        chosen = _basis(patterns, rng.permutation(len(patterns)), rank)
        if chosen is None:
            raise Stop(Outcome.NOT_THIS_CLASS, "the pieces on lines through one point are not sums of single units")
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
    halves = halved(thresholds)
    shapes = [[len(each) for each in half] for half in halves]
    if max(map(prod, shapes)) > _MOST_SUMS:
        return None
    (first, key), (second, other_key) = (_sorted_sums(half, null[:, 0]) for half in halves)
    second, other_key = -second[::-1], other_key[::-1]
    low = np.searchsorted(second, first - tolerance)
    count = np.searchsorted(second, first + tolerance, side="right") - low
    if count.sum() > _MOST_PAIRS:
        return None
    one = np.repeat(np.arange(len(first)), count)
    other = np.arange(len(one)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    chosen = [*np.unravel_index(key[one], shapes[0]), *np.unravel_index(other_key[other], shapes[1])]
    lines = [*halves[0], *halves[1]]
    for equation in null.T[1:_EQUATIONS]:
        left = sum((line @ equation)[choice] for line, choice in zip(lines, chosen, strict=True))
        meet = np.abs(left) <= tolerance
        chosen = [choice[meet] for choice in chosen]
    if len(chosen[0]) > _MOST_PATTERNS * (rank + 4):
        return None
    patterns: Array = np.asarray(sum(line[choice] for line, choice in zip(lines, chosen, strict=True)))
    return patterns[patterns.any(axis=1)]


def _sorted_sums(half: list[Array], equation: Array) -> tuple[Array, NDArray[np.intp]]:
    sums = np.zeros(1)
    for line in half:
        sums = (sums[:, None] + line @ equation).ravel()
    order = np.argsort(sums)
    return sums[order], order
