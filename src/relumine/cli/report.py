"""``relumine report``: draw the report of an audit again."""

from pathlib import Path
from typing import Annotated

import typer

from relumine.cli import options
from relumine.cli.exits import errors_as_messages
from relumine.errors import MisuseError, StoreError


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of an audit, or a result.json.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page; report.html beside the result if not given."),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Draw the report of an audit again, from what was stored.

    One HTML page that needs no network: the verdict, curves, defences, budgets, and what the audit cannot tell.
    """
    with errors_as_messages(debug):
        folder = run if run.is_dir() else run.parent
        page = output or folder / "report.html"
        text = _drawn(run)
        try:
            page.write_text(text, "utf-8")
        except OSError as error:
            raise MisuseError(f"--output: cannot write {page} ({error.strerror}); choose another place") from error
        print(f"wrote {page}")


def _drawn(run: Path) -> str:
    """The page of the result in a run folder's store, or in a file that an audit wrote."""
    from relumine.audit.result import AuditResult
    from relumine.audit.store import read_result
    from relumine.report.page import render

    if run.is_dir():
        return render(read_result(run))
    try:
        return render(AuditResult.from_json(run.read_text("utf-8")))
    except OSError as error:
        raise StoreError(f"cannot read {run} ({error.strerror}); say the run folder of an audit") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"{run}: expected a result.json of 'relumine audit', and this cannot be drawn "
            f"({type(error).__name__}: {error}); --debug shows where"
        ) from error
