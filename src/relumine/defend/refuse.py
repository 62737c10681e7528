"""Refusing: inputs that are not answered, and an end to answers.

A request with a row that is refused is not answered at all: ``RefusedError`` says which rows it was, so that the
caller can leave them out. (NaN in their place would be an answer that breaks the offer.) A spent budget is a
``BudgetError``, as a meter's own: methods end with what they have.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from relumine.defend.base import Defended
from relumine.errors import BudgetError, RefusedError
from relumine.oracle.base import Answer, Array, Offer

Mask = NDArray[np.bool_]


class OfInputs(Defended):
    """Refuses some inputs before the oracle inside is asked; ``reason`` says why, as ``sentence`` is written."""

    reason: ClassVar[str]

    def _answered(self, rows: Array, gradients: bool) -> Answer:
        refused = np.flatnonzero(self._refused(rows))
        if len(refused):
            reason = self.reason.format_map(vars(self))
            raise RefusedError(
                f"{len(refused)} of {len(rows)} rows are refused, the first is row {refused[0]}: {reason}; none "
                "of the rows was answered, ask again without these",
                rows=tuple(refused.tolist()),
            )
        return self.oracle(rows, gradients=gradients)

    @abstractmethod
    def _refused(self, rows: Array) -> Mask:
        """n: which rows are refused."""


@dataclass(frozen=True, eq=False)
class InputBox(OfInputs):
    """Refuses inputs with a coordinate outside [low, high] by more than rounding, and offers this box."""

    sentence = "Refuses inputs with a coordinate outside [{low}, {high}]."
    reason = "coordinates must lie in [{low}, {high}]"

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = self._box(self.oracle.offer)
        self._require(low < high, "low < high (within the oracle's own box)", (low, high))

    def _box(self, offer: Offer) -> tuple[float, float]:
        low, high = offer.box or (-np.inf, np.inf)
        return max(self.low, low), min(self.high, high)

    def _offered(self, offer: Offer) -> Offer:
        return replace(offer, box=self._box(offer))

    def _refused(self, rows: Array) -> Mask:
        rounding = np.finfo(self.oracle.offer.dtype).eps * max(abs(self.low), abs(self.high))
        return np.asarray(((rows < self.low - rounding) | (rows > self.high + rounding)).any(axis=1))


@dataclass(frozen=True, eq=False)
class FarInputs(OfInputs):
    """Refuses inputs whose root mean square is above ``reach``: far from the origin, where no data is."""

    sentence = "Refuses inputs whose root mean square is above {reach}."
    reason = "the root mean square must not exceed {reach}"

    reach: float

    def __post_init__(self) -> None:
        self._require(self.reach > 0, "a positive reach", self.reach)

    def _refused(self, rows: Array) -> Mask:
        return np.asarray(np.sqrt((rows**2).mean(axis=1)) > self.reach)


@dataclass(frozen=True, eq=False)
class Refusing(OfInputs):
    """Refuses by a rule of one's own.

    refused: says of n×d inputs which are refused (n booleans)
    because: what the client is told
    """

    sentence = "Refuses some inputs: {because}."
    reason = "{because}"

    refused: Callable[[Array], Mask]
    because: str

    def _refused(self, rows: Array) -> Mask:
        return self.refused(rows)


@dataclass
class _Count:
    rows: int = 0


@dataclass(frozen=True, eq=False)
class Budget(Defended):
    """Answers a number of rows, then no more. One client is one holder of this oracle.

    Rows are counted before the oracle inside is asked. A request that goes beyond is not answered, nor counted.
    """

    sentence = "Answers at most {rows} rows per client."
    remembers = True

    rows: int
    _used: _Count = field(default_factory=_Count, init=False, repr=False)

    def __post_init__(self) -> None:
        self._require(self.rows >= 1, "at least 1 row", self.rows)

    @property
    def used(self) -> int:
        """Rows that were taken from the budget."""
        return self._used.rows

    def _answered(self, rows: Array, gradients: bool) -> Answer:
        if self.used + len(rows) > self.rows:
            raise BudgetError(f"the budget of {self.rows} rows is spent: {self.used} used, {len(rows)} more asked")
        self._used.rows += len(rows)
        return self.oracle(rows, gradients=gradients)
