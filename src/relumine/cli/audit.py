"""``relumine audit`` (what leaks, how fast, and what each defence buys) and ``relumine demo``."""

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from relumine.cli import options
from relumine.cli.exits import DONE, GATE_FAILED, INCONCLUSIVE, INTERRUPTED, errors_as_messages, no_folder_left, say
from relumine.cli.options import option
from relumine.errors import MisuseError

if TYPE_CHECKING:
    from relumine.audit.result import AuditResult
    from relumine.audit.settings import AuditSettings

PresetName = Literal["owasp-aitg", "owasp-aitg-warning"]

_CONFIG = Path("audit.toml")
_RUNS = Path("relumine-runs")


def audit(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="What to audit: a TARGET, as of 'reconstruct'. Without one, a small network that comes with relumine.",
        ),
    ] = None,
    *,
    data: Annotated[
        str | None,
        option(
            "DATA",
            "Inputs like those of its users: .npz, .npy, .csv, .parquet, a folder of images, IDX files, or "
            "digits, mnist, cifar10.",
        ),
    ] = None,
    backbone: options.Backbone = None,
    label_column: Annotated[str | None, option("NAME", "Column of the labels in a .csv or .parquet file.")] = None,
    budget: Annotated[int | None, option("N", "Queries of the largest attack; 1,000 if not given.", min=1)] = None,
    seeds: Annotated[int | None, option("N", "How often each attack is repeated; 3 if not given.", min=1)] = None,
    levels: Annotated[
        list[str] | None,
        option("NAME,…", "What to expose, e.g. logits,gradients; all that TARGET can give if not given."),
    ] = None,
    exposed: Annotated[
        list[str] | None,
        option(
            "NAME,…",
            "What is exposed today, apart from what-ifs; gates are about that. All that a server answers if not.",
        ),
    ] = None,
    defences: Annotated[
        list[str] | None,
        option(
            "SPEC",
            "Also behind this defence, e.g. round:4+top: docs/defences.md; repeatable. 'all': one of each kind. "
            "'list' lists them.",
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None, option("CONDITION", "Exit with 10 if it holds, e.g. 'queries-to-95 < 1000'; repeatable.")
    ] = None,
    preset: Annotated[
        PresetName | None,
        option(None, "Fail by a published threshold: OWASP AITG-APP-09's 90 % agreement, or its 75 %."),
    ] = None,
    time_limit: Annotated[
        float | None, option("SECONDS", "Of computing, for one attack; 600 if not given. Stopped is undecided.")
    ] = None,
    price: Annotated[float | None, option("N", "Of 1,000 queries, for the report.")] = None,
    output: Annotated[
        list[Path] | None,
        option(
            "FILE", "Write .html, .json, .xml (JUnit) or .sarif; repeatable. RUN/report.html if not.", "--output", "-o"
        ),
    ] = None,
    run: Annotated[Path | None, option("FOLDER", "Where every record is kept; a new folder if not given.")] = None,
    resume: Annotated[
        bool,
        option(None, "Go on in --run, or in the latest run of this target; also with a larger --budget.", "--resume"),
    ] = False,
    config: Annotated[
        Path | None, option("FILE", "Settings as TOML; audit.toml of this folder if there is one.")
    ] = None,
    engine: Annotated[
        options.EngineName | None, option(None, "local: processes on this machine. ray: a Ray cluster.")
    ] = None,
    workers: Annotated[
        int | None, option("N", "Attacks at a time; as many as there are cores if not given.", min=1)
    ] = None,
    address: options.Address = None,
    input_shape: options.InputShape = None,
    values: options.Values = None,
    gradients: options.Gradients = None,
    factory: options.Factory = None,
    endpoint_config: options.EndpointConfig = None,
    outputs: options.Outputs = None,
    dtype: options.ServerDType = None,
    authorized_by: options.AuthorizedBy = None,
    rate: options.Rate = None,
    concurrency: options.Concurrency = None,
    timeout: options.Timeout = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Find out what a model gives away, how fast, and what defences change.

    Attacks TARGET at each level of access, from labels to gradients, with growing numbers of queries, and writes a
    report. Says how many queries it took until a clone agreed with the model, or was the model.

    For models that you own or are allowed to test.
    """
    said = dict(locals())
    with errors_as_messages(debug):
        from relumine.audit.settings import read_settings

        levels, exposed = _split(levels), _split(exposed)
        if _listed(levels, defences):
            return
        for name in ("output", "run", "resume", "config", "json_", "quiet", "verbose", "debug"):
            del said[name]
        said |= {"input_shape": options.parsed_shape(input_shape), "defences": _every_kind(defences)}
        said |= {"levels": levels, "exposed": exposed}
        if config is None and _CONFIG.is_file():
            if not quiet:
                say(f"settings are read from {_CONFIG}")
            config = _CONFIG
        settings = read_settings(config, said)
        folder = _folder(settings, run, resume)
        audited(settings, folder, output or [], json_=json_, quiet=quiet, verbose=verbose)


def demo(
    out: Annotated[Path, option("FOLDER", "For all that is written.")] = Path("demo"),
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


def audited(
    settings: "AuditSettings",
    folder: Path,
    outputs: list[Path],
    *,
    json_: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Run an audit, show and write what came out, and leave with the exit code that says it."""
    from rich.console import Console

    from relumine import auditing
    from relumine.audit.screen import AuditWatch, show_result

    outputs = outputs or [folder / "report.html", folder / "result.json"]
    screen = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    command = shlex.join(["relumine", *sys.argv[1:]])
    try:
        with no_folder_left(folder, *(path.parent for path in outputs), used=lambda: auditing.paid(folder)):
            for path in outputs:
                _check_writable(path)
            screen.print(f"records are kept in {folder}", markup=False)
            with AuditWatch(screen, verbose=verbose) as watch:
                result = auditing.audited(settings, folder, command=command, watch=watch)
    except KeyboardInterrupt:
        say(f"\nInterrupted. Finished records are kept; the same command with --run {folder} --resume goes on.")
        raise typer.Exit(INTERRUPTED) from None
    for path in outputs:
        result.save(path)
    if json_:
        print(result.to_json())
    else:
        show_result(Console(), result)
    for path in outputs:
        (screen if json_ else Console()).print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(exit_code(result))


def _check_writable(path: Path) -> None:
    """Before hours are spent."""
    from relumine.auditing import ENDINGS

    if path.suffix.lower() not in ENDINGS:
        raise MisuseError(f"--output: expected a file ending in {', '.join(ENDINGS)}, got {path}")
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if not there:
            path.unlink()  # an empty file would look like a report
    except OSError as error:
        raise MisuseError(f"--output: cannot write {path} ({error.strerror}); choose another place") from error


def exit_code(result: "AuditResult") -> int:
    """A gate that failed has failed whatever else is open; without gates every curve must say something."""
    statuses = {gate.status for gate in result.gates}
    if "failed" in statuses:
        return GATE_FAILED
    if result.gates:
        return INCONCLUSIVE if "undecided" in statuses else DONE
    return INCONCLUSIVE if any(curve.status == "inconclusive" for curve in result.curves) else DONE


def _listed(levels: list[str] | None, defences: list[str] | None) -> bool:
    """Whether somebody asked what there is, and was told."""
    from relumine.audit.levels import LEVELS
    from relumine.defend import DEFENCES

    if "list" in (levels or []):
        for level in LEVELS.values():
            print(f"{level.name:<22} {level.label}")
    if "list" in (defences or []):
        for kind in DEFENCES:
            print(f"{kind.usage:<60} {kind.changes}")
    return "list" in [*(levels or []), *(defences or [])]


def _split(lists: list[str] | None) -> list[str] | None:
    """Names between commas; a gradient is the gradients of all classes."""
    names = [name.strip() for one in lists or [] for name in one.split(",")]
    return ["gradients" if name == "gradient" else name for name in names] or None


def _every_kind(defences: list[str] | None) -> list[str] | None:
    """'all' is one of each kind."""
    from relumine.defend import DEFENCES

    if "all" not in (defences or []):
        return defences
    return [kind.example for kind in DEFENCES]


def _folder(settings: "AuditSettings", run: Path | None, resume: bool) -> Path:
    """The run folder: the one named, the latest of this target to go on with, or a new one."""
    from relumine.audit.store import FILE

    if run is not None:
        if (run / FILE).exists() and not resume:
            raise MisuseError(f"--run: {run} holds an audit already; add --resume to go on with it, or name another")
        if resume and not (run / FILE).exists():
            raise MisuseError(f"--resume: there is no audit in {run} to go on with; leave out --resume to start one")
        return run
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in settings.name)
    if not resume:
        return _RUNS / f"audit-{name}-{datetime.now():%Y%m%d-%H%M%S}"
    earlier = sorted(_RUNS.glob(f"audit-{name}-*/{FILE}"))
    if not earlier:
        raise MisuseError(f"--resume: no audit of {settings.name} in {_RUNS}; say its folder with --run")
    return earlier[-1].parent
