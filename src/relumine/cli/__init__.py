"""The command line: one thin command per library call.

``options`` holds what commands share, ``exits`` turns errors into messages and exit codes. Heavy imports wait until a
command runs, so that ``--help`` answers at once.
"""

import sys
from typing import Annotated

import typer

from relumine import __version__
from relumine.cli import audit, probe, reconstruct, report, reproduce, serve

_RESPONSIBLE = "For models that you own or are allowed to test."

app = typer.Typer(
    name="relumine",
    help=f"How much of a model do its predictions and explanations give away? Reconstruct it and see. {_RESPONSIBLE}",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"relumine {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


# In the order in which --help lists them.
app.command()(audit.audit)
app.command()(report.report)
app.command()(report.compare)
app.command()(reconstruct.reconstruct)
app.command()(probe.probe)
app.command()(audit.demo)
app.command()(reproduce.reproduce)
app.command()(serve.serve)


def main() -> None:
    """The entry point ``relumine``."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a narrow encoding must not be an error
    app()
