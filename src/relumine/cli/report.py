"""``relumine report``: draw the report of an audit again; ``relumine compare``: what changed between two audits."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relumine.cli import options
from relumine.cli.exits import DONE, GATE_FAILED, INCONCLUSIVE, errors_as_messages
from relumine.cli.options import option
from relumine.errors import MisuseError, RelumineError, StoreError

if TYPE_CHECKING:
    from relumine.audit.result import AuditResult


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of an audit, or a result.json.")],
    *,
    output: Annotated[
        list[Path] | None,
        option(
            "FILE",
            "Write .html, .json, .xml (JUnit) or .sarif; repeatable. report.html beside the result if not.",
            "--output",
            "-o",
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Draw the report of an audit again, from what was stored.

    One HTML page that needs no network: the verdict, curves, defences, budgets, and what the audit cannot tell.
    """
    with errors_as_messages(debug):
        from relumine.auditing import written

        found = stored(run)
        for path in output or [(run if run.is_dir() else run.parent) / "report.html"]:
            with _read_from(run):
                text = written(found, path)
            try:
                path.write_text(text, "utf-8")
            except OSError as error:
                raise MisuseError(f"--output: cannot write {path} ({error.strerror}); choose another place") from error
            print(f"wrote {path}")


def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of an audit, or a result.json.")],
    after: Annotated[Path, typer.Argument(metavar="RUN", help="Another: of the next version of the model.")],
    *,
    json_: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Say what changed between two audits, as of two versions of a model.

    Exits with 10 if the second gives away more, with 3 if that cannot be told.
    """
    with errors_as_messages(debug):
        from rich.console import Console

        from relumine.audit.compare import compared
        from relumine.audit.screen import show_comparison

        found = compared(stored(before), stored(after))
        if json_:
            plain = {"verdict": found.verdict, "direction": found.direction, **asdict(found)}
            print(json.dumps(plain, indent=1, ensure_ascii=False))
        else:
            show_comparison(Console(), found)
        raise typer.Exit({"more": GATE_FAILED, "open": INCONCLUSIVE}.get(found.direction, DONE))


def stored(run: Path) -> "AuditResult":
    """The result in a run folder's store, or in a file that an audit wrote."""
    from relumine.audit.result import AuditResult
    from relumine.audit.store import read_result

    if run.is_dir():
        return read_result(run)
    with _read_from(run):
        return AuditResult.from_json(run.read_text("utf-8"))


@contextmanager
def _read_from(run: Path) -> Iterator[None]:
    """A file from outside may hold anything."""
    try:
        yield
    except RelumineError:
        raise
    except OSError as error:
        raise StoreError(f"cannot read {run} ({error.strerror}); say the run folder of an audit") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"{run}: expected a result.json of 'relumine audit', and this cannot be drawn "
            f"({type(error).__name__}: {error}); --debug shows where"
        ) from error
