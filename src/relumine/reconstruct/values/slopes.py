"""Units from what a line shows: the gradients of its regions by long steps, and what they have in common.

Every kink's slope along the line is known from the pieces, so the units' outputs are. All gradients together then are
linear in the units' rows. Each gradient is weighed by what is known of it, so that a region too narrow for long steps
does no harm where there are several outputs: the regions around it tell its two units apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.values.line import Shown

# A step along an axis is this part of the way to the next kink on the line, where kinks lie as close as near the
# origin: far out a kink belongs to a unit that runs nearly along the line, and is close all the same.
_STEP = 0.2
# A step that crosses a boundary is divided by _SHORTER, _TIMES at most.
_SHORTER, _TIMES = 3.0, 7
# What a step says that crosses a boundary all the same counts for next to nothing.
_DOUBT = 1e3
# Values err by half their bounds, typically.
_TYPICALLY = 0.5

Ask = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class SlopeFit:
    """The gradients of all regions of a line: ``jacobians`` and their ``errors``, regions×K×d."""

    jacobians: Array
    errors: Array


def middles(kinks: list[float], ends: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Of every region of a line: a place in it, and the distance to the next kink."""
    low, high = ends
    if not kinks:
        return [(low + high) / 2], [min(1.0, (high - low) / 4)]
    outer = 1 + 0.5 * max(abs(kinks[0]), abs(kinks[-1]), 1.0)
    first, last = max(kinks[0] - outer, (kinks[0] + low) / 2), min(kinks[-1] + outer, (kinks[-1] + high) / 2)
    places = [first, *((a + b) / 2 for a, b in pairwise(kinks)), last]
    return places, [min(abs(t - kink) for kink in kinks) for t in places]


def slopes(line: Line, shown: Shown, ask: Ask, ends: tuple[float, float], box: tuple[float, float] | None) -> SlopeFit:
    """Measure the gradient in the middle of every region; ``ask(points) -> values, bounds`` (n×K both)."""
    size = float(np.linalg.norm(line.direction))
    jacobians, errors = [], []
    for t, reach in zip(*middles(shown.kinks, ends), strict=True):
        found = _gradient(line.points([t])[0], _STEP * size * reach / (1 + abs(t)), ask, box)
        jacobians.append(found[0])
        errors.append(found[1])
    return SlopeFit(np.array(jacobians), np.array(errors))


def _gradient(point: Array, step: float, ask: Ask, box: tuple[float, float] | None) -> tuple[Array, Array]:
    """K×d: the gradient and its errors, by two steps along each axis, which show whether they crossed a boundary."""
    (value,), (bound,) = ask(point[None])
    first, second = np.full(len(point), -step), np.full(len(point), step)
    if box is not None:  # step inwards where there is no room for both
        short = np.minimum(point - box[0], box[1] - point) < step
        inwards = np.where(point > np.mean(box), -step, step)
        first, second = np.where(short, inwards, first), np.where(short, 2 * inwards, second)
    jacobian, errors = np.zeros((len(value), len(point))), np.zeros((len(value), len(point)))
    axes = np.arange(len(point))
    for _ in range(_TIMES):
        moved = np.repeat(point[None], 2 * len(axes), axis=0)
        moved[np.arange(2 * len(axes)), np.tile(axes, 2)] += np.concatenate([first[axes], second[axes]])
        values, bounds = (numbers.reshape(2, len(axes), -1) for numbers in ask(moved))
        slope = (values[1] - values[0]) / (second - first)[axes, None]
        jacobian[:, axes] = slope.T
        errors[:, axes] = ((bounds[0] + bounds[1]) / np.abs(second - first)[axes, None]).T
        misses = np.abs(values[0] - first[axes, None] * slope - value)
        crossed = ~(misses <= bounds[0] + bounds[1] + bound).all(axis=1)
        axes = axes[crossed]
        if not len(axes):
            break
        first[axes] /= _SHORTER
        second[axes] /= _SHORTER
    errors[:, axes] *= _DOUBT
    return jacobian, errors


def assembled(line: Line, shown: Shown, found: SlopeFit) -> tuple[Shallow, Array]:
    """The function whose slopes along the line, and gradients beside it, are these; units are off at t = 0.

    Also by how much each unit's row errs typically, in units of its length.

    Every region's gradient is J + Σ ± wᵢ aᵢᵀ over the kinks between it and t = 0, with wᵢ the jump of the slope and
    aᵢ·direction = 1. That is linear in J and all aᵢ: least squares, for each axis on its own.
    """
    kinks, jumps = np.array(shown.kinks), shown.jumps
    regions, outputs, d = found.jacobians.shape
    here = int(np.searchsorted(kinks, 0.0))
    crossed = (np.arange(regions)[:, None] > np.arange(len(kinks))).astype(np.float64)
    crossed -= crossed[here]
    parts = np.repeat(np.eye(outputs)[None], regions, axis=0), crossed[:, None, :] * jumps.T
    system = np.concatenate(parts, axis=2).reshape(regions * outputs, -1)
    solution, variances = np.empty((outputs + len(kinks), d)), np.zeros(outputs + len(kinks))
    for axis in range(d):
        weight = 1 / found.errors[:, :, axis].ravel()
        inverse = np.linalg.pinv(system * weight[:, None], rcond=1e-12)
        solution[:, axis] = inverse @ (found.jacobians[:, :, axis].ravel() * weight)
        variances += np.sum(inverse**2, axis=1)
    jacobian, rows = solution[:outputs], solution[outputs:]
    lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    rows = rows * (np.where(np.arange(len(kinks)) < here, -1.0, 1.0) / lengths)[:, None]
    start = line.points([0.0])[0]
    biases = -(rows * (start + kinks[:, None] * line.direction)).sum(axis=1)
    model = Shallow(jacobian, shown.pieces[here](0.0) - jacobian @ start, jumps * lengths[:, None], rows, biases)
    return model, _TYPICALLY * np.sqrt(variances[outputs:]) / lengths
