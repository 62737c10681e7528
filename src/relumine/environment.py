"""This process's surroundings: environment variables, the cache folder, and files that appear whole or not at all."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """These variables, for what is called and for processes that are started inside."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def cache_folder() -> Path:
    """``RELUMINE_CACHE`` if that is set, else this platform's place for caches."""
    chosen = os.environ.get("RELUMINE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "relumine"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "relumine"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relumine"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not made by tempfile, whose files nobody else may read: what comes of it is a file like any other.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
