"""Asking in another way: questions asked many times, against noise, or hidden among others, against a watch."""

from math import floor, log10

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, InFront, Oracle, checked_inputs, joined

# Answers are rounded to the decimals that are at least this many standard errors wide, so that nearly all numbers are
# within one unit of the last, and methods see from the numbers themselves how far they can be trusted.
_ERRORS_PER_UNIT = 8.0
# Rows asked at once.
_AT_ONCE = 4096


class Averaged(InFront):
    """The mean of ``times`` answers to each question.

    Noise that is fresh at every question falls with the square root of ``times``. Noise that is always the same for the
    same input does not; it is other noise a little beside. With ``spread`` the questions are asked in pairs, x + δ and
    x − δ, with δ random and of this share of the input's size: within one linear region δ cancels.

    rounded: answer no more digits than the mean can be trusted with, for methods that see from the numbers themselves
             how far to trust them. The standard error is taken from the first answer that shows noise.
    """

    def __init__(
        self,
        oracle: Oracle,
        times: int,
        *,
        spread: float = 0.0,
        rounded: bool = False,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        if times < 2:
            raise MisuseError(f"Averaged: expected to ask at least twice, got {times}")
        if spread < 0:
            raise MisuseError(f"Averaged: expected a spread of at least 0, got {spread}")
        super().__init__(oracle)
        self._times = times + times % 2 if spread else times
        self._spread = spread
        self._round = rounded
        self._rng = np.random.default_rng(rng)
        self._decimals: dict[str, int] = {}

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        per_part = max(1, _AT_ONCE // self._times)
        parts = [self._mean(rows[i : i + per_part], gradients) for i in range(0, len(rows), per_part)]
        return joined(self.offer, parts, gradients=gradients)

    def _mean(self, rows: Array, gradients: bool) -> Answer:
        answer = self._oracle(self._asked(rows).reshape(-1, rows.shape[1]), gradients=gradients)
        shape = (len(rows), self._times)
        maps = answer.jacobians.reshape(*shape, *answer.jacobians.shape[1:]) if gradients else None
        values = self._mean_of("values", answer.values.reshape(*shape, -1))
        return Answer(values, None if maps is None else self._mean_of("gradients", maps))

    def _asked(self, rows: Array) -> Array:
        """n×times×d: every row again and again, or beside it in pairs."""
        if not self._spread:
            return np.repeat(rows[:, None], self._times, axis=1)
        size = np.maximum(1.0, np.sqrt((rows**2).mean(axis=1)))[:, None, None]
        moves = self._spread * size * self._rng.standard_normal((len(rows), self._times // 2, rows.shape[1]))
        if self.offer.box is not None:  # a coordinate that would leave the box on either side stays
            low, high = self.offer.box
            leaves = (rows[:, None] + np.abs(moves) > high) | (rows[:, None] - np.abs(moves) < low)
            moves = np.where(leaves, 0.0, moves)
        return np.concatenate([rows[:, None] + moves, rows[:, None] - moves], axis=1)

    def _mean_of(self, what: str, numbers: Array) -> Array:
        """The mean over axis 1, rounded if so wanted."""
        if self._spread:
            first, second = np.split(numbers, 2, axis=1)
            numbers = (first + second) / 2
        mean: Array = numbers.mean(axis=1)
        if self._round and what not in self._decimals and numbers.shape[1] > 1:
            error = float(np.sqrt(numbers.var(axis=1, ddof=1).mean() / numbers.shape[1]))
            if error > np.finfo(self.offer.dtype).eps * float(np.abs(mean).max()):
                self._decimals[what] = floor(-log10(_ERRORS_PER_UNIT * error))
        return np.round(mean, self._decimals[what]) if what in self._decimals else mean


class DecoyQueries(InFront):
    """Asks ``others`` rows without gradients before each row that matters, and forgets their answers.

    A watch that looks at a client's last rows sees mostly these. They are drawn from N(0, I), or uniformly from the box
    of valid inputs; data would not do, because images that resemble each other look like a search from further away.

    values: whether rows asked without gradients matter too. Where gradients are searched, values are asked at random
            points, which look like any others.
    """

    def __init__(
        self,
        oracle: Oracle,
        others: int,
        *,
        values: bool = True,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        if others < 1:
            raise MisuseError(f"DecoyQueries: expected at least 1 other row, got {others}")
        super().__init__(oracle)
        self._others = others
        self._values = values
        self._rng = np.random.default_rng(rng)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        if not (gradients or self._values):
            return self._oracle(rows, gradients=False)
        return joined(self.offer, [self._hidden(row, gradients) for row in rows], gradients=gradients)

    def _hidden(self, row: Array, gradients: bool) -> Answer:
        shape, box = (self._others, self.offer.dimension), self.offer.box
        others = self._rng.standard_normal(shape) if box is None else self._rng.uniform(*box, size=shape)
        if gradients:
            self._oracle(others, gradients=False)
            return self._oracle(row[None], gradients=True)
        return Answer(self._oracle(np.concatenate([others, row[None]]), gradients=False).values[-1:])
