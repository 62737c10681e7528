"""Guesses at what explanations are: each predicts the slopes of the values, or does not.

Random directions leave no room for chance: a wrong guess misses by far. Before a guess is believed, the adapter for it
is asked for gradients, and those must predict the slopes too.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from relumine.adapt.recipes import FAR, adapted
from relumine.errors import BadAnswerError
from relumine.explain.map_kind import GRADIENT, MapKind
from relumine.oracle.base import Array
from relumine.probe.known import Known
from relumine.probe.slopes import Slopes, is_ablation, largest_coordinates, measured_slopes, predict

# Below this an ablation does not pass for input × gradient.
_FINE = 1e-4

# What maps of a kind, at points x, would be gradients after.
_SIGNED: dict[MapKind, Callable[[Array, Array], Array]] = {
    GRADIENT: lambda x, maps: maps,
    MapKind(times_input=True): lambda x, maps: maps / np.where(x == 0, np.inf, x),
}


def guessed_kind(known: Known, measured: Slopes, values: Array, maps: Array) -> MapKind | None:
    """The guess that predicts the slopes; of which outputs maps are is noted in the offer."""
    guesses = {kind: gradient(measured.points[:, None, :], maps) for kind, gradient in _SIGNED.items()}
    for kind, gradients in guesses.items():
        if predict(known, measured, values, gradients):
            # At the small inputs that probabilities need, an ablation is input × gradient but for a little.
            doubtful = kind.times_input and known.offer.values == "probabilities" and measured.tolerance > _FINE
            return None if doubtful and is_ablation(known, measured.points, values, maps) else kind
    for kind, gradients in guesses.items():
        if _has_constant_norm(maps) and predict(known, measured, values, gradients, scaled=True):
            return replace(kind, scaled=True)
    return _magnitudes(known, measured, values, maps) if maps.min() >= 0 else None


def is_confirmed(known: Known, measured: Slopes, values: Array, kind: MapKind) -> bool:
    """Whether the adapter's own gradients predict the slopes: nothing is used that has not been seen to work."""
    points, directions, slopes, tolerance = measured
    try:
        oracle = adapted(known.meter, kind, known.offer, one_by_one=known.one_by_one)
        factor = FAR[known.offer.dtype] if kind.smoothing else 1.0
        gradients = oracle(points[:2] / factor, gradients=True).jacobians / factor
    except BadAnswerError:
        return False
    return predict(known, Slopes(points[:2], directions[:2], slopes[:2], tolerance), values[:2], gradients)


def _magnitudes(known: Known, measured: Slopes, values: Array, maps: Array) -> MapKind | None:
    """Maps without signs: compared with slopes along the axes where they are largest, at two of the points."""
    axes = np.stack([np.eye(maps.shape[2])[largest_coordinates(maps[i])] for i in (0, 1)])
    along = measured_slopes(known, measured.points[:2], values[:2], axes)
    if along is None:
        return None
    along = along._replace(slopes=np.abs(along.slopes))
    if predict(known, along, values[:2], maps[:2]):
        return MapKind(magnitudes=True)
    if predict(known, along, values[:2], np.sqrt(maps[:2])):
        return MapKind(magnitudes=True, squared=True)
    scaled = _has_constant_norm(maps) and predict(known, along, values[:2], maps[:2], scaled=True)
    return MapKind(magnitudes=True, scaled=True) if scaled else None


def _has_constant_norm(maps: Array) -> bool:
    """Whether all maps have the same largest number, sum or length: something normalised them."""
    size = np.abs(maps)
    for norms in (size.max(axis=2), size.sum(axis=2), np.sqrt((size**2).sum(axis=2))):
        there = norms[norms > 0]
        if len(there) and there.max() - there.min() <= 1e-3 * there.max():
            return True
    return False
