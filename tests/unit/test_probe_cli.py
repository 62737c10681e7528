"""relumine probe, and reconstruct behind what it found."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import relumine as rl
from problems import two_layer
from relumine.cli import app
from relumine.targets import load_target
from servers import ModelServer, served

FACTORIES = """
import torch
from relumine.explain import AbsoluteGradient, ExplainedOracle, Gradient, IntegratedGradients, SmoothGrad

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).double()

def gradient(): return ExplainedOracle(network(), Gradient(), (8,))
def absolute(): return ExplainedOracle(network(), AbsoluteGradient(), (8,))
def integrated(): return ExplainedOracle(network(), IntegratedGradients(), (8,))
def smooth(): return ExplainedOracle(network(), SmoothGrad(0.3), (8,), rng=0)
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"probed_{tmp_path.name}.py").write_text(FACTORIES)
    return f"probed_{tmp_path.name}"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_table_says_what_was_found(made):
    code, text = run("probe", f"{made}:absolute")
    assert code == 0
    assert "|gradient|" in text
    assert "signs from values" in text


def test_what_is_lost_is_said(made):
    code, text = run("probe", f"{made}:integrated")
    assert code == 0
    assert "NO GRADIENTS" in text
    assert "mixture of gradients" in text


def test_findings_as_json_and_as_a_file(made):
    code, text = run("probe", f"{made}:absolute", "--json", "--write-config", "found/probe.toml")
    assert code == 0
    found = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert (found["recipe"], found["offer"]["inputs"]) == ("absolute", [8])
    written = tomllib.loads(Path("found/probe.toml").read_text())["probe"]
    assert (written["recipe"], written["value_queries"]) == ("absolute", found["spent"]["value_queries"])


@pytest.mark.parametrize("explanation", ["absolute", "integrated", "smooth"])
def test_reconstruct_uses_what_a_preflight_found(made, explanation):
    code, text = run("reconstruct", f"{made}:{explanation}", "--probe", "-o", "clone.onnx")
    assert code == 0, text
    assert "RECOVERED" in text
    points = np.random.default_rng(0).standard_normal((50, 8))
    truth = load_target(f"{made}:network")(points, gradients=False).values
    clone = load_target("clone.onnx")(points, gradients=False).values
    np.testing.assert_allclose(clone, truth, atol=1e-7)


def test_without_an_adapter_every_phase_is_booked(made):
    code, text = run("reconstruct", f"{made}:gradient", "--probe")
    assert code == 0, text
    assert "probe  " in text
    assert "two layers: verify" in text


def test_a_run_behind_an_adapter_is_resumed(made):
    first = run("reconstruct", f"{made}:absolute", "--probe", "--run", "kept")
    second = run("reconstruct", f"{made}:absolute", "--probe", "--run", "kept")
    assert first[0] == second[0] == 0
    assert [line for line in first[1].splitlines() if "total" in line] == [
        line for line in second[1].splitlines() if "total" in line
    ]
    code, text = run("reconstruct", f"{made}:absolute", "--run", "kept")
    assert code == 2
    assert "probe" in text


def test_a_budget_holds_behind_an_adapter(made):
    code, text = run("reconstruct", f"{made}:absolute", "--probe", "--budget", "60")
    assert code == 3
    assert "BUDGET EXHAUSTED" in text


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_server_is_probed_and_then_reconstructed(tmp_path, monkeypatch, dtype):
    monkeypatch.chdir(tmp_path)
    problem = two_layer(10, 6, 3, dtype=dtype, values="logits")

    def times(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        answer = problem.oracle(x, gradients=gradients)
        maps = (x[:, None] * answer.jacobians).astype(dtype) if gradients else None
        return answer.values, maps

    server = ModelServer(rl.FunctionOracle(times, problem.offer))
    with served(server) as url:
        code, text = run("probe", url, "--input-shape", "10", "--outputs", "3", "--write-config", "server.toml")
        assert code == 0, text
        written = tomllib.loads(Path("server.toml").read_text())
        assert (written["explanation"], written["offer"]["dtype"]) == ("input-times-gradient", dtype)
        # What was paid for is kept, and is in no other run's way.
        assert list(Path("relumine-runs").glob("*/probe-*-0/ledger.sqlite"))
        assert not list(Path("relumine-runs").glob("*/ledger.sqlite"))
        asked = server.rows
        assert run("probe", url, "--input-shape", "10", "--outputs", "3")[0] == 0
        assert server.rows - asked <= 8, "only a canary is asked again"
        # Another assumption about the server is judged by its answers, not by the ledger of the first.
        code, text = run("probe", url, "--input-shape", "10", "--outputs", "3", "--gradients", "top")
        assert code == 3
        assert "gradients: expected numbers of shape" in text
        code, text = run("reconstruct", url, "--endpoint-config", "server.toml", "-o", "clone.safetensors")
        assert code == 0, text
    points = np.random.default_rng(0).standard_normal((50, 10))
    clone = load_target("clone.safetensors")(points, gradients=False).values
    np.testing.assert_allclose(clone, problem.predict(points), atol=1e-9 if dtype == "float64" else 1e-4)
