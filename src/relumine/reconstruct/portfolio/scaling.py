"""Scaling: inputs standardised by the inputs that an attacker holds."""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array

# A column that varies by less than this share of its size is constant up to float32's rounding.
_CONSTANT = 1e-6


@dataclass(frozen=True, eq=False)
class Scaling:
    """x → (x − mean)/scale; both have d numbers."""

    mean: Array
    scale: Array

    def __call__(self, rows: Array) -> Array:
        """n×d inputs, standardised."""
        result: Array = (rows - self.mean) / self.scale
        return result


def by_columns(rows: Array) -> Scaling:
    """Each column by its own mean and deviation; constant columns are only centred."""
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    constant = deviation <= _CONSTANT * np.abs(rows).max(axis=0, initial=0)
    return Scaling(mean, np.where(constant, 1.0, deviation))


def as_a_whole(rows: Array) -> Scaling:
    """All columns by one mean and one deviation: those of images, which have one unit."""
    deviation = float(rows.std())
    return Scaling(np.full(rows.shape[1], rows.mean()), np.full(rows.shape[1], deviation if deviation > 0 else 1.0))
