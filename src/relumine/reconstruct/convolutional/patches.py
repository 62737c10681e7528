"""Patches: rows that lie in a small part of the image, in what changes between two neighbouring points.

The row of a unit of the first layer is its kernel, at its place; where a max-pool turns from one unit to another, it is
the difference of one kernel at two places. Units of later layers, and of dense ones, read more of the image.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.layers import Pair, Shape
from relumine.reconstruct.convolutional.sightings import Change

# The largest patch looked for: kernels of 11x11 (AlexNet's), or of 7x7 beside each other in a pool.
_LARGEST = 11
# A second row of which more than this lies in the same box cannot be told from the first.
_SECOND = 1 - 1e-3
# Of a patch, what is smaller than this part of its largest number, or than so many errors, lies outside.
_OUTSIDE, _ERRORS = 1e-4, 10.0
# A row is another one if so much of it is new.
_NEW = 0.1


@dataclass(frozen=True, eq=False)
class Patch:
    """A row that lies in one box: ``corner`` is its first pixel, ``content`` what it is there, C×h×w of length one.

    coordinates: of the row in the basis of the change it was found in
    """

    corner: Pair
    content: Array
    coordinates: Array

    @property
    def size(self) -> Pair:
        """Rows and columns."""
        return self.content.shape[1], self.content.shape[2]

    def inside(self, shape: Shape) -> bool:
        """Whether it touches no border, so that nothing of it is cut off."""
        return all(a > 0 and a + n < most for a, n, most in zip(self.corner, self.size, shape[1:], strict=True))

    def shows(self, kernel: Array, tolerance: float) -> bool:
        """Whether this is what there is, up to its scale."""
        return self.content.shape == kernel.shape and similar(self.content, kernel, tolerance)


def similar(first: Array, second: Array, tolerance: float) -> bool:
    """Whether one is a multiple of the other."""
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    rest = 1 - abs(float(np.vdot(first, second))) / size if size else 1.0
    return rest < tolerance**2


def patches_in(change: Change, shape: Shape, tolerance: float) -> list[Patch]:
    """The rows of the change that lie in small boxes, the smallest first."""
    if change.full or not len(change.rows):
        return []
    images = change.rows[:, :-1].reshape(len(change.rows), *shape)
    products = np.einsum("mchw,nchw->hwmn", images, images)
    sums = np.zeros((shape[1] + 1, shape[2] + 1, *products.shape[2:]))
    sums[1:, 1:] = products.cumsum(axis=0).cumsum(axis=1)
    intercept = np.outer(change.rows[:, -1], change.rows[:, -1])
    known, found = np.zeros((0, len(images))), list[Patch]()
    for size in range(1, min(_LARGEST, *shape[1:]) + 1):
        inside = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size] + intercept
        values, vectors = np.linalg.eigh(inside)
        single = values[..., -1] > 1 - tolerance**2
        if len(images) > 1:
            single &= values[..., -2] < _SECOND
        for place in np.argwhere(single):
            row = vectors[tuple(place)][:, -1]
            if np.linalg.norm(row - known.T @ (known @ row)) > _NEW:
                found.append(_cut(np.tensordot(row, images, 1), row, tolerance))
                known = np.linalg.qr(np.array([one.coordinates for one in found]).T)[0].T
    return found


def _cut(image: Array, row: Array, tolerance: float) -> Patch:
    """The patch without what is zero around it."""
    sizes = np.abs(image).max(axis=0)
    shown: NDArray[np.bool_] = sizes > max(_OUTSIDE, _ERRORS * tolerance) * sizes.max()
    (top, *_, bottom), (left, *_, right) = (np.repeat(np.flatnonzero(shown.any(axis=axis)), 2) for axis in (1, 0))
    content = image[:, top : bottom + 1, left : right + 1]
    return Patch((int(top), int(left)), content / np.linalg.norm(content), row)
