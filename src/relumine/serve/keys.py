"""Keys: which clients may ask, and how many rows.

The key file is TOML, a table per key:

    [alice]
    token = "a long random text"
    budget = 1000                   # rows; without it the server's --budget, or no limit
"""

import hashlib
import hmac
import threading
import tomllib
from dataclasses import dataclass
from pathlib import Path

from relumine.errors import BudgetError, MisuseError

_SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class Key:
    """A name, the digest of its token, and the rows it may ask for."""

    name: str
    digest: bytes
    budget: int | None = None

    def __repr__(self) -> str:
        return f"Key({self.name!r}, budget={self.budget})"


class Keys:
    """Tells keys by their tokens and counts what each has used. Without keys everybody may ask, as one."""

    def __init__(self, keys: list[Key], *, budget: int | None = None) -> None:
        self._keys = keys
        self._nobody = Key("", b"", budget)
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def are_needed(self) -> bool:
        """Whether a request needs a token."""
        return bool(self._keys)

    def who(self, authorization: str | None) -> Key | None:
        """The key whose token is in an Authorization header ("Bearer …"), or None."""
        if not self._keys:
            return self._nobody
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = _digest(token.strip())
        # Every key is compared, whichever fits: the time taken tells nothing.
        fitting = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        return fitting[0] if fitting else None

    def spend(self, key: Key, rows: int) -> None:
        """Take rows from a key's budget: all of them, or none and a BudgetError."""
        with self._lock:
            used = self._used.get(key.name, 0)
            if key.budget is not None and used + rows > key.budget:
                raise BudgetError(f"the budget of {key.budget} rows is spent: {used} used, {rows} more asked")
            self._used[key.name] = used + rows

    def used(self) -> dict[str, int]:
        """Rows that each key has asked for."""
        with self._lock:
            return dict(self._used)


def read_keys(path: Path | None, *, budget: int | None = None) -> Keys:
    """The keys of a file, or a MisuseError that says what is wrong with it, without showing a token."""
    if path is None:
        return Keys([], budget=budget)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MisuseError(f"--key-file {path}: expected TOML, a table per key, got {type(error).__name__}") from None
    keys = [_key(path, name, table, budget) for name, table in tables.items()]
    if not keys:
        raise MisuseError(f"--key-file {path}: expected at least one key, got none")
    if len({key.digest for key in keys}) < len(keys):
        raise MisuseError(f"--key-file {path}: expected a token of its own for every key, got one twice")
    return Keys(keys)


def _key(path: Path, name: str, table: object, budget: int | None) -> Key:
    where = f"--key-file {path}: [{name}]"
    if not isinstance(table, dict) or not set(table) <= {"token", "budget"}:
        raise MisuseError(f"{where}: expected a table with token = … and perhaps budget = …")
    token, own = table.get("token"), table.get("budget", budget)
    if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN or not token.isascii() or token != token.strip():
        raise MisuseError(f"{where}: expected a token of at least {_SHORTEST_TOKEN} plain characters")
    if own is not None and (isinstance(own, bool) or not isinstance(own, int) or own < 1):
        raise MisuseError(f"{where}: expected a budget of at least 1 row, got {own!r}")
    return Key(name, _digest(token), own)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", errors="surrogateescape")).digest()
