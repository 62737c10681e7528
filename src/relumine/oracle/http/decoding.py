"""JSON read straight into arrays: answers of servers are numbers by the hundred thousand."""

import threading
from math import prod
from typing import Any

import numpy as np
import simdjson

from relumine.errors import BadAnswerError
from relumine.oracle.base import Array

# Protocols and places have some ten levels: rows, outputs, axes of an input, objects around them.
_DEEPEST = 16
# simdjson looks a name up among all that stand before it: of more names than these a plain dict is faster.
_MANY_NAMES = 64

_own = threading.local()  # each thread's parser, which has the memory already that the next answer needs


def decoded(text: bytes | bytearray) -> Any:
    """Plain values, but for lists of numbers, however nested: these are arrays. ValueError if it is no JSON."""
    parser = _own.__dict__.pop("parser", None) or simdjson.Parser()
    try:
        value = _plain(parser.parse(text), _DEEPEST)
    except (RuntimeError, RecursionError) as error:  # numbers of too many digits, lists in lists without end
        raise ValueError(str(error)) from error
    _own.parser = parser
    return value


def _plain(value: Any, levels: int) -> Any:
    if isinstance(value, simdjson.Object):
        _require(levels)
        if len(value) > _MANY_NAMES or any("\0" in name for name in value):  # which ends the name where it is looked up
            return _no_deeper(value.as_dict(), levels)
        return {name: _plain(value[name], levels - 1) for name in value}  # items() would make lists of everything
    if not isinstance(value, simdjson.Array):
        return value
    _require(levels)
    numbers = _numbers(value, levels)
    return [_plain(part, levels - 1) for part in value] if numbers is None else numbers


def _no_deeper(value: Any, levels: int) -> Any:
    if isinstance(value, dict | list):
        _require(levels)
        for part in value.values() if isinstance(value, dict) else value:
            _no_deeper(part, levels - 1)
    return value


def _require(levels: int) -> None:
    if not levels:
        raise BadAnswerError(f"expected lists and objects up to {_DEEPEST} deep, got an answer nested deeper")


def _numbers(value: simdjson.Array, levels: int) -> Array | None:
    """The array that these lists are, or None if something else is among the numbers or lengths differ."""
    shape = _shape(value, levels)
    if shape is None:
        return None
    try:
        flat = np.frombuffer(value.as_buffer(of_type="d"))
    except TypeError:
        return None
    return flat.reshape(shape) if flat.size == prod(shape) else None


def _shape(value: simdjson.Array, levels: int) -> tuple[int, ...] | None:
    """How long lists are and the lists in them, or None if that differs.

    One list at a time: millions of them at once are gigabytes.
    """
    if not len(value) or not isinstance(value[0], simdjson.Array):
        return (len(value),)
    _require(levels - 1)
    shapes: set[tuple[int, ...] | None] = set()
    for part in value:
        shapes.add(_shape(part, levels - 1) if isinstance(part, simdjson.Array) else None)
        if len(shapes) > 1 or None in shapes:
            return None
    (inner,) = shapes
    return None if inner is None else (len(value), *inner)
