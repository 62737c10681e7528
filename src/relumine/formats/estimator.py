"""Reading .skops files: scikit-learn models without pickles, of scikit-learn's own types only."""

import io
import zipfile
from math import prod
from pathlib import Path

import numpy as np

from relumine.errors import TargetError
from relumine.formats.container import unpacked
from relumine.formats.loaded import Loaded

# skops trusts scikit-learn's estimators already; fitted MLPs hold their optimiser besides.
_OPTIMISERS = {f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer")}


def load_skops(path: Path) -> Loaded:
    """The estimator of a .skops file, or a TargetError."""
    import skops.io

    parts = unpacked(path, "a scikit-learn model saved by skops")
    if "schema.json" not in parts:
        raise TargetError(f"{path}: expected a scikit-learn model saved by skops, got an archive of something else")
    for name, content in parts.items():
        if name.endswith(".npy"):
            _check_array(path, name, content)
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as target:
        for name, content in parts.items():
            target.writestr(name, content)
    types = skops.io.get_untrusted_types(data=copy.getvalue())
    strange = [name for name in types if name not in _OPTIMISERS]
    if strange:
        raise TargetError(
            f"{path}: expected scikit-learn's own types only, got {', '.join(strange)}; "
            "write a factory that loads it: package.module:factory"
        )
    return Loaded(skops.io.loads(copy.getvalue(), trusted=types))


def _check_array(path: Path, name: str, content: bytes) -> None:
    """The header of a .npy part must declare plain numbers, as many as there are."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except ValueError as error:
        raise TargetError(f"{path}: its part {name!r} is no array ({error})") from error
    there = len(content) - stream.tell()
    if dtype.hasobject or min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != there:
        raise TargetError(
            f"{path}: its part {name!r} declares an array of shape {shape} and type {dtype}, {there:,} bytes are there"
        )
