"""Contributions as functions of their own feature alone: what they are for stumps, linear and other additive models."""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array


@dataclass(frozen=True, eq=False)
class Steps:
    """A piecewise constant function of one number, with K values: those of the nearest place that was seen."""

    places: Array
    values: Array

    @classmethod
    def through(cls, places: Array, values: Array) -> "Steps":
        """Means where a place was seen more than once. ``values``: n×K."""
        known, which, times = np.unique(places, return_inverse=True, return_counts=True)
        sums = np.zeros((len(known), values.shape[1]))
        np.add.at(sums, which, values)
        return cls(known, sums / times[:, None])

    def __call__(self, places: Array) -> Array:
        middles = (self.places[1:] + self.places[:-1]) / 2
        result: Array = self.values[np.searchsorted(middles, places)]
        return result


@dataclass(frozen=True, eq=False)
class PerFeature:
    """n×d inputs to n×K sums of contributions, each a function of its own feature."""

    steps: tuple[Steps, ...]

    @classmethod
    def learned(cls, rows: Array, contributions: Array) -> "PerFeature":
        """From n×K×d contributions."""
        return cls(tuple(Steps.through(rows[:, j], contributions[:, :, j]) for j in range(rows.shape[1])))

    def __call__(self, rows: Array) -> Array:
        total: Array = np.sum([step(rows[:, j]) for j, step in enumerate(self.steps)], axis=0)
        return total
