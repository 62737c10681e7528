"""ConvolutionalNetwork: a convolutional network as it was recovered, with its real layers."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array, ValueKind
from relumine.oracle.logits import probabilities_of
from relumine.reconstruct import export
from relumine.reconstruct.convolutional.layers import Front, Geometry, Layer, Pool, Stage

if TYPE_CHECKING:
    import torch

# Rows computed at once: 500 images with 16 channels of 32×32 take 65 MB.
_ROWS_AT_ONCE = 500


@dataclass(frozen=True, eq=False)
class ConvolutionalNetwork:
    """Convolutional layers, then dense ones: ``weights`` and ``biases``, with ReLUs between them.

    skip: K×features, what goes past the hidden dense layer, or None. Without dense layers it returns the features of
    the convolutional ones, flat.
    """

    front: Front
    weights: tuple[Array, ...] = ()
    biases: tuple[Array, ...] = ()
    skip: Array | None = None
    values: ValueKind = "real"

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.front.inputs

    @property
    def hidden(self) -> tuple[int, ...]:
        """Channels per convolutional layer, then units per hidden dense layer."""
        return (*(len(layer.kernels) for layer in self.front.layers), *(len(weight) for weight in self.weights[:-1]))

    @property
    def parameters(self) -> Mapping[str, Array]:
        """By the names that torch gives them in ``to_torch()``."""
        return {name: tensor.numpy() for name, tensor in self._module().state_dict().items()}

    def logits(self, inputs: Array) -> Array:
        """The outputs before any softmax."""
        import torch

        rows = np.asarray(inputs, dtype=np.float64)
        size = int(np.prod(self.inputs))
        if rows[:1].size not in (0, size):
            raise MisuseError(f"predict: expected rows of {size} numbers, got {rows[:1].size}")
        module = self._module()
        with torch.no_grad():
            parts = [
                module(torch.from_numpy(rows[start : start + _ROWS_AT_ONCE])).numpy()
                for start in range(0, max(len(rows), 1), _ROWS_AT_ONCE)
            ]
        result: Array = np.concatenate(parts)
        return result

    def predict(self, inputs: Array) -> Array:
        """n×d (or n×shape) inputs to n×K outputs of the kind that the oracle's values were."""
        logits = self.logits(inputs)
        return probabilities_of(logits) if self.values == "probabilities" else logits

    def to_torch(self) -> "torch.nn.Module":
        """A float64 module with the layers by their torch classes; it takes n×d or n×shape tensors."""
        return self._module(probabilities=self.values == "probabilities")

    def _module(self, *, probabilities: bool = False) -> "torch.nn.Module":
        from relumine.reconstruct.convolutional.torch_module import module_of

        return module_of(self, probabilities=probabilities)

    def save(self, path: str | Path) -> Path:
        """Write .safetensors (with the layers in its metadata) or .onnx, in float32: runtimes convolve in no other."""
        layers = [_described(layer) for layer in self.front.layers]
        about = {export.CONVOLUTIONAL: {"inputs": self.inputs, "values": self.values, "layers": layers}}
        return export.save_module(path, lambda: self.to_torch().float(), self.inputs, self.parameters, about)


def restored(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> ConvolutionalNetwork:
    """The network that ``save`` wrote; a ValueError, TypeError or KeyError where file and metadata do not fit."""
    shape = _numbers(about["inputs"], 3)
    front = Front(shape)
    starts = sorted(int(name.split(".")[1]) for name in arrays if re.fullmatch(r"features\.\d+\.weight", name))
    for start, said in zip(starts, about["layers"], strict=True):
        kernels, pool = arrays[f"features.{start}.weight"], said["pool"]
        if kernels.ndim != 4 or kernels.shape[1] != front.outputs[0]:
            raise ValueError(f"kernels of shape {kernels.shape} behind {front.outputs[0]} channels")
        if pool is not None:
            if pool["kind"] not in ("max", "average"):
                raise ValueError(f"a pool of the kind {pool['kind']!r}")
            pool = Pool(pool["kind"], _numbers(pool["size"]), _numbers(pool["stride"]), bool(pool["ceil_mode"]))
        height, width = kernels.shape[2:]
        stage = Stage((height, width), _numbers(said["stride"]), _numbers(said["padding"], least=0), pool, len(kernels))
        geometry = Geometry(stage, front.outputs)
        front = front.and_(Layer(geometry, kernels.reshape(len(kernels), -1), arrays[f"features.{start}.bias"]))
    dense = range(0, 2 * sum(name.startswith("classifier.") and name.endswith(".weight") for name in arrays), 2)
    weights, biases = (tuple(arrays[f"classifier.{i}.{name}"] for i in dense) for name in ("weight", "bias"))
    return ConvolutionalNetwork(front, weights, biases, arrays.get("skip.weight"), about["values"])


def _numbers(numbers: Any, count: int = 2, *, least: int = 1) -> Any:
    """So many whole numbers of a file."""
    found = tuple(operator.index(number) for number in numbers)
    if len(found) != count or min(found) < least:
        raise ValueError(f"expected {count} numbers of at least {least}, got {found}")
    return found


def _described(layer: Layer) -> dict[str, Any]:
    stage = layer.stage
    pool = None if stage.pool is None else vars(stage.pool)
    shape = {"kernel": stage.kernel, "stride": stage.stride, "padding": stage.padding, "pool": pool}
    return {"channels": len(layer.kernels), **shape}
