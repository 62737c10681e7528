"""Endpoint settings, their TOML file, the three protocols, and the command line's way to them."""

import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import relumine as rl
from problems import two_layer
from relumine.cli import app
from relumine.oracle.http.endpoint import read_endpoint
from relumine.oracle.http.protocol import found_at, protocol_of
from relumine.serve.keys import read_keys
from servers import ModelServer, Reply, Seen, served

PROBLEM = two_layer(5, 4, 3)
LOCAL = "http://127.0.0.1:8080"
OFFER = rl.Offer(inputs=(5,), outputs=3)


@pytest.mark.parametrize(
    ("url", "protocol", "asked"),
    [
        (f"{LOCAL}/v1/models/net", "kserve-v1", ("/v1/models/net:predict", "/v1/models/net:explain")),
        (f"{LOCAL}/v1/models/net:predict", "kserve-v1", ("/v1/models/net:predict", "/v1/models/net:explain")),
        (f"{LOCAL}/a/b/v1/models/net/", "kserve-v1", ("/a/b/v1/models/net:predict", "/a/b/v1/models/net:explain")),
        (f"{LOCAL}/v2/models/net/infer", "open-inference-v2", ("/v2/models/net/infer",) * 2),
        (f"{LOCAL}/v2/models/net/versions/3", "open-inference-v2", ("/v2/models/net/versions/3/infer",) * 2),
        (f"{LOCAL}/predictions/net", "torchserve", ("/predictions/net", "/explanations/net")),
        (f"{LOCAL}/explanations/net/2.0", "torchserve", ("/predictions/net/2.0", "/explanations/net/2.0")),
    ],
)
def test_an_address_tells_the_protocol(url, protocol, asked):
    endpoint = rl.Endpoint(url, OFFER)
    assert endpoint.protocol == protocol
    wire = protocol_of(endpoint)
    assert tuple(httpx.URL(wire.url(gradients=g)).raw_path.decode() for g in (False, True)) == asked


def test_another_address_may_say_its_protocol():
    endpoint = rl.Endpoint(f"{LOCAL}/score", OFFER, protocol="kserve-v1")
    assert protocol_of(endpoint).url(gradients=False) == f"{LOCAL}/score:predict"


@pytest.mark.parametrize("name", ["input data", "a.b", 'x"', "é", "x = 1\n[requests]\nrate", "", "\x7f"])
def test_names_that_a_service_chose_survive_their_file(name, tmp_path):
    request = {name: "$rows", "options": {name: 1}}
    endpoint = rl.Endpoint(f"{LOCAL}/f", OFFER, protocol="json", request=request, parameters={name: True})
    assert read_endpoint(endpoint.write(tmp_path / "named.toml")) == endpoint


@settings(max_examples=40)
@given(st.data())
def test_settings_survive_their_file(tmp_path_factory, data):
    text = st.text(max_size=20)
    endpoint = rl.Endpoint(
        "https://model.example/v1/models/net",
        rl.Offer(
            inputs=tuple(data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=3))),
            outputs=3,
            values=data.draw(st.sampled_from(["real", "logits", "probabilities"])),
            gradients=data.draw(st.sampled_from(["all", "top", "none", 0, 2])),
            random=data.draw(st.booleans()),
            box=data.draw(st.sampled_from([None, (0.0, 1.0)])),
        ),
        explained_values_at=data.draw(st.sampled_from([None, "-", "a[].b"])),
        authorized_by=data.draw(text),
        parameters=data.draw(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), text | st.integers(-9, 9))),
        rate=data.draw(st.floats(0.001, 1e6)),
        retries=data.draw(st.integers(0, 9)),
    )
    path = endpoint.write(tmp_path_factory.mktemp("endpoint") / "endpoint.toml")
    assert read_endpoint(path) == endpoint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("url = ", "expected TOML"),
        ("", "expected url = …"),
        ("url = 'http://127.0.0.1/v1/models/n'", "expected inputs = …"),
        ("url = 7\n[offer]\ninputs = [5]\noutputs = 3", "url: expected a text"),
        ("url = 'http://h/v1/models/n'\n[offer]\ninputs = 5\noutputs = 3", "Offer.inputs"),
        ("url = 'http://h/v1/models/n'\n[offer]\ninputs = [5]\noutputs = 3\ncolour = 1", "offer.colour: there is no"),
        ("url = 'http://h/v1/models/n'\ntoken = 'x'\n[offer]\ninputs = [5]\noutputs = 3", "token: there is no such"),
        ("url = 'http://h/v1/models/n'\noffer = 3", "offer: expected a table"),
        ("url = 'http://h/v1/models/n'\n[offer]\ninputs=[5]\noutputs=3\n[requests]\nbatch = 1.5", "batch: expected"),
        (
            "url = 'http://h/v1/models/n'\n[offer]\ninputs=[5]\noutputs=3\n[answers]\nvalues = 1",
            "values_at: expected a t",
        ),
        ("url = 'http://h/v1/models/n'\n[offer]\ninputs=[5]\noutputs=3\nbox = [1]", "offer.box: expected"),
        ("url = 'http://h/v1/models/n'\n[offer]\ninputs=[5]\noutputs=3\nbox = ['a', 'b']", "offer.box: expected"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_a_reason(text, message, tmp_path):
    path = tmp_path / "endpoint.toml"
    path.write_text(text)
    with pytest.raises(rl.TargetError, match=message):
        read_endpoint(path)


def test_the_file_in_the_documentation_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text()
    settings_file, json_file, key_file = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "endpoint.toml").write_text(settings_file)
    (tmp_path / "json.toml").write_text(json_file)
    (tmp_path / "keys.toml").write_text(key_file)
    endpoint = read_endpoint(tmp_path / "endpoint.toml")
    assert endpoint.offer.inputs == (1, 28, 28)
    assert not protocol_of(endpoint).values_come_with_gradients
    service = protocol_of(read_endpoint(tmp_path / "json.toml"))
    assert service.body(np.array([[41.0, 9.5]])) == {"customers": [{"age": 41.0, "income": 9.5}]}
    alice = [(b"authorization", b"Bearer a long random text")]
    assert read_keys(tmp_path / "keys.toml").who(alice, "").budget == 1000


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(rl.TargetError, match="expected a file of endpoint settings"):
        read_endpoint(tmp_path / "none.toml")


def test_places():
    body = {"explanations": [{"maps": [{"x": [1, 2]}, {"x": [3]}]}, {"maps": [{"x": [4, 5]}]}]}
    assert found_at(body, "explanations[].maps[0].x") == [[1, 2], [4, 5]]
    assert found_at(body, "explanations[1].maps[].x") == [[4, 5]]
    assert found_at([7], "") == [7]
    for place, message in {
        "nothing": "expected 'nothing' in the answer .* got one with 'explanations'",
        "explanations[5]": "got a list of 2",
        "explanations.maps": "got a list",
        "explanations[0][]": "expected a list .* got an object",
    }.items():
        with pytest.raises(rl.BadAnswerError, match=message):
            found_at(body, place)


def asked_over(change, **said: object) -> tuple[ModelServer, rl.Answer]:
    server = ModelServer(PROBLEM.oracle, change)
    with served(server) as url, rl.HttpOracle(url, offer=PROBLEM.offer, **said) as oracle:
        return server, oracle(X, gradients=True)


X = np.random.default_rng(0).standard_normal((4, 5))


def check(answer: rl.Answer) -> None:
    assert np.array_equal(answer.values, PROBLEM.predict(X))
    assert np.array_equal(answer.jacobians, PROBLEM.jacobian(X))


def test_numbers_may_sit_elsewhere():
    def wrap(seen: Seen, reply: Reply) -> Reply:
        rows = zip(reply.body["predictions"], reply.body["explanations"], strict=True)
        return Reply(200, {"data": {"results": [{"score": value, "maps": [{"x": m} for m in J]} for value, J in rows]}})

    places = {"explained_values_at": "data.results[].score", "gradients_at": "data.results[].maps[].x"}
    server, answer = asked_over(wrap, **places, parameters={"k": 3})
    check(answer)
    assert server.requests[0].body["k"] == 3


def test_values_are_asked_for_where_explanations_have_none():
    def without(seen: Seen, reply: Reply) -> Reply | None:
        explained = reply.body.get("explanations")
        return Reply(200, {"explanations": explained}) if explained else None

    server, answer = asked_over(without, explained_values_at="-")
    check(answer)
    assert [seen.path.rpartition(":")[2] for seen in server.requests] == ["predict", "explain"]
    with pytest.raises(rl.BadAnswerError, match="'-' for explained_values"):
        asked_over(without)


class OpenInference(ModelServer):
    """Speaks the Open Inference Protocol v2; explains under another name."""

    def answer(self, seen: Seen) -> Reply:
        (tensor,) = seen.body["inputs"]
        assert (tensor["name"], tensor["datatype"]) == ("x", "FP64")
        answer = self.oracle(np.reshape(tensor["data"], tensor["shape"]), gradients=True)
        outputs = {"predictions": answer.values, "explanations": answer.jacobians}
        named = [
            {"name": name, "shape": list(a.shape), "datatype": "FP64", "data": a.ravel().tolist()}
            for name, a in outputs.items()
            if name == "predictions" or "explainer" in seen.path
        ]
        return Reply(200, {"model_name": "net", "outputs": named})


def test_the_open_inference_protocol():
    server = OpenInference(PROBLEM.oracle)
    with served(server) as url:
        base = url.replace("/v1/models/net", "/v2/models/")
        said = {"offer": PROBLEM.offer, "input_name": "x"}
        with rl.HttpOracle(f"{base}net", explainer=f"{base}explainer", **said) as oracle:
            check(oracle(X, gradients=True))
            assert np.array_equal(oracle(X, gradients=False).values, PROBLEM.predict(X))
        with (
            rl.HttpOracle(f"{base}net", **said) as oracle,
            pytest.raises(rl.BadAnswerError, match="tensor named 'explanations', got 'predictions'"),
        ):
            oracle(X, gradients=True)
        server.change = lambda seen, reply: Reply(
            200, {"outputs": [{"name": "predictions", "shape": [9], "data": [1]}]}
        )
        with rl.HttpOracle(f"{base}net", **said) as oracle, pytest.raises(rl.BadAnswerError, match="of its shape"):
            oracle(X, gradients=False)


class TorchServe(ModelServer):
    """Answers bare lists, as TorchServe does, and explains one class."""

    def answer(self, seen: Seen) -> Reply:
        explain = seen.path.startswith("/explanations/")
        answer = self.oracle(np.array(seen.body["instances"]), gradients=explain)
        return Reply(200, answer.jacobians[:, 0].tolist() if explain else answer.values.tolist())


def test_torchserve():
    problem = two_layer(5, 4, 3, gradients=0)
    with served(TorchServe(problem.oracle)) as url:
        address = url.replace("/v1/models/", "/predictions/")
        with rl.HttpOracle(address, offer=problem.offer) as oracle:
            answer = oracle(X, gradients=True)
    assert np.array_equal(answer.values, PROBLEM.predict(X))
    assert np.array_equal(answer.jacobians, PROBLEM.jacobian(X)[:, :1])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def relumine(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["reconstruct", *arguments])
    assert result.exit_code == code, result.output
    return result.output


DESCRIBED = ("--input-shape", "5", "--outputs", "3", "--dtype", "float64", "--values", "real")


def test_the_command_line_asks_a_server_and_keeps_what_it_paid_for(here):
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url:
        output = relumine(url, *DESCRIBED, "--authorized-by", "our own, ticket 12", "-o", "clone.safetensors")
        asked = server.rows
        again = relumine(url, *DESCRIBED, "--authorized-by", "our own, ticket 12")
    assert "RECOVERED" in output
    assert "RECOVERED" in again
    assert server.rows == asked  # all on file
    assert re.search(r"authorised by +our own, ticket 12\n", output)
    assert re.search(rf"endpoint +{re.escape(url)}\n", output)
    assert "canary" in output
    (ledger,) = here.glob("relumine-runs/*/auto-0/ledger.sqlite")
    assert b"our own, ticket 12" in b"".join(path.read_bytes() for path in ledger.parent.iterdir())


def test_the_command_line_takes_a_file_and_corrects_it(here):
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url:
        rl.Endpoint(url, rl.Offer(inputs=(5,), outputs=4, dtype="float64"), batch=2).write("net.toml")
        output = relumine(url, "--endpoint-config", "net.toml", "--outputs", "3", "--concurrency", "1")
        assert "RECOVERED" in output
        assert max(seen.rows for seen in server.requests) == 2
        assert "describes" in relumine(f"{url}2", "--endpoint-config", "net.toml", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([f"{LOCAL}/v1/models/net"], "give --input-shape and --outputs, or --endpoint-config"),
        (["https://model.example/v1/models/net", *DESCRIBED], "own or are allowed to test"),
        (["https://model.example/elsewhere", *DESCRIBED], "url: expected"),
        ([f"{LOCAL}/v1/models/net", *DESCRIBED, "--rate", "0"], "rate: expected a positive number"),
        ([f"{LOCAL}/v1/models/net", *DESCRIBED, "--factory", "a:b"], "--factory belongs to"),
        (["some.module:factory", "--rate", "3"], "--rate belongs to a server's address"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_asked(arguments, message, here):
    assert message in relumine(*arguments, code=2)


def test_a_failing_server_is_inconclusive_and_the_same_command_goes_on(here, monkeypatch):
    monkeypatch.setattr("relumine.oracle.http.sender._FIRST_WAIT", 0.001)
    server = ModelServer(PROBLEM.oracle, lambda seen, reply: Reply(500, {}) if len(server.requests) > 6 else None)
    with served(server) as url:
        failed = relumine(url, *DESCRIBED, code=3)
        assert "what was answered is kept" in failed
        paid = {json.dumps(seen.body) + seen.path for seen in server.requests[:6]}
        server.change, server.requests = None, []
        assert "RECOVERED" in relumine(url, *DESCRIBED)
    again = [seen for seen in server.requests if json.dumps(seen.body) + seen.path in paid]
    assert sum(seen.rows for seen in again) <= 1  # a canary
