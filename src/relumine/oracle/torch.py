"""TorchOracle: any torch module that answers."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, cast

import numpy as np
import torch

from relumine.errors import MisuseError, OracleFailedError, translated
from relumine.oracle.base import Answer, Array, DType, GradientKind, Offer, ValueKind, checked_answer, checked_inputs
from relumine.oracle.logits import tensor_probabilities

_DTYPES: dict[torch.dtype, DType] = {torch.float32: "float32", torch.float64: "float64"}
_VALUES = ("real", "logits", "probabilities")

# Numbers held at once while asking: 32 MB in float64. More is not faster.
_NUMBERS_AT_ONCE = 2**22

# Outputs whose gradients are taken in one backward pass: the 512 features of a ResNet-18 at once would need gigabytes.
_OUTPUTS_AT_ONCE = 64

# Sizes of the random inputs that are looked at before the first question: small ones do not saturate a softmax, and
# at the large ones nothing but a sigmoid stays within [0, 1].
_SCALES = np.array([0.001, 0.1, 1, 1, 1, 10, 100, 100])[:, None]

# Equal up to rounding, relative to the largest number.
_TOLERANCE: dict[DType, float] = {"float32": 1e-3, "float64": 1e-9}


class TorchOracle:
    """Answers with a torch module's outputs and their gradients.

    module:       any nn.Module, TorchScript module or ``torch.export`` program's ``.module()``, taking n×input_shape
                  and returning n×K (or n) numbers. It is asked in eval mode and left as it was found.
    input_shape:  shape of one input, like (1, 28, 28); questions are flat rows of that many numbers
    gradients:    of every output ("all"), of the largest ("top"), of the output of this index, or of none
    values:       "real" and "logits" are the outputs themselves; "probabilities" puts a softmax (K = 1: a sigmoid)
                  behind a module that does not end in one. Whether it does is found out at construction on a few
                  random inputs; a module that answers probabilities is refused as "logits".
    dtype:        precision of the inputs, by default that of the parameters (float64 if there are none). Questions
                  are rounded to it: a float32 module answers for the nearest float32 input.
    box:          lowest and highest valid input coordinate, to be told in the offer
    rows_at_once: how many rows go through the module together, by default as many as fit 32 MB

    A module that is random (dropout that stays on) is recognised, and offered as such.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        input_shape: tuple[int, ...] | int,
        *,
        gradients: GradientKind | int | None = "all",
        values: ValueKind = "logits",
        dtype: DType | None = None,
        box: tuple[float, float] | None = None,
        rows_at_once: int | None = None,
    ) -> None:
        _check_arguments(module, values, rows_at_once)
        shape = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
        device = next((tensor.device for tensor in _tensors(module)), torch.device("cpu"))
        self._body = _Body(module, shape, dtype or _dtype_of(module), device)
        seen = _look(self._body, rows_at_once)
        if values == "logits" and seen.probabilities:
            raise MisuseError(
                "values: the module answers probabilities (they lie in [0, 1], and those of several classes sum to 1), "
                "not logits; say values='probabilities'"
            )
        which = "none" if gradients is None else gradients
        self.offer = Offer(shape, seen.outputs, values, which, self._body.dtype, seen.random, box)
        self._squash = values == "probabilities" and not seen.probabilities
        self._value_rows = seen.rows_at_once or _rows_at_once(seen.numbers_per_row)
        self._gradient_rows = seen.rows_at_once or _rows_at_once(seen.numbers_per_row * self.offer.gradient_rows)
        self._one_backward = self.offer.gradients == "all" and seen.outputs > 1
        if self.offer.gradients != "none":
            _check_differentiable(self._body)

    @property
    def module(self) -> torch.nn.Module:
        """The module, for its owner: a reconstruction sees the oracle only."""
        return self._body.module

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        values = np.empty((len(rows), self.offer.outputs))
        jacobians = np.empty((len(rows), self.offer.gradient_rows, self.offer.dimension)) if gradients else None
        at_once = self._gradient_rows if gradients else self._value_rows
        with self._body.asked(gradients):
            for i in range(0, len(rows), at_once):
                chunk = slice(i, i + at_once)
                leaf = self._body.leaf(rows[chunk], gradients)
                if jacobians is None:
                    values[chunk] = self._answers(leaf).detach().cpu().numpy()
                else:
                    answers, maps = self._explained(leaf)
                    values[chunk], jacobians[chunk] = answers.detach().cpu().numpy(), maps.cpu().numpy()
        return checked_answer(self.offer, len(rows), Answer(values, jacobians), gradients=gradients)

    def _answers(self, leaf: torch.Tensor) -> torch.Tensor:
        """n×K values of the offered kind; a module that squeezes a single row is forgiven."""
        outputs = self._body.outputs(leaf).reshape(len(leaf), self.offer.outputs)
        return tensor_probabilities(outputs) if self._squash else outputs

    def _explained(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values n×K, and their gradients n×K×d, or n×1×d for one output only."""
        answers, which = self._answers(leaf), self.offer.gradients
        if which != "all":
            explained = answers.max(dim=1).values if which == "top" else answers[:, which]  # type: ignore[index]
            return answers, _gradient(explained.sum(), leaf)[:, None]
        if self._one_backward:
            try:
                return answers, _gradient_of_each(answers, leaf)
            except RuntimeError:  # an operation that cannot be vectorised, such as one of the user's own
                self._one_backward = False
        each = [_gradient(answer.sum(), leaf) for answer in answers.unbind(dim=1)]
        return answers, torch.stack(each, dim=1)


@dataclass(frozen=True)
class _Body:
    """A module and the form in which it takes its inputs."""

    module: torch.nn.Module
    shape: tuple[int, ...]
    dtype: DType
    device: torch.device

    def leaf(self, rows: Array, gradients: bool) -> torch.Tensor:
        """n×d inputs as a tensor of the module's dtype."""
        leaf = torch.tensor(rows, dtype=getattr(torch, self.dtype), device=self.device)
        return leaf.requires_grad_(gradients)

    def outputs(self, leaf: torch.Tensor) -> torch.Tensor:
        """What the module says to n×d inputs. The clone lets it overwrite what it is given."""
        return cast(torch.Tensor, self.module(leaf.reshape(-1, *self.shape).clone()))

    @contextmanager
    def asked(self, gradients: bool) -> Iterator[None]:
        """Eval mode for the time of a question, and the module's errors turned into ours."""
        training = [part for part in self.module.modules() if getattr(part, "training", False)]
        try:
            for part in training:
                part.training = False  # not .eval(), which exported modules refuse
            with (
                translated(OracleFailedError, "the module raised "),
                torch.inference_mode(False),
                torch.set_grad_enabled(gradients),
            ):
                yield
        finally:
            for part in training:
                part.training = True


class _ModuleCheck(NamedTuple):
    """What a few random inputs show of a module: an owner's look, not a query."""

    outputs: int
    random: bool
    probabilities: bool
    numbers_per_row: int
    rows_at_once: int | None


def _look(body: _Body, rows_at_once: int | None) -> _ModuleCheck:
    rows = np.random.default_rng(0).standard_normal((len(_SCALES), prod(body.shape))) * _SCALES
    with body.asked(False):
        leaf = body.leaf(rows, False)
        one_by_one = _one_by_one(body, leaf)
        random = not _close(one_by_one, _one_by_one(body, leaf), body.dtype)
        together = None if rows_at_once == 1 else _together(body, leaf)
    if not random and together is not None and not _close(together, one_by_one, body.dtype):
        raise MisuseError("the module's answer to an input depends on its neighbours in a batch; say rows_at_once=1")
    with body.asked(True):
        numbers_per_row = _numbers_per_row(body)
    at_once = 1 if together is None else rows_at_once
    return _ModuleCheck(one_by_one.shape[1], random, _are_probabilities(one_by_one), numbers_per_row, at_once)


def _one_by_one(body: _Body, leaf: torch.Tensor) -> torch.Tensor:
    words = f"the module cannot take {body.dtype} inputs of shape {('n', *body.shape)}: "
    with translated(MisuseError, words, "; check input_shape and dtype", named=False):
        return torch.cat([_as_matrix(body.outputs(row[None]), 1) for row in leaf])


def _together(body: _Body, leaf: torch.Tensor) -> torch.Tensor | None:
    """None for a module that takes one row at a time, as one that was exported or traced with a single example."""
    try:
        return _as_matrix(body.outputs(leaf), len(leaf))
    except Exception:
        return None


def _numbers_per_row(body: _Body) -> int:
    """How many numbers autograd keeps for one row, so that memory stays bounded whatever the module."""
    own = {tensor.data_ptr() for tensor in _tensors(body.module)}
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(0 if tensor.data_ptr() in own else tensor.numel())
        return tensor

    # A module that cannot be differentiated keeps nothing; it is refused later, if gradients are wanted.
    with suppress(Exception), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        body.outputs(body.leaf(np.zeros((1, prod(body.shape))), True))
    return prod(body.shape) + sum(kept)


def _rows_at_once(numbers_per_row: int) -> int:
    return max(1, _NUMBERS_AT_ONCE // max(1, numbers_per_row))


def _check_differentiable(body: _Body) -> None:
    """Refuse a module that gives no gradients, or whose answers move while its gradients say that they do not."""
    rows = np.random.default_rng(1).standard_normal((len(_SCALES), prod(body.shape))) * _SCALES
    remedy = "take out what cuts the graph (detach, no_grad, numpy), or say gradients='none'"
    try:
        with body.asked(True):
            leaf = body.leaf(rows, True)
            answers = torch.stack([body.outputs(row[None]).flatten() for row in leaf])
            gradient = _gradient(answers.square().sum(), leaf)
    except OracleFailedError as error:
        raise MisuseError(f"the module gives no gradients ({error}); {remedy}") from error
    if not gradient.any() and not _close(answers, answers[:1].expand_as(answers), body.dtype):
        raise MisuseError(f"the module's answers change with its input but its gradients are 0; {remedy}")


def _gradient(of: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """With respect to the input only: parameters get no .grad. What does not see the input has gradient 0."""
    return torch.autograd.grad(of, leaf, retain_graph=True, materialize_grads=True)[0]


def _gradient_of_each(answers: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """n×K×d in one backward pass: as fast as K of them for hundreds of rows, several times as fast for a few."""
    n, K = answers.shape
    seeds = torch.eye(K, dtype=answers.dtype, device=answers.device)[:, None, :].expand(K, n, K)
    parts = [
        torch.autograd.grad(answers, leaf, some, retain_graph=True, is_grads_batched=True, materialize_grads=True)[0]
        for some in torch.split(seeds, _OUTPUTS_AT_ONCE)
    ]
    return torch.cat(parts).transpose(0, 1)


def _check_arguments(module: object, values: str, rows_at_once: int | None) -> None:
    if not isinstance(module, torch.nn.Module):
        remedy = "pass its .module()" if hasattr(module, "module") else "for a function use FunctionOracle"
        raise MisuseError(f"module: expected an nn.Module, got {type(module).__name__}; {remedy}")
    if values not in _VALUES:
        raise MisuseError(f"values: expected one of {_VALUES}, got {values!r}")
    if rows_at_once is not None and rows_at_once < 1:
        raise MisuseError(f"rows_at_once: expected at least 1, got {rows_at_once}")


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()]


def _dtype_of(module: torch.nn.Module) -> DType:
    found = {tensor.dtype for tensor in _tensors(module)}
    if not found:
        return "float64"
    if len(found) == 1 and (only := next(iter(found))) in _DTYPES:
        return _DTYPES[only]
    names = ", ".join(sorted(str(dtype) for dtype in found))
    raise MisuseError(f"module: expected parameters in float32 or float64, got {names}; call module.float() first")


def _as_matrix(outputs: object, rows: int) -> torch.Tensor:
    """n×K, also where the module left out a dimension of size 1."""
    if not isinstance(outputs, torch.Tensor):
        raise MisuseError(f"module: expected it to return a tensor, got {type(outputs).__name__}; wrap it")
    if not outputs.is_floating_point():
        raise MisuseError(f"module: expected floating-point outputs, got {outputs.dtype}; return scores, not labels")
    shape = tuple(outputs.shape)
    if len(shape) > 2 or (len(shape) == 2 and shape[0] != rows) or outputs.numel() == 0:
        raise MisuseError(f"module: expected outputs of shape ({rows}, K) or ({rows},), got {shape}; flatten them")
    return outputs.reshape(rows, -1)


def _are_probabilities(outputs: torch.Tensor) -> bool:
    """Whether these can only be probabilities. A single output must also vary: a constant tells nothing."""
    if not (outputs.isfinite().all() and outputs.min() >= 0 and outputs.max() <= 1 + 1e-6):
        return False
    if outputs.shape[1] == 1:
        return bool(outputs.max() > outputs.min())
    return bool((outputs.sum(dim=1) - 1).abs().max() < 1e-4)


def _close(first: torch.Tensor, second: torch.Tensor, dtype: DType) -> bool:
    """Equal up to rounding, seen from the largest number; NaN equals NaN."""
    if first.shape != second.shape:
        return False
    largest = float(first.detach().nan_to_num().abs().max())
    return torch.allclose(first, second, rtol=0, atol=_TOLERANCE[dtype] * largest, equal_nan=True)
