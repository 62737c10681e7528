"""The ONNX operators that are understood, each as a few lines of torch.

An operator is a function of its node and its input tensors (None where one was left out). In a dry run what depends on
the input has no numbers; shapes and positions, which do not, have theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from relumine.errors import TargetError
from relumine.formats.dry_run import LARGEST_TENSOR
from relumine.formats.onnx_file import Node

_CAST: dict[int, torch.dtype] = {
    1: torch.float32,
    11: torch.float64,
    7: torch.int64,
    6: torch.int32,
    9: torch.bool,
}
_ALPHA, _GAMMA = 1.6732632423543772, 1.0507009873554805  # of SELU (Klambauer et al. 2017)


@dataclass(frozen=True)
class Call:
    """One operation about to be computed: the node, its inputs, and the version of the operators."""

    node: Node
    inputs: tuple[Tensor | None, ...]
    opset: int

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.at(0)

    def at(self, position: int) -> Tensor:
        """An input that must be there."""
        tensor = self.maybe(position)
        if tensor is None:
            raise TargetError(f"{self.node.op}: its input {position} is missing")
        return tensor

    def maybe(self, position: int) -> Tensor | None:
        """An input that may be left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def get(self, name: str, otherwise: Any = None) -> Any:
        """An attribute."""
        return self.node.attributes.get(name, otherwise)

    def whole_numbers(self, name: str, position: int) -> list[int] | None:
        """Axes, sizes and the like: an attribute in old versions, an input in new ones."""
        tensor = self.maybe(position)
        if tensor is None:
            numbers = self.get(name)
            return None if numbers is None else [int(number) for number in numbers]
        if tensor.is_floating_point() or tensor.is_meta:
            raise TargetError(f"{self.node.op}: expected {name} that are whole numbers and known beforehand")
        return [int(number) for number in tensor.flatten().tolist()]


Operator = Callable[[Call], Tensor | tuple[Tensor, ...]]


def _unary(function: Callable[[Tensor], Tensor]) -> Operator:
    return lambda call: function(call.x)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return lambda call: function(call.at(0), call.at(1))


def _all(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    """An operator of any number of inputs, two by two."""

    def operator(call: Call) -> Tensor:
        result = call.x
        for position in range(1, len(call.inputs)):
            result = function(result, call.at(position))
        return result

    return operator


def _divide(first: Tensor, second: Tensor) -> Tensor:
    return first / second if first.is_floating_point() else torch.div(first, second, rounding_mode="trunc")


def _gemm(call: Call) -> Tensor:
    first, second, third = call.at(0), call.at(1), call.maybe(2)
    first = first.transpose(0, 1) if call.get("transA", 0) else first
    second = second.transpose(0, 1) if call.get("transB", 0) else second
    product: Tensor = call.get("alpha", 1.0) * (first @ second)
    return product if third is None else product + call.get("beta", 1.0) * third


def _conv(call: Call) -> Tensor:
    weight, bias = call.at(1), call.maybe(2)
    rank = weight.ndim - 2
    x, padding = _padded(call, list(weight.shape[2:]), 0.0)
    options = {"stride": call.get("strides", [1] * rank), "dilation": call.get("dilations", [1] * rank)}
    convolution: Callable[..., Tensor] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    return convolution(x, weight, bias, padding=padding, groups=call.get("group", 1), **options)


def _max_pool(call: Call) -> Tensor:
    kernel, options = _pooling(call)
    x, padding = _padded(call, kernel, float("-inf"), half=True)
    dilations = call.get("dilations", [1] * len(kernel))
    pool: Callable[..., Tensor] = getattr(F, f"max_pool{len(kernel)}d")
    return pool(x, kernel, padding=padding, dilation=dilations, **options)


def _average_pool(call: Call) -> Tensor:
    kernel, options = _pooling(call)
    if any(size != 1 for size in call.get("dilations", [1])):
        raise TargetError("AveragePool: expected no dilations")
    pool: Callable[..., Tensor] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[len(kernel)]
    x, padding = _padded(call, kernel, 0.0, half=True)
    counted = bool(call.get("count_include_pad", 0))
    if counted or x is call.x:
        return pool(x, kernel, padding=padding, count_include_pad=counted, **options)
    there, _ = _padded(Call(call.node, (torch.ones_like(call.x),), call.opset), kernel, 0.0, half=True)
    return pool(x, kernel, **options) / pool(there, kernel, **options)


def _pooling(call: Call) -> tuple[list[int], dict[str, Any]]:
    kernel = [int(size) for size in call.get("kernel_shape", [])]
    if not 1 <= len(kernel) <= 3:
        raise TargetError(f"{call.node.op}: expected a kernel of 1 to 3 axes, got {kernel}")
    return kernel, {"stride": call.get("strides", [1] * len(kernel)), "ceil_mode": bool(call.get("ceil_mode", 0))}


def _padded(call: Call, kernel: list[int], fill: float, half: bool = False) -> tuple[Tensor, list[int]]:
    """The input, and the padding left to the operation: that which is the same on both sides (``half``: and at most
    half the kernel, as torch's pools want it). Any other is put on here."""
    rank = len(kernel)
    pads = _pads(call, kernel)
    before, after = pads[:rank], pads[rank:]
    fits = not half or all(2 * pad <= size for pad, size in zip(before, kernel, strict=True))
    if before == after and fits:
        return call.x, before
    pairs = [pad for axis in reversed(range(rank)) for pad in (before[axis], after[axis])]
    return F.pad(call.x, pairs, value=fill), [0] * rank


def _pads(call: Call, kernel: list[int]) -> list[int]:
    mode = call.get("auto_pad", "NOTSET")
    rank = len(kernel)
    pads = [0] * (2 * rank)
    if mode == "NOTSET":
        pads = [int(pad) for pad in call.get("pads", pads)]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        for axis, size in enumerate(call.x.shape[2:]):
            stride = call.get("strides", [1] * rank)[axis]
            reach = call.get("dilations", [1] * rank)[axis] * (kernel[axis] - 1) + 1
            total = max(0, (-(-size // stride) - 1) * stride + reach - size)
            small, large = total // 2, total - total // 2
            pads[axis], pads[axis + rank] = (small, large) if mode == "SAME_UPPER" else (large, small)
    elif mode != "VALID":
        raise TargetError(f"{call.node.op}: expected a known auto_pad, got {mode!r}")
    if len(pads) != 2 * rank or min(pads) < 0:
        raise TargetError(f"{call.node.op}: expected {2 * rank} pads of 0 or more, got {pads}")
    return pads


def _batch_norm(call: Call) -> Tensor:
    if call.get("training_mode", 0):
        raise TargetError("BatchNormalization: expected a model for inference, got training mode; export it in eval()")
    scale, shift, mean, variance = (call.at(i) for i in (1, 2, 3, 4))
    return F.batch_norm(call.x, mean, variance, scale, shift, training=False, eps=call.get("epsilon", 1e-5))


def _layer_norm(call: Call) -> Tensor:
    axis = call.get("axis", -1) % call.x.ndim
    shape = list(call.x.shape[axis:])
    normal = F.layer_norm(call.x, shape, eps=call.get("epsilon", 1e-5)) * call.at(1)
    shift = call.maybe(2)
    return normal if shift is None else normal + shift


def _flatten(call: Call) -> Tensor:
    axis = call.get("axis", 1)
    axis = axis + call.x.ndim if axis < 0 else axis
    return call.x.reshape(prod(call.x.shape[:axis]), -1) if axis else call.x.reshape(1, -1)


def _reshape(call: Call) -> Tensor:
    sizes = call.whole_numbers("shape", 1) or []
    if not call.get("allowzero", 0):
        sizes = [call.x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return call.x.reshape(sizes)


def _squeeze(call: Call) -> Tensor:
    axes = call.whole_numbers("axes", 1)
    return call.x.squeeze() if axes is None else call.x.squeeze(tuple(axes))


def _unsqueeze(call: Call) -> Tensor:
    axes = call.whole_numbers("axes", 1) or []
    rank = call.x.ndim + len(axes)
    result = call.x
    for axis in sorted(axis % rank for axis in axes):
        result = result.unsqueeze(axis)
    return result


def _slice(call: Call) -> Tensor:
    starts, ends = call.whole_numbers("starts", 1) or [], call.whole_numbers("ends", 2) or []
    axes = call.whole_numbers("axes", 3) or list(range(len(starts)))
    steps = call.whole_numbers("steps", 4) or [1] * len(starts)
    result = call.x
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        positions = range(*slice(start, end, step).indices(result.shape[axis]))
        index = torch.tensor(list(positions), dtype=torch.int64, device=result.device)
        result = result.index_select(axis, index)
    return result


def _gather(call: Call) -> Tensor:
    x, positions, axis = call.x, call.at(1), call.get("axis", 0) % max(1, call.x.ndim)
    size = x.shape[axis]
    positions = torch.where(positions < 0, positions + size, positions)
    taken = x.index_select(axis, positions.flatten().to(x.device))
    return taken.reshape([*x.shape[:axis], *positions.shape, *x.shape[axis + 1 :]])


def _split(call: Call) -> tuple[Tensor, ...]:
    axis = call.get("axis", 0)
    sizes = call.whole_numbers("split", 1)
    parts = call.get("num_outputs", len(call.node.outputs))
    return torch.split(call.x, sizes or -(-call.x.shape[axis] // parts), dim=axis)


def _expand(call: Call) -> Tensor:
    sizes = call.whole_numbers("shape", 1) or []
    return call.x.expand(np.broadcast_shapes(tuple(call.x.shape), tuple(sizes)))


def _pad(call: Call) -> Tensor:
    mode = call.get("mode", "constant")
    pads = call.whole_numbers("pads", 1) or []
    rank = call.x.ndim
    if mode != "constant" or call.maybe(3) is not None or len(pads) != 2 * rank:
        raise TargetError(f"Pad: expected constant padding of {rank} axes, got {mode!r} with {pads}")
    value = call.maybe(2)
    fill = float(call.get("value", 0.0)) if value is None or value.is_meta else float(value)
    return F.pad(call.x, [pad for axis in reversed(range(rank)) for pad in (pads[axis], pads[axis + rank])], value=fill)


def _reduce(function: Callable[..., Tensor]) -> Operator:
    def operator(call: Call) -> Tensor:
        axes = call.whole_numbers("axes", 1)
        if not axes and call.get("noop_with_empty_axes", 0):
            return call.x
        return function(call.x, dim=tuple(axes or range(call.x.ndim)), keepdim=bool(call.get("keepdims", 1)))

    return operator


def _softmax(function: Callable[..., Tensor]) -> Operator:
    def operator(call: Call) -> Tensor:
        if call.opset >= 13:
            return function(call.x, dim=call.get("axis", -1))
        axis = call.get("axis", 1) % call.x.ndim
        return function(call.x.flatten(axis), dim=-1).reshape(call.x.shape)

    return operator


def _clip(call: Call) -> Tensor:
    low, high = call.maybe(1), call.maybe(2)
    result = call.x
    for bound, name, cut in ((low, "min", torch.maximum), (high, "max", torch.minimum)):
        limit = call.get(name) if bound is None else bound
        if limit is not None:
            result = cut(result, torch.as_tensor(limit, dtype=result.dtype, device=result.device))
    return result


def _shape(call: Call) -> Tensor:
    sizes = list(call.x.shape)[call.get("start", 0) : call.get("end", call.x.ndim)]
    return torch.tensor(sizes, dtype=torch.int64)


def _cast(call: Call) -> Tensor:
    to = call.get("to")
    if to not in _CAST:
        raise TargetError(f"Cast: expected float32, float64, int or bool, got element type {to}")
    if call.x.is_floating_point() and not _CAST[to].is_floating_point:
        raise TargetError("Cast: numbers are cut to whole ones, so that no gradient passes; export the model without")
    return call.x.to(_CAST[to])


def _constant(call: Call) -> Tensor:
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if name in call.node.attributes:
            return torch.tensor(call.get(name), dtype=torch.float32 if "float" in name else torch.int64)
    value = call.get("value")
    if not isinstance(value, np.ndarray):
        raise TargetError("Constant: expected numbers")
    return torch.from_numpy(value)


def _constant_of_shape(call: Call) -> Tensor:
    sizes = call.whole_numbers("shape", 0) or []
    if prod(sizes) > LARGEST_TENSOR:
        raise TargetError(f"ConstantOfShape: expected at most {LARGEST_TENSOR:,} numbers, got the shape {sizes}")
    value = call.get("value")
    filled = np.zeros(1, np.float32) if value is None else value
    return torch.from_numpy(np.full(sizes, filled.flat[0], dtype=filled.dtype))


OPERATORS: dict[str, Operator] = {
    "Abs": _unary(torch.abs),
    "Add": _binary(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda call: torch.cat([call.at(i) for i in range(len(call.inputs))], dim=call.get("axis", 0)),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "Div": _binary(_divide),
    "Dropout": _unary(lambda x: x),
    "Elu": lambda call: F.elu(call.x, alpha=call.get("alpha", 1.0)),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": lambda call: F.gelu(call.x, approximate=call.get("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda call: call.x.mean(dim=tuple(range(2, call.x.ndim)), keepdim=True),
    "GlobalMaxPool": lambda call: call.x.amax(dim=tuple(range(2, call.x.ndim)), keepdim=True),
    "HardSigmoid": lambda call: (call.get("alpha", 0.2) * call.x + call.get("beta", 0.5)).clamp(0, 1),
    "HardSwish": _unary(F.hardswish),
    "Identity": _unary(lambda x: x),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda call: F.leaky_relu(call.x, negative_slope=call.get("alpha", 0.01)),
    "Log": _unary(torch.log),
    "LogSoftmax": _softmax(torch.log_softmax),
    "MatMul": _binary(torch.matmul),
    "Max": _all(torch.maximum),
    "MaxPool": _max_pool,
    "Min": _all(torch.minimum),
    "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg),
    "PRelu": lambda call: torch.where(call.x < 0, call.x * call.at(1), call.x),
    "Pad": _pad,
    "Pow": lambda call: torch.pow(call.at(0), call.at(1)).to(call.x.dtype),
    "Reciprocal": _unary(torch.reciprocal),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Relu": _unary(torch.relu),
    "Reshape": _reshape,
    "Selu": lambda call: call.get("gamma", _GAMMA) * F.elu(call.x, alpha=call.get("alpha", _ALPHA)),
    "Shape": _shape,
    "Sigmoid": _unary(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _softmax(torch.softmax),
    "Softplus": _unary(lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "Softsign": _unary(F.softsign),
    "Split": _split,
    "Sqrt": _unary(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(torch.sub),
    "Sum": _all(torch.add),
    "Tanh": _unary(torch.tanh),
    "Transpose": lambda call: call.x.permute(call.get("perm", list(reversed(range(call.x.ndim))))),
    "Unsqueeze": _unsqueeze,
}
