"""How good a clone is, measured beside the target. What is asked here is nobody's query and is not counted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from relumine.audit.data import AuditData, Labels
from relumine.audit.parameters import recovered_share, true_network
from relumine.audit.result import CloneMeasures
from relumine.audit.transfer import transfer
from relumine.errors import MisuseError
from relumine.oracle.base import Array, Offer, Oracle, ValueKind
from relumine.oracle.logits import probabilities_of
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Clone
from relumine.reconstruct.verification import fresh_points

Classes = NDArray[np.intp]

# Clones are compared on so many test inputs at most, and on so many Gaussian ones, the same for all.
_MOST_INPUTS = 2000
_GAUSSIAN_POINTS = 1000
_GAUSSIAN_SEED = 1807

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
        known = np.isfinite(guesses).all(axis=1)
        classes = self.classes
        if classes is not None:
            own = classes_of(np.nan_to_num(guesses), self._kind_of_guesses(kind))
            return float((known & (own == classes)).mean())
        allowed = CLOSE * self.values.std(axis=0)
        with np.errstate(invalid="ignore"):
            return float((known & (np.abs(guesses - self.values) <= allowed).all(axis=1)).mean())

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


@dataclass(frozen=True, eq=False)
class Reference:
    """A target as clones are held against it."""

    test: Compared
    gaussian: Compared
    labels: Labels | None
    truth: Network | None

    @property
    def test_inputs(self) -> int:
        """How many are compared."""
        return len(self.test.rows)

    @property
    def majority(self) -> float:
        """Share of the test inputs that the target puts in its most frequent class."""
        return self.test.constant

    @property
    def target_accuracy(self) -> float | None:
        """Share of the test inputs whose true label the target gives."""
        return self.accuracy(self.test.values, self.test.kind)

    def accuracy(self, guesses: Array, kind: str) -> float | None:
        """Share of the test inputs whose true label these answers give; None without labels, or without classes."""
        if self.labels is None or self.test.classes is None:
            return None
        known = np.isfinite(guesses).all(axis=1)
        classes = classes_of(np.nan_to_num(guesses), self.test.kind if kind == "real" else kind)
        return float((known & (classes == self.labels)).mean())


def reference_of(target: Oracle, test: AuditData) -> Reference:
    """Ask the target, once for all clones that are held against it in this process."""
    return _asked(_Both(target, test))


class _Both:
    """These two objects and no others, whatever they call equal."""

    def __init__(self, target: Oracle, test: AuditData) -> None:
        self.target, self.test = target, test

    def __hash__(self) -> int:
        return hash((id(self.target), id(self.test)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Both) and other.target is self.target and other.test is self.test


@lru_cache(maxsize=2)
def _asked(both: _Both) -> Reference:
    target, test = both.target, both.test
    offer = target.offer
    if offer.values == "none":
        raise MisuseError("the target answers no values, so that nothing can be held against them; offer its values")
    rows = test.rows[:_MOST_INPUTS]
    gaussian = fresh_points(offer, _GAUSSIAN_POINTS, np.random.default_rng(_GAUSSIAN_SEED))
    return Reference(
        test=_compared(target, rows),
        gaussian=_compared(target, gaussian),
        labels=None if test.labels is None else test.labels[: len(rows)],
        truth=true_network(target),
    )


def _compared(target: Oracle, rows: Array) -> Compared:
    return Compared(rows, target(rows, gradients=False).values, target.offer.values)


def clone_measures(
    predict: Callable[[Array], Array],
    clone: Clone | None,
    target: Oracle,
    test: AuditData,
    rng: int | np.random.Generator | None = 0,
) -> CloneMeasures:
    """Hold a clone against the target itself, undefended and unmetered.

    predict: what the clone answers to n×d inputs
    clone:   None where ``predict`` is all there is: then nothing is said about transfer and parameters
    test:    inputs that no attack has drawn from
    """
    reference = reference_of(target, test)
    kind = _kind_of(clone, target.offer)
    guesses = predict(reference.test.rows)
    return CloneMeasures(
        agreement=reference.test.agreement(guesses, kind),
        gaussian_agreement=reference.gaussian.agreement(predict(reference.gaussian.rows), kind),
        accuracy=reference.accuracy(guesses, kind),
        target_accuracy=reference.target_accuracy,
        worst_gap=reference.test.gap(guesses, kind),
        transfer=None if clone is None else _transfer(clone, target, reference, test, rng),
        parameters_recovered=_parameters(clone, reference),
        r2=reference.test.explained(guesses),
    )


def _transfer(
    clone: Clone, target: Oracle, reference: Reference, test: AuditData, rng: int | np.random.Generator | None
) -> float | None:
    if reference.test.classes is None:
        return None
    low, high = target.offer.box or (float(test.inputs.min()), float(test.inputs.max()))
    bounds = (low, high) if target.offer.box is not None or test.given else (-np.inf, np.inf)

    def classes(rows: Array) -> Classes:
        found = classes_of(target(rows, gradients=False).values, target.offer.values)
        assert found is not None
        return found

    return transfer(clone, classes, reference.test.rows, reference.test.classes, test.deviation, bounds, rng)


def _parameters(clone: Clone | None, reference: Reference) -> float | None:
    known = reference.truth is not None and isinstance(clone, Network)
    return recovered_share(clone, reference.truth) if known else None  # type: ignore[arg-type]


def _kind_of(clone: Clone | None, offer: Offer) -> str:
    """What the clone's predictions are: as the oracle's values were that it was made from."""
    kind = getattr(clone, "values", None) or getattr(clone, "of", None) or offer.values
    assert isinstance(kind, str)
    return kind


def classes_of(values: Array, kind: str) -> Classes | None:
    """n: the class that each row of values says; None for real numbers, which tell no classes apart."""
    if kind == "real":
        return None
    if values.shape[1] > 1:
        largest: Classes = values.argmax(axis=1)
        return largest
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
        result: Array = np.exp(values)
        return result
    return probabilities_of(values)
