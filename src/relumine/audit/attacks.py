"""Attacks: for every level of access, and behind every defence, the best reconstructions that there are.

An attack knows the defence that it meets (``knowledge``). Exact ones aim at the target itself; learned ones at a
student that answers as it does. None of them raises because a defence does its work: being refused is an outcome.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from relumine.adapt.asking import Averaged, DecoyQueries
from relumine.adapt.recipes import WithOffer, reconstruct_behind
from relumine.audit.asking import Questions, ask
from relumine.audit.knowledge import Knowledge, knowledge_of
from relumine.audit.levels import PUBLIC_BACKBONE
from relumine.audit.result import ORDINARY, AttackKey
from relumine.defend.base import as_distribution
from relumine.defend.registry import Chain
from relumine.errors import BadAnswerError, BudgetError, DivergedError, MisuseError, RefusedError
from relumine.explain.map_kind import GRADIENT, MapKind
from relumine.oracle.base import Answer, Array, Offer, Oracle
from relumine.oracle.metering.metered import Metered, Spent, metered
from relumine.reconstruct.auto import Auto
from relumine.reconstruct.contributions import FromContributions
from relumine.reconstruct.convolutional.method import Convolutional, fits
from relumine.reconstruct.head.method import Head
from relumine.reconstruct.linear import Linear
from relumine.reconstruct.portfolio.answers import Scaling, as_a_whole, by_columns
from relumine.reconstruct.portfolio.families import KINDS, Kind
from relumine.reconstruct.portfolio.method import Portfolio
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction, Reconstructor
from relumine.reconstruct.tokens import BagOfTokens
from relumine.reconstruct.two_layer.method import TwoLayer, tells_units_apart
from relumine.reconstruct.values.method import TwoLayerFromValues
from relumine.reconstruct.verification.domain import Domain

if TYPE_CHECKING:
    import torch

    from relumine.reconstruct.matching.method import Loss

# Of the whole budget an exact reconstruction gets this share; the rest repeats its questions against noise.
_ROWS_OF_EXACT = 1000
_TIMES = (2, 1000)
# Gradient queries (each of them repeated) after which answers with few digits do not become clearer.
_LIMIT = 2000
# Against noise that is always the same: how far beside an input the same is asked, as a share of its size.
_BESIDE = {"float64": 1e-6, "float32": 1e-4}
# A student behind noise asks each input up to this many times, and has as many times fewer inputs.
_AGAIN = 10
# Students by the number of inputs up to which they are used: units of the hidden layer, and how long they learn.
_HIDDEN = {100: 128, 10**9: 256}
_STEPS = {100: 600, 10**9: 1600}
_BATCH = 32
# Gradients of a head: each costs the attacker a backward pass per feature.
_QUERIES_OF_HEAD = 200
# A convolutional network takes this many queries at least; images for its student, and fresh points to compare.
_FEWEST_OF_IMAGES, _IMAGES, _COMPARED = 30, 200, 100
_RATE = 0.06
# λ where maps are gradients: a student is rarely of the target's own class, so that it cannot match every gradient. Of
# 0.1, 1 and 10 the last was best for gradients of all classes of three-layer networks (digits and Fashion-MNIST, 30 to
# 1,000 queries: 97.1 % agreement instead of 92.5 % with 1,000), and no worse by more than a point elsewhere.
_WEIGHT = 10.0
_SMALLEST_IMAGE = 12
# N(0, I) reaches inputs whose means are no larger than this, most of them at a scale of 0.1 to 10.
_COVERED = 3.0
_NUMBERS = ("real", "logits", "probabilities")


@dataclass(frozen=True, eq=False)
class Situation:
    """What an attack has to work with.

    pool: inputs like those of the owner's users, n×shape; None for an attacker without any
    """

    oracle: Metered
    budget: int
    rng: np.random.Generator
    pool: Array | None

    @property
    def held(self) -> Array | None:
        """The pool as rows."""
        return None if self.pool is None else self.pool.reshape(len(self.pool), -1)

    @property
    def scaling(self) -> Scaling:
        """How the pool's inputs are standardised: images as a whole, columns each; not at all without a pool."""
        offer = self.oracle.offer
        if self.held is None:
            return Scaling(np.zeros(offer.dimension), np.ones(offer.dimension))
        return as_a_whole(self.held) if len(offer.inputs) == 3 else by_columns(self.held)

    def domain(self, known: Knowledge) -> Domain | None:
        """Where the pool's inputs lie, for exact attacks to search there; that a clone is right at inputs is judged.

        None where N(0, I) covers them, as it does images: around their mean the digits took 62 gradients, not 20. And
        where answers end around the origin, or explanations are no gradients: adapters ask in x.
        """
        if self.held is None or known.reach is not None or known.window or known.maps != GRADIENT or known.coarse:
            return None
        where = Domain.of(self.oracle.offer, self.held).without_samples
        covered = np.abs(where.centre).max() <= _COVERED and abs(np.log10(np.median(where.scale))) <= 1
        return None if covered else where


@dataclass(frozen=True, eq=False)
class Told:
    """Answered rows as a student learns them: ``typical`` are those that are like the owner's."""

    offer: Offer
    rows: Array
    answer: Answer
    typical: NDArray[np.bool_]


Fit = Callable[[Situation, Told], Reconstruction]
Prepare = Callable[[Offer, Knowledge, Answer], tuple[Offer, Answer]]


@dataclass(frozen=True)
class Attack:
    """A way to reconstruct."""

    key: AttackKey
    method: Callable[[Situation], Reconstruction]

    def __call__(self, oracle: Metered, budget: int, seed: int, pool: Array | None = None) -> Reconstruction:
        """What it got out of an oracle that answers at most ``budget`` rows (the meter's own budget, if it has one)."""
        before = oracle.spent
        try:
            result = self.method(Situation(oracle, budget, np.random.default_rng(seed), pool))
        except BudgetError as error:
            result = _nothing(Outcome.BUDGET_EXHAUSTED, error)
        except RefusedError as error:
            result = _nothing(Outcome.REFUSED, error)
        except BadAnswerError as error:  # an adapter says that answers are not what it makes gradients of
            result = _nothing(Outcome.NOT_THIS_CLASS, error)
        return replace(result, spent=oracle.spent.since(before))


def attacks_for(
    level: str,
    offer: Offer,
    chain: Chain | None = None,
    deviation: float = 1.0,
    maps: MapKind = GRADIENT,
    backbone: Oracle | None = None,
) -> tuple[Attack, ...]:
    """The attacks that fit a level of access behind these defences, the exact ones first.

    offer:     of the defended oracle
    deviation: the data's, which is the noise of the level "smoothgrad"
    maps:      what the target itself shows
    backbone:  of the level "backbone-gradients"; it can be left out where attacks are only named
    """
    known = knowledge_of(level, chain, deviation, GRADIENT if offer.gradients == "none" else maps)
    if level == PUBLIC_BACKBONE:
        fits = offer.values in _NUMBERS and offer.explained in (None, offer.values) and known.adaptable
        return (Attack(AttackKey("exact", student="head"), _on_backbone(known, backbone)),) if fits else ()
    if offer.tokens is not None:
        return tuple(_text_attacks(offer, known))
    if offer.contributions:
        alone = replace(offer, gradients="none", explained=None)
        own = AttackKey("student", student="contributions")
        method = _learned(known, _of_contributions, gradients=True, prepared=_as_two_classes)
        contributions = (Attack(own, method),) if offer.values in _NUMBERS else ()
        return (*contributions, *_learned_attacks(alone, known, defended=chain is not None))
    return (*_exact_attacks(offer, known), *_learned_attacks(offer, known, defended=chain is not None))


# -- exact


def _exact_attacks(offer: Offer, known: Knowledge) -> Iterator[Attack]:
    if offer.values not in _NUMBERS or offer.explained not in (None, offer.values):
        return
    through = _explains(offer, known)
    adapted = known.maps != GRADIENT or bool(known.noise) or known.reach is not None or known.window > 0
    if through:
        yield Attack(AttackKey("exact", adapted=adapted), _from_gradients(known))
    if through and known.maps == GRADIENT and not known.coarse and tells_units_apart(offer):
        yield Attack(ORDINARY, _from_ordinary)  # no defence of inputs notices it
    if through and not adapted and not known.coarse and fits(offer) and min(offer.inputs[1:]) >= _SMALLEST_IMAGE:
        yield Attack(AttackKey("exact", student="conv"), _from_images)
    better = not through or known.maps != GRADIENT or known.coarse
    if (known.true_values and better) or (known.rounded and not through):
        yield Attack(AttackKey("exact", "values"), _from_values(known))


def _explains(offer: Offer, known: Knowledge) -> bool:
    """Whether gradients can be made of what is shown."""
    if offer.gradients == "none" or not known.adaptable:
        return False
    if known.maps.smoothing is not None and (offer.box or known.reach or offer.values == "probabilities"):
        return False  # there is no way out to where smoothing does not matter
    # One gradient of several probabilities gives no logit's gradient.
    return offer.gradient_rows == offer.outputs or offer.values != "probabilities" or offer.outputs == 2


def _from_gradients(known: Knowledge) -> Callable[[Situation], Reconstruction]:
    # Several layers cannot be told apart in answers with few digits, and smoothing leaves few.
    few = known.coarse or known.maps.smoothing is not None

    def method(at: Situation) -> Reconstruction:
        asker = _InTurn((Linear(), TwoLayer(limit=_LIMIT))) if few else Auto(inputs=at.domain(known), images=False)
        return reconstruct_behind(asker, _asked(at, known, known.maps), known.maps, rng=at.rng)

    return method


def _from_ordinary(at: Situation) -> Reconstruction:
    if at.held is None:
        return _nothing(Outcome.NOT_THIS_CLASS, MisuseError("no inputs like those of users are known"))
    rows = Questions(at.oracle.offer, at.held, at.rng).draw(min(at.budget, len(at.held)))
    return TwoLayer(inputs=rows)(at.oracle, at.rng)


def _from_images(at: Situation) -> Reconstruction:
    """Convolutional layers, with the pool's images for a student that starts from them; the others judge it later."""
    if at.budget < _FEWEST_OF_IMAGES:
        return _nothing(Outcome.BUDGET_EXHAUSTED, MisuseError(f"{_FEWEST_OF_IMAGES} queries are the least"))
    images = min(at.budget // 2, _IMAGES)
    rows = None if at.held is None else Questions(at.oracle.offer, at.held, at.rng).draw(min(images, len(at.held)))
    left = at.budget - images - _COMPARED
    return Convolutional(inputs=rows, limit=left if left > at.budget // 2 else at.budget)(at.oracle, at.rng)


def _on_backbone(known: Knowledge, backbone: Oracle | None) -> Callable[[Situation], Reconstruction]:
    def method(at: Situation) -> Reconstruction:
        if backbone is None:
            raise MisuseError("backbone: expected the public backbone of the target, got none; say --backbone FILE")
        asker = Head(backbone, at.held, queries=min(at.budget, _QUERIES_OF_HEAD))
        return reconstruct_behind(asker, _asked(at, known, known.maps), known.maps, rng=at.rng)

    return method


def _from_values(known: Knowledge) -> Callable[[Situation], Reconstruction]:
    def method(at: Situation) -> Reconstruction:
        where = at.domain(known)
        asker = _InTurn((Linear(inputs=where), TwoLayerFromValues(inputs=where)))
        return reconstruct_behind(asker, _asked(at, replace(known, noise=0.0), None), None, rng=at.rng)

    return method


@dataclass(frozen=True)
class _InTurn:
    """One method after the other, until one recovers the target; else what the last of them found."""

    askers: tuple[Reconstructor, ...]

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        generator = np.random.default_rng(rng)
        for asker in self.askers:
            result = asker(oracle, generator)
            if result.outcome in (Outcome.RECOVERED, Outcome.BUDGET_EXHAUSTED):
                break
        return result


def _asked(at: Situation, known: Knowledge, maps: MapKind | None) -> Metered:
    """The oracle that an exact attack asks: inside what is answered, unnoticed, and often enough."""
    oracle: Oracle = at.oracle
    if known.reach is not None:
        low, high = oracle.offer.box or (-known.reach, known.reach)
        oracle = WithOffer(oracle, replace(oracle.offer, box=(max(low, -known.reach), min(high, known.reach))))
    if known.window:
        oracle = DecoyQueries(oracle, known.window, values=maps is None, rng=at.rng)
    if known.noise:
        oracle = _averaged(oracle, known, int(np.clip(at.budget // _ROWS_OF_EXACT, *_TIMES)), at.rng, rounded=True)
    return metered(oracle)


def _averaged(
    oracle: Oracle, known: Knowledge, times: int, rng: np.random.Generator, *, rounded: bool = False
) -> Averaged:
    spread = _BESIDE[oracle.offer.dtype] if known.consistent else 0.0
    return Averaged(oracle, times, spread=spread, rounded=rounded, rng=rng)


def _nothing(outcome: Outcome, error: Exception) -> Reconstruction:
    return Reconstruction(None, outcome, Spent(), Evidence(remark=str(error)))


# -- learned


def _learned_attacks(offer: Offer, known: Knowledge, *, defended: bool) -> Iterator[Attack]:
    image = len(offer.inputs) == 3 and min(offer.inputs[1:]) >= _SMALLEST_IMAGE and not defended
    explained = offer.gradients != "none"
    if explained:
        loss: Loss = "gradient" if offer.values == "none" else "joint"
        both = _of_network(known, loss)
        if known.noise:
            yield Attack(AttackKey("student", averaged=True), _learned(known, both, gradients=True, again=_AGAIN))
        yield Attack(AttackKey("student"), _learned(known, both, gradients=True))
        if image:
            images = _of_network(known, loss, images=True)
            yield Attack(AttackKey("student", student="conv"), _learned(known, images, gradients=True))
    if offer.values != "none":
        alone, values = AttackKey("student", "values"), _of_network(known)
        yield Attack(alone, _learned(known, values))
        if known.noise and not explained:
            yield Attack(replace(alone, averaged=True), _learned(known, values, again=_AGAIN))
        if offer.values in _NUMBERS and offer.outputs > 1 and not known.true_values and not explained:
            # A defence of values leaves labels as they are.
            yield Attack(replace(alone, of="labels"), _learned(known, values, prepared=_labelled))
        if image and not explained:
            yield Attack(replace(alone, student="conv"), _learned(known, _of_network(known, images=True)))
        for kind in KINDS if not (explained and defended) else ():
            yield Attack(replace(alone, student=kind), _learned(known, _of_kind(kind)))


def _text_attacks(offer: Offer, known: Knowledge) -> Iterator[Attack]:
    """Token ids are no numbers: nobody asks between two of them, and only students of text learn from them."""

    def fit(at: Situation, told: Told) -> Reconstruction:
        return BagOfTokens().fit(told.offer, told.rows, told.answer, at.rng, at.oracle.spent)

    if offer.contributions:
        yield Attack(AttackKey("student", student="bag of tokens"), _learned(known, fit, gradients=True))
    if offer.values != "none":
        yield Attack(AttackKey("student", "values", student="bag of tokens"), _learned(known, fit))


def _of_contributions(at: Situation, told: Told) -> Reconstruction:
    """A student of the features' contributions: as many numbers per query as there are features."""
    return FromContributions().fit(told.offer, told.rows, told.answer, at.rng, at.oracle.spent)


def _of_kind(kind: Kind) -> Fit:
    def fit(at: Situation, told: Told) -> Reconstruction:
        spent, portfolio = at.oracle.spent, Portfolio(kind)
        return portfolio.fit(told.offer, told.rows, told.answer, at.rng, spent, held=at.held, typical=told.typical)

    return fit


def _learned(
    known: Knowledge, fit: Fit, *, gradients: bool = False, again: int = 1, prepared: Prepare | None = None
) -> Callable[[Situation], Reconstruction]:
    """Ask, then fit a student to the answers as they are ``prepared``: mended if nothing else is said."""

    def method(at: Situation) -> Reconstruction:
        times = max(min(again, at.budget // 2), 1)
        oracle = _averaged(at.oracle, known, times, at.rng) if times > 1 else at.oracle
        questions = Questions(oracle.offer, at.pool, at.rng)
        asked = ask(oracle, at.budget // times, questions, gradients=gradients)
        if not len(asked.rows):
            return _nothing(Outcome.REFUSED, MisuseError(asked.ended))
        offer, answer = (prepared or _mended)(at.oracle.offer, known, asked.answer)
        result = fit(at, Told(offer, asked.rows, answer, questions.typical(asked.rows)))
        return _remarked(result, asked.ended, result.evidence.remark)

    return method


def _remarked(result: Reconstruction, *remarks: str) -> Reconstruction:
    return replace(result, evidence=replace(result.evidence, remark="; ".join(filter(None, remarks))))


def _of_network(known: Knowledge, loss: "Loss" = "membership", *, images: bool = False) -> Fit:
    """A network fitted to answers; to the values alone where the explanations that come with them cannot be fitted.

    SmoothGrad of raw features, whose noise has one scale for all, is millions of times larger in some than in others.
    """

    def fit(at: Situation, told: Told) -> Reconstruction:
        try:
            return _network_of(at, told, known, loss, images=images)
        except DivergedError:
            if loss != "joint":
                raise
            result = _network_of(at, told, known, "membership", images=images)
            return _remarked(result, result.evidence.remark, "explanations could not be fitted, only values")

    return fit


def _network_of(at: Situation, told: Told, known: Knowledge, loss: "Loss", *, images: bool) -> Reconstruction:
    """A network fitted to standardised inputs.

    Gradients are standardised with them, or columns of small units would be all that counts. Other maps cannot be:
    there the student itself standardises its inputs.
    """
    from relumine.reconstruct.matching.method import GradientMatching
    from relumine.reconstruct.matching.student import StudentClone, standardising

    offer, explanation = told.offer, known.explanation() if loss != "membership" else None
    outside = loss == "membership" or known.maps == GRADIENT
    inner = standardising(at.scaling.mean, at.scaling.scale)

    def student(seed: int) -> "torch.nn.Module":
        fresh = _fresh(offer, seed, images=images)
        return fresh if outside else inner(fresh)

    method = GradientMatching(
        student,
        len(told.rows),
        loss=loss,
        weight=None if known.maps.partial or offer.explained == "probabilities" else _WEIGHT,
        explanation=explanation,
        shown=known.maps,
        distorted=known.distorted,
        steps=_up_to(_STEPS, offer),
        batch=_BATCH,
        learning_rate=_RATE,
    )
    if not outside:
        return method.fit(offer, told.rows, told.answer, at.rng, at.oracle.spent)
    rows, answer = at.scaling(told.rows), told.answer
    if answer.gradients is not None:
        answer = Answer(answer.values, answer.gradients * at.scaling.scale)
    result = method.fit(offer, rows, answer, at.rng, at.oracle.spent)
    assert isinstance(result.clone, StudentClone)
    return replace(result, clone=replace(result.clone, module=inner(result.clone.module)))


def _mended(offer: Offer, known: Knowledge, answer: Answer) -> tuple[Offer, Answer]:
    """Numbers that were probabilities before something changed them, made probabilities again."""
    if offer.values == "probabilities" and known.coarse:  # their logits cannot be known
        return replace(offer, explained="probabilities"), answer
    if offer.values != "real" or offer.explained != "probabilities":
        return offer, answer
    values = answer.values
    if known.cutoff is not None and offer.outputs > 1:
        hidden = values == 0
        rest = np.clip(1 - values.sum(axis=1, keepdims=True), 0, 1) / np.maximum(hidden.sum(axis=1, keepdims=True), 1)
        values = np.where(hidden, np.minimum(rest, known.cutoff), values)
    return replace(offer, values="probabilities"), Answer(as_distribution(values), answer.gradients)


def _as_two_classes(offer: Offer, known: Knowledge, answer: Answer) -> tuple[Offer, Answer]:
    """Of contributions to the log-odds of two classes, each class has half: their softmax is the probability again."""
    maps = answer.jacobians
    if maps.shape[1] > 1 or offer.outputs != 2:
        return offer, answer
    return offer, Answer(answer.values, np.concatenate([-maps, maps], axis=1) / 2)


def _labelled(offer: Offer, known: Knowledge, answer: Answer) -> tuple[Offer, Answer]:
    """Of values no more than which is the largest."""
    one_hot: Array = np.eye(offer.outputs)[answer.values.argmax(axis=1)]
    return replace(offer, values="label", explained=None), Answer(one_hot, answer.gradients)


def _fresh(offer: Offer, seed: int, *, images: bool) -> "torch.nn.Module":
    """A student that has not learned anything yet."""
    from relumine import zoo

    if images:
        return zoo.network("conv", offer.inputs, offer.outputs, seed)
    return zoo.network("two_layer", offer.inputs, offer.outputs, seed, hidden=_up_to(_HIDDEN, offer))


def _up_to(numbers: Mapping[int, int], offer: Offer) -> int:
    return next(number for inputs, number in numbers.items() if offer.dimension <= inputs)
