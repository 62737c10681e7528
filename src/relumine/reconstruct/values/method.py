"""TwoLayerFromValues: a one-hidden-layer ReLU network from value queries alone, at no more than its parameters or so.

With several outputs it is the tensor of Jacobians that are differences of values (differences.py), about h/K·(d + 3)
and h²/2K values. With one output, and for what the tensor leaves open, breakpoints are found from values on a line, a
handful each; then one gradient per linear region is taken by differences, d values each. That is about (d + 10)(h + 1)
values, where the network has (d + 1)h + … parameters (cf. Appendix C, which takes a gradient by differences for each of
its h·log(h/δ) queries).
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from relumine.errors import MisuseError
from relumine.oracle.base import Array, Oracle
from relumine.oracle.logits import LogitLink
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.lines.profile import Profile
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.lines.shallow import Shallow, shallow_from_pieces
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction, Stop, attempt
from relumine.reconstruct.tensor.smooth import SmoothRun
from relumine.reconstruct.values.differences import DifferencesRun
from relumine.reconstruct.values.noisy import FewDigits
from relumine.reconstruct.verification import FRESH_POINTS, verified
from relumine.reconstruct.verification.comparison import Comparison
from relumine.reconstruct.verification.domain import Domain

# A step along an axis is this part of √d times the distance to the next kink on the line. Random units are crossed by
# about 1.5 % of such steps; those are found afterwards, from the units themselves, and taken again.
_STEP = 0.008
# A unit whose kink is far away on the line runs nearly along it, and may be close all the same.
_REACH = 0.3
# A step that comes closer than this to a boundary, in units of the way there, is taken again.
_MARGIN = 0.4
# Places near a line's start whose values tell how they are rounded; farther out, if they are the same near it.
_FARTHER = 30.0
_PROBES = (0.22, -0.24, 0.36, -0.37, 0.58, -0.59, 0.83, -0.84)
# Below this noise floor differences over short steps are exact enough; above it, long ones are needed.
EXACT = 1e-12
# To this part of a value Levenberg–Marquardt fits exact ones.
_FITTED = 1e-10
# After these outcomes of the tensor a line is searched: parallel rows and outputs are told apart there.
_DOUBTED = (Outcome.NOT_THIS_CLASS, Outcome.NOT_VERIFIED)
# Lines tried before the target counts as not of this class.
_LINES = 3
# Differences multiply the noise of a value: in float64 they leave 1e-10 or so of the largest value.
_EQUAL = 1e-7


@dataclass(frozen=True)
class TwoLayerFromValues:
    """Reconstruct x ↦ W relu(Ax + b) + c from values: any norms, biases, h unknown, h > d, any number of outputs.

    limit: give up after this many value queries
    points: how many fresh points to compare
    inputs: the owner's inputs, n×d: where to search, and where a clone must be right
    """

    limit: int = 5_000_000
    points: int = FRESH_POINTS
    inputs: Array | Domain | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.limit < 100 or self.points < 1:
            raise MisuseError(
                f"TwoLayerFromValues: expected limit >= 100 and points >= 1, got {self.limit} and {self.points}"
            )

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        if oracle.offer.values in ("label", "none"):
            raise MisuseError(
                f"TwoLayerFromValues needs real values, logits or probabilities; the oracle offers "
                f"values={oracle.offer.values!r}"
            )
        generator, domain = np.random.default_rng(rng), Domain.of(oracle.offer, self.inputs)
        meter = domain.standardised(metered(oracle))
        before = meter.spent
        run: ValuesRun | SmoothRun = ValuesRun(self, meter, domain, generator)
        outcome, remark = attempt(run.reconstruct)
        # Differences of float32 values leave four digits of a gradient, too few to verify by.
        if outcome is Outcome.NOT_PIECEWISE_LINEAR and meter.offer.dtype == "float64":
            gradients = self.limit // (2 * meter.offer.dimension + 1)
            run = SmoothRun(meter, generator, limit=gradients, points=self.points, from_values=True)
            outcome, remark = attempt(run.reconstruct)
        spent = meter.spent.since(before)
        result = Reconstruction(run.clone(), outcome, spent, run.evidence(remark), repr(self))
        return domain.restored(verified(result, meter, generator, domain, _EQUAL))


@dataclass(eq=False)
class _LineRegion:
    """A stretch of the line between two kinks: its middle, and the steps by which its gradient is taken."""

    t: float
    point: Array
    value: Array
    reach: float  # distance to the next kink on the line
    slope: Array  # along the line, from a value within reach
    steps: Array  # d: signed length of the step along each axis
    jacobian: Array


class ValuesRun:
    """The state of one reconstruction."""

    def __init__(self, settings: TwoLayerFromValues, meter: Metered, domain: Domain, rng: np.random.Generator) -> None:
        self.settings = settings
        self.meter = meter
        self.rng = rng
        self.offer = meter.offer
        self.link = LogitLink(meter, values_only=True) if meter.offer.values == "probabilities" else None
        self.oracle: Oracle = self.link or meter
        self.comparison = Comparison(self.oracle, rng, domain)
        self.noise = Noise(0.0)
        self.model: Shallow | None = None
        self.spacing: float | None = None
        self.asked = 0
        self.span: Array | None = None
        self.other: FewDigits | DifferencesRun | None = None

    def reconstruct(self) -> None:
        """Try lines until the network that one of them shows agrees with the target."""
        for tried in range(_LINES):
            with self.meter.phase("search"):
                line = self._line()
            if self.noise.floor > EXACT:
                self._grow(self.noise)
                return
            if tried == 0 and self._several and self._by_the_tensor():
                return
            self._reconstruct_on(line)
            with self.meter.phase("verify"):
                self.comparison.ask(self.comparison.fresh(self.settings.points))
            if self._wrong():
                continue
            with self.meter.phase("verify"):
                self.comparison.challenge(self._found)
            if not self._wrong():
                return
        if self.offer.box is not None:  # no line inside it met all units
            self._grow(Noise(_FITTED))
            return
        far_off = (self.comparison.gap(self._found) or 0.0) > 1e3 * self._tolerance
        remark = f"the networks that {_LINES} lines showed differ from the target elsewhere"
        raise Stop(Outcome.NOT_THIS_CLASS if far_off else Outcome.NOT_VERIFIED, remark)

    def _grow(self, noise: Noise) -> None:
        """Fit a growing network to values as exact as this."""
        limit = self.settings.limit - self.asked
        self.other = FewDigits(self.meter, noise, self.settings.points, limit, self.comparison.domain, self.rng)
        self.other.reconstruct()

    @property
    def _several(self) -> bool:
        """Whether several outputs tell units apart; two probabilities are one."""
        return self.offer.outputs > (1 if self.link is None else 2)

    def _by_the_tensor(self) -> bool:
        """Whether Jacobians by differences show all units; else a line may."""
        before, limit = self.meter.spent, self.settings.limit - self.asked
        run = DifferencesRun(self.settings.points, limit, self.meter, self.comparison, self.rng, self.span)
        outcome, remark = attempt(run.reconstruct)
        self.asked += self.meter.spent.since(before).value_queries
        if outcome not in _DOUBTED or self.asked >= self.settings.limit:
            self.other = run
        if outcome not in (*_DOUBTED, Outcome.RECOVERED):
            raise Stop(outcome, remark)
        return outcome is Outcome.RECOVERED

    @property
    def _found(self) -> Shallow:
        assert self.model is not None
        return self.model

    @property
    def _tolerance(self) -> float:
        return max(_EQUAL, 1e4 * self.noise.relative + 1e4 * self.noise.absolute / self.comparison.size)

    def _wrong(self) -> bool:
        return len(self.comparison.wrong(self._found, self._tolerance)) > 0

    def _ask(self, points: Array) -> Array:
        self.asked += len(points)
        if self.asked > self.settings.limit:
            raise Stop(Outcome.NOT_THIS_CLASS, f"{self.settings.limit} value queries were not enough; raise `limit`")
        return self.oracle(points, gradients=False).values

    def _reconstruct_on(self, line: Line) -> None:
        with self.meter.phase("search"):
            profile = self._profile_of(line)
            kinks = profile.kinks()
        self.spacing = float(np.diff(kinks).min()) if len(kinks) > 1 else None
        with self.meter.phase("gradients"):
            regions = self._regions(line, kinks, profile.ends)
            self._assemble(line, kinks, regions)
            self._fit(regions)

    def _assemble(self, line: Line, kinks: list[float], regions: list[_LineRegion]) -> None:
        """Build the network from the regions; repeat steps that crossed a boundary of it."""
        for _ in range(6):
            self._build(line, kinks, regions)
            untrue = [region for region in regions if self._untrue(line, region)]
            for region in untrue:
                region.steps *= 0.05
                self._step(region, np.arange(len(region.steps)))
            if not untrue and not self._take_again(regions, self._found):
                return

    def _build(self, line: Line, kinks: list[float], regions: list[_LineRegion]) -> None:
        offsets = [region.value - region.jacobian @ region.point for region in regions]
        jacobians = [region.jacobian for region in regions]
        self.model = shallow_from_pieces(jacobians, offsets, kinks, line.start, line.direction)

    def _line(self) -> Line:
        """A line on which answers are finite; they show the noise."""
        for _ in range(12):
            line = self.comparison.line()
            low, high = line.within(self.offer.box)
            room = min(1.0, -low, high)
            answers = self._probed(line, room)
            if len(np.unique(answers)) < len(_PROBES):  # flat somewhere: all units are off, which shows no digits
                answers = np.concatenate([answers, self._probed(line, min(_FARTHER, -low, high))])
            self.noise = noise_in(answers, self.offer.dtype)
            if self.noise.floor > EXACT or self.link is None or np.isfinite(self.link.logits(answers)).all():
                return line
            self.comparison.scale /= 2
        raise Stop(Outcome.SATURATED)

    def _probed(self, line: Line, room: float) -> Array:
        self.asked += len(_PROBES)
        points = self.comparison.representable(line.points(room * t for t in _PROBES))
        return self.meter(points, gradients=False).values

    def _profile_of(self, line: Line) -> Profile:
        def values(t: list[float]) -> Array:
            return self._ask(self.comparison.representable(line.points(t)))

        limit = None if self.link is None else 0.5 * self.link.limit
        return Profile(values, self.noise, box=line.within(self.offer.box), limit=limit, found=self.meter.found)

    # -- gradients by differences

    def _regions(self, line: Line, kinks: list[float], ends: tuple[float, float]) -> list[_LineRegion]:
        """Every region of the line with its gradient, by one step along each axis."""
        return [self._region(line, t, reach) for t, reach in zip(*_middles(kinks, ends), strict=True)]

    def _region(self, line: Line, t: float, reach: float) -> _LineRegion:
        point, aside = self.comparison.representable(line.points([t, t + 0.5 * reach]))
        value, beside = self._ask(np.array([point, aside]))
        length = _STEP * min(reach, _REACH) * float(np.linalg.norm(line.direction))
        steps = np.full(self.offer.dimension, length)
        if self.offer.box is not None:  # step inwards
            steps *= np.where(point > np.mean(self.offer.box), -1.0, 1.0)
        region = _LineRegion(
            t, point, value, reach, (beside - value) / (0.5 * reach), steps, np.zeros((len(value), len(point)))
        )
        self._step(region, np.arange(len(point)))
        return region

    def _step(self, region: _LineRegion, axes: NDArray[np.intp]) -> None:
        """Take these partial derivatives by one step along each axis."""
        moved = np.repeat(region.point[None], len(axes), axis=0)
        moved[np.arange(len(axes)), axes] += region.steps[axes]
        values = self._ask(moved)
        region.jacobian[:, axes] = ((values - region.value) / region.steps[axes, None]).T

    def _untrue(self, line: Line, region: _LineRegion) -> bool:
        """Whether the gradient contradicts the slope along the line: then some step crossed a boundary unnoticed."""
        size = float(np.abs(region.slope).max()) + float(np.linalg.norm(region.jacobian))
        miss = float(np.abs(region.jacobian @ line.direction - region.slope).max())
        return miss > max(1e-6, 1e4 * self.noise.floor) * size

    def _take_again(self, regions: list[_LineRegion], model: Shallow) -> bool:
        """Repeat the steps that crossed a boundary: the other way if that is free, else shorter."""
        again = False
        for region in regions:
            crossed = np.flatnonzero(_crosses(model, region.point, region.steps))
            if not crossed.size:
                continue
            again = True
            back = _crosses(model, region.point, -region.steps)[crossed]
            region.steps[crossed] *= np.where(back, 0.05, -1.0)
            self._step(region, crossed)
        return again

    def _fit(self, regions: list[_LineRegion]) -> None:
        """Fit the biases to the regions' values and to some near the origin.

        A kink far out on the line is found well, but the row that carries it back to the origin loses digits.
        """
        near = self.comparison.fresh(self.settings.points)
        values = self._ask(near)
        known = np.isfinite(values).all(axis=1)
        size = float(np.abs(values[known]).max(initial=0)) or 1.0
        points = np.array([region.point for region in regions])
        lost = np.linalg.norm(points, axis=1) / np.array([np.abs(region.steps).min() for region in regions])
        errors = self.noise.floor * size * (1 + lost)
        typical = np.full(int(known.sum()), float(np.median(errors)) * np.sqrt(len(regions)))
        self.model = self._found.fitted(
            np.concatenate([points, near[known]]),
            np.concatenate([np.array([region.value for region in regions]), values[known]]),
            np.concatenate([errors, typical]),
        )

    # -- results

    def clone(self) -> Network | None:
        if self.other is not None:
            return self.other.clone()
        return None if self.model is None else self.model.network(self.offer, self._tolerance)

    def evidence(self, remark: str) -> Evidence:
        if self.other is not None:
            return self.other.evidence(remark)
        if self.model is None:
            return Evidence(self.noise.floor, remark=remark)
        gap = self.comparison.gap(self.model)
        return Evidence(self.noise.floor, self.spacing, gap, len(self.comparison.points), remark)


def _crosses(model: Shallow, point: Array, steps: Array) -> NDArray[np.bool_]:
    """d: whether the step along each axis crosses a unit's boundary, or comes too close to one to tell."""
    if not model.units:
        return np.zeros(len(steps), dtype=bool)
    pre_activations = model.active(point[None])[0]
    way = model.rows * steps  # m×d: by how much each pre-activation changes
    towards = way * pre_activations[:, None] < 0
    crosses: NDArray[np.bool_] = (towards & (np.abs(way) > _MARGIN * np.abs(pre_activations)[:, None])).any(axis=0)
    return crosses


def _middles(kinks: list[float], ends: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Of every region of a line: a place in it, and the distance to the next kink."""
    low, high = ends
    if not kinks:
        return [(low + high) / 2], [min(1.0, (high - low) / 4)]
    outer = 1 + 0.5 * max(abs(kinks[0]), abs(kinks[-1]), 1.0)
    first, last = max(kinks[0] - outer, (kinks[0] + low) / 2), min(kinks[-1] + outer, (kinks[-1] + high) / 2)
    places = [first, *((a + b) / 2 for a, b in pairwise(kinks)), last]
    return places, [min(abs(t - kink) for kink in kinks) for t in places]
