"""The run store: every finished row on disk as it comes, so that a killed study goes on where it was."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from relumine.errors import StoreError
from relumine.study.experiment import Experiment, Row

# "rels" in ASCII, in the file's header: no other program's database is taken for a run store and written to.
_APPLICATION = 0x72656C73

_SCHEMA = f"""
BEGIN;
PRAGMA application_id = {_APPLICATION};
CREATE TABLE IF NOT EXISTS rows (
    key TEXT PRIMARY KEY,        -- of the experiment
    failed INTEGER NOT NULL,     -- 1: it raised an error, and is run again when the study is resumed
    row TEXT NOT NULL,           -- JSON, as documented in docs/rows.md
    finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
COMMIT;
"""


class RunStore:
    """An SQLite file of rows, one per experiment. One process at a time may hold it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=1)
            self._refuse_foreign_file()
            # The lock is held until the file is closed: two runs of one study would do everything twice.
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            advice = "another run is using it" if "locked" in str(error) else "choose another folder"
            raise StoreError(f"cannot open the run store {self.path}: {error}; {advice}") from error

    def _refuse_foreign_file(self) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            self._db.close()
            raise StoreError(f"{self.path} is a database of another program; choose another folder")

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let others have it."""
        self._db.close()

    def keep(self, row: Row) -> None:
        """Write a row; it takes the place of an earlier one of the same experiment."""
        values = (row.experiment.key, row.failed, row.to_json())
        self._execute("INSERT OR REPLACE INTO rows (key, failed, row) VALUES (?, ?, ?)", values)

    def rows(self, experiments: Iterable[Experiment]) -> list[Row]:
        """The rows of those experiments that have one, in the order of the experiments."""
        known = dict(self._execute("SELECT key, row FROM rows"))
        return [Row.from_json(known[e.key]) for e in experiments if e.key in known]

    def finished(self) -> set[str]:
        """Keys of the experiments that need not be run again."""
        return {key for (key,) in self._execute("SELECT key FROM rows WHERE NOT failed")}

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot use the run store {self.path}: {error}; finished rows are kept") from error
