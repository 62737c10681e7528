"""Limits of what is taken from a server: bytes after unpacking, values in the JSON, and seconds for a whole exchange.

A server may be broken, or written to harm its clients: a few kilobytes that unpack to gigabytes, millions of empty
lists, a header that comes a byte at a time. What is taken follows from how many numbers were asked for.
"""

import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx
import numpy as np

from relumine.errors import BadAnswerError

# What an answer may have besides the numbers asked for: other maps, names, a copy of the request.
_BYTES_BESIDES, _VALUES_BESIDES, _LISTS_BESIDES = 16 * 2**20, 2**20, 2**17
# A number has up to 25 characters and may stand in an object with its name; other numbers may stand beside it.
_BYTES_EACH, _VALUES_EACH = 64, 8
_MOST_BYTES = 256 * 2**20
# Of an error's body no more is read than is shown.
BYTES_OF_ERRORS = 2**16

_STEP = 2**16  # bytes read, unpacked or counted at a time: they fit a processor's cache
_PACKED = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}

_now = threading.local()  # the deadline of this thread's exchange


@dataclass(frozen=True)
class Limits:
    """What the answer to one request may take.

    numbers: how many are asked for
    """

    numbers: int

    @property
    def size(self) -> int:
        """Bytes of the body, unpacked."""
        return min(_BYTES_BESIDES + _BYTES_EACH * self.numbers, _MOST_BYTES)

    @property
    def values(self) -> int:
        """JSON values: numbers, texts, lists, objects."""
        return _VALUES_BESIDES + _VALUES_EACH * self.numbers

    @property
    def lists(self) -> int:
        """Lists and objects, some 700 bytes each: a number may have its own (channels last: [[[0.5]]])."""
        return _LISTS_BESIDES + self.numbers

    def check_values(self, text: bytes | bytearray) -> None:
        """Refuse JSON with more values or lists, before it is parsed: every value but the first follows one of these.

        Characters inside texts are counted too, so that there may be fewer values, never more. A value takes two bytes
        at least, with what ends it: shorter texts need no counting.
        """
        codes = np.frombuffer(text, np.uint8)
        # In steps: fresh memory costs more than counting. "[" and "{" differ in one bit.
        steps = (codes[start : start + _STEP] for start in range(0, len(codes), _STEP))
        lists = sum(int(np.count_nonzero((step | 0x20) == 0x7B)) for step in steps)
        values = lists + text.count(b",") if len(text) // 2 >= self.values else 0
        for count, most, what in ((lists, self.lists, "lists"), (values, self.values, "values")):
            if count > most:
                raise BadAnswerError(
                    f"expected some {self.numbers:,} numbers, got an answer with up to {count:,} {what}; if the server "
                    "answers so much beside them, ask fewer rows at a time (batch in the endpoint's settings)"
                )


def body_of(response: httpx.Response, most: int, *, cut: bool = False) -> bytearray:
    """The body, unpacked as it comes. Of one with more than ``most`` bytes the first, if it may be cut; else none."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "", *_PACKED):
        raise BadAnswerError(
            f"expected an answer as it is or packed by gzip, got the encoding {encoding[:40]!r}; switch that off"
        )
    body = bytearray()
    for part in _unpacked(response.iter_raw(_STEP), _PACKED.get(encoding)):
        body += part
        if len(body) > most:
            if cut:
                return body[:most]
            raise BadAnswerError(
                f"expected an answer of at most {most / 2**20:,.0f} MiB, got a longer one"
                f"{'' if encoding in ('identity', '') else f' (packed by {encoding})'}; see to the server"
            )
    return body


def _unpacked(parts: Iterator[bytes], window: int | None) -> Iterator[bytes]:
    """The parts, in steps that fit into memory however well they were packed."""
    if window is None:
        yield from parts
        return
    unpack = zlib.decompressobj(window)
    try:
        for part in parts:
            rest = part
            while rest and not unpack.eof:
                yield unpack.decompress(rest, _STEP)
                rest = unpack.unconsumed_tail
    except zlib.error as error:
        raise BadAnswerError(f"expected an answer packed by gzip, got one that cannot be unpacked ({error})") from error
    if not unpack.eof:
        raise BadAnswerError("expected an answer packed by gzip, got one that is cut off")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Everything that this thread reads and writes inside ends by then, however slowly the other side goes on."""
    _now.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        del _now.deadline


def _left(timeout: float | None) -> float:
    left: float = _now.deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the answer took too long")
    return left if timeout is None else min(left, timeout)


class _Stream(httpcore.NetworkStream):
    """A connection that keeps to the deadline."""

    def __init__(self, inside: httpcore.NetworkStream) -> None:
        self._inside = inside

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inside.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inside.write(buffer, _left(timeout))

    def close(self) -> None:
        self._inside.close()

    def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(self._inside.start_tls(*args, **kwargs))

    def get_extra_info(self, info: str) -> Any:
        return self._inside.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Connections that keep to the deadline."""

    def __init__(self, inside: httpcore.NetworkBackend) -> None:
        self._inside = inside

    def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(self._inside.connect_tcp(*args, **kwargs))

    def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(self._inside.connect_unix_socket(*args, **kwargs))

    def sleep(self, seconds: float) -> None:
        self._inside.sleep(seconds)


def keep_to_deadlines(client: Any) -> None:
    """Have every connection of an httpx.Client keep to the deadline: httpx itself limits single reads only."""
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport._pool._network_backend = _Backend(transport._pool._network_backend)
