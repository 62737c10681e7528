"""Transfer: adversarial examples that are made on a clone, tried on the target.

Projected gradient descent (Madry et al., arXiv 1706.06083) in the maximum norm, on the clone's own gradients: the
target is asked once per example, whether it is fooled too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from relumine.measures import Classes, classes_of
from relumine.oracle.base import Array
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Clone

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Each coordinate may move by this share of the data's standard deviation.
EPSILON = 0.25
_STEPS = 20
_STEP = 0.15  # of epsilon
_MOST_EXAMPLES = 200
# A share of fewer examples would say nothing.
_FEWEST = 10


def transfer(
    clone: Clone,
    target: Callable[[Array], Classes],
    rows: Array,
    classes: Classes,
    deviation: float,
    bounds: tuple[float, float],
    rng: int | np.random.Generator | None = 0,
) -> float | None:
    """The share of examples fooling the clone that fool the target too; None where there are fewer than ten.

    target:  the class that the target puts each row in; ``classes`` are those of ``rows``
    bounds:  no coordinate leaves them
    """
    module = _scores(clone)
    agreeing = np.flatnonzero(_classes(module, rows) == classes)[:_MOST_EXAMPLES]
    rows, classes = rows[agreeing], classes[agreeing]
    examples = _examples(module, rows, classes, EPSILON * deviation, bounds, np.random.default_rng(rng))
    fooling = _classes(module, examples) != classes
    if fooling.sum() < _FEWEST:
        return None
    return float((target(examples[fooling]) != classes[fooling]).mean())


def _examples(
    module: "torch.nn.Module",
    rows: Array,
    classes: Classes,
    epsilon: float,
    bounds: tuple[float, float],
    rng: np.random.Generator,
) -> Array:
    low, high = np.maximum(rows - epsilon, bounds[0]), np.minimum(rows + epsilon, bounds[1])
    points = np.clip(rows + epsilon * rng.uniform(-1, 1, rows.shape), low, high)
    for _ in range(_STEPS if len(rows) else 0):
        points = np.clip(points - _STEP * epsilon * np.sign(_slopes(module, points, classes)), low, high)
    return points


def _slopes(module: "torch.nn.Module", points: Array, classes: Classes) -> Array:
    """n×d: how the margin of the right class changes."""
    import torch

    leaf = torch.from_numpy(points).requires_grad_()
    (slopes,) = torch.autograd.grad(_margins(module(leaf), torch.from_numpy(classes)).sum(), leaf)
    result: Array = np.nan_to_num(slopes.numpy())
    return result


def _margins(scores: "Tensor", classes: "Tensor") -> "Tensor":
    """n: the score of the class over that of the next best."""
    import torch

    if scores.shape[1] == 1:
        return scores[:, 0] * (2 * classes - 1)
    one_hot = torch.nn.functional.one_hot(classes, scores.shape[1]).bool()
    return scores[one_hot] - scores.masked_fill(one_hot, -torch.inf).max(dim=1).values


def _classes(module: "torch.nn.Module", rows: Array) -> Classes:
    import torch

    if not len(rows):
        return np.empty(0, dtype=np.intp)
    with torch.no_grad():
        scores = module(torch.from_numpy(rows)).numpy()
    classes = classes_of(scores, "logits")
    assert classes is not None
    return classes


def _scores(clone: Clone) -> "torch.nn.Module":
    """The clone before any softmax, whose gradients vanish where it is sure."""
    from relumine.reconstruct.matching.student import StudentClone

    if isinstance(clone, Network):
        return replace(clone, values="logits").to_torch()
    if isinstance(clone, StudentClone):
        return replace(clone, of="logits").to_torch()
    return clone.to_torch()
