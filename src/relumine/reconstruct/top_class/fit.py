"""From boundaries to the network: orientations from gradients, output weights from values, by linear least squares."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq

from relumine.oracle.base import Array
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.top_class.line import UnitBoundary
from relumine.reconstruct.top_class.observations import TopGradients

# On the side where a unit is off it takes no part in any gradient; of its part on the other side this much is noise.
_OFF = 1e-2
# What of a gradient lies outside the span of the rows shows that units are missing. Rows are known roughly at first;
# what is overlooked here shows when values are compared.
_OUTSIDE = 1e-2
# Rows whose smallest singular value is this part of the largest do not tell units apart.
_DEPENDENT = 1e-4


def boundaries(seen: list[UnitBoundary], dimension: int) -> tuple[Array, Array]:
    """m×d rows, m biases."""
    rows = np.array([unit.row for unit in seen]).reshape(-1, dimension)
    return rows, np.array([unit.bias for unit in seen])


def orientations(seen: list[UnitBoundary], samples: TopGradients) -> Array | None:
    """m signs: on which side each unit is on, if the target is a plain network of just these units.

    Every gradient of a plain network lies in the span of the rows of the units that are on. None where it does not
    (units are missing, or there is a linear term), or where rows are dependent, so that it does not tell.
    """
    d = samples.points.shape[1]
    if not 0 < len(seen) <= d:
        return None
    rows, biases = boundaries(seen, d)
    basis, sizes, mixed = np.linalg.svd(rows, full_matrices=False)
    if sizes[-1] < _DEPENDENT * sizes[0]:
        return None
    longest = np.linalg.norm(samples.gradients, axis=1).max()
    parts = (samples.gradients @ mixed.T / sizes) @ basis.T  # n×m: each unit's part in each gradient
    if np.linalg.norm(samples.gradients - parts @ rows, axis=1).max() > _OUTSIDE * longest:
        return None
    above = samples.points @ rows.T + biases > 0
    on, off = (_mean_square(parts, _clear(seen, samples) & side) for side in (above, ~above))
    if not (np.minimum(on, off) < _OFF**2 * np.maximum(on, off)).all():
        return None
    return np.where(on > off, 1.0, -1.0)


def _clear(seen: list[UnitBoundary], samples: TopGradients) -> NDArray[np.bool_]:
    """n×m: whether it is sure on which side of each boundary each sample is; it is for those that show the boundary."""
    clear = np.array([unit.clear_of(samples.points) for unit in seen]).T
    for j, unit in enumerate(seen):
        clear[[unit.left, unit.right], j] = True
    return clear


def _mean_square(parts: Array, where: NDArray[np.bool_]) -> Array:
    result: Array = (parts**2 * where).sum(axis=0) / np.maximum(where.sum(axis=0), 1)
    return result


def fitted(rows: Array, biases: Array, points: Array, values: Array, *, straight: bool) -> Shallow:
    """The function of these units that meets the values best; ``straight`` allows a linear term besides."""
    m, d = rows.shape
    system = _features(rows, biases, points, straight)
    scales = np.maximum(np.linalg.norm(system, axis=0), 1e-300)
    weighted = values * _weights(points)[:, None]
    found = lstsq(system / scales, weighted, cond=1e-13, lapack_driver="gelsy")[0] / scales[:, None]
    jacobian = found[m + 1 :].T if straight else np.zeros((values.shape[1], d))
    return Shallow(jacobian, found[m], found[:m], rows, biases)


def _features(rows: Array, biases: Array, points: Array, straight: bool) -> Array:
    """n×(m + 1 + d): what the values are sums of: each unit's signal, 1, and the inputs."""
    parts = [np.maximum(points @ rows.T + biases, 0), np.ones((len(points), 1)), *([points] if straight else [])]
    return np.asarray(np.concatenate(parts, axis=1) * _weights(points)[:, None])


def _weights(points: Array) -> Array:
    """n: far out the values are large, and so is their rounding."""
    return np.asarray(1 / (1 + np.sqrt((points**2).mean(axis=1))))


def polished(model: Shallow, points: Array, values: Array, *, straight: bool) -> Shallow:
    """Biases moved and all else fitted again, so that the values are met best (variable projection, one step).

    A kink far out on its line tells its unit's bias with fewer digits than the values nearby do.
    """
    weights = _weights(points)[:, None]
    system = _features(model.rows, model.biases, points, straight)
    basis = np.linalg.qr(system / np.maximum(np.linalg.norm(system, axis=0), 1e-300))[0]

    def beyond(columns: Array) -> Array:
        """What output weights cannot explain."""
        return np.asarray(columns - basis @ (basis.T @ columns))

    on = weights * (model.active(points) > 0)
    misses = beyond(weights * (values - model.values(points)))
    gram, target = np.zeros((model.units, model.units)), np.zeros(model.units)
    for output, miss in zip(model.outputs.T, misses.T, strict=True):
        slopes = beyond(on * output)
        gram, target = gram + slopes.T @ slopes, target + slopes.T @ miss
    scales = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    move = lstsq(gram / np.outer(scales, scales), target / scales, cond=1e-12)[0] / scales
    return fitted(model.rows, model.biases + move, points, values, straight=straight)
