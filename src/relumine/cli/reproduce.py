"""``relumine reproduce``: repeat the paper's experiments."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from relumine.cli import options
from relumine.cli.exits import GATE_FAILED, INCONCLUSIVE, errors_as_messages, say
from relumine.cli.options import option

Figure = Literal["all", "main", "unknown-class", "gaussian", "access", "noise", "smoothgrad"]
Scale = Literal["smoke", "laptop", "paper"]


def reproduce(
    figure: Annotated[
        Figure,
        typer.Argument(
            metavar="FIGURE",
            help="main: gradient against membership queries. unknown-class: the student is of another class. gaussian: "
            "queries without data. access: what an endpoint may show instead (not in the paper). noise: with how much "
            "noise SmoothGrad hides a network (not in the paper). smoothgrad: the appendix's saliency maps. Or all.",
        ),
    ] = "all",
    *,
    scale: Annotated[
        Scale, option(None, "smoke: minutes, on digits. laptop: hours on two cores. paper: the full design.")
    ] = "smoke",
    panel: Annotated[str, option("TEXT", "Only panels whose name, such as 'mnist conv', has this in it.")] = "",
    out: Annotated[
        Path | None, option("FOLDER", "For all that is written, and goes on; reproduced/SCALE if not given.")
    ] = None,
    page: Annotated[
        Path | None, option("FILE", "Where the page about it goes; results.md in --out if not given.")
    ] = None,
    check: Annotated[
        bool, option(None, "Run nothing: draw figures and page from the rows in --out, and fail if they differ.")
    ] = False,
    draw: Annotated[bool, option(None, "Run nothing: draw figures and page again from the rows in --out.")] = False,
    workers: Annotated[
        int | None, option("N", "Experiments at a time; as many as there are cores if not given.", min=1)
    ] = None,
    engine: Annotated[
        options.EngineName, option(None, "local: processes on this machine. ray: a Ray cluster; the same rows.")
    ] = "local",
    address: options.Address = None,
    debug: options.Debug = False,
) -> None:
    """Repeat the paper's experiments, with its claims beside what comes out.

    Rows are kept as they come: the same command goes on where an interrupted one stopped, and tries again what failed.
    """
    with errors_as_messages(debug):
        from rich.console import Console

        from relumine.jobs.engines import engine_named
        from relumine.study.reproduce import differences, redrawn, show_claims
        from relumine.study.reproduce import reproduce as reproduced

        folder = out or Path("reproduced") / scale
        if check:
            _report_differences(differences(scale, folder, page))
            return
        if draw:
            result = redrawn(scale, folder, page)
        else:
            chosen = engine_named(engine, workers, address)
            result = reproduced(figure, scale, folder, chosen, Console(stderr=True), only=panel, page_path=page)
        show_claims(Console(), result.claims, result.faithful)
        print(f"wrote {result.page}")
        if result.failures:
            say(f"{len(result.failures)} failed, as the page says; the same command tries them again.")
            raise typer.Exit(INCONCLUSIVE)


def _report_differences(wrong: list[str]) -> None:
    if wrong:
        say(f"not what the rows say: {', '.join(wrong)}; --draw instead of --check writes them again.")
        raise typer.Exit(GATE_FAILED)
    print("figures and page are what the rows say")
