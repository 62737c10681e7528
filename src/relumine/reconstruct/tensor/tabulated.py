"""A layer whose activation is none of the known ones: one tabulated function per unit, f(x) = Σ v_i φ_i(â_i·x) + c.

With the directions â_i and v_i known, every Jacobian shows the slope of each φ_i at one place. A spline through these
is integrated into a table.
"""

import numpy as np
from scipy.interpolate import CubicSpline

from relumine.oracle.base import Array, Offer
from relumine.reconstruct.activation import Activation
from relumine.reconstruct.network import Network
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.unfolding import Directions

# Pieces of a table. Among points of four times the scale of the data that is a quarter of a unit's scale each, which a
# cubic follows to 1e-5.
_PIECES = 128
# Slopes closer to each other than this part of a piece are of one place: noise would bend a spline between them.
_APART = 0.05


def tabulated(directions: Directions, seen: Observations, offer: Offer) -> Network:
    """The network with tables that go as far as these answers do."""
    projections = seen.points @ directions.rows.T
    low, high = projections.min(axis=0), projections.max(axis=0)
    scales = _PIECES / (high - low)
    z = (projections - low) * scales
    slopes = _slopes(directions, seen) / scales
    activation = Activation("tabulated", table=np.array([_table(*unit) for unit in zip(z.T, slopes.T, strict=True)]))
    outputs = directions.outputs.T.copy()
    offset = (seen.values - activation(z) @ outputs.T).mean(axis=0)
    weights = (directions.rows * scales[:, None], outputs)
    return Network(weights, (-low * scales, offset), offer.inputs, values=offer.values, activation=activation)


def _slopes(directions: Directions, seen: Observations) -> Array:
    """n×h: by how much each unit's term counts in every Jacobian, by least squares."""
    gram = (directions.outputs @ directions.outputs.T) * (directions.rows @ directions.rows.T)
    shown = np.einsum("hk,nkd,hd->hn", directions.outputs, seen.jacobians, directions.rows, optimize=True)
    result: Array = np.linalg.solve(gram, shown).T
    return result


def _table(z: Array, slopes: Array) -> Array:
    """p×3: cubics that have a spline's slope at their ends, and rise by its integral."""
    order = np.argsort(z)
    apart = [order[0]]
    for i in order[1:]:
        if z[i] - z[apart[-1]] > _APART:
            apart.append(i)
    spline = CubicSpline(z[apart], slopes[apart])
    knots = np.arange(_PIECES + 1.0)
    at, rise = spline(knots), np.diff(spline.antiderivative()(knots))
    more, turn = rise - at[:-1], np.diff(at)
    return np.stack([at[:-1], 3 * more - turn, turn - 2 * more], axis=1)
