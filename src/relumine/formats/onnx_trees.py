"""ONNX files of scikit-learn's kind (skl2onnx, onnxmltools): tree ensembles and linear models, run by onnxruntime.

These operators (the domain ai.onnx.ml) have no gradients. Their attributes are lists by which onnxruntime finds its way
through memory, so they are checked here first; a file with any other operator is refused.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from relumine.errors import RelumineError, TargetError
from relumine.formats.loaded import library
from relumine.formats.onnx_file import session_of
from relumine.formats.trees import check_tree, text_of
from relumine.oracle.base import Array, ValueKind
from relumine.oracle.predictor import FunctionPredictor
from relumine.text import one_line

_DOMAIN = "ai.onnx.ml"
_TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
_LINEAR = ("LinearClassifier", "LinearRegressor")
_KEEP_WIDTH = ("Scaler", "Cast", "Identity")
_AFTER = ("Normalizer", "ZipMap", "Cast", "Identity")
_OF_NODES = ("nodeids", "featureids", "truenodeids", "falsenodeids", "modes", "values")


def is_of_scikit_learn(path: Path) -> bool:
    """Whether the file has operators of scikit-learn's kind; False for whatever cannot be read."""
    onnx = library("onnx", path, "onnx")
    try:
        return any(node.domain == _DOMAIN for node in onnx.ModelProto.FromString(text_of(path)).graph.node)
    except Exception:  # protobuf's DecodeError, whose home differs between its versions; the other reader will say so
        return False


def load_onnx_trees(path: Path, values: ValueKind | None = None) -> FunctionPredictor:
    """The model of an .onnx file as an oracle, or a TargetError. ``values`` says what they are where that is open."""
    onnx = library("onnx", path, "onnx")
    model = onnx.ModelProto.FromString(text_of(path))
    try:
        width, output = _checked(model.graph)
        del model.graph.output[:]
        model.graph.output.append(onnx.ValueInfoProto(name=output))
        return _asked(_session(model, path), width, values)
    except (ValueError, KeyError, IndexError, TypeError, RelumineError) as error:
        raise TargetError(f"{path}: expected a tree ensemble or a linear model, got {error}") from error


def _asked(session: Any, width: int, values: ValueKind | None) -> FunctionPredictor:
    (entry,) = session.get_inputs()
    dtype = np.float64 if entry.type == "tensor(double)" else np.float32

    def predict(rows: Array) -> "np.ndarray[Any, Any]":
        return np.asarray(session.run(None, {entry.name: rows.astype(dtype)})[0])

    # What the outputs are is told by these; they need not be like the owner's.
    return FunctionPredictor(predict, np.random.default_rng(0).standard_normal((16, width)), values=values)


def _session(model: Any, path: Path) -> Any:
    try:
        return session_of(library("onnxruntime", path, "onnx"), model.SerializeToString())
    except Exception as error:  # onnxruntime's own kinds
        raise ValueError(f"what onnxruntime refuses: {one_line(error, named=False)}") from error


def _checked(graph: Any) -> tuple[int, str]:
    """The number of features, and the name of the output that holds scores."""
    if graph.initializer or graph.sparse_initializer or len(graph.input) != 1:
        raise ValueError(f"{len(graph.input)} inputs and {len(graph.initializer)} tensors; expected 1 and 0")
    sizes = [axis.dim_value for axis in graph.input[0].type.tensor_type.shape.dim]
    if len(sizes) != 2 or not 0 < sizes[1] < 2**20:
        raise ValueError(f"inputs of shape {sizes}; expected (any number, features)")
    width = sizes[1]
    wide = {graph.input[0].name}
    scores: dict[str, str] = {}
    for node in graph.node:
        known = {name for name in node.input if name in wide}
        ahead = len(known) == len(node.input) == 1
        if node.op_type in (*_TREES, *_LINEAR) and node.domain == _DOMAIN and ahead:
            _check_model(node, width)
            scores[node.output[-1]] = node.output[-1]
        elif node.op_type in _KEEP_WIDTH and ahead:
            _check_scaler(node, width)
            wide |= set(node.output)
        elif node.op_type in _AFTER and len(node.input) == 1:
            if node.input[0] in scores:  # what is zipped into dictionaries is taken before that
                scores[node.output[0]] = scores[node.input[0]] if node.op_type == "ZipMap" else node.output[0]
        else:
            raise ValueError(f"the operator {node.op_type} where one of {', '.join((*_TREES, *_LINEAR))} is understood")
    found = [scores[output.name] for output in graph.output if output.name in scores]
    if len(found) != 1:
        raise ValueError(f"{len(found)} outputs of scores; expected 1")
    return width, found[0]


def _check_scaler(node: Any, width: int) -> None:
    for name, numbers in _attributes(node).items():
        if node.op_type == "Scaler" and len(numbers) not in (1, width):
            raise ValueError(f"{len(numbers)} numbers {name} for {width} features")


def _check_model(node: Any, width: int) -> None:
    lists = _attributes(node)
    if node.op_type in _TREES:
        _check_trees(lists, width, "class" if node.op_type == "TreeEnsembleClassifier" else "target")
        return
    outputs = len(_labels(lists)) if node.op_type == "LinearClassifier" else int(lists.get("targets", 1))
    rows = len(lists["coefficients"]) // width
    if rows * width != len(lists["coefficients"]) or len(lists.get("intercepts", [0] * rows)) != rows:
        raise ValueError(f"{len(lists['coefficients'])} coefficients for {width} features")
    if rows != outputs and (rows, outputs) != (1, 2):
        raise ValueError(f"coefficients of {rows} outputs, {outputs} are named")


def _labels(lists: dict[str, Any]) -> Any:
    return lists.get("classlabels_int64s") or lists.get("classlabels_ints") or lists.get("classlabels_strings") or []


def _check_trees(lists: dict[str, Any], width: int, kind: str) -> None:
    trees = _whole(lists["nodes_treeids"])
    if any(len(lists[f"nodes_{name}"]) != len(trees) for name in _OF_NODES) or not len(trees):
        raise ValueError("lists of nodes of different lengths")
    leaves = len(lists[f"{kind}_ids"])
    if any(len(lists[f"{kind}_{name}"]) != leaves for name in ("treeids", "nodeids", "weights")):
        raise ValueError("lists of leaves of different lengths")
    outputs = len(_labels(lists)) if kind == "class" else int(lists.get("n_targets", 1))
    ids = _whole(lists[f"{kind}_ids"])
    if not 0 < outputs < 2**12 or ((ids < 0) | (ids >= outputs)).any():
        raise ValueError(f"leaves of other outputs than the {outputs}")
    own = {(int(tree), int(node)) for tree, node in zip(trees, lists["nodes_nodeids"], strict=True)}
    named = zip(lists[f"{kind}_treeids"], lists[f"{kind}_nodeids"], strict=True)
    if len(own) < len(trees) or any(place not in own for place in named):
        raise ValueError("nodes of the same number, or leaves that are none of its nodes")
    for tree in np.unique(trees):
        _check_one(lists, np.flatnonzero(trees == tree), width)


def _check_one(lists: dict[str, Any], rows: "np.ndarray[Any, Any]", width: int) -> None:
    """One tree, whose nodes are numbered 0, 1, 2, …"""
    numbers, features, yes, no = (_whole(lists[f"nodes_{name}"])[rows] for name in _OF_NODES[:4])
    if not np.array_equal(numbers, np.arange(len(rows))):
        raise ValueError("nodes out of order")
    leaf = np.array([lists["nodes_modes"][row] == b"LEAF" for row in rows])
    check_tree(np.where(leaf, -1, yes), np.where(leaf, -1, no), features, width)


def _whole(numbers: Iterable[int]) -> "np.ndarray[Any, Any]":
    return np.asarray(numbers, dtype=np.int64)


def _attributes(node: Any) -> dict[str, Any]:
    kinds = import_module("onnx").AttributeProto
    plain = {kinds.INT: "i", kinds.FLOAT: "f", kinds.STRING: "s", kinds.INTS: "ints", kinds.FLOATS: "floats"}
    plain[kinds.STRINGS] = "strings"
    found = {}
    for one in node.attribute:
        if one.type not in plain:
            raise ValueError(f"an attribute {one.name} that is no list of numbers or words")
        value = getattr(one, plain[one.type])
        found[one.name] = value if one.type in (kinds.INT, kinds.FLOAT, kinds.STRING) else list(value)
    return found
