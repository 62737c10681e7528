"""The audit as a person uses it: a verdict, files, exit codes; strange targets; interruption and resumption."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import relumine as rl
from problems import two_layer
from relumine.audit.result import AuditResult
from relumine.audit.trial import subject_of
from relumine.cli import app
from relumine.jobs.engines import ThisProcess
from servers import ModelServer, Reply, served

TARGETS = """
import time
from pathlib import Path
import numpy as np
import torch
import relumine as rl

def network(seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    return torch.nn.Sequential(*layers).double()

def constant():
    module = network()
    with torch.no_grad():
        for parameter in module[2].parameters():
            parameter.zero_()
        module[2].bias[1] = 3.0
    return module

def labels():
    inside = rl.TorchOracle(network(), input_shape=(6,))
    def query(x, gradients):
        return np.eye(3)[inside(x, gradients=False).values.argmax(1)], None
    return rl.FunctionOracle(query, rl.Offer((6,), 3, values="label", gradients="none"))

class Failing:
    # Hangs up for good after some rows.
    def __init__(self, rows=2100):
        self.inside = rl.TorchOracle(network(), input_shape=(6,))
        self.offer = self.inside.offer
        self.left = rows

    def __call__(self, inputs, *, gradients):
        self.left -= len(inputs)
        if self.left < 0:
            raise ConnectionError("the line is dead")
        return self.inside(inputs, gradients=gradients)

class Slow:
    def __init__(self):
        self.inside = rl.TorchOracle(network(), input_shape=(6,))
        self.offer = self.inside.offer

    def __call__(self, inputs, *, gradients):
        time.sleep(0.01)
        return self.inside(inputs, gradients=gradients)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("audited.py").write_text(TARGETS)
    sys.modules.pop("audited", None)
    subject_of.cache_clear()
    # Processes would take longer to start than to do what is done here.
    monkeypatch.setattr("relumine.audit.run.engine_named", lambda *_: ThisProcess())
    monkeypatch.setattr("relumine.audit.attacks._STEPS", {10**9: 30})  # students that learn less, sooner
    return tmp_path


def relumine(*arguments: str):
    return CliRunner().invoke(app, [*arguments])


def audit(target: str, *arguments: str, budget: int = 10):
    """With one seed, so that it takes a second."""
    quick = ["--seeds", "1", "--budget", str(budget), "--run", "kept"]
    return relumine("audit", target, *quick, *arguments)


def kept() -> AuditResult:
    return AuditResult.from_json(Path("kept/result.json").read_text())


def test_a_network_is_audited_gated_and_reported(here):
    files = ["-o", "page.html", "-o", "result.json", "-o", "junit.xml"]
    gate = ["--fail-on", "gradients: queries-to-exact < 1000"]
    done = audit("audited:network", "--levels", "gradients", *gate, *files, "--price", "2", budget=1000)
    assert done.exit_code == 10, done.output
    result = AuditResult.from_json(Path("result.json").read_text())
    (curve,) = result.curves
    assert curve.status == "exact"
    need = curve.need("exact").queries
    assert need is not None
    assert 5 < need.mean < 100
    assert result.verdict in done.output
    assert [gate.status for gate in result.gates] == ["failed"]
    assert ET.parse("junit.xml").getroot() is not None
    page = Path("page.html").read_text()
    assert "<html" in page
    assert f"{need.mean:.0f}" in page
    assert result.about.price == 2
    assert "relumine" in result.about.command
    assert len(result.units) == 5
    assert max(pair.distance for pair in result.units) < 1e-6


def test_what_was_run_is_not_run_again_and_more_can_be_asked(here):
    first = audit("audited:network", "--levels", "logits", budget=1)
    assert first.exit_code == 0, first.output
    again = audit("audited:network", "--levels", "logits", budget=1)
    assert again.exit_code == 2
    assert "--resume" in again.output
    before = {record.case: record for record in kept().records}
    more = audit("audited:network", "--levels", "logits", "--resume", budget=2)
    assert more.exit_code == 0, more.output
    after = {record.case: record for record in kept().records}
    assert len(after) > len(before)
    assert {case: after[case] for case in before} == before
    other = audit("audited:constant", "--levels", "logits", "--resume", budget=1)
    assert other.exit_code == 2
    assert "another target" in other.output


def test_defences_are_curves_of_their_own_and_the_report_can_be_drawn_again(here):
    done = audit("audited:network", "--levels", "gradients", "--defences", "sign", budget=1)
    assert done.exit_code == 0, done.output
    plain, defended = kept().curves
    assert (plain.defence, defended.defence) == ("", "sign")
    assert "sign only" in defended.changes
    assert plain.usefulness is not None
    assert defended.usefulness is not None
    assert defended.usefulness.rank_correlation < 0.9 < plain.usefulness.rank_correlation
    page = Path("kept/report.html").read_text()
    Path("kept/report.html").unlink()
    assert relumine("report", "kept").exit_code == 0
    assert Path("kept/report.html").read_text() == page


def test_ctrl_c_says_how_to_go_on(here, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("relumine.audit.run.run_case", interrupted)
    done = audit("audited:network", "--levels", "label", budget=1)
    assert done.exit_code == 130
    assert "--run kept --resume goes on" in done.output


def test_another_model_of_the_same_name_is_not_mixed_in(here):
    assert audit("audited:network", "--levels", "label", budget=1).exit_code == 0
    Path("audited.py").write_text(TARGETS.replace("seed=0", "seed=1"))
    sys.modules.pop("audited")
    subject_of.cache_clear()
    done = audit("audited:network", "--levels", "label", "--resume", budget=1)
    assert done.exit_code == 2
    assert "answers otherwise" in done.output


def test_a_constant_target_is_not_called_safe(here):
    done = audit("audited:constant", "--levels", "logits")
    assert done.exit_code in (0, 3), done.output
    assert "Traceback" not in done.output
    result = kept()
    assert result.about.majority == 1
    assert result.warnings
    assert "constant" in " ".join([result.verdict, *result.warnings]).lower() or "one class" in done.output


def test_a_target_that_answers_labels_has_one_curve(here):
    done = audit("audited:labels")
    assert done.exit_code == 0, done.output
    assert [curve.level for curve in kept().curves] == ["label"]


def test_a_target_that_fails_half_way_is_inconclusive(here):
    done = audit("audited:Failing", "--levels", "logits", "--fail-on", "queries-to-95 < 5")
    assert done.exit_code == 3, done.output
    assert "Traceback" not in done.output
    assert "the line is dead" in done.output
    assert kept().curves[0].status == "inconclusive"
    assert kept().gates[0].status == "undecided"


def test_a_target_that_never_answers_is_no_verdict(here):
    Path("audited.py").write_text(TARGETS.replace("rows=2100", "rows=0"))
    done = audit("audited:Failing", "--levels", "logits")
    assert done.exit_code == 3, done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:network"], "no module 'nowhere'"),
        (["audited:network", "--levels", "everything"], "expected names of label"),
        (["audited:network", "--defences", "magic"], "defence 'magic'"),
        (["audited:network", "--fail-on", "soon"], "queries-to-95"),
        (["audited:network", "--data", "nowhere.npz"], "nowhere.npz"),
        (["audited:network", "--data", "digits"], "shape"),
        (["audited:network", "-o", "result.pdf"], ".html, .json, .xml"),
        (["audited:network", "--resume"], "no audit of"),
        (["audited:network", "--config", "nowhere.toml"], "expected a TOML file"),
        (["http://example.com/v1/models/net", "--input-shape", "6", "--outputs", "3"], "authorized"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_asked(here, arguments, message):
    done = relumine("audit", *arguments)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
    assert not list(Path().rglob("*.html"))


def test_lists_of_what_there_is(here):
    assert "integrated-gradients" in relumine("audit", "--levels", "list").output
    assert "reverse-sigmoid" in relumine("audit", "--defences", "list").output


def test_audit_toml_is_found(here):
    Path("audit.toml").write_text('target = "audited:labels"\nbudget = 1\nseeds = 1\nworkers = 1\nfail-on = ["soon"]\n')
    done = relumine("audit")
    assert done.exit_code == 2
    assert "audit.toml" in done.output
    assert "soon" in done.output


def test_a_killed_audit_goes_on(here):
    """SIGKILL in the middle; what was finished is kept, and the same command ends it."""
    command = [
        sys.executable,
        "-c",
        "from relumine.cli import main; main()",
        "audit",
        "audited:Slow",
        "--levels",
        "gradients",
    ]
    command += ["--seeds", "1", "--workers", "1", "--budget", "10", "--run", "kept"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not _records(here) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert _records(here) > 0
    assert not Path("kept/result.json").exists() or not Path("kept/result.json").read_text()
    done = audit("audited:Slow", "--levels", "gradients", "--resume")
    assert done.exit_code == 0, done.output
    assert {record.case.budget for record in kept().records} == {1, 10}


def _records(folder: Path) -> int:
    """How many are on file, without opening a file that another process holds."""
    store = folder / "kept" / "audit.sqlite"
    return store.read_bytes().count(b'"outcome"') if store.exists() else 0


def test_a_server_that_goes_away_is_left_alone(here):
    server = ModelServer(two_layer(6, 5, 3).oracle, lambda seen, _: Reply(403, {"error": "no more"}))
    with served(server) as url:
        shape = ["--input-shape", "6", "--outputs", "3", "--dtype", "float64"]
        done = relumine("audit", url, *shape, "--seeds", "3", "--budget", "10", "--run", "kept")
    assert done.exit_code == 3, done.output
    assert len(server.requests) < 10
    assert not [record for record in kept().records if record.queries]
    assert "not tried" in done.output
    assert {curve.status for curve in kept().curves} == {"inconclusive"}


def test_a_server_gives_the_same_verdict_and_every_paid_answer_is_kept(here):
    problem = two_layer(6, 5, 3, seed=3)
    quick = ["--levels", "gradients", "--seeds", "1", "--budget", "1000"]
    server = ModelServer(problem.oracle)
    with served(server) as url:
        shape = ["--input-shape", "6", "--outputs", "3", "--dtype", "float64"]
        done = relumine("audit", url, *shape, *quick, "--run", "remote")
        assert done.exit_code == 0, done.output
    remote = AuditResult.from_json(Path("remote/result.json").read_text())
    ledger = rl.Ledger("remote/ledger.sqlite")
    assert len(ledger) == server.rows
    ledger.close()
    np.savez("weights.npz", A=problem.A, b=problem.b, W=problem.W, c=problem.c)
    Path("audited.py").write_text(
        TARGETS + "\ndef same():\n    module, file = network(), np.load('weights.npz')\n"
        "    for parameter, name in zip(module.parameters(), 'AbWc'):\n"
        "        parameter.data = torch.from_numpy(file[name])\n    return module\n"
    )
    done = relumine("audit", "audited:same", *quick, "--run", "local")
    local = AuditResult.from_json(Path("local/result.json").read_text())
    assert remote.curves[0].status == local.curves[0].status == "exact"
    assert remote.curves[0].need("exact") == local.curves[0].need("exact")
    assert json.dumps(remote.verdict) == json.dumps(local.verdict)
