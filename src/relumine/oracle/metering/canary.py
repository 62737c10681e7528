"""Canary: questions whose answers are known, asked again now and then, so that a run notices what goes wrong.

A model that was exchanged during the run, answers that are random, and batches whose rows come back in another order
all give plausible numbers. Verification would say that nothing was recovered; a canary says why, and earlier.
"""

import numpy as np

from relumine.oracle.base import Answer, Array, Offer

# Rows between two canaries: they are paid for like all others.
ROWS_BETWEEN = 64

# Equal up to rounding, relative to the largest number: batches of different sizes are summed in different orders.
_TOLERANCE = {"float32": 1e-3, "float64": 1e-9}

_SEED = 271828  # any number: canaries must be the same in every run


class Canary:
    """Two inputs, their answers (one set with gradients, one without), and when to ask again."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        rng = np.random.default_rng(_SEED)
        low, high = offer.box or (0.0, 0.0)
        shape = (2, offer.dimension)
        self.rows: Array = rng.standard_normal(shape) if offer.box is None else rng.uniform(low, high, shape)
        self._known: dict[bool, Answer] = {}
        self._phases: set[str] = set()
        self._asked = 0
        self._next = ROWS_BETWEEN

    def knows(self, gradients: bool) -> bool:
        """Whether the answer of this kind is known."""
        return gradients in self._known

    def learn(self, answer: Answer, gradients: bool, phase: str) -> None:
        """Take this answer to the first input, asked as a phase began, for the truth."""
        self._known[gradients] = answer
        self._phases.add(phase)

    def is_known(self, answer: Answer, gradients: bool) -> bool:
        """Whether this is what was answered before."""
        return self.agree(self._known[gradients], answer)

    def agree(self, first: Answer, second: Answer) -> bool:
        """Whether two answers are the same up to rounding."""
        pairs = [(first.values, second.values)]
        if first.gradients is not None and second.gradients is not None:
            pairs.append((first.gradients, second.gradients))
        return all(self._close(a, b) for a, b in pairs)

    def _close(self, first: Array, second: Array) -> bool:
        largest = max(float(np.abs(first).max(initial=0)), float(np.abs(second).max(initial=0)))
        apart = float(np.abs(first - second).max(initial=0))
        return apart <= _TOLERANCE[self._offer.dtype] * largest or apart <= 1.5 * _step(first)

    def place(self, rows: int, phase: str) -> int | None:
        """Where among ``rows`` rows the canary goes this time, or None if it is not its turn.

        It is when a phase begins, so that none builds upon the answers of two models, and again and again in long ones.
        """
        if phase in self._phases and self._asked + rows < self._next:
            return None
        return int(np.random.default_rng((_SEED, self._asked)).integers(rows + 1))

    def answered(self, rows: int, phase: str) -> None:
        """Count rows that were asked in a phase and answered."""
        self._phases.add(phase)
        self._asked += rows
        if self._asked >= self._next:
            self._next = self._asked + ROWS_BETWEEN


def _step(numbers: Array) -> float:
    """The last decimal that numbers are rounded to, 0 if they are not: rounding may fall to either side."""
    rounded = (d for d in range(9) if np.array_equal(np.round(numbers, d), numbers))
    decimals = next(rounded, 0)  # whole numbers are taken for what they are
    return float(10.0**-decimals) if decimals else 0.0
