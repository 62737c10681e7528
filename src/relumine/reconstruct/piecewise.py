"""Which piecewise linear activation a clone of ReLUs has: leaky ReLU, PReLU, hard tanh.

A search finds ReLUs and a linear part. Leaky ReLUs are ReLUs of which the linear part is a sum,
v·leaky(z) = (1 − s)·v·relu(z) + s·v·z; a hard tanh is two ReLUs with one row and opposite outputs. ReLU6 is
3·hardtanh(z/3 − 1) + 3, so both make the same networks, and are called hardtanh.
"""

from dataclasses import replace

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.activation import Activation
from relumine.reconstruct.network import Network

# Two numbers are the same if they differ by no more than this part, or this many times the noise: a thousandth in
# float32. Rows and outputs of clones are known a thousand times as well.
_SAME, _NOISE = 1e-9, 1e4


def named(network: Network, noise: float) -> Network:
    """The same function with the activation that explains its linear part, or pairs of its units, if one does.

    noise: of the answers, relative to their size
    """
    if len(network.hidden) != 1 or network.activation.name != "relu":
        return network
    tolerance = max(_SAME, _NOISE * noise)
    return (_leaky(network, tolerance) if network.skip is not None else None) or _clipped(network, tolerance) or network


def _leaky(network: Network, tolerance: float) -> Network | None:
    """With skip = Σ c_i·w_i·a_iᵀ: a unit's slopes are 1 + c_i on one side and c_i on the other; the larger is 1."""
    (rows, outputs), (biases, offset), skip = network.weights, network.biases, network.skip
    assert skip is not None
    if len(rows) >= skip.size:
        return None  # any linear part is such a sum
    terms = np.einsum("ki,id->kdi", outputs, rows).reshape(skip.size, -1)
    c, _, rank, _ = np.linalg.lstsq(terms, skip.ravel(), rcond=tolerance)
    if rank < len(rows) or np.linalg.norm(terms @ c - skip.ravel()) > tolerance * np.linalg.norm(skip):
        return None
    # relu(z) = relu(−z) + z: a unit that was turned around has −1 − c in place of c.
    turned = c < -0.5
    sign = np.where(turned, -1.0, 1.0)
    offset = offset + outputs @ np.where(turned, biases, 0.0)
    rows, biases, c = rows * sign[:, None], biases * sign, np.where(turned, -1 - c, c)
    slopes = c / (1 + c)
    if np.ptp(slopes) <= tolerance:
        slopes = np.full(1, np.median(slopes))
        c = np.full(len(rows), slopes[0] / (1 - slopes[0]))
    offset = offset - outputs @ (c * biases)
    activation = Activation("leaky_relu", slopes)
    return replace(
        network, weights=(rows, outputs * (1 + c)), biases=(biases, offset), skip=None, activation=activation
    )


def _clipped(network: Network, tolerance: float) -> Network | None:
    """Every unit paired with another one that has the same row, other biases and the opposite outputs."""
    (rows, outputs), (biases, offset) = network.weights, network.biases
    sizes = np.linalg.norm(rows, axis=1)
    if len(rows) % 2 or not len(rows) or not sizes.all():
        return None
    rows, biases, outputs = rows / sizes[:, None], biases / sizes, outputs * sizes
    skip = np.zeros((len(offset), rows.shape[1])) if network.skip is None else network.skip
    pairs = _pairs(rows, outputs, tolerance)
    if pairs is None:
        return None
    first, second = pairs.T
    # Turn the second of each pair the way of the first: relu(z) = relu(−z) + z.
    turned = (rows[first] * rows[second]).sum(axis=1) < 0
    skip = skip + (outputs[:, second] * turned) @ rows[second]
    offset = offset + (outputs[:, second] * turned) @ biases[second]
    other = np.where(turned, -biases[second], biases[second])
    low, high = np.minimum(biases[first], other), np.maximum(biases[first], other)
    weights = np.where(biases[first] > other, outputs[:, first], -outputs[:, first])
    scale = float(np.linalg.norm(outputs, axis=0) @ np.linalg.norm(rows, axis=1))
    half = (high - low) / 2
    if np.linalg.norm(skip) > tolerance * scale or not half.all():
        return None
    # relu(t + high) − relu(t + low) = half·(hardtanh((t + middle) / half) + 1)
    middle = (high + low) / 2
    return Network(
        (rows[first] / half[:, None], weights * half),
        (middle / half, offset + weights @ half),
        network.inputs,
        values=network.values,
        activation=Activation("hardtanh"),
    )


def _pairs(rows: Array, outputs: Array, tolerance: float) -> Array | None:
    """h/2×2: which units belong together, if all do."""
    first, second = np.nonzero(np.triu(np.abs(rows @ rows.T) > 1 - tolerance, k=1))
    lengths = np.linalg.norm(outputs, axis=0)
    opposite = np.linalg.norm(outputs[:, first] + outputs[:, second], axis=0) <= tolerance * lengths[first]
    pairs: Array = np.stack([first[opposite], second[opposite]], axis=1)
    return pairs if np.array_equal(np.sort(pairs.ravel()), np.arange(len(rows))) else None
