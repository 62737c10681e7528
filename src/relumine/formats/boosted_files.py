"""Reading boosted trees: XGBoost's own files, JSON and UBJSON, and LightGBM's text.

Both libraries' readers trust a tree's arrays: a child beyond the last node would be read beyond its memory. So every
tree is looked at here before the library sees the model. XGBoost is then given plain JSON, LightGBM text without the
byte positions that the header gives for trees.
"""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relumine.errors import RelumineError, TargetError
from relumine.formats.loaded import Loaded, library
from relumine.formats.trees import check_tree, text_of
from relumine.text import one_line

_XGBOOST = "an XGBoost model saved with Booster.save_model (.json, .ubj)"
_LIGHTGBM = "a LightGBM model saved with Booster.save_model (text)"

# What a tree of XGBoost has one of per node.
_OF_XGBOOST = ("left_children", "right_children", "split_indices", "split_conditions", "default_left", "base_weights")
# One number per inner node of LightGBM's, and one per leaf.
_OF_NODES = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_OF_LEAVES = ("leaf_value",)
_END = "end of trees"

# One number of each type of UBJSON, by its letter.
_NUMBERS = {"i": ">b", "U": ">B", "I": ">h", "u": ">H", "l": ">i", "m": ">I", "L": ">q", "d": ">f", "D": ">d"}
_CONSTANTS = {"Z": None, "T": True, "F": False}
_DEEPEST = 32  # XGBoost's own files are some ten levels deep


def load_xgboost(path: Path, _: tuple[int, ...] | None = None) -> Loaded:
    """The trees of a .json or .ubj file, or a TargetError."""
    from relumine.oracle.boosted import of_xgboost

    xgboost = library("xgboost", path, "trees")
    plain = _parsed(path)

    def model() -> object:
        _check_xgboost(plain)
        booster = xgboost.Booster()
        booster.load_model(bytearray(json.dumps(plain).encode()))
        return of_xgboost(booster)

    return _loaded(path, _XGBOOST, model, xgboost.core.XGBoostError)


def load_lightgbm(path: Path, _: tuple[int, ...] | None = None) -> Loaded:
    """The trees of a text file, or a TargetError."""
    from relumine.oracle.boosted import of_lightgbm

    lightgbm = library("lightgbm", path, "trees")
    try:
        text = text_of(path).decode()
    except UnicodeDecodeError as error:
        raise TargetError(f"{path}: expected {_LIGHTGBM}, got no text") from error
    if not text.startswith("tree\n") or f"\n{_END}" not in text or "\nend of parameters" not in text:
        raise TargetError(f"{path}: expected {_LIGHTGBM}, got something else or part of one")
    foreign = lightgbm.basic.LightGBMError
    return _loaded(path, _LIGHTGBM, lambda: of_lightgbm(lightgbm.Booster(model_str=_checked_text(text))), foreign)


def _loaded(path: Path, expected: str, model: Callable[[], object], foreign: type[Exception]) -> Loaded:
    try:
        return Loaded(model())
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RelumineError, foreign) as error:
        reason = one_line(error, named=False)
        raise TargetError(f"{path}: expected {expected}, got a model that cannot be read: {reason}") from error


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        content = text_of(path)
        plain = json.loads(content) if path.suffix.lower() == ".json" else _Binary(content).parsed()
    except (ValueError, IndexError, struct.error, RecursionError) as error:
        raise TargetError(f"{path}: expected {_XGBOOST}, got something else or part of one ({error})") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("learner"), dict):
        raise TargetError(
            f"{path}: expected {_XGBOOST}, got {'JSON' if path.suffix == '.json' else 'data'} of another kind"
        )
    return plain


def _check_xgboost(plain: Mapping[str, Any]) -> None:
    """The numbers by which xgboost finds its way through memory."""
    learner = plain["learner"]
    width = int(learner["learner_model_param"]["num_feature"])
    classes = int(learner["learner_model_param"]["num_class"])
    if not 0 < width < 2**20 or not 0 <= classes < 2**12:
        raise ValueError(f"{width:,} features and {classes:,} classes")
    booster = learner["gradient_booster"]
    if booster["name"] not in ("gbtree", "dart"):
        raise ValueError(f"the booster {booster['name']}, not one of trees")
    model = (booster["gbtree"] if booster["name"] == "dart" else booster)["model"]
    trees, groups = model["trees"], model["tree_info"]
    if not 0 < len(trees) == len(groups) == int(model["gbtree_model_param"]["num_trees"]):
        raise ValueError(f"{len(trees)} trees, where others were declared")
    outputs = max(classes, int(learner["learner_model_param"].get("num_target", 1)), 1)
    if any(not 0 <= int(group) < outputs for group in groups):
        raise ValueError(f"a tree of an output beyond {outputs}")
    starts = [int(start) for start in model.get("iteration_indptr", [0, len(trees)])]
    if starts[0] != 0 or starts[-1] != len(trees) or sorted(starts) != starts:
        raise ValueError("rounds that do not add up to its trees")
    if booster["name"] == "dart" and len(booster["weight_drop"]) != len(trees):
        raise ValueError("weights that do not belong to its trees")
    for tree in trees:
        _check_xgboost_tree(tree, width)


def _check_xgboost_tree(tree: Mapping[str, Any], width: int) -> None:
    nodes = int(tree["tree_param"]["num_nodes"])
    if (
        int(tree["tree_param"]["size_leaf_vector"]) > 1
        or tree.get("categories_nodes")
        or any(tree.get("split_type", ()))
    ):
        raise ValueError("a tree with several outputs or with categories, which are not read here")
    if int(tree["tree_param"]["num_feature"]) != width:
        raise ValueError("a tree of other features")
    for name in _OF_XGBOOST:
        if len(tree[name]) != nodes:
            raise ValueError(f"{len(tree[name])} {name} of {nodes} nodes")
    left, right = (np.asarray(tree[name], dtype=np.int64) for name in ("left_children", "right_children"))
    check_tree(left, right, np.asarray(tree["split_indices"], dtype=np.int64), width)


class _Binary:
    """UBJSON (ubjson.org), as far as XGBoost writes it; no more is read than is there."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def parsed(self) -> Any:
        value = self._value(self._letter(), 0)
        if self._at != len(self._content):
            raise ValueError("more bytes after the end")
        return value

    def _take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._content):
            raise ValueError("it ends too early")
        self._at += count
        return self._content[self._at - count : self._at]

    def _letter(self) -> str:
        return self._take(1).decode("latin-1")

    def _number(self, letter: str) -> Any:
        if letter not in _NUMBERS:
            raise ValueError(f"unknown type {letter!r}")
        form = _NUMBERS[letter]
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _text(self) -> str:
        return self._take(int(self._number(self._letter()))).decode()

    def _value(self, letter: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        if letter in _CONSTANTS:
            return _CONSTANTS[letter]
        if letter in ("S", "C"):
            return self._text() if letter == "S" else self._letter()
        if letter == "{":
            return self._object(depth + 1)
        return self._array(depth + 1) if letter == "[" else self._number(letter)

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._content[self._at : self._at + 1] != b"}":
            name = self._text()
            found[name] = self._value(self._letter(), depth)
        self._at += 1
        return found

    def _array(self, depth: int) -> list[Any]:
        kind = ""
        if self._content[self._at : self._at + 1] == b"$":
            kind = self._take(2)[1:].decode("latin-1")
        if self._content[self._at : self._at + 1] == b"#":
            self._at += 1
            count = int(self._number(self._letter()))
            if kind in _NUMBERS:
                raw = self._take(count * struct.calcsize(_NUMBERS[kind]))
                numbers: list[Any] = np.frombuffer(raw, _NUMBERS[kind]).tolist()
                return numbers
            if kind or not 0 <= count <= len(self._content):
                raise ValueError(f"an array of {count} of {kind!r}")
            return [self._value(self._letter(), depth) for _ in range(count)]
        found = []
        while self._content[self._at : self._at + 1] != b"]":
            found.append(self._value(self._letter(), depth))
        self._at += 1
        return found


def _checked_text(text: str) -> str:
    """The model's text up to its last tree, without the positions of trees."""
    blocks = text.partition(f"\n{_END}")[0].split("\nTree=")
    header = _fields(blocks[0])
    width, classes = int(header["max_feature_idx"]) + 1, int(header["num_tree_per_iteration"])
    if not 0 < width < 2**20 or not 0 < classes < 2**12 or int(header["num_class"]) != classes:
        raise ValueError(f"{width:,} features and {classes:,} classes")
    if len(header["feature_names"].split()) != width or len(header["feature_infos"].split()) != width:
        raise ValueError(f"names or ranges of other features than its {width}")
    if len(blocks) < 2 or (len(blocks) - 1) % classes:
        raise ValueError(f"{len(blocks) - 1} trees for {classes} classes")
    for number, block in enumerate(blocks[1:]):
        if block.split("\n", 1)[0] != str(number):
            raise ValueError("trees out of order")
        _check_tree(_fields(block), width)
    lines = [line for line in blocks[0].split("\n") if not line.startswith("tree_sizes=")]
    return "\nTree=".join(["\n".join(lines), *blocks[1:]]) + f"\n{_END}\n"


def _fields(block: str) -> Mapping[str, str]:
    return dict(line.split("=", 1) for line in block.split("\n") if "=" in line)


def _check_tree(tree: Mapping[str, str], width: int) -> None:
    leaves = int(tree["num_leaves"])
    if int(tree["num_cat"]) or int(tree.get("is_linear", "0")):
        raise ValueError("a tree with categories or linear leaves , which are not read here")
    if leaves < 1:
        raise ValueError(f"a tree of {leaves} leaves")
    sizes = {**dict.fromkeys(_OF_NODES, leaves - 1), **dict.fromkeys(_OF_LEAVES, leaves)}
    numbers = {name: _numbers(tree, name) for name in sizes if leaves > 1 or name in _OF_LEAVES}
    for name, found in numbers.items():
        if len(found) != sizes[name]:
            raise ValueError(f"{len(found)} numbers {name} of {sizes[name]}")
    if leaves > 1:
        _check_splits(numbers, leaves, width)


def _check_splits(numbers: Mapping[str, NDArray[np.float64]], leaves: int, width: int) -> None:
    """Inner nodes are numbered from 0 on, leaves from −1 downwards."""
    left, right, features, kinds = (
        numbers[name].astype(np.int64) for name in ("left_child", "right_child", "split_feature", "decision_type")
    )
    if min(left.min(), right.min()) < -leaves or (kinds & 1).any():
        raise ValueError("a split with a leaf that is not there, or of categories")
    ends = np.full(leaves, -1)
    left, right = (np.concatenate([np.where(side < 0, leaves - 2 - side, side), ends]) for side in (left, right))
    check_tree(left, right, np.concatenate([features, ends]), width)


def _numbers(tree: Mapping[str, str], name: str) -> NDArray[np.float64]:
    return np.array([float(word) for word in tree[name].split()])
