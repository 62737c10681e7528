"""The paper's figures, one call each: run what is missing, draw, and write what was found."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from relumine.console import LiveLine
from relumine.environment import replacing
from relumine.errors import MisuseError
from relumine.jobs.engines import Engine, Lost
from relumine.jobs.provenance import provenance, versions
from relumine.study.claims import Claim, Finding, findings
from relumine.study.designs import CURVES, FIGURES, SALIENCY, SIGMA, Figure, FigureName, Scale, figure, scale_named
from relumine.study.experiment import Experiment, Row, key_of
from relumine.study.figures import ACCURACY, AGREEMENT, FLOATS, draw_curves, draw_maps
from relumine.study.page import numbers, page
from relumine.study.results import Results
from relumine.study.runner import RunStore, StudyProgress, run_study
from relumine.study.trial import Maps, MapsWanted, material, saliency_maps
from relumine.text import plural

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = {"better": "green", "same": "green", "short": "yellow", "open": "dim"}


@dataclass(frozen=True)
class Reproduced:
    """What came out: the page about it, claims with findings, whether the data are the paper's, and what failed."""

    page: Path
    claims: list[tuple[Claim, Finding]]
    faithful: bool
    failures: list[str]


def reproduce(
    name: str,
    scale_name: str,
    out: Path,
    engine: Engine,
    console: "Console",
    *,
    only: str = "",
    page_path: Path | None = None,
) -> Reproduced:
    """Reproduce the figure of this name, or "all"; of it ``only`` panels whose name has this in it ("mnist conv").

    ``out`` gets the run store, one JSON-lines file and drawing per figure, and a page about all figures that were run
    there (``page_path``, or results.md in it). Rows are written as they come; the same call goes on after an
    interruption.
    """
    scale = scale_named(scale_name)
    if name != "all" and name not in FIGURES:
        raise MisuseError(f"figure: expected one of {', '.join(FIGURES)} or all, got {name!r}")
    figures = [figure(each, scale) for each in FIGURES if name in ("all", each)]
    experiments = {e.key: e for each in figures for panel in each.panels if only in panel.name for e in each.of(panel)}
    shown = [
        MapsWanted(scale.title(data, network), scale.target(data, network), SIGMA, scale.map_samples)
        for data, network in (SALIENCY if name in ("all", "smoothgrad") else ())
        if only in f"{data} {network}"
    ]
    if not shown and not experiments:
        raise MisuseError(f"panel: none of {name!r} has {only!r} in its name; expected for instance 'mnist conv'")
    with _opened(out) as store:
        try:
            # All first seeds before all second ones: a run that is cut short has whole curves.
            ordered = sorted(experiments.values(), key=lambda experiment: experiment.seed)
            failures = _run(ordered, figures, store, engine, out, console)
            if shown:
                failures += _draw_saliency(shown, engine, out, console)
        except KeyboardInterrupt:
            kept = f"{len(store.finished()):,} rows are kept in {store.path}; the same command goes on from there."
            console.print(kept, highlight=False, soft_wrap=True)
            _write_rows(figures, store, out)
            _present(scale, out, page_path)
            raise
    return Reproduced(*_present(scale, out, page_path), scale.faithful, failures)


def redrawn(scale_name: str, out: Path, page_path: Path | None = None) -> Reproduced:
    """Draw figures and page again from the rows in ``out``, and run nothing."""
    scale = _scale_of_rows("draw", scale_name, out)
    return Reproduced(*_present(scale, out, page_path), scale.faithful, [])


def _scale_of_rows(asked: str, scale_name: str, out: Path) -> Scale:
    scale = scale_named(scale_name)
    if not _known(scale, out):
        raise MisuseError(f"{asked}: {out} has no rows of scale {scale_name}; name their folder with --out")
    return scale


def differences(scale_name: str, out: Path, page_path: Path | None = None) -> list[str]:
    """Draw figures and page again from the rows in ``out``; which of the files are not what comes out."""
    scale = _scale_of_rows("check", scale_name, out)
    path = page_path or out / "results.md"
    with TemporaryDirectory() as folder:
        drawn = _draw(scale, out, Path(folder))
        pairs = [(picture, out / picture.name) for picture in drawn]
        wrong = [str(kept) for new, kept in pairs if not kept.exists() or new.read_bytes() != kept.read_bytes()]
    text = path.read_text("utf-8") if path.exists() else ""
    return wrong if text == _text(scale, out, path) else [*wrong, str(path)]


def _draw(scale: Scale, out: Path, folder: Path) -> list[Path]:
    """Draw every figure of which there are rows in ``out``, and write its points."""
    subtitle = f"scale {scale.name}; band: lowest to highest seed"
    written: list[Path] = []
    for name, known in _known(scale, out).items():
        for view in (ACCURACY, AGREEMENT, FLOATS) if name == "main" else (ACCURACY,):
            written += draw_curves(known, folder, subtitle, view=view)
        points = folder / f"{name}.csv"
        points.write_text(numbers(known), "utf-8")
        written.append(points)
    return written


def _text(scale: Scale, out: Path, path: Path) -> str:
    """The page, as it is to be written to ``path``."""
    pictures = {name: sorted(out.glob(f"{name}*.png"), key=lambda path: path.stem) for name in FIGURES}
    links = {name: [Path(os.path.relpath(picture, path.parent)) for picture in some] for name, some in pictures.items()}
    return page(scale, _known(scale, out), links)


def _present(scale: Scale, out: Path, page_path: Path | None) -> tuple[Path, list[tuple[Claim, Finding]]]:
    """Draw the figures, and write the page about everything that is known."""
    _draw(scale, out, out)
    path = page_path or out / "results.md"
    _write(path, [_text(scale, out, path).rstrip("\n")])
    return path, findings(_known(scale, out))


def _opened(out: Path) -> RunStore:
    if out.exists() and not out.is_dir():
        raise MisuseError(f"out: expected a folder, got the file {out}")
    written = [row for name in CURVES for row in _rows(out / f"{name}.jsonl")]
    store = RunStore(out / "rows.sqlite")
    # A checkout has rows and no store: what others ran is not run again, and not lost when rows are written.
    known = store.texts()
    for row in written:
        if row.experiment.key not in known:
            store.keep(row)
    return store


def _run(
    experiments: list[Experiment],
    figures: Sequence[Figure],
    store: RunStore,
    engine: Engine,
    out: Path,
    console: "Console",
) -> list[str]:
    """Run what is missing of ``experiments``, which are in ``figures``; what failed."""
    _announce(experiments, store, engine, console)
    keys = {each.name: {e.key for e in each.experiments} for each in figures}
    with StudyWatch(console) as screen:

        def watch(standing: StudyProgress) -> None:
            screen(standing)
            if isinstance(standing.ended, Row):
                key = standing.ended.experiment.key
                _write_rows([each for each in figures if key in keys[each.name]], store, out)

        scratch = out / "unfinished" if engine.shares_files else None
        rows = run_study(experiments, store, engine, watch=watch, scratch=scratch)
    _write_rows(figures, store, out)
    return [f"{row.experiment}: {row.error}" for row in rows if row.failed]


def _announce(experiments: list[Experiment], store: RunStore, engine: Engine, console: "Console") -> None:
    """Say what is coming before it takes hours."""
    finished = store.finished()
    todo = [experiment for experiment in experiments if experiment.key not in finished]
    targets = {key_of(experiment.target) for experiment in todo}
    coming = f"{plural(len(todo), 'experiment')} and {plural(len(targets), 'target')} to go, {engine.workers} at a time"
    console.print(coming if todo else "nothing left to run", highlight=False, soft_wrap=True)
    strangers = [row for row in store.rows(experiments) if not row.failed and row.provenance.versions != versions()]
    if strangers:
        console.print(
            f"{len(strangers):,} finished rows were made with other versions than these; name another folder "
            "with --out to run them again",
            highlight=False,
            soft_wrap=True,
        )


def _write_rows(figures: Iterable[Figure], store: RunStore, out: Path) -> None:
    for each in figures:
        rows = store.rows(each.experiments)
        if rows:
            _write(out / f"{each.name}.jsonl", [row.to_json() for row in rows])


def _write(path: Path, lines: list[str]) -> None:
    with replacing(path) as temporary:
        temporary.write_text("\n".join([*lines, ""]), "utf-8")


def _draw_saliency(wanted: list[MapsWanted], engine: Engine, out: Path, console: "Console") -> list[str]:
    """Compute and draw the appendix's grids; what failed."""
    for each in wanted:
        material(each.target.data, each.target.standardise)  # missing data is an error before anything starts
    material.cache_clear()
    done: dict[str, Maps] = {}
    failures: list[str] = []
    with console.status("drawing saliency maps"), engine:
        for each, maps in engine.run(saliency_maps, wanted):
            if isinstance(maps, Lost):
                failures.append(f"saliency maps of {each.title}: {maps.reason}")
            else:
                done[each.title] = maps
    ordered = [done[each.title] for each in wanted if each.title in done]
    draw_maps(ordered, out)
    made = {"provenance": asdict(provenance(0))}
    records = [{**record, **made} for maps in ordered for record in maps.records()]
    _write(out / "smoothgrad.jsonl", [json.dumps(record, ensure_ascii=False) for record in records])
    return failures


def _known(scale: Scale, out: Path) -> dict[FigureName, Results]:
    """Every figure of which there are rows."""
    rows = {name: _rows(out / f"{name}.jsonl") for name in CURVES}
    return {name: Results(figure(name, scale), some) for name, some in rows.items() if some}


def _rows(path: Path) -> list[Row]:
    rows = []
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(Row.from_json(line))
        except (ValueError, TypeError, KeyError, MisuseError) as error:
            raise MisuseError(f"{path}, line {number}: expected a row ({error}); remove the line") from error
    return rows


class StudyWatch(LiveLine):
    """Shows where a study stands: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: "Console") -> None:
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        super().__init__(console, "training targets", TextColumn("{task.description}"), *columns)

    def __call__(self, standing: StudyProgress) -> None:
        if isinstance(standing.ended, Row) and standing.ended.failed:
            self._say(f"failed: {standing.ended.experiment}: {standing.ended.error}")
        if self._console.is_terminal:
            text = "experiments" if isinstance(standing.ended, Row) else "training targets"
            self._bar.update(self._task, description=text, completed=standing.done, total=standing.total)
        self._stand(f"{standing.done}/{standing.total}  {_words(standing)}")


def _words(standing: StudyProgress) -> str:
    ended = standing.ended
    if not isinstance(ended, Row):
        return f"target trained: {ended.network} on {ended.data}"
    accuracy = "" if ended.measures is None else f": {100 * ended.measures.test_accuracy:.1f} %"
    return f"{ended.experiment}{accuracy}"


def show_claims(console: "Console", claims: Iterable[tuple[Claim, Finding]], faithful: bool) -> None:
    """The table of claims; verdicts in brackets unless the data are the paper's."""
    table = Table(box=box.SIMPLE_HEAD)
    for header in ("figure", "network", "the paper", "here", "verdict"):
        table.add_column(header)
    for claim, finding in claims:
        word = finding.verdict if faithful else f"({finding.verdict})"
        table.add_row(claim.figure, claim.subject, claim.says, finding.ours, f"[{_COLOURS[finding.verdict]}]{word}[/]")
    if table.row_count:
        console.print(table)
