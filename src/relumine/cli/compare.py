"""``relumine compare``: what changed between two audits."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from relumine.cli import options
from relumine.cli.exits import DONE, GATE_FAILED, INCONCLUSIVE, errors_as_messages
from relumine.cli.report import stored


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
