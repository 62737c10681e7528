"""What a defended explanation is still worth to its honest reader, held against the undefended one.

A reader looks at which coordinates matter, so maps are compared by the ranks of their magnitudes. Whether a map tells
the truth about the model is asked by deletion and insertion (Petsiuk et al., RISE, arXiv 1806.07421): coordinates are
replaced by their mean over the inputs, or put back, the most important first.

Ties get no credit by luck: overlaps are expected values over all ways to break them, orders break them at random.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from relumine.audit.result import Usefulness
from relumine.errors import BudgetError, RefusedError
from relumine.oracle.base import Answer, Array, Oracle
from relumine.oracle.logits import probabilities_of

# Enough for means with a standard error of a few hundredths.
_INPUTS = 40
_TOP = 0.1
# Shares of the coordinates that are removed (or added) along the curves.
_SHARES = np.linspace(0, 1, 11)
# Orders per input: those of a map differ in how ties are broken, those at random in everything.
_ORDERS, _RANDOM_ORDERS = 4, 8
# A map that beats a random order by less than this, in probability, has no advantage that others could share.
_LEAST_ADVANTAGE = 0.005


def usefulness(
    plain: Oracle, defended: Oracle, inputs: Array, rng: int | np.random.Generator | None = None
) -> Usefulness | None:
    """Compare the maps that two oracles show for ``inputs`` (n×d); None where there is nothing to show or compare.

    plain:    the target itself, which is asked for values too
    defended: what its reader gets
    """
    random = np.random.default_rng(rng)
    if "none" in (plain.offer.gradients, defended.offer.gradients) or plain.offer.values == "none":
        return None
    pairs = [pair for row in _some(inputs, random) if (pair := _pair(plain, defended, row)) is not None]
    if not pairs:
        return None
    deletion, insertion = _Faithfulness(plain, inputs, random).shares(pairs)
    return Usefulness(
        rank_correlation=float(np.mean([_correlation(pair.map, pair.shown) for pair in pairs])),
        top_overlap=float(np.mean([_overlap(pair.map, pair.shown) for pair in pairs])),
        deletion=deletion,
        insertion=insertion,
        inputs=len(pairs),
    )


@dataclass(frozen=True, eq=False)
class _Pair:
    """An input, the output that is explained, and the magnitudes of both maps."""

    row: Array
    output: int
    map: Array
    shown: Array


def _some(inputs: Array, rng: np.random.Generator) -> Array:
    chosen: Array = inputs[rng.permutation(len(inputs))[:_INPUTS]]
    return chosen


def _pair(plain: Oracle, defended: Oracle, row: Array) -> _Pair | None:
    """Both maps of the output that is shown; None where the defence refuses, or the target's own map is 0."""
    try:
        shown = defended(row[None], gradients=True)
    except (RefusedError, BudgetError):
        return None
    answer = plain(row[None], gradients=True)
    output = _explained(answer, plain, shown, defended)
    maps = _map_of(answer, plain, output), _map_of(shown, defended, output)
    return _Pair(row, output, *maps) if np.ptp(maps[0]) > 0 else None


def _explained(answer: Answer, plain: Oracle, shown: Answer, defended: Oracle) -> int:
    """The output that both explain: the target's top class, or the only one that is shown."""
    for one in (defended, plain):
        if isinstance(one.offer.gradients, int):
            return one.offer.gradients
    if plain.offer.gradients == "top" or defended.offer.gradients == "all" or defended.offer.values == "none":
        return int(answer.values[0].argmax())
    return int(shown.values[0].argmax())


def _map_of(answer: Answer, oracle: Oracle, output: int) -> Array:
    maps = answer.jacobians[0]
    magnitudes: Array = np.abs(maps[output] if oracle.offer.gradients == "all" else maps[0])
    return magnitudes


def _correlation(first: Array, second: Array) -> float:
    """Spearman's: of the ranks, where equal numbers share one. A map that is all ties says nothing: 0."""
    ranks = [rankdata(numbers) - (len(numbers) + 1) / 2 for numbers in (first, second)]
    sizes = [float(np.linalg.norm(rank)) for rank in ranks]
    return float(ranks[0] @ ranks[1] / (sizes[0] * sizes[1])) if min(sizes) > 0 else 0.0


def _overlap(first: Array, second: Array) -> float:
    """The expected share of the top tenth of the coordinates that both have, if ties are broken at random."""
    count = max(1, round(_TOP * len(first)))
    return float(_chances(first, count) @ _chances(second, count) / count)


def _chances(numbers: Array, count: int) -> Array:
    """How likely each coordinate is among the ``count`` largest."""
    edge = np.partition(numbers, -count)[-count]
    above, tied = numbers > edge, numbers == edge
    chances: Array = above + tied * ((count - above.sum()) / tied.sum())
    return chances


class _Faithfulness:
    """How much faster than at random an order of coordinates takes the explained output down, or builds it up."""

    def __init__(self, plain: Oracle, inputs: Array, rng: np.random.Generator) -> None:
        self._plain, self._mean, self._rng = plain, inputs.mean(axis=0), rng
        answers = plain(_some(inputs, rng), gradients=False).values
        self._deviation = np.where(np.ptp(answers, axis=0) > 0, answers.std(axis=0), 1.0)

    def shares(self, pairs: list[_Pair]) -> tuple[float | None, float | None]:
        """Deletion and insertion: the shown maps' advantages as shares of the undefended maps'."""
        advantages = np.array([self._advantages(pair) for pair in pairs]).mean(axis=0)
        found = [float(shown / own) if own > _LEAST_ADVANTAGE else None for own, shown in zip(*advantages, strict=True)]
        return found[0], found[1]

    def _advantages(self, pair: _Pair) -> Array:
        """2×2: of the own and of the shown map, by deletion and by insertion."""
        own = np.mean([self._areas(pair, self._order(pair.map)) for _ in range(_ORDERS)], axis=0)
        shown = np.mean([self._areas(pair, self._order(pair.shown)) for _ in range(_ORDERS)], axis=0)
        blind = np.zeros_like(pair.map)
        random = np.mean([self._areas(pair, self._order(blind)) for _ in range(_RANDOM_ORDERS)], axis=0)
        better = np.array([-1, 1])  # a deletion curve should fall, an insertion curve rise
        result: Array = np.stack([(own - random) * better, (shown - random) * better])
        return result

    def _order(self, magnitudes: Array) -> "np.ndarray":
        """Positions from the most important on; ties at random."""
        shuffled = self._rng.permutation(len(magnitudes))
        return shuffled[np.argsort(-magnitudes[shuffled], kind="stable")]

    def _areas(self, pair: _Pair, order: "np.ndarray") -> Array:
        """Under the deletion curve and under the insertion curve."""
        place = np.empty(len(order))
        place[order] = np.arange(len(order))
        first = place < np.round(_SHARES * len(order))[:, None]
        deleted, inserted = np.where(first, self._mean, pair.row), np.where(first, pair.row, self._mean)
        scores = self._scores(np.concatenate([pair.row[None], deleted, inserted]), pair.output)
        result: Array = scores.reshape(2, -1).mean(axis=1)
        return result

    def _scores(self, rows: Array, output: int) -> Array:
        """How sure the target is of the output; of a regression, how close it is to what it says of the first row."""
        values = self._plain(rows, gradients=False).values
        kind, single = self._plain.offer.values, values.shape[1] == 1
        if kind == "logits":
            values = probabilities_of(values)
        if single and kind != "real":
            values = values if values[0, 0] > 0.5 else 1 - values
        if kind == "real":
            values = -np.abs(values - values[0]) / self._deviation
        result: Array = values[1:, output]
        return result
