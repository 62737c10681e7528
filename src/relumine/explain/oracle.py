"""ExplainedOracle: a torch module behind an endpoint that explains."""

import copy
from typing import TYPE_CHECKING

import numpy as np

from relumine.errors import MisuseError
from relumine.explain.methods import OF, Classes, Explanation, Of, outputs
from relumine.oracle.base import Answer, Array, DType, Offer, ValueKind, checked_answer, checked_inputs

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Log-probabilities are logits: their softmax is the prediction, and they are what is explained.
_VALUES: dict[Of, ValueKind] = {
    "real": "real",
    "logits": "logits",
    "probabilities": "probabilities",
    "log-probabilities": "logits",
}

# Rows of activations held at once: bounds memory when an explanation asks at many points per input.
_ROWS_AT_ONCE = 128


class ExplainedOracle:
    """Answers with the module's values, and with the maps of ``explanation`` where gradients are asked.

    module:      returns n×K for n inputs of ``input_shape``; a copy in eval mode answers, so the module is left alone
    explanation: what is shown; for Gradient() the answers' gradients are gradients
    classes:     of which outputs: "all", "top" (each input's largest) or the index of one
    of:          what values are and what is explained
    rng:         the source of SmoothGrad's noise
    """

    def __init__(
        self,
        module: "torch.nn.Module",
        explanation: Explanation,
        input_shape: tuple[int, ...],
        *,
        classes: Classes = "all",
        of: Of = "logits",
        rng: int | np.random.Generator | None = None,
    ) -> None:
        if of not in _VALUES:
            raise MisuseError(f"of: expected one of {OF}, got {of!r}")
        self.explanation = explanation
        self._module = copy.deepcopy(module).eval().requires_grad_(False)
        self._classes = classes
        self._of = of
        self._rng = np.random.default_rng(rng)
        self._like = _example(self._module)
        self._offer = Offer(
            inputs=tuple(input_shape),
            outputs=self._count_outputs(tuple(input_shape)),
            values=_VALUES[of],
            gradients=classes,
            dtype=_dtype(self._like),
            random=explanation.random,
        )

    @property
    def offer(self) -> Offer:
        """What this endpoint promises."""
        return self._offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self._offer, inputs)
        tensor = self._tensor(rows.reshape(-1, *self._offer.inputs))
        answer = self._explained(tensor) if gradients else self._predicted(tensor)
        return checked_answer(self._offer, len(rows), answer, gradients=gradients)

    def _tensor(self, inputs: Array) -> "Tensor":
        import torch

        return torch.from_numpy(inputs).to(self._like)

    def _predicted(self, inputs: "Tensor") -> Answer:
        import torch

        with torch.no_grad():
            parts = [_numpy(outputs(self._module, part, self._of)) for part in _parts(inputs, _ROWS_AT_ONCE)]
        return Answer(np.concatenate(parts) if len(inputs) else np.empty((0, self._offer.outputs)))

    def _explained(self, inputs: "Tensor") -> Answer:
        if not len(inputs):
            shape = (0, self._offer.gradient_rows, self._offer.dimension)
            return Answer(np.empty((0, self._offer.outputs)), np.empty(shape))
        parts = [
            self.explanation.maps(self._module, part, classes=self._classes, of=self._of, rng=self._rng)
            for part in _parts(inputs, max(1, _ROWS_AT_ONCE // self.explanation.gradients_per_map))
        ]
        values = np.concatenate([_numpy(part.values) for part in parts])
        return Answer(values, np.concatenate([_numpy(part.maps.flatten(2)) for part in parts]))

    def _count_outputs(self, shape: tuple[int, ...]) -> int:
        """K, from one forward pass at the origin, which is no query of anybody's."""
        import torch

        try:
            with torch.no_grad():
                return outputs(self._module, self._like.new_zeros((1, *shape)), self._of).shape[1]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise MisuseError(f"input_shape: the module does not take inputs of shape {shape}: {error}") from error


def _example(module: "torch.nn.Module") -> "Tensor":
    """A tensor of the dtype and on the device that the module computes with."""
    import torch

    tensors = [*module.parameters(), *module.buffers()]
    return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.zeros(0))


def _dtype(like: "Tensor") -> DType:
    name = str(like.dtype).removeprefix("torch.")
    if name == "float32":
        return "float32"
    if name == "float64":
        return "float64"
    raise MisuseError(f"the module: expected parameters in float32 or float64, got {name}; convert with .float()")


def _parts(inputs: "Tensor", rows: int) -> "list[Tensor]":
    return [inputs[start : start + rows] for start in range(0, len(inputs), rows)]


def _numpy(tensor: "Tensor") -> Array:
    return tensor.detach().cpu().numpy().astype(np.float64)
