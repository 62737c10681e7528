"""Readers of the files that MNIST and CIFAR10 are published in: bytes in, uint8 arrays out."""

import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relumine.errors import DataError

Bytes = NDArray[np.uint8]

ENDINGS = ("", ".gz", ".xz")
_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
# What a pickled array of bytes names, in numpy's spelling of then and of now.
_NAMES: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, *_: text.encode("latin-1"),
}
_DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error, struct.error, tarfile.TarError)


def content(path: Path, most: int = 2**31) -> bytes:
    """What the file holds, at most ``most`` bytes; unpacked if its name ends in .gz or .xz."""
    opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    try:
        with opened(path, "rb") as stream:
            data: bytes = stream.read(most + 1)
    except _DAMAGED as error:
        raise DataError(f"{path}: cannot be read ({error}); the file is truncated or damaged, replace it") from error
    if len(data) > most:
        raise DataError(f"{path}: expected at most {most / 2**30:.0f} GiB, got more; save fewer inputs")
    return data


def archived(path: Path, names: set[str]) -> dict[str, bytes]:
    """The named members of a .tar.gz, whatever folder they are in. Nothing is unpacked to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if name in names else None
                if stream is not None:
                    found[name] = stream.read()
    except _DAMAGED as error:
        raise DataError(f"cannot read {path}: {error}; the archive is truncated or damaged, replace it") from error
    missing = names - found.keys()
    if missing:
        raise DataError(
            f"{path}: expected the members {', '.join(sorted(names))}, missing {', '.join(sorted(missing))}"
        )
    return found


def idx(data: bytes, name: str) -> Bytes:
    """The array of unsigned bytes in an idx file: 0, 0, 8, number of axes, their lengths, the bytes."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{name}: expected an idx file of unsigned bytes, got one that begins with {data[:4].hex()!r}")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{name}: the idx header ends after {len(data)} bytes, expected {start}; the file is truncated")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    expected = start + int(np.prod(shape, dtype=np.uint64))
    if len(data) != expected:
        raise DataError(f"{name}: expected {expected} bytes for shape {shape}, got {len(data)}; the file is damaged")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def cifar_binary(data: bytes, name: str) -> tuple[Bytes, Bytes]:
    """Images n×3×32×32 and labels n from records of a label and the red, green and blue planes."""
    if not data or len(data) % (1 + _PIXELS):
        raise DataError(
            f"{name}: expected records of {1 + _PIXELS} bytes, got {len(data)} bytes; the file is truncated"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:].reshape(-1, *_IMAGE), records[:, 0]


def cifar_python(data: bytes, name: str) -> tuple[Bytes, Bytes]:
    """Images n×3×32×32 and labels n from a batch of the python version: a pickle, of which nothing is executed."""
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images, labels = fields["data"].reshape(-1, *_IMAGE), np.array(fields["labels"], dtype=np.uint8)
        if images.dtype != np.uint8:
            raise ValueError(f"expected bytes, got {images.dtype}")
    except Exception as error:  # a damaged pickle can raise almost anything
        raise DataError(f"{name}: not a CIFAR batch of the python version ({type(error).__name__}: {error})") from error
    if labels.shape != (len(images),):
        raise DataError(f"{name}: expected one label for each of {len(images)} images, got {labels.shape}")
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """Builds dicts, lists, numbers, bytes and arrays of them; every other name in the pickle is refused."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return _NAMES[module, name]
