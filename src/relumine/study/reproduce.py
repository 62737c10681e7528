"""The paper's figures, one call each: run what is missing, draw, and write what was found."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relumine.errors import MisuseError
from relumine.study import needs
from relumine.study.claims import Claim, Finding, findings
from relumine.study.designs import FIGURES, SALIENCY, SIGMA, Figure, FigureName, Scale, figure, scale_named
from relumine.study.engines import Engine, Lost
from relumine.study.experiment import Experiment, Row, key_of
from relumine.study.figures import draw_curves, draw_maps
from relumine.study.page import page
from relumine.study.results import Results
from relumine.study.runner import Standing, run_study
from relumine.study.saliency import Maps, MapsWanted, saliency_maps
from relumine.study.screen import StudyWatch
from relumine.study.store import RunStore
from relumine.study.trial import material, provenance, versions
from relumine.zoo.cache import replacing

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Reproduced:
    """What came out: the page about it, claims with findings, whether the data are the paper's, and what failed."""

    page: Path
    claims: list[tuple[Claim, Finding]]
    faithful: bool
    failures: list[str]


def reproduce(
    name: str, scale_name: str, out: Path, engine: Engine, console: "Console", *, only: str = ""
) -> Reproduced:
    """Reproduce the figure of this name, or "all"; of it ``only`` panels whose name has this in it ("mnist conv").

    ``out`` gets the run store, one JSON-lines file and drawing per figure, and a page about all figures that were run
    there. Rows are written as they come; the same call goes on after an interruption.
    """
    scale = scale_named(scale_name)
    figures = [figure(each, scale) for each in _chosen(name)]
    experiments = {e.key: e for each in figures for panel in each.panels if only in panel.name for e in each.of(panel)}
    shown = [
        _maps_wanted(scale, *each) for each in SALIENCY if name in ("all", "smoothgrad") and only in " ".join(each)
    ]
    if not shown and not experiments:
        raise MisuseError(f"panel: none of {name!r} has {only!r} in its name; expected for instance 'mnist conv'")
    with _opened(out) as store:
        try:
            failures = _run([*experiments.values()], figures, store, engine, out, console)
            if shown:
                failures += _draw_saliency(shown, engine, out, console)
        except KeyboardInterrupt:
            kept = f"{len(store.finished()):,} rows are kept in {store.path}; the same command goes on from there."
            console.print(kept, highlight=False, soft_wrap=True)
            _present(figures, scale, store, out)
            raise
        return Reproduced(*_present(figures, scale, store, out), scale.faithful, failures)


def _present(
    figures: Sequence[Figure], scale: Scale, store: RunStore, out: Path
) -> tuple[Path, list[tuple[Claim, Finding]]]:
    """Draw the figures, and write the page about everything that is known."""
    known = _known(scale, store)
    for each in figures:
        if each.name in known:
            draw_curves(known[each.name], out, f"scale {scale.name}; band: lowest to highest seed")
    path = out / "results.md"
    text = page(scale, known, _read(out / "smoothgrad.jsonl"), _pictures(out))
    _write(path, [text.rstrip("\n")])
    return path, findings(known)


def _chosen(name: str) -> list[FigureName]:
    if name != "all" and name not in FIGURES:
        raise MisuseError(f"figure: expected one of {', '.join(FIGURES)} or all, got {name!r}")
    return [each for each in FIGURES if name in ("all", each)]


def _opened(out: Path) -> RunStore:
    if out.exists() and not out.is_dir():
        raise MisuseError(f"out: expected a folder, got the file {out}")
    return RunStore(out / "rows.sqlite")


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

        def watch(standing: Standing) -> None:
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
    targets = {key_of(experiment.target): experiment.target for experiment in todo}
    console.print(needs.note(todo, [*targets.values()], engine.workers), highlight=False, soft_wrap=True)
    strangers = [row for row in store.rows(experiments) if not row.failed and row.provenance.versions != versions()]
    if strangers:
        console.print(
            f"{len(strangers):,} finished rows were made with other versions than these; delete {store.path} to run "
            "them again",
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


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


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


def _maps_wanted(scale: Scale, data: str, network: str) -> MapsWanted:
    return MapsWanted(scale.title(data, network), scale.target(data, network), SIGMA[data], scale.map_samples)


def _known(scale: Scale, store: RunStore) -> dict[FigureName, Results]:
    """Every figure of which there are rows."""
    results = {name: Results(each, store.rows(each.experiments)) for name in FIGURES for each in [figure(name, scale)]}
    return {name: known for name, known in results.items() if known.rows}


def _pictures(out: Path) -> dict[FigureName, list[Path]]:
    return {name: sorted(out.glob(f"{name}*.png")) for name in FIGURES}
