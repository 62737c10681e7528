"""Noise: how small a change the answers can show, found from the answers themselves."""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array, DType

_EPSILON = {"float32": float(np.finfo(np.float32).eps), "float64": float(np.finfo(np.float64).eps)}

# Sums over many units round a few times more than one operation; measured on random and trained networks, the
# gradients of one linear region differ by less than 4 rounding units of the largest gradient when batches are cut
# differently.
_SAFETY = 16.0


# Fewer different numbers may be round by chance, such as the one answer of a region where all units are off.
_ENOUGH = 6
# Of ten thousand answers that are not rounded, one may look so: the logarithm of that share.
_CHANCE = float(np.log(1e-4))


@dataclass(frozen=True)
class Noise:
    """The expected error of one number: a part that grows with it, and a part that does not."""

    relative: float
    absolute: float = 0.0

    @property
    def floor(self) -> float:
        """Relative to numbers of size one."""
        return self.relative + self.absolute

    def of(self, size: float, count: int = 1) -> float:
        """By how much two answers of ``count`` numbers may differ that are equal, and together of length ``size``.

        Rounding errors have a bound, and need no safety.
        """
        return _SAFETY * self.relative * size + 2 * self.absolute * float(np.sqrt(count))


def noise_in(answers: Array, dtype: DType) -> Noise:
    """The noise that the representation shows: computed in float32, or rounded to a few decimals.

    An honest offer says "float32"; a server that answers float32 numbers as JSON, or rounds them, often does not.
    """
    numbers = np.unique(answers[answers != 0])
    enough = len(numbers) >= _ENOUGH
    with np.errstate(over="ignore"):  # a number like 0.5 tells nothing of the precision; one with more bits does
        telling = numbers if enough else numbers[numbers != numbers.astype(np.float16)]
    single = dtype == "float32" or (len(telling) > 0 and bool(np.all(telling == telling.astype(np.float32))))
    decimals = decimals_of(numbers, single)
    half_a_unit = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    return Noise(_EPSILON["float32" if single else "float64"], half_a_unit)


def decimals_of(numbers: Array, single: bool) -> int | None:
    """To how many decimals k ≤ 11 all of these different numbers are rounded, if to few enough to tell."""
    if len(numbers) < _ENOUGH:
        return None
    # A float32 close to a decimal fraction is that fraction rounded once more.
    slack = (np.spacing(np.abs(numbers).astype(np.float32)) if single else np.spacing(np.abs(numbers))) * 2
    some = slice(None, None, len(numbers) // 50 + 1)  # which mostly tell that it is not so
    for decimals in range(12):
        if _are_rounded(numbers[some], decimals, slack[some]) and _are_rounded(numbers, decimals, slack):
            # Where the numbers' own spacing is not finer, they are round by nature: rounding counted as relative.
            by_chance = np.minimum(2 * slack * 10.0**decimals, 1.0)
            return decimals if float(np.log(by_chance).sum()) < _CHANCE else None
    return None


def _are_rounded(numbers: Array, decimals: int, slack: Array) -> bool:
    return bool(np.all(np.abs(np.round(numbers, decimals) - numbers) <= slack))
