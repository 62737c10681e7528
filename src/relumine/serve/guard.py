"""Guard: a defence and a budget for each client, in front of an endpoint that is there already.

    clients, budgets = Keys([], budget=1000), Budgets("budgets.sqlite")
    app.add_middleware(Guard, endpoint="net.toml", defence="round:4+top", keys=clients, budgets=budgets)

It is ASGI middleware: ``app`` may be any ASGI application that answers as ``endpoint`` describes (the file that
``relumine probe --write-config`` writes), and ``Forwarding`` makes one of a server elsewhere. A request is read,
counted and written anew, and so is its answer: nothing passes but the rows of the one, and the defended numbers of the
other.
"""

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from dataclasses import replace
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
from relumine.serve.payload import Limits, status_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# Headers of a request that are about its body or its connection, which the request behind has of its own.
_OWN = (
    b"content-length",
    b"content-type",
    b"content-encoding",
    b"transfer-encoding",
    b"accept-encoding",
    b"connection",
)
# Clients whose earlier questions are remembered, where a defence needs them; then those who asked longest ago are
# forgotten.
_MOST_CLIENTS = 10_000
_MOST_AT_ONCE = 64

# Of the request that is being answered: its scope, and the application's answer where that comes before the defence.
_scope: ContextVar[Any] = ContextVar("scope")
_told: ContextVar[Answer | None] = ContextVar("told", default=None)


class _SaidOtherwise(OracleError):
    """The application behind answered something else than 200, which the client gets to see."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.body = status, body


class _Refused(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """Answers for ``app`` at the addresses of ``endpoint``.

    endpoint: what the application answers and where: an Endpoint, or its TOML file. Of its url the path matters
    defence:  in the words of docs/defences.md, e.g. "round:4+top"
    keys:     who may ask and how many rows: ``Keys([], budget=1000)`` tells clients by their address,
              ``Keys([], budget=1000, header="X-API-Key")`` by a header, ``read_keys(path)`` by tokens of a file
    budgets:  where rows are counted: ``Budgets("budgets.sqlite")`` outlives the server, and several may share it
    seed:     source of a defence's noise; None is one that nobody can guess
    limits:   of one request

    GET and HEAD without a query pass; everything else is 404, as other ways to the same model would be ways around.
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
        self._defended = _Defended(self._behind, self._defence, seed)
        self.endpoint = replace(behind, offer=self._defended.offer)
        self._keys = keys or Keys([])
        self._budgets = budgets or Budgets()
        self._limits = limits or Limits()
        # Of its own: the application may wait for a thread of the common ones while ours waits for it.
        self._threads = anyio.CapacityLimiter(_MOST_AT_ONCE)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "lifespan" or _only_looks(scope):
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _reply(send, *await self._answered(scope, receive))

    async def _answered(self, scope: Any, receive: Receive) -> tuple[int, bytes, dict[str, str]]:
        try:
            client = self._keys.who(scope["headers"], (scope.get("client") or ("",))[0])
            if client is None:
                raise _Refused(401, "expected a token that is known here")
            gradients = self._explains.get(scope["path"]) if scope["method"] == "POST" else None
            if gradients is None:
                raise _Refused(404, f"expected POST to one of {', '.join(self._explains)}")
            rows = self._understood(await self._body(receive))
            self._behind.headers_of(scope, without=self._keys.header if self._keys.are_needed else None)
            return 200, await self._ask(client, rows, gradients), {}
        except _SaidOtherwise as other:
            return other.status, other.body, {}
        except _Refused as error:
            return error.status, orjson.dumps({"error": str(error)}), {}
        except RelumineError as error:
            status, headers = status_of(error)
            return status, orjson.dumps({"error": str(error)}), headers

    async def _body(self, receive: Receive) -> bytearray:
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message["type"] == "http.request" and message.get("more_body", False)
            if len(body) > self._limits.body_bytes:
                raise _Refused(413, f"expected at most {self._limits.body_bytes} bytes")
        return body

    def _understood(self, body: bytearray) -> Array:
        try:
            rows = self._protocol.asked(decoded(bytes(body)))
        except ValueError as error:
            raise _Refused(400, f"expected JSON, got something else: {error}") from error
        except BadAnswerError as error:
            raise _Refused(422, str(error)) from error
        if len(rows) > self._limits.rows:
            raise _Refused(422, f"expected at most {self._limits.rows} rows in a request, got {len(rows)}")
        return rows

    async def _ask(self, client: Client, rows: Array, gradients: bool) -> bytes:
        """Count, and only then ask. Without a defence the answer passes as it is."""
        self._budgets.spend(client, len(rows))
        if self._defence is None:
            return await self._behind.said(rows, gradients=gradients)
        if gradients and self.endpoint.offer.gradients == "none":
            raise _Refused(404, "explanations are not shown here")
        try:
            if self._defence.asks_elsewhere:  # which takes a thread that may wait for the application
                ask = partial(self._defended, client, rows, gradients)
                answer = await anyio.to_thread.run_sync(ask, limiter=self._threads)
            else:
                _told.set(await self._behind.answered(rows, gradients=gradients))
                answer = self._defended(client, rows, gradients)
                _told.set(None)
        except BadAnswerError as error:
            raise _Refused(502, f"the model behind did not answer as described: nothing is shown ({error})") from error
        return self._behind.written(answer, self.endpoint.offer)


class _Behind:
    """The application as an oracle."""

    def __init__(self, app: App, offer: Offer, protocol: Protocol) -> None:
        self._app = app
        self.offer = offer
        self._protocol = protocol
        self._shapes: dict[bool, tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {}

    def headers_of(self, scope: Any, *, without: str | None) -> None:
        """Ask with the headers of this request from now on (in its context)."""
        own = (*_OWN, (without or "").encode("latin-1"))
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in own]
        _scope.set({**scope, "headers": [*headers, (b"content-type", b"application/json")]})

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        """What was asked for before the defence, or else, from the defence's thread, what it asks."""
        told = _told.get()
        return told if told is not None else anyio.from_thread.run(partial(self.answered, inputs, gradients=gradients))

    async def answered(self, rows: Array, *, gradients: bool) -> Answer:
        """The application's answer, checked."""
        n, maps = len(rows), None
        separately = not self._protocol.values_come_with_gradients
        if not gradients or separately:
            body = await self._read(rows, gradients=False)
            values = self._protocol.values(n, body)
        if gradients:
            body = await self._read(rows, gradients=True)
            maps = self._protocol.gradients(n, body)
            values = values if separately else self._protocol.explained_values(n, body)
        return checked_answer(self.offer, n, Answer(values, maps), gradients=gradients)

    async def _read(self, rows: Array, *, gradients: bool) -> Any:
        text = await self.said(rows, gradients=gradients)
        self._limits(len(rows), gradients).check_values(text)
        try:
            body = decoded(text)
        except ValueError as error:
            raise BadAnswerError(f"expected JSON, got something else: {error}") from error
        if gradients not in self._shapes:
            self._shapes[gradients] = self._protocol.shapes(body, gradients=gradients)
        return body

    async def said(self, rows: Array, *, gradients: bool) -> bytes:
        """The body of the application's answer to these rows."""
        path = urlsplit(self._protocol.url(gradients=gradients)).path
        content = orjson.dumps(self._protocol.body(np.ascontiguousarray(rows)), option=orjson.OPT_SERIALIZE_NUMPY)
        scope = {**_scope.get(), "path": unquote(path), "raw_path": path.encode("ascii"), "query_string": b""}
        scope["headers"] = [*scope["headers"], (b"content-length", str(len(content)).encode())]
        return await _asked(self._app, scope, content, self._limits(len(rows), gradients).size)

    def written(self, answer: Answer, shown: Offer) -> bytes:
        """An answer as the application would have written it, of numbers in its precision."""
        of_values, of_maps = self._shapes[answer.gradients is not None]
        values = maps = None
        if of_values is not None:
            values = _like(answer.values.astype(shown.dtype), of_values, (shown.outputs,))
        if of_maps is not None:
            maps = _like(answer.jacobians.astype(shown.dtype), of_maps, (shown.gradient_rows, *shown.inputs))
        return orjson.dumps(self._protocol.answer(values, maps), option=orjson.OPT_SERIALIZE_NUMPY)

    def _limits(self, rows: int, gradients: bool) -> AnswerLimits:
        maps = self.offer.gradient_rows * self.offer.dimension if gradients else 0
        return AnswerLimits(rows * (self.offer.outputs + maps))


class _Defended:
    """The defended oracle of each client, if the defence remembers questions; else one for all."""

    def __init__(self, behind: Oracle, defence: Chain | None, seed: int | None) -> None:
        self._behind, self._defence = behind, defence
        self._seed = int(np.random.SeedSequence().entropy) if seed is None else seed  # type: ignore[arg-type]
        self._first = self._made()
        self._kept: OrderedDict[str, tuple[Oracle, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()
        self.offer = self._first.offer

    def _made(self) -> Oracle:
        return self._defence(self._behind, rng=self._seed) if self._defence else self._behind

    def __call__(self, client: Client, rows: Array, gradients: bool) -> Answer:
        if self._defence is None or not self._defence.remembers:
            return self._first(rows, gradients=gradients)
        with self._lock:
            oracle, lock = self._kept.setdefault(client.name, (self._made(), threading.Lock()))
            self._kept.move_to_end(client.name)
            if len(self._kept) > _MOST_CLIENTS:
                self._kept.popitem(last=False)
        with lock:
            return oracle(rows, gradients=gradients)


def _explains_at(protocol: Protocol, offer: Offer) -> dict[str, bool]:
    """The paths that are answered, and whether with gradients."""
    verbs = (False, True) if offer.gradients != "none" else (False,)
    addresses = {gradients: urlsplit(protocol.url(gradients=gradients)) for gradients in verbs}
    paths = {unquote(address.path): gradients for gradients, address in addresses.items()}
    if len(paths) < len({(address.netloc, address.path) for address in addresses.values()}):
        raise MisuseError("explainer: expected a path of its own, got that of the model at another host")
    return paths


def _only_looks(scope: Any) -> bool:
    return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and not scope.get("query_string")


def _like(numbers: Array, shape: tuple[int, ...], otherwise: tuple[int, ...]) -> Array:
    """Rows in the shape in which the application writes them, unless the defence leaves another number of them."""
    fits = numbers[0].size == np.prod(shape, dtype=int)
    return numbers.reshape(len(numbers), *(shape if fits else otherwise))


async def _asked(app: App, scope: Any, content: bytes, most: int) -> bytes:
    """The body of an application's answer to one request."""
    status, body, sent = 500, bytearray(), False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if len(body) > most:
                raise BadAnswerError(f"expected an answer of at most {most} bytes, got a longer one")

    await app(scope, receive, send)
    if status != 200:
        raise _SaidOtherwise(status, bytes(body))
    return bytes(body)


async def _reply(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    headers = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
