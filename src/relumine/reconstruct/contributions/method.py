"""The choice among students by held-out answers, and the clone that predicts values."""

from dataclasses import dataclass

import numpy as np
from scipy.special import logit

from relumine.oracle.base import Answer, Array, Offer
from relumine.oracle.logits import probabilities_of
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.contributions.students import Sums, forests, kernels, per_feature
from relumine.reconstruct.portfolio.method import Copy
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction

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
    result: Array = scores - scores.mean(axis=1, keepdims=True) if scores.shape[1] > 1 else scores
    return result


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
        result: Array = np.median(_centred(rest) if self.linked else rest, axis=0, keepdims=True)
        return result

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
