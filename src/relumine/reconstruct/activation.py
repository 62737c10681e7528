"""Activation: what a hidden unit computes of its pre-activation, with two derivatives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, expit

from relumine.errors import MisuseError
from relumine.oracle.base import Array

# A function of the pre-activations and its first two derivatives.
_Three = tuple[Callable[[Array], Array], Callable[[Array], Array], Callable[[Array], Array]]

_BELL = 1 / np.sqrt(2 * np.pi)
# The tanh form of GELU: z/2·(1 + tanh(√(2/π)·(z + 0.044715·z³))), as torch and ONNX define it.
GELU_TANH = float(np.sqrt(2 / np.pi)), 0.044715


def _bell(z: Array) -> Array:
    result: Array = _BELL * np.exp(-0.5 * z * z)
    return result


def _normal(z: Array) -> Array:
    result: Array = 0.5 * (1 + erf(z / np.sqrt(2)))
    return result


def _inside(low: float, high: float) -> _Three:
    def slope(z: Array) -> Array:
        return ((z > low) & (z < high)).astype(np.float64)

    return (lambda z: np.clip(z, low, high)), slope, np.zeros_like


def _gelu_tanh(z: Array) -> tuple[Array, Array, Array]:
    """The tanh of the tanh form, its argument's slope and its argument's curvature."""
    scale, cubic = GELU_TANH
    return np.tanh(scale * (z + cubic * z**3)), scale * (1 + 3 * cubic * z * z), 6 * scale * cubic * z


def _gelu_tanh_slope(z: Array) -> Array:
    t, inner, _ = _gelu_tanh(z)
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * inner


def _gelu_tanh_curvature(z: Array) -> Array:
    t, inner, bent = _gelu_tanh(z)
    return (1 - t * t) * (inner + 0.5 * z * (bent - 2 * t * inner * inner))


def _silu_slope(z: Array) -> Array:
    s = expit(z)
    result: Array = s * (1 + z * (1 - s))
    return result


def _silu_curvature(z: Array) -> Array:
    s = expit(z)
    result: Array = s * (1 - s) * (2 + z * (1 - 2 * s))
    return result


_KNOWN: dict[str, _Three] = {
    "identity": (lambda z: z, np.ones_like, np.zeros_like),
    "relu": _inside(0.0, np.inf),
    "relu6": _inside(0.0, 6.0),
    "hardtanh": _inside(-1.0, 1.0),
    "gelu": (lambda z: z * _normal(z), lambda z: _normal(z) + z * _bell(z), lambda z: (2 - z * z) * _bell(z)),
    "gelu_tanh": (lambda z: 0.5 * z * (1 + _gelu_tanh(z)[0]), _gelu_tanh_slope, _gelu_tanh_curvature),
    "silu": (lambda z: z * expit(z), _silu_slope, _silu_curvature),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2, lambda z: -2 * np.tanh(z) * (1 - np.tanh(z) ** 2)),
    "sigmoid": (
        expit,
        lambda z: expit(z) * expit(-z),
        lambda z: expit(z) * expit(-z) * (1 - 2 * expit(z)),
    ),
    "softplus": (lambda z: np.logaddexp(0, z), expit, lambda z: expit(z) * expit(-z)),
    "elu": (
        lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0))),
        lambda z: np.where(z > 0, 1.0, np.exp(np.minimum(z, 0))),
        lambda z: np.where(z > 0, 0.0, np.exp(np.minimum(z, 0))),
    ),
}


@dataclass(frozen=True, eq=False)
class Activation:
    """An activation by name, with the numbers that it needs.

    name:  one of ``NAMES``
    slope: of "leaky_relu" left of 0: one number, or one per unit (PReLU)
    table: of "tabulated", h×p×3: unit i's function rises from 0 at z = 0 by table[i, j] · (t, t², t³) while z goes from
           j to j + t; left of 0 and right of p it goes on straight
    """

    name: str = "relu"
    slope: Array | float = 0.01
    table: Array | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise MisuseError(f"activation: expected one of {', '.join(NAMES)}, got {self.name!r}")
        if (self.name == "tabulated") != (self.table is not None):
            raise MisuseError(f"activation: a table belongs to 'tabulated' and to nothing else, got {self.name!r}")

    def __str__(self) -> str:
        if self.name != "leaky_relu":
            return self.name
        return f"leaky_relu({np.mean(self.slope):.6g})" if np.ptp(self.slope) == 0 else "prelu"

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The numbers that it needs, by the names that an export gives them."""
        if self.name == "leaky_relu":
            return {"activation.slope": np.atleast_1d(np.asarray(self.slope, dtype=np.float64))}
        return {} if self.table is None else {"activation.table": self.table}

    def __call__(self, z: Array) -> Array:
        """What units with these pre-activations (n×h) answer."""
        if self.name == "leaky_relu":
            return np.where(z > 0, z, self.slope * z)
        if self.table is None:
            return _KNOWN[self.name][0](z)
        (first, second, third), t = self._piece(z), self._part(z)
        rises = np.cumsum(self.table.sum(axis=2), axis=1) - self.table.sum(axis=2)
        begun = rises[np.arange(z.shape[1]), self._index(z).astype(int)]
        straight = self.table[:, 0, 0] * np.minimum(z, 0) + self._end * np.maximum(z - self.table.shape[1], 0)
        result: Array = begun + straight + t * (first + t * (second + t * third))
        return result

    def derivative(self, z: Array) -> Array:
        """σ'(z)."""
        if self.name == "leaky_relu":
            return np.where(z > 0, 1.0, self.slope)
        if self.table is None:
            return _KNOWN[self.name][1](z)
        first, second, third = self._piece(z)
        t = self._part(z)
        return first + t * (2 * second + t * 3 * third)

    def curvature(self, z: Array) -> Array:
        """σ''(z), 0 at a kink."""
        if self.name == "leaky_relu":
            return np.zeros_like(z)
        if self.table is None:
            return _KNOWN[self.name][2](z)
        _, second, third = self._piece(z)
        outside = (z < 0) | (z > self.table.shape[1])
        return np.where(outside, 0.0, 2 * second + 6 * self._part(z) * third)

    # -- a table

    @property
    def _end(self) -> Array:
        """h: the slope right of the table."""
        assert self.table is not None
        result: Array = self.table[:, -1] @ (1.0, 2.0, 3.0)
        return result

    def _index(self, z: Array) -> Array:
        assert self.table is not None
        return np.clip(np.floor(z), 0, self.table.shape[1] - 1)

    def _part(self, z: Array) -> Array:
        result: Array = np.clip(z - self._index(z), 0, 1)
        return result

    def _piece(self, z: Array) -> tuple[Array, Array, Array]:
        """Three of n×h: the coefficients of the piece where each z lies."""
        assert self.table is not None
        pieces = self.table[np.arange(z.shape[1]), self._index(z).astype(int)]
        return pieces[..., 0], pieces[..., 1], pieces[..., 2]


# Every name that an activation may have.
NAMES = (*_KNOWN, "leaky_relu", "tabulated")

RELU = Activation("relu")
