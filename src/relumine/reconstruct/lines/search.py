"""The search for kinks on one line x(t) = u + t·v, by meeting tangents instead of bisecting (cf. Algorithm 1a).

Each answered point shows the affine piece of its cell. Where two neighbouring answers show different pieces, there is
a gap with at least one kink in it. If it is one kink, it lies where the two pieces meet, to machine precision: no ε,
no resolution. Whether it is one is decided without further queries when there are two or more independent outputs
(the jump has rank one), and by weighing the odds when there are not.
"""

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log, sqrt
from statistics import median

import numpy as np

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.lines.shallow import rank_one
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop

# One output: a gap that holds several kinks with at least this probability is asked a gradient beside its supposed one;
# where it is less a value is asked, and below the second none. Simulated: 0.35 and 0.16 take 1.43 gradients and 0.38
# values per unit and leave 6.5 % of the gaps wrong, 0.5 and 0.16 take 1.32 and 0.59.
_ASKED = 0.35
DOUBTED = 0.16

# Density of kinks is estimated from this many gaps on either side.
_NEIGHBOURS = 8
# A gap may hold several kinks: how many are expected follows from the density, and this from how many are expected.
_TURNS = 2

# Where half of the gaps are unresolved after this many answers, one of them is halved up to _HALVINGS times: a gap
# between 100 answers holds 2^12 kinks of no network that fits a computer.
_DOUBT = 100
_HALVINGS = 12


@dataclass(frozen=True, eq=False)
class Sight:
    """An answered point: where on the line, the piece f(x(t)) = intercept + t·slope seen there, and its error."""

    t: float
    jacobian: Array
    slope: Array
    intercept: Array
    error: float


@dataclass(frozen=True, eq=False)
class Kink:
    """The boundary of one unit: crossing it along v, the Jacobian jumps by ``output`` ⊗ ``row``."""

    t: float
    output: Array
    row: Array
    bias: float


@dataclass(frozen=True, eq=False)
class Line:
    """x(t) = start + t·direction."""

    start: Array
    direction: Array

    def points(self, t: Iterable[float]) -> Array:
        """n×d: the points at these t."""
        result: Array = self.start + np.asarray(list(t), dtype=np.float64)[:, None] * self.direction
        return result

    def within(self, box: tuple[float, float] | None) -> tuple[float, float]:
        """The lowest and highest t inside the box."""
        if box is None:
            return -np.inf, np.inf
        moves = self.direction != 0  # along an edge of the box some coordinates stay
        hits = (np.array(box)[:, None] - self.start[moves]) / self.direction[moves]
        return float(hits.min(axis=0).max()), float(hits.max(axis=0).min())

    def sights(self, t: list[float], points: Array, answer: Answer, noise: Noise) -> list[Sight]:
        """What the answers at ``points`` show; these are x(t), rounded to what the target can represent."""
        slopes = answer.jacobians @ self.direction
        starts = answer.values + (answer.jacobians @ (self.start - points)[:, :, None])[:, :, 0]
        errors = piece_errors(answer.jacobians, points, noise)
        return [Sight(t[i], answer.jacobians[i], slopes[i], starts[i], float(errors[i])) for i in range(len(t))]


def piece_errors(jacobians: Array, points: Array, noise: Noise) -> Array:
    """n: the expected error of f(x) − Jx, from the rounding of f and of J."""
    distance = np.linalg.norm(points, axis=1)
    sizes = np.array([_length(jacobian) for jacobian in jacobians])
    # For a random x, |J||x| overstates |Jx| by √d. Sums over units round a few times more than one product.
    typical = sizes * distance / np.sqrt(points.shape[1])
    result: Array = 8 * noise.relative * typical + 2 * noise.absolute * (1 + distance)
    return result


def _length(numbers: Array) -> float:
    """√ of the sum of squares; many are taken, and numpy.linalg.norm takes several times as long."""
    return sqrt(np.vdot(numbers, numbers))


class Gap:
    """Two neighbouring sights with different pieces, and what follows from them alone.

    t: where the pieces meet; inside: whether that is between the two sights; error: how exactly it is known
    steepness: by how much the slopes differ, squared
    """

    def __init__(self, left: Sight, right: Sight, tolerance: float) -> None:
        self.left, self.right, self.tolerance = left, right, tolerance
        self._kinks: list[Kink] | None = None
        self.passed: set[int] = set()  # -1, 1: a value beside the kink, left or right of it, lies on the piece there
        self.slope = right.slope - left.slope
        self.intercept = right.intercept - left.intercept
        self.steepness = steepness = float(self.slope @ self.slope)
        meeting = float(-(self.slope @ self.intercept) / steepness) if steepness > 0 else np.nan
        self.error = (left.error + right.error) / sqrt(steepness) if steepness > 0 else 0.0
        self.inside = left.t < meeting < right.t
        # In a narrow gap noise moves the meeting out of it.
        self._nearly_inside = left.t - self.error < meeting < right.t + self.error
        self.t = min(max(meeting, left.t), right.t) if self._nearly_inside else meeting

    @property
    def jump(self) -> Array:
        """By how much the Jacobian changes. It is large, and seldom needed again: so it is not kept."""
        return self.right.jacobian - self.left.jacobian

    @cached_property
    def _part(self) -> tuple[Array, Array, bool]:
        """The jump as output ⊗ row, as far as it is that, and whether it is."""
        jump = self.jump
        output, row = rank_one(jump, self.slope if self.steepness > 0 else None)
        jump -= np.outer(output, row)
        return output, row, _length(jump) <= self.tolerance

    @property
    def output(self) -> Array:
        """By how much each output's slope jumps, in units of ``row``."""
        return self._part[0]

    @property
    def row(self) -> Array:
        """The direction in which slopes jump."""
        return self._part[1]

    @property
    def rank_one(self) -> bool:
        """Whether the jump is ``output`` ⊗ ``row`` and nothing else."""
        return self._part[2]

    @cached_property
    def single(self) -> bool:
        """Whether all outputs say: one kink, here. What is quickly seen comes first."""
        miss = _length(self.intercept + self.t * self.slope)
        allowed = 4 * (self.left.error + self.right.error) + self.tolerance * abs(self.t)
        return self._nearly_inside and miss <= allowed and self.rank_one

    @cached_property
    def parallel(self) -> bool:
        """Whether all gradients on both sides are multiples of one: then any jump has rank one, of however many kinks.

        In a deep network that is so wherever a single unit of the last hidden layer is on.
        """
        output = self.output / (_length(self.output) or 1.0)
        rest = self.left.jacobian - np.outer(output, output @ self.left.jacobian)
        return _length(rest) <= self.tolerance

    @cached_property
    def crossing(self) -> float:
        """Where to ask next if there are several kinks.

        Each output's pieces meet at an average of the kinks, weighted by its own slopes there. It lies among the
        kinks when these have one sign; when not, it lies outside on either side. So the median over the outputs lies
        among them nearly always, and the answer there shows a cell not seen before.
        """
        pieces = zip(self.slope.tolist(), self.intercept.tolist(), strict=True)
        meetings = [-intercept / slope for slope, intercept in pieces if slope != 0]
        inside = [t for t in meetings if self.left.t < t < self.right.t]
        return float(median(inside)) if inside else self.middle

    @cached_property
    def middle(self) -> float:
        """Half way, as kinks are spread: t is Cauchy distributed, arctan t uniformly."""
        if self.right.t - self.left.t < 1e-6 * (1 + abs(self.left.t)):
            # It is just the mean, and arctan has lost too many digits far out: it would name an end again and again.
            return (self.left.t + self.right.t) / 2
        return float(np.tan((np.arctan(self.left.t) + np.arctan(self.right.t)) / 2))

    @cached_property
    def step(self) -> float:
        """How far from the kink a point surely lies on its other side."""
        return 3 * self.error + 1e-11 * (1 + abs(self.t))

    @cached_property
    def left_clear(self) -> bool:
        """Whether nothing fits between the left sight and the kink."""
        return self.t - self.left.t <= 2 * self.step

    @cached_property
    def right_clear(self) -> bool:
        """Whether nothing fits between the kink and the right sight."""
        return self.right.t - self.t <= 2 * self.step

    def doubts(self, density: float, typical: float) -> tuple[float, float, float]:
        """The odds that it is two kinks: on either side of where the pieces meet, both on the left, both on the right.

        Kinks are a Poisson process along arctan t, and the slope's jump there is the product of two normal numbers, an
        output weight and a row's part along the line, with the density f. Two kinks at distances p and q on either side
        have the odds f(D₁)f(D₂)/(f(D)(p + q)) per unit of p and q, D₁p = D₂q; two on one side the same with p − q. The
        integral of 1/(p + q) is an entropy; the mean of the rest, relative to the typical jump, is 0.75·D^0.68 and
        0.3·D/(D + 0.2), fitted to numerical integrals for D from 0.02 to 5.
        """
        left = 0.0 if self.left_clear or -1 in self.passed else density * (np.arctan(self.t) - np.arctan(self.left.t))
        right = 0.0 if self.right_clear or 1 in self.passed else density * (np.arctan(self.right.t) - np.arctan(self.t))
        jump = sqrt(self.steepness / typical)
        either = _entropy(left + right) - _entropy(left) - _entropy(right)
        both = 0.75 * jump**0.68 * either
        aside = 0.3 * jump / (jump + 0.2)
        return both, aside * left, aside * right

    def kinks(self, line: Line) -> list[Kink]:
        """The kink; or, where several cannot be told apart, one per independent part of the jump."""
        if self._kinks is None:
            self._kinks = self._parts(line)
        return self._kinks

    def _parts(self, line: Line) -> list[Kink]:
        if self.rank_one:
            return [kink_of(line, self.output, self.row, self.t)]
        outputs, sizes, rows = np.linalg.svd(self.jump, full_matrices=False)
        parts = [i for i, size in enumerate(sizes) if size > self.tolerance]
        middle = (self.left.t + self.right.t) / 2
        return [kink_of(line, outputs[:, i] * sizes[i], rows[i], middle) for i in parts]


def _entropy(x: float) -> float:
    return x * log(x) if x > 0 else 0.0


def kink_of(line: Line, output: Array, row: Array, t: float) -> Kink:
    """The unit with this jump, its row of length one and rising along the line."""
    length = _length(row) * np.copysign(1.0, row @ line.direction)
    output, row = output * length, row / length
    return Kink(t, output, row, float(-(row @ line.start) - t * (row @ line.direction)))


@dataclass(frozen=True, eq=False)
class Claim:
    """At t, just left (−1) or right (1) of a gap's kink, the value lies on the piece that was seen on that side."""

    gap: Gap
    side: int
    t: float

    def holds(self, value: Array, moved: Array) -> bool:
        """Whether it does; where rounding moved the point, the piece moves with it."""
        sight = self.gap.left if self.side < 0 else self.gap.right
        expected = sight.intercept + self.t * sight.slope + sight.jacobian @ moved
        return bool(np.abs(value - expected).max() <= 4 * (self.gap.left.error + self.gap.right.error))


class LineSearch:
    """Finds the kinks of a piecewise-linear function on a line, asking where it learns most.

    ``independent``: the outputs are independent, so that rank one means one kink; else odds are weighed.
    ``certain``: no odds are weighed; every kink that rank one does not prove is proven by an answer on either side.
    ``settled``: the odds were weighed; from now on a gap counts as one kink unless it shows that it is not.
    """

    def __init__(
        self, line: Line, sights: list[Sight], noise: Noise, *, independent: bool, certain: bool = False
    ) -> None:
        self.line = line
        self.noise = noise
        self.independent = independent
        self.certain = certain
        self.settled = False
        self._doubt = _DOUBT
        self._probe: tuple[float, float, int] | None = None  # the gap that is halved, and how often it was
        self.sights: list[Sight] = []
        self.gaps: list[Gap] = []  # where neighbouring answers show different pieces, in order
        self._kinks: list[Kink] | None = None
        self._largest = 0.0
        self.tolerance = 0.0  # Jacobians that differ by less are equal
        self._stride = _length(line.direction)
        self.add(sights)

    def add(self, sights: list[Sight]) -> None:
        """Take note of further answers; gaps that they do not touch stay the same objects."""
        self._largest = max(self._largest, *(_length(sight.jacobian) for sight in sights))
        self._kinks = None
        self.tolerance = self.noise.of(self._largest, sights[0].jacobian.size)
        for sight in sights:
            i = bisect(self.sights, sight.t, key=lambda known: known.t)
            self.sights.insert(i, sight)
            j = bisect(self.gaps, sight.t, key=lambda gap: gap.left.t)
            if j and self.gaps[j - 1].right.t > sight.t:
                j -= 1
                del self.gaps[j]
            pairs = pairwise(self.sights[max(0, i - 1) : i + 2])
            self.gaps[j:j] = [gap for gap in (self._gap(*pair) for pair in pairs) if gap is not None]

    def _gap(self, left: Sight, right: Sight) -> Gap | None:
        gap = Gap(left, right, self.tolerance)
        # Slopes that differ by more than those of equal Jacobians may spare a look at the Jacobians.
        differ = gap.steepness > (self.tolerance * self._stride) ** 2 or _length(gap.jump) > self.tolerance
        return gap if differ else None

    def gap_at(self, t: float) -> Gap | None:
        """The gap around t."""
        i = bisect(self.gaps, t, key=lambda gap: gap.left.t) - 1
        return self.gaps[i] if i >= 0 and self.gaps[i].left.t < t < self.gaps[i].right.t else None

    @property
    def ends(self) -> tuple[float, float]:
        """The outermost points asked."""
        return self.sights[0].t, self.sights[-1].t

    def questions(self) -> list[float]:
        """The next points to ask, one per unresolved gap; none when all gaps are settled."""
        wanted = self._wanted()
        if self._probe is None and (len(self.sights) < self._doubt or 2 * len(wanted) < len(self.gaps) or not wanted):
            return wanted
        return self._depth_first() or wanted

    def _depth_first(self) -> list[float]:
        """Halve one gap until a half shows no change: soon if the function is piecewise linear, never if it is smooth.

        The gap that bends most for its width: where a smooth function hardly bends, a half may show no change either.
        Asked breadth first, a smooth function doubles the number of questions with every round.
        """
        low, high, halvings = self._probe or (-np.inf, np.inf, 0)
        inside = [gap for gap in self.gaps if low <= gap.left.t and gap.right.t <= high]
        sharpest = max(inside, key=lambda gap: gap.steepness / (gap.right.t - gap.left.t) ** 2, default=None)
        if sharpest is None or len(inside) == 1 or self.closed(sharpest):
            self._probe, self._doubt = None, 4 * len(self.sights)
            return []
        if halvings > _HALVINGS:
            raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"a stretch of a line halved {_HALVINGS} times bends everywhere")
        self._probe = sharpest.left.t, sharpest.right.t, halvings + 1
        return [sharpest.middle]

    def _wanted(self) -> list[float]:
        gaps = self.gaps
        if self.certain:
            return [t for t in map(self._unproven, gaps) if t is not None]
        if self.independent:
            return [gap.crossing for gap in gaps if not gap.single and not self.closed(gap)]
        if self.settled:
            return [gap.middle for gap in gaps if not (gap.rank_one and gap.inside) and not self.closed(gap)]
        odds = (self._odds(gap, density) for gap, density in zip(gaps, _densities(gaps, self._typical), strict=True))
        return [t for t in odds if t is not None]

    def resolution(self, gap: Gap) -> float:
        """Points of the line closer than this are the same to the target."""
        return 8 * self.noise.relative * (1 + abs(gap.left.t))

    def closed(self, gap: Gap) -> bool:
        """Whether no further point fits between the two sights."""
        return gap.right.t - gap.left.t <= 4 * self.resolution(gap)

    def _odds(self, gap: Gap, density: float) -> float | None:
        """Where to ask in a gap of a single output, or None if it may count as one kink."""
        if self.closed(gap):
            return None
        if not gap.rank_one or not gap.inside:
            return gap.middle
        odds = sum(gap.doubts(density, self._typical))
        return self.proof(gap) if odds > _ASKED * (1 + odds) else None

    @property
    def _typical(self) -> float:
        """The squared length of a jump of slopes."""
        return float(np.mean([gap.steepness for gap in self.gaps] or [1.0]))

    def _unproven(self, gap: Gap) -> float | None:
        """Where to ask in a gap until it is proven to be one kink."""
        if self.closed(gap):
            return None
        if self.independent and not gap.parallel:
            return None if gap.single else gap.crossing
        return self.proof(gap) if gap.rank_one and gap.inside else gap.middle

    def proof(self, gap: Gap) -> float | None:
        """A point just beyond the kink, on the side that may hide more: it clears all of that side."""
        if gap.left_clear and gap.right_clear:
            return None
        left = 0.0 if -1 in gap.passed else np.arctan(gap.t) - np.arctan(gap.left.t)
        right = 0.0 if 1 in gap.passed else np.arctan(gap.right.t) - np.arctan(gap.t)
        to_the_right = gap.left_clear or (right > left and not gap.right_clear)
        t = gap.t + gap.step if to_the_right else gap.t - gap.step
        return float(np.clip(t, gap.left.t, gap.right.t))

    def claims(self, least: float) -> list["Claim"]:
        """What must hold if gaps are one kink: one claim per gap that it disproves with this probability at least."""
        made = []
        for gap, density in zip(self.gaps, _densities(self.gaps, self._typical), strict=True):
            if not (gap.rank_one and gap.inside):
                continue
            both, left, right = gap.doubts(density, self._typical)
            step = max(8 * gap.error, 1e-7 * (1 + abs(gap.t)))
            room = {-1: gap.t - gap.left.t, 1: gap.right.t - gap.t}
            sides = [side for side in (-1, 1) if side not in gap.passed and room[side] > 2 * step]
            doubt = {-1: left, 1: right}
            side = max(sides, key=lambda side: doubt[side], default=0)
            if side and both + doubt[side] >= least * (1 + both + left + right):
                made.append(Claim(gap, side, gap.t + side * step))
        return made

    def kinks(self) -> list[Kink]:
        """What the sights show, in order along the line."""
        if self._kinks is None:
            self._kinks = [kink for gap in self.gaps for kink in gap.kinks(self.line)]
        return self._kinks


def _densities(gaps: list[Gap], typical: float) -> list[float]:
    """For each gap the expected number of kinks per unit of arctan t, from the gaps around it."""
    starts = np.arctan([gap.left.t for gap in gaps])
    stops = np.arctan([gap.right.t for gap in gaps])
    low = np.maximum(0, np.arange(len(gaps)) - _NEIGHBOURS)
    high = np.minimum(len(gaps) - 1, np.arange(len(gaps)) + _NEIGHBOURS)
    kinks = np.ones(len(gaps))
    for _ in range(_TURNS):
        total = np.concatenate([[0.0], np.cumsum(kinks)])
        densities = (total[high + 1] - total[low]) / (stops[high] - starts[low])
        odds = np.array([sum(gap.doubts(each, typical)) for gap, each in zip(gaps, densities, strict=True)])
        kinks = 1 + np.where([gap.rank_one and gap.inside for gap in gaps], odds / (1 + odds), 1.0)
    return [float(density) for density in densities]
