"""``relumine report``: draw the report of an audit again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relumine.cli import options
from relumine.cli.exits import errors_as_messages
from relumine.errors import MisuseError, StoreError

if TYPE_CHECKING:
    from relumine.audit.result import AuditResult


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
        from relumine.report.page import render

        folder = run if run.is_dir() else run.parent
        page = output or folder / "report.html"
        text = render(_stored(run))
        try:
            page.write_text(text, "utf-8")
        except OSError as error:
            raise MisuseError(f"--output: cannot write {page} ({error.strerror}); choose another place") from error
        print(f"wrote {page}")


def _stored(run: Path) -> "AuditResult":
    """The result in a run folder's store, or in a file that an audit wrote."""
    from relumine.audit.result import AuditResult
    from relumine.audit.store import read_result

    if run.is_dir():
        return read_result(run)
    try:
        return AuditResult.from_json(run.read_text("utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {run} ({error.strerror}); say the run folder of an audit") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{run}: expected a result.json of 'relumine audit', got something else") from error
