"""How good a clone is, measured beside the target. What is asked here is nobody's query and is not counted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from relumine.audit.data import AuditData, Labels
from relumine.audit.parameters import recovered_share, true_network
from relumine.audit.result import CloneMeasures
from relumine.audit.transfer import transfer
from relumine.errors import MisuseError
from relumine.measures import Classes, Compared, classes_of
from relumine.oracle.base import Array, Offer, Oracle
from relumine.reconstruct.network import Network
from relumine.reconstruct.portfolio.method import Copy
from relumine.reconstruct.result import Clone
from relumine.reconstruct.verification import fresh_points

# Clones are compared on at most this many test inputs, and on this many Gaussian ones, the same for all.
_MOST_INPUTS = 2000
_GAUSSIAN_POINTS = 1000
_GAUSSIAN_SEED = 1807


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
        return self.test.share(guesses, kind, self.labels)


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
    if reference.test.classes is None or isinstance(clone, Copy):
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
