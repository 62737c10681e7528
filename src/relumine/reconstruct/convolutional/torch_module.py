"""Convolutional networks as torch modules, and torch modules as architectures."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from relumine.errors import MisuseError
from relumine.oracle.logits import tensor_probabilities
from relumine.reconstruct.convolutional.layers import Layer, Pair, Pool, Stage

if TYPE_CHECKING:
    from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork

_IGNORED = (nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Identity, nn.Linear, nn.Softmax)

# Steps of the ascent, and their size relative to the image's.
_STEPS, _STEP = 12, 0.15


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


def ascended(network: "ConvolutionalNetwork", images: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Images changed by gradient ascent until units and features are on together that were not: where ``missing``.

    missing: h×(F+1) pairs of hidden units and features (the last is the constant); 1×(F+1) if there are no units
    """
    module = ClonedConvolutional(network, probabilities=False).requires_grad_(False)
    relus = [part for part in module.features if isinstance(part, nn.ReLU)]
    before = nn.Sequential(*(part for part in module.features if part is not relus[-1]))
    wanted = torch.from_numpy(missing[:, :-1].astype(np.float64))
    points = torch.from_numpy(np.array(images)).requires_grad_(True)
    step = _STEP * images.std(axis=1, keepdims=True)
    for _ in range(_STEPS):
        shown = before(points.reshape(-1, *network.inputs))
        on = torch.sigmoid(shown / shown.detach().std(dim=1, keepdim=True))
        if network.weights[1:]:
            units = module.classifier[0](torch.relu(shown))
            units = torch.sigmoid(units / units.detach().std(dim=1, keepdim=True))
        else:
            units = torch.ones((len(points), 1), dtype=torch.float64)
        (gradient,) = torch.autograd.grad(((units @ wanted) * on).sum(), points)
        size = gradient.square().mean(dim=1, keepdim=True).sqrt()
        points = (points + torch.from_numpy(step) * gradient / size.clamp(min=1e-300)).detach().requires_grad_(True)
    return points.detach().numpy()


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
