"""The last hidden layer: if these units are it, linear least squares explains every answer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array, Offer
from relumine.reconstruct.deep.book import Book
from relumine.reconstruct.deep.layers import Layers, Mask
from relumine.reconstruct.deep.precision import Precision
from relumine.reconstruct.deep.units import Sighting
from relumine.reconstruct.lines.shallow import Shallow, rank_one
from relumine.reconstruct.network import Network

# Equations from gradients: derivatives along random directions at every answered point, this many at least, and
# enough for this many times as many equations as unknowns.
_DIRECTIONS = 3
# Answers that are not explained are a missing unit's if at least _MOST of them are explained, with _TIMES as many
# equations as unknowns; _ROUNDS rounds find which, and are worth their time up to _WIDEST unknowns.
_MOST = 0.8
_TIMES = 2
_ROUNDS = 25
_WIDEST = 200


@dataclass(frozen=True, eq=False)
class LastLayerFit:
    """The last hidden layer and the outputs, and the answered points that they do not explain."""

    last: Shallow
    wrong: NDArray[np.intp]


def last_layer(
    layers: Layers, rows: Array, biases: Array, book: Book, rng: np.random.Generator, precision: Precision
) -> LastLayerFit | None:
    """f = W relu(Aφ + b) + Bφ + c by least squares, if that explains all answers, or all but a few.

    B makes orientations unnecessary. A unit that is missing and hardly ever switches spoils only the few answers where
    it has switched: where it is on, or off, unlike elsewhere.
    """
    clear = np.flatnonzero(~layers.with_layer(rows, biases).explains(book.points, precision.clear))
    system, target = _equations(layers, rows, biases, book, rng, clear)
    if system.shape[0] * system.shape[1] < system.shape[2]:
        return None
    allowed = precision.fit * max(float(np.abs(target).max(initial=0)), 1e-300)
    found = _least_squares(system, target)
    good = _misses(system, target, found) <= allowed
    if not good.all():
        if system.shape[2] > _WIDEST:
            return None
        good = _majority(system, target, found) <= allowed
        if good.sum() < _MOST * len(good) or good.sum() * system.shape[1] < _TIMES * system.shape[2]:
            return None
        found = _least_squares(system[good], target[good])
        good = _misses(system, target, found) <= allowed
        if good.sum() < _MOST * len(good):
            return None
    return LastLayerFit(Shallow(found[len(rows) : -1].T, found[-1], found[: len(rows)], rows, biases), clear[~good])


def _equations(
    layers: Layers, rows: Array, biases: Array, book: Book, rng: np.random.Generator, at: NDArray[np.intp]
) -> tuple[Array, Array]:
    """n×e×m and n×e×K: e equations at each of these points, of its value and of derivatives along random directions."""
    points, values, jacobians = book.points[at], book.values[at], book.jacobians[at]
    features = layers.features(points)
    signals = features @ rows.T + biases
    weight = 1 / (1 + np.linalg.norm(points, axis=1))
    system = np.hstack([np.maximum(signals, 0), features, np.ones((len(features), 1))]) * weight[:, None]
    count = max(_DIRECTIONS, int(np.ceil(_DIRECTIONS * system.shape[1] / max(len(points), 1))))
    directions = rng.standard_normal((len(points), points.shape[1], count))  # others at every point
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    moved = layers.feature_slopes(points) @ directions if len(layers) else directions  # n×h×count
    switched = (rows @ moved) * (signals > 0)[:, :, None]
    slopes = np.concatenate([switched, moved, np.zeros((len(moved), 1, count))], axis=1)
    target = (values * weight[:, None])[:, None], (jacobians @ directions).transpose(0, 2, 1)
    return np.concatenate([system[:, None], slopes.transpose(0, 2, 1)], axis=1), np.concatenate(target, axis=1)


def _least_squares(system: Array, target: Array) -> Array:
    flat = system.reshape(-1, system.shape[2]), target.reshape(-1, target.shape[2])
    return np.asarray(np.linalg.lstsq(*flat, rcond=1e-12)[0], dtype=np.float64)


def _misses(system: Array, target: Array, found: Array) -> Array:
    """n: the largest miss of any equation at each point."""
    result: Array = np.abs(system @ found - target).max(axis=(1, 2), initial=0)
    return result


def _majority(system: Array, target: Array, found: Array) -> Array:
    """The misses when the sum of their roots is least, not of their squares: most are then zero, if that can be."""
    misses = _misses(system, target, found)
    for _ in range(_ROUNDS):
        weight = np.maximum(misses, 1e-12 * max(float(misses.max()), 1e-300)) ** -0.75
        weight /= weight.max()
        found = _least_squares(system * weight[:, None, None], target * weight[:, None, None])
        misses = _misses(system, target, found)
    return misses


def hidden_switches(layers: Layers, fit: LastLayerFit, book: Book, tolerance: float) -> list[Sighting]:
    """Sightings of missing units in what the fit leaves where it is wrong: no kink needs to be crossed for these."""
    wrong = (book.points[fit.wrong], book.values[fit.wrong], book.jacobians[fit.wrong])
    found = []
    for seen in left_over(layers, fit.last, *wrong, tolerance):
        line = -1 - int(fit.wrong[seen.members[-1]]) - book.count * (len(seen.members) > 1)
        found.append(Sighting(seen.row, seen.shown, seen.bias, -1, line, wrong[0][seen.members[-1]]))
    return found


@dataclass(frozen=True, eq=False)
class MissingUnit:
    """A unit that is on at these points: K output weights, its row where it is ``shown`` (length one), and its bias."""

    output: Array
    row: Array
    shown: Mask
    bias: float
    members: list[int]


def left_over(
    layers: Layers, last: Shallow, points: Array, values: Array, jacobians: Array, tolerance: float
) -> list[MissingUnit]:
    """What the last hidden layer leaves of gradients: w ⊗ row of a missing unit, times the features' slopes.

    Points with the same w are of the same unit: together they show its row also where each of them alone has more
    features on than can be told apart.
    """
    features, slopes = layers.features(points), layers.feature_slopes(points)
    rest = jacobians - last.jacobians(features) @ slopes
    left = values - last.values(features)
    found = []
    for output, members in _groups(rest, tolerance):
        for some in [members, *([i] for i in members if len(members) > 1)]:
            seen = _row(slopes[some], output @ rest[some], features[some], left[some] @ output, tolerance)
            if seen is not None:
                size, row, shown, bias = seen
                sign = 1.0 if np.sum(features[some] @ row + bias) > 0 else -1.0
                found.append(MissingUnit(sign * size * output, sign * row, shown, sign * bias, some))
                if some is members:
                    break
    return found


def _groups(rest: Array, tolerance: float) -> list[tuple[Array, list[int]]]:
    """Those of these n×K×m that have rank one, put together by their outputs w, which have length one."""
    groups: list[tuple[Array, list[int]]] = []
    for i, jump in enumerate(rest):
        output, row = rank_one(jump)
        size = float(np.linalg.norm(output))
        if size == 0 or np.linalg.norm(jump - np.outer(output, row)) > tolerance * np.linalg.norm(jump):
            continue
        for other, members in groups:
            if abs(float(other @ output)) > (1 - tolerance) * size:
                members.append(i)
                break
        else:
            groups.append((output / size, [i]))
    return groups


def _row(
    slopes: Array, normals: Array, features: Array, values: Array, tolerance: float
) -> tuple[float, Array, Mask, float] | None:
    """The row whose slopes (n×h×m) make these normals (n×m) and whose signals these values.

    Its length, it at length one, on which features it is determined, and the bias; None if no row makes them.
    """
    weight = 1 / (1 + np.linalg.norm(features, axis=1))
    sloped = np.concatenate(slopes.transpose(0, 2, 1))
    system = np.block([[sloped, np.zeros((len(sloped), 1))], [features * weight[:, None], weight[:, None]]])
    target = np.concatenate([normals.ravel(), values * weight])
    left, sizes, right = np.linalg.svd(system, full_matrices=True)
    rank = int((sizes > 1e-9 * sizes[0]).sum())
    found = right[:rank].T @ ((left[:, :rank].T @ target) / sizes[:rank])
    if np.linalg.norm(system @ found - target) > tolerance * np.linalg.norm(target):
        return None
    determined = np.linalg.norm(right[rank:], axis=0) < 1e-6
    size = float(np.linalg.norm(found[:-1][determined[:-1]]))
    if not determined[-1] or size == 0:
        return None
    return size, np.where(determined[:-1], found[:-1], 0.0) / size, determined[:-1], float(found[-1]) / size


def assembled(layers: Layers, last: Shallow, book: Book, offer: Offer, tolerance: float) -> Network:
    """The known layers below, the last hidden layer, and the outputs.

    The linear term Bφ vanishes when units are turned around; what does not vanish passes through extra units.
    """
    plain = last.plain(tolerance)
    shown = plain or last
    if not len(layers):
        first = shown.network(offer, tolerance)
        return Network(
            (book.outward(first.weights[0]), *first.weights[1:]),
            first.biases,
            offer.inputs,
            skip=None if first.skip is None else book.outward(first.skip),
            values=offer.values,
        )
    rows, biases, outputs = shown.rows, shown.biases, shown.outputs.T
    if plain is None:
        # Features are never negative, so relu passes them unchanged.
        width = layers.widths[-1]
        rows = np.concatenate([rows, np.eye(width)])
        biases = np.concatenate([biases, np.zeros(width)])
        outputs = np.hstack([outputs, shown.jacobian])
    weights = (book.outward(layers.rows[0]), *layers.rows[1:], rows, outputs)
    return Network(weights, (*layers.biases, biases, shown.offset), offer.inputs, values=offer.values)
