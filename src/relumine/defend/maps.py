"""What is shown of an explanation: some coordinates, signs, magnitudes, a picture, one class."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from relumine.defend.base import Defended, Settings
from relumine.explain.map_kind import MapKind
from relumine.oracle.base import Array, Offer


@dataclass(frozen=True, eq=False)
class OfMaps(Defended):
    """Changes gradients only."""

    def __post_init__(self) -> None:
        self._require_gradients()


@dataclass(frozen=True, eq=False)
class TopFeatures(OfMaps):
    """Keeps the ``k`` coordinates of each gradient that are largest in magnitude; of equal ones the first."""

    sentence = "Shows the {k} largest coordinates of each gradient, and 0 for the others."
    leaves = ("masked",)

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.k >= 1, "at least 1 feature", self.k)

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        kept = np.argsort(-np.abs(maps), axis=2, kind="stable")[:, :, : self.k]
        shown = np.zeros_like(maps)
        np.put_along_axis(shown, kept, np.take_along_axis(maps, kept, axis=2), axis=2)
        return shown


class SignOnly(OfMaps):
    """Shows −1, 0 or 1."""

    sentence = "Shows of each gradient coordinate its sign only."
    leaves = ("signs",)

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        return np.sign(maps)


class MagnitudeOnly(OfMaps):
    """Shows |∇f|, as many saliency maps do."""

    sentence = "Shows of each gradient coordinate its magnitude only."
    leaves = ("magnitudes",)

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        return np.abs(maps)


class MaxNormalised(OfMaps):
    """Divides each gradient by its largest magnitude, as one does before drawing it; 0 stays 0."""

    sentence = "Divides each gradient by its largest magnitude, so that its scale is lost."
    leaves = ("scaled",)

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        return _normalised(maps)


@dataclass(frozen=True, eq=False)
class HeatMap(OfMaps):
    """Shows each gradient as an image of ``bits`` bits per pixel.

    magnitude: |∇f| by its largest, in 2^bits − 1 steps from 0 to 1 (shades of one colour)
    signed:    ∇f by its largest magnitude, in steps from −1 to 1 with 0 among them (a colour for each sign)
    """

    sentence = "Shows each gradient as a picture of {bits} bits per pixel ({shows}, scaled by its largest)."
    leaves = ("scaled", "quantised")

    bits: int = 8
    shows: Literal["magnitude", "signed"] = "magnitude"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(1 < self.bits <= 16, "2 to 16 bits", self.bits)

    @classmethod
    def maps_after(cls, maps: MapKind, settings: Settings) -> MapKind:
        """Magnitudes, if a picture shows these."""
        return super().maps_after(
            replace(maps, magnitudes=maps.magnitudes or settings["shows"] == "magnitude"), settings
        )

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        steps = 2**self.bits - 1 if self.shows == "magnitude" else 2 ** (self.bits - 1) - 1
        shown = _normalised(np.abs(maps) if self.shows == "magnitude" else maps)
        return np.asarray(np.round(shown * steps) / steps)


class TopClass(OfMaps):
    """Shows the gradient of the largest output alone: the largest that the oracle inside answers."""

    sentence = "Shows the gradient of each input's largest output only."

    def __post_init__(self) -> None:
        super().__post_init__()
        offer = self.oracle.offer
        self._require(offer.gradients in ("all", "top"), "gradients of all outputs, or of the top one", offer.gradients)
        self._require(offer.values != "none", "values that tell which output is largest", offer.values)

    def _offered(self, offer: Offer) -> Offer:
        return replace(offer, gradients="top")

    def _shown_maps(self, maps: Array, values: Array) -> Array:
        if self.oracle.offer.gradients == "top":
            return maps
        return np.take_along_axis(maps, values.argmax(axis=1)[:, None, None], axis=1)


def _normalised(maps: Array) -> Array:
    largest = np.abs(maps).max(axis=2, keepdims=True, initial=0)
    return np.asarray(maps / np.where(largest > 0, largest, 1))
