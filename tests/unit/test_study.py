"""Experiments as data, the store, the engines and the runner, on experiments of a second each."""

import json
import math
import os
import re
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import relumine as rl
from relumine.jobs.engines import Lost, engine_named
from relumine.jobs.store import read
from relumine.study import (
    Access,
    Experiment,
    LocalProcesses,
    Measures,
    Provenance,
    Row,
    RunStore,
    Student,
    Target,
    run_study,
)
from relumine.study.runner import check
from relumine.study.trial import run_experiment

ROOT = Path(__file__).parents[2]

TARGET = Target("two_layer", "digits", options={"hidden": 8}, training={"steps": 60, "learning_rate": 0.02})
STUDENT = Student("two_layer", {"hidden": 8})


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets are kept for this run of the tests and no longer."""
    monkeypatch.setenv("RELUMINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def experiment(budget: int = 3, **changes: object) -> Experiment:
    return replace(Experiment(TARGET, STUDENT, budget, settings={"steps": 5}), **changes)


def row(of: Experiment, accuracy: float = 0.5, outcome: str = "FITTED") -> Row:
    measures = Measures(accuracy, 0.9, accuracy, accuracy, 1 - accuracy)
    spent = {"value_queries": 0, "gradient_queries": of.budget, "floats": 650}
    return Row(of, outcome, None, "", spent, measures, Provenance(1.0, "here", "now", None, {}))


class Inline:
    """An engine that runs jobs one after the other, and loses those it is told to lose."""

    workers = 1
    shares_files = True

    def __init__(self, lose=lambda argument: False):
        self.lose = lose
        self.ran = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, function, arguments):
        for argument in arguments:
            self.ran.append(argument)
            yield argument, Lost("it rained") if self.lose(argument) else function(argument)


def test_experiments_and_rows_survive_json():
    asked = experiment(access=Access("smoothgrad", "top", "probabilities", sigma=1.5, samples=4), source="gaussian")
    assert read(Experiment, json.loads(json.dumps(asdict(asked)))) == asked
    assert Row.from_json(row(asked).to_json()) == row(asked)
    without = replace(row(asked), measures=None, outcome="FAILED", error="because")
    assert Row.from_json(without.to_json()) == without


def test_a_key_follows_from_what_an_experiment_says():
    assert experiment().key == experiment().key
    others = [experiment(4), experiment(seed=1), experiment(loss="membership"), experiment(settings={"steps": 6})]
    assert len({experiment().key, *(other.key for other in others)}) == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experiment(0), "at least 1 query"),
        (lambda: experiment(source="nowhere"), "pool, gaussian, active"),
        (lambda: experiment(loss="love"), "joint, membership, exact"),
        (lambda: Access("lime"), "smoothgrad"),
        (lambda: Access("smoothgrad"), "sigma"),
        (lambda: Access(sigma=1.0), "sigma"),
        (lambda: LocalProcesses(0), "at least 1"),
        (lambda: engine_named("slurm"), "local or ray"),
        (lambda: engine_named("local", 1, "10.0.0.1:6379"), "--engine ray"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(rl.MisuseError, match=message):
        make()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (experiment(258), "258 queries from a pool of 257"),
        (experiment(student=Student("perceptron")), "perceptron"),
        (experiment(student=Student("conv", {"hiden": 3})), "hiden"),
        (experiment(target=replace(TARGET, data="imagenet")), "imagenet"),
        (experiment(target=replace(TARGET, training={"epochs": 3})), "zoo.Training"),
        (experiment(settings={"patience": 3}), "fields of GradientMatching"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(tmp_path, asked, message):
    engine = Inline()
    with RunStore(tmp_path / "rows.sqlite") as store, pytest.raises(rl.MisuseError, match=re.escape(message)):
        run_study([experiment(), asked], store, engine)
    assert not engine.ran


def test_missing_data_is_an_error_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RELUMINE_DATA", str(tmp_path / "nothing"))
    with pytest.raises(rl.DataError, match="RELUMINE_DATA"):
        check([experiment(target=replace(TARGET, data="mnist"))])


def test_a_row_says_what_was_asked_and_how_good_the_student_is():
    made = run_experiment(experiment(20, settings={"steps": 150, "learning_rate": 0.02}))
    assert made.spent == {"value_queries": 0, "gradient_queries": 20, "floats": 20 * (10 + 10 * 64)}
    assert made.error is None
    assert made.measures is not None
    assert 0.7 < made.measures.target_accuracy < 1
    assert 0.4 < made.measures.test_accuracy < 1
    assert 0.4 < made.measures.agreement < 1
    assert 0 < made.measures.worst_gap < 1
    assert made.provenance.versions["relumine"] == rl.__version__


def test_membership_queries_ask_for_values_only():
    made = run_experiment(experiment(4, loss="membership"))
    assert made.spent == {"value_queries": 4, "gradient_queries": 0, "floats": 40}


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "gaussian"},
        {"source": "active"},
        {"access": Access(classes="top")},
        {"access": Access(of="probabilities")},
        {"access": Access("smoothgrad", sigma=1.0, samples=2)},
        {"access": Access("integrated-gradients", samples=3)},
        {"access": Access("absolute-gradient")},
        {"access": Access("input-times-gradient")},
    ],
    ids=str,
)
def test_every_kind_of_access_runs_and_repeats_itself(changes):
    first, again = (run_experiment(experiment(**changes)) for _ in range(2))
    assert first.error is None
    assert first.result == again.result


def test_an_error_is_a_row():
    made = run_experiment(experiment(target=replace(TARGET, data="nothing")))
    assert made.failed
    assert "MisuseError" in made.error
    assert made.measures is None


def test_a_study_runs_each_experiment_once_and_keeps_every_row(tmp_path):
    study = [experiment(1), experiment(2), experiment(1)]
    engine, seen = Inline(), []
    with RunStore(tmp_path / "rows.sqlite") as store:
        rows = run_study(study, store, engine, watch=seen.append)
        assert [each.experiment.budget for each in rows] == [1, 2, 1]
        assert [(standing.done, standing.total) for standing in seen] == [(0, 2), (1, 2), (2, 2)]
        again = Inline()
        assert run_study(study, store, again) == rows
        assert not again.ran


def test_a_failure_does_not_stop_the_others_and_is_tried_again(tmp_path):
    study = [experiment(1), experiment(2), experiment(3)]
    with RunStore(tmp_path / "rows.sqlite") as store:
        rows = run_study(study, store, Inline(lambda job: isinstance(job, Experiment) and job.budget == 2))
        assert [each.error for each in rows] == [None, "it rained", None]
        later = Inline()
        assert not any(each.failed for each in run_study(study, store, later))
        assert [job for job in later.ran if isinstance(job, Experiment)] == [study[1]]


def test_a_target_that_cannot_be_trained_fails_its_experiments_only(tmp_path):
    wild = replace(TARGET, training={"learning_rate": 1e30, "steps": 40})
    with RunStore(tmp_path / "rows.sqlite") as store, LocalProcesses(1) as engine:
        rows = run_study([experiment(1, target=wild), experiment(1)], store, engine)
    assert [each.failed for each in rows] == [True, False]
    assert "its target was not trained: MisuseError: training diverged" in rows[0].error


def test_the_store_gives_rows_back_in_the_order_asked(tmp_path):
    path = tmp_path / "deeper" / "rows.sqlite"
    with RunStore(path) as store:
        for budget in (3, 1, 2):
            store.keep(row(experiment(budget)))
        store.keep(row(experiment(2), outcome="FAILED"))
    with RunStore(path) as store:
        assert [each.experiment.budget for each in store.rows([experiment(b) for b in (1, 2, 3, 4)])] == [1, 2, 3]
        assert store.finished() == {experiment(1).key, experiment(3).key}


def test_a_store_is_held_by_one_run_at_a_time(tmp_path):
    path = tmp_path / "rows.sqlite"
    with RunStore(path), pytest.raises(rl.StoreError, match="another run is using it"):
        RunStore(path)
    RunStore(path).close()


def test_other_files_are_not_taken_for_a_store(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE theirs (x)")
    (tmp_path / "text.sqlite").write_text("no database at all, but long enough to look like one" * 20)
    for name in ("other.sqlite", "text.sqlite", "text.sqlite/rows.sqlite"):
        with pytest.raises(rl.StoreError, match="choose another folder"):
            RunStore(tmp_path / name)


def test_an_engine_runs_all_jobs_and_loses_only_the_broken():
    with LocalProcesses(2) as engine:
        roots = dict(engine.run(math.sqrt, [1, 4, -1, 9]))
        ((_, dead),) = engine.run(os._exit, [9])
        later = dict(engine.run(math.sqrt, [16]))
    assert roots.pop(-1).reason.startswith("ValueError")
    assert roots == {1: 1, 4: 2, 9: 3}
    assert dead == Lost("the process that ran it ended with code 9")
    assert later == {16: 4}


def threads(_: int) -> tuple[int, str | None]:
    import torch

    return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


def test_workers_compute_with_one_thread(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with LocalProcesses(1) as engine:
        assert [result for _, result in engine.run(threads, [0])] == [(1, "1")]
    assert "OMP_NUM_THREADS" not in os.environ


def test_the_page_on_rows_describes_every_field():
    text = (ROOT / "docs" / "rows.md").read_text()
    for record in (Row, Experiment, Target, Access, Student, Measures, Provenance):
        for name in record.__dataclass_fields__:
            assert f"`{name}`" in text, name


def test_the_exact_curve_needs_no_student_and_is_drawn_of_one_hidden_layer_only() -> None:
    from relumine.study.designs import ORDINARY, figure, scale_named

    panels = {panel.name: panel for panel in figure("main", scale_named("smoke")).panels}
    assert not panels["mnist conv"].experiments(ORDINARY)
    target = Target("two_layer", "digits", options={"hidden": 24}, training={"steps": 100})
    panel = replace(panels["mnist two_layer"], target=target)
    rows = [run_experiment(panel.experiment(ORDINARY, budget, seed=0)) for budget in (1, 20)]
    assert all(row.spent["gradient_queries"] <= row.experiment.budget for row in rows)
    few, more = (row.measures.agreement for row in rows if row.measures is not None)
    assert few < 0.99 < more


def test_exact_marks_count_what_it_takes_to_have_the_network_or_its_last_layer() -> None:
    from relumine.study.designs import EXACT, HEAD, figure, scale_named

    panels = {panel.name: panel for panel in figure("main", scale_named("smoke")).panels}
    small = {"mnist two_layer": {"hidden": 8}, "mnist conv": {"channels": (2, 3), "hidden": 6}}
    for (name, options), mark in zip(small.items(), (EXACT, HEAD), strict=True):
        target = replace(panels[name].target, options=options, training={"steps": 100})
        (asked,) = replace(panels[name], target=target).experiments(mark)
        made = run_experiment(asked)
        assert made.outcome == "RECOVERED", (made.outcome, made.remark, made.error)
        assert made.measures is not None
        assert made.measures.agreement == 1
        assert 0 < made.spent["gradient_queries"] < 40
    assert not panels["mnist conv"].experiments(EXACT)
    assert not panels["mnist linear"].experiments(HEAD)
