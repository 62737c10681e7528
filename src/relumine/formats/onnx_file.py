"""Reading .onnx files: from bytes that nobody vouches for to a checked Graph, or a TargetError.

The file is parsed as a protocol buffer and nothing else is opened for it but external data that lies beside it. What
is kept are plain numbers and names. Sizes are compared with the bytes that are there before memory is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from relumine.errors import TargetError
from relumine.formats.loaded import library

# A protocol buffer cannot be larger than 2 GiB.
_LARGEST_FILE = 2**31 - 1
_MOST_NODES = 20_000  # a ResNet-152 has some 500
# Opset 7 (2017) brought today's broadcasting and batch normalisation.
_OLDEST_OPSET = 7

# The element types that are understood, by their number in the format.
_ELEMENTS: dict[int, tuple[str, str]] = {
    1: ("<f4", "float_data"),
    11: ("<f8", "double_data"),
    7: ("<i8", "int64_data"),
    6: ("<i4", "int32_data"),
    9: ("|b1", "int32_data"),
}
_FLOATS = {1: "float32", 11: "float64"}


@dataclass(frozen=True)
class Node:
    """One operation: its name, the names of its inputs ("" for one left out) and outputs, and its attributes."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Graph:
    """A model of one input and one output. ``input_shape`` has None where the file leaves a size open."""

    nodes: tuple[Node, ...]
    constants: dict[str, "np.ndarray[Any, Any]"]
    input: str
    input_shape: tuple[int | None, ...]
    dtype: str
    output: str
    opset: int
    model: bytes  # the whole model with its external data inside, for a second opinion


def read_graph(path: Path) -> Graph:
    onnx = library("onnx", path, "onnx")
    if path.stat().st_size > _LARGEST_FILE:
        raise TargetError(f"{path}: expected an ONNX file of at most 2 GiB, got {path.stat().st_size:,} bytes")
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except Exception as error:  # protobuf's DecodeError, whose home differs between its versions
        raise TargetError(f"{path}: expected an ONNX model, got something else or part of one ({error})") from error
    return _Reader(path, onnx).graph(model)


@dataclass(frozen=True)
class _Reader:
    """Reads the parts of one file; every refusal names the file."""

    path: Path
    onnx: Any

    def graph(self, model: Any) -> Graph:
        graph = model.graph
        opset = self._opset(model)
        if not graph.node:
            raise self._refusal("expected an ONNX model, got a file without operations")
        if len(graph.node) > _MOST_NODES:
            raise self._refusal(f"expected at most {_MOST_NODES:,} operations, got {len(graph.node):,}")
        if model.functions or graph.sparse_initializer:
            what = "functions of its own" if model.functions else "sparse weights"
            raise self._refusal(f"expected plain operations and weights, got {what}; export the model without")
        given = [attribute.t for node in graph.node for attribute in node.attribute if attribute.HasField("t")]
        outside = self.onnx.TensorProto.EXTERNAL
        self._bring_inside([one for one in (*graph.initializer, *given) if one.data_location == outside])
        constants = {tensor.name: self.array(tensor) for tensor in graph.initializer}
        entry, shape, dtype = self._entry(graph, constants)
        return Graph(
            nodes=tuple(self._node(node) for node in graph.node),
            constants=constants,
            input=entry,
            input_shape=shape,
            dtype=dtype,
            output=self._only(graph.output, "output").name,
            opset=opset,
            model=model.SerializeToString(),
        )

    def _opset(self, model: Any) -> int:
        versions = {entry.domain: int(entry.version) for entry in model.opset_import}
        opset = versions.get("", versions.get("ai.onnx", 0))
        if opset < _OLDEST_OPSET:
            raise self._refusal(f"expected ONNX operators of version {_OLDEST_OPSET} or later, got {opset or 'none'}")
        return opset

    def _entry(self, graph: Any, constants: dict[str, Any]) -> tuple[str, tuple[int | None, ...], str]:
        """Name, shape (with the batch) and precision of the one input."""
        entry = self._only([value for value in graph.input if value.name not in constants], "input")
        kind = entry.type.tensor_type
        if kind.elem_type not in _FLOATS:
            name = self._element(kind.elem_type)
            raise self._refusal(f"expected inputs in float32 or float64, got {name}; export a model in float32")
        sizes = [int(axis.dim_value) if axis.HasField("dim_value") else None for axis in kind.shape.dim]
        if any(size is not None and not 0 < size < 2**31 for size in sizes):
            raise self._refusal(f"expected an input of positive sizes, got {sizes}")
        return entry.name, tuple(sizes), _FLOATS[kind.elem_type]

    def _only(self, values: Sequence[Any], what: str) -> Any:
        if len(values) != 1:
            names = ", ".join(value.name for value in values[:8]) or "none"
            raise self._refusal(f"expected a model of one {what}, got {len(values)}: {names}; export it with one")
        return values[0]

    def _node(self, node: Any) -> Node:
        if node.domain not in ("", "ai.onnx"):
            raise self._refusal(f"expected standard ONNX operators, got {node.op_type!r} of {node.domain!r}")
        attributes = {attribute.name: self._attribute(attribute) for attribute in node.attribute}
        return Node(node.op_type, tuple(node.input), tuple(node.output), attributes)

    def _attribute(self, attribute: Any) -> Any:
        kinds = self.onnx.AttributeProto
        plain = {kinds.FLOAT: "f", kinds.INT: "i", kinds.FLOATS: "floats", kinds.INTS: "ints"}
        if attribute.type in plain:
            value = getattr(attribute, plain[attribute.type])
            return value if isinstance(value, int | float) else list(value)
        if attribute.type == kinds.STRING:
            return attribute.s.decode(errors="replace")
        if attribute.type == kinds.TENSOR:
            return self.array(attribute.t)
        raise self._refusal(f"expected attributes that are numbers, text or tensors; {attribute.name!r} is neither")

    def array(self, tensor: Any) -> "np.ndarray[Any, Any]":
        """The tensor's numbers, if exactly as many are there as its shape declares."""
        if tensor.data_type not in _ELEMENTS:
            got = self._element(tensor.data_type)
            raise self._refusal(f"tensor {tensor.name!r}: expected float32, float64, int or bool, got {got}")
        code, field = _ELEMENTS[tensor.data_type]
        shape, raw = tuple(int(size) for size in tensor.dims), tensor.HasField("raw_data")
        if any(size < 0 for size in shape):
            raise self._refusal(f"tensor {tensor.name!r}: expected sizes of 0 or more, got {shape}")
        there = len(tensor.raw_data) // np.dtype(code).itemsize if raw else len(getattr(tensor, field))
        if there != prod(shape):
            raise self._refusal(
                f"tensor {tensor.name!r}: its shape {shape} declares {prod(shape):,} numbers, {there:,} are there; "
                "the file is damaged"
            )
        if raw and len(tensor.raw_data) != there * np.dtype(code).itemsize:
            raise self._refusal(f"tensor {tensor.name!r}: its bytes end within a number; the file is damaged")
        numbers = np.frombuffer(tensor.raw_data, code) if raw else np.array(getattr(tensor, field), dtype=code)
        return numbers.reshape(shape).astype(np.dtype(code).newbyteorder("="))

    def _element(self, number: int) -> str:
        known: dict[int, str] = {value: name.lower() for name, value in self.onnx.TensorProto.DataType.items()}
        return known.get(number, f"element type {number}")

    def _bring_inside(self, tensors: list[Any]) -> None:
        """Read external data into the tensors: only from plain files in the model's own folder."""
        parts = [self._part(tensor) for tensor in tensors]
        total = sum(length for _, _, length in parts)
        if total > _LARGEST_FILE:
            raise self._refusal(f"expected at most 2 GiB of external data, got {total:,} bytes")
        for tensor, (place, offset, length) in zip(tensors, parts, strict=True):
            with place.open("rb") as file:
                file.seek(offset)
                tensor.raw_data = file.read(length)
            tensor.data_location = self.onnx.TensorProto.DEFAULT
            del tensor.external_data[:]

    def _part(self, tensor: Any) -> tuple[Path, int, int]:
        """The file, the first byte and the number of bytes of one tensor's external data."""
        said = {entry.key: entry.value for entry in tensor.external_data}
        place = self._beside(tensor.name, said.get("location", ""))
        size = place.stat().st_size
        try:
            offset = int(said.get("offset", "0"))
            length = int(said["length"]) if "length" in said else size - offset
        except ValueError as error:
            raise self._refusal(f"tensor {tensor.name!r}: expected a position in {place.name}, got {said}") from error
        if min(offset, length) < 0 or offset + length > size:
            raise self._refusal(
                f"tensor {tensor.name!r}: expected {length:,} bytes from {offset:,} on in {place.name}, which has "
                f"{size:,}; is it the file that belongs to this model?"
            )
        return place, offset, length

    def _beside(self, name: str, location: str) -> Path:
        parts = PurePosixPath(location).parts
        inside = len(parts) == 1 and parts[0] not in ("/", "..") and "\\" not in location and "\0" not in location
        place = self.path.parent / location if inside else None
        if place is None or place.is_symlink() or not place.is_file():
            raise self._refusal(
                f"tensor {name!r}: expected its data in a file beside the model, got {location!r}, which is "
                f"{'not there or not a plain file' if inside else 'elsewhere'}; save the model in one file"
            )
        return place

    def _refusal(self, reason: str) -> TargetError:
        return TargetError(f"{self.path}: {reason}")


def session_of(runtime: Any, model: bytes) -> Any:
    """onnxruntime, about to compute a model with one thread; it raises what is wrong and prints nothing."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
