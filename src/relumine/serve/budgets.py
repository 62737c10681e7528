"""Budgets: rows that each client has asked for, in a file that outlives the server and that several servers may share.

Rows are counted before they are answered, in one statement of SQLite: of clients and servers that ask at once none
gets more than the budget, and a server that is killed has counted what it answered. (The write-ahead log is with the
operating system before the answer is; a power cut may take the last moments of it.) Of a large budget a hundredth is
counted ahead, so that few requests write: a server that is killed takes what is left of that along.
"""

import math
import sqlite3
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
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
_GIVE_BACK = "UPDATE used SET rows = rows - :rows WHERE client = :client AND since = :since"
# Of a budget this part is counted ahead, and no more rows: a kill loses a client no more than a hundredth of it, and a
# request in so many writes.
_PART, _MOST_AHEAD = 100, 100
# So many clients' rows are counted ahead, the last ones to ask: strangers must not fill the memory.
_MOST_CLIENTS = 10_000
_SECONDS_TO_WAIT = 10.0  # for another server that writes to the same file


class SpentError(BudgetError):
    """A budget that does not cover a request. ``wait``: seconds until it would, None if it never will."""

    def __init__(self, message: str, wait: int | None) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass
class _Ahead:
    """Rows that are counted in the file and not asked for yet, of the period that began at ``since``."""

    rows: int
    since: float


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
        self._ahead: OrderedDict[str, _Ahead] = OrderedDict()
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
        try:
            with self._lock:
                ahead = self._ahead.get(client.name)
                if ahead is not None and now - ahead.since >= self._period:
                    ahead = None
                if ahead is not None and ahead.rows >= rows:
                    ahead.rows -= rows
                    return
                needed = rows - (ahead.rows if ahead else 0)
                further = _MOST_AHEAD if client.budget is None else min(client.budget // _PART, _MOST_AHEAD)
                if self._counted(client.name, needed, further, now, limit):
                    return
                used, since = self._so_far(client.name)
        except sqlite3.Error as error:
            raise StoreError(f"rows cannot be counted ({error}), and nothing is answered uncounted") from error
        raise self._spent(limit, used - (rows - needed), rows, since + self._period - now)

    def _counted(self, name: str, needed: int, further: int, now: float, limit: float) -> bool:
        """Whether the file counts the rows that are needed; with further ones ahead, if the budget has them."""
        for ahead in sorted({further, 0}, reverse=True):
            question = {"client": name, "rows": needed + ahead, "now": now, "period": self._period, "limit": limit}
            if self._file.execute(_SPEND, question).rowcount:
                self._keep(name, _Ahead(ahead, self._so_far(name)[1]))
                return True
        return False

    def _so_far(self, name: str) -> tuple[int, float]:
        """Rows that the file counts, and when the period began."""
        used, since = self._file.execute("SELECT rows, since FROM used WHERE client = ?", (name,)).fetchone()
        return used, since

    def _keep(self, name: str, ahead: _Ahead) -> None:
        self._ahead[name] = ahead
        self._ahead.move_to_end(name)
        if len(self._ahead) > _MOST_CLIENTS:
            self._give_back(*self._ahead.popitem(last=False))

    def _give_back(self, name: str, ahead: _Ahead) -> None:
        if ahead.rows:
            self._file.execute(_GIVE_BACK, {"client": name, "rows": ahead.rows, "since": ahead.since})

    def _spent(self, limit: float, used: int, rows: int, left: float) -> SpentError:
        spent = f"the budget of {limit} rows is spent: {used} used, {rows} more asked"
        if left == math.inf:
            return SpentError(f"{spent}; it is not renewed", None)
        wait = max(1, math.ceil(left))
        return SpentError(f"{spent}; it is renewed in {duration(wait)}", wait)

    def used(self) -> dict[str, int]:
        """Rows that each client has asked for, as far as this server knows."""
        with self._lock:
            counted: dict[str, int] = dict(self._file.execute("SELECT client, rows FROM used"))
            return {name: rows - self._ahead.get(name, _Ahead(0, 0.0)).rows for name, rows in counted.items()}

    def close(self) -> None:
        """Give back what nobody asked for, and close the file."""
        with self._lock:
            while self._ahead:
                self._give_back(*self._ahead.popitem())
            self._file.close()
