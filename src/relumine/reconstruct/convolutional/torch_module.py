"""Convolutional networks as torch modules, and torch modules as architectures."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from relumine.errors import MisuseError
from relumine.oracle.logits import tensor_probabilities
from relumine.reconstruct.convolutional.layers import Front, Layer, Pair, Pool, Stage

if TYPE_CHECKING:
    from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork

_POOLS: dict[str, Literal["max", "average"]] = {"max_pool2d_with_indices": "max", "avg_pool2d": "average"}
# Operations on images that change nothing of the architecture: ReLUs, and views and copies.
_IGNORED = {
    "relu",
    "relu_",
    "view",
    "_unsafe_view",
    "_to_copy",
    "clone",
    "detach",
    "alias",
    "clamp_min",
    "slice",
    "zeros",
}

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


def trainable(network: "ConvolutionalNetwork", frozen: Sequence[int] = ()) -> nn.Module:
    """A float32 module that answers logits, to train; so many channels of the first layers stay as they are.

    Their ReLUs are not smoothed either: where they switch is known.
    """
    module = ClonedConvolutional(network, probabilities=False).float().requires_grad_(True)
    places = [i for i, part in enumerate(module.features) if isinstance(part, nn.Conv2d)]
    for place, count in zip(places, frozen, strict=False):
        module.features[place] = _PartlyFrozen(module.features[place], count)  # type: ignore[arg-type]
        module.features[place + 1] = _SharpReLU()
    return module


class _PartlyFrozen(nn.Conv2d):
    """A convolution whose first channels stay as they are."""

    def __init__(self, layer: nn.Conv2d, count: int) -> None:
        channels, size = layer.weight.shape[:2]
        super().__init__(size, channels, _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding))  # type: ignore[arg-type]
        self.load_state_dict(layer.state_dict())
        learns = (torch.arange(channels) >= count).to(layer.weight)
        self.register_buffer("learns", learns[:, None, None, None], persistent=False)
        self.requires_grad_(count < channels)

    def forward(self, inputs: Tensor) -> Tensor:
        """As ever; gradients reach the other channels alone."""
        learns, (weight, bias) = self.get_buffer("learns"), (self.weight, self.bias)
        assert bias is not None
        weight = weight * learns + weight.detach() * (1 - learns)
        bias = bias * learns.flatten() + bias.detach() * (1 - learns.flatten())
        result: Tensor = self._conv_forward(inputs, weight, bias)
        return result


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


class _Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the convolutions, pools and products of whatever is computed inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stages: list[Stage] = []
        self.widths: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute, and note what it was."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "convolution":
            self.stages.append(_stage(*args))
        elif name in _POOLS:
            self.stages.append(_pooled(self.stages.pop() if self.stages else None, _POOLS[name], *args[1:]))
        elif name in ("addmm", "mm", "bmm", "linear"):
            self.widths.append(result.shape[-1])
        elif isinstance(result, Tensor) and result.ndim == 4 and result.is_floating_point() and name not in _IGNORED:
            raise MisuseError(f"Convolutional: expected convolutions, ReLUs, pools and dense layers, got {name}")
        return result


def architecture_of(module: nn.Module, inputs: tuple[int, ...]) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """The convolutional stages of a module, and the units of its hidden dense layers; parameters do not matter."""
    like = next((p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()), torch.zeros(()))
    training = module.training
    with torch.no_grad(), _Recorded() as seen:
        module.eval()(torch.zeros(1, *inputs).to(like))
    module.train(training)
    if not seen.stages:
        raise MisuseError(f"Convolutional: expected a module with convolutions, got none for inputs {inputs}")
    return tuple(seen.stages), tuple(seen.widths[:-1])


def _stage(*call: Any) -> Stage:
    """Of what aten.convolution was called with."""
    _, weight, _, stride, padding, dilation, transposed, _, groups = call
    if groups != 1 or set(dilation) != {1} or transposed or weight.ndim != 4:
        raise MisuseError("Convolutional: expected plain convolutions of images (no groups, dilation or transposition)")
    return Stage(_pair(weight.shape[2:]), _pair(stride), _pair(padding), channels=len(weight))


def _pooled(stage: Stage | None, kind: Literal["max", "average"], *call: Any) -> Stage:
    """Of what the pool was called with, after its input."""
    if stage is None or stage.pool is not None:
        raise MisuseError("Convolutional: expected each pool after a convolution and its ReLU")
    left_out: list[Any] = [(), 0]
    size, stride, padding, *others = [*call, *left_out[len(call) - 1 :]]
    dilation = others.pop(0) if others and kind == "max" else 1
    ceil_mode = bool(others and others[0])
    if set(_pair(padding)) != {0} or set(_pair(dilation)) != {1}:
        raise MisuseError("Convolutional: expected pools without padding and dilation")
    return replace(stage, pool=Pool(kind, _pair(size), _pair(stride or size), ceil_mode))


def _pair(numbers: "int | Iterable[int]") -> Pair:
    found = (numbers,) if isinstance(numbers, int) else tuple(int(n) for n in numbers)
    return (found[0], found[-1])
