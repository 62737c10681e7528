"""Loaded: what a model file gave, and what it says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Loaded:
    """An nn.Module or a scikit-learn estimator, and the shape of one input where the file tells it."""

    model: object
    input_shape: tuple[int, ...] | None = None
