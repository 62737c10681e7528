"""Reading .pt2 files (torch.export.save) without torch.export.load.

torch's own loader unpickles parts of the archive, evaluates the text of symbolic sizes as Python, calls any function
that a name below ``torch`` reaches, and writes the graph as Python source that it then executes. Here the graph's JSON
is read as data, and its operations are computed one by one if they are among those known (``aten.py``).
"""

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from relumine.errors import TargetError, translated
from relumine.formats.aten import TENSOR_OPERATIONS
from relumine.formats.container import unpacked, without_root
from relumine.formats.dry_run import dry_run
from relumine.formats.loaded import Loaded

_MOST_NODES = 20_000  # a ResNet-152 has some 500

# Element types and the like by their numbers in the format.
_DTYPES = {7: torch.float32, 8: torch.float64, 5: torch.int64, 4: torch.int32, 12: torch.bool}

# Arithmetic with sizes, and taking one of several results.
_PYTHON: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name) for name in ("add", "floordiv", "getitem", "mod", "mul", "sub")
}

# Arguments that are data, and those that say nothing here, where everything is dense and on the CPU.
_PLAIN = ("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools", "as_string")
_NOTHING = ("as_none", "as_device", "as_layout", "as_memory_format")

# Statements about sizes that compute nothing.
_REMARKS = ("torch.ops.aten._assert_", "torch.ops.aten.sym_constrain_range")

_PICKLED = (
    "is pickled, and pickles may run any code when they are loaded; save the model with a recent torch.export.save, "
    "in which weights are plain tensors"
)


@dataclass(frozen=True)
class _Operation:
    """One operation: what computes it, its arguments as the file has them, and the names of its results."""

    target: str
    call: Callable[..., Any]
    arguments: dict[str, Any]
    outputs: tuple[str, ...]
    listed: bool  # one result that is a list, with a name for each element


class ProgramModule(nn.Module):
    """Computes an exported graph node by node."""

    def __init__(self, nodes: tuple[_Operation, ...], tensors: dict[str, Tensor], entry: str, output: str) -> None:
        super().__init__()
        self._nodes, self._entry, self._output = nodes, entry, output
        self._names = {name: f"tensor_{i}" for i, name in enumerate(tensors)}
        for name, tensor in tensors.items():
            self.register_buffer(self._names[name], tensor)

    def forward(self, inputs: Tensor) -> Tensor:
        known: dict[str, Any] = {name: getattr(self, attribute) for name, attribute in self._names.items()}
        known[self._entry] = inputs
        for node in self._nodes:
            arguments = {name: _argument(said, known, node.target) for name, said in node.arguments.items()}
            results = node.call(**arguments)
            results = results if node.listed or len(node.outputs) > 1 else (results,)
            known |= dict(zip(node.outputs, results, strict=False))
        return cast(Tensor, _known(known, self._output))


def load_exported(path: Path, input_shape: tuple[int, ...] | None = None) -> Loaded:
    """The module of a .pt2 file, or a TargetError."""
    parts = without_root(unpacked(path, "a file written by torch.export.save"))
    if "models/model.json" not in parts:
        old = "serialized_exported_program.json" in {name.rpartition("/")[2] for name in parts}
        what = f"one of an older torch, whose weights it {_PICKLED}" if old else "an archive of something else"
        raise TargetError(f"{path}: expected a file written by torch.export.save, got {what}")
    _refuse_strange_parts(parts, path)
    with translated(TargetError, "the program is not as torch.export.save writes it (", ")", file=path):
        module, declared = _program(json.loads(parts["models/model.json"]), parts)
    batch, *rest = declared
    if batch is not None and batch > 1:
        raise TargetError(
            f"{path}: expected a model for any number of inputs, this one takes {batch} at a time; export it with "
            "dynamic_shapes=({0: torch.export.Dim('rows')},)"
        )
    shape = input_shape or (None if None in rest else tuple(size for size in rest if size is not None))
    if shape is not None:
        dry_run(module, shape, path)
    return Loaded(module.eval(), shape)


def _refuse_strange_parts(parts: dict[str, bytes], path: Path) -> None:
    known = r"models/model\.json|data/(weights|constants)/((weight|tensor)_\d+|model_(weights|constants)_config\.json)"
    ignored = r"data/sample_inputs/model\.pt|extra/.*|archive_format|archive_version|byteorder|\.data/.*"
    strange = [name for name in parts if not re.fullmatch(f"{known}|{ignored}", name)]
    if strange:
        raise TargetError(f"{path}: its part {strange[0]!r} {_PICKLED}")


def _program(program: Any, parts: dict[str, bytes]) -> tuple[ProgramModule, list[int | None]]:
    graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
    if len(graph["nodes"]) > _MOST_NODES:
        raise TargetError(f"expected at most {_MOST_NODES:,} operations, got {len(graph['nodes']):,}")
    tensors, entries = _inputs(signature["input_specs"], parts)
    if len(entries) != 1:
        raise TargetError(f"expected a model of one input, got one of {len(entries)}")
    outputs = signature["output_specs"]
    if len(outputs) != 1 or "user_output" not in outputs[0]:
        kinds = ", ".join(kind for output in outputs for kind in output)
        raise TargetError(f"expected a model of one output that changes nothing, got {kinds}; export it in eval()")
    output = outputs[0]["user_output"]["arg"]["as_tensor"]["name"]
    nodes = tuple(_node(node) for node in graph["nodes"] if not node["target"].startswith(_REMARKS))
    sizes = [size.get("as_int") for size in graph["tensor_values"][entries[0]]["sizes"]]
    if len(sizes) < 2 or any(size is not None and size < 1 for size in sizes):
        raise TargetError(f"expected inputs (batch, …), got the shape {sizes}")
    return ProgramModule(nodes, tensors, entries[0], output), sizes


def _inputs(specs: list[dict[str, Any]], parts: dict[str, bytes]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights by their names in the graph, and the names of what a user gives."""
    kept = {
        "parameter": ("parameter_name", "weights"),
        "buffer": ("buffer_name", "weights"),
        "tensor_constant": ("tensor_constant_name", "constants"),
    }
    tensors: dict[str, Tensor] = {}
    entries = []
    for spec in specs:
        ((kind, content),) = spec.items()
        if kind == "user_input":
            entries.append(content["arg"]["as_tensor"]["name"])
        elif kind in kept:
            key, folder = kept[kind]
            folder = "constants" if content.get("persistent") is False else folder
            tensors[content["arg"]["name"]] = _tensor(content[key], folder, parts)
        else:
            raise TargetError(f"expected inputs that are tensors, got {kind}")
    return tensors, entries


def _tensor(name: str, folder: str, parts: dict[str, bytes]) -> Tensor:
    """A tensor from plain bytes; its declared sizes must fit the bytes that are there."""
    entry = json.loads(parts[f"data/{folder}/model_{folder}_config.json"])["config"][name]
    if entry["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
        raise TargetError(f"its entry {name!r} {_PICKLED}")
    meta = entry["tensor_meta"]
    if meta["dtype"] not in _DTYPES:
        raise TargetError(f"its entry {name!r}: expected float32, float64, int or bool, got type {meta['dtype']}")
    dtype = _DTYPES[meta["dtype"]]
    sizes, strides = ([operator.index(number["as_int"]) for number in meta[field]] for field in ("sizes", "strides"))
    offset = operator.index(meta["storage_offset"]["as_int"])
    content = parts[f"data/{folder}/{entry['path_name']}"]
    there = len(content) // dtype.itemsize
    needed = 0 if 0 in sizes else offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if min([offset, *sizes, *strides]) < 0 or needed > there:
        raise TargetError(
            f"its entry {name!r} of shape {sizes} needs {needed:,} numbers, {there:,} are there; the file is damaged"
        )
    if not needed:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype, count=there).as_strided(sizes, strides, offset).clone()


def _node(node: dict[str, Any]) -> _Operation:
    outputs = node["outputs"]
    listed = len(outputs) == 1 and "as_tensors" in outputs[0]
    named = outputs[0]["as_tensors"] if listed else [next(iter(output.values())) for output in outputs]
    names = tuple(name.get("as_name") or name["name"] for name in named)
    arguments = {argument["name"]: argument["arg"] for argument in node["inputs"]}
    return _Operation(node["target"], _operation(node["target"]), arguments, names, listed)


def _operation(target: str) -> Callable[..., Any]:
    if target in _PYTHON:
        return lambda **arguments: _PYTHON[target](*arguments.values())
    found = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", target)
    if found is None or found[1] not in TENSOR_OPERATIONS:
        raise TargetError(f"the operation {target!r} is not among those that a model may use; see docs/formats.md")
    packet = getattr(torch.ops.aten, found[1])
    if found[2] not in packet.overloads():
        raise TargetError(f"the operation {target!r} is unknown to this version of torch")
    return cast(Callable[..., Any], getattr(packet, found[2]))


def _argument(argument: dict[str, Any], known: dict[str, Any], target: str) -> Any:
    ((kind, content),) = argument.items()
    if kind in _PLAIN or kind in _NOTHING:
        return content if kind in _PLAIN else None
    if kind in ("as_sym_ints", "as_tensors", "as_optional_tensors"):
        return [_argument({kind[:-1]: part}, known, target) for part in content]
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        ((form, value),) = content.items()
        return _known(known, value) if form == "as_name" else value
    if kind in ("as_tensor", "as_optional_tensor"):
        tensor = content if kind == "as_tensor" else content.get("as_tensor")
        return None if tensor is None else _known(known, tensor["name"])
    if kind != "as_scalar_type":
        raise TargetError(f"{target}: an argument of the kind {kind} is not understood")
    return _DTYPES[content]


def _known(known: dict[str, Any], name: str) -> Any:
    if name not in known:
        raise TargetError(f"the graph uses {name!r} before it is computed")
    return known[name]
