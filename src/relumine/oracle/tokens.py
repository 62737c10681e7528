"""TokenOracle: a text classifier, asked with sequences of token ids, and its token attributions.

Inputs are the ids of L tokens, filled up with the padding's: what a client can send. The embeddings behind them are
where attributions are computed: input × gradient and integrated gradients (Sundararajan et al. 2017) sum over the
coordinates of a token's embedding, as Captum's LayerIntegratedGradients and most text explanations do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch

from relumine.errors import MisuseError, OracleFailedError, translated
from relumine.oracle.base import Answer, Array, Offer, ValueKind, checked_answer, checked_inputs
from relumine.oracle.logits import tensor_probabilities
from relumine.oracle.torch import TorchOracle

Encode = Callable[[Sequence[str]], list[list[int]]]
Attribution = Literal["input-times-gradient", "integrated-gradients"]

_ROWS_AT_ONCE = 32  # of 128 tokens and 768 coordinates: 12 MB in float32 for each class
# Gauss–Legendre nodes, as many as Captum's default has steps. Normalised embeddings make gradients steep near the
# baseline, so that sums are off f(x) − f(baseline) by some percent; tests/unit/test_tokens.py holds how far.
_NODES = 50


class TokenOracle:
    """Answers a text classifier's values.

    module:      n×L ids and their n×L mask (0 for padding) to n×K logits
    embedding:   the part of it that embeds tokens, called once for each question
    padding:     the id that fills a sequence up
    longest:     L
    encode:      texts to ids, where there is a tokenizer
    class_names: one per output, where the model names them
    """

    def __init__(
        self,
        module: torch.nn.Module,
        embedding: torch.nn.Embedding,
        *,
        padding: int,
        longest: int,
        values: ValueKind = "logits",
        encode: Encode | None = None,
        class_names: tuple[str, ...] = (),
    ) -> None:
        if values not in ("logits", "probabilities", "real"):
            raise MisuseError(f"values: expected logits, probabilities or real of a text classifier, got {values!r}")
        self.padding, self.class_names = padding, class_names
        self._module, self.embedding, self._encode = module, embedding, encode
        self._squash = values == "probabilities"
        with translated(OracleFailedError, "the model raised "):
            outputs = self._outputs(torch.full((1, longest), padding)).shape[1]
        self.offer = Offer((longest,), outputs, values, "none", "float32", tokens=embedding.num_embeddings)

    def encode(self, texts: Sequence[str]) -> Array:
        """n×L ids of texts."""
        if self._encode is None:
            raise MisuseError(
                "the model's folder has no tokenizer.json; save its tokenizer there (tokenizer.save_pretrained), "
                "or give token ids in an .npz file"
            )
        return self.filled(self._encode(texts))

    def filled(self, ids: Sequence[Sequence[int]]) -> Array:
        """Sequences of any length, cut or filled up to L."""
        longest = self.offer.dimension
        rows = [[*row[:longest], *[self.padding] * (longest - len(row))] for row in ids]
        return checked_inputs(self.offer, np.asarray(rows, dtype=np.float64).reshape(len(rows), longest))

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        values = np.empty((len(rows), self.offer.outputs))
        with translated(OracleFailedError, "the model raised "), torch.no_grad():
            for chunk in _chunks(len(rows)):
                logits = self._outputs(_ids(rows[chunk]))
                values[chunk] = (tensor_probabilities(logits) if self._squash else logits).numpy()
        return checked_answer(self.offer, len(rows), Answer(values), gradients=False)

    def attributions(self, inputs: Array, how: Attribution) -> Array:
        """n×K×L: what each token adds to each logit."""
        rows = checked_inputs(self.offer, inputs)
        found = np.empty((len(rows), self.offer.outputs, self.offer.dimension))
        explain = self._input_times_gradient if how == "input-times-gradient" else self._integrated
        with translated(OracleFailedError, "the model raised "):
            for chunk in _chunks(len(rows)):
                found[chunk] = explain(_ids(rows[chunk])).numpy()
        return found

    def _input_times_gradient(self, ids: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(ids).detach()
        return self._summed(embedded, self._slopes(ids, embedded), ids)

    def _integrated(self, ids: torch.Tensor) -> torch.Tensor:
        """From a sequence of padding, of which every token is attended to as in the input."""
        embedded = self.embedding(ids).detach()
        start = self.embedding.weight[self.padding].detach().expand_as(embedded)
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        mean = torch.zeros(())
        for node, weight in zip((1 + nodes) / 2, weights / 2, strict=True):
            mean = mean + weight * self._slopes(ids, start + node * (embedded - start))
        return self._summed(embedded - start, mean, ids)

    def _summed(self, moved: torch.Tensor, slopes: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return (slopes * moved[:, None]).sum(dim=3) * self._mask(ids)[:, None]

    def _slopes(self, ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """n×K×L×E gradients of the logits with respect to embeddings in the place of these tokens' own."""
        leaf = embedded.detach().requires_grad_()
        calls = []

        def take(*_: object) -> torch.Tensor:
            calls.append(1)
            return leaf

        handle = self.embedding.register_forward_hook(take)
        try:
            with torch.enable_grad():
                outputs = self._outputs(ids)
        finally:
            handle.remove()
        if len(calls) != 1:
            raise OracleFailedError(f"the model embeds its tokens {len(calls)} times; expected once")
        each = [torch.autograd.grad(part.sum(), leaf, retain_graph=True)[0] for part in outputs.unbind(dim=1)]
        return torch.stack(each, dim=1)

    def _mask(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (ids != self.padding).long()
        mask[:, 0] = 1  # an empty text is one token of padding: attention to nothing is no number
        return mask

    def _outputs(self, ids: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self._module(ids, self._mask(ids)))


@dataclass(frozen=True, eq=False)
class TokenAttributions:
    """Answers the model's own values, and in place of gradients what each token adds to each logit."""

    oracle: TokenOracle
    how: Attribution

    @property
    def offer(self) -> Offer:
        """With a contribution per output and token; they are of logits, whatever values are."""
        inside = self.oracle.offer
        explained: ValueKind | None = "logits" if inside.values == "probabilities" else None
        return replace(inside, gradients="all", contributions=True, explained=explained)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        values = self.oracle(rows, gradients=False).values
        maps = self.oracle.attributions(rows, self.how) if gradients else None
        return checked_answer(self.offer, len(rows), Answer(values, maps), gradients=gradients)


class EmbeddingOracle(TorchOracle):
    """Inputs are L×E embeddings, 0 where a text has ended: a table that everybody knows turns tokens into them.

    module: embeddings to logits
    tokens: the same classifier, asked with ids
    said:   what a TorchOracle is told
    """

    def __init__(self, module: torch.nn.Module, tokens: TokenOracle, **said: Any) -> None:
        self._table = tokens.embedding.weight.detach().numpy().astype(np.float64)
        super().__init__(module, (tokens.offer.dimension, self._table.shape[1]), **said)
        self._tokens, self.class_names = tokens, tokens.class_names

    def encode(self, texts: Sequence[str]) -> Array:
        """n×(L·E) embeddings of texts."""
        return self._embedded(self._tokens.encode(texts))

    def filled(self, ids: Sequence[Sequence[int]]) -> Array:
        """n×(L·E) embeddings of token ids."""
        return self._embedded(self._tokens.filled(ids))

    def _embedded(self, rows: Array) -> Array:
        ids = rows.astype(np.int64)
        found = np.where((ids == self._tokens.padding)[..., None], 0.0, self._table[ids])
        return found.reshape(len(ids), -1)


def _ids(rows: Array) -> torch.Tensor:
    return torch.from_numpy(rows.astype(np.int64))


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(i, i + _ROWS_AT_ONCE) for i in range(0, rows, _ROWS_AT_ONCE))
