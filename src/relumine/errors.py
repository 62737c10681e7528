"""Every error relumine raises, in one tree.

RelumineError
├── MisuseError            the call cannot work as written: shapes, options, an offer that a method cannot use
│   └── DivergedError          a student's fit leads nowhere, however slowly it learns
├── TargetError            a model file or factory cannot be loaded
├── DataError              a dataset cannot be found, downloaded or read
├── OracleError            the oracle broke its word
│   ├── BadAnswerError         non-finite or wrong-shaped numbers, or not what the offer promised
│   │   └── ChangedError           the same question gets another answer than before: the model was exchanged
│   └── OracleFailedError      the oracle raised
│       ├── AccessError            an endpoint denies access: the run is over
│       ├── QuotaError             an endpoint's quota is used up, for longer than one would wait
│       └── RefusedError           a defence refuses some of the rows asked: none was answered
├── LedgerError            a ledger belongs to another target, or cannot be read or written
├── StoreError             a run store is in use, or cannot be read or written
└── BudgetError            the next question would exceed the budget (it was not asked)

Messages say what was expected, what was got, and what to do. ``translated`` makes errors of other libraries ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from relumine.text import one_line


class RelumineError(Exception):
    """Base of all errors that relumine raises on purpose."""


class MisuseError(RelumineError):
    """The call cannot work as written."""


class DivergedError(MisuseError):
    """Fitting a student leads nowhere, however slowly it learns."""


class TargetError(RelumineError):
    """A model file or factory cannot be loaded."""


class DataError(RelumineError):
    """A dataset cannot be found, downloaded or read."""


class OracleError(RelumineError):
    """The oracle broke its word."""


class BadAnswerError(OracleError):
    """An answer is not finite, has the wrong shape, or is not what the offer promised."""


class OracleFailedError(OracleError):
    """The oracle raised an exception of its own."""


class ChangedError(BadAnswerError):
    """The target is not the one that answered before."""


class AccessError(OracleFailedError):
    """An endpoint denies access."""


class QuotaError(OracleFailedError):
    """An endpoint's quota is used up."""


class RefusedError(OracleFailedError):
    """A defence refuses ``rows`` (positions in the request); none of the request was answered."""

    def __init__(self, message: str, *, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


class LedgerError(RelumineError):
    """A ledger belongs to another target, or cannot be read or written."""


class StoreError(RelumineError):
    """A run store is in use, or cannot be read or written."""


class BudgetError(RelumineError):
    """The next question would exceed the budget; it was not asked."""


@contextmanager
def translated(
    kind: type[RelumineError], words: str, end: str = "", *, file: object = None, named: bool = True
) -> Iterator[None]:
    """Errors of other libraries as one of ours, in a line behind these words; ours pass, behind a ``file``'s name."""
    name = "" if file is None else f"{file}: "
    try:
        yield
    except RelumineError as error:
        if file is None:
            raise
        raise kind(f"{name}{error}") from error
    except Exception as error:
        raise kind(f"{name}{words}{one_line(error, named=named)[:400]}{end}") from error
