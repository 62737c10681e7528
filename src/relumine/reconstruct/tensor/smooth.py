"""One hidden layer with any smooth activation, from the tensor of its Jacobians.

Directions, output vectors and slopes come from the tensor (unfolding.py), scale, bias and activation from each unit's
own curve (shape.py), the last digits from Gauss–Newton over all answers.
"""

import numpy as np

from relumine.oracle.base import Answer, Array, Oracle
from relumine.oracle.finite_difference import CentralDifferences
from relumine.oracle.logits import LogitLink, in_logits
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.activation import Activation
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.tensor.crossings import CrossedUnits, Crossings, far_line
from relumine.reconstruct.tensor.gauss_newton import polished
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.shape import CANDIDATES, Shapes, shapes_of
from relumine.reconstruct.tensor.tabulated import tabulated
from relumine.reconstruct.tensor.unfolding import Directions, unfolded
from relumine.reconstruct.verification import TOLERANCE, fresh_points

# Points of this size bend sigmoids whose rows have length one enough to tell their units apart (the smallest singular
# value is twice that of points of size one) and leave them unsaturated.
_SCALE = 3.0
_FIRST = 6
# Where curves cannot be told at so few points, more are asked, this often.
_ROUNDS = 5
_MORE = 3
# Fresh points are of these sizes: a unit that is straight near the origin bends farther out.
_SIZES = (1.0, 4.0, 16.0)
# Curves that miss no more than this (the median over units) are worth a polish; those of a wrong activation miss 1e-3
# and more: GELU's two forms are the closest.
_FITS = 3e-4
# Inputs have the same size if their gradients are at most this multiple of the median one.
_ALIKE = 4.0
# Lines that are searched before the target counts as another class.
_LINES = 6
# Of what a line crosses in a network with one hidden layer, more than this part is crossed alone: 14 of 15 is the
# least among scikit-learn's networks of 16 units, and with 100 units gaps are still a thousand times their widths.
_ALONE = 0.3
# Points for the polish lie this far from where boundaries meet, in lengths of the rows; so many numbers are asked at
# each of these sizes per number that is unknown.
_NEAR = (0.5, 1.5, 4.0)
_PER_NUMBER = 1
# Largest gap that noise may explain.
_COARSEST = 1e-3
# If no activation fits, it is tabulated from so many answers, at up to so many times the scale of the data, or from
# more until the gap is this small or the last number is reached. A larger gap than _USELESS is no clone.
_TABULATED, _TABULATED_SIZE, _TABULATED_GAP, _MOST_TABULATED, _USELESS = 100, 4.0, 1e-4, 400, 0.05


class SmoothRun:
    """The state of one reconstruction.

    seen:        answers that were paid for before
    from_values: take gradients by differences of values
    """

    def __init__(
        self,
        meter: Metered,
        rng: np.random.Generator,
        seen: Observations | None = None,
        *,
        limit: int,
        points: int,
        from_values: bool = False,
    ) -> None:
        self._meter, self._rng, self._limit, self._points = meter, rng, limit, points
        self._oracle: Oracle = LogitLink(meter) if meter.offer.values == "probabilities" else meter
        self._differences = CentralDifferences(self._oracle) if from_values else None
        self._oracle = self._differences or self._oracle
        offer = meter.offer
        nothing = np.empty((0, offer.outputs, offer.dimension))
        seen = seen or Observations(nothing[:, 0], nothing[:, :, 0], nothing, Noise(0.0))
        self._scale = _SCALE
        self._noise = seen.noise
        self._seen = seen
        self._units: CrossedUnits | None = None
        self._network: Network | None = None
        self._gap: float | None = None

    def reconstruct(self) -> None:
        """Ask, decompose, fit, polish, verify."""
        with self._meter.phase("search"):
            self._ask(max(1, _FIRST - len(self._seen)))
        directions = None
        for _ in range(_ROUNDS):
            with self._meter.phase("search"):
                directions = self._directions()
            if directions is None:
                break
            network = self._built(directions)
            if network is not None and self._verified(network):
                return
            with self._meter.phase("search"):
                self._ask(max(_MORE, len(self._seen) // 5))
        if directions is not None:
            self._tabulate(directions)
        # Far out, differences of values lose too many digits.
        if self._meter.offer.box is not None or self._differences is not None:
            raise Stop(Outcome.NOT_PIECEWISE_LINEAR, "its Jacobians are no sum of units of one hidden layer")
        self._by_crossings()

    def _verified(self, network: Network) -> bool:
        """Polish, and compare at fresh points if all answers so far are explained."""
        self._network, misfit = polished(network, self._seen, max(1e-13, 0.5 * self._noise.floor))
        if misfit > self._tolerance:
            return False
        with self._meter.phase("verify"):
            self._gap = self._gap_at_fresh_points(self._network)
        return self._gap <= self._tolerance

    # -- asking

    def _ask(self, count: int, up_to: float | None = None) -> None:
        """Ask gradients at this many more fresh points whose answers are known, of sizes up to this."""
        for _ in range(12):
            sizes = self._scale if up_to is None else up_to * self._rng.random((count, 1))
            points = self._fresh(count, sizes * self._sizes())
            self._limit -= count
            if self._limit < 0:
                raise Stop(Outcome.NOT_PIECEWISE_LINEAR, "the gradient queries were not enough; raise `limit`")
            answer = self._oracle(points, gradients=True)
            known = np.isfinite(answer.values).all(axis=1)
            self._seen = self._seen.and_(points[known], answer.values[known], answer.jacobians[known])
            if known.all():
                break
            count, self._scale = int((~known).sum()), self._scale / 2
        else:
            raise Stop(Outcome.SATURATED)
        shown = np.concatenate([self._seen.values.ravel(), self._seen.jacobians.ravel()])
        self._noise = noise_in(shown, self._meter.offer.dtype)
        if self._differences is not None:
            self._noise = Noise(max(self._noise.relative, self._differences.error), self._noise.absolute)

    def _sizes(self) -> Array | float:
        """How far to go along each coordinate, relative to the others: as much less as gradients are larger there."""
        sizes = np.sqrt(np.mean(self._seen.jacobians**2, axis=(0, 1))) if len(self._seen) else np.zeros(1)
        if not sizes.max() > _ALIKE * np.median(sizes):
            return 1.0
        result: Array = np.median(sizes) / np.maximum(sizes, np.median(sizes))
        return result

    def _fresh(self, count: int, scale: Array | float) -> Array:
        offer = self._meter.offer
        points = fresh_points(offer, count, self._rng) * (scale if offer.box is None else 1.0)
        rounded = points.astype(offer.dtype).astype(np.float64)
        return rounded if offer.box is None else np.clip(rounded, *offer.box)

    # -- finding

    def _directions(self) -> Directions | None:
        """All units, from as few points as show them."""
        while True:
            unfolding = unfolded(self._seen.jacobians, self._noise)
            wanted = unfolding.wanted()
            if wanted is None:
                return None
            missing = wanted - len(self._seen)
            if missing <= 0:
                found = unfolding.decomposed(self._rng)
                if found is not None or len(self._seen) > unfolding.rank + 2 * _FIRST:
                    return found
                missing = max(2, len(self._seen) // 6)
            self._ask(missing)

    def _built(self, directions: Directions) -> Network | None:
        """The network of the activation that fits the units' curves best."""
        projections = self._seen.points @ directions.rows.T
        fits = [shapes_of(projections, directions.slopes, Activation(name)) for name in CANDIDATES]
        best = min(fits, key=lambda fit: float(np.median(fit.misfits)))
        return self._assembled(directions, best) if np.median(best.misfits) <= _FITS else None

    def _assembled(self, directions: Directions, shapes: Shapes) -> Network:
        rows = directions.rows * shapes.scales[:, None]
        outputs = (directions.outputs * (shapes.factors / shapes.scales)[:, None]).T
        hidden = shapes.activation(self._seen.points @ rows.T + shapes.shifts)
        offset = (self._seen.values - hidden @ outputs.T).mean(axis=0)
        offer = self._meter.offer
        return Network(
            (rows, outputs), (shapes.shifts, offset), offer.inputs, values=offer.values, activation=shapes.activation
        )

    def _tabulate(self, directions: Directions) -> None:
        """End with a table of each unit's function, if that is a clone; to find units needs no activation."""
        count = _TABULATED
        while True:
            with self._meter.phase("tabulate"):
                self._ask(count, up_to=_TABULATED_SIZE)
            network = tabulated(directions, self._seen, self._meter.offer)
            with self._meter.phase("verify"):
                gap = self._gap_at(network, self._fresh(self._points, 1.0))
            if gap > _USELESS:
                return
            self._network, self._gap = network, gap
            if gap <= _TABULATED_GAP or len(self._seen) > _MOST_TABULATED:
                raise Stop(Outcome.NOT_VERIFIED, f"no known activation: tabulated, which leaves a gap of {gap:.0e}")
            count = len(self._seen)

    # -- finding units one by one

    def _by_crossings(self) -> None:
        """Units that far lines cross, each line showing those that the ones before did not show alone."""
        for _ in range(_LINES):
            with self._meter.phase("search"):
                complete = self._on_a_line()
            if complete and self._verified(self._refined()):
                return
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, "what far lines cross are not the units of one hidden layer")

    def _on_a_line(self) -> bool:
        """Add the units that a line shows; whether they explain all that changes on it."""
        known, offer = self._units, self._meter.offer
        line = far_line(*self._region(), offer.dtype, self._rng)
        crossings = Crossings(line, self._answers_at, self._explained, self._noise)
        new = crossings.units(known.activation if known else None)
        crossed, alone = len(crossings.clusters()), 0 if new is None else len(new.rows)
        if new is None or alone < _ALONE * crossed:
            raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"of {crossed} changes on a far line {alone} are single units'")
        self._units = new if known is None else known.and_(new)
        return crossed == alone

    def _answers_at(self, points: Array) -> Answer:
        self._limit -= len(points)
        if self._limit < 0:
            raise Stop(Outcome.NOT_PIECEWISE_LINEAR, "the gradient queries were not enough; raise `limit`")
        return self._oracle(points.astype(self._meter.offer.dtype).astype(np.float64), gradients=True)

    def _explained(self, points: Array) -> tuple[Array, Array]:
        offer = self._meter.offer
        if self._units is None:
            return np.zeros((len(points), offer.outputs)), np.zeros((len(points), offer.outputs, offer.dimension))
        return self._units.answers(points)

    def _region(self) -> tuple[Array, Array]:
        """Where the units' boundaries meet most nearly, and the size of each coordinate there."""
        d = self._meter.offer.dimension
        if self._units is None:
            return np.zeros(d), np.ones(d)
        sizes = np.sqrt(np.mean(self._units.rows**2, axis=0))
        scale = 1 / np.maximum(sizes, 1e-6 * sizes.max())
        rows = self._units.rows * scale
        ridge = 1e-2 * np.eye(d)
        centre = -np.linalg.solve(rows.T @ rows + ridge, rows.T @ self._units.biases)
        return centre * scale, scale

    def _near(self, count: int, scale: float) -> Array:
        centre, size = self._region()
        points = centre + scale * size * self._rng.standard_normal((count, len(centre)))
        return points.astype(self._meter.offer.dtype).astype(np.float64)

    def _refined(self) -> Network:
        """The units found, with answers where all of them bend to polish them by."""
        assert self._units is not None
        units, offer = self._units, self._meter.offer
        numbers = units.rows.size + units.outputs.size + len(units.rows)
        count = _PER_NUMBER * numbers // (offer.outputs * (offer.dimension + 1)) + _FIRST
        points = np.concatenate([self._near(count, scale) for scale in _NEAR])
        with self._meter.phase("search"):
            answer = self._answers_at(points)
        self._seen = Observations(points, answer.values, answer.jacobians, self._noise)
        values, jacobians = units.answers(points)
        skip = (answer.jacobians - jacobians).mean(axis=0)
        units, skip = units.turned(skip)
        values = units.answers(points)[0] + points @ skip.T
        plain = np.abs(skip).max() <= 1e-6 * np.abs(answer.jacobians).max()
        return Network(
            (units.rows, units.outputs),
            (units.biases, (answer.values - values).mean(axis=0)),
            offer.inputs,
            skip=None if plain else skip,
            values=offer.values,
            activation=units.activation,
        )

    # -- verifying

    @property
    def _tolerance(self) -> float:
        return min(max(TOLERANCE["float64"], 500 * self._noise.floor), _COARSEST)

    def _gap_at_fresh_points(self, network: Network) -> float:
        """At fresh points of several sizes, each relative to the largest answer of its size."""
        each = -(-self._points // len(_SIZES))
        near = [] if self._units is None else [self._near(each, scale) for scale in _NEAR]
        return max(self._gap_at(network, points) for points in [*near, *(self._fresh(each, size) for size in _SIZES)])

    def _gap_at(self, network: Network, points: Array) -> float:
        """Of logits where they are known, else of probabilities."""
        answer = self._meter(points, gradients=False)
        if self._meter.offer.values != "probabilities":
            return _gap(network.logits(points), answer.values)
        logits = in_logits(self._meter.offer, Answer(answer.values)).values
        known = np.isfinite(logits).all(axis=1)
        ours = network.logits(points[known])
        ours = ours if ours.shape[1] == 1 else ours - ours.mean(axis=1, keepdims=True)
        return max(_gap(ours, logits[known]), _gap(network.predict(points), answer.values))

    # -- results

    def clone(self) -> Network | None:
        """What was found, verified or not."""
        return self._network

    def evidence(self, remark: str) -> Evidence:
        """What the outcome rests on."""
        compared = 0 if self._gap is None else -(-self._points // len(_SIZES)) * len(_SIZES)
        return Evidence(self._noise.floor, None, self._gap, compared, remark)


def _gap(ours: Array, theirs: Array) -> float:
    largest = float(np.abs(theirs).max(initial=0)) or 1.0
    return float(np.abs(ours - theirs).max(initial=0)) / largest
