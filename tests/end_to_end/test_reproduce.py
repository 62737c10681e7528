"""Studies as a person runs them: killed and resumed, on Ray, and from the command line."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relumine.cli import app
from relumine.jobs.engines import Lost
from relumine.study import Experiment, LocalProcesses, RayCluster, Row, RunStore, Student, Target, designs, run_study
from relumine.study.designs import Plan

STUDY = [
    Experiment(
        Target("two_layer", "digits", options={"hidden": 8}, training={"steps": 20}),
        Student("two_layer", {"hidden": 8}),
        budget,
        loss=loss,
        settings={"steps": 20},
    )
    for budget in (1, 10, 100)
    for loss in ("joint", "membership")
]

# Runs the study slowly, says which rows it has made and which processes make them, and waits to be killed.
PROGRAM = """
import multiprocessing, sys, time
from relumine.study import LocalProcesses, RunStore, run_study
from test_reproduce import STUDY

def told(standing):
    print(getattr(standing.ended, "experiment", standing).key if standing.done else "started", flush=True)
    if standing.done == 2:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(600)

if __name__ == "__main__":
    with RunStore(sys.argv[1]) as store:
        run_study(STUDY, store, LocalProcesses(2), watch=told)
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Targets are kept for this module and no longer, also for processes that are started here."""
    before = os.environ.get("RELUMINE_CACHE")
    os.environ["RELUMINE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["RELUMINE_CACHE"]
    if before is not None:
        os.environ["RELUMINE_CACHE"] = before


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> list[Row]:
    """The study's rows when nothing happens to it."""
    with RunStore(tmp_path_factory.mktemp("study") / "rows.sqlite") as store:
        return run_study(STUDY, store, LocalProcesses(2))


def results(rows: list[Row]) -> list[dict]:
    assert not any(row.failed for row in rows), rows
    return [row.result for row in rows]


def test_a_local_ray_cluster_gives_the_same_rows(tmp_path, uninterrupted):
    with RayCluster(2) as cluster:
        roots = dict(cluster.run(math.sqrt, [4, -1]))
        ((_, dead),) = cluster.run(os._exit, [9])
        with RunStore(tmp_path / "rows.sqlite") as store:
            rows = run_study(STUDY, store, cluster)
    assert roots[4] == 2
    assert roots[-1].reason.startswith("ValueError")
    assert isinstance(dead, Lost)
    assert results(rows) == results(uninterrupted)


def test_a_killed_study_goes_on_where_it_was(tmp_path, uninterrupted):
    (tmp_path / "program.py").write_text(PROGRAM)
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "rows.sqlite")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    _, first, second, workers = (process.stdout.readline().split() for _ in range(4))
    process.kill()
    process.wait()
    assert len(workers) == 2
    assert not alive(workers, within=20)

    ran: list[str] = []
    with RunStore(tmp_path / "rows.sqlite") as store:
        rows = run_study(STUDY, store, LocalProcesses(2), watch=lambda at: ran.append(at.ended))
    resumed = [row.experiment.key for row in ran if isinstance(row, Row)]
    assert sorted([*first, *second, *resumed]) == sorted(experiment.key for experiment in STUDY)
    assert results(rows) == results(uninterrupted)


def alive(pids: list[str], within: float) -> list[str]:
    """Which of these processes still run after that many seconds; ended ones that nobody collected do not."""
    end = time.monotonic() + within
    while time.monotonic() < end and any(map(_runs, pids)):
        time.sleep(0.1)
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: str) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def relumine(*arguments: str):
    return CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "160"})


@pytest.fixture
def tiny(monkeypatch):
    """A scale at which everything takes seconds, under the name of another."""
    smoke = designs.scale_named("smoke")
    small = {"linear": {}, "two_layer": {"hidden": 4}, "conv": {"channels": (2, 2), "hidden": 4}}
    plans = {
        (data, network): Plan(plan.network, (1, 3), 1, {1: 2}, 1e-3, small.get(network, {"width": 1}), {"steps": 2})
        for (data, network), plan in smoke.plans.items()
    }
    monkeypatch.setitem(designs.SCALES, "smoke", lambda: replace(smoke, plans=plans, map_samples=2))


def test_all_figures_from_the_command_line(tmp_path, tiny):
    out = tmp_path / "out"
    done = relumine("all", "--out", str(out), "--workers", "1")
    assert done.exit_code == 0, done.output
    assert f"wrote {out / 'results.md'}" in done.output.replace("\n", "")
    for name in ("main", "unknown-class", "gaussian", "access", "noise"):
        assert {(out / f"{name}.{ending}").stat().st_size > 1000 for ending in ("csv", "jsonl", "png", "svg")} == {True}
    rows = [Row.from_json(line) for line in (out / "main.jsonl").read_text().splitlines()]
    assert {row.experiment.budget for row in rows if row.experiment.loss in ("joint", "membership")} == {1, 3}
    marks = [row.experiment.target.network for row in rows if row.experiment.loss in ("exact", "head")]
    assert {*marks} == {"linear", "two_layer", "conv", "vgg11", "resnet18_small"}
    assert not any(row.failed for row in rows)
    records = [json.loads(line) for line in (out / "smoothgrad.jsonl").read_text().splitlines()]
    assert {record["network"] for record in records} == {"conv", "vgg11", "resnet18_small"}
    assert len(list(out.glob("smoothgrad-*.png"))) == len(list(out.glob("smoothgrad-*.svg"))) == 3
    text = (out / "results.md").read_text()
    assert text.index("## Claims") < text.index("## Gradient queries versus membership queries")
    assert not (out / "unfinished").exists()

    again = relumine("gaussian", "--out", str(out))
    assert "nothing left to run" in again.output
    assert (out / "results.md").read_text() == text
    check_that_files_are_what_the_rows_say(out)


def check_that_files_are_what_the_rows_say(out: Path) -> None:
    fine = relumine("--check", "--out", str(out))
    assert fine.exit_code == 0, fine.output
    (out / "main-agreement.svg").write_text("<svg/>")
    rows = (out / "gaussian.jsonl").read_text().splitlines()
    (out / "gaussian.jsonl").write_text("\n".join(rows[: len(rows) // 2]) + "\n")
    stale = relumine("--check", "--out", str(out))
    assert stale.exit_code == 10
    for name in ("main-agreement.svg", "gaussian.png", "gaussian.csv", "results.md"):
        assert name in stale.output
    assert "unknown-class.png" not in stale.output
    drawn = relumine("--draw", "--out", str(out))
    assert drawn.exit_code == 0, drawn.output
    assert relumine("--check", "--out", str(out)).exit_code == 0
    assert len((out / "gaussian.jsonl").read_text().splitlines()) == len(rows) // 2  # nothing was run


def test_committed_figures_and_page_are_what_the_committed_rows_say():
    root = Path(__file__).parents[2]
    page = root / "docs" / "paper-results.md"
    checked = relumine("--check", "--scale", "laptop", "--out", str(root / "results"), "--page", str(page))
    assert checked.exit_code == 0, checked.output


def test_single_panels_can_be_run_and_are_kept_beside_the_others(tmp_path, tiny):
    out = tmp_path / "out"
    for panel in ("mnist linear", "cifar10 conv"):
        done = relumine("gaussian", "--panel", panel, "--out", str(out), "--workers", "1")
        assert done.exit_code == 0, done.output
    rows = [Row.from_json(line) for line in (out / "gaussian.jsonl").read_text().splitlines()]
    assert {row.experiment.target.network for row in rows} == {"linear", "conv"}
    (out / "rows.sqlite").unlink()  # as in a checkout, where rows were committed and the store was not
    again = relumine("gaussian", "--panel", "cifar10 conv", "--out", str(out))
    assert "nothing left to run" in again.output
    assert [Row.from_json(line) for line in (out / "gaussian.jsonl").read_text().splitlines()] == rows
    none = relumine("gaussian", "--panel", "imagenet", "--out", str(out))
    assert none.exit_code == 2
    assert "has 'imagenet' in its name" in none.output


@pytest.mark.parametrize("line", ["{", "[]", '{"key": ""}', '{"key": "", "measures": null, "experiment": {}}'])
@pytest.mark.parametrize("arguments", [["main"], ["--check"], ["--draw"]])
def test_a_line_that_is_no_row_is_named_and_kept(tmp_path, arguments, line):
    (tmp_path / "noise.jsonl").write_text(line + "\n")
    done = relumine(*arguments, "--out", str(tmp_path))
    assert done.exit_code == 2, done.output
    assert "noise.jsonl, line 1: expected a row" in done.output.replace("\n", "")
    assert (tmp_path / "noise.jsonl").read_text() == line + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure-7"], "'main', 'unknown-class'"),
        (["main", "--scale", "galaxy"], "'smoke', 'laptop', 'paper'"),
        (["main", "--engine", "slurm"], "'local', 'ray'"),
        (["main", "--workers", "0"], "--workers"),
        (["main", "--address", "10.0.0.1:6379"], "--engine ray"),
        (["main", "--out", "a-file"], "expected a folder"),
        (["main", "--scale", "laptop"], "RELUMINE_DATA"),
        (["smoothgrad", "--scale", "laptop"], "RELUMINE_DATA"),
        (["--check"], "has no rows"),
    ],
)
def test_bad_input_is_an_error_before_anything_runs(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path / "nothing"))
    (tmp_path / "a-file").write_text("")
    done = relumine(*arguments)
    assert (done.exit_code, message in done.output) == (2, True), done.output
    assert "Traceback" not in done.output
