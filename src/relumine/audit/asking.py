"""Asking for a student: rows from a pool or from nowhere, until the budget ends, or the endpoint refuses to go on."""

from dataclasses import dataclass

import numpy as np

from relumine.errors import BudgetError, QuotaError, RefusedError
from relumine.oracle.base import Answer, Array, Offer, Oracle, joined
from relumine.reconstruct.verification import fresh_points

# Rows asked at once: what a detection refuses with its last request is lost.
_AT_ONCE = 32
# Requests in a row of which nothing is answered, before the endpoint counts as closed; each asks nearer to the origin.
_PATIENCE = 10
_NEARER = 0.7


@dataclass(frozen=True, eq=False)
class Asked:
    """Rows that were answered, their answers, and why there are no more of them ("" if there are as many as wanted)."""

    rows: Array
    answer: Answer
    ended: str


class Questions:
    """Rows to ask: the pool's in random order, then fresh ones, cut to the box of valid inputs."""

    def __init__(self, offer: Offer, pool: Array | None, rng: np.random.Generator) -> None:
        self._offer = offer
        self._rng = rng
        flat = np.empty((0, offer.dimension)) if pool is None else np.asarray(pool, dtype=np.float64)
        self._pool = rng.permutation(flat.reshape(len(flat), offer.dimension))
        self._used = 0
        self.scale = 1.0

    def draw(self, count: int) -> Array:
        """count×d rows that were not asked before."""
        from_pool = self._pool[self._used : self._used + count]
        self._used += len(from_pool)
        rows = np.concatenate([from_pool, fresh_points(self._offer, count - len(from_pool), self._rng)])
        return rows * self.scale if self._offer.box is None else rows.clip(*self._offer.box)


def ask(oracle: Oracle, count: int, questions: Questions, *, gradients: bool) -> Asked:
    """Have ``count`` rows answered, as far as that goes. Refused rows are dropped, and others asked instead."""
    rows: list[Array] = []
    answers: list[Answer] = []
    missing, futile, ended = count, 0, ""
    while missing and not ended:
        try:
            asked, answer = _answered(oracle, questions.draw(min(missing, _AT_ONCE)), gradients)
            futile = 0
        except RefusedError as error:
            futile, questions.scale = futile + 1, questions.scale * _NEARER
            ended = str(error) if futile == _PATIENCE else ""
            continue
        except (BudgetError, QuotaError) as error:
            ended = str(error)
            continue
        rows.append(asked)
        answers.append(answer)
        missing -= len(asked)
    none = np.empty((0, oracle.offer.dimension))
    return Asked(np.concatenate([none, *rows]), joined(oracle.offer, answers, gradients=gradients), ended)


def _answered(oracle: Oracle, rows: Array, gradients: bool) -> tuple[Array, Answer]:
    """The rows that are answered, with their answers; a RefusedError if there are none."""
    try:
        return rows, oracle(rows, gradients=gradients)
    except RefusedError as error:
        rest = np.delete(rows, list(error.rows), axis=0)
        if not error.rows or not len(rest):
            raise
        return rest, oracle(rest, gradients=gradients)
    except BudgetError:
        if len(rows) == 1:
            raise
        # Fewer rows than were asked for at once may be left.
        return _answered(oracle, rows[: len(rows) // 2], gradients)
