"""Rounded: fewer digits."""

from dataclasses import dataclass

import numpy as np

from relumine.defend.base import Defended, Of, without_sum
from relumine.oracle.base import Array, Offer

# How far from 1 probabilities may sum and still be offered as such.
_SLACK = 0.01


@dataclass(frozen=True, eq=False)
class Rounded(Defended):
    """Rounds every number to ``decimals`` digits behind the point.

    Probabilities are rounded one by one. Where that can move their sum away from 1 by more than a hundredth, they are
    offered as real numbers.
    """

    sentence = "Rounds {what} to {decimals} decimals."

    decimals: int
    of: Of = "both"

    def __post_init__(self) -> None:
        self._require(0 <= self.decimals <= 15, "0 to 15 decimals", self.decimals)
        self._require_numbers(self.of)

    def _offered(self, offer: Offer) -> Offer:
        most = 0.0 if offer.outputs == 1 else offer.outputs * 0.5 * 10.0**-self.decimals
        return offer if self.of == "gradients" or most <= _SLACK else without_sum(offer)

    def _shown_values(self, values: Array) -> Array:
        return values if self.of == "gradients" else np.round(values, self.decimals)

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        return maps if self.of == "values" else np.round(maps, self.decimals)
