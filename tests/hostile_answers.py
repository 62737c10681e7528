"""Answers of servers written to harm their clients: bombs, endless and damaged ones, and some that are merely wrong.

Each is what is written to the connection after a request was read: bytes, or a function that makes them one after the
other and may sleep.
"""

import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

Raw = list[bytes] | Callable[[], Iterable[bytes]]

OUTPUTS, INPUTS = 3, 5
HONEST = {"predictions": [[0.0] * OUTPUTS], "explanations": [[[0.0] * INPUTS] * OUTPUTS]}


def said(body: bytes, status: str = "200 OK", *headers: str) -> list[bytes]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return ["\r\n".join(lines).encode("latin-1"), body]


def repeated(unit: bytes, megabytes: int, wbits: int) -> Iterator[bytes]:
    """``megabytes`` MB of a repeated text, packed: blocks that end in a full flush can be repeated as they are."""
    pack = zlib.compressobj(9, zlib.DEFLATED, wbits)
    head = pack.compress(b"") + pack.flush(zlib.Z_FULL_FLUSH)
    block = pack.compress((unit * (2**20 // len(unit) + 1))[: 2**20]) + pack.flush(zlib.Z_FULL_FLUSH)
    yield head
    for _ in range(megabytes):
        yield block


def packed(encoding: str, unit: bytes, megabytes: int, status: str = "200 OK") -> Iterator[bytes]:
    yield f"HTTP/1.1 {status}\r\nContent-Encoding: {encoding}\r\nConnection: close\r\n\r\n".encode()
    yield from repeated(unit, megabytes, 31 if "gzip" in encoding else 15)


def bombs() -> Iterator[tuple[str, Raw]]:
    units = {
        "zeros": b"\0",
        "spaces": b" ",
        "lists": b"[",
        "objects": b'{"a":',
        "numbers": b"[0,0,0,0],",
        "text": b"aaaa",
    }
    for name, unit in units.items():
        for encoding in ("gzip", "deflate"):
            for megabytes in (20, 6400):
                yield f"{megabytes} MB of {name} by {encoding}", partial(packed, encoding, unit, megabytes)
    for status in ("500 Oops", "400 Bad", "404 No", "429 Later", "401 Who", "302 There", "503 Busy"):
        yield f"a bomb with {status}", partial(packed, "gzip", b" ", 6400, status)
    inside = gzip.compress(gzip.compress(bytes(10 * 2**20)))
    for encoding in ("gzip, gzip", "br", "zstd", "compress", "x" * 5000, "gzip,", "identity, gzip"):
        yield f"encoded by {encoding[:20]}", said(inside, "200 OK", f"Content-Encoding: {encoding}")
    whole = gzip.compress(json.dumps(HONEST).encode())
    for cut in (1, 5, 11, 20, len(whole) - 9):
        yield f"gzip cut after {cut}", said(whole[:cut], "200 OK", "Content-Encoding: gzip")
    yield "no gzip at all", said(json.dumps(HONEST).encode(), "200 OK", "Content-Encoding: gzip")
    for seed in range(8):
        damaged = bytearray(whole)
        damaged[12 + seed * 3] ^= 0x55
        yield f"gzip damaged at {12 + seed * 3}", said(bytes(damaged), "200 OK", "Content-Encoding: gzip")


def nested() -> Iterator[tuple[str, Raw]]:
    for depth in (17, 64, 100, 500, 900, 1000, 1023, 1025, 5000, 100_000):
        shapes = {
            "lists": b"[" * depth + b"]" * depth,
            "lists around a number": b"[" * depth + b"1" + b"]" * depth,
            "pairs": b"[1," * depth + b"1" + b"]" * depth,
            "two lists each": b"[[]," * depth + b"[]" + b"]" * depth,
            "objects": b'{"predictions":' * depth + b"1" + b"}" * depth,
            "both": b'[{"a":' * (depth // 2) + b"1" + b"}]" * (depth // 2),
            "a long list inside": b"[" * depth + b"1," * 50_000 + b'"x"' + b"]" * depth,
        }
        for name, text in shapes.items():
            yield f"{name}, {depth} deep", said(b'{"predictions": ' + text + b', "explanations": ' + text + b"}")
            if name == "lists":
                yield f"an error of {name}, {depth} deep", said(b'{"error": ' + text + b"}", "400 Bad")


def wide() -> Iterator[tuple[str, Raw]]:
    parts = {"lists": b"[],", "objects": b"{},", "texts": b'"",', "nulls": b"null,", "numbers": b"0,", "long": b"1.5,"}
    for name, part in parts.items():
        for count in (300_000, 5_000_000):
            text = b"[" + part * count + part[:-1] + b"]"
            yield f"{count:,} {name}", said(b'{"predictions": ' + text + b', "explanations": [0]}')
    for count in (1000, 100_000, 900_000):
        names = b"{" + b",".join(b'"%d":0' % i for i in range(count)) + b"}"
        yield f"{count:,} names", said(names)
        yield f"{count:,} names of a prediction", said(b'{"predictions": ' + names + b"}")
    yield "the same name 200,000 times", said(b"{" + b'"predictions":[1],' * 200_000 + b'"predictions":1}')
    yield (
        "ragged lists",
        said(b'{"predictions": [' + b",".join(b"[" + b"1," * (i % 7) + b"1]" for i in range(10**5)) + b"]}"),
    )
    yield "a name of 15 MB", said(b'{"' + b"a" * (15 * 2**20) + b'": 1}')
    yield "a text of 15 MB", said(b'{"predictions": "' + b"a" * (15 * 2**20) + b'"}')
    yield "a text of 40 MB", said(b'{"predictions": "' + b"a" * (40 * 2**20) + b'"}')
    yield "an error of 40 MB", said(b'{"error": "' + b"a" * (40 * 2**20) + b'"}', "500 Oops")
    yield "a number of 10 MB", said(b'{"predictions": [' + b"9" * (10 * 2**20) + b"]}")
    yield "10 MB of spaces", said(b" " * (10 * 2**20) + b"{}")


def odd() -> Iterator[tuple[str, Raw]]:
    numbers = ["1e400", "-1e400", "NaN", "Infinity", "-Infinity", "9" * 400, "null", "true", '"x"', "{}", "[]"]
    numbers += ["1e-400x", "0x10", "01", "+1", "1.", ".5", "1e", "--1", "[[1]]", '{"a": 1}', "[1, [2]]", "1, 2"]
    for number in numbers:
        text = f'{{"predictions": [[{number}, 0, 0]], "explanations": [[[{number}, 0, 0, 0, 0]]]}}'
        yield f"the number {number[:20]}", said(text.encode())
    bodies = [
        b"",
        b"null",
        b"1",
        b'"x"',
        b"[]",
        b"{}",
        b"[1, 2",
        b"<html>",
        b"\xff\xfe\0",
        b"\xef\xbb\xbf{}",
        b"\0" * 100,
    ]
    bodies += [
        '{"predictions": [[0,0,0]]}'.encode("utf-16"),
        b'{"\\ud800": 1}',
        b'{"predictions\\u0000": 1}',
        b'"\x1b[2J"',
    ]
    bodies += [json.dumps({"predictions": p, "explanations": e}).encode() for p, e in _shapes()]
    for i, body in enumerate(bodies):
        yield f"body {i}: {body[:20]!r}", said(body)
    rng = np.random.default_rng(0)
    for i in range(20):
        yield f"noise {i}", said(rng.bytes(int(rng.integers(1, 5000))))


def _shapes() -> Iterator[tuple[object, object]]:
    one = [[0.0] * OUTPUTS]
    for wrong in ([], [[]], [[0.0]], [[0.0] * 4], one * 2, one * 1000, 0, "x", None, {}, {"0": one}, [None], [[[0.0]]]):
        yield wrong, wrong


def statuses() -> Iterator[tuple[str, Raw]]:
    lines = ["HTTP/1.1 999 What", "HTTP/1.1 -1 x", "HTTP/1.1 abc", "HTTP/9.9 200 OK", "x", "", "HTTP/1.1", "200 OK"]
    for line in lines:
        yield f"status line {line!r}", [f"{line}\r\n\r\n{{}}".encode()]
    for status in ("204 None", "206 Part", "300 Many", "301 Moved", "307 There", "410 Gone", "418 Tea", "520 Odd"):
        yield f"status {status}", said(b"{}", status, "Location: http://127.0.0.1:1/")
    for wait in ("1e308", "inf", "nan", "-1", "9" * 300, "Wed, 21 Oct 2999 07:28:00 GMT", "x" * 5000):
        yield f"Retry-After {wait[:12]}", said(b"{}", "429 Later", f"Retry-After: {wait}")
    for length in ("-1", "1e3", "9" * 30, "x", "5, 6", str(2**40)):
        yield f"Content-Length {length[:12]}", [f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{{}}".encode()]
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for chunk in (
        b"ffffffffffffffff\r\nx",
        b"-1\r\n",
        b"zz\r\n",
        b"5\r\n{}",
        b"2\r\n{}xx",
        b"0" * 200_000,
        b"1;" + b"x" * 10**6,
    ):
        yield f"chunk {chunk[:12]!r}", [chunked, chunk]
    yield "a header of 1 MB", [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**20 + b"\r\n\r\n{}"]
    yield "100,000 headers", [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10**5 + b"\r\n{}"]
    yield "terminal codes in an error", said(b'{"error": "\x1b[31mred\x07"}', "400 Bad")


def endless() -> Iterator[tuple[str, Raw]]:
    """Each goes on for an hour, if it is let."""
    ok = b"HTTP/1.1 200 OK\r\n"
    yield "nothing", partial(_dripping, b"")
    yield "a status line a byte at a time", partial(_dripping, b"H", first=b"")
    yield "a header a byte at a time", partial(_dripping, b"x", first=ok + b"X: ")
    yield "headers one after the other", partial(_dripping, b"X: y\r\n", first=ok)
    yield "100 Continue again and again", partial(_dripping, b"HTTP/1.1 100 Continue\r\n\r\n")
    yield "a body a byte at a time", partial(_dripping, b" ", first=ok + b"Content-Length: 1000000\r\n\r\n")
    yield (
        "chunks one after the other",
        partial(_dripping, b"1\r\n \r\n", first=ok + b"Transfer-Encoding: chunked\r\n\r\n"),
    )
    yield (
        "gzip a byte at a time",
        partial(_dripping, b"\0", first=ok + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\3"),
    )
    yield "a body that never ends", partial(_pouring, ok + b"\r\n", b" " * 2**16)
    yield (
        "chunks that never end",
        partial(_pouring, ok + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 2**16 + b"\r\n"),
    )


def _dripping(part: bytes, first: bytes = b"") -> Iterator[bytes]:
    yield first
    for _ in range(36_000):
        time.sleep(0.1)
        yield part


def _pouring(first: bytes, part: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield part


def hostile_answers() -> list[tuple[str, Raw]]:
    return [*bombs(), *nested(), *wide(), *odd(), *statuses()]


@contextmanager
def answering(answers: dict[str, Raw]) -> Iterator[str]:
    """A server whose model NAME is answered by what ``answers`` has under that name; its address up to there."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=_serve, args=(listener, answers), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/models/"
    finally:
        listener.close()


def _serve(listener: socket.socket, answers: dict[str, Raw]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection, answers), daemon=True).start()


def _answer(connection: socket.socket, answers: dict[str, Raw]) -> None:
    try:
        with connection:
            name = _request(connection).split(b"/v1/models/")[1].split(b":")[0].decode()
            raw = answers[name]
            for part in raw() if callable(raw) else raw:
                connection.sendall(part)
    except OSError:
        pass  # the client hung up, as it should


def _request(connection: socket.socket) -> bytes:
    read = b""
    while b"\r\n\r\n" not in read:
        read += connection.recv(2**16)
    head, _, body = read.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(2**16)
    return head
