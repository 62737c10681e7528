"""Reading TorchScript files (.pt, .ts): programs, so they are read before torch is let near them.

torch's TorchScript reader builds no Python objects, but it interprets what the file says: ``__setstate__`` methods and
default arguments run while the file is loaded, operations like ``aten::save`` write files, and tensors may claim more
numbers than their storage has. So the archive is taken apart first. Its two pickles are read by an unpickler that knows
nothing but tensors and TorchScript's own types; its source may only call operations of ``aten.py``; what is neither
(debug information, bytecode) is left out. Then torch loads a copy of what remains, and the graphs that came out, which
are what will run, are looked at again.
"""

import ast
import io
import pickle
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from relumine.errors import TargetError, translated
from relumine.formats.aten import SCRIPT_OPERATIONS
from relumine.formats.container import packed, unpacked, without_root
from relumine.formats.dry_run import dry_run
from relumine.formats.loaded import Loaded, width_of_first_layer

_KEPT = re.compile(r"(data|constants)\.pkl|(data|constants)/\d+|code/.+\.py|version|byteorder|\.data/[\w.]+")

_PICKLE = """
PROTO GLOBAL BINPUT LONG_BINPUT BINGET LONG_BINGET EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 MARK NEWOBJ EMPTY_DICT
DICT SETITEM SETITEMS BUILD BINUNICODE BINPERSID BININT BININT1 BININT2 LONG1 BINFLOAT NEWTRUE NEWFALSE NONE REDUCE
EMPTY_LIST APPEND APPENDS STOP
"""
_OPCODES = frozenset(_PICKLE.split())
_STORAGES = {
    "FloatStorage": 4,
    "DoubleStorage": 8,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
}
# The names below torch.jit._pickle that wrap lists of plain things.
_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")

_SYNTAX = """
AnnAssign Assert Assign AugAssign ClassDef Expr For FunctionDef If Import Pass Raise Return While
"""
_STATEMENTS = frozenset(_SYNTAX.split())
_SPECIAL = "annotate unchecked_cast uninitialized getattr isinstance int float bool str len range"
_PRIMITIVES = """
Constant GetAttr SetAttr ListConstruct ListUnpack TupleConstruct TupleUnpack TupleIndex If Loop RaiseException
NumToTensor unchecked_cast Uninitialized CallFunction CallMethod isinstance dtype device layout is_cuda min max
DictConstruct shape data
"""
_PRIM = frozenset(_PRIMITIVES.split())
_MOST_ROUNDS = 1000  # of a loop: more than any unrolled layer needs


def load_torchscript(path: Path, input_shape: tuple[int, ...] | None = None) -> Loaded:
    """The module of a TorchScript file, or a TargetError."""
    parts = without_root(unpacked(path, "a TorchScript file"))
    _require_torchscript(parts, path)
    kept = {name: content for name, content in parts.items() if _KEPT.fullmatch(name)}
    archive = packed({f"archive/{name}": content for name, content in kept.items()})
    with translated(TargetError, "torch cannot read this TorchScript file (", ")", file=path):
        for name in ("data.pkl", "constants.pkl"):
            _check_pickle(kept[name], name.partition(".")[0], kept)
        for name, content in kept.items():
            if name.startswith("code/"):
                _check_source(content.decode())
        module = torch.jit.load(io.BytesIO(archive), map_location="cpu")  # type: ignore[no-untyped-call]
        _check_graphs(module._c)
        shape = input_shape or width_of_first_layer(module)
    if shape is not None:
        dry_run(module, shape, path)
    return Loaded(module, shape)


def _require_torchscript(parts: dict[str, bytes], path: Path) -> None:
    if {"data.pkl", "constants.pkl"} <= parts.keys() and any(name.startswith("code/") for name in parts):
        return
    if "models/model.json" in parts:
        raise TargetError(f"{path}: this is an exported program; give it the ending .pt2")
    if "data.pkl" in parts:
        raise TargetError(
            f"{path}: a file written by torch.save is pickled, and pickles may run any code when they are loaded; save "
            "the model with torch.export.save (.pt2), or its state dict with safetensors (and --factory)"
        )
    raise TargetError(f"{path}: expected a TorchScript file, got an archive of something else")


# The pickles


def _check_pickle(content: bytes, folder: str, parts: dict[str, bytes]) -> None:
    """Refuse what is not tensors, numbers, text and TorchScript's own types, and tensors beyond their storage."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name not in _OPCODES:
            raise TargetError(f"its {folder}.pkl uses the pickle operation {opcode.name}, which TorchScript never does")
        if opcode.name == "LONG_BINPUT" and int(argument or 0) > len(content):
            raise TargetError(f"its {folder}.pkl wants room for {argument:,} objects; the file is damaged")
    with translated(TargetError, f"its {folder}.pkl is damaged (", ")"):
        _SafeUnpickler(io.BytesIO(content), folder, parts).load()


class _Stand:
    """Stands for an object of a TorchScript class, whose state is not looked at."""

    def __setstate__(self, state: object) -> None:
        pass


class _SafeUnpickler(pickle.Unpickler):
    """Builds nothing but plain things and stand-ins."""

    def __init__(self, stream: io.BytesIO, folder: str, parts: dict[str, bytes]) -> None:
        super().__init__(stream)
        self._folder, self._parts = folder, parts

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return _check_tensor
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch.jit._pickle" and name in _LISTS:
            return lambda content, *_: content
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module.split(".", maxsplit=1)[0] == "__torch__" and not module.startswith("__torch__.torch.classes"):
            return _Stand
        raise TargetError(f"its {self._folder}.pkl names {module}.{name}; expected tensors and TorchScript's own types")

    def persistent_load(self, identity: Any) -> int:
        """How many numbers the storage has."""
        _, itemsize, key, device, count = identity
        there = len(self._parts.get(f"{self._folder}/{key}", b""))
        if not isinstance(itemsize, int) or device != "cpu" or not 0 <= count * itemsize <= there:
            raise TargetError(f"storage {key} declares {count:,} numbers in {device} memory, {there:,} bytes are there")
        return int(count)


def _check_tensor(storage: int, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...], *_: object) -> None:
    needed = 0 if 0 in sizes else offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if min(offset, *sizes, *strides, 0) < 0 or needed > storage:
        raise TargetError(f"a tensor of shape {sizes} needs {needed:,} numbers, {storage:,} are there")


# The source


def _check_source(text: str) -> None:
    """Refuse source that could do anything but compute: TorchScript's syntax is a part of Python's."""
    if "__setstate__" in text or "__getstate__" in text:
        raise TargetError("its source has __setstate__, which would run when the file is loaded")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and type(node).__name__ not in _STATEMENTS:
            raise TargetError(f"its source has a {type(node).__name__}, which a model does not need")
        if isinstance(node, ast.arguments):
            for default in [*node.defaults, *(default for default in node.kw_defaults if default)]:
                ast.literal_eval(default)  # anything else would run when the file is loaded
        if isinstance(node, ast.Attribute):
            _check_name(ast.unparse(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            _check_called(node.func.id)


def _check_called(name: str) -> None:
    # _0, _1 and so on are other names for functions that are in the file.
    if name not in _SPECIAL.split() and not re.fullmatch(r"_\d+", name):
        raise TargetError(f"its source calls {name!r}, which is not among what a model may use")


def _check_name(name: str) -> None:
    if re.match(r"ops\.(?!aten\b|prim\b)", name) or re.match(r"(__torch__\.)?torch\.classes\b", name):
        raise TargetError(f"its source uses {name!r}, which is not among what a model may use")
    found = re.fullmatch(r"(?:torch|ops\.aten)\.(\w+)", name)
    if found and found[1] not in SCRIPT_OPERATIONS:
        raise TargetError(f"its source uses {name!r}, which is not among the operations that a model may use")


# The graphs


def _check_graphs(module: Any) -> None:
    """Every method of every part, as torch will run it."""
    for part in _parts(module):
        if part._get_forward_hooks() or part._get_forward_pre_hooks():
            raise TargetError("it has hooks, which run beside the model; save it without")
        for name in part._method_names():
            _check_block(part._get_method(name).inlined_graph, within_loop=False)


def _parts(module: Any) -> Iterator[Any]:
    yield module
    for _, part in torch._C.ModuleDict(module).items():
        yield from _parts(part)


def _check_block(block: Any, *, within_loop: bool) -> None:
    for node in block.nodes():
        space, _, name = node.kind().partition("::")
        if name not in {"aten": SCRIPT_OPERATIONS, "prim": _PRIM}.get(space, ()):
            raise TargetError(f"it uses {node.kind()!r}, which is not among the operations that a model may use")
        looped = node.kind() == "prim::Loop"
        if looped and (within_loop or not _ends(node)):
            raise TargetError("it has a loop that may never end; export the model with torch.export")
        for inner in node.blocks():
            _check_block(inner, within_loop=within_loop or looped)


def _ends(loop: Any) -> bool:
    """Whether a loop's rounds are counted by a constant or by the length of a list, give or take a constant."""
    count = next(iter(loop.inputs())).node()
    if count.kind() == "aten::sub":
        count = next(iter(count.inputs())).node()
    if count.kind() == "aten::len":
        return True
    rounds = count.output().toIValue() if count.kind() == "prim::Constant" else None
    return isinstance(rounds, int) and rounds <= _MOST_ROUNDS
