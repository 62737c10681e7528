"""A dry run: every operation of a module without its numbers, so that absurd sizes show before they are allocated."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from relumine.errors import TargetError, translated

# For one input: more numbers than this in one tensor, more multiplications in one operation, or more operations than
# this are no usual model.
LARGEST_TENSOR = 2**26
_MOST_MULTIPLICATIONS = 2**37
_MOST_OPERATIONS = 200_000


def dry_run(module: nn.Module, shape: tuple[int, ...], path: Path) -> None:
    """Call the module with one input of this shape that has no numbers, in the precision of its first weights."""
    tensors = [*module.parameters(), *module.buffers()]
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float64)
    with translated(TargetError, f"cannot be computed for inputs of shape {shape}: ", file=path):
        example = torch.empty(1, *shape, dtype=dtype, device="meta")
        with torch.no_grad(), _MetaDevice():
            outputs = module(example)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        got = outputs.dtype if isinstance(outputs, Tensor) else type(outputs).__name__
        raise TargetError(f"{path}: expected outputs that are real numbers, got {got}; export the scores")


class _MetaDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes on the meta device, where nothing has numbers and nothing costs, and looks at every result.

    What does not depend on the input (constants, sizes) is computed in earnest, once its size was looked at.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._operations += 1
        if self._operations > _MOST_OPERATIONS:
            raise TargetError(f"more than {_MOST_OPERATIONS:,} operations for one input; this is no usual model")
        if operation is torch.ops.aten._local_scalar_dense.default:  # reading one number that is there
            return operation(*args, **kwargs)
        tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        results = operation(*tree_map(_on_meta, args), **tree_map(_on_meta, kwargs))
        self._check(str(operation), args, results)
        in_earnest = tensors and not any(tensor.is_meta for tensor in tensors)
        return operation(*args, **kwargs) if in_earnest else results

    def _check(self, name: str, args: Any, results: Any) -> None:
        shapes = [part.shape for part in tree_leaves(results) if isinstance(part, Tensor)]
        absurd = [tuple(shape) for shape in shapes if shape.numel() > LARGEST_TENSOR]
        if absurd:
            raise TargetError(f"{name}: its result of shape {absurd[0]} is absurdly large for one input")
        tensors = [part for part in tree_leaves(args) if isinstance(part, Tensor)]
        if "convolution" in name and len(tensors) > 1:
            multiplications = shapes[0].numel() * tensors[1].numel() // max(1, len(tensors[1]))
        elif any(product in name for product in ("mm", "matmul")) and len(tensors) > 1:
            multiplications = shapes[0].numel() * tensors[-1].shape[-2 if tensors[-1].ndim > 1 else -1]
        else:
            multiplications = 0
        if multiplications > _MOST_MULTIPLICATIONS:
            raise TargetError(f"{name}: {multiplications:,} multiplications for one input; this is no usual model")


def _on_meta(part: object) -> object:
    return part.to("meta") if isinstance(part, Tensor) and not part.is_meta else part
