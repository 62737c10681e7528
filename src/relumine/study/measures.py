"""How good a student is, measured beside the target. What is asked here is nobody's query and is not counted."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from relumine.oracle.base import Array, Oracle
from relumine.study.experiment import Measures

if TYPE_CHECKING:
    from relumine.zoo import Split

# Agreement away from the data is measured on these points, the same for all experiments.
_GAUSSIAN_POINTS = 2000
_GAUSSIAN_SEED = 1807

# Inputs held as float64 rows at once.
_ROWS_AT_ONCE = 500


def measured(predict: Callable[[Array], Array], oracle: Oracle, split: "Split", target_accuracy: float) -> Measures:
    """Compare ``predict`` with the unmetered ``oracle`` and with the labels of the test set."""
    from relumine.zoo import gaussian_inputs

    guesses, answers = _both(predict, oracle, split.test.inputs)
    gaussian = gaussian_inputs(_GAUSSIAN_POINTS, split.shape, _GAUSSIAN_SEED)
    largest = np.abs(answers).max(initial=0)
    gap = np.abs(guesses - answers).max(initial=0)
    return Measures(
        test_accuracy=_share(guesses.argmax(1) == split.test.labels),
        target_accuracy=target_accuracy,
        agreement=_agreement(guesses, answers),
        gaussian_agreement=_agreement(*_both(predict, oracle, gaussian)),
        worst_gap=float(gap / largest) if largest > 0 else float(gap),
    )


def _both(predict: Callable[[Array], Array], oracle: Oracle, inputs: "np.ndarray") -> tuple[Array, Array]:
    pairs = [(predict(rows), oracle(rows, gradients=False).values) for rows in _parts(inputs)]
    guesses, answers = zip(*pairs, strict=True)
    return np.concatenate(guesses), np.concatenate(answers)


def _parts(inputs: "np.ndarray") -> Iterator[Array]:
    for start in range(0, len(inputs), _ROWS_AT_ONCE):
        part = inputs[start : start + _ROWS_AT_ONCE]
        yield part.reshape(len(part), -1).astype(np.float64)


def _agreement(guesses: Array, answers: Array) -> float:
    return _share(guesses.argmax(1) == answers.argmax(1))


def _share(hits: "np.ndarray") -> float:
    return float(hits.mean())
