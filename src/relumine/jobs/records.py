"""Records from the plain data that ``asdict`` and JSON made of them."""

from dataclasses import is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")


def read(kind: type[_Record], plain: Any) -> _Record:
    """The record that ``asdict`` and JSON made plain, by the types of its fields."""
    record: _Record = _as(kind, plain)
    return record


def _as(hint: Any, plain: Any) -> Any:
    """Records and tuples from dictionaries and lists; numbers and words as they are."""
    if plain is not None and get_origin(hint) is UnionType:  # something, or None
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        return tuple(_as(get_args(hint)[0], one) for one in plain)
    if not is_dataclass(hint) or plain is None:
        return plain
    hints = get_type_hints(hint)
    return hint(**{name: _as(hints[name], value) for name, value in plain.items()})  # type: ignore[operator]
