"""--defend: what is served and reconstructed behind defences, per client, and what is said about it."""

import sys
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from typer.testing import CliRunner

import relumine as rl
from problems import two_layer
from relumine import defend
from relumine.cli import app
from relumine.serve.app import make_app
from relumine.serve.keys import read_keys

D, K = 8, 3
ORACLE = two_layer(D, 6, K).oracle
X = np.random.default_rng(0).standard_normal((4, D))
PREDICT, EXPLAIN = "/v1/models/net:predict", "/v1/models/net:explain"
KEYS = '[alice]\ntoken = "alice-secret-token"\n[bob]\ntoken = "bob-secret-token"\n'
TARGET = "from problems import two_layer\n\ndef model():\n    return two_layer(8, 6, 3).oracle\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "defended_here", raising=False)
    (tmp_path / "defended_here.py").write_text(TARGET)
    (tmp_path / "keys.toml").write_text(KEYS)
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def asking(rows: np.ndarray, name: str = "alice") -> dict[str, object]:
    return {"json": {"instances": rows.tolist()}, "headers": {"Authorization": f"Bearer {name}-secret-token"}}


def client(spec: str) -> TestClient:
    return TestClient(make_app(ORACLE, "net", keys=read_keys(Path("keys.toml")), defence=defend.parse(spec)))


# Serving


def test_a_defended_model_shows_what_the_defence_shows():
    truth = ORACLE(X, gradients=True)
    reply = client("topk:2+round:3").post(EXPLAIN, **asking(X)).json()
    maps = np.array(reply["explanations"])
    assert ((maps != 0).sum(axis=2) <= 2).all()
    assert np.allclose(reply["predictions"], truth.values, atol=0.0006)
    labels = client("label")
    assert np.array_equal(
        labels.post(PREDICT, **asking(X)).json()["predictions"], np.eye(K)[truth.values.argmax(axis=1)]
    )
    assert labels.post(EXPLAIN, **asking(X)).status_code == 404


def test_refusals_are_told_with_a_reason():
    reply = client("near:2").post(PREDICT, **asking(np.vstack([X, np.full((1, D), 9.0)])))
    assert reply.status_code == 403
    assert "1 of 5 rows are refused" in reply.json()["error"]
    reply = client("box:-1,1").post(PREDICT, **asking(np.full((1, D), 2.0)))
    assert reply.status_code == 422


def test_every_client_has_a_budget_of_its_own():
    server = client("budget:6")
    assert [server.post(PREDICT, **asking(X)).status_code for _ in range(2)] == [200, 429]
    assert server.post(PREDICT, **asking(X[:2])).status_code == 200
    assert [server.post(EXPLAIN, **asking(X, "bob")).status_code for _ in range(2)] == [200, 429]


def test_only_who_searches_lines_is_refused():
    server = client("lines:5")
    line = X[0] + np.linspace(-1, 1, 20)[:, None] * X[1]
    assert server.post(PREDICT, **asking(line)).status_code == 403
    assert server.post(PREDICT, **asking(X)).status_code == 403
    assert server.post(PREDICT, **asking(X, "bob")).status_code == 200


@pytest.mark.parametrize("watched", ["", "+lines:100"])  # with a defence of its own for each client, too
def test_consistent_noise_is_the_same_for_every_client(watched):
    server = client(f"noise:0.5,consistent{watched}")
    alice, bob = (server.post(EXPLAIN, **asking(X, name)).json() for name in ("alice", "bob"))
    assert alice == bob
    assert not np.allclose(alice["predictions"], ORACLE(X, gradients=False).values)


@pytest.mark.parametrize("watched", ["", "+lines:100"])
def test_fresh_noise_does_not_cancel_between_clients(watched):
    server = client(f"noise:0.5{watched}")
    alice, bob = (np.array(server.post(EXPLAIN, **asking(X, name)).json()["predictions"]) for name in ("alice", "bob"))
    assert np.abs(alice - bob).min() > 0


def test_the_command_serves_behind_a_defence(monkeypatch):
    replies: list[dict[str, object]] = []

    def instead(application: FastAPI, listener: object) -> None:
        replies.append(TestClient(application).post(EXPLAIN, json={"instances": X.tolist()}).json())
        listener.close()

    monkeypatch.setattr("relumine.serve.server.serve", instead)
    options = ["--port", "0", "--name", "net", "--write-config", "net.toml"]
    code, text = run("serve", "defended_here:model", "--defend", "sign", "--defend", "top", *options)
    assert code == 0, text
    assert "defended: Shows of each gradient coordinate its sign only. Shows the gradient of each input's" in text
    maps = np.array(replies[0]["explanations"])
    assert maps.shape == (4, 1, D)
    assert set(np.unique(maps)) <= {-1, 0, 1}
    assert 'gradients = "top"' in Path("net.toml").read_text()


# Reconstructing


def test_a_defended_target_is_not_called_recovered():
    assert run("reconstruct", "defended_here:model")[0] == 0
    for spec in ("sign", "noise:0.1,consistent", "lines"):
        code, text = run("reconstruct", "defended_here:model", "--defend", spec, "--budget", "20000")
        assert code == 3, (spec, text)
        assert "defended: " in text


def test_a_weak_defence_is_seen_through():
    code, text = run("reconstruct", "defended_here:model", "--defend", "box:-50,50")
    assert code == 0, text
    assert "RECOVERED" in text


def test_a_run_folder_belongs_to_its_defence():
    first = ("reconstruct", "defended_here:model", "--run", "kept")
    assert run(*first)[0] == 0
    code, text = run(*first, "--defend", "box:-50,50")
    assert code == 2
    assert "kept" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["defended_here:model", "--defend", "blur"], "defence 'blur': expected one of round, noise"),
        (["defended_here:model", "--defend", "reverse-sigmoid"], "expected probabilities"),
        (["http://127.0.0.1:9/v1/models/net", "--defend", "sign"], "a server defends itself"),
        (["defended_here:model", "--defend", "budget:5", "--run", "kept"], "depend on earlier ones"),
    ],
)
def test_what_cannot_be_defended_is_a_matter_of_usage(arguments, message):
    code, text = run("reconstruct", *arguments)
    assert code == 2
    assert message in text


def test_a_budget_ends_inconclusively():
    code, text = run("reconstruct", "defended_here:model", "--defend", "budget:20")
    assert code == 3
    assert "the budget of 20 rows is spent" in text
    assert rl.TwoLayer()(defend.Budget(ORACLE, 20), 0).outcome is rl.Outcome.BUDGET_EXHAUSTED
