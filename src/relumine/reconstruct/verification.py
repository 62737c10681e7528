"""Verification: no reconstruction is called recovered before it met the target at fresh points."""

from collections.abc import Callable

import numpy as np

from relumine.oracle.base import Array, DType, Offer, Oracle

# Largest gap, relative to the largest answer, at which a clone counts as equal. float64 leaves room for sums over
# thousands of units; in float32 the target itself is only known to about 1e-6 of its largest value.
TOLERANCE: dict[DType, float] = {"float64": 1e-9, "float32": 1e-4}

# By default this many fresh points are compared: disagreement on less than 8 % of them at 95 % confidence. Exact
# methods add points that lie close to the boundaries they found, where a wrong one would show.
FRESH_POINTS = 40


def fresh_points(offer: Offer, count: int, rng: np.random.Generator) -> Array:
    """Points that no search has seen: N(0, I); in a valid box every second one uniform, the others near its corners."""
    if offer.box is None:
        return rng.standard_normal((count, offer.dimension))
    low, high = offer.box
    share = rng.uniform(size=(count, offer.dimension))
    share[1::2] = rng.beta(0.2, 0.2, size=share[1::2].shape)
    return low + (high - low) * share


def relative_gap(predict: Callable[[Array], Array], oracle: Oracle, inputs: Array) -> float:
    """Largest |prediction − answer| at ``inputs``, relative to the largest |answer| there. Asks value queries."""
    answers = oracle(inputs, gradients=False).values
    largest = np.abs(answers).max(initial=0)
    gap = np.abs(predict(inputs) - answers).max(initial=0)
    return float(gap / largest) if largest > 0 else float(gap)
