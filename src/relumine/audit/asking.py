"""Asking for a student: rows of a pool and mixtures of them, until the budget ends or the endpoint refuses to go on."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from relumine.errors import BudgetError, QuotaError, RefusedError
from relumine.oracle.base import Answer, Array, Offer, Oracle, joined
from relumine.reconstruct.verification import fresh_points

# Rows asked at once: what a detection refuses with its last request is lost.
_AT_ONCE = 32
# Requests in a row of which nothing is answered, before the endpoint counts as closed; each asks nearer to the origin.
_PATIENCE = 10
_NEARER = 0.7
# How far a row moves to another: at most half of the way, or it would be the other's.
_FARTHEST = 0.5


@dataclass(frozen=True, eq=False)
class AskedRows:
    """Rows that were answered, their answers, and why there are no more of them ("" if there are as many as wanted)."""

    rows: Array
    answer: Answer
    ended: str


class Questions:
    """Rows to ask: the pool's in random order, then mixtures of them; without a pool fresh ones.

    All are cut to the box of valid inputs.
    """

    def __init__(self, offer: Offer, pool: Array | None, rng: np.random.Generator) -> None:
        self._offer, self._rng = offer, rng
        flat = np.empty((0, offer.dimension)) if pool is None else np.asarray(pool, dtype=np.float64)
        self._pool = rng.permutation(flat.reshape(len(flat), offer.dimension))
        self._others = max(2, len(self._pool))
        self._used = 0
        self.scale = 1.0

    def draw(self, count: int) -> Array:
        """count×d rows that were not asked before."""
        from_pool = self._pool[self._used : self._used + count]
        self._used += len(from_pool)
        more = self._mixed if len(self._pool) else partial(fresh_points, self._offer, rng=self._rng)
        rows = np.concatenate([from_pool, more(count - len(from_pool))])
        if self._offer.tokens is not None:
            return rows
        return rows * self.scale if self._offer.box is None else rows.clip(*self._offer.box)

    def _mixed(self, count: int) -> Array:
        """Each a row of the pool, moved a part of the way to another (mixup, Zhang et al., arXiv 1710.09412)."""
        first, apart = self._rng.integers(len(self._pool), size=count), self._rng.integers(1, self._others, size=count)
        one, other = self._pool[first], self._pool[(first + apart) % len(self._pool)]
        if len(self._offer.inputs) == 3:
            one = self._shifted(one)
        share = self._rng.uniform(0, _FARTHEST, (count, 1))
        if self._offer.tokens is not None:  # tokens are replaced: there is nothing between two of them
            return np.where(self._rng.uniform(size=one.shape) < share, other, one)
        result: Array = one + share * (other - one)
        return result

    def _shifted(self, rows: Array) -> Array:
        """Images moved by a pixel or none in each direction, their edges repeated."""
        images = np.pad(rows.reshape(-1, *self._offer.inputs), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
        height, width = self._offer.inputs[1:]
        corners = self._rng.integers(3, size=(len(rows), 2))
        moved = [image[:, y : y + height, x : x + width] for image, (y, x) in zip(images, corners, strict=True)]
        return np.array(moved).reshape(rows.shape)

    def typical(self, rows: Array) -> NDArray[np.bool_]:
        """Which of the rows are the pool's own; all where there is none."""
        own = {row.tobytes() for row in self._pool}
        return np.array([not own or row.tobytes() in own for row in rows], dtype=np.bool_)


def ask(oracle: Oracle, count: int, questions: Questions, *, gradients: bool) -> AskedRows:
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
    return AskedRows(np.concatenate([none, *rows]), joined(oracle.offer, answers, gradients=gradients), ended)


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
