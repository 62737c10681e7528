"""``relumine demo``: the audit of a small network that comes with relumine."""

from pathlib import Path
from typing import Annotated

import typer

from relumine.cli import options
from relumine.cli.audit import audited
from relumine.cli.exits import errors_as_messages
from relumine.errors import MisuseError


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For all that is written.")] = Path("demo"),
    *,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Audit a small network that comes with relumine, and write the report.

    The network tells scikit-learn's digits apart. Takes about a minute on two cores and needs no network connection.
    """
    with errors_as_messages(debug):
        from relumine.audit.settings import AuditSettings
        from relumine.audit.store import FILE

        if out.exists() and not out.is_dir():
            raise MisuseError(f"--out: expected a folder to write in, got the file {out}")
        (out / FILE).unlink(missing_ok=True)  # an earlier demonstration's
        audited(AuditSettings(), out, [], json_=json_, quiet=quiet, verbose=verbose)
