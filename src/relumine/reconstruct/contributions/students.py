"""Students of contributions: each learns them of n×K×d examples, and sums them for n×d inputs as n×K numbers."""

from collections.abc import Callable

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.portfolio.scaling import by_columns

# n×d inputs to n×K sums of contributions.
Sums = Callable[[Array], Array]

# 60 trees agreed no better than 20 on Friedman's function, diabetes and make_classification (seed 2): sums average too.
_TREES = 20
# At most this many features, those that contribute most, have a forest of their own; the others share one.
_MOST = 100
# Of standardised features, φ_j weighs its own by the first and the others by the second; of weights (4, 1), (2, ½) and
# (1, 1) with penalties 0.01 to 1, these agreed most on forests and boosting of make_classification (seed 2).
_OWN, _OTHERS = 2.0, 0.5
_PENALTY = 0.1
# A kernel of this many rows takes a tenth of a second per feature, and that grows with the cube.
_MOST_ROWS = 1500


def per_feature(rows: Array, contributions: Array) -> Sums:
    """Each a function of its own feature alone, as of stumps, linear and other additive models: the nearest seen."""
    steps = [_steps(rows[:, j], contributions[:, :, j]) for j in range(rows.shape[1])]
    return lambda asked: np.sum([step(asked[:, j]) for j, step in enumerate(steps)], axis=0)


def _steps(places: Array, values: Array) -> Sums:
    """A piecewise constant function through n×K values; means where a place was seen more than once."""
    known, which, times = np.unique(places, return_inverse=True, return_counts=True)
    sums = np.zeros((len(known), values.shape[1]))
    np.add.at(sums, which, values)
    means, middles = sums / times[:, None], (known[1:] + known[:-1]) / 2
    return lambda asked: means[np.searchsorted(middles, asked)]


def forests(rows: Array, contributions: Array, seed: int) -> Sums:
    """Each by a forest of extremely randomised trees (Geurts et al. 2006) of all features."""
    from sklearn.ensemble import ExtraTreesRegressor

    sizes = np.abs(contributions).sum(axis=(0, 1))
    order = np.argsort(-sizes)[: int((sizes > 0).sum())]  # a feature that never contributes has none
    wanted = [contributions[:, :, j] for j in order[:_MOST]]
    if len(order) > _MOST:
        wanted.append(contributions[:, :, order[_MOST:]].sum(axis=2))
    columns = [target.ravel() if target.shape[1] == 1 else target for target in wanted]
    models = [ExtraTreesRegressor(_TREES, random_state=seed).fit(rows, column) for column in columns]
    return lambda asked: sum(
        (model.predict(asked).reshape(len(asked), -1) for model in models),
        start=np.zeros((len(asked), contributions.shape[1])),
    )


def kernels(rows: Array, contributions: Array) -> Sums:
    """Each smooth, by kernel ridge regression in which the distance in the feature itself counts most."""
    from sklearn.kernel_ridge import KernelRidge

    rows, contributions = rows[:_MOST_ROWS], contributions[:_MOST_ROWS]
    standardised = by_columns(rows)

    def weighed(asked: Array, own: int) -> Array:
        result = standardised(asked) * _OTHERS
        result[:, own] *= _OWN / _OTHERS
        return result

    models = {
        j: KernelRidge(kernel="rbf", alpha=_PENALTY).fit(weighed(rows, j), contributions[:, :, j])
        for j in np.flatnonzero(np.abs(contributions).sum(axis=(0, 1))).tolist()
    }
    return lambda asked: sum(
        (model.predict(weighed(asked, j)).reshape(len(asked), -1) for j, model in models.items()),
        start=np.zeros((len(asked), contributions.shape[1])),
    )
