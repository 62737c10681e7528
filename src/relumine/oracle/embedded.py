"""EmbeddingOracle: a text classifier whose embedding table is public, explained by gradients of its embeddings."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from relumine.oracle.base import Array
from relumine.oracle.torch import TorchOracle


class EmbeddingOracle(TorchOracle):
    """Inputs are L×E embeddings, 0 where a text has ended: a table that everybody knows turns tokens into them.

    ids, filled: texts, and ids of any length, to n×L ids
    table:       V×E, the embeddings of all tokens
    padding:     the id that fills a sequence up
    class_names: one per output
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        ids: Callable[[Sequence[str]], Array],
        filled: Callable[[Sequence[Sequence[int]]], Array],
        table: Array,
        padding: int,
        longest: int,
        class_names: tuple[str, ...],
        **said: Any,
    ) -> None:
        super().__init__(module, (longest, table.shape[1]), **said)
        self.class_names = class_names
        self._ids, self._filled, self._padding = ids, filled, padding
        self._table = table

    def encode(self, texts: Sequence[str]) -> Array:
        """n×(L·E) embeddings of texts."""
        return self._embedded(self._ids(texts))

    def filled(self, ids: Sequence[Sequence[int]]) -> Array:
        """n×(L·E) embeddings of token ids."""
        return self._embedded(self._filled(ids))

    def _embedded(self, rows: Array) -> Array:
        ids = rows.astype(np.int64)
        found: Array = np.where((ids == self._padding)[..., None], 0.0, self._table[ids])
        return found.reshape(len(ids), -1)
