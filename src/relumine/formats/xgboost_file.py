"""Reading XGBoost's own files, JSON and UBJSON: parsed and checked here, then given to xgboost as plain JSON.

xgboost's reader trusts a tree's arrays: a child beyond the last node would be read beyond its memory. So every tree is
looked at before xgboost sees the model.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relumine.errors import RelumineError, TargetError
from relumine.formats.loaded import Loaded, library
from relumine.formats.trees import check_tree, text_of
from relumine.text import one_line

_EXPECTED = "an XGBoost model saved with Booster.save_model (.json, .ubj)"

# What a tree has one of per node.
_OF_NODES = ("left_children", "right_children", "split_indices", "split_conditions", "default_left", "base_weights")

# One number of each type of UBJSON, by its letter.
_NUMBERS = {"i": ">b", "U": ">B", "I": ">h", "u": ">H", "l": ">i", "m": ">I", "L": ">q", "d": ">f", "D": ">d"}
_CONSTANTS = {"Z": None, "T": True, "F": False}
_DEEPEST = 32  # XGBoost's own files are some ten levels deep


def load_xgboost(path: Path, _: tuple[int, ...] | None = None) -> Loaded:
    """The trees of a .json or .ubj file, or a TargetError."""
    from relumine.oracle.boosted import of_xgboost

    xgboost = library("xgboost", path, "trees")
    plain = _parsed(path)
    try:
        _check(plain)
        booster = xgboost.Booster()
        booster.load_model(bytearray(json.dumps(plain).encode()))
        return Loaded(of_xgboost(booster))
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        xgboost.core.XGBoostError,
        RelumineError,
    ) as error:
        reason = one_line(error, named=False)
        raise TargetError(f"{path}: expected {_EXPECTED}, got a model that cannot be read: {reason}") from error


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        content = text_of(path)
        plain = json.loads(content) if path.suffix.lower() == ".json" else _Binary(content).parsed()
    except (ValueError, IndexError, struct.error, RecursionError) as error:
        raise TargetError(f"{path}: expected {_EXPECTED}, got something else or part of one ({error})") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("learner"), dict):
        raise TargetError(
            f"{path}: expected {_EXPECTED}, got {'JSON' if path.suffix == '.json' else 'data'} of another kind"
        )
    return plain


def _check(plain: Mapping[str, Any]) -> None:
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
        _check_tree(tree, width)


def _check_tree(tree: Mapping[str, Any], width: int) -> None:
    nodes = int(tree["tree_param"]["num_nodes"])
    if (
        int(tree["tree_param"]["size_leaf_vector"]) > 1
        or tree.get("categories_nodes")
        or any(tree.get("split_type", ()))
    ):
        raise ValueError("a tree with several outputs or with categories, which are not read here")
    if int(tree["tree_param"]["num_feature"]) != width:
        raise ValueError("a tree of other features")
    for name in _OF_NODES:
        if len(tree[name]) != nodes:
            raise ValueError(f"{len(tree[name])} {name} of {nodes} nodes")
    left, right = (np.asarray(tree[name], dtype=np.int64) for name in ("left_children", "right_children"))
    check_tree(left, right, np.asarray(tree["split_indices"], dtype=np.int64), width)


class _Binary:
    """UBJSON (ubjson.org), as far as XGBoost writes it; no more is read than is there."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def parsed(self) -> Any:
        """The value that the bytes say."""
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
