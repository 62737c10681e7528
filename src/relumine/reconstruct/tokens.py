"""BagOfTokens: students of a text classifier that count tokens, and learn from what each token is said to add.

Values alone are learned as text classification is taught: TF-IDF and logistic regression, or ridge regression of the
logits. Attributions tell more: a query with L tokens says L times what a token adds. Their means per token are a
lexicon, a linear model of the target; ridge regression then corrects it by the values. Held-out answers choose.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from relumine.oracle.base import Answer, Array, Offer
from relumine.oracle.logits import class_probabilities
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.portfolio.answers import LearnedAnswers, answers_of, log_shares
from relumine.reconstruct.portfolio.families import classifier
from relumine.reconstruct.portfolio.method import Copy
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction

# n×L ids to n×count probabilities, or to the numbers of a regression.
Student = Callable[[Array], Array]

# With fewer answers none is held out; else a third is, each third in turn.
_FEWEST, _PARTS = 6, 3
# Strengths that held-out answers choose from: penalties of ridge regressions, inverse ones of logistic regression. An
# infinite penalty takes the lexicon as it is.
_PENALTIES = (0.1, 1.0, 10.0)
_CORRECTIONS = (1.0, 100.0, np.inf)
_INVERSE = (100.0, 1.0)


class _Told(NamedTuple):
    """Rows of ids, what they were answered, and n×K×L attributions where there are any."""

    rows: Array
    answers: LearnedAnswers
    maps: Array | None

    def chosen(self, rows: "NDArray[np.intp]") -> "_Told":
        return _Told(self.rows[rows], self.answers.chosen(rows), None if self.maps is None else self.maps[rows])


@dataclass(frozen=True)
class BagOfTokens:
    """Fit students to answers about token sequences, and keep the one that predicts held-out answers best."""

    def fit(
        self, offer: Offer, rows: Array, answer: Answer, rng: int | np.random.Generator | None, spent: Spent
    ) -> Reconstruction:
        """The student of answers that were asked already; attributions are ``answer.gradients``, if they came along."""
        assert offer.tokens is not None
        maps = answer.gradients if offer.gradient_rows == offer.outputs else None
        if maps is not None and offer.outputs > 1:
            maps = maps - maps.mean(axis=1, keepdims=True)  # as answers' logits: what all have in common shows nothing
        told = _Told(rows, answers_of(offer, answer.values), maps)
        name, student = _best(told, offer.tokens, np.random.default_rng(rng))
        kind = "probabilities" if told.answers.count else "real"
        clone = Copy((student,), offer.dimension, kind, offer.outputs)
        return Reconstruction(clone, Outcome.FITTED, spent, Evidence(remark=f"learned by {name}"), "BagOfTokens")


def _best(told: _Told, tokens: int, rng: np.random.Generator) -> tuple[str, Student]:
    fits = dict(_students(tokens, told))
    if len(told.rows) < _FEWEST:
        name = next(iter(fits))
        return name, fits[name](told)
    losses = dict.fromkeys(fits, 0.0)
    for part in np.array_split(rng.permutation(len(told.rows)), _PARTS):
        rest = told.chosen(np.setdiff1d(np.arange(len(told.rows)), part))
        held = told.chosen(part)
        for name, fit in fits.items():
            losses[name] += _loss(fit(rest)(held.rows), held.answers)
    first, name = next(iter(fits)), min(losses, key=losses.__getitem__)
    if told.answers.count and losses[first] <= losses[name] + np.sqrt(losses[name]):
        name = first  # within a standard error, few held-out answers decide nothing
    return name, fits[name](told)


def _loss(guesses: Array, answers: LearnedAnswers) -> float:
    """How many classes are wrong, and of the same number the cross-entropy; squared error of numbers."""
    if answers.count:
        wrong = int((guesses.argmax(axis=1) != answers.classes).sum())
        return wrong + 1e-3 * float(-(answers.shares * log_shares(guesses)).mean())
    return float(((guesses - answers.shares) ** 2).sum())


def _students(tokens: int, told: _Told) -> Iterator[tuple[str, Callable[[_Told], Student]]]:
    """By name, the likeliest for few answers first."""
    if told.maps is not None and told.answers.numbers is not None:
        for penalty in _CORRECTIONS:
            corrected = "" if penalty == np.inf else f", corrected by values (penalty {penalty:g})"
            yield f"mean attributions{corrected}", partial(_lexicon, tokens, penalty)
    if told.answers.numbers is not None:
        for penalty in _PENALTIES:
            yield f"ridge regression of TF-IDF (penalty {penalty:g})", partial(_ridge, tokens, penalty)
    if told.answers.count:
        for inverse in _INVERSE:
            name = f"logistic regression of TF-IDF (C = {inverse:g})"
            yield name, partial(_logistic, tokens, inverse)


def _lexicon(tokens: int, penalty: float, told: _Told) -> Student:
    """f(x) ≈ b + Σ w[token], with w the mean attribution of a token, moved by ridge regression of what is left."""
    assert told.maps is not None and told.answers.numbers is not None  # noqa: PT018
    ids = told.rows.astype(np.int64)
    sums = np.zeros((tokens, told.maps.shape[1]))
    np.add.at(sums, ids.ravel(), told.maps.transpose(0, 2, 1).reshape(ids.size, -1))
    counts = _counts(told.rows, tokens)
    times = np.asarray(counts.sum(axis=0)).reshape(-1, 1)
    weights = sums / np.maximum(times, 1)
    left = told.answers.numbers - counts @ weights
    base = left.mean(axis=0)
    if penalty < np.inf:
        moved, base = _ridge_weights(counts, left, penalty)
        weights = weights + moved
    return _shown(lambda rows: _counts(rows, tokens) @ weights + base, told.answers)


def _ridge(tokens: int, penalty: float, told: _Told) -> Student:
    assert told.answers.numbers is not None
    weighed = _tfidf(told.rows, tokens)
    weights, base = _ridge_weights(weighed(told.rows), told.answers.numbers, penalty)
    return _shown(lambda rows: weighed(rows) @ weights + base, told.answers)


def _ridge_weights(features: Any, numbers: Array, penalty: float) -> tuple[Array, Array]:
    from sklearn.linear_model import Ridge

    fitted = Ridge(alpha=penalty, solver="sparse_cg").fit(features, numbers)
    return np.atleast_2d(fitted.coef_).T, np.atleast_1d(fitted.intercept_)


def _logistic(tokens: int, inverse: float, told: _Told) -> Student:
    from sklearn.linear_model import LogisticRegression

    weighed = _tfidf(told.rows, tokens)
    learn = classifier(lambda _: LogisticRegression(C=inverse, max_iter=1000))
    predict = learn(weighed(told.rows), told.answers, 0)
    return lambda rows: predict(weighed(rows))


def _shown(scores: Student, answers: LearnedAnswers) -> Student:
    return (lambda rows: class_probabilities(scores(rows))) if answers.count else scores


def _counts(rows: Array, tokens: int) -> Any:
    """n×tokens: how often each token is there."""
    ids = rows.astype(np.int64)
    where = np.repeat(np.arange(len(ids)), ids.shape[1])
    return sparse.csr_matrix((np.ones(ids.size), (where, ids.ravel())), shape=(len(ids), tokens))


def _tfidf(rows: Array, tokens: int) -> Callable[[Array], Any]:
    """TF-IDF by these rows, without the tokens that all of them have: padding, and those that begin and end a text."""
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = _counts(rows, tokens)
    everywhere = np.asarray((counts > 0).sum(axis=0)).ravel() == len(rows)
    kept = sparse.diags((~everywhere).astype(float) if len(rows) >= _FEWEST else np.ones(tokens))
    weights = TfidfTransformer(sublinear_tf=True).fit(counts @ kept)
    return lambda asked: weights.transform(_counts(asked, tokens) @ kept)
