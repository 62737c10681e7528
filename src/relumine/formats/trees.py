"""What files of tree ensembles have in common: a bounded size, and walks that stay inside and end."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relumine.errors import TargetError

Whole = NDArray[np.int64]

# Ten thousand trees of a thousand leaves take a tenth of this in the wordiest of these formats.
_LARGEST_FILE = 2**31


def text_of(path: Path) -> bytes:
    """The bytes of a file that is not too large to be parsed in memory."""
    size = path.stat().st_size
    if size > _LARGEST_FILE:
        raise TargetError(f"{path}: expected a model of at most 2 GiB, got {size:,} bytes")
    return path.read_bytes()


def check_tree(left: Whole, right: Whole, features: Whole, width: int) -> None:
    """A ValueError unless every walk from the first node ends, inside the tree, and splits only ``width`` features.

    left, right: children of every node, negative for leaves; nodes that no walk reaches do not matter
    """
    reached = np.zeros(len(left), dtype=bool)
    level = np.zeros(1, dtype=np.int64)
    while len(level):
        if ((level < 0) | (level >= len(left))).any() or reached[level].any() or len(np.unique(level)) < len(level):
            raise ValueError("nodes that make no tree")
        reached[level] = True
        inner = level[left[level] >= 0]
        if ((features[inner] < 0) | (features[inner] >= width)).any():
            raise ValueError(f"a split of a feature that is none of the {width}")
        level = np.concatenate([left[inner], right[inner]])
