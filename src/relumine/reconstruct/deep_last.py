"""The last hidden layer: if these units are it, linear least squares explains every answer."""

import numpy as np

from relumine.oracle.base import Array, Offer
from relumine.reconstruct.deep_book import Book
from relumine.reconstruct.deep_layers import Layers
from relumine.reconstruct.deep_precision import Precision
from relumine.reconstruct.network import Network
from relumine.reconstruct.shallow import Shallow

# Equations from gradients: derivatives along random directions at every answered point, so many at least, and so many
# times more equations than unknowns.
_DIRECTIONS = 3


def last_layer(
    layers: Layers, rows: Array, biases: Array, book: Book, rng: np.random.Generator, precision: Precision
) -> Shallow | None:
    """f = W relu(Aφ + b) + Bφ + c by least squares, if that explains all answers; B makes orientations unnecessary."""
    clear = ~layers.with_layer(rows, biases).explains(book.points, precision.clear)
    points, values, jacobians = book.points[clear], book.values[clear], book.jacobians[clear]
    features = layers.features(points)
    signals = features @ rows.T + biases
    weight = 1 / (1 + np.linalg.norm(points, axis=1))
    system = np.hstack([np.maximum(signals, 0), features, np.ones((len(features), 1))]) * weight[:, None]
    target = values * weight[:, None]
    count = max(_DIRECTIONS, int(np.ceil(_DIRECTIONS * system.shape[1] / max(len(points), 1))))
    directions = rng.standard_normal((len(points), points.shape[1], count))  # others at every point
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    moved = layers.feature_slopes(points) @ directions if len(layers) else directions  # n×h×count
    switched = (rows @ moved) * (signals > 0)[:, :, None]
    slopes = np.concatenate([switched, moved, np.zeros((len(moved), 1, count))], axis=1)
    system = np.concatenate([system, slopes.transpose(0, 2, 1).reshape(-1, system.shape[1])])
    sloped = (jacobians @ directions).transpose(0, 2, 1).reshape(-1, target.shape[1])
    target = np.concatenate([target, sloped])
    if len(system) < system.shape[1]:
        return None
    found = np.linalg.lstsq(system, target, rcond=1e-12)[0]
    if np.abs(system @ found - target).max() > precision.fit * max(float(np.abs(target).max()), 1e-300):
        return None
    return Shallow(found[len(rows) : -1].T, found[-1], found[: len(rows)], rows, biases)


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
