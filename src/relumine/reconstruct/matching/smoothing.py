"""ReLU smoothing while a student is fitted.

The gradient of a ReLU network is piecewise constant: almost everywhere ℓ_G does not change when a unit's boundary is
moved, so plain descent never learns which units shall be on at which query. A parabola in place of the corner lets it
see the boundaries nearby. Its width falls to 0 while the student is trained, and a plain ReLU network remains.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Smoothing ends after this share of the steps; the rest fits the network as it will be used.
UNTIL = 0.7
_RELUS = {functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}


class ReluSmoothing(TorchFunctionMode):
    """Inside this context every ReLU is smoothed within ±``width`` root mean squares of what enters it."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    @classmethod
    def at(cls, share: float, width: float) -> "ReluSmoothing":
        """As it is after this share of the steps, ``width`` at first."""
        return cls(width * max(0.0, 1 - share / UNTIL))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace ReLUs, however they are written; leave everything else alone."""
        if func in _RELUS and self.width > 0:
            return _smoothed(args[0] if args else (kwargs or {})["input"], self.width)
        return func(*args, **(kwargs or {}))


def _smoothed(before: Tensor, width: float) -> Tensor:
    size = float(torch.linalg.vector_norm(before.detach())) / max(1, before.numel()) ** 0.5
    result: Tensor = _SmoothedReLU.apply(before, max(width * size, torch.finfo(before.dtype).tiny))  # type: ignore[no-untyped-call]
    return result


class _SmoothedReLU(torch.autograd.Function):
    """0 below −w, (z + w)²/4w between, z above w. Written out because autograd would keep every step of it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, half: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.half = half
        bend = (z + half).clamp_(0, 2 * half)
        return (z - half).clamp_min_(0).addcmul_(bend, bend, value=0.25 / half)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return outer * functional.hardsigmoid(z * (3 / ctx.half)), None
