"""JSON read straight into arrays: answers of servers are numbers by the hundred thousand."""

import threading
from math import prod
from typing import Any

import numpy as np
import simdjson

from relumine.oracle.base import Array

_own = threading.local()  # each thread's parser, which has the memory already that the next answer needs


def decoded(text: bytes | bytearray) -> Any:
    """Plain values, but for lists of numbers, however nested: these are arrays. ValueError if it is no JSON."""
    parser = _own.__dict__.pop("parser", None) or simdjson.Parser()
    try:
        value = _plain(parser.parse(text))
    except (RuntimeError, RecursionError) as error:  # numbers of too many digits, lists in lists without end
        raise ValueError(str(error)) from error
    _own.parser = parser
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        if any("\0" in name for name in value):  # which ends the name where it is looked up
            return value.as_dict()
        return {name: _plain(value[name]) for name in value}  # items() would make lists of everything
    if not isinstance(value, simdjson.Array):
        return value
    numbers = _numbers(value)
    return [_plain(part) for part in value] if numbers is None else numbers


def _numbers(value: simdjson.Array) -> Array | None:
    """The array that these lists are, or None if something else is among the numbers or lengths differ."""
    shape = _shape(value)
    if shape is None:
        return None
    try:
        flat = np.frombuffer(value.as_buffer(of_type="d"))
    except TypeError:
        return None
    return flat.reshape(shape) if flat.size == prod(shape) else None


def _shape(value: simdjson.Array) -> tuple[int, ...] | None:
    """How long lists are and the lists in them, or None if that differs."""
    level: list[Any] = [value]
    shape = [len(value)]
    while shape[-1] and isinstance(level[0][0], simdjson.Array):
        level = [part for parts in level for part in parts]
        try:
            lengths = set(map(len, level))
        except TypeError:  # a number among the lists
            return None
        if len(lengths) > 1:
            return None
        shape += lengths
    return tuple(shape)
