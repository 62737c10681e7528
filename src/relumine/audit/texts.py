"""The owner's inputs for any target: texts or token ids for text classifiers, numbers for all others."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from relumine.audit.data import AuditData, checked_data, load_data, reader_of
from relumine.audit.tables import TABLES, as_labels, columns_of, label_column_of
from relumine.errors import DataError, MisuseError
from relumine.oracle.base import Array, Offer, Oracle

# Columns of these names hold the text.
_TEXT_COLUMNS = ("text", "sentence", "review", "comment", "content", "message", "body", "title", "tweet", "question")


@runtime_checkable
class TextOracle(Protocol):
    """A text classifier that turns texts into its inputs."""

    class_names: tuple[str, ...]

    @property
    def offer(self) -> Offer:
        """What is promised."""

    def encode(self, texts: list[str]) -> Array:
        """n×d inputs of texts."""

    def filled(self, ids: list[list[int]]) -> Array:
        """n×d inputs of token ids."""


def data_for(oracle: Oracle, path: str | Path, *, label_column: str | None = None) -> AuditData:
    """The inputs in ``path`` for this target."""
    offer = oracle.offer
    real = offer.values == "real"
    if not isinstance(oracle, TextOracle):
        return load_data(path, offer.inputs, offer.outputs, label_column=label_column, real=real)
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file; expected a table with a column of texts, or an .npz of token ids")
    try:
        rows, labels = (_texts if path.suffix.lower() in TABLES else _ids)(oracle, path, label_column)
    except MisuseError as error:
        raise DataError(f"{path}: {error}") from error
    names = oracle.class_names
    if labels is not None and labels.dtype.kind == "U" and set(labels) <= set(names):
        labels = np.array([names.index(label) for label in labels])
    return checked_data(rows, labels, (), offer.inputs, offer.outputs, path, real=real)


def _texts(oracle: TextOracle, path: Path, label_column: str | None) -> "tuple[Array, np.ndarray | None]":
    names, columns = columns_of(path)
    label = label_column_of(path, names, 1, label_column)
    others = [i for i in range(len(names)) if i != label]
    called = [i for i in others if names[i].lower() in _TEXT_COLUMNS]
    chosen = called if len(called) == 1 else others
    if len(chosen) != 1:
        raise DataError(f"{path}: expected a column called text, or one besides the labels, got {', '.join(names[:8])}")
    texts = ["" if cell is None else str(cell) for cell in columns[chosen[0]]]
    return oracle.encode(texts), None if label is None else as_labels(columns[label])


def _ids(oracle: TextOracle, path: Path, label_column: str | None) -> "tuple[Array, np.ndarray | None]":
    if label_column is not None:
        raise DataError(f"{path}: --label-column belongs to a .csv or .parquet file; leave it out")
    found = reader_of(path)(path, oracle.offer.inputs)
    if found.inputs.ndim != 2 or found.inputs.dtype.kind not in "iuf":
        raise DataError(f"{path}: expected token ids, n×length, got {found.inputs.dtype} of shape {found.inputs.shape}")
    return oracle.filled(found.inputs.tolist()), found.labels
