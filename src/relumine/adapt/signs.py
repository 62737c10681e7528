"""SignsFromValues: gradients from their magnitudes, with the signs told by values."""

from functools import cache
from itertools import product
from math import sqrt
from typing import NamedTuple

import numpy as np

from relumine.adapt.base import AdapterByValues, as_seen
from relumine.errors import BadAnswerError
from relumine.oracle.base import Array, DType, Oracle, explained_outputs

# How many signs one value query tells: as many as its digits can separate.
_PACKED: dict[DType, int] = {"float64": 12, "float32": 2}
# The first step, as a share of the input's size, how much shorter it is where values are smooth, and how often it may
# be changed (turned round, then divided by 4) to stay within a linear region.
_STEP: dict[DType, float] = {"float64": 2.0**-8, "float32": 2.0**-6}
_SMOOTHER: dict[DType, float] = {"float64": 2.0**-6, "float32": 1.0}
_ATTEMPTS = 36

# A sum of signed magnitudes fits a difference of values up to this many rounding errors of the values, and for smooth
# values (probabilities) up to this share of the largest sum.
_ROUNDINGS: dict[DType, int] = {"float64": 256, "float32": 16}
_SMOOTH: dict[DType, float] = {"float64": 2e-8, "float32": 2e-3}


class _SignBlock(NamedTuple):
    """Some coordinates whose signs are asked together, with one step."""

    coordinates: tuple[int, ...]
    step: float
    attempt: int = 0


class SignsFromValues(AdapterByValues):
    """Gives |∇f(x)| its signs.

    Within a linear region f(x + δ) − f(x) = Σ sᵢ |∂f/∂xᵢ| δᵢ. Where δ moves n coordinates by different lengths, the 2ⁿ
    sums of signed magnitudes differ, and the value at x + δ tells which it is: n = 12 in float64, 2 in float32. A
    difference that fits none of them shows a kink between: x − δ is asked, then shorter steps. One that fits two is
    asked again with fewer coordinates. Probabilities bend everywhere, so of them x + δ/2 is asked too, which takes the
    bend away.

    power: 2 where the maps are squares of the gradient's coordinates
    """

    def __init__(self, oracle: Oracle, *, power: int = 1) -> None:
        super().__init__(oracle)
        self._power = power

    def _plain(self, maps: Array) -> Array:
        return np.asarray(np.abs(maps) ** (1 / self._power))

    def _gradients(self, row: Array, values: Array, maps: Array) -> Array:
        explained = explained_outputs(self.offer.gradients, values[None])[0].tolist()
        signs = np.ones_like(maps)
        blocks = self._first_blocks(row, maps)
        here = as_seen(self.offer, row)
        while blocks:
            moves, differences = self._moved(row, here, values, blocks)
            again: list[_SignBlock] = []
            for block, move, difference in zip(blocks, moves, differences[:, explained], strict=True):
                again += self._decode(block, move, difference, float(np.abs(values).max()), maps, signs)
            blocks = again
        return signs * maps

    def _moved(self, row: Array, here: Array, values: Array, blocks: list[_SignBlock]) -> tuple[Array, Array]:
        """How far each block moved its coordinates, in numbers as the target sees them, and the values with them."""
        deltas = self._deltas(row, blocks)
        if self.offer.values != "probabilities":
            points = row + deltas
            return as_seen(self.offer, points) - here, self._oracle(points, gradients=False).values - values
        points = np.concatenate([row + deltas, row + deltas / 2])
        whole, half = np.split(self._oracle(points, gradients=False).values - values, 2)
        moved, halfway = np.split(as_seen(self.offer, points) - here, 2)
        # Free of the second derivative: what remains is of third order in the step.
        return 4 * halfway - moved, 4 * half - whole

    def _first_blocks(self, row: Array, magnitudes: Array) -> list[_SignBlock]:
        """Coordinates of nearly the same size together, so that none drowns; those that are 0 have no sign."""
        step = _STEP[self.offer.dtype] * max(1.0, float(np.linalg.norm(row)) / sqrt(len(row)))
        if self.offer.values == "probabilities":
            step *= _SMOOTHER[self.offer.dtype]
        order = [int(i) for i in np.argsort(magnitudes.max(axis=0)) if magnitudes[:, i].any()]
        packed = _PACKED[self.offer.dtype]
        return [_SignBlock(tuple(order[i : i + packed]), step) for i in range(0, len(order), packed)]

    def _deltas(self, row: Array, blocks: list[_SignBlock]) -> Array:
        """How far each block moves each coordinate: lengths that no two sums have in common."""
        deltas = np.zeros((len(blocks), len(row)))
        for i, block in enumerate(blocks):
            lengths = np.random.default_rng(len(block.coordinates)).uniform(0.5, 1, len(block.coordinates))
            # Backwards at every second attempt: next to a kink one of the two ways is free.
            deltas[i, list(block.coordinates)] = block.step * lengths * (-1) ** block.attempt
        if self.offer.box is not None:
            low, high = self.offer.box
            deltas = np.where((row + deltas < low) | (row + deltas > high), -deltas, deltas)
        return deltas

    def _decode(
        self, block: _SignBlock, move: Array, difference: Array, largest: float, magnitudes: Array, signs: Array
    ) -> list[_SignBlock]:
        """Write the signs that fit, or say which blocks to ask instead."""
        where = list(block.coordinates)
        patterns = _patterns(len(where))
        parts = magnitudes[:, where] * move[where]
        gaps = np.abs(patterns @ parts.T - difference)
        best = gaps.argmin(axis=0)
        reach = np.abs(parts).sum(axis=1)
        smooth = _SMOOTH[self.offer.dtype] * reach if self.offer.values == "probabilities" else 0.0
        tolerance = _ROUNDINGS[self.offer.dtype] * np.finfo(self.offer.dtype).eps * (largest + reach) + smooth
        if (gaps[best, range(len(best))] > tolerance).any():
            if block.attempt == _ATTEMPTS:
                raise BadAnswerError("values do not fit the magnitudes at any step: these maps are not |gradient|")
            step = block.step / (4 if block.attempt % 2 else 1)
            return [_SignBlock(block.coordinates, step, block.attempt + 1)]
        # Signs of parts below the tolerance do not matter; another pattern that differs in others does.
        matters = np.abs(parts) > tolerance[:, None]
        fits = (gaps <= 4 * tolerance).T
        differs = patterns[None] != patterns[best][:, None]
        if len(where) > 1 and (differs & matters[:, None] & fits[:, :, None]).any():
            half = len(where) // 2
            return [block._replace(coordinates=part) for part in (block.coordinates[:half], block.coordinates[half:])]
        signs[:, where] = patterns[best]
        return []


@cache
def _patterns(count: int) -> Array:
    return np.array(list(product((1.0, -1.0), repeat=count)))
