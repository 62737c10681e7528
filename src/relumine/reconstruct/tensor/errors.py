"""Errors of pieces: those of floating point are bounded as if all were alike, those of rounding are independent."""

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.tensor.units import Units

# Above the expected norm of a matrix of independent errors: it is exceeded by 10 % hardly ever.
_ABOVE = 1.3
# At a point this many boundaries, the nearest ones, may be on its other side than rounded rows say.
_DOUBTFUL = 3


def deviation(noise: Noise) -> float:
    """The standard deviation of the difference of two numbers that were rounded."""
    return noise.absolute * float(np.sqrt(2 / 3))


def largest(deviation: float, rows: int, columns: int) -> float:
    """The largest singular value of a matrix of independent errors (Davidson, Szarek 2001), with a margin."""
    return float(_ABOVE * deviation * (np.sqrt(rows) + np.sqrt(columns)))


def alike(noise: Noise, size: float, far: Array | float) -> Array:
    """By how much pieces of this size differ in floating point, ``far`` times as far out as the base."""
    return np.asarray(Noise(noise.relative).of(size) * np.asarray(far))


def independent(deviation: float, shape: tuple[int, ...], far: Array | float) -> Array:
    """The same for rounding, of K×(d+1) numbers; the last column, f − Jx, grows with x."""
    rows, columns = shape
    return np.asarray(largest(deviation, rows, columns) + largest(deviation, rows, 0) * np.asarray(far))


def turned_at(places: list[int], rest: Array, units: Units, points: Array) -> Array:
    """What units leave, with those turned whose sign at one of these places rounding decides: the piece tells it."""
    rest = rest.copy()
    lengths = np.linalg.norm(units.rows, axis=1)
    for place, x in zip(places, points, strict=True):
        signals = units.rows @ x
        others = np.delete(rest, place, axis=0)
        for i in np.argsort(np.abs(signals) / lengths)[:_DOUBTFUL]:
            turned = rest[place] + np.sign(signals[i]) * np.outer(units.outputs[i], units.rows[i])
            if _apart(others, turned) < _apart(others, rest[place]):
                rest[place] = turned
    return rest


def _apart(others: Array, piece: Array) -> float:
    return float(np.median(np.linalg.norm(others - piece, axis=(1, 2))))
