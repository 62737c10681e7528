"""Zip archives that nobody vouches for: read into memory within limits, before anybody else parses them."""

import io
import re
import stat
import zipfile
from pathlib import Path, PurePosixPath

from relumine.errors import TargetError, translated

_MOST_PARTS = 20_000  # as many as operations; a large network has some hundred weights
# Weights hardly compress, text does: more than this, unpacked, is a bomb.
_ALLOWANCE = 2**28
_RATIO = 8
_LARGEST = 2**33  # 8 GiB, what an ordinary machine can hold

_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def unpacked(path: Path, expected: str) -> dict[str, bytes]:
    """Every part of the archive by its name. ``expected`` says what the file should be."""
    if not zipfile.is_zipfile(path):
        raise TargetError(f"{path}: expected {expected}, got {_what_it_is(path)}")
    damaged = f"{path}: expected {expected}, got a damaged archive ("
    with translated(TargetError, damaged, ")"), zipfile.ZipFile(path) as archive:
        parts = [part for part in archive.infolist() if not part.is_dir()]
        _check(path, parts)
        return {part.filename: _content(path, archive, part) for part in parts}


def packed(parts: dict[str, bytes]) -> bytes:
    """An archive of what was looked at, and nothing else."""
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as target:
        for name, content in parts.items():
            target.writestr(name, content)
    return copy.getvalue()


def without_root(parts: dict[str, bytes]) -> dict[str, bytes]:
    """torch puts everything into one folder, whose name does not matter."""
    return {name.partition("/")[2]: content for name, content in parts.items()}


def _check(path: Path, parts: list[zipfile.ZipInfo]) -> None:
    names = {part.filename for part in parts}
    if len(parts) > _MOST_PARTS or len(names) < len(parts):
        what = f"more than {_MOST_PARTS:,} parts" if len(parts) > _MOST_PARTS else "two parts of the same name"
        raise TargetError(f"{path}: the archive has {what}; it was not written by the usual tools")
    total = sum(part.file_size for part in parts)
    limit = min(_LARGEST, _ALLOWANCE + _RATIO * path.stat().st_size)
    if total > limit:
        raise TargetError(
            f"{path}: {path.stat().st_size:,} bytes that unpack to {total:,}, at most {limit:,} were expected; this "
            "is a zip bomb, or save the model without compression"
        )
    for part in parts:
        _check_part(path, part)


def _check_part(path: Path, part: zipfile.ZipInfo) -> None:
    strange = PurePosixPath(part.filename)
    if strange.is_absolute() or ".." in strange.parts or re.search(r"[\\\0:]", part.filename):
        raise TargetError(f"{path}: its part {part.filename!r} points outside of the archive")
    if stat.S_ISLNK(part.external_attr >> 16):
        raise TargetError(f"{path}: its part {part.filename!r} is a link; archives of models have none")
    if part.flag_bits & 1 or part.compress_type not in _KINDS:
        raise TargetError(f"{path}: its part {part.filename!r} is encrypted or packed in an unusual way")


def _content(path: Path, archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bytes:
    """At most as many bytes as were declared, however many come out."""
    with archive.open(part) as stream:
        content = stream.read(part.file_size) if part.file_size else b""
        more = stream.read(1)
    if len(content) != part.file_size or more:
        raise TargetError(f"{path}: its part {part.filename!r} has not the declared size of {part.file_size:,} bytes")
    return content


def _what_it_is(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        return "an empty file"
    if start[:1] == b"\x80":
        return (
            "what torch.save or pickle writes: it is pickled, and pickles may run any code when they are loaded; save "
            "the model with torch.export.save (.pt2), or its state dict with safetensors (and --factory)"
        )
    return "part of an archive" if start[:2] == b"PK" else f"something else (it begins with {start.hex()})"
