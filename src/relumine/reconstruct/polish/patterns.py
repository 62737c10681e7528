"""Which units are on at each point that was asked: what the network says, corrected by the gradients answered there."""

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.network import Network

# A unit whose pre-activation is smaller than this part of what it is at points as far out may be on or off.
_NEAR = 0.03
# Through this many random directions a gradient is seen at a sixteenth of its size squared at least, nearly surely.
_PROBES = 8

Pattern = list[NDArray[np.bool_]]


def matched(network: Network, points: Array, jacobians: Array) -> Pattern:
    """Patterns at n points, in which a unit close to its boundary is on where the answered gradient says so.

    The first m points have Jacobians. A boundary is only known as well as noise allows; a point in a narrow region may
    lie on its other side.
    """
    pre_activations, on = _pre_activations(network, points)
    lengths = 1 + np.linalg.norm(points[: len(jacobians)], axis=1)
    widths = [np.linalg.norm(weight, axis=1) for weight in network.weights]
    near = [
        np.abs(before[: len(jacobians)]) <= _NEAR * lengths[:, None] * width
        for before, width in zip(pre_activations, widths, strict=False)
    ]
    for row in _doubtful(network, jacobians, on, near):
        _match(network, jacobians[row], [layer[row] for layer in on], [layer[row] for layer in near])
    return on


def _doubtful(network: Network, jacobians: Array, on: Pattern, near: Pattern) -> NDArray[np.intp]:
    """The gradients of which so much is missing that it may be worth while to turn one of the units near there.

    Of a single layer that is seen without computing all gradients: through a few random directions what is missing
    looks about as large as it is, and turning a unit is only for the better if that is half of its jump at least.
    """
    doubtful = np.logical_or.reduce([layer.any(axis=1) for layer in near], axis=0)
    if len(near) != 1 or not len(jacobians):
        return np.flatnonzero(doubtful)
    first, last = network.weights
    probes = np.random.default_rng(0).standard_normal((first.shape[1], _PROBES)) / np.sqrt(_PROBES)
    shown = (jacobians.reshape(-1, len(probes)) @ probes).reshape(*jacobians.shape[:2], _PROBES)
    missing = shown - (last * on[0][: len(jacobians), None, :]) @ (first @ probes)
    missing = missing if network.skip is None else missing - network.skip @ probes
    jumps = (last**2).sum(axis=0) * (first**2).sum(axis=1)
    smallest = np.where(near[0], jumps, np.inf).min(axis=1)
    return np.flatnonzero(doubtful & (64 * (missing**2).sum(axis=(1, 2)) > smallest))


def _match(network: Network, jacobian: Array, on: Pattern, near: Pattern) -> None:
    """Turn units near their boundary on or off, the one that helps most first, while the gradient comes closer."""
    for _ in range(sum(int(layer.sum()) for layer in near)):
        best, layer, unit = 0.0, -1, -1
        for i, (gains, candidates) in enumerate(zip(_gains(network, jacobian, on), near, strict=True)):
            allowed = np.where(candidates, gains, 0.0)
            if allowed.max(initial=0) > best:
                best, layer, unit = float(allowed.max()), i, int(allowed.argmax())
        if layer < 0:
            return
        on[layer][unit] = ~on[layer][unit]
        near[layer][unit] = False


def _gains(network: Network, jacobian: Array, on: Pattern) -> list[Array]:
    """For every hidden unit: by how much |answer − prediction|² falls if this unit is turned."""
    behind: list[Array] = []  # the derivative of each layer's pre-activations by the input
    rows = np.eye(0)
    for i, weight in enumerate(network.weights[:-1]):
        rows = weight if i == 0 else weight @ (on[i - 1][:, None] * rows)
        behind.append(rows)
    ahead = [network.weights[-1]]  # the derivative of the outputs by what each layer puts out, after its relu
    for weight, layer in zip(network.weights[-2:0:-1], on[:0:-1], strict=True):
        ahead.insert(0, (ahead[0] * layer) @ weight)
    missing = jacobian - ahead[0] @ (on[0][:, None] * behind[0])
    missing = missing if network.skip is None else missing - network.skip
    gains = []
    for before, after, layer in zip(behind, ahead, on, strict=True):
        size = (after**2).sum(axis=0) * (before**2).sum(axis=1)
        along = ((missing.T @ after) * before.T).sum(axis=0)
        gains.append(2 * np.where(layer, -1.0, 1.0) * along - size)
    return gains


def _pre_activations(network: Network, points: Array) -> tuple[list[Array], Pattern]:
    """Every hidden layer's pre-activations, and which are on."""
    pre_activations, on, entering = [], [], points
    for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
        pre_activations.append(entering @ weight.T + bias)
        on.append(pre_activations[-1] > 0)
        entering = np.maximum(pre_activations[-1], 0)
    return pre_activations, on
