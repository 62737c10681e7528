"""The ledger: every paid answer on disk before it is used, so that a killed run pays for nothing twice."""

import hashlib
import json
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relumine.errors import LedgerError
from relumine.oracle.base import Answer, Array, Offer

# A power cut may lose the answers of this many seconds, which are then asked again; it never harms the file.
_SECONDS_BETWEEN_FLUSHES = 1.0

# Fields of an offer that ledgers written before them do not know.
_LATER = ("explained", "contributions", "tokens")

# Mostly nothing is on file, which one look tells of many questions; SQLite takes 999 of them in its older versions.
_LOOKED_UP_AT_ONCE = 500

# "relu" in ASCII, in the file's header: no other program's database is taken for a ledger and written to.
_APPLICATION = 0x72656C75

# A commit is with the operating system when it returns, so that kill -9 takes nothing of it. The disk itself is waited
# for once a second (_SECONDS_BETWEEN_FLUSHES), and not at all while a file is made that holds nothing yet. A small
# cache hands large answers on while they are still in the processor's, which saves a third of the time.
_SETTINGS = """
PRAGMA synchronous = OFF;
PRAGMA page_size = 16384;
PRAGMA journal_mode = WAL;
PRAGMA wal_autocheckpoint = 0;
PRAGMA cache_size = 64;
"""

_SCHEMA = f"""
BEGIN;
PRAGMA application_id = {_APPLICATION};
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY,
    question BLOB NOT NULL,      -- SHA-256 of the input and of whether gradients were asked
    occurrence INTEGER NOT NULL, -- 0 for the first time this question was asked, 1 for the second, ...
    phase TEXT NOT NULL,
    asked_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    input BLOB NOT NULL,         -- float64 rows, as all numbers here
    value BLOB NOT NULL,
    gradient BLOB,
    UNIQUE (question, occurrence)
);
COMMIT;
PRAGMA synchronous = NORMAL;
"""


class Question(NamedTuple):
    """One row about to be asked: its digest, and how often this run has asked it before."""

    digest: bytes
    occurrence: int


class Ledger:
    """An append-only SQLite file of paid answers.

    A run that starts again with the same seed asks the same questions in the same order. The k-th time a question
    is asked within a run it gets the k-th answer on file, so that random answers are never replayed as if fresh.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._refuse_foreign_file()
            self._db.executescript(_SETTINGS + _SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"cannot open the ledger {self.path}: {error}; choose another run folder") from error
        self._flushed = time.monotonic()
        self._drop = weakref.finalize(self, _close_aside, self._db)
        self._drop.atexit = False

    def _refuse_foreign_file(self) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            self._db.close()
            raise LedgerError(f"{self.path} is a database of another program; choose another run folder")

    def belongs_to(self, offer: Offer, **facts: str) -> None:
        """Bind the ledger to a target's offer (and any further facts), or refuse it as another's."""
        mine = {"offer": json.dumps(_plain(offer), sort_keys=True), **facts}
        stored = dict(self._read("SELECT key, value FROM about"))
        for key, value in mine.items():
            if stored.get(key, value) != value:
                raise LedgerError(
                    f"the ledger {self.path} was written with {key} = {stored[key]}, this run has {value}; "
                    "use the folder of that run with its settings, or an empty one"
                )
        self._write("INSERT OR IGNORE INTO about VALUES (?, ?)", list(mine.items()))

    def find(self, questions: list[Question], offer: Offer) -> list[Answer | None]:
        """For each question its answer on file, or None."""
        on_file: set[Question] = set()
        for i in range(0, len(questions), _LOOKED_UP_AT_ONCE):
            digests = tuple(question.digest for question in questions[i : i + _LOOKED_UP_AT_ONCE])
            places = ", ".join("?" * len(digests))
            rows = self._read(f"SELECT question, occurrence FROM answers WHERE question IN ({places})", digests)
            on_file |= {Question(*row) for row in rows}
        return [self._answer(question, offer) if question in on_file else None for question in questions]

    def nothing_of(self, questions: list[Question]) -> list[Answer | None]:
        """None for each, of a ledger that is in order: paid answers must be kept."""
        self._read("SELECT 1")
        return [None] * len(questions)

    def _answer(self, question: Question, offer: Offer) -> Answer:
        ((value, gradient),) = self._read(
            "SELECT value, gradient FROM answers WHERE question = ? AND occurrence = ?",
            (question.digest, question.occurrence),
        )
        try:
            values = np.frombuffer(value).reshape(1, offer.outputs)
            shape = (1, offer.gradient_rows, offer.dimension)
            return Answer(values, None if gradient is None else np.frombuffer(gradient).reshape(shape))
        except (TypeError, ValueError) as error:
            raise LedgerError(f"the ledger {self.path} is damaged: {error}; use an empty run folder") from error

    def append(self, questions: list[Question], inputs: Array, answer: Answer, phase: str) -> None:
        """Write answers, all or none, before anybody uses them."""
        maps = [None] * len(questions) if answer.gradients is None else map(np.ascontiguousarray, answer.gradients)
        numbers = zip(map(np.ascontiguousarray, inputs), map(np.ascontiguousarray, answer.values), maps, strict=True)
        rows = [(one.digest, one.occurrence, phase, *row) for one, row in zip(questions, numbers, strict=True)]
        self._write(
            "INSERT INTO answers (question, occurrence, phase, input, value, gradient) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        if time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self._read("PRAGMA wal_checkpoint(PASSIVE)")
            self._flushed = time.monotonic()

    def __len__(self) -> int:
        return int(self._read("SELECT COUNT(*) FROM answers")[0][0])

    def close(self) -> None:
        """Close the file; a later Ledger on the same path goes on from there."""
        self._drop.detach()
        self._db.close()

    def _read(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise LedgerError(f"cannot read the ledger {self.path}: {error}") from error

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(statement, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise LedgerError(f"cannot write the ledger {self.path}: {error}; what was paid before is kept") from error


def _close_aside(db: sqlite3.Connection) -> None:
    """Close the file of a ledger that nobody holds any more: what its log holds is moved into place, aside."""
    threading.Thread(target=db.close, name="relumine-ledger").start()


class Asked:
    """Turns rows into Questions, counting how often each was asked in this run."""

    def __init__(self) -> None:
        self._times: Counter[bytes] = Counter()

    def questions(self, inputs: Array, *, gradients: bool) -> list[Question]:
        """One Question per row; call it once per asking."""
        result = []
        for row in inputs:
            digest = hashlib.sha256(row.tobytes() + bytes([gradients])).digest()
            result.append(Question(digest, self._times[digest]))
            self._times[digest] += 1
        return result

    def forget(self, questions: list[Question]) -> None:
        """Take back an asking whose answers nobody got."""
        self._times.subtract(question.digest for question in questions)


def _plain(offer: Offer) -> dict[str, object]:
    """The offer's fields; those that older ledgers do not know are left out where they say nothing."""
    return {name: value for name, value in asdict(offer).items() if name not in _LATER or value}
