"""relumine serve: what it answers, to whom, how much, and what it makes of nonsense."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import schemathesis
import torch
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import relumine as rl
from problems import two_layer
from relumine.serve.app import make_app
from relumine.serve.budgets import Budgets
from relumine.serve.explained import Choice, explained
from relumine.serve.keys import Client, Keys, read_keys
from relumine.serve.payload import Limits
from relumine.serve.server import listen

PROBLEM = two_layer(5, 4, 3)
X = np.random.default_rng(0).standard_normal((4, 5))
PREDICT, EXPLAIN = "/v1/models/net:predict", "/v1/models/net:explain"
KEYS = """
[alice]
token = "alice-secret-token"
budget = 50

[bob]
token = "bob-secret-token"
"""


def keys_in(folder: Path, text: str = KEYS, **options: object) -> Keys:
    path = folder / "keys.toml"
    path.write_text(text)
    return read_keys(path, **options)


def who(keys: Keys, authorization: str) -> Client | None:
    return keys.who([(b"Authorization", authorization.encode(errors="surrogatepass"))], "127.0.0.1")


def client(oracle: rl.Oracle = PROBLEM.oracle, **options: object) -> TestClient:
    return TestClient(make_app(oracle, "net", **options))


def asking(rows: np.ndarray) -> dict[str, object]:
    return {"instances": rows.tolist()}


def as_json(body: object) -> bytes:
    return json.dumps(body).encode()


LIMITED = client(limits=Limits(rows=8, body_bytes=20_000))


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-secret-token"}


def test_it_answers_as_kserve_does():
    server = client()
    assert server.get("/v1/models").json() == {"models": ["net"]}
    assert server.get("/v1/models/net").json() == {"name": "net", "ready": True}
    for path in ("/", "/healthz", "/readyz", "/docs", "/openapi.json"):
        assert server.get(path).status_code == 200
    assert np.array_equal(server.post(PREDICT, json=asking(X)).json()["predictions"], PROBLEM.predict(X))
    explained = server.post(EXPLAIN, json=asking(X)).json()
    assert np.array_equal(explained["predictions"], PROBLEM.predict(X))
    assert np.array_equal(explained["explanations"], PROBLEM.jacobian(X))


def test_numbers_of_a_float32_model_have_float32_s_digits():
    problem = two_layer(5, 4, 3, dtype="float32")
    text = client(problem.oracle).post(PREDICT, json=asking(X)).text
    assert max(len(number.strip("[]-")) for number in text.split(":")[1].strip("}").split(",")) <= 12
    values = np.array(json.loads(text)["predictions"], dtype=np.float32).astype(np.float64)
    assert np.array_equal(values, problem.oracle(X, gradients=False).values)


def test_inputs_and_explanations_have_the_model_s_shape():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 2)).double()
    server = client(rl.TorchOracle(module, (1, 2, 3)))
    assert np.shape(server.post(EXPLAIN, json=asking(np.ones((2, 1, 2, 3)))).json()["explanations"]) == (2, 2, 1, 2, 3)
    assert server.post(EXPLAIN, json=asking(np.ones((2, 6)))).status_code == 422


def test_a_model_without_gradients_explains_nothing():
    server = client(two_layer(5, 4, 3, gradients="none").oracle)
    assert server.post(EXPLAIN, json=asking(X)).status_code == 404
    assert server.post(PREDICT, json=asking(X)).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "expected JSON"),
        (b"\xff\x00", 400, "expected JSON"),
        (b"{", 400, "expected JSON"),
        (b"[" * 10_000, 400, "expected JSON"),
        (b"[]", 422, "the body"),
        (b"{}", 422, "instances"),
        (b'{"instances": 3}', 422, "instances"),
        (b'{"instances": []}', 422, "instances"),
        (b'{"instances": [[1, 2]]}', 422, r"instances[0]"),
        (b'{"instances": [[1, 2, 3, 4, "5"]]}', 422, "instances[0][4]"),
        (b'{"instances": [[1, 2, 3, 4, true]]}', 422, "instances[0][4]"),
        (b'{"instances": [[1, 2, 3, 4, null]]}', 422, "instances[0][4]"),
        (b'{"instances": [[1, 2, 3, 4, NaN]]}', 422, "instances[0][4]"),
        (b'{"instances": [[1, 2, 3, 4, Infinity]]}', 422, "instances[0][4]"),
        (b'{"instances": [[1, 2, 3, 4, 1e999]]}', 422, "instances[0][4]"),
        (b'{"instances": [[1, 2, 3, 4, 1e300]]}', 422, "instances[0][4]"),
        (b'{"instances": [[1, 2, 3, 4, ' + b"9" * 6000 + b"]]}", 400, ""),
        (b'{"instances": [' + b"[1, 2, 3, 4, 5]," * 8 + b"[1, 2, 3, 4, 5]]}", 422, "at most 8 items"),
        (b" " * 20_001, 413, "at most 20000 bytes"),
    ],
)
def test_nonsense_is_refused_with_a_reason(body, status, message):
    server = client(limits=Limits(rows=8, body_bytes=20_000))
    for path in (PREDICT, EXPLAIN):
        reply = server.post(path, content=body)
        assert reply.status_code == status, reply.text
        assert message in reply.json()["error"]


ROWS = st.lists(
    st.lists(JUNK := st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)), max_size=9
)
PAYLOADS = (
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.recursive(JUNK, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner)).map(as_json)
    | st.fixed_dictionaries({"instances": ROWS | JUNK}).map(as_json)
    | st.lists(st.lists(st.floats(), min_size=5, max_size=5), max_size=9).map(lambda rows: as_json({"instances": rows}))
)


@settings(max_examples=300, deadline=None)
@given(PAYLOADS, st.sampled_from([PREDICT, EXPLAIN]), st.sampled_from(["application/json", "text/plain", "x"]))
def test_no_payload_is_an_error_of_the_server(content, path, kind):
    reply = LIMITED.post(path, content=content, headers={"Content-Type": kind})
    assert reply.status_code in (200, 400, 413, 422)
    body = reply.json()
    assert list(body) == (["error"] if reply.status_code != 200 else ["predictions", "explanations"][: len(body)])


def test_a_body_of_unknown_length_is_read_no_further_than_allowed():
    read = itertools.count()

    def endless():
        while next(read) < 10_000:
            yield b" " * 1000

    assert client(limits=Limits(body_bytes=20_000)).post(PREDICT, content=endless()).status_code == 413


def test_what_is_not_there_is_said_as_kserve_says_it():
    server = client()
    assert server.post("/v1/models/nope:predict", json=asking(X)).status_code == 404
    assert "error" in server.get(PREDICT).json()
    assert server.get(PREDICT).status_code == 405


def test_an_answer_that_is_not_finite_is_no_fault_of_the_server():
    huge = two_layer(5, 4, 3).changed(W=np.full((3, 4), 1e300), A=np.full((4, 5), 1e300))
    with np.errstate(over="ignore", invalid="ignore"):
        reply = client(huge.oracle).post(PREDICT, json=asking(np.ones((1, 5))))
    assert reply.status_code == 422
    assert "no finite answer" in reply.json()["error"]


def test_a_wrong_token_never_gets_an_answer(tmp_path):
    server = client(keys=keys_in(tmp_path))
    wrong = ["", "Bearer", "Bearer ", "alice-secret-token", "Basic alice-secret-token", "Bearer alice-secret-toke"]
    wrong += ["Bearer alice-secret-token2", "Bearer ALICE-SECRET-TOKEN", "Bearer [alice]", "Bearer ü".encode("latin-1")]
    for path in (PREDICT, EXPLAIN):
        for header in [{}, *({"Authorization": value} for value in wrong)]:
            for body in (json.dumps(asking(X)).encode(), b"nonsense"):
                reply = server.post(path, content=body, headers=header)
                assert (reply.status_code, list(reply.json())) == (401, ["error"])
        assert server.post(path, json=asking(X), headers=as_("bob")).status_code == 200


@given(st.text(max_size=40))
@settings(max_examples=50)
def test_no_text_is_taken_for_a_token(tmp_path_factory, text):
    keys = keys_in(tmp_path_factory.mktemp("keys"))
    assert who(keys, f"Bearer {text}") is None
    assert who(keys, text) is None
    assert who(keys, "bearer bob-secret-token").name == "bob"


def test_budgets_are_kept_to_the_row(tmp_path):
    keys = keys_in(tmp_path, budget=7)
    budgets = Budgets()
    server = client(keys=keys, budgets=budgets)
    rows = np.ones((3, 5))
    assert [server.post(PREDICT, json=asking(rows), headers=as_("bob")).status_code for _ in range(3)] == [
        200,
        200,
        429,
    ]
    assert server.post(EXPLAIN, json=asking(rows[:1]), headers=as_("bob")).status_code == 200
    refused = server.post(EXPLAIN, json=asking(rows[:1]), headers=as_("bob"))
    assert "budget of 7 rows is spent: 7 used, 1 more asked" in refused.json()["error"]
    assert server.post(PREDICT, json=asking(rows), headers=as_("alice")).status_code == 200
    assert server.post(PREDICT, json={}, headers=as_("alice")).status_code == 422
    assert budgets.used() == {"bob": 7, "alice": 3}


def test_concurrent_requests_never_exceed_a_budget(tmp_path):
    server = client(keys=keys_in(tmp_path))
    sizes = np.random.default_rng(0).integers(1, 6, 60)

    def ask(n: int) -> int:
        reply = server.post(PREDICT, json=asking(np.ones((n, 5))), headers=as_("alice"))
        assert reply.status_code in (200, 429)
        return int(n) if reply.status_code == 200 else 0

    with ThreadPoolExecutor(8) as pool:
        answered = sum(pool.map(ask, sizes))
    assert 50 - 5 < answered <= 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one key"),
        ("[alice", "expected TOML"),
        ("alice = 'x'", "expected a table"),
        ("[alice]\nbudget = 3", "expected a token"),
        ("[alice]\ntoken = 'short'", "at least 8"),
        ("[alice]\ntoken = 'long enough'\nbudget = 0", "at least 1 row"),
        ("[alice]\ntoken = 'long enough'\nbudget = true", "at least 1 row"),
        ("[alice]\ntoken = 'long enough'\ncolour = 1", "expected a table with token"),
        ("[alice]\ntoken = 'long enough'\n[bob]\ntoken = 'long enough'", "got one twice"),
    ],
)
def test_a_key_file_that_is_wrong_is_refused_without_showing_tokens(text, message, tmp_path):
    with pytest.raises(rl.MisuseError, match=message) as caught:
        keys_in(tmp_path, text)
    assert "long enough" not in str(caught.value)
    assert "short" not in str(caught.value)


def test_other_machines_need_keys():
    with pytest.raises(rl.MisuseError, match="expected --key-file"):
        listen("0.0.0.0", 0, needs_keys=True)
    listen("0.0.0.0", 0, needs_keys=False).close()
    with listen("127.0.0.1", 0, needs_keys=True) as taken, pytest.raises(rl.MisuseError, match="choose another --port"):
        listen("127.0.0.1", taken.getsockname()[1], needs_keys=True)


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "..", "ü", "a b"])
def test_names_that_are_no_part_of_an_address_are_refused(name):
    with pytest.raises(rl.MisuseError, match="--name: expected"):
        make_app(PROBLEM.oracle, name)


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3)).double()


def shown(**choice: object) -> rl.Oracle:
    return explained(rl.TorchOracle(module(), (5,)), Choice(**choice))


def test_explanations_are_as_chosen():
    gradient = shown()(X, gradients=True)
    assert np.allclose(shown(explain="absolute-gradient")(X, gradients=True).jacobians, np.abs(gradient.jacobians))
    scaled = shown(explain="input-times-gradient")(X, gradients=True).jacobians
    assert np.allclose(scaled, X[:, None] * gradient.jacobians)
    assert shown(explain="smoothgrad").offer.random
    assert shown(explain="none").offer.gradients == "none"
    integrated = shown(explain="integrated-gradients")(X, gradients=True)
    origin = shown()(np.zeros((1, 5)), gradients=False).values
    assert np.allclose(integrated.jacobians.sum(axis=2), integrated.values - origin, atol=0.05)


def test_classes_kind_and_precision_are_as_chosen():
    top = shown(classes="top", of="probabilities", dtype="float32")
    assert (top.offer.gradients, top.offer.values, top.offer.dtype) == ("top", "probabilities", "float32")
    values = shown()(X, gradients=False).values
    expected = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    assert np.allclose(top(X, gradients=True).values, expected, atol=1e-6)


def test_a_softmax_is_not_put_behind_a_softmax():
    ended = torch.nn.Sequential(module(), torch.nn.Softmax(dim=1))
    oracle = rl.TorchOracle(ended, (5,), values="probabilities")
    expected = oracle(X, gradients=True)
    assert np.allclose(explained(oracle, Choice(of="probabilities"))(X, gradients=True).jacobians, expected.jacobians)
    with pytest.raises(rl.MisuseError, match="say --of real"):
        explained(oracle, Choice(explain="absolute-gradient", of="probabilities"))
    real = explained(oracle, Choice(explain="absolute-gradient", of="real"))
    assert np.allclose(real(X, gradients=True).jacobians, np.abs(expected.jacobians))


def test_other_models_show_what_they_answer():
    oracle = PROBLEM.oracle
    assert explained(oracle, Choice()) is oracle
    with pytest.raises(rl.MisuseError, match="expected a torch module"):
        explained(oracle, Choice(explain="smoothgrad"))


def protected() -> FastAPI:
    with TemporaryDirectory() as folder:
        return make_app(PROBLEM.oracle, "net", keys=keys_in(Path(folder)), limits=Limits(rows=8))


PROTECTED = schemathesis.openapi.from_asgi("/openapi.json", protected())


@PROTECTED.parametrize()
@settings(max_examples=20, deadline=None)
def test_its_openapi_page_is_true_with_tokens(case):
    case.call_and_validate(headers=as_("bob"))


SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", make_app(PROBLEM.oracle, "net", limits=Limits(rows=8)))


@SCHEMA.parametrize()
@settings(max_examples=40, deadline=None)
def test_its_openapi_page_is_true(case):
    case.call_and_validate()
