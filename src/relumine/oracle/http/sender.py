"""Sender: one request after another to a model server, at a polite pace, repeated where that can help.

Questions do not change a model, so a request that failed may be sent again. What cannot be mended ends the run:
access denied at once, a quota when the wait would be too long, everything else when the retries are used up.
"""

import math
import os
import random
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Self

import httpx
import orjson

from relumine import __version__
from relumine.errors import AccessError, BadAnswerError, MisuseError, OracleFailedError, QuotaError, RelumineError
from relumine.oracle.http.decoding import decoded
from relumine.oracle.http.endpoint import Endpoint
from relumine.oracle.http.limits import BYTES_OF_ERRORS, Limits, body_of, keep_to_deadlines, within

USER_AGENT = f"relumine/{__version__}"
KEPT = "what was answered is kept: the same command goes on from there"

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
_TRY_AGAIN = (408, 425, 500, 502, 503, 504)
_DENIED = {401: "who you are is not known there", 403: "it is forbidden to you", 451: "it is barred for legal reasons"}
_FEWER = "ask fewer rows at a time (batch in the endpoint's settings)"
_ELSEWHERE = "it points elsewhere; give the address that it points to, if you may test that one"
_OTHERWISE = "check the shape of the inputs and the protocol"
_CONNECTION_LOST = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)


@dataclass
class Traffic:
    """What went over the wire: requests sent, how many of them again, seconds, bytes.

    seconds:      until each answer had been read, summed: requests that overlap count each
    busy_seconds: during which at least one request was on its way
    """

    requests: int = 0
    repeated: int = 0
    seconds: float = 0.0
    busy_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(eq=False)
class _Again(Exception):
    """A failure that may pass: what happened, how long the server asks to wait, what to raise in the end."""

    reason: str
    wait: float | None = None
    at_once: bool = False
    kind: type[RelumineError] = OracleFailedError


class Cancellation:
    """Says that nothing more is to be sent, to every waiting thread.

    Other than a ``threading.Event`` it may be set by a signal handler in the very thread that waits for it.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._is_set = False
        self._said: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake up the waiting threads."""
        self._is_set = True
        self._said.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is said."""
        with suppress(Empty):
            self._said.get(timeout=seconds)
            self._said.put(None)  # for the others


class Sender:
    """Posts JSON and reads JSON. The Authorization header comes from the environment and is shown to nobody."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._secret = os.environ.get(endpoint.authorization_env, "")
        self._lock = threading.Lock()
        self._next = 0.0  # when the next request may go
        self._flying, self._busy_since = 0, 0.0
        self.traffic = Traffic()
        self._tls = _tls(endpoint)
        self._pooled = self._client(httpx.Limits(max_connections=endpoint.concurrency, keepalive_expiry=30))

    def __repr__(self) -> str:
        return f"Sender({self._endpoint.url})"

    @cached_property
    def _fresh(self) -> httpx.Client:
        """After a failure the other connections of the pool may be dead as well: repeat on one that is new."""
        return self._client(httpx.Limits(max_connections=self._endpoint.concurrency, max_keepalive_connections=0))

    def _client(self, limits: httpx.Limits) -> httpx.Client:
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "gzip"}
        headers |= dict.fromkeys(("Content-Type", "Accept"), "application/json")
        headers |= {"Authorization": self._secret} if self._secret else {}
        # With a transport of its own no proxy of the environment comes between this machine and itself.
        transport = httpx.HTTPTransport(verify=self._tls, limits=limits) if self._endpoint.is_local else None
        try:
            client = httpx.Client(
                headers=headers, timeout=self._endpoint.timeout, limits=limits, verify=self._tls, transport=transport
            )
        except (UnicodeEncodeError, ValueError) as error:
            raise MisuseError(
                f"the environment variable {self._endpoint.authorization_env}: expected a header of plain characters, "
                "got others (not shown here)"
            ) from (None if self._secret else error)
        keep_to_deadlines(client)
        return client

    def close(self) -> None:
        self._pooled.close()
        if "_fresh" in self.__dict__:  # which is made when it is needed first
            self._fresh.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def post(self, url: str, body: object, stop: Cancellation, limits: Limits) -> Any:
        """The answer to a request, sent until it is answered; ``stop`` ends the waiting between two tries."""
        return self._sent(url, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), stop, limits)

    def get(self, url: str, limits: Limits) -> Any:
        """What a server says of itself at an address."""
        return self._sent(url, b"", Cancellation(), limits)

    def _sent(self, url: str, content: bytes, stop: Cancellation, limits: Limits) -> Any:
        tries = 0
        while True:
            self._wait_for_turn(stop)
            try:
                return self._once(self._fresh if tries else self._pooled, url, content, limits, again=tries > 0)
            except BadAnswerError as error:
                raise BadAnswerError(f"{url}: {error}; {KEPT}") from error
            except _Again as trouble:
                tries += 1
                if tries > self._endpoint.retries or stop.is_set():
                    raise trouble.kind(
                        f"{url}: expected an answer, got {trouble.reason}, {tries} times in a row; see to the server "
                        f"(or raise --timeout or lower --rate); {KEPT}"
                    ) from trouble.__cause__
                stop.wait(_wait(trouble, tries))

    def _wait_for_turn(self, stop: Cancellation) -> None:
        """One request goes every 1/rate seconds, whichever thread it comes from."""
        with self._lock:
            turn = max(time.monotonic(), self._next)
            self._next = turn + (1 / self._endpoint.rate if self._endpoint.rate else 0.0)
        if turn > (now := time.monotonic()):
            stop.wait(turn - now)

    def _once(self, client: httpx.Client, url: str, content: bytes, limits: Limits, *, again: bool) -> Any:
        with self._counted(len(content), again), _failures_named(self._endpoint.timeout):
            status, headers, answer = self._exchange(client, url, content, limits)
        if status != 200:
            self._refused(url, status, headers, answer)
        limits.check_values(answer)
        return _read(answer)

    def _exchange(
        self, client: httpx.Client, url: str, content: bytes, limits: Limits
    ) -> tuple[int, httpx.Headers, bytearray]:
        method = "POST" if content else "GET"
        with within(self._endpoint.timeout), client.stream(method, url, content=content) as response:
            right = response.status_code == 200
            answer = body_of(response, limits.size if right else BYTES_OF_ERRORS, cut=not right)
        with self._lock:
            self.traffic.received_bytes += response.num_bytes_downloaded
        return response.status_code, response.headers, answer

    @contextmanager
    def _counted(self, size: int, again: bool) -> Iterator[None]:
        started = time.monotonic()
        with self._lock:
            self._flying += 1
            if self._flying == 1:
                self._busy_since = started
        try:
            yield
        finally:
            with self._lock:
                now = time.monotonic()
                self._flying -= 1
                self.traffic.requests += 1
                self.traffic.repeated += again
                self.traffic.sent_bytes += size
                self.traffic.seconds += now - started
                if self._flying == 0:
                    self.traffic.busy_seconds += now - self._busy_since

    def _refused(self, url: str, status: int, headers: httpx.Headers, answer: bytearray) -> NoReturn:
        """Raise what an answer other than 200 means."""
        said = f"{status} {self._said(answer)}".strip()
        if status in _DENIED:
            raise AccessError(
                f"{url}: expected an answer, got {said}: {_DENIED[status]}; the run has ended. Ask the owner of the "
                f"endpoint, or set {self._endpoint.authorization_env}; {KEPT}"
            )
        wait = _retry_after(headers)
        if status == 429:
            if wait is not None and wait > self._endpoint.patience:
                raise QuotaError(
                    f"{url}: the quota is used up ({said}), and the server asks to wait {wait:,.0f} s; come back then: "
                    f"{KEPT}"
                )
            raise _Again(said, wait, kind=QuotaError)
        if status in _TRY_AGAIN:
            raise _Again(said, None if wait is None else min(wait, self._endpoint.patience))
        remedies = {404: "check the model's name in the address", 413: _FEWER}
        remedy = _ELSEWHERE if 300 <= status < 400 else remedies.get(status, _OTHERWISE)
        raise OracleFailedError(f"{url}: expected 200, got {said}; {remedy}")

    def _said(self, answer: bytearray) -> str:
        """The server's own words, on one line, short, and without the secret should it repeat it."""
        text = answer[:2000].decode("utf-8", errors="replace")
        with suppress(orjson.JSONDecodeError):
            body = orjson.loads(answer)
            words = (body.get("error"), body.get("detail")) if isinstance(body, dict) else ()
            text = next((word for word in words if isinstance(word, str) and word), text)
        for secret in (self._secret, *self._secret.split()[1:]):
            text = text.replace(secret, "***") if secret else text
        return "".join(c if c.isprintable() else " " for c in text[:2000])[:200]


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    """Whom to trust. Reading all authorities takes longer than some runs, and http:// has no use for them."""
    secure = any(address.lower().startswith("https:") for address in (endpoint.url, endpoint.explainer or ""))
    return httpx.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _read(answer: bytearray) -> Any:
    try:
        return decoded(answer)
    except ValueError as error:
        if any(word in answer for word in (b"NaN", b"Infinity")):
            raise BadAnswerError("expected finite numbers, got NaN or infinity in the answer") from error
        raise _Again(
            f"an answer that is not JSON or was cut off ({len(answer):,} bytes)", kind=BadAnswerError
        ) from error


@contextmanager
def _failures_named(timeout: float) -> Iterator[None]:
    """httpx's errors as ours. A connection that was lost is tried again at once: the server may just have closed it."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise _Again(f"nothing within {timeout:g} s") from error
    except _CONNECTION_LOST as error:
        raise _Again("a connection that broke off", at_once=True) from error
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise OracleFailedError(
                f"the server's certificate is not trusted ({error}); SSL_CERT_FILE may name its authority's"
            ) from error
        raise _Again(f"no connection ({error})") from error
    except httpx.HTTPError as error:
        raise _Again(f"{type(error).__name__}: {error}") from error


def _wait(trouble: _Again, tries: int) -> float:
    """Seconds before the next try: none after the first lost connection, what the server asks for, or a back-off."""
    if trouble.at_once and tries == 1:
        return 0.0
    if trouble.wait is not None:
        return trouble.wait
    return min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (tries - 1)) * random.uniform(0.75, 1.25)


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds that the server asks to wait: it may say how many, or until when."""
    text = str(headers.get("Retry-After", ""))
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
