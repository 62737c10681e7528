"""Domain: where the target's inputs lie, and coordinates in which they look like N(0, I).

A search that looks around the origin at scale one misses what happens elsewhere: behind a StandardScaler the data may
lie at 1,000 ± 300, and probabilities at the origin are saturated. So every method asks in coordinates z with
x = centre + scale·z, and compares its clone where the inputs are.
"""

from dataclasses import dataclass, replace

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, Offer, checked_inputs
from relumine.oracle.metering.metered import Forwarding, Metered
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Clone, Reconstruction

# The range of some hundred samples is four to six standard deviations. Unlike the standard deviation it does not
# vanish for a coordinate that is hardly ever anything but zero, such as a pixel at the edge.
_RANGE = 4.0
# No more of the owner's inputs than this are compared: no mismatch bounds the disagreement by 3/5,000.
_MOST_SAMPLES = 5000
# As many points between and around them as fresh points elsewhere.
_BETWEEN = 40
# Nearby is within this part of the scale.
_AROUND = 0.1
# Powers of ten that are compared, in units of the scale: salaries are 1e5, milliseconds since 1970 1.7e12. Units that
# N(0, I) does not meet because of their bias show further out, and at every larger scale; biases that it hides show
# further in. Points at the first, which tells most other targets, at each of the others, and with columns each at a
# scale of its own, as tables have them.
_POWERS = (0, *range(1, 13), -1, -2, -3)
_AT_FIRST, _PER_POWER, _MIXED = 4, 2, 6
# Up to this power classes are told apart: a probability off by 1/2 is 1e-9 of the logits' sums.
_TOLD_APART = 8
# Corners of a box are told apart up to this many inputs: a unit that is on in one of them shows there alone.
_BITS = 12
# In a box every fourth point lies in its middle, this part of its width, where biases show.
_MIDDLE = 0.01


@dataclass(frozen=True, eq=False)
class Domain:
    """x = centre + scale·z for each coordinate; ``samples`` are the owner's inputs, as z, if any were given.

    entered: whether the oracle at hand is asked in z already
    """

    offer: Offer
    centre: Array
    scale: Array
    samples: Array
    entered: bool = False

    @classmethod
    def of(cls, offer: Offer, inputs: "Array | Domain | None", *, centred: bool = True) -> "Domain":
        """The domain of these inputs; without any, N(0, I) or the box. ``centred=False`` keeps the origin."""
        if isinstance(inputs, Domain):
            return inputs
        plain = cls.as_they_are(offer, inputs)
        if inputs is None or offer.box is not None:  # a box's walls are the same for all coordinates, and stay so
            return plain
        rows = plain.samples
        scale = _scale(rows if centred else np.concatenate([rows, -rows]))
        centre = rows.mean(axis=0).astype(offer.dtype).astype(np.float64) if centred else plain.centre
        return cls(offer, centre, scale, (rows - centre) / scale)

    @classmethod
    def as_they_are(cls, offer: Offer, inputs: Array | None) -> "Domain":
        """The same with x = z."""
        rows = np.empty((0, offer.dimension)) if inputs is None else np.unique(rows_of(offer, inputs), axis=0)
        return cls(offer, np.zeros(offer.dimension), np.ones(offer.dimension), rows)

    @property
    def without_samples(self) -> "Domain":
        """The same, where the owner's inputs were compared before."""
        return replace(self, samples=self.samples[:0])

    @property
    def inner(self) -> "Domain":
        """The same, for methods that are given an oracle asked in z."""
        return replace(self, entered=True)

    def outward(self, points: Array) -> Array:
        """x of these z."""
        return np.asarray(self.centre + self.scale * points)

    def representable(self, points: Array) -> Array:
        """z moved so that x is a number of the target's precision: it computes there, and not beside it.

        What rounding put outside of a box is put back, since it would be refused.
        """
        rounded = self.outward(points).astype(self.offer.dtype).astype(np.float64)
        rounded = rounded if self.offer.box is None else np.clip(rounded, *self.offer.box)
        return np.asarray((rounded - self.centre) / self.scale)

    # -- asking

    def standardised(self, meter: Metered) -> Metered:
        """The target as a function of z."""
        standard = np.all(self.centre == 0) and np.all(self.scale == 1)
        return meter if self.entered or standard else _Standardised(meter, self)

    def restored(self, result: Reconstruction) -> Reconstruction:
        """What was found of the target as a function of z, as a function of x."""
        if self.entered:
            return result
        return replace(result, clone=self._restored(result.clone), proved=self._restored(result.proved))

    def _restored(self, clone: Clone | None) -> Clone | None:
        if not isinstance(clone, Network):
            return clone
        first, *others = clone.weights
        first = first / self.scale
        skip = None if clone.skip is None else clone.skip / self.scale
        biases = [clone.biases[0] - first @ self.centre, *clone.biases[1:]]
        if skip is not None:
            biases[-1] = biases[-1] - skip @ self.centre
        return replace(clone, weights=(first, *others), biases=tuple(biases), skip=skip)

    # -- where to look, in z

    def fresh(self, count: int, rng: np.random.Generator) -> Array:
        """Points that no search has seen; of two one between the owner's inputs, where there are any."""
        points = fresh_points(self.offer, count, rng)
        if len(self.samples):
            points[1::2] = self._between(len(points[1::2]), rng)
        return points

    def near_and_far(self, count: int, rng: np.random.Generator) -> Array:
        """Fresh points, of two one further out."""
        points = self.fresh(count, rng)
        if self.offer.box is None:
            points[::2] *= 10.0 ** rng.uniform(0, _TOLD_APART, size=(len(points[::2]), 1))
        return points

    def _between(self, count: int, rng: np.random.Generator) -> Array:
        """Points between two of the owner's inputs, and a little beside."""
        first, second = self.samples[rng.integers(len(self.samples), size=(2, count))]
        width = 1.0 if self.offer.box is None else (self.offer.box[1] - self.offer.box[0]) / _RANGE
        aside = _AROUND * width * rng.standard_normal(first.shape)
        points: Array = first + rng.uniform(size=(count, 1)) * (second - first) + aside
        return points if self.offer.box is None else np.clip(points, *self.offer.box)

    def places(self, rng: np.random.Generator) -> dict[str, Array]:
        """Where a clone must equal the target before it is called recovered, the nearest first."""
        if self.offer.box is None:
            first, *others = ((f"scale 1e{power}", self._at_scale(10.0**power, rng)) for power in _POWERS)
            scales = 10.0 ** rng.choice(_POWERS, size=(_MIXED, self.offer.dimension))
            others.append(("columns of several scales", self._at_scale(scales, rng)))
        else:
            points, middle = fresh_points(self.offer, _BETWEEN, rng), sum(self.offer.box) / 2
            nearer = _MIDDLE ** rng.uniform(size=(len(points[::4]), 1))  # at all distances: no two look alike
            points[::4] = middle + nearer * (points[::4] - middle)
            first, others = ("some of the box", points[:_AT_FIRST]), [("the box", points[_AT_FIRST:])]
        given = {}
        if len(self.samples):
            given["given inputs"] = self.samples[rng.permutation(len(self.samples))[:_MOST_SAMPLES]]
            given["between and around them"] = self._between(_BETWEEN, rng)
            if self.offer.box is None:
                given["around the origin"] = (self._at_scale(1.0, rng) - self.centre) / self.scale
        return dict([first]) | given | dict(others)

    def _at_scale(self, scale: float | Array, rng: np.random.Generator) -> Array:
        """Pairs x and −x: every unit that switches well inside this scale is on at one of them."""
        count = len(scale) if isinstance(scale, np.ndarray) else _AT_FIRST if scale == 1 else _PER_POWER
        points = rng.standard_normal((count // 2, self.offer.dimension))
        positive = rng.uniform(size=(len(points), 1)) < 0.5  # counts, pixels and prices are not negative
        points = np.where(positive, np.abs(points), points)
        return np.asarray(scale * np.concatenate([points, -points]))

    @property
    def where(self) -> str:
        """The places in words."""
        given = min(len(self.samples), _MOST_SAMPLES)
        inputs = f"at {given:,} given inputs, between and around them, " if given else ""
        if self.offer.box is not None:
            return f"{inputs}in the box {self.offer.box}"
        around, inputs = ("their scale", f"{inputs}at N(0, I), and ") if given else ("N(0, I)", "")
        return f"{inputs}at 1e{min(_POWERS)} to 1e{max(_POWERS)} times {around}"


class _Standardised(Forwarding):
    """Asks x where z is asked, and answers slopes along z."""

    def __init__(self, meter: Metered, domain: Domain) -> None:
        super().__init__(meter)
        self._domain = domain

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        answer = self._meter(self._domain.outward(inputs), gradients=gradients)
        return Answer(answer.values, answer.jacobians * self._domain.scale if gradients else None)


def fresh_points(offer: Offer, count: int, rng: np.random.Generator) -> Array:
    """Points that no search has seen: N(0, I); in a box every second one uniform, the others near or at its corners.

    Of token ids any are as good as others.
    """
    if offer.tokens is not None:
        return rng.integers(offer.tokens, size=(count, offer.dimension)).astype(np.float64)
    if offer.box is None:
        return rng.standard_normal((count, offer.dimension))
    low, high = offer.box
    share = rng.uniform(size=(count, offer.dimension))
    share[1::2] = rng.beta(0.2, 0.2, size=share[1::2].shape)
    if offer.dimension <= _BITS:
        corners = rng.permutation(2**offer.dimension)[: len(share[3::4])]  # none twice
        share[3::4][: len(corners)] = corners[:, None] >> np.arange(offer.dimension) & 1
    return low + (high - low) * share


def rows_of(offer: Offer, inputs: Array) -> Array:
    """Given inputs n×d or n×shape as n×d, if they are inputs of this target."""
    rows = np.asarray(inputs)
    if rows.ndim < 2 or not len(rows):
        raise MisuseError(f"inputs: expected n inputs of shape {offer.inputs}, got an array of shape {rows.shape}")
    rows = checked_inputs(offer, rows.reshape(len(rows), -1))
    if offer.box is not None and (rows.min() < offer.box[0] or rows.max() > offer.box[1]):
        raise MisuseError(f"inputs: expected numbers in {offer.box}, got {rows.min():g} to {rows.max():g}")
    return rows


def _scale(rows: Array) -> Array:
    """Per coordinate, a power of two, so that multiplying by it rounds nothing; constant ones as most others."""
    spread = np.ptp(rows, axis=0) / _RANGE
    usual = float(np.median(spread[spread > 0])) if np.any(spread > 0) else 1.0
    return np.asarray(2.0 ** np.round(np.log2(np.where(spread > 0, spread, usual))))
