"""Which activation it is: each unit's slope against its projection, fitted by every known activation.

With the direction â of a unit known, G[n] = s·σ'(α·(â·x_n) + β) + o is a curve through points in the plane. o is 0
where Jacobians themselves were decomposed, and whatever the unit's slope was at the base where differences were.
"""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.activation import Activation

# Smooth ones. sigmoid(z) = (1 + tanh(z/2))/2, so both make the same networks, and the answers cannot tell them apart.
CANDIDATES = ("tanh", "gelu", "gelu_tanh", "silu", "softplus", "elu")

# The grid of starts, in units of the projections' standard deviation: slopes from nearly straight to nearly a step,
# and centres from left of all points to right of them.
_SCALES = np.geomspace(0.1, 30, 14)
_CENTRES = np.linspace(-4, 4, 25)
# The best places of the grid that are refined, and by how many Levenberg–Marquardt steps.
_STARTS = 12
_STEPS = 60


@dataclass(frozen=True, eq=False)
class Shapes:
    """Per unit s, α, β, o, and the length of what the curve misses relative to that of what it fits."""

    activation: Activation
    factors: Array
    scales: Array
    shifts: Array
    offsets: Array
    misfits: Array


def shapes_of(projections: Array, slopes: Array, activation: Activation, offset: bool = False) -> Shapes:
    """The best curve of this activation for every unit; both arrays are N×m."""
    middle, spread = projections.mean(axis=0), projections.std(axis=0) + 1e-300
    t = ((projections - middle) / spread).T
    sizes = np.linalg.norm(slopes, axis=0) + 1e-300
    y = (slopes / sizes).T
    best = _refined(t, y, _starts(t, y, activation, offset), activation, offset)
    s, scale, shift, o, misfit = best
    return Shapes(activation, s * sizes, scale / spread, shift - scale * middle / spread, o * sizes, misfit)


def _starts(t: Array, y: Array, activation: Activation, offset: bool) -> Array:
    """m×starts×2: the (α, β) of the grid whose curves are most like the points."""
    signs = (1.0,) if activation.name == "tanh" else (1.0, -1.0)
    grid = np.array([(sign * a, -sign * a * c) for sign in signs for a in _SCALES for c in _CENTRES])
    chosen = np.empty((len(t), _STARTS, 2))
    for i in range(len(t)):
        curves = activation.derivative(grid[:, :1] * t[i] + grid[:, 1:])
        wanted = y[i]
        if offset:
            curves, wanted = curves - curves.mean(axis=1, keepdims=True), wanted - wanted.mean()
        like = (curves @ wanted) ** 2 / ((curves * curves).sum(axis=1) + 1e-30)
        chosen[i] = grid[np.argsort(-like)[:_STARTS]]
    return chosen


def _refined(
    t: Array, y: Array, starts: Array, activation: Activation, offset: bool
) -> tuple[Array, Array, Array, Array, Array]:
    """Levenberg–Marquardt in (α, β), with s and o solved for: per unit the best of its starts."""
    m, count, _ = starts.shape
    t, y = np.repeat(t, count, axis=0), np.repeat(y, count, axis=0)
    nonlinear = starts.reshape(m * count, 2)
    damping = np.full(m * count, 1e-2)
    linear, missed = _solved(t, y, nonlinear, activation, offset)
    for _ in range(_STEPS):
        trial = nonlinear + _step(t, y, nonlinear, linear, missed, damping, activation, offset)
        its_linear, its_missed = _solved(t, y, trial, activation, offset)
        better = (its_missed**2).sum(axis=1) < (missed**2).sum(axis=1)
        nonlinear, linear = np.where(better[:, None], trial, nonlinear), np.where(better[:, None], its_linear, linear)
        missed = np.where(better[:, None], its_missed, missed)
        damping = np.clip(np.where(better, 0.1 * damping, 10 * damping), 1e-15, 1e6)
    misfits = np.linalg.norm(missed, axis=1).reshape(m, count)
    at = np.arange(m) * count + misfits.argmin(axis=1)
    return linear[at, 0], nonlinear[at, 0], nonlinear[at, 1], linear[at, 1], misfits.min(axis=1)


def _solved(t: Array, y: Array, nonlinear: Array, activation: Activation, offset: bool) -> tuple[Array, Array]:
    """The best s and o for given α and β, and what they miss."""
    curve = activation.derivative(nonlinear[:, :1] * t + nonlinear[:, 1:])
    middle = curve.mean(axis=1, keepdims=True) if offset else 0.0
    wanted = y - y.mean(axis=1, keepdims=True) if offset else y
    s = ((curve - middle) * wanted).sum(axis=1) / (((curve - middle) ** 2).sum(axis=1) + 1e-30)
    o = (y - s[:, None] * curve).mean(axis=1) if offset else np.zeros(len(t))
    return np.stack([s, o], axis=1), y - s[:, None] * curve - o[:, None]


def _step(
    t: Array,
    y: Array,
    nonlinear: Array,
    linear: Array,
    missed: Array,
    damping: Array,
    activation: Activation,
    offset: bool,
) -> Array:
    """The step of all parameters together, of which α's and β's part is taken."""
    z = nonlinear[:, :1] * t + nonlinear[:, 1:]
    bend = linear[:, :1] * activation.curvature(z)
    columns = [bend * t, bend, activation.derivative(z), *([np.ones_like(t)] if offset else [])]
    system = np.stack(columns, axis=2)
    gram = system.transpose(0, 2, 1) @ system
    diagonal = np.einsum("mii->mi", gram)
    # Slopes that are all alike, as of units that are saturated at every point, leave it singular up to rounding.
    least = np.maximum(damping, 1e3 * np.finfo(np.float64).eps)
    gram = gram + np.einsum("mi,ij->mij", least[:, None] * diagonal + 1e-30, np.eye(gram.shape[1]))
    step = np.linalg.solve(gram, (system.transpose(0, 2, 1) @ missed[:, :, None]))[:, :2, 0]
    # A step across the whole grid follows a curve that is flat at the points.
    result: Array = step / np.maximum(1, np.abs(step) / 5)
    return result
