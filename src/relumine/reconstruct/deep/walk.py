"""Walk along a unit's boundary to where a feature is just on: Newton's method from region to region, without a query.

Regions that are chosen in advance (regions.py) need not meet the boundary of a unit that hardly ever switches. What
is known of its row says where the boundary runs, through however many regions.
"""

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.deep.layers import Layers, Mask

_ROUNDS = 40
# How far on the feature is to be, and how far off the others that are not known, relative to their slopes.
_LITTLE = 2e-4
# A boundary is met when the signal is this small.
_MET = 1e-9


def walk(layers: Layers, plane: tuple[Array, float], shown: Mask, feature: int, starts: Array, reach: float) -> Array:
    """n×m: points on the boundary row·φ + bias = 0 at which this feature, and no other that is not shown, is just on.

    As many as were reached from the ``starts`` within ``reach`` of the origin in every coordinate.
    """
    row, bias = np.where(shown, plane[0], 0.0), plane[1]
    others = np.flatnonzero(~shown & (np.arange(len(shown)) != feature))
    points = starts.copy()
    for _ in range(_ROUNDS):
        signals, slopes = layers.signals(points)[-1], layers.slopes(points)[-1]
        sizes = np.maximum(np.linalg.norm(slopes, axis=2), 1e-12)
        gap = -(np.maximum(signals, 0) @ row + bias)
        normals = np.einsum("h,nh,nhd->nd", row, signals > 0, slopes)
        for i in range(len(points)):
            on = others[signals[i, others] > -_LITTLE * sizes[i, others]]
            system = np.concatenate([normals[i][None], slopes[i, feature][None], slopes[i, on]])
            wanted = np.concatenate([[gap[i]], _LITTLE * sizes[i, [feature]], -2 * _LITTLE * sizes[i, on]])
            now = np.concatenate([[0.0], signals[i, [feature]], signals[i, on]])
            points[i] += np.linalg.lstsq(system, wanted - now, rcond=1e-9)[0]
        points = np.clip(points, -reach, reach)
    signals, slopes = layers.signals(points)[-1], layers.slopes(points)[-1]
    most = 3 * _LITTLE * np.linalg.norm(slopes[:, feature], axis=1)
    met = np.abs(np.maximum(signals, 0) @ row + bias) <= _MET * (1 + abs(bias))
    met &= (signals[:, feature] > 0) & (signals[:, feature] <= most) & (signals[:, others] < 0).all(axis=1)
    return points[met]
