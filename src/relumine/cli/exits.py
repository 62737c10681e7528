"""The one place that turns errors into messages and exit codes."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from relumine.errors import BudgetError, MisuseError, OracleError, RelumineError

if TYPE_CHECKING:
    from relumine.console import Watch
    from relumine.oracle.metering.ledger import Ledger

DONE = 0
INTERNAL = 1  # a fault in relumine
USAGE = 2
INCONCLUSIVE = 3  # not recovered, the oracle failed, the budget ended
GATE_FAILED = 10  # a gate that was asked for
INTERRUPTED = 130


@contextmanager
def errors_as_messages(debug: bool) -> Iterator[None]:
    """Around everything that a command does."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        say("\nInterrupted.")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, RelumineError):
            say(f"error: {error}")
            raise typer.Exit(INCONCLUSIVE if isinstance(error, OracleError | BudgetError) else USAGE) from None
        say(f"internal error: {type(error).__name__}: {error}")
        say("This is a fault in relumine. --debug shows where it happened; please report it.")
        raise typer.Exit(INTERNAL) from None


@contextmanager
def interruption_explained(watch: "Watch", ledger: "Ledger | None") -> Iterator[None]:
    """Around a run: Ctrl-C says what is kept of it."""
    try:
        yield
    except KeyboardInterrupt:
        kept = (
            "Nothing is kept; with --run FOLDER every answer is."
            if ledger is None
            else f"{len(ledger):,} answers are kept in {ledger.path}; the same command goes on from there."
        )
        say(f"\nInterrupted after {watch.queries:,} queries. {kept}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def extra_installed(extra: str) -> Iterator[None]:
    """Around the imports of a command that needs ``relumine[extra]``."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MisuseError(f"this needs the package {error.name}: pip install 'relumine[{extra}]'") from error


def say(message: str) -> None:
    """Print to standard error; standard output is for results."""
    print(message, file=sys.stderr)
