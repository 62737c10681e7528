"""Places in JSON, from the side of who answers: rows found in a request, and numbers put where an answer has them."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from relumine.errors import BadAnswerError
from relumine.oracle.base import Array

# A step of a place: a field's name, or the position in a list ("" for each element).
Step = tuple[str | None, str | None]


def path_to(wanted: tuple[str, ...], template: object) -> list[str | int]:
    """The names and positions that lead to the one text in a template that is one of these words."""
    return next((path for path, text in texts_in(template) if text in wanted), [])


def texts_in(template: Any) -> Iterator[tuple[list[str | int], str]]:
    """All texts in a template, each with the names and positions that lead to it."""
    if isinstance(template, str):
        yield [], template
    parts: Any = template.items() if isinstance(template, Mapping) else ()
    for key, part in enumerate(template) if isinstance(template, list | tuple) else parts:
        yield from (([key, *path], text) for path, text in texts_in(part))


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
