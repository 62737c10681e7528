"""Pulling gradients back through the backbone: J = C·J_φ is solved for C, the Jacobian of the head."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array, DType

# Directions of feature space in which J_φ is smaller than this part of its largest are not seen: rounding is as large.
_SMALLEST: dict[DType, float] = {"float32": 1e-5, "float64": 1e-12}
# A feature whose unit vector lies in the seen directions up to this is known; others are mixed with what is not seen.
_KNOWN = 1e-3
# The part of a gradient that may lie outside of what J_φ can produce. Rounding is 7e-7 of it in float32 (ResNet-18),
# and implementations may differ where a ReLU of the backbone is close to its corner; another backbone leaves most.
OUTSIDE: dict[DType, float] = {"float32": 1e-2, "float64": 1e-6}


@dataclass(frozen=True, eq=False)
class Pullback:
    """``rows`` R×F: C where it is ``known`` (F), the smallest solution elsewhere.

    outside: the part of the gradients that no C explains; error: of one number of C, relative to the root mean square
    """

    rows: Array
    known: NDArray[np.bool_]
    outside: float
    error: float


def pulled_back(gradients: Array, jacobian: Array, dtype: DType) -> Pullback:
    """C (R×F) with C·J_φ = gradients (R×d), by least squares."""
    left, sizes, right = np.linalg.svd(jacobian, full_matrices=False)
    seen = sizes > _SMALLEST[dtype] * sizes[0]
    left, sizes, right = left[:, seen], sizes[seen], right[seen]
    along = gradients @ right.T
    rows = (along / sizes) @ left.T
    size, (R, d) = float(np.linalg.norm(gradients)), gradients.shape
    missed = float(np.linalg.norm(gradients - along @ right))
    noise = missed / np.sqrt(R * max(1, d - len(sizes))) if d > len(sizes) else 0.0
    noise = max(noise, float(np.finfo(dtype).eps) * size / np.sqrt(R * d))
    known = (left**2).sum(axis=1) > 1 - _KNOWN
    spread = float(np.sqrt(((left[known] / sizes) ** 2).sum(axis=1).mean())) if known.any() else 0.0
    typical = float(np.sqrt(np.mean(rows[:, known] ** 2))) if known.any() else 0.0
    return Pullback(rows, known, missed / (size or 1.0), noise * spread / (typical or 1.0))
