"""ExplainedOracle: a torch module behind an endpoint that explains."""

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from relumine.errors import MisuseError
from relumine.explain.methods import OF, Classes, Explanation, Of, outputs
from relumine.oracle.base import ValueKind
from relumine.oracle.torch import TorchOracle

# Log-probabilities are logits: their softmax is the prediction, and they are what is explained.
_VALUES: dict[Of, ValueKind] = {
    "real": "real",
    "logits": "logits",
    "probabilities": "probabilities",
    "log-probabilities": "logits",
}


class ExplainedOracle(TorchOracle):
    """Answers with the module's values, and with the maps of ``explanation`` where gradients are asked.

    module:      returns n×K for n inputs of ``input_shape``; a copy in eval mode answers, so the module is left alone
    explanation: what is shown; for Gradient() the answers' gradients are gradients
    classes:     of which outputs: "all", "top" (each input's largest) or the index of one
    of:          what values are and what is explained
    rng:         the source of SmoothGrad's noise
    """

    def __init__(
        self,
        module: torch.nn.Module,
        explanation: Explanation,
        input_shape: tuple[int, ...],
        *,
        classes: Classes = "all",
        of: Of = "logits",
        rng: int | np.random.Generator | None = None,
    ) -> None:
        if of not in _VALUES:
            raise MisuseError(f"of: expected one of {OF}, got {of!r}")
        own = copy.deepcopy(module).eval().requires_grad_(False)
        super().__init__(_Outputs(own, of), input_shape, gradients=classes, values="real")
        self.offer = replace(self.offer, values=_VALUES[of], random=explanation.random)
        self._gradient_rows = max(1, self._gradient_rows // explanation.gradients_per_map)
        self.explanation, self._rng = explanation, np.random.default_rng(rng)

    def _explained(self, leaf: Tensor) -> tuple[Tensor, Tensor]:
        classes: Classes = self.offer.gradients  # type: ignore[assignment]
        inputs = leaf.reshape(-1, *self.offer.inputs)
        shown = self.explanation.maps(self.module, inputs, classes=classes, of="real", rng=self._rng)
        return shown.values, shown.maps.flatten(2)


class _Outputs(torch.nn.Module):
    """What is explained of a module."""

    def __init__(self, inside: torch.nn.Module, of: Of) -> None:
        super().__init__()
        self.inside, self._of = inside, of

    def forward(self, inputs: Tensor) -> Tensor:
        return outputs(self.inside, inputs, self._of)
