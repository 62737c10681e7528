"""Where a learned student's questions come from: N(0, I), a pool, or a pool searched for what says most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array, Offer

# Of the clustering: medoids hardly move later.
_ROUNDS = 30


@runtime_checkable
class Source(Protocol):
    """Chooses inputs before anything is asked."""

    def pick(self, offer: Offer, count: int, rng: np.random.Generator) -> Array:
        """count×d inputs, or a MisuseError if the source has fewer."""


@dataclass(frozen=True)
class Gaussian:
    """N(0, I): the paper's queries without knowledge of the data."""

    def pick(self, offer: Offer, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((count, offer.dimension))


@dataclass(frozen=True, eq=False, repr=False)
class RandomSubset:
    """A random subset of ``inputs`` (n×shape or n×d), without replacement: the paper's queries."""

    inputs: "np.ndarray"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(of {len(self.inputs)})"

    def pick(self, offer: Offer, count: int, rng: np.random.Generator) -> Array:
        rows = self._rows(offer, count)
        return rows[rng.choice(len(rows), count, replace=False)]

    def _rows(self, offer: Offer, count: int) -> Array:
        try:
            rows = np.asarray(self.inputs, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise MisuseError(f"source: expected an array of inputs, got {type(self.inputs).__name__}") from error
        if rows.ndim < 2 or rows[:1].size != offer.dimension:
            raise MisuseError(f"source: expected a pool of shape (n, {offer.dimension}), got {rows.shape}")
        if count > len(rows):
            raise MisuseError(f"queries: {count} wanted from a pool of {len(rows)}; ask fewer, or give a larger pool")
        rows = rows.reshape(len(rows), -1)
        if not np.isfinite(rows).all():
            raise MisuseError("source: expected finite numbers in the pool, got NaN or infinity")
        return rows


@dataclass(frozen=True, eq=False, repr=False)
class Medoids(RandomSubset):
    """The pool's own spread: it is cut into as many clusters as there are queries, and each cluster's middle is asked.

    Typical inputs that differ from each other teach more than random ones; inputs merely far apart are outliers and
    teach less (docs/learned.md).
    """

    def pick(self, offer: Offer, count: int, rng: np.random.Generator) -> Array:
        """count different rows: of each cluster the one nearest to its mean."""
        from sklearn.cluster import KMeans

        rows = self._rows(offer, count)
        seed = int(rng.integers(2**31))
        distances = KMeans(count, n_init=1, max_iter=_ROUNDS, random_state=seed).fit(rows).transform(rows)
        chosen: list[int] = []
        for column in distances.T:
            column[chosen] = np.inf  # where rows repeat, clusters can share their middle
            chosen.append(int(column.argmin()))
        return rows[chosen]


def source_of(source: object) -> Source:
    """The source that a user's word or array stands for."""
    if isinstance(source, str):
        if source != "gaussian":
            raise MisuseError(f"source: expected 'gaussian', an array of inputs or a Source, got {source!r}")
        return Gaussian()
    if isinstance(source, Source):
        return source
    if isinstance(source, Sequence) or hasattr(source, "__array__"):
        return RandomSubset(np.asarray(source))
    raise MisuseError(f"source: expected 'gaussian', an array of inputs or a Source, got {type(source).__name__}")
