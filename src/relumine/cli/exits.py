"""The one place that turns errors into messages and exit codes."""

import inspect
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
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
            say(f"error: {_of_options(str(error))}")
            raise typer.Exit(INCONCLUSIVE if isinstance(error, OracleError | BudgetError) else USAGE) from None
        say(f"internal error: {type(error).__name__}: {error}")
        say("This is a fault in relumine. --debug shows where it happened; please report it.")
        raise typer.Exit(INTERNAL) from None


def _of_options(message: str) -> str:
    """A message of the library in the words of the command line: ``input_shape``, ``values='real'`` are options."""
    from relumine.cli import app

    signatures = (inspect.signature(command.callback) for command in app.registered_commands if command.callback)
    for name in {one.name for parts in signatures for one in parts.parameters.values() if one.kind is one.KEYWORD_ONLY}:
        option = "--" + name.strip("_").replace("_", "-")
        message = re.sub(rf"(?<![\w-]){name}=['\"]?([\w.]+)['\"]?", rf"{option} \1", message)
        message = re.sub(rf"\A{name}(?=:)" if "_" not in name else rf"(?<![\w-]){name}(?![\w(])", option, message)
    return message


@contextmanager
def no_folder_left(run: Path, *others: Path, used: Callable[[], bool]) -> Iterator[None]:
    """Remove folders made inside where a command fails before anything is in ``run`` that is worth keeping."""
    new = [place for folder in (run, *others) for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except RelumineError:
        if not used():
            if run in new:
                shutil.rmtree(run, ignore_errors=True)
            for place in new:
                with suppress(OSError):  # gone already, or not empty: another run is in there
                    place.rmdir()
        raise


@contextmanager
def ledger_in(run: Path) -> "Iterator[Ledger]":
    """The ledger of a run folder, which is left behind only if something was answered."""
    from relumine.oracle.metering.ledger import Ledger

    ledger: Ledger | None = None
    try:
        with no_folder_left(run, used=lambda: ledger is not None and len(ledger) > 0):
            ledger = Ledger(run / "ledger.sqlite")
            yield ledger
    finally:
        if ledger is not None:
            ledger.close()


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
