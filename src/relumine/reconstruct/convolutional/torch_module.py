"""Convolutional networks as torch modules, and torch modules as architectures."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from relumine.errors import MisuseError
from relumine.oracle.logits import tensor_probabilities
from relumine.reconstruct.convolutional.layers import Front, Layer, Pair, Pool, Stage

if TYPE_CHECKING:
    from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork

_IGNORED = (nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Identity, nn.Linear, nn.Softmax)


class ClonedConvolutional(nn.Module):
    """``features`` (convolutions, ReLUs, pools), ``classifier`` (dense layers), a skip connection or softmax."""

    def __init__(self, network: "ConvolutionalNetwork", *, probabilities: bool) -> None:
        super().__init__()
        self._inputs, self._probabilities = network.inputs, probabilities
        self.features = nn.Sequential(*(part for layer in network.front.layers for part in _parts(layer)), nn.Flatten())
        dense: list[nn.Module] = []
        for weight, bias in zip(network.weights, network.biases, strict=True):
            dense += [_linear(weight, bias), nn.ReLU()]
        self.classifier = nn.Sequential(*dense[:-1])
        self.skip = None if network.skip is None else _linear(network.skip, None)

    def forward(self, inputs: Tensor) -> Tensor:
        """n×K from n×shape or n×d inputs."""
        like = next(self.parameters())
        features = self.features(inputs.reshape(-1, *self._inputs).to(like.dtype))
        outputs: Tensor = self.classifier(features)
        if self.skip is not None:
            outputs = outputs + self.skip(features)
        return tensor_probabilities(outputs) if self._probabilities else outputs


def module_of(network: "ConvolutionalNetwork", *, probabilities: bool) -> nn.Module:
    """A float64 module in evaluation mode."""
    return ClonedConvolutional(network, probabilities=probabilities).requires_grad_(False).eval()


def trainable(network: "ConvolutionalNetwork", frozen: int) -> nn.Module:
    """A float32 module that answers logits, to train; the first ``frozen`` convolutions stay as they are.

    Their ReLUs are not smoothed either: where they switch is known.
    """
    module = ClonedConvolutional(network, probabilities=False).float().requires_grad_(True)
    places = [i for i, part in enumerate(module.features) if isinstance(part, nn.Conv2d)]
    for place in places[:frozen]:
        module.features[place].requires_grad_(False)
        module.features[place + 1] = _SharpReLU()
    return module


class _SharpReLU(nn.Module):
    """A ReLU that matching does not smooth."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.clamp(min=0)


def network_of(module: nn.Module, network: "ConvolutionalNetwork") -> "ConvolutionalNetwork":
    """The network with the parameters of a module that ``trainable`` made of it."""
    assert isinstance(module, ClonedConvolutional)
    convolutions = [part for part in module.features if isinstance(part, nn.Conv2d)]
    dense = [part for part in module.classifier if isinstance(part, nn.Linear)]
    front = Front(network.front.inputs)
    for part, layer in zip(convolutions, network.front.layers, strict=True):
        weight, bias = _arrays(part)
        front = front.and_(Layer(layer.geometry, weight.reshape(len(weight), -1), bias))
    weights, biases = zip(*map(_arrays, dense), strict=True)
    return replace(network, front=front, weights=weights, biases=biases)


def _arrays(part: nn.Conv2d | nn.Linear) -> "tuple[np.ndarray, np.ndarray]":
    assert part.bias is not None
    weight, bias = part.weight.detach().double().numpy(), part.bias.detach().double().numpy()
    return weight, bias


def _linear(weight: "np.ndarray", bias: "np.ndarray | None") -> nn.Module:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer


def _parts(layer: Layer) -> list[nn.Module]:
    stage, channels = layer.stage, layer.geometry.inputs[0]
    count = len(layer.kernels)
    convolution = nn.Conv2d(channels, count, stage.kernel, stage.stride, stage.padding, dtype=torch.float64)
    convolution.weight.data = torch.tensor(layer.kernels.reshape(count, channels, *stage.kernel))
    assert convolution.bias is not None
    convolution.bias.data = torch.tensor(layer.biases)
    parts: list[nn.Module] = [convolution, nn.ReLU()]
    if stage.pool is not None:
        kind = nn.MaxPool2d if stage.pool.kind == "max" else nn.AvgPool2d
        parts.append(kind(stage.pool.size, stage.pool.stride, ceil_mode=stage.pool.ceil_mode))
    return parts


def hidden_of(module: nn.Module) -> tuple[int, ...]:
    """Units of the hidden dense layers of a module."""
    return tuple(part.out_features for part in module.modules() if isinstance(part, nn.Linear))[:-1]


def stages_of(module: nn.Module, inputs: tuple[int, int, int]) -> tuple[Stage, ...]:
    """The convolutional stages of a module; its parameters do not matter."""
    stages: list[Stage] = []
    for _, part in module.named_modules(remove_duplicate=False):  # one pool may be used twice
        if isinstance(part, nn.Conv2d):
            stages.append(_stage(part))
        elif isinstance(part, (nn.MaxPool2d, nn.AvgPool2d)):
            stages.append(_pooled(stages.pop() if stages else None, part))
        elif not isinstance(part, _IGNORED) and not [*part.children()]:
            raise MisuseError(f"Convolutional: expected convolutions, ReLUs, pools and dense layers, got {part}")
    if not stages:
        raise MisuseError(f"Convolutional: expected a module with convolutions, got none for inputs {inputs}")
    return tuple(stages)


def _stage(part: nn.Conv2d) -> Stage:
    if part.groups != 1 or set(part.dilation) != {1} or part.padding_mode != "zeros":
        raise MisuseError(f"Convolutional: expected plain convolutions (no groups, dilation or wrapping), got {part}")
    kernel, stride = _pair(part.kernel_size), _pair(part.stride)
    padding = part.padding
    if isinstance(padding, str):
        if padding == "same" and (kernel[0] % 2 == 0 or kernel[1] % 2 == 0):
            raise MisuseError(f"Convolutional: padding 'same' needs odd kernels, got {kernel}; pad explicitly")
        padding = (kernel[0] // 2, kernel[1] // 2) if padding == "same" else (0, 0)
    return Stage(kernel, stride, _pair(padding), channels=part.out_channels)


def _pooled(stage: Stage | None, part: nn.MaxPool2d | nn.AvgPool2d) -> Stage:
    if stage is None or stage.pool is not None:
        raise MisuseError("Convolutional: expected each pool after a convolution and its ReLU")
    padded = _pair(part.padding) != (0, 0)
    if padded or (isinstance(part, nn.MaxPool2d) and _pair(part.dilation) != (1, 1)):
        raise MisuseError(f"Convolutional: expected pools without padding and dilation, got {part}")
    kind = "max" if isinstance(part, nn.MaxPool2d) else "average"
    size = _pair(part.kernel_size)
    pool = Pool(kind, size, _pair(part.stride or size), bool(part.ceil_mode))  # type: ignore[arg-type]
    return Stage(stage.kernel, stage.stride, stage.padding, pool, stage.channels)


def _pair(number: "int | tuple[int, ...]") -> Pair:
    return (number, number) if isinstance(number, int) else (int(number[0]), int(number[1]))
