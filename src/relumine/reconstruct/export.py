"""Taking a clone elsewhere: a torch module, a .safetensors file, an .onnx file. All predict what ``predict`` does."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relumine.errors import MisuseError, TargetError

if TYPE_CHECKING:
    import torch

    from relumine.reconstruct.network import Network

# The name of the metadata entry that makes a .safetensors file readable without a factory.
ARCHITECTURE = "relumine.network"

_ENDINGS = (".safetensors", ".onnx")

# ONNX 1.13 and later know opset 18; IR version 10 is the newest that onnxruntime 1.20 accepts.
_ONNX_OPSET = 18
_ONNX_IR = 10


def to_torch(network: "Network") -> "torch.nn.Module":
    """A float64 module whose parameters have the names of ``network.parameters``; takes n×d or n×shape tensors."""
    import torch

    class Clone(torch.nn.Module):
        """Layers with ReLU between them, a linear skip connection if there is one, softmax if values ask for it."""

        def __init__(self) -> None:
            super().__init__()
            sizes = [(weight.shape[1], weight.shape[0]) for weight in network.weights]
            self.layers = torch.nn.ModuleList(torch.nn.Linear(*size, dtype=torch.float64) for size in sizes)
            if network.skip is not None:
                outputs, inputs = network.skip.shape
                self.skip = torch.nn.Linear(inputs, outputs, bias=False, dtype=torch.float64)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            rows = inputs.flatten(1).to(torch.float64)
            signal = rows
            for layer in self.layers[:-1]:
                signal = torch.relu(layer(signal))
            outputs: torch.Tensor = self.layers[-1](signal)
            if network.skip is not None:
                outputs = outputs + self.skip(rows)
            if network.values != "probabilities":
                return outputs
            return torch.sigmoid(outputs) if outputs.shape[1] == 1 else torch.softmax(outputs, dim=1)

    module = Clone()
    module.load_state_dict({name: torch.tensor(array) for name, array in network.parameters.items()})
    return module


def save(network: "Network", path: str | Path) -> Path:
    """Write the network as the ending of ``path`` says; the file appears complete or not at all."""
    path = Path(path)
    with room_beside(path) as temporary:
        (_write_onnx if path.suffix == ".onnx" else _write_safetensors)(network, temporary)
        os.replace(temporary, path)
    return path


def check_writable(path: str | Path) -> None:
    """Raise now what ``save`` would raise later: before queries are spent, not after."""
    path = Path(path)
    with room_beside(path):
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
    if path.suffix == ".onnx":
        _onnx()


@contextmanager
def room_beside(path: Path) -> Iterator[Path]:
    """A temporary file in the folder of ``path``, because only there a rename is atomic."""
    if path.suffix not in _ENDINGS:
        raise MisuseError(f"save: expected a path ending in {' or '.join(_ENDINGS)}, got {str(path)!r}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".relumine-") as folder:
            yield Path(folder) / path.name
    except OSError as error:
        raise MisuseError(f"save: cannot write {path} ({error.strerror or error}); choose another place") from error


def load(path: str | Path) -> "Network":
    """Read back a .safetensors file that ``save`` wrote."""
    from safetensors import SafetensorError, safe_open

    from relumine.reconstruct.network import Network

    try:
        with safe_open(path, framework="numpy") as file:
            architecture = json.loads((file.metadata() or {})[ARCHITECTURE])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        layers = range(int(architecture["layers"]))
        return Network(
            weights=tuple(arrays[f"layers.{i}.weight"] for i in layers),
            biases=tuple(arrays[f"layers.{i}.bias"] for i in layers),
            inputs=tuple(architecture["inputs"]),
            skip=arrays.get("skip.weight"),
            values=architecture["values"],
        )
    except KeyError as error:
        raise TargetError(
            f"{path}: expected a clone saved by relumine, but its entry {error} is missing; "
            "for other .safetensors files name the function that makes the module: --factory package.module:make"
        ) from error
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise TargetError(f"{path}: expected a .safetensors file, cannot read this one: {error}") from error


def _write_safetensors(network: "Network", path: Path) -> None:
    from safetensors.numpy import save_file

    from relumine import __version__

    architecture = {"layers": len(network.weights), "inputs": network.inputs, "values": network.values}
    arrays = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in network.parameters.items()}
    save_file(arrays, path, metadata={ARCHITECTURE: json.dumps(architecture), "relumine.version": __version__})


def _write_onnx(network: "Network", path: Path) -> None:
    """A float64 graph from n×shape inputs: Flatten, Gemm and Relu in turn, Add for the skip, Softmax or Sigmoid."""
    from relumine import __version__

    onnx = _onnx()
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    outputs = len(network.biases[-1])
    double = onnx.TensorProto.DOUBLE
    graph = helper.make_graph(
        _onnx_nodes(network, helper.make_node),
        "relumine",
        [helper.make_tensor_value_info("input", double, ["batch", *network.inputs])],
        [helper.make_tensor_value_info("output", double, ["batch", outputs])],
        [numpy_helper.from_array(np.array(array, np.float64), name) for name, array in network.parameters.items()],
    )
    opset = helper.make_opsetid("", _ONNX_OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=_ONNX_IR, producer_name="relumine")
    model.producer_version = __version__
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _onnx() -> Any:
    try:
        return import_module("onnx")
    except ImportError as error:
        raise MisuseError("save: writing .onnx needs the onnx package: pip install 'relumine[onnx]'") from error


def _onnx_nodes(network: "Network", node: Callable[..., Any]) -> list[Any]:
    last = len(network.weights) - 1
    nodes = [node("Flatten", ["input"], ["rows"], axis=1)]
    signal = "rows"
    for i in range(last + 1):
        nodes.append(node("Gemm", [signal, f"layers.{i}.weight", f"layers.{i}.bias"], [f"sum{i}"], transB=1))
        signal = f"sum{i}"
        if i < last:
            nodes.append(node("Relu", [signal], [f"relu{i}"]))
            signal = f"relu{i}"
    if network.skip is not None:
        nodes.append(node("Gemm", ["rows", "skip.weight"], ["skipped"], transB=1))
        nodes.append(node("Add", [signal, "skipped"], ["together"]))
        signal = "together"
    if network.values != "probabilities":
        nodes.append(node("Identity", [signal], ["output"]))
    elif len(network.biases[-1]) == 1:
        nodes.append(node("Sigmoid", [signal], ["output"]))
    else:
        nodes.append(node("Softmax", [signal], ["output"], axis=1))
    return nodes
