"""Guard: a defence and a budget for each client, in front of an endpoint that is there already.

    clients, budgets = Keys([], budget=1000), Budgets("budgets.sqlite")
    app.add_middleware(Guard, endpoint="net.toml", defence="round:4+top", keys=clients, budgets=budgets)

It is ASGI middleware: ``app`` may be any ASGI application that answers as ``endpoint`` describes (the file that
``relumine probe --write-config`` writes), and ``Forwarding`` makes one of a server elsewhere. A request is read and
counted, its answer read and defended: nothing passes but the rows of the one, and the defended numbers of the other.
What says nothing else passes as it is; the rest is written anew.
"""

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
import anyio.from_thread
import numpy as np
import orjson

from relumine.defend import Chain, parse
from relumine.errors import BadAnswerError, MisuseError, OracleError, RelumineError
from relumine.oracle.base import Answer, Array, Offer, Oracle, checked_answer
from relumine.oracle.http.decoding import decoded
from relumine.oracle.http.endpoint import Endpoint, read_endpoint
from relumine.oracle.http.limits import Limits as AnswerLimits
from relumine.oracle.http.protocol import Protocol, protocol_of
from relumine.serve.budgets import Budgets
from relumine.serve.keys import Client, Keys
from relumine.serve.payload import Limits, Message, Receive, RefusalError, known_client, read_body, refused

Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

# Headers of a request that are about its body or its connection, which the request behind has of its own.
_OF_BODIES = {b"content-length", b"content-type", b"content-encoding", b"transfer-encoding"}
_OWN = {*_OF_BODIES, b"accept-encoding", b"connection"}
_QUOTE = ord('"')
_MOST_AT_ONCE = 64  # questions that wait for the application in a thread
# So many clients' defences are kept, the last ones to ask: strangers with new addresses must not fill the memory.
_MOST_CLIENTS = 10_000


class PerClient:
    """A defended oracle for each client, if the defence remembers questions; else one for all.

    All share their sources of noise. With a source each, from the same seed, the difference of two clients' answers
    would be without fresh noise; with different seeds, clients could average consistent noise away.

    seed: source of the noise; None is one that nobody can guess
    """

    def __init__(self, behind: Oracle, defence: Chain | None, seed: int | None) -> None:
        self._behind, self._defence = behind, defence
        self._sources = defence.sources(seed) if defence else []
        self._first = self._made()
        self._kept: OrderedDict[str, tuple[Oracle, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()
        self.offer = self._first.offer

    def _made(self) -> Oracle:
        return self._defence.in_front_of(self._behind, self._sources) if self._defence else self._behind

    def __call__(self, client: Client, rows: Array, gradients: bool) -> Answer:
        """What this client is answered."""
        if self._defence is None or not self._defence.remembers:
            return self._first(rows, gradients=gradients)
        with self._lock:
            oracle, lock = self._kept.setdefault(client.name, (self._made(), threading.Lock()))
            self._kept.move_to_end(client.name)
            if len(self._kept) > _MOST_CLIENTS:
                self._kept.popitem(last=False)
        with lock:
            return oracle(rows, gradients=gradients)


@dataclass
class _Request:
    """A request that is being answered.

    scope: the application is asked with
    rows:  asked by the client
    body:  the client's, if it says nothing but these rows
    told:  the application's answer, where that comes before the defence
    text, said: the same as it was written, and as plain values
    """

    scope: Any
    rows: Array
    body: bytes | None
    told: Answer | None = None
    text: bytes = b""
    said: Any = None


_request: ContextVar[_Request] = ContextVar("request")


class _SaidOtherwise(OracleError):
    """The application behind answered something else than 200, which the client gets to see."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.body = status, body


class Guard:
    """Answers for ``app`` at the addresses of ``endpoint``.

    endpoint: what the application answers and where: an Endpoint, or its TOML file. Of its url the path matters
    defence:  in the words of docs/defences.md, e.g. "round:4+top"
    keys:     who may ask and how many rows: ``Keys([], budget=1000)`` tells clients by their address,
              ``Keys([], budget=1000, header="X-API-Key")`` by a header, ``read_keys(path)`` by tokens of a file
    budgets:  where rows are counted: ``Budgets("budgets.sqlite")`` outlives the server, and several may share it
    seed:     source of a defence's noise; None is one that nobody can guess
    limits:   of one request

    GET and HEAD without a query pass, without a body; everything else is 404, as other ways to the same model would be
    ways around.
    """

    def __init__(
        self,
        app: App,
        endpoint: Endpoint | str | Path,
        *,
        defence: str | Chain | None = None,
        keys: Keys | None = None,
        budgets: Budgets | None = None,
        seed: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._app = app
        behind = endpoint if isinstance(endpoint, Endpoint) else read_endpoint(endpoint)
        self._protocol = protocol_of(behind)
        self._explains = _explains_at(self._protocol, behind.offer)
        self._defence = parse(defence) if isinstance(defence, str) else defence
        self._behind = _Behind(app, behind.offer, self._protocol)
        self._defended = PerClient(self._behind, self._defence, seed)
        self.endpoint = replace(behind, offer=self._defended.offer)
        self._keys = keys or Keys([])
        self._budgets = budgets or Budgets()
        self._limits = limits or Limits()
        token = self._keys.header if self._keys.are_needed else None  # it is for the guard, not for the application
        self._own = _OWN | ({token.encode("latin-1")} if token else set())
        # Of its own: the application may wait for a thread of the common ones while ours waits for it.
        self._threads = anyio.CapacityLimiter(_MOST_AT_ONCE)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif _only_looks(scope):
            # A question must not come along: some applications answer a GET as they do a POST.
            kept = [(name, value) for name, value in scope["headers"] if name.lower() not in _OF_BODIES]
            await self._app({**scope, "headers": kept}, _nothing(receive), send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _reply(send, *await self._answered(scope, receive))

    async def _answered(self, scope: Any, receive: Receive) -> tuple[int, bytes, dict[str, str]]:
        try:
            client = known_client(self._keys, scope["headers"], (scope.get("client") or ("",))[0])
            gradients = self._explains.get(scope["path"]) if scope["method"] == "POST" else None
            if gradients is None:
                raise RefusalError(404, f"expected POST to one of {', '.join(self._explains)}")
            request = self._understood(scope, await read_body(receive, self._limits.body_bytes))
            return 200, await self._ask(client, request, gradients), {}
        except _SaidOtherwise as other:
            return other.status, other.body, {"www-authenticate": "Bearer"} if other.status == 401 else {}
        except (RefusalError, RelumineError) as error:
            return refused(error)

    def _understood(self, scope: Any, body: bytes) -> _Request:
        try:
            said = decoded(body)
            rows = self._protocol.asked(said)
        except ValueError as error:
            raise RefusalError(400, f"expected JSON, got something else: {error}") from error
        except BadAnswerError as error:
            raise RefusalError(422, str(error)) from error
        if len(rows) > self._limits.rows:
            raise RefusalError(422, f"expected at most {self._limits.rows} rows in a request, got {len(rows)}")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in self._own]
        scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")], "query_string": b""}
        return _Request(scope, rows, body if _says_only(self._protocol.body(rows), said, body) else None)

    async def _ask(self, client: Client, request: _Request, gradients: bool) -> bytes:
        """Count, and only then ask. Without a defence the answer passes as it is."""
        rows = request.rows
        self._budgets.spend(client, len(rows))
        _request.set(request)
        if self._defence is None:
            return await self._behind.said(rows, gradients=gradients)
        if gradients and self.endpoint.offer.gradients == "none":
            raise RefusalError(404, "explanations are not shown here")
        try:
            if self._defence.asks_elsewhere:  # which takes a thread that may wait for the application
                ask = partial(self._defended, client, rows, gradients)
                answer = await anyio.to_thread.run_sync(ask, limiter=self._threads)
            else:
                request.told = await self._behind.answered(rows, gradients=gradients)
                answer = self._defended(client, rows, gradients)
        except BadAnswerError as error:
            raise RefusalError(
                502, f"the model behind did not answer as described: nothing is shown ({error})"
            ) from error
        return self._behind.written(answer, self.endpoint.offer)


class _Behind:
    """The application as an oracle."""

    def __init__(self, app: App, offer: Offer, protocol: Protocol) -> None:
        self._app = app
        self.offer = offer
        self._protocol = protocol
        self._paths = {gradients: urlsplit(protocol.url(gradients=gradients)).path for gradients in (False, True)}
        self._shapes: dict[bool, tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {}

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        """What was asked for before the defence, or else, from the defence's thread, what it asks."""
        told = _request.get().told
        return told if told is not None else anyio.from_thread.run(partial(self.answered, inputs, gradients=gradients))

    async def answered(self, rows: Array, *, gradients: bool) -> Answer:
        """The application's answer, checked."""
        asked = self._protocol.exchanges(gradients=gradients)
        said = {verb: await self._read(rows, gradients=verb) for verb in asked}
        return checked_answer(self.offer, len(rows), self._protocol.read(len(rows), said), gradients=gradients)

    async def _read(self, rows: Array, *, gradients: bool) -> Any:
        text = await self.said(rows, gradients=gradients)
        try:
            body = decoded(text)  # of the owner's own application: its length is limited, what is in it need not be
        except ValueError as error:
            raise BadAnswerError(f"expected JSON, got something else: {error}") from error
        _request.get().text, _request.get().said = text, body
        if gradients not in self._shapes:
            self._shapes[gradients] = self._protocol.shapes(body, gradients=gradients)
        return body

    async def said(self, rows: Array, *, gradients: bool) -> bytes:
        """The body of the application's answer to these rows."""
        request, path = _request.get(), self._paths[gradients]
        content = request.body if rows is request.rows else None
        if content is None:
            content = orjson.dumps(self._protocol.body(np.ascontiguousarray(rows)), option=orjson.OPT_SERIALIZE_NUMPY)
        headers = [*request.scope["headers"], (b"content-length", str(len(content)).encode())]
        scope = {**request.scope, "path": unquote(path), "raw_path": path.encode("ascii"), "headers": headers}
        most = AnswerLimits(len(rows) * self._protocol.numbers(gradients=gradients)).size
        return await _asked(self._app, scope, content, most)

    def written(self, answer: Answer, shown: Offer) -> bytes:
        """An answer as the application would have written it, of numbers in its precision; or has, if none changed."""
        of_values, of_maps = self._shapes[answer.gradients is not None]
        values = maps = None
        if of_values is not None:
            values = _like(answer.values.astype(shown.dtype), of_values, (shown.outputs,))
        if of_maps is not None:
            maps = _like(answer.jacobians.astype(shown.dtype), of_maps, (shown.gradient_rows, *shown.inputs))
        said, request = self._protocol.answer(values, maps), _request.get()
        told = request.told
        same = told is not None and answer.values is told.values and answer.gradients is told.gradients
        if same and _says_only(said, request.said, request.text):
            return request.text
        return orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY)


def _explains_at(protocol: Protocol, offer: Offer) -> dict[str, bool]:
    """The paths that are answered, and whether with gradients."""
    verbs = (False, True) if offer.gradients != "none" else (False,)
    addresses = {gradients: urlsplit(protocol.url(gradients=gradients)) for gradients in verbs}
    paths = {unquote(address.path): gradients for gradients, address in addresses.items()}
    if len(paths) < len({(address.netloc, address.path) for address in addresses.values()}):
        raise MisuseError("explainer: expected a path of its own, got that of the model at another host")
    return paths


def _says_only(expected: Any, said: Any, text: bytes) -> bool:
    """Whether a text that reads as ``said`` says what is expected and nothing besides.

    Another reader takes the first of two fields with the same name, or both: a text with a field more has two quotes
    more. (One with escapes may be as it should, and is written anew.)
    """
    quotes = np.count_nonzero(np.frombuffer(text, np.uint8) == _QUOTE)
    return bool(quotes == 2 * _texts_in(expected)) and b"\\" not in text and _same(expected, said)


def _texts_in(value: Any) -> int:
    """How many texts a value has in it, names of fields among them."""
    if isinstance(value, Mapping):
        return sum(1 + _texts_in(part) for part in value.values())
    return sum(map(_texts_in, value)) if isinstance(value, list | tuple) else isinstance(value, str)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _only_looks(scope: Any) -> bool:
    """A path without a slash in front, behind the address of a server elsewhere, would be the name of another one."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or scope.get("query_string"):
        return False
    return bool((scope.get("raw_path") or scope["path"].encode()).startswith(b"/"))


def _nothing(receive: Receive) -> Receive:
    """An empty body, and then nothing until the client is gone."""
    begun = False

    async def receive_nothing() -> Message:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] != "http.disconnect":
            pass
        return message

    return receive_nothing


def _like(numbers: Array, shape: tuple[int, ...], otherwise: tuple[int, ...]) -> Array:
    """Rows in the shape in which the application writes them, unless the defence leaves another number of them."""
    fits = numbers[0].size == np.prod(shape, dtype=int)
    return numbers.reshape(len(numbers), *(shape if fits else otherwise))


async def _asked(app: App, scope: Any, content: bytes, most: int) -> bytes:
    """The body of an application's answer to one request."""
    status, size, sent = 500, 0, False
    parts: list[bytes] = []

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, size
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise BadAnswerError(f"expected an answer of at most {most} bytes, got a longer one")

    await app(scope, receive, send)
    if status != 200:
        raise _SaidOtherwise(status, b"".join(parts))
    return b"".join(parts)


async def _reply(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    headers = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
