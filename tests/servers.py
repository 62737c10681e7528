"""Model servers for the tests: small ones in a thread, a proxy that breaks things, and programs of their own."""

import atexit
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import numpy as np

import relumine as rl
from problems import Problem

Body = dict[str, object]


@dataclass
class Reply:
    """What a server says: a status, a JSON body (or bytes that are none), further headers."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class Seen:
    """A request as it reached the server."""

    path: str
    headers: dict[str, str]
    body: Body

    @property
    def rows(self) -> int:
        return len(self.body["instances"])


class ModelServer:
    """Speaks KServe v1 for an oracle; ``change(seen, reply)`` may say something else instead."""

    def __init__(self, oracle: rl.Oracle, change: Callable[[Seen, Reply], Reply | None] | None = None) -> None:
        self.oracle = oracle
        self.change = change
        self.requests: list[Seen] = []
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        return sum(seen.rows for seen in self.requests)

    def reply(self, seen: Seen) -> Reply:
        with self._lock:
            self.requests.append(seen)
        reply = self.answer(seen)
        return (self.change(seen, reply) or reply) if self.change is not None else reply

    def described(self, path: str) -> Reply:
        return Reply(200, {"status": "alive"})

    def answer(self, seen: Seen) -> Reply:
        rows = np.array(seen.body["instances"], dtype=np.float64)
        explain = seen.path.endswith(":explain")
        answer = self.oracle(rows.reshape(len(rows), -1), gradients=explain)
        body: Body = {"predictions": answer.values.tolist()}
        if explain:
            body["explanations"] = answer.jacobians.tolist()
        return Reply(200, body)


@contextmanager
def served(server: ModelServer, port: int = 0, certificate: Path | None = None) -> Iterator[str]:
    """The address of a model server that runs in a thread, with TLS if there is a certificate (with its key)."""

    class Handler(_Handler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            self.say(server.reply(Seen(self.path, dict(self.headers), json.loads(content))))

        def do_GET(self) -> None:
            self.say(server.described(self.path))

    with _running(Handler, port, certificate) as bound:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{bound}/v1/models/net"


def serve_for_good(server: ModelServer) -> str:
    """The address of a model server that runs until the tests end."""
    running = served(server)
    atexit.register(running.__exit__, None, None, None)
    return running.__enter__()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet

    def do_GET(self) -> None:
        self.say(Reply(200, {"status": "alive"}))

    def say(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass  # a client that hung up, or was killed


@contextmanager
def _running(handler: type[BaseHTTPRequestHandler], port: int = 0, certificate: Path | None = None) -> Iterator[int]:
    server = _Server(("127.0.0.1", port), handler)
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Faults:
    """How often a proxy breaks something: shares of all requests."""

    resets: float = 0.10
    errors: float = 0.05
    timeouts: float = 0.05
    truncated: float = 0.01


class FaultyProxy:
    """Hands requests on to a server, and breaks some. It keeps what was delivered whole: (path, row) each time."""

    def __init__(self, upstream: int, faults: Faults, seed: int, hang: float) -> None:
        self._upstream = upstream
        self._rng = np.random.default_rng(seed)
        self._faults = faults
        self._hang = hang
        self._lock = threading.Lock()
        self.delivered: list[tuple[str, str]] = []
        self.broken: dict[str, int] = dict.fromkeys(vars(faults), 0)

    def fault(self) -> str | None:
        shares = vars(self._faults)
        with self._lock:
            chosen = self._rng.choice([*shares, ""], p=[*shares.values(), 1 - sum(shares.values())])
            if chosen:
                self.broken[chosen] += 1
        return str(chosen) or None

    @contextmanager
    def running(self) -> Iterator[int]:
        proxy = self

        class Handler(_Handler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                proxy.hand_on(self, content)

        with _running(Handler) as port:
            yield port

    def hand_on(self, handler: _Handler, content: bytes) -> None:
        fault = self.fault()
        before = fault == "resets" and self._rng.random() < 0.5  # half of them after the server has answered
        if before:
            _reset(handler)
            return
        if fault == "timeouts":
            time.sleep(self._hang)
            _reset(handler)
            return
        if fault == "errors":
            handler.say(Reply(500, {"error": "KeyError : 'instances'"}))
            return
        status, answer = self._forwarded(handler.path, content)
        if fault == "resets":
            _reset(handler)
        elif fault == "truncated":
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(answer)))
            handler.end_headers()
            handler.wfile.write(answer[: len(answer) // 2])
            _reset(handler)
        else:
            handler.say(Reply(status, answer))
            if status == 200:
                with self._lock:
                    self.delivered += [(handler.path, json.dumps(row)) for row in json.loads(content)["instances"]]

    def _forwarded(self, path: str, content: bytes) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self._upstream)
        try:
            connection.request("POST", path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _reset(handler: _Handler) -> None:
    """Close the connection as a crashed server would: with RST."""
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def program(*arguments: str, ready: str, folder: Path, seconds: float = 60) -> Iterator["subprocess.Popen[bytes]"]:
    """A server in a process of its own, from when ``ready`` (an address) answers 200 until the block ends."""
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log)
    try:
        await_ready(process, ready, folder, seconds)
        yield process
    finally:
        process.kill()
        process.wait()


def await_ready(process: "subprocess.Popen[bytes]", ready: str, folder: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, (folder / "server.log").read_text()
        try:
            if httpx.get(ready, timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{ready} did not answer: {(folder / 'server.log').read_text()}")


@contextmanager
def kserve(problem: Problem, folder: Path) -> Iterator[str]:
    """The address of this network on a real KServe server with a Captum explainer."""
    np.savez(folder / "weights.npz", A=problem.A, b=problem.b, W=problem.W, c=problem.c)
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1/models/net"
    server = Path(__file__).parent / "kserve_server.py"
    with program(str(server), str(port), str(folder / "weights.npz"), problem.dtype, ready=url, folder=folder):
        yield url


class FilServer(ModelServer):
    """As Triton's FIL backend answers: metadata, and TreeSHAP's contributions with the base value last."""

    def __init__(self, predict: Callable[[np.ndarray], np.ndarray], shap: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(None)
        self.predict, self.shap = predict, shap
        self.dimension = 0

    def described(self, path: str) -> Reply:
        inputs = [{"name": "input__0", "datatype": "FP32", "shape": [-1, self.dimension]}]
        outputs = [{"name": name, "datatype": "FP32", "shape": [-1, -1]} for name in ("output__0", "treeshap_output")]
        return Reply(body={"name": "fil", "platform": "fil", "versions": ["1"], "inputs": inputs, "outputs": outputs})

    def answer(self, seen: Seen) -> Reply:
        (tensor,) = seen.body["inputs"]
        if (tensor["name"], tensor["datatype"]) != ("input__0", "FP32"):
            return Reply(400, {"error": f"unexpected inference input '{tensor['name']}' for model 'fil'"})
        rows = np.asarray(tensor["data"], dtype=np.float32).reshape(tensor["shape"])
        found = {"output__0": self.predict(rows), "treeshap_output": self.shap(rows)}
        named = found.items()
        outputs = [
            {"name": name, "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, array in named
        ]
        return Reply(body={"model_name": "fil", "model_version": "1", "outputs": outputs})


class JsonServer(ModelServer):
    """A service of its own: one field for the inputs, objects for the answers, and an OpenAPI page, as BentoML's."""

    def __init__(self, predict: Callable[[np.ndarray], object], field_name: str, pages: bool = True) -> None:
        super().__init__(None)
        self.predict, self.field_name, self.pages = predict, field_name, pages

    def described(self, path: str) -> Reply:
        if path != "/docs.json" or not self.pages:
            return Reply(404, {"error": "not found"})
        schema = {"type": "object", "properties": {self.field_name: {"type": "array"}}}
        body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}}
        return Reply(
            body={"paths": {"/classify": {"post": {"requestBody": body}}}, "components": {"schemas": {"Body": schema}}}
        )

    def answer(self, seen: Seen) -> Reply:
        if set(seen.body) != {self.field_name}:
            return Reply(400, {"error": f"expected the field {self.field_name}, got {', '.join(seen.body)}"})
        return Reply(body=self.predict(np.asarray(seen.body[self.field_name], dtype=np.float64)))
