"""rl.audit: a model and inputs in, a verdict, a table and a report out."""

import json
from pathlib import Path

import pandas
import pytest
import skops.io
import torch
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import relumine as rl
from audits import record
from relumine.audit.data import AuditData
from relumine.audit.run import AuditProgress, run_audit
from relumine.audit.settings import AuditSettings
from relumine.audit.store import Finished
from relumine.audit.trial import subject_from
from relumine.jobs.engines import ThisProcess

X, Y = datasets.load_iris(return_X_y=True)
FOREST = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, Y)
QUICK = {"budget": 10, "seeds": 1, "progress": False}


def exposed(result: rl.Audited) -> list[str]:
    return [row["exposed"] for row in result.table]


def test_an_estimator_with_inputs_and_labels():
    result = rl.audit(FOREST, X, Y, **QUICK)
    assert exposed(result) == ["label only", "probabilities", "SHAP values"]
    assert result.about.target == "RandomForestClassifier"
    assert result.about.target_accuracy > 0.9
    assert result.verdict
    assert repr(result).startswith("<audit of RandomForestClassifier: ")
    assert 0 < max(point.agreement.mean for curve in result.curves for point in curve.points) <= 1


def test_a_regressor():
    result = rl.audit(KNeighborsRegressor().fit(X[:, :3], X[:, 3]), X[:, :3], X[:, 3], **QUICK)
    assert exposed(result) == ["values"]
    assert "R²" in result.table[0]["best"]


@pytest.mark.parametrize("predict", [FOREST.predict, FOREST.predict_proba, lambda x: X.dot([1.0, 2, 3, 4])[: len(x)]])
def test_a_function(predict):
    values = {"predict": ["label only"], "predict_proba": ["label only", "probabilities"]}
    expected = values.get(getattr(predict, "__name__", ""), ["values"])
    assert exposed(rl.audit(predict, X, levels=[], **QUICK)) == expected


def test_a_torch_module_takes_the_shape_of_the_data():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    result = rl.audit(module, X.reshape(-1, 2, 2), Y, levels=["gradients"], **QUICK | {"budget": 200})
    assert result.about.input_shape == (2, 2)
    assert result.curves[0].status == "exact"


def test_an_oracle_without_data_is_asked_at_random_inputs():
    oracle = rl.SklearnOracle(LogisticRegression(max_iter=1000).fit(X, Y), values="logits")
    result = rl.audit(oracle, levels=["gradients"], **QUICK | {"budget": 200})
    assert result.curves[0].status == "exact"
    assert any("No data was given" in warning for warning in result.warnings)


def test_files_and_tables(tmp_path: Path):
    skops.io.dump(FOREST, tmp_path / "model.skops")
    table = pandas.DataFrame(X, columns=list("abcd")).assign(kind=Y)
    table.to_csv(tmp_path / "data.csv", index=False)
    how = {"levels": ["label"], "label_column": "kind", **QUICK}
    results = [
        rl.audit(model, data, **how)
        for model in (FOREST, tmp_path / "model.skops")
        for data in (table, tmp_path / "data.csv")
    ]
    assert len({(one.about.target_accuracy, one.curves[0].points[-1].agreement.mean) for one in results}) == 1


def test_what_it_says_can_be_shown_and_saved(tmp_path: Path):
    result = rl.audit(FOREST, X, levels=["label"], fail_on=["queries-to-95 < 5"], name="<forest>", **QUICK)
    shown = result._repr_html_()
    assert "<table>" in shown
    assert "queries-to-95 &lt; 5" in shown
    assert result.save(tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads(result.save(tmp_path / "result.json").read_text())["verdict"] == result.verdict
    assert "<testsuite" in result.save(tmp_path / "junit.xml").read_text()
    with pytest.raises(rl.MisuseError, match=r"expected a file ending in .html, .json, .xml"):
        result.save(tmp_path / "report.pdf")


def test_a_run_folder_is_gone_on_with(tmp_path: Path):
    first = rl.audit(FOREST, X, levels=["label"], run=tmp_path / "run", **QUICK)
    again = rl.audit(FOREST, X, levels=["label"], run=tmp_path / "run", **QUICK)
    assert [one.seconds for one in again.records] == [one.seconds for one in first.records]
    other = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, 2 - Y)
    with pytest.raises(rl.StoreError):
        rl.audit(other, X, levels=["label"], run=tmp_path / "run", name="RandomForestClassifier", **QUICK)


@pytest.mark.parametrize(
    ("model", "data", "complaint"),
    [
        (lambda x: x, None, "give some inputs that it is for"),
        (FOREST, X[:, :3], "the target takes inputs of shape"),
        (FOREST, X[0], "expected an array of inputs, n×shape"),
        (FOREST, [["a", "b", "c", "d"]] * 4, "expected inputs that are numbers"),
        (3, X, "expected an nn.Module, an Oracle, or a model with predict_proba"),
        (RandomForestClassifier(), X, "is not fitted"),
    ],
    ids=["no data", "other shape", "one input", "words", "no model", "unfitted"],
)
def test_misuse_is_told(model, data, complaint):
    with pytest.raises(rl.RelumineError, match=complaint):
        rl.audit(model, data, **QUICK)


def test_the_package_behind_the_function_is_still_there():
    import relumine.audit.run

    assert callable(rl.audit)
    assert relumine.audit.run.run_audit


def test_a_reconstruction_is_shown_in_a_line():
    oracle = rl.SklearnOracle(LogisticRegression(max_iter=1000).fit(X, Y), values="logits")
    shown = repr(rl.Linear()(oracle, rng=0))
    assert "RECOVERED" in shown
    assert "gradient and" in shown
    assert len(shown) < 150


def test_no_more_cases_come_than_were_announced(monkeypatch, tmp_path):
    """Bisections between two budgets count too."""

    def run_case(target, case):
        found = record(0.96 if case.budget > 50 else 0.6, case.budget, case.seed, attack=case.attack, level=case.level)
        return Finished(found)

    monkeypatch.setattr("relumine.audit.run.run_case", run_case)
    seen: list[AuditProgress] = []
    subject = subject_from(rl.SklearnOracle(LogisticRegression(max_iter=99).fit(X, Y)), AuditData(X, Y, (), "iris"))
    settings = AuditSettings(target="iris", levels=("label",), budget=100, seeds=2)
    result = run_audit(settings, tmp_path, watch=seen.append, engine=ThisProcess(), subject=subject)
    assert {one.case.budget for one in result.records} - {1, 10, 100}, "nothing was bisected"
    assert all(one.done + one.left >= len(result.records) for one in seen)
    assert seen[-1].left == 0
