"""Reading LightGBM's text files: every tree is checked here, then lightgbm reads the text.

lightgbm's reader trusts a tree's arrays, as xgboost's does, and the byte positions that the header gives for trees.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relumine.errors import RelumineError, TargetError
from relumine.formats.loaded import Loaded, library
from relumine.formats.trees import check_tree, text_of
from relumine.text import one_line

_EXPECTED = "a LightGBM model saved with Booster.save_model (text)"
_END = "end of trees"
# One number per inner node, and one per leaf.
_OF_NODES = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_OF_LEAVES = ("leaf_value",)


def load_lightgbm(path: Path, _: tuple[int, ...] | None = None) -> Loaded:
    """The trees of a text file, or a TargetError."""
    from relumine.oracle.boosted import of_lightgbm

    lightgbm = library("lightgbm", path, "trees")
    try:
        text = text_of(path).decode()
    except UnicodeDecodeError as error:
        raise TargetError(f"{path}: expected {_EXPECTED}, got no text") from error
    if not text.startswith("tree\n") or f"\n{_END}" not in text or "\nend of parameters" not in text:
        raise TargetError(f"{path}: expected {_EXPECTED}, got something else or part of one")
    try:
        return Loaded(of_lightgbm(lightgbm.Booster(model_str=_checked(text))))
    except (KeyError, ValueError, IndexError, lightgbm.basic.LightGBMError, RelumineError) as error:
        reason = one_line(error, named=False)
        raise TargetError(f"{path}: expected {_EXPECTED}, got a model that cannot be read: {reason}") from error


def _checked(text: str) -> str:
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
