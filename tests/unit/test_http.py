"""HttpOracle: what it asks, what it refuses, and that nothing paid for is lost."""

import logging
import signal
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import example, given, settings
from hypothesis import strategies as st

import relumine as rl
from problems import Noisy, error, two_layer
from relumine.oracle.base import RemoteOracle
from relumine.oracle.http.protocol import protocol_of
from relumine.oracle.http.sender import USER_AGENT
from servers import ModelServer, Reply, Seen, free_port, served

PROBLEM = two_layer(5, 4, 3)
QUICK = {"retries": 2, "timeout": 5.0}


@pytest.fixture(autouse=True)
def _waits_are_short(monkeypatch):
    monkeypatch.setattr("relumine.oracle.http.sender._FIRST_WAIT", 0.01)


def rows(n: int, seed: int = 0, d: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def oracle_of(url: str, folder: Path, offer: rl.Offer = PROBLEM.offer, **said: object) -> rl.HttpOracle:
    return rl.HttpOracle(url, offer=offer, run=folder, **QUICK | said)


def ask_often(metered: rl.Metered, *, gradients: bool) -> None:
    for i in range(9):
        metered(rows(20, i + 1), gradients=gradients)


def always(**reply: object):
    return lambda seen, answer: Reply(**reply)


def once(reply: Reply):
    """Say this instead of the first answer."""
    said = threading.Event()

    def change(seen: Seen, answer: Reply) -> Reply | None:
        first = not said.is_set()
        said.set()
        return reply if first else None

    return change


def test_numbers_cross_the_wire_unchanged(tmp_path):
    with served(ModelServer(PROBLEM.oracle)) as url, oracle_of(url, tmp_path) as oracle:
        x = rows(9)
        assert isinstance(oracle, RemoteOracle)
        assert np.array_equal(oracle(x, gradients=False).values, PROBLEM.predict(x))
        explained = oracle(x, gradients=True)
    assert np.array_equal(explained.jacobians, PROBLEM.jacobian(x))


def test_inputs_are_sent_in_their_shape(tmp_path):
    problem = two_layer(6, 4, 3)
    offer = rl.Offer(inputs=(1, 2, 3), outputs=3, values="real")
    server = ModelServer(problem.oracle)
    with served(server) as url, oracle_of(url, tmp_path, offer) as oracle:
        oracle(rows(2, d=6), gradients=False)
    assert np.array(server.requests[0].body["instances"]).shape == (2, 1, 2, 3)


def test_a_float32_server_s_short_digits_are_its_float32_numbers(tmp_path):
    def shorten(seen: Seen, reply: Reply) -> Reply:
        return Reply(
            200, {"predictions": [[float(str(np.float32(v))) for v in row] for row in reply.body["predictions"]]}
        )

    problem = two_layer(5, 4, 3, dtype="float32")
    with served(ModelServer(problem.oracle, shorten)) as url, oracle_of(url, tmp_path, problem.offer) as oracle:
        x = rows(5)
        assert np.array_equal(oracle(x, gradients=False).values, problem.oracle(x, gradients=False).values)


def test_batches_are_bounded_and_come_back_in_order(tmp_path):
    def dawdle(seen: Seen, reply: Reply) -> None:
        time.sleep(0.03 if seen.body["instances"][0][0] > 0 else 0)

    server = ModelServer(PROBLEM.oracle, dawdle)
    with served(server) as url, oracle_of(url, tmp_path, batch=3, concurrency=3) as oracle:
        x = rows(20)
        assert np.array_equal(oracle(x, gradients=False).values, PROBLEM.predict(x))
    assert sorted(seen.rows for seen in server.requests) == [2, 3, 3, 3, 3, 3, 3]


def test_no_more_requests_at_a_time_than_allowed(tmp_path):
    flying, most, lock = 0, 0, threading.Lock()

    def count(seen: Seen, reply: Reply) -> None:
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        time.sleep(0.02)
        with lock:
            flying -= 1

    with served(ModelServer(PROBLEM.oracle, count)) as url, oracle_of(url, tmp_path, batch=1, concurrency=2) as oracle:
        oracle(rows(10), gradients=False)
    assert most == 2


def test_the_rate_is_kept(tmp_path):
    with served(ModelServer(PROBLEM.oracle)) as url, oracle_of(url, tmp_path, batch=1, rate=50) as oracle:
        started = time.monotonic()
        oracle(rows(11), gradients=False)
        assert time.monotonic() - started >= 10 / 50


def test_it_says_who_asks_and_shows_its_token_to_the_server_only(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RELUMINE_AUTHORIZATION", "Bearer s3cr3t-token")
    caplog.set_level(logging.DEBUG)
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url, oracle_of(url, tmp_path, authorized_by="me") as oracle:
        metered = rl.Metered(oracle)
        metered(rows(3), gradients=True)
        server.change = lambda seen, reply: Reply(401, {"error": f"bad {seen.headers['Authorization']}"})
        with pytest.raises(rl.AccessError) as caught:
            metered(rows(3, 1), gradients=True)
    assert {seen.headers["Authorization"] for seen in server.requests} == {"Bearer s3cr3t-token"}
    assert {seen.headers["User-Agent"] for seen in server.requests} == {USER_AGENT} == {f"relumine/{rl.__version__}"}
    shown = f"{caught.value} {oracle!r} {vars(oracle)} {oracle.endpoint.to_toml()} {caplog.text}"
    assert "s3cr3t" not in shown
    assert "***" in shown
    assert not [path for path in tmp_path.rglob("*") if b"s3cr3t" in path.read_bytes()]


@pytest.mark.parametrize("secret", ["Bearer ü€", "Bearer a\nX: b"])
def test_a_token_that_cannot_be_a_header_is_refused_unseen(tmp_path, monkeypatch, secret):
    monkeypatch.setenv("RELUMINE_AUTHORIZATION", secret)
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url, pytest.raises(rl.RelumineError) as caught:
        oracle_of(url, tmp_path)(rows(1), gradients=False)
    assert secret not in str(caught.value)
    assert not server.requests


@pytest.mark.parametrize("url", ["http://198.51.100.7/v1/models/net", "https://model.example/v1/models/net"])
def test_servers_elsewhere_need_an_authorisation_and_are_asked_politely(url, tmp_path):
    with pytest.raises(rl.MisuseError, match="--authorized-by"):
        oracle_of(url, tmp_path)
    with pytest.raises(rl.MisuseError, match="--authorized-by"):
        oracle_of(url, tmp_path, authorized_by="  ")
    with oracle_of(url, tmp_path, authorized_by="the owner, 1 May") as oracle:
        assert (oracle.endpoint.rate, oracle.endpoint.concurrency) == (5, 2)
        assert oracle.facts["authorized by"] == "the owner, 1 May"


def test_an_explainer_elsewhere_needs_it_too(tmp_path):
    with pytest.raises(rl.MisuseError, match="--authorized-by"):
        oracle_of("http://127.0.0.1:1/v1/models/net", tmp_path, explainer="http://198.51.100.7/v1/models/net")


def signed_by_itself(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that no authority knows, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    path = folder / "server.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(Encoding.PEM))
    return path


def test_certificates_are_verified(tmp_path, monkeypatch):
    certificate = signed_by_itself(tmp_path)
    server = ModelServer(PROBLEM.oracle)
    with served(server, certificate=certificate) as url:
        with (
            oracle_of(url, tmp_path) as oracle,
            pytest.raises(rl.OracleFailedError, match="certificate is not trusted"),
        ):
            oracle(rows(1), gradients=False)
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with oracle_of(url, tmp_path) as oracle:
            assert len(oracle(rows(1), gradients=False)) == 1


@pytest.mark.parametrize("status", [401, 403, 451])
def test_denied_access_ends_the_run_at_once(status, tmp_path):
    server = ModelServer(PROBLEM.oracle, always(status=status, body={"error": "no"}))
    with (
        served(server) as url,
        oracle_of(url, tmp_path, batch=1, concurrency=1) as oracle,
        pytest.raises(rl.AccessError, match=f"got {status} no: .*the run has ended"),
    ):
        oracle(rows(9), gradients=False)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 404, 413, 422, 302])
def test_what_cannot_pass_is_not_repeated(status, tmp_path):
    elsewhere = {"Location": "http://198.51.100.7/"}
    server = ModelServer(PROBLEM.oracle, always(status=status, body={"error": "so\x1b[31m"}, headers=elsewhere))
    with (
        served(server) as url,
        oracle_of(url, tmp_path) as oracle,
        pytest.raises(rl.OracleFailedError, match=f"expected 200, got {status} so") as caught,
    ):
        oracle(rows(1), gradients=False)
    assert len(server.requests) == 1
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 429])
def test_what_may_pass_is_repeated(status, tmp_path):
    server = ModelServer(PROBLEM.oracle, once(Reply(status, {"error": "later"})))
    with served(server) as url, oracle_of(url, tmp_path) as oracle:
        assert np.array_equal(oracle(rows(2), gradients=False).values, PROBLEM.predict(rows(2)))
        assert (oracle.traffic.requests, oracle.traffic.repeated) == (2, 1)


def test_retries_end(tmp_path):
    server = ModelServer(PROBLEM.oracle, always(status=500, body={"error": "KeyError"}))
    with (
        served(server) as url,
        oracle_of(url, tmp_path) as oracle,
        pytest.raises(rl.OracleFailedError, match="got 500 KeyError, 3 times in a row; see to the server"),
    ):
        oracle(rows(2), gradients=False)
    assert len(server.requests) == 3


def test_a_short_quota_is_waited_for_and_a_long_one_ends_the_run(tmp_path):
    server = ModelServer(PROBLEM.oracle, once(Reply(429, {"error": "slow"}, {"Retry-After": "0.3"})))
    with served(server) as url, oracle_of(url, tmp_path) as oracle:
        started = time.monotonic()
        oracle(rows(1), gradients=False)
        assert time.monotonic() - started >= 0.3
        for far in ("3600", "Fri, 31 Dec 2100 23:59:59 GMT"):
            server.change = always(status=429, body={}, headers={"Retry-After": far})
            asked = len(server.requests)
            with pytest.raises(rl.QuotaError, match=r"quota is used up .*asks to wait .* come back then"):
                oracle(rows(1), gradients=False)
            assert len(server.requests) == asked + 1


def test_a_server_that_is_not_there_is_said(tmp_path):
    with (
        oracle_of(f"http://127.0.0.1:{free_port()}/v1/models/net", tmp_path) as oracle,
        pytest.raises(rl.OracleFailedError, match=r"no connection .* 3 times in a row; see to the server"),
    ):
        oracle(rows(1), gradients=False)


def test_a_timeout_covers_the_whole_answer(tmp_path):
    def hang(seen: Seen, reply: Reply) -> None:
        time.sleep(0.5)

    with (
        served(ModelServer(PROBLEM.oracle, hang)) as url,
        oracle_of(url, tmp_path, timeout=0.1, retries=1) as oracle,
        pytest.raises(rl.OracleFailedError, match=r"nothing within 0\.1 s, 2 times"),
    ):
        oracle(rows(1), gradients=False)


BAD = {
    "cut": ({"predictions": [[1.0, 2.0, 3.0]]}, "expected 2 rows .* got 1 rows"),
    "too many": ({"predictions": [[1.0, 2.0, 3.0]] * 3}, "expected 2 rows .* got 3 rows"),
    "narrow": ({"predictions": [[1.0, 2.0]] * 2}, r"expected numbers of shape \(2, 3\)"),
    "ragged": ({"predictions": [[1.0, 2.0, 3.0], [1.0]]}, "different lengths"),
    "null": ({"predictions": [[1.0, None, 3.0]] * 2}, "got NaN or infinity"),
    "NaN": (b'{"predictions": [[1.0, NaN, 3.0], [1, 2, 3]]}', "got NaN or infinity"),
    "overflow": ({"predictions": [[1.0, 1e999, 3.0]] * 2}, "NaN or infinity"),
    "text": ({"predictions": [["a", "b", "c"]] * 2}, "got a text"),
    "elsewhere": ({"outputs": [[1.0, 2.0, 3.0]] * 2}, "expected 'predictions' in the answer"),
    "no object": ([1, 2], "expected 'predictions' in the answer"),
    "a number": ({"predictions": 3.0}, "expected 2 rows .* got a number"),
    "no JSON": (b"<html>", "not JSON or was cut off .*, 3 times"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_answers_are_noticed(name, tmp_path):
    body, message = BAD[name]
    with (
        served(ModelServer(PROBLEM.oracle, always(body=body))) as url,
        oracle_of(url, tmp_path) as oracle,
        pytest.raises(rl.BadAnswerError, match=message),
    ):
        oracle(rows(2), gradients=False)


def test_what_was_answered_is_kept_when_another_request_fails(tmp_path):
    """Of ten requests at three at a time the fifth fails for good: the others that were sent are on file."""
    x = rows(30)

    def fail(seen: Seen, reply: Reply) -> Reply | None:
        return Reply(400, {"error": "not this one"}) if seen.body["instances"][0] == x[12].tolist() else None

    server = ModelServer(PROBLEM.oracle, fail)
    with served(server) as url, oracle_of(url, tmp_path, batch=3, concurrency=3) as oracle:
        metered = rl.Metered(oracle, ledger=(ledger := rl.Ledger(tmp_path / "kept.sqlite")))
        with pytest.raises(rl.OracleFailedError, match="not this one"):
            metered(x, gradients=False)
        answered = server.rows - 3
        assert len(ledger) == metered.spent.queries == answered >= 12
        server.change = None
        answer = metered(x, gradients=False)
    assert np.array_equal(answer.values, PROBLEM.predict(x))
    assert server.rows == len(ledger) + 3
    assert metered.spent.queries == len(ledger)
    sent = [tuple(row) for seen in server.requests for row in seen.body["instances"]]
    assert len(set(sent)) == 32  # 30 rows and two canaries; only the failed batch and a canary were sent twice


def test_ctrl_c_takes_along_what_is_on_its_way(tmp_path):
    def interrupt(seen: Seen, reply: Reply) -> None:
        if len(server.requests) == 6:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)

    server = ModelServer(PROBLEM.oracle, interrupt)
    with served(server) as url, oracle_of(url, tmp_path, batch=2, concurrency=3) as oracle:
        metered = rl.Metered(oracle)
        with pytest.raises(KeyboardInterrupt):
            metered(rows(40), gradients=True)
        assert len(rl.Ledger(tmp_path / "ledger.sqlite")) == server.rows == metered.spent.queries < 40
        server.change = None
        metered(rows(40), gradients=True)
        assert len(rl.Ledger(tmp_path / "ledger.sqlite")) == server.rows == metered.spent.queries == 43


@pytest.mark.parametrize("then", [200, 503])
def test_ctrl_c_during_a_request_takes_its_answer_along(tmp_path, then):
    """Also where nothing comes of it: that the server failed is not what ended the run."""

    def interrupt(seen: Seen, reply: Reply) -> Reply | None:
        if seen.rows < 20:
            return None  # a canary
        if not interrupted:
            interrupted.append(True)
            signal.raise_signal(signal.SIGINT)
        return reply if then == 200 else Reply(then)

    interrupted: list[bool] = []
    server = ModelServer(PROBLEM.oracle, interrupt)
    with served(server) as url, oracle_of(url, tmp_path) as oracle:
        metered = rl.Metered(oracle)
        with pytest.raises(KeyboardInterrupt):
            metered(rows(20), gradients=True)
        assert len(rl.Ledger(tmp_path / "ledger.sqlite")) == metered.spent.queries == (23 if then == 200 else 3)
        assert server.rows == 23


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["predictions", "explanations", "outputs", "data", "shape", "name"]), inner)
    ),
    max_leaves=20,
)
PROTOCOLS = ["http://127.0.0.1/v1/models/net", "http://127.0.0.1/v2/models/net", "http://127.0.0.1/predictions/net"]


@settings(max_examples=300)
@given(JSON, st.sampled_from(PROTOCOLS))
@example({"outputs": [{"name": []}]}, PROTOCOLS[1])  # a name that is no string
def test_no_answer_is_so_strange_that_it_is_not_refused(body, url):
    wire = protocol_of(rl.Endpoint(url, PROBLEM.offer))
    for read, shape in ((wire.values, (2, 3)), (wire.gradients, (2, 3, 5))):
        with suppress(rl.BadAnswerError):
            assert read(2, body).shape == shape


def test_answers_are_kept_without_being_asked_to(tmp_path):
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url:
        spent = []
        for _ in range(2):
            with oracle_of(url, tmp_path / "run", authorized_by="me") as oracle:
                result = rl.TwoLayer()(oracle, rng=0)
                assert result.outcome is rl.Outcome.RECOVERED
                assert error(result, PROBLEM) < 1e-9
                spent.append(result.spent.queries)
    assert spent[0] == spent[1] == server.rows
    with oracle_of(url, tmp_path / "run", authorized_by="somebody else") as oracle, pytest.raises(rl.LedgerError):
        rl.Metered(oracle)


def test_canaries_are_few_and_counted_by_themselves(tmp_path):
    problem = two_layer(30, 40, 5)
    server = ModelServer(problem.oracle)
    with served(server) as url, oracle_of(url, tmp_path, problem.offer) as oracle:
        remote = rl.TwoLayer()(oracle, rng=0)
    local = rl.TwoLayer()(problem.oracle, rng=0)
    assert remote.spent.queries == server.rows
    assert remote.spent.queries - remote.spent.phases["canary"].queries == local.spent.queries
    assert remote.spent.queries <= 1.2 * local.spent.queries
    # In a batch with a canary the last digits of an answer may be others.
    assert all(np.allclose(remote.parameters[name], local.parameters[name], atol=1e-11) for name in local.parameters)


def test_a_model_that_is_exchanged_during_the_run_is_noticed(tmp_path):
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url, oracle_of(url, tmp_path) as oracle:
        metered = rl.Metered(oracle)
        metered(rows(40), gradients=True)
        server.oracle = two_layer(5, 4, 3, seed=9).oracle
        with pytest.raises(rl.ChangedError, match="one model from beginning to end"):
            ask_often(metered, gradients=True)
        assert len(rl.Ledger(tmp_path / "ledger.sqlite")) == server.rows


def test_a_run_says_that_the_model_was_exchanged(tmp_path):
    """A short run, too short for a canary among 64 rows: the exchange is noticed when the next phase begins."""
    other = two_layer(5, 4, 3, seed=9).oracle

    def exchange(seen: Seen, reply: Reply) -> None:
        if server.rows >= 12:
            server.oracle = other

    server = ModelServer(PROBLEM.oracle, exchange)
    with served(server) as url, oracle_of(url, tmp_path) as oracle, pytest.raises(rl.ChangedError):
        rl.TwoLayer()(oracle, rng=0)


def test_a_model_that_was_exchanged_before_a_run_goes_on_is_noticed_before_anything_is_asked(tmp_path):
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url:
        with oracle_of(url, tmp_path) as oracle:
            rl.Metered(oracle)(rows(10), gradients=False)
        server.oracle = two_layer(5, 4, 3, seed=9).oracle
        asked = server.rows
        with oracle_of(url, tmp_path) as oracle:
            metered = rl.Metered(oracle)
            assert np.array_equal(metered(rows(10), gradients=False).values, PROBLEM.predict(rows(10)))
            with pytest.raises(rl.ChangedError):
                metered(rows(10, 1), gradients=False)
    assert server.rows - asked == 3  # the canary, and twice more to be sure


def test_random_answers_are_noticed_at_the_start(tmp_path):
    server = ModelServer(Noisy(PROBLEM.oracle, 0.01))
    with (
        served(server) as url,
        oracle_of(url, tmp_path) as oracle,
        pytest.raises(rl.BadAnswerError, match="the same question got different answers"),
    ):
        rl.TwoLayer()(oracle, rng=0)
    assert server.rows == 5


def test_random_answers_that_were_offered_are_taken(tmp_path):
    noisy = rl.Offer(inputs=(5,), outputs=3, random=True)
    with served(ModelServer(Noisy(PROBLEM.oracle, 0.01))) as url, oracle_of(url, tmp_path, noisy) as oracle:
        assert len(rl.Metered(oracle)(rows(100), gradients=True)) == 100


def test_rows_that_come_back_in_another_order_are_noticed(tmp_path):
    def reverse(seen: Seen, reply: Reply) -> Reply:
        return Reply(200, {name: numbers[::-1] for name, numbers in reply.body.items()})

    with (
        served(ModelServer(PROBLEM.oracle, reverse)) as url,
        oracle_of(url, tmp_path) as oracle,
        pytest.raises(rl.BadAnswerError, match="another row's answer"),
    ):
        rl.TwoLayer()(oracle, rng=0)


def test_rows_that_are_mixed_up_in_large_batches_only_are_noticed(tmp_path):
    def shift(seen: Seen, reply: Reply) -> Reply | None:
        if seen.rows < 10:
            return None
        return Reply(200, {name: numbers[1:] + numbers[:1] for name, numbers in reply.body.items()})

    with served(ModelServer(PROBLEM.oracle, shift)) as url, oracle_of(url, tmp_path) as oracle:
        metered = rl.Metered(oracle)
        with pytest.raises(rl.BadAnswerError, match="another row's answer"):
            ask_often(metered, gradients=False)


def test_a_rounded_server_s_canary_may_fall_to_either_side(tmp_path):
    def jitter(seen: Seen, reply: Reply) -> Reply:
        last = 1e-4 * (len(server.requests) % 2)
        values = np.round(np.round(reply.body["predictions"], 4) + last, 4)
        return Reply(200, {"predictions": values.tolist()})

    server = ModelServer(PROBLEM.oracle, jitter)
    with served(server) as url, oracle_of(url, tmp_path) as oracle:
        assert len(rl.Metered(oracle)(rows(200), gradients=False)) == 200


def test_the_budget_counts_canaries(tmp_path):
    server = ModelServer(PROBLEM.oracle)
    with served(server) as url, oracle_of(url, tmp_path) as oracle:
        metered = rl.Metered(oracle, budget=100)
        with pytest.raises(rl.BudgetError):
            ask_often(metered, gradients=False)
    assert 80 <= server.rows <= 100


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"batch": 0}, "batch: expected an integer"),
        ({"concurrency": True}, "concurrency: expected"),
        ({"rate": -1}, "rate: expected a positive number"),
        ({"timeout": float("inf")}, "timeout: expected"),
        ({"protocol": "grpc"}, "protocol: expected one of kserve-v1"),
        ({"gradients_at": "a[b"}, "expected a place like"),
        ({"verify": False}, "expected the fields of an Endpoint, got .*verify"),
        ({"offer": None}, "offer: expected an Offer"),
    ],
)
def test_misuse_is_explained(said, message, tmp_path):
    with pytest.raises(rl.MisuseError, match=message):
        oracle_of("http://127.0.0.1:1/v1/models/net", tmp_path, **said)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/v1/models/net",
        "http:///v1/models/net",
        "http://127.0.0.1:99999/v1/models/net",
        "http://127.0.0.1/elsewhere",
        "http://user:s3cr3t@127.0.0.1/v1/models/net",
        "http://127.0.0.1/v1/models/net?key=s3cr3t",
        7,
    ],
)
def test_addresses_that_cannot_be_asked_are_refused(url, tmp_path):
    with pytest.raises(rl.MisuseError, match="url: expected") as caught:
        oracle_of(url, tmp_path)
    assert "s3cr3t" not in str(caught.value)
