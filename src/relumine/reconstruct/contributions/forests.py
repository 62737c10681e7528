"""Contributions as functions of all features: a forest of extremely randomised trees (Geurts et al. 2006) for each."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from relumine.oracle.base import Array

# 60 trees agreed no better than 20 on Friedman's function, diabetes and make_classification (seed 2): sums average too.
_TREES = 20
# At most this many features, those that contribute most, have a forest of their own; the others share one.
_MOST = 100


@dataclass(frozen=True, eq=False)
class Forests:
    """n×d inputs to n×K sums of contributions."""

    models: tuple[Any, ...]
    outputs: int

    @classmethod
    def learned(cls, rows: Array, contributions: Array, seed: int) -> "Forests":
        """From n×K×d contributions. A feature that never contributes has none."""
        from sklearn.ensemble import ExtraTreesRegressor

        sizes = np.abs(contributions).sum(axis=(0, 1))
        order = np.argsort(-sizes)[: int((sizes > 0).sum())]
        wanted = [contributions[:, :, j] for j in order[:_MOST]]
        if len(order) > _MOST:
            wanted.append(contributions[:, :, order[_MOST:]].sum(axis=2))
        columns = [target.ravel() if target.shape[1] == 1 else target for target in wanted]
        models = tuple(ExtraTreesRegressor(_TREES, random_state=seed).fit(rows, column) for column in columns)
        return cls(models, contributions.shape[1])

    def __call__(self, rows: Array) -> Array:
        total = np.zeros((len(rows), self.outputs))
        for model in self.models:
            total += model.predict(rows).reshape(len(rows), -1)
        return total
