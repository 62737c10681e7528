"""FromContributions: a student of SHAP values, which are d answers per query instead of one.

Contributions are learned as functions of their own feature, by forests of all features, or as smooth functions;
held-out answers choose.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from relumine.oracle.base import Answer, Array, Offer
from relumine.oracle.logits import probabilities_of
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.portfolio.answers import by_columns
from relumine.reconstruct.portfolio.method import Copy
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction

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
# Probabilities closer to 0 or 1 have no digits left in float32.
_LEAST = 1e-7
# With fewer answers none is held out, and additive students, which need the fewest, are taken.
_FEWEST = 10
# A third is held out, each third in turn where one alone would be few.
_PARTS, _FEW = 3, 200


@dataclass(frozen=True)
class FromContributions:
    """Learn φ, not f: every query tells d numbers, each of a simpler function than their sum (Lundberg et al. 2020).

    An additive model's φ_j is a function of x_j alone, so n queries tell each of d functions at n places. Trees of
    several features make φ_j depend on the others too; a forest for each then learns d targets instead of one.
    """

    def fit(
        self, offer: Offer, rows: Array, answer: Answer, rng: int | np.random.Generator | None, spent: Spent
    ) -> Reconstruction:
        """The student of values that came with contributions (``answer.jacobians``: n×K×d)."""
        generator = np.random.default_rng(rng)
        scores = _Scores.of(offer, answer.values)
        base = scores.base(answer.jacobians)
        name, sums = _chosen(rows, answer.jacobians, scores.values - base, generator)
        remark = f"contributions learned {name}"
        clone = Copy((lambda asked: scores.as_values(base + sums(asked)),), offer.dimension, scores.kind, offer.outputs)
        return Reconstruction(clone, Outcome.FITTED, spent, Evidence(remark=remark), "FromContributions")


def _chosen(rows: Array, contributions: Array, wanted: Array, rng: np.random.Generator) -> tuple[str, Sums]:
    """The student whose sums are closest to held-out answers, fitted to all of them."""
    seed = int(rng.integers(2**31))
    if len(rows) < _FEWEST:
        return "per feature", per_feature(rows, contributions)
    parts = np.array_split(rng.permutation(len(rows)), _PARTS)
    errors: dict[str, float] = {}
    for part in parts if len(rows) <= _FEW else parts[:1]:
        own = np.setdiff1d(np.arange(len(rows)), part)
        for name, sums in _students(rows[own], contributions[own], seed).items():
            errors[name] = errors.get(name, 0.0) + _error(sums(rows[part]), wanted[part])
    best = min(errors, key=errors.__getitem__)
    return best, _students(rows, contributions, seed)[best]


def _students(rows: Array, contributions: Array, seed: int) -> dict[str, Sums]:
    by_forests, by_kernels = forests(rows, contributions, seed), kernels(rows, contributions)
    return {
        "per feature": per_feature(rows, contributions),
        "by forests": by_forests,
        "by kernels": by_kernels,
        "by forests and kernels": lambda asked: (by_forests(asked) + by_kernels(asked)) / 2,
    }


def _error(found: Array, wanted: Array) -> float:
    """Mean squared, of scores that may be shifted alike for all outputs of an input."""
    gap = found - wanted
    return float((_centred(gap) ** 2).mean())


def _centred(scores: Array) -> Array:
    """Without what all outputs have in common, which a softmax does not show."""
    return np.asarray(scores - scores.mean(axis=1, keepdims=True) if scores.shape[1] > 1 else scores)


@dataclass(frozen=True, eq=False)
class _Scores:
    """Answers as contributions sum to them: numbers, probabilities of forests, or logits, perhaps behind a softmax.

    kind: what the clone answers; linked: whether that is the softmax (one output: the sigmoid) of the scores
    """

    values: Array
    kind: str
    linked: bool

    @classmethod
    def of(cls, offer: Offer, values: Array) -> "_Scores":
        """What an oracle with this offer answered."""
        explained = offer.explained or offer.values
        if explained != "logits" or offer.values == "logits" or not _are_shares(values):
            return cls(values, explained, linked=False)
        shares = values.clip(_LEAST, 1 - _LEAST)
        return cls(logit(shares) if values.shape[1] == 1 else _centred(np.log(shares)), "probabilities", linked=True)

    def base(self, contributions: Array) -> Array:
        """1×K: what is left of scores without the contributions; the median, because tiny probabilities are cut."""
        rest = self.values - contributions.sum(axis=2)
        return np.asarray(np.median(_centred(rest) if self.linked else rest, axis=0, keepdims=True))

    def as_values(self, scores: Array) -> Array:
        """Scores as the oracle's values are."""
        if self.linked:
            return probabilities_of(scores)
        if self.kind == "probabilities" and scores.shape[1] > 1:
            positive = scores.clip(_LEAST)
            scores = positive / positive.sum(axis=1, keepdims=True)
        return scores


def _are_shares(values: Array) -> bool:
    sums = values.sum(axis=1) if values.shape[1] > 1 else np.ones(1)
    return bool(values.min() >= 0 and values.max() <= 1 and np.abs(sums - 1).max() < 0.1)


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
