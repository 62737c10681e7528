"""The guard: a defence and a budget for each client in front of an endpoint that is there already."""

import asyncio
import inspect
import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from typer.testing import CliRunner

import hostile_answers
import relumine as rl
from problems import two_layer
from relumine import defend
from relumine.cli import app as command_line
from relumine.cli.serve import serve
from relumine.oracle.http.endpoint import Endpoint
from relumine.oracle.http.protocol import protocol_of
from relumine.serve.app import make_app
from relumine.serve.budgets import Budgets, SpentError
from relumine.serve.forwarding import Forwarding
from relumine.serve.guard import Guard
from relumine.serve.keys import Client, Keys, read_keys
from relumine.serve.payload import Limits
from servers import ModelServer, Reply, free_port, served

PROBLEM = two_layer(5, 4, 3)
X = np.random.default_rng(0).standard_normal((4, 5))
URL = "http://127.0.0.1/v1/models/net"
ENDPOINT = Endpoint(URL, PROBLEM.offer)
PREDICT, EXPLAIN = "/v1/models/net:predict", "/v1/models/net:explain"


def guarded(app: object = None, endpoint: Endpoint = ENDPOINT, **options: object) -> TestClient:
    return TestClient(Guard(app or make_app(PROBLEM.oracle, "net"), endpoint, **options))


def asking(rows: np.ndarray) -> dict[str, object]:
    return {"instances": rows.tolist()}


class Speaking:
    """An application that answers for an oracle in a protocol, and more than it is asked for."""

    def __init__(self, endpoint: Endpoint, oracle: rl.Oracle) -> None:
        self.protocol, self.oracle = protocol_of(endpoint), oracle
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.gradients = {
            self.protocol.url(gradients=wanted).partition("127.0.0.1")[2]: wanted for wanted in (False, True)
        }

    async def __call__(self, scope, receive, send) -> None:
        request = Request(scope, receive)
        self.bodies.append(await request.body())
        self.headers.append(dict(request.headers))
        wanted = self.gradients[request.url.path]  # of one address for both: with gradients
        answer = self.oracle(self.protocol.asked(orjson.loads(self.bodies[-1])), gradients=wanted)
        values = answer.values if not wanted or self.protocol.values_come_with_gradients else None
        body = self.protocol.answer(values, answer.gradients)
        if isinstance(body, dict):
            body = {"secret": "not for clients", **body}
        await Response(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))(scope, receive, send)


PLACES = {"gradients_at": "explanations[].attributions[0].map", "explained_values_at": "explanations[].values"}
COLUMNS = ("a", "b", "c", "d", "e")
AT = {"values_at": "scores[].all", "gradients_at": "why"}
SPOKEN = [
    Endpoint(URL, PROBLEM.offer),
    Endpoint(URL, PROBLEM.offer, **PLACES),
    Endpoint("http://127.0.0.1/v2/models/net", PROBLEM.offer),
    Endpoint("http://127.0.0.1/v2/models/net", PROBLEM.offer, explainer="http://127.0.0.1/v2/models/why"),
    Endpoint("http://127.0.0.1/predictions/net", PROBLEM.offer),
    Endpoint("http://127.0.0.1/invocations", PROBLEM.offer, columns=COLUMNS),
    Endpoint("http://127.0.0.1/ask", PROBLEM.offer, protocol="json", request={"a": [{"b": "$rows"}]}, **AT),
    Endpoint("http://127.0.0.1/ask", PROBLEM.offer, protocol="json", request="$records", columns=COLUMNS, **AT),
]


SPOKEN_IDS = ["kserve", "places", "open", "open-explainer", "torchserve", "mlflow", "json", "records"]


@pytest.mark.parametrize("endpoint", SPOKEN, ids=SPOKEN_IDS)
@pytest.mark.parametrize("words", ["round:2+top", "sign", "label:kept", "topk:2", "smoothgrad:3,0.1,consistent"])
def test_it_shows_what_the_defence_shows_and_nothing_else(endpoint, words):
    expected = defend.parse(words)(PROBLEM.oracle, rng=3)
    app = Speaking(endpoint, PROBLEM.oracle)
    guard = Guard(app, endpoint, defence=words, seed=3)
    protocol, client = protocol_of(guard.endpoint), TestClient(guard)
    assert guard.endpoint.offer == expected.offer
    for gradients in (True, False):
        path = protocol.url(gradients=gradients).partition("127.0.0.1")[2]
        content = orjson.dumps(protocol.body(X), option=orjson.OPT_SERIALIZE_NUMPY)
        reply = client.post(path, content=content)
        body, answer = orjson.loads(reply.content), expected(X, gradients=gradients)
        assert "secret" not in reply.text
        if gradients:
            assert np.allclose(protocol.gradients(4, body), answer.jacobians, atol=1e-12)
        if protocol.values_come_with_gradients or not gradients:
            read = protocol.explained_values if gradients else protocol.values
            assert np.allclose(read(4, body), answer.values, atol=1e-12)


def test_nothing_of_a_request_passes_but_its_rows():
    app = Speaking(ENDPOINT, PROBLEM.oracle)
    client = guarded(app, keys=Keys([], budget=3))
    twice = b'{"instances": [[1, 2, 3, 4, 5]], "debug": true, "instances": [[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]]}'
    reply = client.post(PREDICT, content=twice)
    assert reply.status_code == 200
    assert len(reply.json()["predictions"]) == len(json.loads(app.bodies[0])["instances"])
    assert set(json.loads(app.bodies[0])) == {"instances"}


ONE = b"[1, 2, 3, 4, 5]"


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [%b], "instances": [%b, %b]}' % (ONE, ONE, ONE),
        b'{"instances": [%b], "inst\\u0061nces": [%b, %b]}' % (ONE, ONE, ONE),
        b'{"instances": [%b], "": [%b]}' % (ONE, ONE),
        b'{"instances": %b}' % ONE,
        b'{"instances": [[%b]]}' % ONE,
        b'{"instances": [["1", "2", "3", "4", "5"]]}',
    ],
    ids=["twice", "escaped", "more", "flat", "deep", "texts"],
)
def test_a_request_that_could_be_read_in_another_way_is_written_anew(body):
    app = Speaking(ENDPOINT, PROBLEM.oracle)
    reply = guarded(app).post(PREDICT, content=body)
    seen = json.loads(app.bodies[0])
    assert (reply.status_code, set(seen)) == (200, {"instances"})
    assert np.shape(seen["instances"]) == (len(reply.json()["predictions"]), 5)
    assert app.bodies[0] != body
    assert app.bodies[0].count(b'"') == 2


@pytest.mark.parametrize("endpoint", SPOKEN, ids=SPOKEN_IDS)
def test_a_request_that_says_only_its_rows_passes_as_it_is(endpoint):
    app = Speaking(endpoint, PROBLEM.oracle)
    protocol = protocol_of(endpoint)
    content = json.dumps(orjson.loads(orjson.dumps(protocol.body(X), option=orjson.OPT_SERIALIZE_NUMPY)), indent=1)
    path = protocol.url(gradients=False).partition("127.0.0.1")[2]
    assert guarded(app, endpoint).post(path, content=content).status_code == 200
    assert app.bodies[0] == content.encode()


@pytest.mark.parametrize("words", ["box:-9,9", "lines:10", "round:1"])
@pytest.mark.parametrize("secret", [True, False])
def test_an_answer_that_a_defence_leaves_alone_passes_unless_it_says_more(words, secret):
    answer = PROBLEM.oracle(X, gradients=False).values.tolist()
    text = json.dumps({"predictions": answer, **({"secret": 1} if secret else {})}, indent=1)

    async def answered(_: Request) -> Response:
        return Response(text)

    reply = guarded(Starlette(routes=[Route(PREDICT, answered, methods=["POST"])]), defence=words)
    reply = reply.post(PREDICT, json=asking(X))
    assert set(reply.json()) == {"predictions"}
    assert (reply.text == text) == (not secret and words != "round:1")


def test_without_a_defence_answers_pass_as_they_are():
    app = Speaking(ENDPOINT, PROBLEM.oracle)
    assert guarded(app).post(EXPLAIN, json=asking(X)).json()["secret"]


def test_services_that_take_one_row_at_a_time_get_one():
    one = {"request": {"x": "$row"}, "values_at": "y", "gradients_at": "why", "batch": 1}
    endpoint = Endpoint("http://127.0.0.1/ask", PROBLEM.offer, protocol="json", **one)
    client = guarded(Speaking(endpoint, PROBLEM.oracle), endpoint, defence="round:2")
    shown = client.post("/ask", json={"x": X[0].tolist()}).json()
    assert np.array_equal(shown["y"], np.round(PROBLEM.predict(X[:1]), 2)[0])
    assert np.array_equal(shown["why"], np.round(PROBLEM.jacobian(X[:1]), 2)[0])


def test_columns_in_another_order_are_refused():
    endpoint = SPOKEN[SPOKEN_IDS.index("mlflow")]
    client = guarded(Speaking(endpoint, PROBLEM.oracle), endpoint, defence="round:2")
    table = {"columns": [*COLUMNS[1:], "a"], "data": X.tolist()}
    assert client.post("/invocations", json={"dataframe_split": table}).status_code == 422


@pytest.mark.parametrize("shape", [(), (1,)])
def test_answers_keep_the_shape_that_clients_know(shape):
    single = two_layer(5, 4, 1)

    async def predict(request: Request) -> Response:
        rows = np.array((await request.json())["instances"])
        return JSONResponse({"predictions": single.predict(rows).reshape(-1, *shape).tolist()})

    app = Starlette(routes=[Route(PREDICT, predict, methods=["POST"])])
    endpoint = Endpoint(URL, replace(single.offer, gradients="none"))
    shown = guarded(app, endpoint, defence="round:2").post(PREDICT, json=asking(X)).json()["predictions"]
    assert np.array_equal(shown, np.round(single.predict(X), 2).reshape(4, *shape))


def test_a_question_does_not_pass_as_the_body_of_a_get():
    async def answer(request: Request) -> Response:
        said = await request.body()
        return JSONResponse({"read": len(said), "declared": request.headers.get("content-length")})

    with guarded(Starlette(routes=[Route(PREDICT, answer, methods=["GET", "POST"])])) as client:
        reply = client.request("GET", PREDICT, content=orjson.dumps(asking(X[:1]).copy()))
    assert reply.json() == {"read": 0, "declared": None}


def test_other_ways_to_the_model_are_closed():
    client = guarded(defence="label")
    for method, path in [
        ("POST", "/v1/models/net:explain2"),
        ("POST", "//v1/models/net:predict"),
        ("PUT", PREDICT),
        ("GET", f"{PREDICT}?x=1"),
        ("POST", "/v1/models/net"),
        ("DELETE", "/"),
    ]:
        assert client.request(method, path, json=asking(X)).status_code == 404, path
    assert client.post(EXPLAIN, json=asking(X)).status_code == 404  # the defence shows no explanations
    assert client.get("/healthz").json() == {"status": "alive"}


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 10_000, 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"instances": []}', 422),
        (b'{"instances": [[1, 2]]}', 422),
        (b'{"instances": [[1, 2, 3, 4, null]]}', 422),
        (b'{"instances": [[1, 2, 3, 4, 1e999]]}', 400),
        (b'{"instances": {"a": 1}}', 422),
        (b'{"instances": "abcde"}', 422),
        (b'{"instances": [' + b"[1, 2, 3, 4, 5]," * 8 + b"[1, 2, 3, 4, 5]]}", 422),
        (b" " * 20_001, 413),
    ],
)
def test_nonsense_is_refused_with_a_reason_and_costs_nothing(content, status):
    budgets = Budgets()
    client = guarded(budgets=budgets, limits=Limits(rows=8, body_bytes=20_000))
    reply = client.post(PREDICT, content=content)
    assert reply.status_code == status, reply.text
    assert "expected" in reply.json()["error"]
    assert not budgets.used()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (JSONResponse({"predictions": [[1, 2]]}), 502),
        (JSONResponse({"other": 1}), 502),
        (Response(b"no json"), 502),
        (Response(b"[" * 3000), 502),
        (Response(b" " * 20_000_000), 502),
        (JSONResponse({"error": "asleep"}, 503), 503),
        (JSONResponse({"error": "who?"}, 401), 401),
    ],
    ids=["too few", "elsewhere", "no JSON", "deep", "long", "asleep", "who"],
)
def test_what_the_application_says_otherwise_is_not_shown_as_an_answer(said, status):
    async def answer(_: Request) -> Response:
        return said

    app = Starlette(routes=[Route(PREDICT, answer, methods=["POST"])])
    reply = guarded(app, defence="round:2").post(PREDICT, json=asking(X))
    assert reply.status_code == status
    assert reply.json()["error"]


def test_a_defence_remembers_each_client_by_itself():
    client = guarded(defence="budget:4", keys=Keys([], header="X-API-Key"))

    def ask(name: str) -> int:
        return client.post(PREDICT, json=asking(X), headers={"X-API-Key": name}).status_code

    assert [ask("a"), ask("b"), ask("a"), ask("b")] == [200, 200, 429, 429]


def test_clients_are_told_apart_by_a_header():
    client = guarded(keys=Keys([], budget=5, header="X-API-Key"))

    def ask(*names: str) -> int:
        headers = [("X-API-Key", name) for name in names]
        return client.post(PREDICT, json=asking(X), headers=headers).status_code

    assert [ask("a"), ask("b"), ask("a"), ask(), ask("c", "d")] == [200, 200, 429, 401, 401]


@pytest.mark.parametrize("name", ["", "X Bad", "Ж", "a:b"])
def test_what_no_header_is_called_is_refused(name):
    with pytest.raises(rl.MisuseError, match="--client-header: expected the name of a header"):
        Keys([], header=name)


def test_a_token_for_the_guard_is_not_shown_to_the_application(tmp_path):
    (tmp_path / "keys.toml").write_text('[alice]\ntoken = "alice-secret-token"\n')
    app = Speaking(ENDPOINT, PROBLEM.oracle)
    client = guarded(app, keys=read_keys(tmp_path / "keys.toml"))
    headers = {"Authorization": "Bearer alice-secret-token", "X-Trace": "7"}
    assert client.post(PREDICT, json=asking(X), headers=headers).status_code == 200
    assert client.post(PREDICT, json=asking(X)).status_code == 401
    assert "authorization" not in app.headers[0]
    assert app.headers[0]["x-trace"] == "7"
    assert len(app.headers) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("", "", True),
    ],
)
def test_clients_are_told_apart_by_their_network(one, other, same):
    keys = Keys([])
    assert (keys.who([], one) == keys.who([], other)) == same
    assert keys.who([(b"x-forwarded-for", b"1.2.3.4")], one) == keys.who([], one)


def test_budgets_outlive_the_server_and_say_what_remains(tmp_path):
    path = tmp_path / "budgets.sqlite"
    keys = Keys([], budget=6)
    assert guarded(keys=keys, budgets=Budgets(path)).post(PREDICT, json=asking(X)).status_code == 200
    client = guarded(keys=keys, budgets=Budgets(path))
    refused = client.post(EXPLAIN, json=asking(X))
    assert refused.status_code == 429
    assert refused.json()["error"] == "the budget of 6 rows is spent: 4 used, 4 more asked; it is not renewed"
    assert "retry-after" not in refused.headers
    assert client.post(PREDICT, json=asking(X[:2])).status_code == 200
    assert client.post(PREDICT, json=asking(X[:1])).status_code == 429


def test_a_budget_is_renewed_after_its_period(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("relumine.serve.budgets.time", SimpleNamespace(time=lambda: now[0]))
    client = guarded(keys=Keys([], budget=6), budgets=Budgets(period=60))
    statuses = []
    for now[0] in (1000.0, 1059.5, 1060.0, 1119.0, 1121.0):
        reply = client.post(PREDICT, json=asking(X))
        statuses.append((reply.status_code, reply.headers.get("retry-after")))
    assert statuses == [(200, None), (429, "1"), (200, None), (429, "1"), (200, None)]


def test_more_rows_than_a_budget_has_are_refused_for_good():
    with pytest.raises(SpentError, match="ask fewer"):
        Budgets().spend(Client("a", 3), 4)


def test_fifty_clients_at_once_get_no_more_than_their_budgets(tmp_path):
    """Through two servers that share one file, as with several workers."""
    path, sizes = tmp_path / "budgets.sqlite", np.random.default_rng(0).integers(1, 5, (50, 12))
    keys = Keys([], budget=20, header="X-API-Key")
    app = make_app(PROBLEM.oracle, "net")
    servers = [TestClient(Guard(app, ENDPOINT, keys=keys, budgets=Budgets(path))) for _ in range(2)]

    def ask(client: int) -> int:
        """Of two connections each, one shares its key with all others."""
        answered = 0
        for i, n in enumerate(sizes[client]):
            headers = {"X-API-Key": f"key {client}" if i % 2 else "shared"}
            reply = servers[i % 2].post(PREDICT, json=asking(np.ones((n, 5))), headers=headers)
            assert reply.status_code in (200, 429)
            answered += len(reply.json()["predictions"]) if reply.status_code == 200 and not i % 2 else 0
        return answered

    with ThreadPoolExecutor(50) as pool:
        shared = sum(pool.map(ask, range(50)))
    assert shared == 20
    used = dict(sqlite3.connect(path).execute("SELECT client, rows FROM used"))
    assert len(used) == 51
    assert max(used.values()) <= 20
    assert sorted(used.values())[25] >= 13  # a client's six requests ask for 15 rows in the mean


KILLED = """
import os, sys
from relumine.serve.budgets import Budgets
from relumine.serve.keys import Client
budgets = Budgets(sys.argv[1])
for _ in range(int(sys.argv[2])):
    budgets.spend(Client("a", 1000), 1)
    print(1, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_was_counted_is_kept_when_the_server_is_killed(tmp_path):
    path = tmp_path / "budgets.sqlite"
    for count in (300, 700, 10):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(path), str(count)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode in (-9, 1)
    assert Budgets(path).used() == {"a": 1000}
    assert "SpentError" in done.stderr


def test_a_kill_loses_a_client_no_more_than_a_hundredth_of_its_budget(tmp_path):
    path, client = tmp_path / "budgets.sqlite", Client("a", 1000)
    killed = Budgets(path)
    killed.spend(client, 3)
    assert killed.used() == {"a": 3}
    after = Budgets(path)
    assert 3 <= after.used()["a"] <= 13
    for rows in (980, *[1] * 7):
        after.spend(client, rows)
    while after.used()["a"] < 1000:
        after.spend(client, 1)
    with pytest.raises(SpentError):
        after.spend(client, 1)


def test_a_server_that_stops_gives_back_what_nobody_asked_for(tmp_path):
    path, client = tmp_path / "budgets.sqlite", Client("a", 1000)
    for number in range(1, 1001):
        budgets = Budgets(path)
        budgets.spend(client, 1)
        budgets.close()
        if number % 250 == 0:
            assert Budgets(path).used() == {"a": number}
    with pytest.raises(SpentError):
        Budgets(path).spend(client, 1)


def test_what_cannot_be_counted_is_not_answered(tmp_path):
    path = tmp_path / "budgets.sqlite"
    client = guarded(budgets=Budgets(path))
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE used")
    reply = client.post(PREDICT, json=asking(X))
    assert reply.status_code == 503
    assert "nothing is answered uncounted" in reply.json()["error"]


@pytest.mark.parametrize("kind", ["folder", "text", "elsewhere", "another"])
def test_a_budget_file_that_is_none_is_refused(kind, tmp_path):
    path = tmp_path / "budgets.sqlite"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no database " * 100)
    elif kind == "elsewhere":
        path = tmp_path / "nowhere" / "budgets.sqlite"
    else:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE used (name)")
    with pytest.raises(rl.MisuseError, match="--budget-file"):
        Budgets(path)


def test_an_application_with_threads_of_its_own_is_not_starved():
    """Its answers wait for the common threads, the guard's must not hold these."""

    def slow(_: Request) -> Response:
        return JSONResponse({"predictions": PROBLEM.predict(X).tolist()})

    guard = Guard(Starlette(routes=[Route(PREDICT, slow, methods=["POST"])]), ENDPOINT, defence="round:3")

    async def many() -> list[int]:
        import httpx

        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://here") as client:
            replies = await asyncio.gather(*(client.post(PREDICT, json=asking(X)) for _ in range(100)))
        return [reply.status_code for reply in replies]

    assert asyncio.run(asyncio.wait_for(many(), 60)) == [200] * 100


def test_it_stands_in_front_of_a_server_elsewhere(monkeypatch):
    monkeypatch.setenv("RELUMINE_AUTHORIZATION", "Bearer of-the-server")
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url:
        endpoint = Endpoint(url, PROBLEM.offer)
        with TestClient(Guard(Forwarding(endpoint), endpoint, defence="round:2")) as client:
            shown = client.post(EXPLAIN, json=asking(X), headers={"Authorization": "Bearer of-the-client"}).json()
            assert client.get("/healthz").json() == {"status": "alive"}
    assert np.array_equal(shown["explanations"], np.round(PROBLEM.jacobian(X), 2))
    assert server.requests[0].headers["authorization"] == "Bearer of-the-server"


@pytest.mark.parametrize("target", ["@127.0.0.1:{}/x", ".evil.example/x", "http://127.0.0.1:{}/x", "/v1/models/net"])
def test_a_path_leads_to_no_other_server(target):
    """uvicorn hands on whatever stands between GET and HTTP/1.1."""
    reached, other = ModelServer(PROBLEM.oracle), ModelServer(PROBLEM.oracle)
    looked = []
    reached.described = lambda path: Reply(body={"here": path})
    other.described = lambda path: looked.append(path) or Reply(body={"elsewhere": path})
    with served(reached) as url, served(other) as elsewhere:
        endpoint = Endpoint(url, PROBLEM.offer)
        server = uvicorn.Server(
            uvicorn.Config(Guard(Forwarding(endpoint), endpoint), port=free_port(), http="h11", log_level="error")
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            port = elsewhere.split(":")[2].split("/")[0]
            with socket.create_connection(("127.0.0.1", server.config.port)) as client:
                client.sendall(f"GET {target.format(port)} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
                said = b"".join(iter(lambda: client.recv(4096), b""))
        finally:
            server.should_exit = True
            thread.join()
    assert (b" 200 " in said, b"here" in said) == ((True, True) if target.startswith("/v1") else (False, False))
    assert not looked


def test_a_server_that_is_gone_is_a_sentence():
    with served(ModelServer(PROBLEM.oracle)) as url:
        endpoint = Endpoint(url, PROBLEM.offer)
    with TestClient(Guard(Forwarding(endpoint), endpoint, defence="round:2")) as client:
        reply = client.post(PREDICT, json=asking(X))
    assert (reply.status_code, reply.json()) == (502, {"error": "the model server does not answer"})


def test_a_connection_that_is_lost_is_tried_again():
    lost = iter([True])

    def hang_up(seen, reply):
        if next(lost, False):
            raise ConnectionResetError

    with served(ModelServer(PROBLEM.oracle, hang_up)) as url:
        endpoint = Endpoint(url, PROBLEM.offer)
        with TestClient(Guard(Forwarding(endpoint), endpoint, defence="round:2")) as client:
            assert client.post(PREDICT, json=asking(X)).status_code == 200


def test_an_answer_that_is_cut_off_is_a_sentence():
    with hostile_answers.answering({"net": [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"]}) as url:
        endpoint = Endpoint(f"{url}net", PROBLEM.offer)
        with TestClient(Guard(Forwarding(endpoint), endpoint, defence="round:2")) as client:
            reply = client.post(PREDICT, json=asking(X))
    assert (reply.status_code, reply.json()) == (502, {"error": "the answer of the model server was cut off"})


def test_a_server_that_is_not_on_this_machine_needs_authorisation():
    with pytest.raises(rl.MisuseError, match="--authorized-by"):
        Forwarding(Endpoint("http://203.0.113.1/v1/models/net", PROBLEM.offer))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a MODEL to serve or --in-front-of URL"),
        (["x.onnx", "--in-front-of", URL], "expected a MODEL to serve or --in-front-of URL"),
        (["--in-front-of", URL], "give --input-shape and --outputs"),
        (["--in-front-of", "ftp://x", "--input-shape", "5", "--outputs", "3"], "expected http"),
        (["--in-front-of", URL, "--input-shape", "5", "--outputs", "3", "--defend", "rund:4"], "rund"),
        (["--in-front-of", URL, "--input-shape", "5", "--outputs", "3", "--budget-hours", "0"], "positive"),
        (["--in-front-of", URL, "--input-shape", "5", "--outputs", "3", "--budget-file", "."], "--budget-file"),
    ],
)
def test_wrong_options_are_said(arguments, message):
    result = CliRunner().invoke(command_line, ["serve", *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_reconstruction_through_the_guard_is_that_of_the_defended_model(tmp_path):
    """Measured over HTTP as in memory: the same questions, the same answers, the same outcome."""
    words = "round:6+top"
    server = ModelServer(PROBLEM.oracle)
    expected = rl.TwoLayer()(defend.parse(words)(PROBLEM.oracle, rng=0), rng=0)
    with served(server) as url:
        endpoint = Endpoint(url, PROBLEM.offer)
        with TestClient(Guard(Forwarding(endpoint), endpoint, defence=words)) as client:

            def query(x, gradients):
                body = client.post(EXPLAIN if gradients else PREDICT, json=asking(x)).json()
                return np.array(body["predictions"]), np.array(body["explanations"]) if gradients else None

            offer = defend.parse(words)(PROBLEM.oracle).offer
            result = rl.TwoLayer()(rl.FunctionOracle(query, offer), rng=0)
    assert result.outcome == expected.outcome
    assert result.spent == expected.spent
    assert np.array_equal(result.predict(X), expected.predict(X))


def test_noise_cannot_be_foretold_unless_a_seed_is_given():
    def shown(**options: object) -> list[list[float]]:
        return guarded(defence="noise:0.1", **options).post(PREDICT, json=asking(X)).json()["predictions"]

    assert shown() not in (shown(), shown(seed=0))
    assert shown(seed=0) == shown(seed=0)
    assert inspect.signature(serve).parameters["seed"].default is None
