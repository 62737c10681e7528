"""HeadClone: the public backbone and the reconstructed head in one."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array
from relumine.reconstruct.head.backbone import Backbone
from relumine.reconstruct.result import Clone

if TYPE_CHECKING:
    import torch

    from relumine.reconstruct.matching.student import StudentClone


@dataclass(frozen=True, eq=False)
class HeadClone:
    """x ↦ head(φ(x)). ``head`` takes features, ``backbone`` makes them; ``inputs`` is the shape of one input."""

    backbone: Backbone
    head: Clone
    inputs: tuple[int, ...]

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units per hidden layer of the head."""
        return self.head.hidden

    @property
    def activation(self) -> object:
        """What the head's hidden units compute."""
        return getattr(self.head, "activation", None)

    @property
    def parameters(self) -> Mapping[str, "np.ndarray"]:
        """The head's parameters by name; those of the backbone are public."""
        return self.head.parameters

    def predict(self, inputs: Array) -> Array:
        """n×d (or n×shape) inputs to n×K outputs of the kind that the oracle's values were."""
        rows = np.asarray(inputs, dtype=np.float64)
        rows = rows.reshape(len(rows), prod(rows.shape[1:]))
        if rows.shape[1] != prod(self.inputs):
            raise MisuseError(f"predict: expected rows of {prod(self.inputs)} numbers, got {rows.shape[1]}")
        return self.head.predict(self.backbone(rows))

    def to_torch(self) -> "torch.nn.Module":
        """Backbone and head as one module."""
        return self._whole().to_torch()

    def save(self, path: str | Path) -> Path:
        """Write backbone and head as .onnx, or the parameters of both as .safetensors."""
        return self._whole().save(path)

    def _whole(self) -> "StudentClone":
        from relumine.reconstruct.head.torch_backbone import joined
        from relumine.reconstruct.matching.student import StudentClone

        module = self.backbone.module
        if module is None:
            raise MisuseError(
                "the backbone is no torch module, so that it cannot be exported; export the head alone: clone.head"
            )
        whole = joined(module, self.head.to_torch(), self.backbone.oracle.offer.dtype)
        return StudentClone(whole, self.inputs, "real")
