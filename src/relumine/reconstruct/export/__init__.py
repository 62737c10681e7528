"""Taking a clone elsewhere: a torch module, a .safetensors file, an .onnx file. All predict what ``predict`` does."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relumine.errors import MisuseError, TargetError

if TYPE_CHECKING:
    import torch

    from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork
    from relumine.reconstruct.network import Network

# The names of the metadata entries that make a .safetensors file readable without a factory.
ARCHITECTURE = "relumine.network"
CONVOLUTIONAL = "relumine.convolutional"

_ENDINGS = (".safetensors", ".onnx")


def to_torch(network: "Network") -> "torch.nn.Module":
    """A float64 module whose parameters have the names of ``network.parameters``; takes n×d or n×shape tensors."""
    from relumine.reconstruct.export.torch import ClonedModule

    return ClonedModule(network)


def save(network: "Network", path: str | Path) -> Path:
    """Write the network as the ending of ``path`` says."""
    architecture = {
        "layers": len(network.weights),
        "inputs": network.inputs,
        "values": network.values,
        "activation": network.activation.name,
    }
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in network.parameters.items()}
    return written(path, arrays, {ARCHITECTURE: architecture}, lambda place: _write_onnx(network, place))


def written(
    path: str | Path,
    arrays: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
    write_onnx: Callable[[Path], None],
) -> Path:
    """Write .safetensors (``about`` is its metadata) or .onnx; the file appears complete or not at all."""
    path = Path(path)
    with room_beside(path) as temporary:
        (write_onnx if path.suffix == ".onnx" else partial(_write_safetensors, arrays, about))(temporary)
        os.replace(temporary, path)
    return path


def save_module(
    path: str | Path,
    module: Callable[[], "torch.nn.Module"],
    inputs: tuple[int, ...],
    arrays: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
) -> Path:
    """Write the parameters of a clone that is a torch module of such inputs, or the module as .onnx."""

    def as_onnx(place: Path) -> None:
        from relumine.reconstruct.export.torch import write_onnx

        write_onnx(module(), inputs, place)

    return written(path, arrays, about, as_onnx)


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


def load(path: str | Path) -> "Network | ConvolutionalNetwork":
    """Read back a .safetensors file that ``save`` wrote."""
    from safetensors import SafetensorError, safe_open

    from relumine.reconstruct.activation import Activation
    from relumine.reconstruct.network import Network

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if CONVOLUTIONAL in metadata:
            from relumine.reconstruct.convolutional.clone import restored

            return restored(json.loads(metadata[CONVOLUTIONAL]), arrays)
        architecture = json.loads(metadata[ARCHITECTURE])
        layers = range(int(architecture["layers"]))
        if math.prod(architecture["inputs"]) != arrays["layers.0.weight"].shape[-1]:
            raise ValueError(f"inputs of shape {architecture['inputs']} do not fit its first layer")
        return Network(
            weights=tuple(arrays[f"layers.{i}.weight"] for i in layers),
            biases=tuple(arrays[f"layers.{i}.bias"] for i in layers),
            inputs=tuple(architecture["inputs"]),
            skip=arrays.get("skip.weight"),
            values=architecture["values"],
            activation=Activation(
                # Files of earlier versions name none.
                architecture.get("activation", "relu"),
                arrays.get("activation.slope", np.zeros(1)),
                arrays.get("activation.table"),
            ),
        )
    except KeyError as error:
        raise TargetError(
            f"{path}: expected a clone saved by relumine, but its entry {error} is missing; "
            "for other .safetensors files name the function that makes the module: --factory package.module:make"
        ) from error
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise TargetError(f"{path}: expected a .safetensors file, cannot read this one: {error}") from error


def _write_safetensors(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any], path: Path) -> None:
    from safetensors.numpy import save_file

    from relumine import __version__

    metadata = {name: json.dumps(part) for name, part in about.items()} | {"relumine.version": __version__}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, metadata=metadata)


def _write_onnx(network: "Network", path: Path) -> None:
    """A float64 graph from n×shape inputs to n×K outputs."""
    import torch

    from relumine.reconstruct.export.torch import write_onnx

    _onnx()
    write_onnx(to_torch(network), network.inputs, path, torch.float64)


def _onnx() -> None:
    try:
        import_module("onnx")
    except ImportError as error:
        raise MisuseError("save: writing .onnx needs the onnx package: pip install 'relumine[onnx]'") from error
