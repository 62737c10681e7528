"""Less exact answers: fewer digits, noise, or means of gradients at noisy inputs."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Literal

import numpy as np

from relumine.defend.base import Defended, Of, Rng, Settings, as_distribution, without_sum
from relumine.explain.map_kind import MapKind, Smoothing
from relumine.oracle.base import Answer, Array, DType, Offer, in_parts

Repeat = Literal["fresh", "consistent"]

# How far from 1 probabilities may sum and still be offered as such.
_SLACK = 0.01


# n×count standard normal numbers for n inputs.
_Normals = Callable[[Array, int], Array]


def _source(repeat: Repeat, rng: Rng, offer: Offer) -> _Normals:
    generator = np.random.default_rng(rng)
    if repeat == "fresh":
        return partial(_fresh, generator)
    # Of the seed, not of the generator's state: defences that share a source have the same key.
    return partial(_keyed, generator.bit_generator.seed_seq.generate_state(8).tobytes(), offer.dtype)


def _fresh(rng: np.random.Generator, rows: Array, count: int) -> Array:
    """New noise every time, drawn input by input: asking in one batch or in several uses the same."""
    return rng.standard_normal((len(rows), count))


def _keyed(key: bytes, dtype: DType, rows: Array, count: int) -> Array:
    """The same noise for the same input: a keyed hash of the input, as the target sees it, is the seed.

    Inputs that round to the same numbers in the target's precision are the same input; else noise could be averaged
    away between them.
    """
    seen = np.ascontiguousarray(rows.astype(dtype) + 0.0)  # no negative zeros
    seeds = (int.from_bytes(blake2b(row.tobytes(), key=key, digest_size=16).digest(), "big") for row in seen)
    return np.array([np.random.default_rng(seed).standard_normal(count) for seed in seeds]).reshape(len(rows), count)


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


@dataclass(frozen=True, eq=False)
class GaussianNoise(Defended):
    """Blurs every number by Gaussian noise of standard deviation ``sigma``.

    kind:   "additive", or "multiplicative": each number times 1 + noise
    repeat: "fresh" noise at every question, which averaging takes away, or "consistent": the same input always gets
            the same noise
    rng:    source of the noise, or of the key from which consistent noise is made

    Probabilities stay probabilities: they are cut to [0, 1] and made to sum to 1 again.
    """

    sentence = "Blurs {what} by {repeat} {kind} Gaussian noise of standard deviation {sigma}."

    sigma: float
    kind: Literal["additive", "multiplicative"] = "additive"
    repeat: Repeat = "fresh"
    of: Of = "both"
    rng: InitVar[Rng] = None
    _noise: _Normals = field(init=False, repr=False)

    def __post_init__(self, rng: Rng) -> None:
        self._require(np.isfinite(self.sigma) and self.sigma > 0, "a positive standard deviation", self.sigma)
        self._require_numbers(self.of)
        object.__setattr__(self, "_noise", _source(self.repeat, rng, self.oracle.offer))

    def _offered(self, offer: Offer) -> Offer:
        return replace(offer, random=offer.random or self.repeat == "fresh")

    def _answered(self, rows: Array, gradients: bool) -> Answer:
        answer = self.oracle(rows, gradients=gradients)
        # Those of the values first: they are the same whether gradients are asked or not.
        wanted = answer.values.shape[1] + (answer.jacobians[:1].size if gradients and len(rows) else 0)
        for_values, for_maps = np.split(self._noise(rows, wanted), [answer.values.shape[1]], axis=1)
        values, maps = answer.values, answer.gradients
        if self.of != "gradients":
            values = self._blurred(values, for_values)
            values = as_distribution(values) if self.oracle.offer.values == "probabilities" else values
        if maps is not None and self.of != "values":
            maps = self._blurred(maps, for_maps.reshape(maps.shape))
        return Answer(values, maps)

    def _blurred(self, numbers: Array, normals: Array) -> Array:
        return numbers + self.sigma * normals * (numbers if self.kind == "multiplicative" else 1)


@dataclass(frozen=True, eq=False)
class SmoothGradDefence(Defended):
    """Answers the mean of ``samples`` gradients at points around the input, with Gaussian noise of ``sigma``.

    For targets whose gradients can be asked anywhere: each answer with gradients costs the oracle inside one value
    and ``samples`` gradients. Noisy points are cut to the box of valid inputs, if there is one.
    Where one class is to be shown, choose it afterwards (``smoothgrad:…+top``), for all points alike.
    """

    sentence = "Shows the mean gradient of {samples} points around the input ({repeat} noise, sigma {sigma})."
    asks_elsewhere = True

    samples: int
    sigma: float
    repeat: Repeat = "fresh"
    rng: InitVar[Rng] = None
    _noise: _Normals = field(init=False, repr=False)

    def __post_init__(self, rng: Rng) -> None:
        self._require(self.samples >= 1, "at least 1 sample", self.samples)
        self._require(np.isfinite(self.sigma) and self.sigma > 0, "a positive standard deviation", self.sigma)
        self._require_gradients()
        several = self.oracle.offer.outputs > 1 and self.oracle.offer.gradients == "top"
        self._require(not several, "gradients of chosen outputs (or choose the top class afterwards)", "top")
        object.__setattr__(self, "_noise", _source(self.repeat, rng, self.oracle.offer))

    @classmethod
    def maps_after(cls, maps: MapKind, settings: Settings) -> MapKind:
        """A mean around the input."""
        return replace(maps, smoothing=Smoothing(float(settings["sigma"]), int(settings["samples"])))

    def _offered(self, offer: Offer) -> Offer:
        return replace(offer, random=offer.random or self.repeat == "fresh")

    def _answered(self, rows: Array, gradients: bool) -> Answer:
        if not gradients:
            return self.oracle(rows, gradients=False)
        offer = self.oracle.offer
        return in_parts(offer, rows, self.samples * offer.gradient_rows * offer.dimension, self._averaged)

    def _averaged(self, rows: Array) -> Answer:
        count, dimension = rows.shape
        noise = self._noise(rows, self.samples * dimension).reshape(count, self.samples, dimension)
        points = rows[:, None] + self.sigma * noise
        if self.oracle.offer.box is not None:
            points = points.clip(*self.oracle.offer.box)
        maps = self.oracle(points.reshape(-1, dimension), gradients=True).jacobians
        mean = maps.reshape(count, self.samples, *maps.shape[1:]).mean(axis=1)
        return Answer(self.oracle(rows, gradients=False).values, mean)
