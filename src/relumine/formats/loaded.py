"""Loaded: what a model file gave, and what it says of itself; and the libraries that files need."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relumine.errors import TargetError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Loaded:
    """An nn.Module or a scikit-learn estimator, and the shape of one input where the file tells it."""

    model: object
    input_shape: tuple[int, ...] | None = None


def library(name: str, target: object, extra: str) -> Any:
    """The library that a target needs, or a TargetError that says how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise TargetError(f"{target}: this needs the package {package}: pip install 'relumine[{extra}]'") from error


def width_of_first_layer(module: "torch.nn.Module") -> tuple[int, ...] | None:
    """(d,) where the first parameter is the matrix of a fully connected layer."""
    first = next(module.parameters(), None)
    return (first.shape[1],) if first is not None and first.ndim == 2 else None
