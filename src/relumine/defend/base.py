"""Defended: an oracle in front of an oracle, that shows less."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from relumine.errors import MisuseError
from relumine.explain.map_kind import MapKind
from relumine.oracle.base import Answer, Array, Offer, Oracle, checked_answer, checked_inputs

# What a defence changes, where it can be chosen.
Of = Literal["both", "values", "gradients"]
Rng = int | np.random.Generator | None
Settings = Mapping[str, Any]

_WHAT = {"both": "values and gradients", "values": "values", "gradients": "gradients"}

# Fields of a defence that are no settings of its own.
NOT_SETTINGS = ("oracle", "rng")


@dataclass(frozen=True, eq=False)
class Defended(ABC):
    """Answers less than the oracle inside, and offers no more than it answers.

    oracle:    the oracle behind the defence
    sentence:  what is changed, for a report; {name} stands for a setting, {what} for what ``of`` chooses
    leaves:    what it makes of maps, as fields of ``MapKind``
    remembers: whether an answer depends on what was asked before
    asks_elsewhere: whether the oracle inside is asked other rows than the client asks
    """

    oracle: Oracle

    sentence: ClassVar[str]
    leaves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[bool] = False
    asks_elsewhere: ClassVar[bool] = False

    @cached_property
    def offer(self) -> Offer:
        """What is still promised."""
        return self._offered(self.oracle.offer)

    @property
    def changes(self) -> str:
        """What this defence changes, in one sentence."""
        return self.says({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def says(cls, settings: Settings) -> str:
        """The sentence for these settings; those not given have their defaults."""
        known = cls.completed(settings)
        return cls.sentence.format(what=_WHAT[str(known.get("of", "both"))], **known)

    @classmethod
    def completed(cls, settings: Settings) -> dict[str, Any]:
        """These settings, and the defaults of those not given."""
        return {field.name: field.default for field in fields(cls) if field.default is not MISSING} | dict(settings)

    @classmethod
    def maps_after(cls, maps: MapKind, settings: Settings) -> MapKind:
        """What maps of a kind are behind it."""
        changed: dict[str, Any] = dict.fromkeys(cls.leaves, True)
        return replace(maps, **changed)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        offer = self.offer
        rows = checked_inputs(offer, inputs, gradients=gradients)
        return checked_answer(offer, len(rows), self._answered(rows, gradients), gradients=gradients)

    def _offered(self, offer: Offer) -> Offer:
        """The offer, from that of the oracle inside."""
        return offer

    def _answered(self, rows: Array, gradients: bool) -> Answer:
        answer = self.oracle(rows, gradients=gradients)
        maps = self._shown_maps(answer.jacobians, answer.values) if gradients else None
        return Answer(self._shown_values(answer.values), maps)

    def _shown_values(self, values: Array) -> Array:
        """n×K, from n×K."""
        return values

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        """n×R×d, from the gradients n×R×d and the values n×K of the oracle inside."""
        return maps

    def _require(self, holds: bool, expected: str, got: object) -> None:
        if not holds:
            raise MisuseError(f"{type(self).__name__}: expected {expected}, got {got!r}")

    def _require_gradients(self) -> None:
        offered = self.oracle.offer.gradients
        self._require(offered != "none", "an oracle that offers gradients, which are what this changes", offered)

    def _require_numbers(self, of: Of) -> None:
        """What is to be changed is there, and values are numbers."""
        values = self.oracle.offer.values
        if of == "gradients":
            self._require_gradients()
        else:
            self._require(
                values in ("real", "logits", "probabilities"), "values that are numbers (or say 'gradients')", values
            )


def changes_of(oracle: Oracle) -> list[str]:
    """What each defence in front of a target changes, the one next to the target first."""
    sentences: list[str] = []
    while isinstance(oracle, Defended):
        sentences.insert(0, oracle.changes)
        oracle = oracle.oracle
    return sentences


def as_distribution(values: Array) -> Array:
    """Numbers made probabilities again: cut to [0, 1] and, of several classes, divided by their sum."""
    cut = np.clip(values, 0, 1)
    if cut.shape[1] == 1:
        return cut
    total = cut.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, cut / np.where(total > 0, total, 1), 1 / cut.shape[1]))


def without_sum(offer: Offer) -> Offer:
    """The offer of probabilities that were changed one by one: numbers that need not sum to 1."""
    return replace(offer, values="real", explained="probabilities") if offer.values == "probabilities" else offer
