"""How close a clone's answers are to the target's. What is asked here is nobody's query and is not counted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array, ValueKind
from relumine.oracle.logits import probabilities_of

Classes = NDArray[np.intp]

# Where there are no classes, answers agree that differ by less than this share of the target's standard deviation.
CLOSE = 0.1

# Which kind of values says less than which.
_COARSENESS: dict[str, int] = {"real": 0, "logits": 0, "log-probabilities": 1, "probabilities": 1, "label": 2}

# Where a single output says neither class; 0.5 where it is a probability.
_EVEN = {"logits": 0.0, "log-probabilities": float(np.log(0.5))}


@dataclass(frozen=True, eq=False)
class Compared:
    """Points, and what the target says there.

    constant: share of them on which the best constant guess agrees with the target
    """

    rows: Array
    values: Array
    kind: ValueKind

    @property
    def classes(self) -> Classes | None:
        """n: the target's class; None where it tells none apart."""
        return classes_of(self.values, self.kind)

    @property
    def constant(self) -> float:
        """A clone that does not do better knows nothing."""
        classes = self.classes
        if classes is not None:
            return float(np.unique(classes, return_counts=True)[1].max() / len(classes))
        return self.agreement(np.tile(np.median(self.values, axis=0), (len(self.values), 1)), self.kind)

    def agreement(self, guesses: Array, kind: str) -> float:
        """The share of points on which these answers of a kind agree with the target's."""
        if self.classes is not None:
            return self.share(guesses, kind, self.classes)
        known = np.isfinite(guesses).all(axis=1)
        allowed = CLOSE * self.values.std(axis=0)
        with np.errstate(invalid="ignore"):
            return float((known & (np.abs(guesses - self.values) <= allowed).all(axis=1)).mean())

    def share(self, guesses: Array, kind: str, classes: "np.ndarray") -> float:
        """The share of points for which these answers of a kind give these classes."""
        own = classes_of(np.nan_to_num(guesses), self._kind_of_guesses(kind))
        return float((np.isfinite(guesses).all(axis=1) & (own == classes)).mean())

    def explained(self, guesses: Array) -> float | None:
        """R²: the share of the target's variance that these answers explain; None where the target gives classes."""
        if self.classes is not None or not np.isfinite(guesses).all():
            return None
        variance = float(self.values.var(axis=0).sum())
        return 1 - float(((guesses - self.values) ** 2).mean(axis=0).sum()) / variance if variance else None

    def gap(self, guesses: Array, kind: str) -> float:
        """The largest difference, relative to the target's largest value; in the coarser of the two kinds."""
        known = np.isfinite(guesses).all(axis=1)
        kind = self._kind_of_guesses(kind)
        coarser = max(kind, self.kind, key=_COARSENESS.__getitem__).removeprefix("log-")
        theirs, ours = _as_kind(self.values[known], self.kind, coarser), _as_kind(guesses[known], kind, coarser)
        largest, gap = np.abs(theirs).max(initial=0), np.abs(theirs - ours).max(initial=0)
        return float(gap / largest) if largest > 0 else float(gap)

    def _kind_of_guesses(self, kind: str) -> str:
        """Numbers that are offered as real because a defence has changed them are still what the target's are."""
        return self.kind if kind == "real" else kind


def classes_of(values: Array, kind: str) -> Classes | None:
    """n: the class that each row of values says; None for real numbers, which tell no classes apart."""
    if kind == "real":
        return None
    if values.shape[1] > 1:
        return np.asarray(values.argmax(axis=1))
    return (values[:, 0] > _EVEN.get(kind, 0.5)).astype(np.intp)


def _as_kind(values: Array, have: str, want: str) -> Array:
    """The same answers, saying no more than ``want`` does."""
    if have == want or _COARSENESS[have] == _COARSENESS[want] == 0:
        return values
    single = values.shape[1] == 1
    if want == "label":
        classes = classes_of(values, have)
        assert classes is not None
        return classes[:, None].astype(np.float64) if single else np.eye(values.shape[1])[classes]
    if have == "probabilities":
        return values
    if have == "log-probabilities":
        return np.asarray(np.exp(values))
    return probabilities_of(values)
