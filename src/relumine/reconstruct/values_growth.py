"""Units that no line showed, from what the fitted values leave unexplained. Asks nothing.

For points spread like N(0, I), the mean of w·relu(a·x + b) times x xᵀ − 1 is a multiple of a aᵀ (Stein). So the
directions in which a fit's residuals are most curved are where a unit is missing; the fit goes on from the best one.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.shallow import Shallow
from relumine.reconstruct.values_fit import Fit

# Directions tried, for each output; and where along them the unit's boundary may lie, in spreads of the points.
_DIRECTIONS = 3
_PLACES = (-1.0, -0.3, 0.3, 1.0)


def grown(fit: Fit) -> Fit:
    """The fit with one more unit, where it explains most of what is left."""
    points, left = fit.known.points, fit.unexplained
    best = max(_candidates(points, left), key=lambda unit: _gain(points, left, *unit))
    row, bias = best
    signals = np.maximum(points @ row + bias, 0)
    model = fit.shallow
    more = Shallow(
        model.jacobian,
        model.offset,
        np.vstack([model.outputs, _slope(signals, left)]),
        np.vstack([model.rows, row]),
        np.append(model.biases, bias),
    )
    return replace(fit, shallow=more).improved()


def without_idle(fit: Fit, most: float) -> Fit:
    """The fit without units that are not needed to keep its misfit below ``most``."""
    while fit.shallow.units > 1:
        model = fit.shallow
        weights = np.linalg.norm(model.outputs, axis=1) * np.linalg.norm(model.rows, axis=1)
        kept = np.arange(model.units) != int(np.argmin(weights))
        fewer = Shallow(model.jacobian, model.offset, model.outputs[kept], model.rows[kept], model.biases[kept])
        shorter = replace(fit, shallow=fewer).improved()
        if shorter.misfit > most:
            break
        fit = shorter
    return fit


def _candidates(points: Array, left: Array) -> Iterator[tuple[Array, float]]:
    centred = points - points.mean(axis=0)
    spread = float(np.sqrt(np.mean(centred**2)))
    for residual in left.T:
        curved = (centred * (residual - residual.mean())[:, None]).T @ centred
        sizes, directions = np.linalg.eigh(curved)
        for i in np.argsort(-np.abs(sizes))[:_DIRECTIONS]:
            for sign in (1.0, -1.0):
                row = sign * directions[:, i]
                for place in _PLACES:
                    yield row, place * spread - float(row @ points.mean(axis=0))


def _slope(signals: Array, left: Array) -> Array:
    """K: by which the signals are multiplied to explain most."""
    centred = signals - signals.mean()
    result: Array = centred @ left / max(float(centred @ centred), 1e-300)
    return result


def _gain(points: Array, left: Array, row: Array, bias: float) -> float:
    signals = np.maximum(points @ row + bias, 0)
    # What a linear term explains is explained already.
    centred = signals - signals.mean()
    across = points - points.mean(axis=0)
    centred = centred - across @ np.linalg.lstsq(across, centred, rcond=None)[0]
    return float(np.sum((centred @ left) ** 2) / max(float(centred @ centred), 1e-300))
