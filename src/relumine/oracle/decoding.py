"""JSON read straight into arrays: answers of servers are numbers by the hundred thousand."""

from math import prod
from typing import Any

import numpy as np
import simdjson

from relumine.oracle.base import Array


def decoded(text: bytes) -> Any:
    """Plain values, but for lists of numbers, however nested: these are arrays. ValueError if it is no JSON."""
    try:
        return _plain(simdjson.Parser().parse(text))
    except (RuntimeError, RecursionError) as error:  # numbers of too many digits, lists in lists without end
        raise ValueError(str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
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


def _shape(value: Any) -> tuple[int, ...] | None:
    """How long lists are and the lists in them, or None if that differs. A list that begins with none has none."""
    if not isinstance(value, simdjson.Array):
        return ()
    if len(value) == 0 or not isinstance(value[0], simdjson.Array):
        return (len(value),)
    shapes = {_shape(part) for part in value}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)
