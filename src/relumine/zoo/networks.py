"""The paper's networks, for any input shape and any number of classes.

The paper names the networks and gives no widths: those below are ours. Every network returns logits. VGG11 and
ResNet-18 have batch norm; use them in eval mode, in which it is an affine map. All networks here are then piecewise
linear, and each input's gradient depends on that input alone.
"""

import inspect
from collections.abc import Callable
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn

from relumine.errors import MisuseError

# Channels in units of ``width``, which is 64 in the networks of the literature.
_VGG11 = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")
_RESNET18 = (1, 2, 4, 8)


def network(name: str, input_shape: tuple[int, ...], classes: int, seed: int = 0, **options: Any) -> nn.Module:
    """A fresh float32 network, the same for the same arguments whatever torch's generator did before.

    name: one of ``NETWORKS``: linear, two_layer (option ``hidden``), conv (``channels``, ``kernel``, ``hidden``),
    vgg11, resnet18 (both with ``width``), and resnet18_small, whose stem has stride 2 so that it costs about a quarter.
    """
    shape = tuple(int(n) for n in input_shape)
    _check(name, shape, classes, options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: nn.Module = NETWORKS[name](shape, classes, **options).float()
    return module


def _check(name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> None:
    if name not in NETWORKS:
        raise MisuseError(f"network: expected one of {', '.join(NETWORKS)}, got {name!r}")
    try:
        inspect.signature(NETWORKS[name]).bind(shape, classes, **options)
    except TypeError as error:
        known = ", ".join([*inspect.signature(NETWORKS[name]).parameters][2:]) or "none"
        raise MisuseError(f"network {name!r}: {error}; its options are: {known}") from error
    if not shape or min(shape) < 1 or classes < 1:
        raise MisuseError(f"network: expected positive sizes, got input shape {shape} and {classes} classes")
    if name not in ("linear", "two_layer") and len(shape) != 3:
        raise MisuseError(f"network {name!r}: expected an input shape (channels, height, width), got {shape}")


def _linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression: the paper's 1-layer network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def _two_layer(shape: tuple[int, ...], classes: int, hidden: int = 256) -> nn.Module:
    """The paper's 2-layer ReLU network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _conv(
    shape: tuple[int, ...], classes: int, channels: tuple[int, int] = (8, 16), kernel: int = 3, hidden: int = 64
) -> nn.Module:
    """Two convolutions, each followed by a max-pool, then two dense layers."""
    first, second = channels
    side = prod(ceil(ceil(n / 2) / 2) for n in shape[1:])
    return nn.Sequential(
        nn.Conv2d(shape[0], first, kernel, padding="same"),
        nn.ReLU(),
        _pool(),
        nn.Conv2d(first, second, kernel, padding="same"),
        nn.ReLU(),
        _pool(),
        nn.Flatten(),
        nn.Linear(second * side, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def _vgg11(shape: tuple[int, ...], classes: int, width: int = 64) -> nn.Module:
    """VGG11 for 32×32 images: eight convolutions with batch norm, five max-pools, one dense layer."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for part in _VGG11:
        if isinstance(part, int):
            layers += [_convolution(channels, part * width, 1), nn.BatchNorm2d(part * width), nn.ReLU()]
            channels = part * width
        else:
            layers.append(_pool())
    return _scaled(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)))


def _resnet18(shape: tuple[int, ...], classes: int, stem_stride: int = 1, width: int = 64) -> nn.Module:
    """ResNet-18 for 32×32 images: a 3×3 stem without max-pool, four stages of two blocks."""
    channels = width
    layers: list[nn.Module] = [_convolution(shape[0], width, stem_stride), nn.BatchNorm2d(width), nn.ReLU()]
    for after in (width * part for part in _RESNET18):
        layers += [_Block(channels, after, 1 if after == channels else 2), _Block(after, after, 1)]
        channels = after
    return _scaled(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)))


def _resnet18_small(shape: tuple[int, ...], classes: int, width: int = 64) -> nn.Module:
    """ResNet-18 with a stem of stride 2."""
    return _resnet18(shape, classes, stem_stride=2, width=width)


class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(before, after, stride),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            _convolution(after, after, 1),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            widen = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(widen, nn.BatchNorm2d(after))
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.activation(self.branch(inputs) + self.shortcut(inputs))
        return result


def _convolution(before: int, after: int, stride: int) -> nn.Module:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


def _pool() -> nn.Module:
    # Rounding up lets any input size pass any number of pools; at even sizes it changes nothing.
    return nn.MaxPool2d(2, ceil_mode=True)


def _scaled(module: nn.Module) -> nn.Module:
    """He initialisation: with torch's own activations fade away where a batch norm is fixed."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return module


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "linear": _linear,
    "two_layer": _two_layer,
    "conv": _conv,
    "vgg11": _vgg11,
    "resnet18": _resnet18,
    "resnet18_small": _resnet18_small,
}
