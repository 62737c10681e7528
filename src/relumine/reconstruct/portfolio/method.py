"""The choice among families by held-out answers, and the clone that comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, Offer
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.portfolio.answers import LearnedAnswers, Scaling, answers_of, as_a_whole, by_columns
from relumine.reconstruct.portfolio.families import Family, Kind, Predictor, families
from relumine.reconstruct.result import Clone, Evidence, Outcome, Reconstruction

if TYPE_CHECKING:
    import torch

_FOLDS = 5
# With fewer answers nothing can be held out; this many tell students apart that differ by 4 % or more.
_FEWEST, _ENOUGH = 5, 200
# A family this many standard errors behind the best is out of the race; those within one of it vote.
_OUT, _TIED = 2.0, 1.0
_MOST_VOTES = 3


@dataclass(frozen=True, eq=False)
class Copy(Clone):
    """A clone that predicts, made of scikit-learn's models. ``of`` is what it answers."""

    predictors: tuple[Predictor, ...]
    dimension: int
    of: str
    outputs: int

    def predict(self, inputs: Array) -> Array:
        """n×d (or n×shape) inputs to n×K probabilities, or to the numbers of a regression."""
        rows = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
        if rows.shape[1] != self.dimension:
            raise MisuseError(f"predict: expected rows of {self.dimension} numbers, got {rows.shape[1]}")
        mean: Array = np.mean([predictor(rows) for predictor in self.predictors], axis=0)
        return mean[:, -self.outputs :]

    def to_torch(self) -> "torch.nn.Module":
        """Not possible: a forest is no module."""
        raise MisuseError("to_torch: this clone is made of scikit-learn's models; use its predict")

    def save(self, path: str | Path) -> Path:
        """Not possible, for the same reason."""
        raise MisuseError("save: this clone is made of scikit-learn's models, which have no safe file; use its predict")


@dataclass(frozen=True)
class Portfolio:
    """Fit students of a kind's families to answers, and keep those that predict held-out answers best."""

    kind: Kind

    def fit(
        self,
        offer: Offer,
        inputs: Array,
        answer: Answer,
        rng: int | np.random.Generator | None,
        spent: Spent,
        *,
        held: Array | None = None,
        typical: "NDArray[np.bool_] | None" = None,
    ) -> Reconstruction:
        """The student of answers that were asked already.

        held:    inputs that the attacker has, asked or not, by which inputs are standardised
        typical: which of the asked inputs are like those that the target is for; only these are held out
        """
        generator = np.random.default_rng(rng)
        answers = answers_of(offer, answer.values)
        known = inputs if held is None else held
        scalings = {"columns": by_columns(known), "whole": as_a_whole(known)}
        race = _Race(families(self.kind, answers), inputs, answers, scalings, int(generator.integers(2**31)))
        race.run(_folds(np.arange(len(inputs)) if typical is None else np.flatnonzero(typical), generator))
        winners = race.winners()
        predictors = tuple(race.learned(family, np.arange(len(inputs))) for family in winners)
        of = "probabilities" if answers.count else "real"
        remark = f"{' and '.join(family.name for family in winners)}{race.score(winners[0])}"
        clone = Copy(predictors, offer.dimension, of, offer.outputs)
        return Reconstruction(clone, Outcome.FITTED, spent, Evidence(remark=remark), repr(self))


def _folds(rows: NDArray[np.intp], rng: np.random.Generator) -> list[NDArray[np.intp]]:
    """Held-out answers, each once, in as many folds as hold out enough of them."""
    if len(rows) < _FEWEST:
        return []
    return np.array_split(rng.permutation(rows), _FOLDS)[: -(-_FOLDS * _ENOUGH // len(rows))]


class _Race:
    """Families against each other, fold after fold; who falls behind is fitted no more."""

    def __init__(
        self, field: list[Family], inputs: Array, answers: LearnedAnswers, scalings: Mapping[str, Scaling], seed: int
    ) -> None:
        self._rows = {name: scaling(inputs) for name, scaling in scalings.items()}
        self._answers, self._scalings, self._seed = answers, scalings, seed
        self._alive = field
        self._losses: dict[Family, Array] = {family: np.empty(0) for family in self._alive}

    def run(self, folds: list[NDArray[np.intp]]) -> None:
        for fold in folds if len(self._alive) > 1 else []:
            rest = np.setdiff1d(np.arange(len(self._answers)), fold)
            for family in self._alive:
                guesses = self._learn(family, rest)(self._rows[family.scaling][fold])
                losses = _losses(guesses, self._answers.chosen(fold))
                self._losses[family] = np.append(self._losses[family], losses)
            self._alive = self._within(_OUT)

    def _within(self, errors: float) -> list[Family]:
        """Those at most this many standard errors of the difference behind the best, best first."""
        ranked = sorted(self._alive, key=lambda family: self._losses[family].sum())
        best = self._losses[ranked[0]]
        if not len(best):
            return ranked
        gaps = [self._losses[family] - best for family in ranked]
        count = len(best) ** 0.5
        return [f for f, gap in zip(ranked, gaps, strict=True) if gap.mean() <= errors * gap.std() / count]

    def winners(self) -> list[Family]:
        """The best, and those that cannot be told from it."""
        return self._within(_TIED)[:_MOST_VOTES]

    def learned(self, family: Family, rows: NDArray[np.intp]) -> Predictor:
        """A student of these rows, which takes inputs as they are."""
        predictor, scaling = self._learn(family, rows), self._scalings[family.scaling]
        return lambda inputs: predictor(scaling(inputs))

    def _learn(self, family: Family, rows: NDArray[np.intp]) -> Predictor:
        return family.learn(self._rows[family.scaling][rows], self._answers.chosen(rows), self._seed)

    def score(self, family: Family) -> str:
        """What held-out answers say of a family."""
        losses = self._losses[family]
        return f"; of {len(losses)} held-out answers" if len(losses) else "; too few answers to hold any out"


def _losses(guesses: Array, answers: LearnedAnswers) -> Array:
    """Per input: another class, and to break ties a little of the squared error; the squared error of a regression."""
    squared: Array = np.square(guesses - answers.shares).sum(axis=1)
    if answers.classes is None:
        return squared
    return np.asarray((guesses.argmax(axis=1) != answers.classes) + 0.05 * squared)
