"""Offer, Answer, Oracle: what a target promises, what it answers, and the interface through which it is asked."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from operator import index
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from relumine.errors import BadAnswerError, MisuseError

Array = NDArray[np.float64]
ValueKind = Literal["real", "logits", "probabilities", "label", "none"]
GradientKind = Literal["all", "top", "none"]
DType = Literal["float32", "float64"]

_VALUES = ("real", "logits", "probabilities", "label", "none")
_GRADIENTS = ("all", "top", "none")
_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Offer:
    """What an oracle promises to answer.

    inputs:    shape of one input; questions are asked as flat rows of ``dimension`` numbers
    outputs:   K, the number of outputs
    values:    what a value is
    gradients: of what a gradient is: every output ("all"), the largest output ("top"), the output of this index
               (an integer), nothing ("none")
    dtype:     the precision in which the target computes
    random:    whether the same question may get different answers
    box:       lowest and highest valid input coordinate, if there is such a limit
    explained: what gradients are of, where values do not tell because something hid or changed them
    contributions: what is answered in place of gradients are contributions of the inputs' coordinates, as SHAP values
    tokens:    inputs are sequences of token ids below this number; None where they are numbers
    """

    inputs: tuple[int, ...]
    outputs: int
    values: ValueKind = "real"
    gradients: GradientKind | int = "all"
    dtype: DType = "float64"
    random: bool = False
    box: tuple[float, float] | None = None
    explained: ValueKind | None = None
    contributions: bool = False
    tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _whole_numbers("inputs", self.inputs))
        object.__setattr__(self, "outputs", *_whole_numbers("outputs", (self.outputs,)))
        _require(len(self.inputs) > 0 and min(self.inputs) > 0, "inputs", "a shape of positive integers", self.inputs)
        _require(self.outputs >= 1, "outputs", "at least 1", self.outputs)
        _require(self.values in _VALUES, "values", f"one of {_VALUES}", self.values)
        known = self.gradients in (range(self.outputs) if isinstance(self.gradients, int) else _GRADIENTS)
        _require(known, "gradients", f"one of {_GRADIENTS} or an output below {self.outputs}", self.gradients)
        _require(self.dtype in _DTYPES, "dtype", f"one of {_DTYPES}", self.dtype)
        _require(self.box is None or self.box[0] < self.box[1], "box", "(low, high) with low < high", self.box)
        told = (None, "real", "logits", "probabilities")
        _require(self.explained in told, "explained", f"one of {told}", self.explained)
        _require(isinstance(self.contributions, bool), "contributions", "true or false", self.contributions)
        object.__setattr__(self, "contributions", self.contributions and self.gradients != "none")
        counted = isinstance(self.tokens, int) and self.tokens > 0
        _require(self.tokens is None or counted, "tokens", "a positive integer", self.tokens)

    @property
    def dimension(self) -> int:
        """d, the number of input coordinates."""
        return prod(self.inputs)

    @property
    def gradient_rows(self) -> int:
        """How many gradients come with one answer: K, 1 or 0."""
        return {"all": self.outputs, "none": 0}.get(str(self.gradients), 1)


def _whole_numbers(field: str, numbers: object) -> tuple[int, ...]:
    try:
        return tuple(index(n) for n in numbers)  # type: ignore[attr-defined]
    except TypeError:
        expected = "an integer" if field == "outputs" else "a shape, like (784,)"
        raise MisuseError(f"Offer.{field}: expected {expected}, got {numbers!r}") from None


def _require(holds: bool, field: str, expected: str, got: object) -> None:
    if not holds:
        raise MisuseError(f"Offer.{field}: expected {expected}, got {got!r}")


@dataclass(frozen=True, eq=False)
class Answer:
    """What an oracle said about n inputs: ``values`` n×K, ``gradients`` n×K×d, n×1×d or None."""

    values: Array
    gradients: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def jacobians(self) -> Array:
        """The gradients, for a caller that asked for them."""
        assert self.gradients is not None
        return self.gradients


def explained_outputs(which: GradientKind | int, values: Array) -> NDArray[np.intp]:
    """n×R: the outputs that the gradients of n answers with these values n×K are of."""
    n, K = values.shape
    if which == "all":
        return np.tile(np.arange(K), (n, 1))
    return values.argmax(axis=1)[:, None] if which == "top" else np.full((n, 1), which, dtype=np.intp)


@runtime_checkable
class Oracle(Protocol):
    """A target that answers. Local, remote, defended, metered: all have just these two members."""

    @property
    def offer(self) -> Offer:
        """What is promised."""

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        """Answer n flat inputs (n×d), with their gradients if asked."""


class InFront:
    """Base of oracles in front of an oracle, whose offer is that of the one inside unless another is given."""

    def __init__(self, oracle: Oracle, offer: Offer | None = None) -> None:
        self._oracle = oracle
        self.offer = offer or oracle.offer


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the answers to a question: those to the rows at ``positions``."""

    positions: range
    answer: Answer


@runtime_checkable
class RemoteOracle(Oracle, Protocol):
    """An oracle whose answers come in parts and are paid for: a meter keeps each on disk as soon as it is there."""

    @property
    def run(self) -> Path:
        """The folder in which answers are kept if the asker names none."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What a ledger is bound to, besides the offer."""

    def parts(self, inputs: Array, *, gradients: bool) -> Iterator[Part]:
        """Answer in parts, in any order, not checked yet. What is answered is handed out before a failure is raised."""


def joined(offer: Offer, answers: list[Answer], *, gradients: bool) -> Answer:
    """Answers one below the other."""
    values = np.concatenate([np.empty((0, offer.outputs)), *(answer.values for answer in answers)])
    if not gradients:
        return Answer(values)
    none = np.empty((0, offer.gradient_rows, offer.dimension))
    return Answer(values, np.concatenate([none, *(answer.jacobians for answer in answers)]))


# Numbers held at once while answering: 32 MB. More is not faster.
_NUMBERS_AT_ONCE = 2**22


def in_parts(offer: Offer, rows: Array, each: int, ask: Callable[[Array], Answer]) -> Answer:
    """Answers with gradients to rows that are asked as many at a time as fit where one takes ``each`` numbers."""
    at_once = max(1, _NUMBERS_AT_ONCE // each)
    return joined(offer, [ask(rows[i : i + at_once]) for i in range(0, len(rows), at_once)], gradients=True)


def checked_inputs(offer: Offer, inputs: Array, *, gradients: bool = False) -> Array:
    """Questions as finite float64 rows, or a MisuseError that says what is wrong with them."""
    if gradients and offer.gradients == "none":
        raise MisuseError("gradients were asked of an oracle that offers none; ask with gradients=False")
    try:
        rows = np.asarray(inputs, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MisuseError(f"inputs: expected an array of numbers, got {type(inputs).__name__} ({error})") from error
    if rows.ndim != 2 or rows.shape[1] != offer.dimension:
        raise MisuseError(f"inputs: expected shape (n, {offer.dimension}), got {rows.shape}; flatten each input")
    if not np.isfinite(rows).all():
        raise MisuseError("inputs: expected finite numbers, got NaN or infinity")
    if offer.tokens is not None and not ((rows >= 0) & (rows < offer.tokens) & (rows == np.floor(rows))).all():
        raise MisuseError(
            f"inputs: this target takes token ids, expected whole numbers from 0 to "
            f"{offer.tokens - 1}; relumine audit knows how to ask it"
        )
    return rows


def checked_answer(offer: Offer, count: int, answer: Answer, *, gradients: bool) -> Answer:
    """The answer as float64 arrays of the promised shapes, or a BadAnswerError that says what is wrong."""
    if not isinstance(answer, Answer):
        raise BadAnswerError(f"expected an Answer(values, gradients), got {type(answer).__name__}")
    values = _checked("values", answer.values, (count, offer.outputs))
    if offer.values == "probabilities":
        _check_probabilities(values)
    if not gradients:
        return Answer(values)
    if answer.gradients is None:
        raise BadAnswerError(
            f"gradients: the offer promises {offer.gradients!r}, got none; set Offer(gradients='none') for values only"
        )
    shape = (count, offer.gradient_rows, offer.dimension)
    return Answer(values, _checked("gradients", answer.gradients, shape))


def _checked(name: str, numbers: object, shape: tuple[int, ...]) -> Array:
    try:
        array = np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last for a tensor with a graph
        raise BadAnswerError(f"{name}: expected numbers of shape {shape}, got {type(numbers).__name__}") from error
    if array.shape != shape:
        raise BadAnswerError(f"{name}: expected shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).reshape(len(array), -1).any(axis=1).sum())
        raise BadAnswerError(f"{name}: expected finite numbers, got NaN or infinity in {bad} of {len(array)} rows")
    return array


def _check_probabilities(values: Array) -> None:
    if values.shape[1] > 1 and np.abs(values.sum(axis=1) - 1).max(initial=0) > 1e-2:
        raise BadAnswerError("values: offered as probabilities but rows do not sum to 1; offer 'logits' or 'real'")
    if values.min(initial=0) < 0 or values.max(initial=0) > 1 + 1e-6:
        raise BadAnswerError("values: offered as probabilities but some lie outside [0, 1]; offer 'logits' or 'real'")
