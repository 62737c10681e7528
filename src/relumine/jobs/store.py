"""Stores: every finished piece of work on disk as it comes, so that a killed run goes on where it was."""

import sqlite3
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from relumine.errors import StoreError

_Record = TypeVar("_Record")

_SCHEMA = """
BEGIN;
PRAGMA application_id = {application};
CREATE TABLE IF NOT EXISTS rows (
    key TEXT PRIMARY KEY,        -- of the work
    failed INTEGER NOT NULL,     -- 1: it raised an error, and is done again when the run is resumed
    row TEXT NOT NULL,           -- JSON; rows of studies are documented in docs/rows.md
    finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT NOT NULL);
COMMIT;
"""


class Store:
    """An SQLite file of rows by key, and of notes about all of them. One process at a time may hold it."""

    # Written in the file's header: no other program's database is taken for a store and written to.
    application: ClassVar[int]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=1)
            self._refuse_foreign_file()
            # The lock is held until the file is closed: two runs in one store would do everything twice.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA.format(application=self.application))
        except (sqlite3.Error, OSError) as error:
            advice = "another run is using it" if "locked" in str(error) else "choose another folder"
            raise StoreError(f"cannot open the run store {self.path}: {error}; {advice}") from error

    def _refuse_foreign_file(self) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and application != self.application:
            self._db.close()
            raise StoreError(f"{self.path} is a database of another program; choose another folder")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let others have it."""
        self._db.close()

    def put(self, key: str, text: str, *, failed: bool) -> None:
        """Write a row; it takes the place of an earlier one of the same key."""
        self._execute("INSERT OR REPLACE INTO rows (key, failed, row) VALUES (?, ?, ?)", (key, failed, text))

    def texts(self) -> dict[str, str]:
        """All rows by key."""
        return dict(self._execute("SELECT key, row FROM rows"))

    def finished(self) -> set[str]:
        """Keys of the work that need not be done again."""
        return {key for (key,) in self._execute("SELECT key FROM rows WHERE NOT failed")}

    def note(self, name: str, text: str) -> None:
        """Write a note; it takes the place of an earlier one of that name."""
        self._execute("INSERT OR REPLACE INTO notes (name, text) VALUES (?, ?)", (name, text))

    def noted(self, name: str) -> str | None:
        """The note of that name, if there is one."""
        found = self._execute("SELECT text FROM notes WHERE name = ?", (name,))
        return str(found[0][0]) if found else None

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot use the run store {self.path}: {error}; finished rows are kept") from error


def read(kind: type[_Record], plain: Any) -> _Record:
    """The record that ``asdict`` and JSON made plain, by the types of its fields."""
    return cast(_Record, _as(kind, plain))


def _as(hint: Any, plain: Any) -> Any:
    """Records and tuples from dictionaries and lists; numbers and words as they are."""
    if plain is not None and get_origin(hint) is UnionType:  # something, or None
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        return tuple(_as(get_args(hint)[0], one) for one in plain)
    if not is_dataclass(hint) or plain is None:
        return plain
    hints = get_type_hints(hint)
    return hint(**{name: _as(hints[name], value) for name, value in plain.items()})  # type: ignore[operator]
