"""Crossings: units told apart far from the origin, where a line crosses the boundary of one while all others saturate.

Far out, a smooth unit changes only in a thin layer around its hyperplane, and hyperplanes are far apart: on a long line
each unit is met alone, h > d and K = 1 notwithstanding. There the Jacobian changes by v·(σ'(z) − const)·aᵀ, which shows
v, a, and from its course along the line the scale, the bias and the activation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Array, DType
from relumine.reconstruct.activation import Activation
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.shape import CANDIDATES, Shapes, shapes_of

# How far out lines pass: far enough to part some hundred units, and near enough to leave 1e-10 of a pre-activation to
# rounding (float32: a thousandth part, for some dozen units).
_FAR = {"float64": 1e5, "float32": 300.0}
# A unit is crossed farther along than this many times the distance with probability 2e-3; another line shows it.
_LONG = 300.0
_FIRST = 65
# Neighbours differ if they do by more than this part of the largest answer, or this many times the noise.
_SAME = 1e-9
_NOISE_MARGIN = 100.0
# A crossing is resolved when no step takes more than this part of its change, or misses more of it by trapezoids.
_STEP = 0.3
_TRAPEZOID = 0.03
_MOST_ROUNDS = 60
# After this many answers most steps of a line lie between crossings, unless answers are noise: then nearly all bend.
_MANY = 500
_EVERYWHERE = 0.9
# One unit alone: its Jacobians are multiples of one matrix up to this. Tails of neighbours leave the rest.
_ALONE = 1e-4
# Curves that miss no more than this are of the right activation.
_FITS = 1e-2


@dataclass(frozen=True, eq=False)
class CrossedUnits:
    """m units: ``rows`` m×d, ``biases`` m, ``outputs`` K×m, and their activation."""

    rows: Array
    biases: Array
    outputs: Array
    activation: Activation

    def and_(self, new: "CrossedUnits") -> "CrossedUnits":
        """These and further ones behind them."""
        return CrossedUnits(
            np.concatenate([self.rows, new.rows]),
            np.concatenate([self.biases, new.biases]),
            np.concatenate([self.outputs, new.outputs], axis=1),
            self.activation,
        )

    def answers(self, points: Array) -> tuple[Array, Array]:
        """What they contribute to values (n×K) and Jacobians (n×K×d)."""
        z = points @ self.rows.T + self.biases
        slopes = self.activation.derivative(z)
        jacobians = np.einsum("kh,nh,hd->nkd", self.outputs, slopes, self.rows, optimize=True)
        return self.activation(z) @ self.outputs.T, jacobians

    def turned(self, skip: Array) -> tuple["CrossedUnits", Array]:
        """Turned around where that makes the linear part smaller, and what is left of it.

        For GELU, SiLU and softplus σ(z) = σ(−z) + z, so a unit turned around leaves v·aᵀ, and a line cannot tell
        which way a unit was: those to turn solve skip = −Σ c_i v_i a_iᵀ with c_i of 0 or 1.
        """
        if self.activation.name not in ("gelu", "gelu_tanh", "silu", "softplus") or len(self.rows) > skip.size:
            return self, skip
        parts = np.einsum("kh,hd->kdh", self.outputs, self.rows).reshape(skip.size, -1)
        turn = np.linalg.lstsq(parts, -skip.ravel(), rcond=None)[0] > 0.5
        sign = np.where(turn, -1.0, 1.0)
        left = skip + (parts @ turn).reshape(skip.shape)
        if np.abs(left).max() > 1e-3 * np.abs(skip).max():
            return self, skip
        return CrossedUnits(self.rows * sign[:, None], self.biases * sign, self.outputs, self.activation), left


@dataclass(frozen=True, eq=False)
class FarLine:
    """x = start + t·direction, at a distance of about ``far`` from where the units' boundaries meet."""

    start: Array
    direction: Array
    far: float

    def points(self, t: Array) -> Array:
        """n×d."""
        return self.start + t[:, None] * self.direction


def far_line(centre: Array, scale: Array, dtype: DType, rng: np.random.Generator) -> FarLine:
    """A line that passes the centre at a great distance; ``scale`` is the size of each coordinate."""
    away, along = rng.standard_normal((2, len(centre)))
    return FarLine(centre + _FAR[dtype] * scale * away, scale * along, _FAR[dtype])


class Crossings:
    """What was answered along a line, less what known units explain, refined where it changes."""

    def __init__(
        self,
        line: FarLine,
        ask: Callable[[Array], Answer],
        known: Callable[[Array], tuple[Array, Array]],
        noise: Noise,
    ) -> None:
        self._line, self._ask, self._known = line, ask, known
        self._same = max(_SAME, _NOISE_MARGIN * noise.floor)
        self._rounding = _NOISE_MARGIN * noise.relative
        self.t = np.empty(0)
        self.values: Array = np.empty((0, 0))
        self.jacobians: Array = np.empty((0, 0, 0))
        self._add(np.sinh(np.linspace(-1, 1, _FIRST) * np.arcsinh(100 * _LONG)) * line.far / 100)
        for _ in range(_MOST_ROUNDS):
            split = self._unresolved()
            if not len(split):
                break
            if len(self.t) > _MANY and len(split) > _EVERYWHERE * len(self.t):
                raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"{len(split)} of {len(self.t)} steps of a far line bend")
            self._add((self.t[split] + self.t[split + 1]) / 2)

    def _add(self, t: Array) -> None:
        points = self._line.points(t)
        answer = self._ask(points)
        values, jacobians = self._known(points)
        order = np.argsort(np.concatenate([self.t, t]))
        self.t = np.concatenate([self.t, t])[order]
        values, jacobians = answer.values - values, answer.jacobians - jacobians
        if not np.isfinite(values).all():
            raise Stop(Outcome.SATURATED)
        if len(order) > len(t):
            values, jacobians = np.concatenate([self.values, values]), np.concatenate([self.jacobians, jacobians])
        self.values, self.jacobians = values[order], jacobians[order]

    def _rises(self) -> tuple[Array, Array, Array]:
        """Between neighbours: the rise of the values, and what either slope says that it should be."""
        slopes: Array = self.jacobians @ self._line.direction
        gaps = np.diff(self.t)[:, None]
        return np.diff(self.values, axis=0), slopes[:-1] * gaps, slopes[1:] * gaps

    @property
    def _different(self) -> NDArray[np.bool_]:
        rise, left, right = self._rises()
        jumps = np.abs(np.diff(self.jacobians, axis=0)).max(axis=(1, 2))
        missed = np.maximum(np.abs(rise - left), np.abs(rise - right)).max(axis=1)
        result: NDArray[np.bool_] = (jumps > self._same * np.abs(self.jacobians).max()) | (
            missed > self._same * np.abs(self.values).max()
        )
        return result

    def clusters(self) -> list[slice]:
        """Runs of neighbours that differ, with the places before and behind where nothing changes."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self._different, [False]]).astype(int)))
        return [slice(begin, end + 1) for begin, end in edges.reshape(-1, 2)]

    def _unresolved(self) -> NDArray[np.intp]:
        """The places behind which a step is too long."""
        rise, left, right = self._rises()
        error = np.abs(rise - (left + right) / 2).max(axis=1)
        change = np.maximum(np.abs(rise - left), np.abs(rise - right)).max(axis=1)
        jumps = np.linalg.norm(np.diff(self.jacobians, axis=0), axis=(1, 2))
        split = np.zeros(len(error), dtype=bool)
        for cluster in self.clusters():
            steps = slice(cluster.start, cluster.stop - 1)
            span = np.linalg.norm(self.jacobians[cluster] - self.jacobians[cluster.start], axis=(1, 2)).max()
            floor = self._same * np.abs(self.values).max()
            rough = (error[steps] > _TRAPEZOID * change[steps]) & (error[steps] > _TRAPEZOID * change[steps].max())
            split[steps] = (rough & (error[steps] > floor)) | (jumps[steps] > _STEP * span)
        # Closer points than these are rounded to each other.
        split &= np.diff(self.t) > self._rounding * np.maximum(np.abs(self.t[1:]), self._line.far)
        return np.flatnonzero(split)

    def units(self, activation: Activation | None) -> CrossedUnits | None:
        """Those that are met alone, all of the activation that fits most of them best."""
        alone = [found for cluster in self.clusters() if (found := self._alone(cluster)) is not None]
        if not alone:
            return None
        names = CANDIDATES if activation is None else (activation.name,)
        fits = [[self._fit(found, Activation(name)) for found in alone] for name in names]
        best = min(fits, key=lambda fit: float(np.median([shape.misfits[0] for shape in fit])))
        good = [i for i, shape in enumerate(best) if shape.misfits[0] <= _FITS]
        if not good:
            return None
        made = [self._unit(alone[i], best[i]) for i in good]
        rows, biases, outputs = (np.array(parts) for parts in zip(*made, strict=True))
        return CrossedUnits(rows, biases, outputs.T, best[0].activation)

    def _alone(self, cluster: slice) -> tuple[Array, Array, Array, Array] | None:
        """Places, slopes, output vector and row of one unit, if a single one is crossed here."""
        changes = self.jacobians[cluster] - self.jacobians[cluster.start]
        left, sizes, right = np.linalg.svd(changes.reshape(len(changes), -1), full_matrices=False)
        if len(sizes) < 4 or sizes[1] > _ALONE * sizes[0]:
            return None
        outputs, both, rows = np.linalg.svd(right[0].reshape(changes.shape[1:]), full_matrices=False)
        if len(both) > 1 and both[1] > _ALONE * both[0]:
            return None
        return self.t[cluster], left[:, 0] * sizes[0] * both[0], outputs[:, 0], rows[0]

    def _fit(self, found: tuple[Array, Array, Array, Array], activation: Activation) -> Shapes:
        t, slopes = found[:2]
        inside = np.abs(slopes - slopes[0]) > 1e-6 * np.abs(slopes - slopes[0]).max()
        chosen = np.convolve(inside, np.ones(3), "same") > 0
        return shapes_of(t[chosen, None], slopes[chosen, None], activation, offset=True)

    def _unit(self, found: tuple[Array, Array, Array, Array], shape: Shapes) -> tuple[Array, float, Array]:
        _, _, output, row = found
        row = row * (shape.scales[0] / float(row @ self._line.direction))
        length = float(row @ found[3])
        return row, float(shape.shifts[0] - row @ self._line.start), output * (shape.factors[0] / length)
