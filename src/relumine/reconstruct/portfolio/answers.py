"""What students learn from: classes, the numbers behind them where they are shown, and standardised inputs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from relumine.oracle.base import Array, Offer
from relumine.oracle.logits import class_probabilities

Classes = NDArray[np.intp]

# Probabilities below this are not told apart: a float32 softmax has lost their digits.
_LEAST = 1e-6
# A column that varies by less than this share of its size is constant up to float32's rounding.
_CONSTANT = 1e-6


@dataclass(frozen=True, eq=False)
class LearnedAnswers:
    """What n inputs were answered.

    classes: n, the class of each; None of a regression
    count:   of the classes; 0 of a regression
    shares:  n×count, the probabilities where they are known, else 1 for the class
    numbers: n×K logits, or the numbers of a regression; None where only labels are known
    """

    classes: Classes | None
    count: int
    shares: Array
    numbers: Array | None

    def __len__(self) -> int:
        return len(self.shares)

    def chosen(self, rows: "NDArray[np.intp]") -> "LearnedAnswers":
        """Some of them."""
        return LearnedAnswers(
            None if self.classes is None else self.classes[rows],
            self.count,
            self.shares[rows],
            None if self.numbers is None else self.numbers[rows],
        )


def answers_of(offer: Offer, values: Array) -> LearnedAnswers:
    """Values as an oracle with this offer answers them."""
    if offer.values == "real" and (offer.outputs == 1 or offer.explained in (None, "real")):
        return LearnedAnswers(None, 0, values, values)
    if offer.values == "label":
        both = np.hstack([1 - values, values]) if offer.outputs == 1 else values
        return LearnedAnswers(both.argmax(axis=1), both.shape[1], both, None)
    logits = _centred(offer, values)
    shares = class_probabilities(logits)
    return LearnedAnswers(shares.argmax(axis=1), shares.shape[1], shares, logits)


def _centred(offer: Offer, values: Array) -> Array:
    """Logits whose mean over the classes is 0; of a single output its own."""
    if offer.values == "probabilities":
        clipped = values.clip(_LEAST, 1 - _LEAST)
        values = np.log(clipped / (1 - clipped)) if offer.outputs == 1 else np.log(clipped)
    return np.asarray(values if offer.outputs == 1 else values - values.mean(axis=1, keepdims=True))


def log_shares(shares: Array) -> Array:
    return np.asarray(log_softmax(np.log(shares.clip(_LEAST)), axis=1))


@dataclass(frozen=True, eq=False)
class Scaling:
    """x → (x − mean)/scale; both have d numbers."""

    mean: Array
    scale: Array

    def __call__(self, rows: Array) -> Array:
        return np.asarray((rows - self.mean) / self.scale)


def by_columns(rows: Array) -> Scaling:
    """Each column by its own mean and deviation; constant columns are only centred."""
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    constant = deviation <= _CONSTANT * np.abs(rows).max(axis=0, initial=0)
    return Scaling(mean, np.where(constant, 1.0, deviation))


def as_a_whole(rows: Array) -> Scaling:
    """All columns by one mean and one deviation: those of images, which have one unit."""
    deviation = float(rows.std())
    return Scaling(np.full(rows.shape[1], rows.mean()), np.full(rows.shape[1], deviation if deviation > 0 else 1.0))
