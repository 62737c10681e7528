"""Tables of inputs: CSV files and Parquet files, a row per input, a column per feature, and perhaps one of labels."""

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relumine.errors import DataError
from relumine.text import one_line

TABLES = (".csv", ".tsv", ".parquet")

# Columns of these names hold labels; a feature may be called y, too.
_LABEL_COLUMNS = ("label", "labels", "target", "class")

# Numbers in a table, at most: as many as 2 GiB of float64 hold.
_MOST_NUMBERS = 2**28


class Table(NamedTuple):
    """n×d numbers, and n labels if a column holds them."""

    inputs: "np.ndarray[Any, Any]"
    labels: "np.ndarray[Any, Any] | None"


def read_table(path: Path, features: int, label_column: str | None) -> Table:
    """The rows of a .csv, .tsv or .parquet file for a target with that number of features, or a DataError."""
    names, columns = columns_of(path)
    label = label_column_of(path, names, features, label_column)
    inputs = [_numbers(path, names[i], columns[i]) for i in range(len(names)) if i != label]
    if len(inputs) != features:
        advice = "add those that are missing" if len(inputs) < features else "leave out columns that are none"
        raise DataError(
            f"{path}: the target takes {features} features, got {len(inputs)} columns"
            f"{'' if label is None else f' besides {names[label]!r}'} ({_listed(names)}); {advice}, or name that of "
            "the labels with --label-column"
        )
    labels = None if label is None else as_labels(columns[label])
    return Table(np.stack(inputs, axis=1), labels)


def columns_of(path: Path) -> tuple[list[str], list[Sequence[Any]]]:
    """The names and the cells of a table's columns, or a DataError."""
    return (_from_parquet if path.suffix.lower() == ".parquet" else _from_text)(path)


def _from_text(path: Path) -> tuple[list[str], list[Sequence[Any]]]:
    if path.stat().st_size > 8 * _MOST_NUMBERS:
        raise DataError(f"{path}: expected at most 2 GiB, got {path.stat().st_size:,} bytes; save fewer rows")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.read(2**16)
            file.seek(0)
            separator = "\t" if path.suffix.lower() == ".tsv" else ";" if start.count(";") > start.count(",") else ","
            rows = [row for row in csv.reader(file, delimiter=separator) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error}); save it as UTF-8 text with commas") from error
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise DataError(f"{path}: expected rows of the same length, got {'rows of several' if rows else 'none'}")
    # A first row of names has no numbers, except perhaps of columns that are called by them.
    named = sum(map(_is_number, rows[0])) < len(rows[0]) / 2
    names = [name.strip() for name in rows[0]] if named else [str(i) for i in range(len(rows[0]))]
    return names, list(itertools.zip_longest(*rows[named:])) or [() for _ in names]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _from_parquet(path: Path) -> tuple[list[str], list[Sequence[Any]]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs pyarrow: pip install 'relumine[tables]'") from error
    try:
        file = parquet.ParquetFile(path)
        size = file.metadata.num_rows * file.metadata.num_columns
        if size > _MOST_NUMBERS:
            raise DataError(f"{path}: expected at most {_MOST_NUMBERS:,} numbers, got {size:,}; save fewer rows")
        table = file.read()
        return list(table.column_names), [column.to_numpy() for column in table.columns]
    except DataError:
        raise
    except Exception as error:  # pyarrow's own kinds
        reason = one_line(error, named=False)
        raise DataError(f"{path}: cannot be read as Parquet ({reason}); write it with DataFrame.to_parquet") from error


def label_column_of(path: Path, names: list[str], features: int, said: str | None) -> int | None:
    """Which column holds labels: the one that was named, or one that is called so."""
    if said is not None:
        if said not in names:
            raise DataError(f"{path}: --label-column: expected one of {_listed(names)}, got {said!r}")
        return names.index(said)
    known = (*_LABEL_COLUMNS, "y") if len(names) > features else _LABEL_COLUMNS
    called = [i for i, name in enumerate(names) if name.lower() in known]
    return called[0] if len(called) == 1 else None


def _numbers(path: Path, name: str, column: Sequence[Any]) -> "np.ndarray[Any, Any]":
    values = np.asarray(column)
    if values.dtype.kind in "fiub":
        return values
    try:
        return np.array([float(cell) if cell not in ("", None) else np.nan for cell in column])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{path}: expected numbers, the column {name!r} has others ({error}); encode it as in the model's "
            "training, or name it with --label-column if it holds the labels"
        ) from error


def as_labels(column: Sequence[Any]) -> "np.ndarray[Any, Any]":
    """Numbers where all are, else words."""
    values = np.asarray(column)
    if values.dtype.kind in "fiub":
        return values
    words = [str(cell).strip() for cell in column]
    if not all(map(_is_number, words)):
        return np.array(words)
    numbers = np.array([float(word) for word in words])
    return numbers


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
