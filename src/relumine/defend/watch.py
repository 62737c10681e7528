"""Watching: a client whose queries look like a reconstruction gets no more answers."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from relumine.defend.base import Defended
from relumine.errors import RefusedError
from relumine.oracle.base import Answer, Array

# Two differences point along one line if the cosine of their angle is this close to ±1: 0.8 degrees.
_STRAIGHT = 1 - 1e-4
# Below this many inputs, random differences point along one line too often.
_FEWEST_INPUTS = 5

# PRADA: inputs that are kept per class to measure distances from.
_MOST_KEPT = 1000


@dataclass
class _Suspicion:
    """Rows seen, and whether they are enough to refuse."""

    recent: list[Array] = field(default_factory=list)
    on_lines: int = 0
    kept: dict[int, list[Array]] = field(default_factory=dict)
    distances: dict[int, list[float]] = field(default_factory=dict)
    recent_distances: list[float] = field(default_factory=list)
    raised: bool = False


@dataclass(frozen=True, eq=False)
class Watching(Defended):
    """Refuses every request from the one that raises suspicion on, for this ``reason``; that one is not answered."""

    reason: ClassVar[str]
    remembers = True

    _suspicion: _Suspicion = field(default_factory=_Suspicion, init=False, repr=False)

    @property
    def detected(self) -> bool:
        """Whether the client is refused by now."""
        return self._suspicion.raised

    def _answered(self, rows: Array, gradients: bool) -> Answer:
        if not self.detected:
            answer = self.oracle(rows, gradients=gradients)
            labels = answer.values.argmax(axis=1)
            suspicious = [self._is_suspicious(row, int(label)) for row, label in zip(rows, labels, strict=True)]
            self._suspicion.raised = any(suspicious)
            if not self.detected:
                return answer
        raise RefusedError(
            f"this client's questions look like a reconstruction: {self.reason}; no further one is answered",
            rows=tuple(range(len(rows))),
        )

    @abstractmethod
    def _is_suspicious(self, row: Array, label: int) -> bool:
        """Take note of a row and its class; True to refuse from now on."""


@dataclass(frozen=True, eq=False)
class LineWatch(Watching):
    """Refuses after ``patience`` rows that lie on one line with two of the ``window`` rows before them.

    Line searches do, and so do differences along an axis; data in more than a few dimensions does not.
    """

    sentence = "Refuses a client after {patience} rows on a line with two of the {window} rows before."
    reason = "too many lie on lines"

    patience: int = 10
    window: int = 64

    def __post_init__(self) -> None:
        self._require(self.patience >= 1, "a patience of at least 1", self.patience)
        self._require(self.window >= 2, "a window of at least 2 rows", self.window)
        inputs = self.oracle.offer.dimension
        self._require(inputs >= _FEWEST_INPUTS, f"at least {_FEWEST_INPUTS} inputs, below lines are common", inputs)

    def _is_suspicious(self, row: Array, label: int) -> bool:
        recent = self._suspicion.recent
        differences = np.array(recent).reshape(-1, len(row)) - row
        if differences.any(axis=1).all():  # a repeated question is no step of a search
            self._suspicion.on_lines += _two_are_parallel(differences)
            recent.append(row)
            del recent[: -self.window]
        return self._suspicion.on_lines >= self.patience


def _two_are_parallel(vectors: Array) -> bool:
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.abs(units @ units.T)
    np.fill_diagonal(cosines, 0)
    return bool(cosines.max(initial=0) > _STRAIGHT)


@dataclass(frozen=True, eq=False)
class DistanceWatch(Watching):
    """Refuses when distances between a client's rows stop looking like a normal distribution.

    After PRADA (Juuti et al., arXiv 1805.02628): a row's distance to the nearest kept row of the same predicted class
    is noted; rows that are not unusually near are kept. Data gives distances that are nearly normal, queries made for
    a purpose do not. Over the last ``window`` distances, without those beyond three standard deviations, Shapiro and
    Wilk's W is computed; below ``threshold`` the client is refused.
    """

    sentence = "Refuses a client whose last {window} nearest distances are not normal (Shapiro–Wilk W < {threshold})."
    reason = "their distances are not those of data"

    threshold: float = 0.9
    window: int = 100

    def __post_init__(self) -> None:
        self._require(0 < self.threshold < 1, "a threshold in (0, 1)", self.threshold)
        self._require(self.window >= 20, "a window of at least 20 rows", self.window)

    def _is_suspicious(self, row: Array, label: int) -> bool:
        seen = self._suspicion
        kept, noted = seen.kept.setdefault(label, []), seen.distances.setdefault(label, [])
        if not kept:
            kept.append(row)
            return False
        distance = float(np.linalg.norm(np.array(kept) - row, axis=1).min())
        if not noted or distance > np.mean(noted) - np.std(noted):
            kept.append(row)
            noted.append(distance)
            del kept[:-_MOST_KEPT], noted[:-_MOST_KEPT]
        seen.recent_distances.append(distance)
        del seen.recent_distances[: -self.window]
        return len(seen.recent_distances) == self.window and _normality(seen.recent_distances) < self.threshold


def _normality(numbers: list[float]) -> float:
    """Shapiro and Wilk's W of what lies within three standard deviations; 0 where all are equal."""
    from scipy.stats import shapiro  # takes a second to import

    sample = np.array(numbers)
    sample = sample[np.abs(sample - sample.mean()) <= 3 * sample.std()]
    return float(shapiro(sample).statistic) if np.ptp(sample) > 0 else 0.0
