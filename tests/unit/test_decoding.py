"""JSON is read as what it says, with arrays for lists of numbers."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relumine.oracle.http.decoding import decoded

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
EXACT = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)  # as float64
JSON = st.recursive(
    st.none() | st.booleans() | EXACT | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


def plain(value: object) -> object:
    """Lists for arrays."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def flat(value: object) -> list[object]:
    """Everything in it, without its lists."""
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, list) else [value]


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_lists_of_numbers_are_arrays_with_every_digit(rows):
    found = decoded(json.dumps({"a": [rows, rows]}).encode())["a"]
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, np.array([rows, rows], dtype=np.float64))


@example([{"\0": None, "": False}])
@given(JSON)
def test_nothing_is_lost_or_added(value):
    found = plain(decoded(json.dumps(value).encode()))
    if isinstance(value, dict):
        assert found.keys() == value.keys()
    else:
        assert flat(found) == flat(value)


@pytest.mark.parametrize("odd", [[[1, 2], [3]], [[1, None]], [[1, "2"]], [[True, 1]], [[1, 2], 3], [{"a": 1}]])
def test_other_lists_stay_lists(odd):
    found = decoded(json.dumps(odd).encode())
    assert isinstance(found, list)
    assert plain(found) == odd


@pytest.mark.parametrize(
    "text", [b"", b"[1, 2", b"[NaN]", b"[1] x", b"<html>", b"\xff", b"[" * 5000 + b"]" * 5000, b"[" + b"9" * 400 + b"]"]
)
def test_what_is_no_json_is_said_and_does_no_harm_to_the_next(text):
    with pytest.raises(ValueError, match=r"."):
        decoded(text)
    assert decoded(b"[1]") == [1]
