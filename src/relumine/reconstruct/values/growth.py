"""Units that no line showed, from what the fitted values leave unexplained. Asks nothing.

For points spread like N(0, I), the mean of w·relu(a·x + b) times x xᵀ − 1 is a multiple of a aᵀ (Stein). So the
directions in which a fit's residuals are most curved are where a unit is missing; the fit goes on from the best one.
"""

from dataclasses import replace

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.values.fit import Link, ValuesFit

# Directions tried, for each output; and where along them the unit's boundary may lie, in spreads of the points.
_DIRECTIONS = 3
_PLACES = (-1.0, -0.3, 0.3, 1.0)
# A unit is determined by this many times as many values, on either side of its boundary, as it has parameters.
_DETERMINED = 1.5


def grown(fit: ValuesFit) -> ValuesFit:
    """The fit with one more unit, where it explains most of what is left; its parameters are fitted afterwards."""
    points, left, model = fit.known.points, fit.unexplained, fit.shallow
    rows, biases = _candidates(points, left)
    features = np.maximum(points @ rows.T + biases, 0)
    # What a linear term explains is explained already.
    linear = np.linalg.qr(np.hstack([points, np.ones((len(points), 1))]))[0]
    features -= linear @ (linear.T @ features)
    shares = features.T @ left / np.maximum(np.sum(features**2, axis=0), 1e-300)[:, None]  # candidates×K
    best = int(np.argmax(np.sum(shares * (features.T @ left), axis=1)))
    more = Shallow(
        model.jacobian,
        model.offset,
        np.vstack([model.outputs, shares[best]]),
        np.vstack([model.rows, rows[best]]),
        np.append(model.biases, biases[best]),
    )
    return replace(fit, shallow=more)


def without_idle(fit: ValuesFit, most: float) -> ValuesFit:
    """The fit without units that are not needed to keep its misfit below ``most``."""
    while fit.shallow.units > 1:
        shorter = _without(fit, _least_needed(fit))
        if shorter.misfit > most:
            break
        fit = shorter
    return fit


def _least_needed(fit: ValuesFit) -> int:
    """The unit that all others, and a linear function, replace best."""
    points, model = fit.known.points, fit.shallow
    features = np.hstack([np.maximum(model.active(points), 0), points, np.ones((len(points), 1))])
    alone = np.diag(np.linalg.pinv(features.T @ features))[: model.units]
    outputs = model.outputs
    if fit.known.link is not Link.NONE and outputs.shape[1] > 1:  # what all logits share does not show
        outputs = outputs - outputs.mean(axis=1, keepdims=True)
    return int(np.argmin(np.sum(outputs**2, axis=1) / np.maximum(alone, 1e-300)))


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


def _candidates(points: Array, left: Array) -> tuple[Array, Array]:
    """Rows and biases of units on whose boundaries the residuals may be curved."""
    centre = points.mean(axis=0)
    centred = points - centre
    spread = float(np.sqrt(np.mean(centred**2)))
    directions = []
    for residual in left.T:
        sizes, found = np.linalg.eigh((centred * (residual - residual.mean())[:, None]).T @ centred)
        directions += [*found.T[np.argsort(-np.abs(sizes))[:_DIRECTIONS]]]
    rows = np.repeat(np.concatenate([directions, -np.array(directions)]), len(_PLACES), axis=0)
    return rows, np.tile(_PLACES, 2 * len(directions)) * spread - rows @ centre
