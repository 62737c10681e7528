"""Budgets: rows that each client has asked for, in a file that outlives the server and that several servers may share.

Rows are counted before they are answered, in one statement of SQLite: of clients and servers that ask at once none
gets more than the budget, and a server that is killed has counted what it answered. (The write-ahead log is with the
operating system before the answer is; a power cut may take the last moments of it.)
"""

import math
import sqlite3
import threading
import time
from pathlib import Path

from relumine.errors import BudgetError, MisuseError, StoreError
from relumine.serve.keys import Client
from relumine.text import duration

_TABLE = "CREATE TABLE IF NOT EXISTS used (client TEXT PRIMARY KEY, rows INTEGER NOT NULL, since REAL NOT NULL)"
# One more request of a client: all of its rows are counted, or, beyond the limit, nothing changes. A period that has
# ended (``since`` is when it began) starts again from 0.
_SPEND = """
INSERT INTO used VALUES (:client, :rows, :now) ON CONFLICT (client) DO UPDATE SET
  rows = iif(:now - since >= :period, 0, used.rows) + :rows, since = iif(:now - since >= :period, :now, since)
  WHERE iif(:now - since >= :period, 0, used.rows) + :rows <= :limit
"""
_SECONDS_TO_WAIT = 10.0  # for another server that writes to the same file


class SpentError(BudgetError):
    """A budget that does not cover a request. ``wait``: seconds until it would, None if it never will."""

    def __init__(self, message: str, wait: int | None) -> None:
        super().__init__(message)
        self.wait = wait


class Budgets:
    """Counts rows by client.

    path:   the file, or None: then counts end with the server
    period: seconds after which a client's count starts again; None counts for good
    """

    def __init__(self, path: str | Path | None = None, *, period: float | None = None) -> None:
        if period is not None and not 0 < period < math.inf:
            raise MisuseError(f"period: expected a positive number of seconds, got {period!r}")
        self._path = path
        self._period = math.inf if period is None else period
        self._lock = threading.Lock()
        try:
            self._file = sqlite3.connect(
                path or ":memory:", timeout=_SECONDS_TO_WAIT, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute(_TABLE)
            self._file.execute("UPDATE used SET rows = rows WHERE false")  # a file that cannot be written shows now
            self._file.execute("SELECT client, rows, since FROM used LIMIT 1")
        except sqlite3.Error as error:
            raise MisuseError(
                f"--budget-file {path}: expected a file to count in, got {error}; choose another"
            ) from error

    def spend(self, client: Client, rows: int) -> None:
        """Take rows from a client's budget: all of them, or none and a SpentError."""
        limit = math.inf if client.budget is None else client.budget
        if rows > limit:
            raise SpentError(f"the budget is {limit} rows, and {rows} are asked for at once: ask fewer", None)
        now = time.time()
        question = {"client": client.name, "rows": rows, "now": now, "period": self._period, "limit": limit}
        try:
            with self._lock:
                if self._file.execute(_SPEND, question).rowcount:
                    return
                used, since = self._file.execute(
                    "SELECT rows, since FROM used WHERE client = ?", (client.name,)
                ).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"rows cannot be counted ({error}), and nothing is answered uncounted") from error
        raise self._spent(limit, used, rows, since + self._period - now)

    def _spent(self, limit: float, used: int, rows: int, left: float) -> SpentError:
        spent = f"the budget of {limit} rows is spent: {used} used, {rows} more asked"
        if left == math.inf:
            return SpentError(f"{spent}; it is not renewed", None)
        wait = max(1, math.ceil(left))
        return SpentError(f"{spent}; it is renewed in {duration(wait)}", wait)

    def used(self) -> dict[str, int]:
        """Rows that each client has asked for."""
        with self._lock:
            return dict(self._file.execute("SELECT client, rows FROM used"))

    def close(self) -> None:
        self._file.close()
