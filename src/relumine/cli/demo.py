"""``relumine demo``: reconstruct small networks trained here and now."""

from pathlib import Path
from typing import Annotated

import typer

from relumine.cli import options
from relumine.cli.exits import errors_as_messages


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the picture goes.")] = Path("demo"),
    seed: options.Seed = 0,
    debug: options.Debug = False,
) -> None:
    """Reconstruct small networks trained here and now.

    Trains on scikit-learn's digits, compares what each method asks for, and draws the paper's search. Takes under a
    minute and needs no network connection.
    """
    with errors_as_messages(debug):
        from relumine.demo import run_demo

        run_demo(out, seed)
