"""A deeper head: a student fitted to the Jacobians in the row space of its first layer."""

from typing import TYPE_CHECKING

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.head.subspace import InRowSpace
from relumine.reconstruct.matching.method import GradientMatching
from relumine.reconstruct.result import Clone, Reconstruction

if TYPE_CHECKING:
    import torch

# Two hidden layers of this width, or of twice the row space: as wide as most heads.
_WIDTH = 128
_STEPS = 2000


def student(space: InRowSpace, places: list[int], rng: np.random.Generator) -> Reconstruction:
    """A student of features, from the Jacobians at these of the space's inputs."""
    points = space.points[places]
    with space.phase("student"):
        answer = space(points, gradients=True)
    width = max(_WIDTH, 2 * space.offer.dimension)
    middle, scale = points.mean(axis=0), points.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)

    def made(seed: int) -> "torch.nn.Module":
        from relumine.reconstruct.head.torch_backbone import perceptron

        return perceptron((space.offer.dimension, width, width, space.offer.outputs), middle, scale, seed)

    return GradientMatching(made, len(points), steps=_STEPS).fit(space.offer, points, answer, rng, space.spent)


def of_row_space(clone: Clone, basis: Array) -> Clone:
    """A student of B·φ as a student of φ."""
    from relumine.reconstruct.head.torch_backbone import of_features
    from relumine.reconstruct.matching.student import StudentClone

    assert isinstance(clone, StudentClone)
    return StudentClone(of_features(clone.module, basis), (basis.shape[1],), clone.of)
