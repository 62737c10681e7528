"""PaperTwoLayer: Algorithm 1 of Milli et al., "Model Reconstruction from Model Explanations" (2019), step by step.

The target is f(x) = Σ w_i·max(A_i·x, 0) with h units: unit rows, linearly independent, |⟨A_i, A_j⟩| ≤ 1 − c.
Departures from the printed text are listed, with their reasons and tests, in docs/paper.md.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import asinh, pi, sqrt
from typing import Literal

import numpy as np
from scipy.linalg import qr
from scipy.optimize import linprog

from relumine.errors import BudgetError, MisuseError
from relumine.oracle.base import Array, DType, Offer, Oracle
from relumine.oracle.finite_difference import FiniteDifferences, paper_step
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction
from relumine.reconstruct.verification import verified
from relumine.reconstruct.verification.domain import Domain

Bound = Literal["paper", "tight"]

# "‖∇f(x) − ∇f(y)‖ > 0" in floating point: two gradients of one linear region differ by at most this share.
_EQUAL: dict[DType, float] = {"float64": 1e-11, "float32": 1e-5}

# An entry of s this close to −1, 0 or 1 is rounded to it; verification decides whether that was right.
_ROUNDING = 0.25

# Differences that carry more noise than this share of the largest gradient cannot tell linear regions apart.
_TOO_NOISY = 0.3

# The target is homogeneous, so a clone must also agree far from (in a box: close to) the origin, where biases show.


class Failure(Exception):
    """The paper's "throw Failure"; ``PaperTwoLayer`` catches it and returns an outcome."""


@dataclass(frozen=True)
class BinarySearch:
    """The numbers of the binary search: half-length ``l``, resolution ``epsilon``, difference step ``s`` if any."""

    l: float
    epsilon: float
    s: float | None = None

    @classmethod
    def with_gradients(cls, hidden: int, delta: float, separation: float, bound: Bound) -> "BinarySearch":
        """Theorem 2, corrected: one half of δ for kinks beyond ±l, the other for two kinks within ε."""
        half = delta / 2
        l = 2 * hidden / (pi * half)
        if bound == "paper":  # h²·3^{4/3}(ε/c)^{2/3} = δ/2
            return cls(l, separation * half**1.5 / (9 * hidden**3))
        # Over h²/2 pairs, each P(|t_i − t_j| ≤ ε) ≤ ε / (2√(1 − ⟨a, b⟩²)), and 1 − ⟨a, b⟩² ≥ 2c − c².
        return cls(l, 4 * half * sqrt(2 * separation - separation**2) / hidden**2)

    @classmethod
    def with_values(cls, hidden: int, delta: float, separation: float, bound: Bound) -> "BinarySearch":
        """Theorem 3, corrected: the search fails with probability δ/2, some difference is inexact with δ/(2 − δ)."""
        search = cls.with_gradients(hidden, delta / 2, separation, bound)
        l, epsilon = search.l, search.epsilon
        if bound == "paper":
            return cls(l, epsilon, paper_step(delta, epsilon, l, hidden))
        # A grid point at t has ⟨a, x⟩ ~ N(0, 1 + t²), not N(0, 1), so the union over the grid grows with asinh(l)
        # and not with l. The grid's spacing lies between ε/2 and ε.
        inexact = delta / (2 - delta)
        return cls(l, epsilon, inexact / (hidden * sqrt(2 / pi) * (1 + 4 * asinh(l) / epsilon)))


@dataclass(frozen=True)
class PaperTwoLayer:
    """The paper's algorithm: h known, one output, no biases, independent rows (so h ≤ d).

    hidden:     h, the number of units
    delta:      δ, the probability of failure that is accepted; failure is always noticed
    separation: c, such that |⟨A_i, A_j⟩| ≤ 1 − c for any two rows
    bound:      which anti-concentration bound sets the resolution: the "paper"'s, or the "tight" one, which saves
                a third of the queries; None takes the paper's with gradients and the tight one with values
                alone, where the paper's step is below what floating point resolves

    inputs:     the owner's inputs, n×d: their scale is the line's, and a clone must be right there

    An oracle without gradients is asked as in Algorithm 1-MQ: d + 1 values instead of each gradient.
    """

    hidden: int
    delta: float = 0.05
    separation: float = 0.1
    bound: Bound | None = None
    inputs: Array | Domain | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require(self.hidden >= 1, "hidden", "at least 1 unit", self.hidden)
        _require(0 < self.delta < 1, "delta", "a probability strictly between 0 and 1", self.delta)
        _require(0 < self.separation <= 1, "separation", "a number in (0, 1]", self.separation)
        _require(self.bound in ("paper", "tight", None), "bound", "'paper', 'tight' or None", self.bound)

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        """Algorithm 1, ``learnModel``: recover Z, then s; then verify."""
        _check_offer(oracle.offer)
        generator, domain = np.random.default_rng(rng), Domain.of(oracle.offer, self.inputs, centred=False)
        meter = domain.standardised(metered(oracle))
        before = meter.spent
        clone: Network | None = None
        evidence = Evidence()
        try:
            clone, evidence = self._learn_model(meter, generator)
            outcome = Outcome.RECOVERED
        except Failure as failure:
            outcome, evidence = Outcome.SEARCH_FAILED, Evidence(remark=str(failure))
        except BudgetError as error:
            outcome, evidence = Outcome.BUDGET_EXHAUSTED, Evidence(remark=str(error))
        result = Reconstruction(clone, outcome, meter.spent.since(before), evidence, method=repr(self))
        return domain.restored(verified(result, meter, generator, domain))

    def search(self, offer: Offer) -> BinarySearch:
        """l, ε and s for this offer."""
        if offer.gradients == "none":
            return BinarySearch.with_values(self.hidden, self.delta, self.separation, self.bound or "tight")
        return BinarySearch.with_gradients(self.hidden, self.delta, self.separation, self.bound or "paper")

    def _learn_model(self, oracle: Metered, rng: np.random.Generator) -> tuple[Network, Evidence]:
        if self.hidden > oracle.offer.dimension:
            raise Failure(
                f"recover s: {self.hidden} rows of {oracle.offer.dimension} numbers cannot be linearly independent; "
                "use TwoLayer"
            )
        line = GradientLine(oracle, self.search(oracle.offer), rng)
        with oracle.phase("recover Z"):
            kinks = recover_z(line, self.hidden)
        Z = np.array([kink.jump for kink in kinks])
        if line.search.s is not None:
            with oracle.phase("refine Z"):
                Z = refine_z(line, kinks)
        with oracle.phase("recover s"):
            s = recover_s(oracle, Z, rng)
        spacing = min((b.left.t - a.right.t for a, b in pairwise(kinks)), default=None)
        return _network(oracle.offer, Z, s), Evidence(noise_floor=line.noise_floor, smallest_spacing=spacing)


@dataclass(frozen=True, eq=False)
class GradientAt:
    """∇f at u + t·v. ``blur``: how far it may be from the gradient of its linear region, for floating-point reasons."""

    t: float
    gradient: Array
    blur: float

    def differs(self, other: "GradientAt") -> bool:
        """‖∇f(x) − ∇f(y)‖ > 0, in floating point."""
        return float(np.linalg.norm(self.gradient - other.gradient)) > self.blur + other.blur


@dataclass(frozen=True, eq=False)
class KinkInterval:
    """An interval no longer than ε across which the gradient changes."""

    left: GradientAt
    right: GradientAt

    @property
    def jump(self) -> Array:
        """∇f(x_r) − ∇f(x_l) = ± w_i·A_i."""
        return self.right.gradient - self.left.gradient


class GradientLine:
    """The line x(t) = u + t·v with u, v ~ N(0, I), and the target's gradient on it."""

    def __init__(self, oracle: Metered, search: BinarySearch, rng: np.random.Generator) -> None:
        self.search = search
        self.oracle = oracle
        self._u, self._v = rng.standard_normal((2, oracle.offer.dimension))
        self._eps = float(np.finfo(oracle.offer.dtype).eps)
        self._largest = 0.0

    def at(self, t: float) -> Array:
        return np.asarray(self._u + t * self._v)

    def resolution(self, t: float) -> float:
        """ε, or what the target's dtype can tell apart near t if that is more."""
        return max(self.search.epsilon, 16 * self._eps * max(1.0, abs(t)))

    def look(self, t: float) -> GradientAt:
        """∇f(u + t·v): one gradient query, or d + 1 value queries where gradients are not offered."""
        if self.search.s is not None:
            return self.estimate(t, self.search.s)
        point, _ = self._inside(t)
        gradient = self.oracle(point[None], gradients=True).jacobians[0, 0]
        return GradientAt(t, gradient, _EQUAL[self.oracle.offer.dtype] * self._largest_with(gradient))

    def estimate(self, t: float, step: float) -> GradientAt:
        """Algorithm 1-MQ: (f(x + s·e_j) − f(x)) / s for every j."""
        x, scale = self._inside(t)
        gradient = FiniteDifferences(self.oracle, step * scale)(x[None], gradients=True).jacobians[0, 0]
        return GradientAt(t, gradient, self._blur(x / scale, step) * self._largest_with(gradient))

    def safe_step(self, t: float, kinks: list[KinkInterval]) -> float:
        """Half the step along any axis from u + t·v that reaches one of the kinks' hyperplanes."""
        jumps = np.array([kink.jump for kink in kinks])
        # blur is an upper bound: errors are a tenth of it (measured), and across a direction only 1/√d of them counts.
        errors = np.array([kink.left.blur + kink.right.blur for kink in kinks]) / (10 * sqrt(len(self._v)))
        distances = np.array([max(kink.left.t - t, t - kink.right.t, 0.0) for kink in kinks])
        # |Z_i·x| = |t − t_i|·|Z_i·v|: the left side is sure for far kinks, the right side for near ones.
        x = self.at(t)
        far = np.abs(jumps @ x) - errors * np.linalg.norm(x)
        near = distances * (np.abs(jumps @ self._v) - errors * np.linalg.norm(self._v))
        reached = np.maximum(far, near) / np.abs(jumps).max(axis=1)
        return max(float(reached.min()) / 2, self.search.s or 0.0)

    def _inside(self, t: float) -> tuple[Array, float]:
        """u + t·v, scaled into the valid box if need be (a homogeneous f has the same gradient), and the scale."""
        x = self.at(t)
        scale = min(1.0, _half_width(self.oracle.offer) / float(np.abs(x).max()))
        return x * scale, scale

    @property
    def noise_floor(self) -> float:
        """Relative error of a gradient at the line's ends, where it is largest."""
        s = self.search.s
        return _EQUAL[self.oracle.offer.dtype] if s is None else self._blur(self.search.l * self._v, s)

    def _blur(self, x: Array, step: float) -> float:
        # A value is a sum of products with x: it is known to about ε_dtype·‖x‖·‖∇f‖.
        return 2 * sqrt(len(x)) * self._eps * float(np.linalg.norm(x)) / step

    def _largest_with(self, gradient: Array) -> float:
        self._largest = max(self._largest, float(np.linalg.norm(gradient)))
        return self._largest


def recover_z(line: GradientLine, hidden: int) -> list[KinkInterval]:
    """Algorithm 1a, ``recoverZ``: the h kinks of f on the line from left to right; their jumps are the rows of Z."""
    if line.noise_floor > _TOO_NOISY:
        raise Failure(
            f"recover Z: the theorem's step s = {line.search.s:.1g} is too small for floating point, differences "
            f"are uncertain by {line.noise_floor:.0%}; use bound='tight', a larger delta, or TwoLayerFromValues"
        )
    left, right = line.look(-line.search.l), line.look(line.search.l)
    kinks: list[KinkInterval] = []
    for i in range(hidden):
        try:
            kinks.append(binary_search(line, left, right))
        except Failure as failure:
            raise Failure(
                f"recover Z: {i} of {hidden} kinks found, then {failure}: there are fewer units, or two kinks closer "
                f"than ε = {line.search.epsilon:.1g}, or one beyond ±l = {line.search.l:.0f}"
            ) from None
        left = kinks[-1].right
        line.oracle.found(len(kinks))
    if left.differs(right):
        inexact = "" if line.search.s is None else ", or a difference was taken across a kink"
        raise Failure(f"recover Z: more than {hidden} kinks: there are more than {hidden} units{inexact}")
    return kinks


def binary_search(line: GradientLine, left: GradientAt, right: GradientAt) -> KinkInterval:
    """Algorithm 1a, ``binarySearch``: the first kink right of ``left``, with one new gradient per round."""
    while right.t - left.t > line.resolution(max(abs(left.t), abs(right.t))):
        middle = line.look((left.t + right.t) / 2)
        if left.differs(middle):
            right = middle
        elif middle.differs(right):
            left = middle
        else:
            raise Failure("no change of gradient further right")
    if not left.differs(right):
        raise Failure("no change of gradient further right")
    return KinkInterval(left, right)


def refine_z(line: GradientLine, kinks: list[KinkInterval]) -> Array:
    """Z again, from one better estimate of the gradient per linear region of the line.

    Algorithm 1-MQ takes one step s for all x, small enough for x close to a kink, and pays in rounding errors. Now
    that Z tells how far every kink is, each region gets the largest step that stays well inside it.
    """
    first, last = kinks[0].left.t, kinks[-1].right.t
    inner = [(a.right.t + b.left.t) / 2 for a, b in pairwise(kinks)]
    ts = (first - 1 - abs(first), *inner, last + 1 + abs(last))
    gradients = np.array([line.estimate(t, line.safe_step(t, kinks)).gradient for t in ts])
    return np.asarray(np.diff(gradients, axis=0))


def recover_s(oracle: Metered, Z: Array, rng: np.random.Generator) -> Array:
    """Algorithm 1b, ``recoverS``: s ∈ {−1, 0, 1}^2h with f(x) = [max(Zx, 0), max(−Zx, 0)]·s, from 2h values."""
    X = pick_x(Z, rng) * min(1.0, _half_width(oracle.offer))
    on, off = np.maximum(Z @ X, 0).T, np.maximum(-Z @ X, 0).T
    M = np.block([[on, off], [off, on]])
    values = oracle(np.hstack([X, -X]).T, gradients=False).values[:, 0]
    solved = np.linalg.solve(M, values)
    s = np.asarray(np.round(solved), dtype=np.float64)
    # A unit is max(z·x, 0) or max(−z·x, 0), with sign + or −, and never both.
    is_unit = np.abs(s[: len(Z)]) + np.abs(s[len(Z) :]) == 1
    if np.abs(solved - s).max() > _ROUNDING or not is_unit.all():
        raise Failure(
            f"recover s: {(~is_unit).sum()} of {len(Z)} units have no sign, s is {np.abs(solved - s).max():.2g} away "
            "from whole numbers: Z misses a unit or joins two, or the target has biases"
        )
    return s


def pick_x(Z: Array, rng: np.random.Generator) -> Array:
    """Appendix B: X (d×h) with all columns in one linear region and Rank(ZX) = h."""
    hidden, dimension = Z.shape
    centre, radius = chebyshev_centre(Z, np.sign(Z @ rng.standard_normal(dimension)))
    Y = centre[:, None] + radius / 2 * np.eye(dimension)
    R, chosen = qr(Z @ Y, mode="r", pivoting=True)
    sizes = np.abs(np.diag(R))
    if radius <= 0 or sizes[-1] <= dimension * np.finfo(np.float64).eps * sizes[0]:
        raise Failure("recover s: the rows of Z are linearly dependent; use TwoLayer")
    return np.asarray(Y[:, chosen[:hidden]])


def chebyshev_centre(Z: Array, signs: Array) -> tuple[Array, float]:
    """Appendix B: centre and radius of the largest ball in the linear region {sgn(Zx) = signs} within [−1, 1]^d."""
    hidden, dimension = Z.shape
    # sgn_i·z_i·y ≥ r·‖z_i‖ and −1 + r ≤ y_j ≤ 1 − r, as rows ·(y, r) ≤ bounds; maximise r.
    cell = np.hstack([-signs[:, None] * Z / np.linalg.norm(Z, axis=1, keepdims=True), np.ones((hidden, 1))])
    ones, identity = np.ones((dimension, 1)), np.eye(dimension)
    rows = np.vstack([cell, np.hstack([identity, ones]), np.hstack([-identity, ones])])
    bounds = np.concatenate([np.zeros(hidden), np.ones(2 * dimension)])
    answer = linprog(np.append(np.zeros(dimension), -1.0), rows, bounds, bounds=(None, None), method="highs")
    if not answer.success:
        raise Failure(f"recover s: no Chebyshev centre was found: {answer.message}")
    return np.asarray(answer.x[:-1]), float(answer.x[-1])


def _network(offer: Offer, Z: Array, s: Array) -> Network:
    """f(x) = Σ s_i·max(±Z_i·x, 0) as a plain network of h units."""
    positive, negative = s[: len(Z)], s[len(Z) :]
    rows = np.where(positive[:, None] != 0, Z, -Z)
    return Network(
        weights=(rows, (positive + negative)[None]),
        biases=(np.zeros(len(Z)), np.zeros(1)),
        inputs=offer.inputs,
        values=offer.values,
    )


def _half_width(offer: Offer) -> float:
    """How far from the origin every coordinate may go."""
    return np.inf if offer.box is None else min(-offer.box[0], offer.box[1])


def _check_offer(offer: Offer) -> None:
    what = "PaperTwoLayer: expected an oracle with "
    if offer.outputs != 1:
        raise MisuseError(f"{what}one output, got {offer.outputs}; use TwoLayer")
    if offer.values not in ("real", "logits"):
        raise MisuseError(f"{what}real values or logits, got {offer.values!r}; use TwoLayer")
    if _half_width(offer) <= 0:
        raise MisuseError(f"{what}a box around the origin, got {offer.box}; use TwoLayer")


def _require(holds: bool, field: str, expected: str, got: object) -> None:
    if not holds:
        raise MisuseError(f"PaperTwoLayer.{field}: expected {expected}, got {got!r}")
