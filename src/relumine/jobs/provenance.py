"""Where a result comes from: machine, time, commit and versions."""

import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from relumine import __version__
from relumine.device import device


@dataclass(frozen=True)
class Provenance:
    """Where, when and with what a row was made: all that may differ when the same experiment is run again."""

    seconds: float
    host: str
    finished: str
    commit: str | None
    versions: Mapping[str, str]


def provenance(seconds: float) -> Provenance:
    """Here and now."""
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return Provenance(round(seconds, 2), socket.gethostname(), finished, _commit(), versions())


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Of what results depend on."""
    libraries = {name: version(name) for name in ("torch", "numpy")}
    gpu = {} if (where := device()) == "cpu" else {"device": where}
    return {"relumine": __version__, **libraries, "python": platform.python_version(), **gpu}


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """The git commit of the checkout that this file is in, "-dirty" if it was changed since; None elsewhere."""
    here = Path(__file__).resolve()
    if not (here.parents[3] / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
