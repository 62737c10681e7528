"""Units that no line showed, from what the fitted values leave unexplained. Asks nothing.

For points spread like N(0, I), the mean of w·relu(a·x + b) times x xᵀ − 1 is a multiple of a aᵀ (Stein). So the
directions in which a fit's residuals are most curved are where a unit is missing; the fit goes on from the best one.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.values.fit import ValuesFit

# Directions tried, for each output; and where along them the unit's boundary may lie, in spreads of the points.
_DIRECTIONS = 3
_PLACES = (-1.0, -0.3, 0.3, 1.0)
# A unit is determined by this many times as many values, on either side of its boundary, as it has parameters.
_DETERMINED = 1.5


def grown(fit: ValuesFit) -> ValuesFit:
    """The fit with one more unit, where it explains most of what is left."""
    points, left = fit.known.points, fit.unexplained
    best = max(_candidates(points, left), key=lambda unit: _gain(points, left, *unit))
    row, bias = best
    features = np.maximum(points @ row + bias, 0)
    model = fit.shallow
    more = Shallow(
        model.jacobian,
        model.offset,
        np.vstack([model.outputs, _slope(features, left)]),
        np.vstack([model.rows, row]),
        np.append(model.biases, bias),
    )
    return replace(fit, shallow=more).improved()


def without_idle(fit: ValuesFit, most: float) -> ValuesFit:
    """The fit without units that are not needed to keep its misfit below ``most``."""
    while fit.shallow.units > 1:
        model = fit.shallow
        weights = np.linalg.norm(model.outputs, axis=1) * np.linalg.norm(model.rows, axis=1)
        shorter = _without(fit, int(np.argmin(weights)))
        if shorter.misfit > most:
            break
        fit = shorter
    return fit


def undetermined(fit: ValuesFit) -> int | None:
    """A unit that is on, or off, at fewer points than could determine it: it may be anything elsewhere."""
    (d, outputs), on = (fit.known.points.shape[1], fit.known.values.shape[1]), fit.shallow.active(fit.known.points) > 0
    fewer = np.minimum(on.sum(axis=0), (~on).sum(axis=0))
    rare = np.flatnonzero(fewer * outputs < _DETERMINED * (d + outputs))
    return int(rare[np.argmin(fewer[rare])]) if len(rare) else None


def _without(fit: ValuesFit, unit: int) -> ValuesFit:
    model, kept = fit.shallow, np.arange(fit.shallow.units) != unit
    fewer = Shallow(model.jacobian, model.offset, model.outputs[kept], model.rows[kept], model.biases[kept])
    return replace(fit, shallow=fewer).improved()


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


def _slope(features: Array, left: Array) -> Array:
    """K: by which the features are multiplied to explain most."""
    centred = features - features.mean()
    result: Array = centred @ left / max(float(centred @ centred), 1e-300)
    return result


def _gain(points: Array, left: Array, row: Array, bias: float) -> float:
    features = np.maximum(points @ row + bias, 0)
    # What a linear term explains is explained already.
    centred = features - features.mean()
    across = points - points.mean(axis=0)
    centred = centred - across @ np.linalg.lstsq(across, centred, rcond=None)[0]
    return float(np.sum((centred @ left) ** 2) / max(float(centred @ centred), 1e-300))
