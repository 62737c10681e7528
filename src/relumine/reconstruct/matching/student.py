"""Student: the clone that learning returns, a torch module."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from relumine.errors import MisuseError
from relumine.explain.methods import Of, outputs
from relumine.oracle.base import Array, Offer
from relumine.reconstruct import export
from relumine.reconstruct.result import Clone

_ROWS_AT_ONCE = 500


class Answering(nn.Module):
    """A student that answers what the oracle's values were, for n×shape or n×d inputs."""

    def __init__(self, module: nn.Module, inputs: tuple[int, ...], of: Of) -> None:
        super().__init__()
        self.module = module
        self._inputs, self._of = inputs, of

    def forward(self, inputs: Tensor) -> Tensor:
        like = next((p for p in self.parameters() if p.is_floating_point()), inputs)
        return outputs(self.module, inputs.reshape(-1, *self._inputs).to(like.dtype), self._of)


@dataclass(frozen=True, eq=False)
class StudentClone(Clone):
    """A trained torch module as a clone. ``of`` is what it answers, as the oracle's values were."""

    module: nn.Module
    inputs: tuple[int, ...]
    of: Of

    @property
    def parameters(self) -> Mapping[str, "np.ndarray"]:
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.module.state_dict().items()}

    def predict(self, inputs: Array) -> Array:
        """n×d (or n×shape) inputs to n×K outputs of the kind that the oracle's values were."""
        rows = np.asarray(inputs, dtype=np.float64)
        if rows[:1].size not in (0, int(np.prod(self.inputs))):
            raise MisuseError(f"predict: expected rows of {int(np.prod(self.inputs))} numbers, got {rows[:1].size}")
        module = self.to_torch()
        with torch.no_grad():
            parts = [
                module(torch.from_numpy(rows[start : start + _ROWS_AT_ONCE])).numpy().astype(np.float64)
                for start in range(0, max(len(rows), 1), _ROWS_AT_ONCE)
            ]
        return np.concatenate(parts)

    def to_torch(self) -> nn.Module:
        """A copy of the module that answers what ``predict`` does."""
        return Answering(copy.deepcopy(self.module), self.inputs, self.of).eval()

    def save(self, path: str | Path) -> Path:
        """Write the parameters as .safetensors, or the module as .onnx."""
        return export.save_module(path, self.to_torch, self.inputs, self.parameters, {})


class _StandardisedInputs(nn.Module):
    """(x − mean)/scale, then the module."""

    mean: Tensor
    scale: Tensor

    def __init__(self, module: nn.Module, mean: Array, scale: Array) -> None:
        super().__init__()
        self.module = module
        like = next(module.parameters())
        self.register_buffer("mean", torch.from_numpy(mean).to(like))
        self.register_buffer("scale", torch.from_numpy(scale).to(like))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(((inputs.flatten(1) - self.mean) / self.scale).reshape(inputs.shape))
        return outputs


def standardising(mean: Array, scale: Array) -> Callable[[nn.Module], nn.Module]:
    """From modules of standardised inputs to modules of inputs; both have d numbers."""
    return lambda module: _StandardisedInputs(module, mean, scale)


def checked_student(student: "Callable[[int], nn.Module] | nn.Module", seed: int, offer: Offer) -> nn.Module:
    """A module of its own to train, which answers K numbers to the oracle's inputs; or a MisuseError."""
    try:
        module = copy.deepcopy(student) if isinstance(student, nn.Module) else student(seed)
    except Exception as error:
        raise MisuseError(f"student: expected a function from a seed to a module; it raised {error!r}") from error
    if not isinstance(module, nn.Module) or not any(parameter.requires_grad for parameter in module.parameters()):
        raise MisuseError(f"student: expected an nn.Module with parameters to train, got {type(module).__name__}")
    like = next(module.parameters())
    try:
        answer = outputs(module.eval(), torch.zeros(2, *offer.inputs).to(like), "real")
    except Exception as error:
        raise MisuseError(f"student: it does not take inputs of shape {('n', *offer.inputs)}: {error}") from error
    if answer.shape[1] != offer.outputs:
        raise MisuseError(f"student: expected {offer.outputs} outputs as the oracle has, got {answer.shape[1]}")
    return module
