"""Network: a fully connected network in NumPy, the form that exact methods return."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array, ValueKind
from relumine.oracle.logits import probabilities_of
from relumine.reconstruct import export
from relumine.reconstruct.activation import RELU, Activation

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Network:
    """x ↦ W_L σ(… σ(W_1 x + b_1) …) + b_L + S x, followed by softmax where values are probabilities.

    ``skip`` (S) is None for a plain network. ``inputs`` is the shape of one input of the target. ``activation`` (σ) is
    the same for all hidden layers; one with a number per unit fits a single hidden layer.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    inputs: tuple[int, ...]
    skip: Array | None = None
    values: ValueKind = "real"
    activation: Activation = RELU

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units per hidden layer."""
        return tuple(len(weight) for weight in self.weights[:-1])

    @property
    def parameters(self) -> Mapping[str, Array]:
        """W_1, b_1, … by the names that torch gives them in ``to_torch()``."""
        named: dict[str, Array] = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            named |= {f"layers.{i}.weight": weight, f"layers.{i}.bias": bias}
        named |= self.activation.parameters if self.hidden else {}
        return named if self.skip is None else named | {"skip.weight": self.skip}

    def logits(self, inputs: Array) -> Array:
        """The outputs before any softmax."""
        rows = np.asarray(inputs, dtype=np.float64)
        rows = rows.reshape(len(rows), prod(rows.shape[1:]))
        if rows.shape[1] != self.weights[0].shape[1]:
            raise MisuseError(f"predict: expected rows of {self.weights[0].shape[1]} numbers, got {rows.shape[1]}")
        layer = rows
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layer = self.activation(layer @ weight.T + bias)
        result: Array = layer @ self.weights[-1].T + self.biases[-1]
        return result if self.skip is None else result + rows @ self.skip.T

    def predict(self, inputs: Array) -> Array:
        """n×d inputs to n×K outputs of the kind that the oracle's values were."""
        logits = self.logits(inputs)
        return probabilities_of(logits) if self.values == "probabilities" else logits

    def to_torch(self) -> "torch.nn.Module":
        """The same network as a float64 torch module."""
        return export.to_torch(self)

    def save(self, path: str | Path) -> Path:
        """Write .safetensors (with the architecture in its metadata) or .onnx."""
        return export.save(self, path)
