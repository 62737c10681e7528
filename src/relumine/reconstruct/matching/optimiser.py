"""Muon: an optimiser whose steps move a layer in all directions alike.

Gradient matching is ill-conditioned: a few directions of a layer's weights rule its gradient, and those that have to
be learnt for the rest are hardly moved by Adam. Muon (K. Jordan and others, 2024) takes of the momentum M = UΣVᵀ of a
weight matrix the step UVᵀ.
"""

from collections.abc import Callable, Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

_MOMENTUM = 0.9
_MEANS, _EPSILON = (0.9, 0.999), 1e-8
_TINY = 1e-30
# Squared singular values below this share of the largest are lost in rounding, and not blown up.
_LOST = 1e-6


class Muon(torch.optim.Optimizer):
    """Each weight moves by its group's rate in the root mean square; what is no matrix is left to Adam.

    A convolution is the matrix that it is of its patches.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step down; there is no closure to call."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                step = _matrix_step if parameter.ndim > 1 else _adam_step
                parameter.sub_(step(parameter.grad, self.state[parameter]), alpha=group["lr"])


def _matrix_step(gradient: Tensor, state: dict[str, Any]) -> Tensor:
    momentum: Tensor = state.setdefault("momentum", torch.zeros_like(gradient))
    momentum.lerp_(gradient, 1 - _MOMENTUM)
    ahead = gradient.lerp(momentum, _MOMENTUM).flatten(1)
    wide = ahead.shape[0] <= ahead.shape[1]
    step = orthogonal(ahead) if wide else orthogonal(ahead.T).T
    # m singular values of 1 are spread over m×n weights.
    return step.reshape(gradient.shape) * sqrt(max(step.shape))


def _adam_step(gradient: Tensor, state: dict[str, Any]) -> Tensor:
    steps: int = state.get("steps", 0) + 1
    state["steps"] = steps
    mean: Tensor = state.setdefault("mean", torch.zeros_like(gradient))
    square: Tensor = state.setdefault("square", torch.zeros_like(gradient))
    mean.lerp_(gradient, 1 - _MEANS[0])
    square.lerp_(gradient.square(), 1 - _MEANS[1])
    size = (square / (1 - _MEANS[1] ** steps)).sqrt() + _EPSILON
    return mean / (1 - _MEANS[0] ** steps) / size


def orthogonal(matrix: Tensor) -> Tensor:
    """UVᵀ of an m×n matrix UΣVᵀ, m ≤ n: (MMᵀ)^(−½) M."""
    precise = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    precise = precise / precise.norm().clamp_min(_TINY)
    squares, vectors = torch.linalg.eigh(precise @ precise.T)
    scales = squares.clamp_min(_LOST * float(squares[-1]) + _TINY).rsqrt()
    step: Tensor = (vectors * scales) @ (vectors.T @ precise)
    return step.to(matrix.dtype)
