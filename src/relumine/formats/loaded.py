"""Loaded: what a model file gave, and what it says of itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Loaded:
    """An nn.Module or a scikit-learn estimator, and the shape of one input where the file tells it."""

    model: object
    input_shape: tuple[int, ...] | None = None


def width_of_first_layer(module: "torch.nn.Module") -> tuple[int, ...] | None:
    """(d,) where the first parameter is the matrix of a fully connected layer."""
    first = next(module.parameters(), None)
    return (first.shape[1],) if first is not None and first.ndim == 2 else None
