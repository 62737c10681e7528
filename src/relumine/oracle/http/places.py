"""Places in JSON, from the side of who answers: rows found in a request, and numbers put where an answer has them."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from relumine.errors import BadAnswerError
from relumine.oracle.base import Array

# A step of a place: a field's name, or the position in a list ("" for each element).
Step = tuple[str | None, str | None]


def path_to(wanted: type | tuple[str, ...], body: object) -> list[str | int]:
    """The names and positions that lead to the one part of a body that is of a type, or one of these words."""
    parts: Any = (
        body.items() if isinstance(body, Mapping) else enumerate(body) if isinstance(body, list | tuple) else ()
    )
    return next(([key, *path_to(wanted, part)] for key, part in parts if _has(wanted, part)), [])


def _has(wanted: type | tuple[str, ...], body: object) -> bool:
    if isinstance(body, Mapping | list | tuple):
        return any(_has(wanted, part) for part in (body.values() if isinstance(body, Mapping) else body))
    return isinstance(body, wanted) if isinstance(wanted, type) else isinstance(body, str) and body in wanted


def part_at(body: Any, path: list[str | int]) -> Any:
    """What sits at the end of a path."""
    for key in path:
        try:
            body = body[key]
        except (TypeError, KeyError, IndexError) as error:
            place = ".".join(map(str, path))
            raise BadAnswerError(f"expected rows at {place!r} of the request, got none there") from error
    return body


def placed(numbers: Array, steps: list[Step]) -> Any:
    """Plain values in which these numbers are at a place."""
    if not steps:
        return numbers
    (name, position), rest = steps[0], steps[1:]
    if name is not None:
        return {name: placed(numbers, rest)}
    if position == "":
        return [placed(row, rest) for row in numbers] if rest else numbers
    return [None] * int(position or 0) + [placed(numbers, rest)]


def merged(one: Any, other: Any) -> Any:
    """Both, where they have different places."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: merged(one.get(name), part) for name, part in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(*parts) for parts in zip_longest(one, other)]
    return one if other is None else other
