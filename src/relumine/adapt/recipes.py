"""Recipes: which adapters stand between the explanations of an endpoint and the gradients that methods ask for."""

from dataclasses import replace
from typing import Literal, get_args

from relumine.adapt.divided import DividedByInput
from relumine.adapt.normalised import ScaledByValues
from relumine.adapt.scaled_inputs import ScaledInputs
from relumine.adapt.signs import SignsFromValues
from relumine.errors import MisuseError
from relumine.oracle.base import DType, Oracle
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Clone

Recipe = Literal[
    "gradient",
    "input-times-gradient",
    "absolute",
    "squared",
    "normalised",
    "normalised-input-times-gradient",
    "normalised-absolute",
    "smoothed",
    "smoothed-absolute",
    "smoothed-squared",
]

RECIPES: tuple[Recipe, ...] = get_args(Recipe)

# So far out SmoothGrad's noise, of the size of an input, is lost; the biases keep the digits that remain.
FAR: dict[DType, float] = {"float64": 2.0**12, "float32": 2.0**10}


def adapted(oracle: Oracle, recipe: str) -> Oracle:
    """An oracle whose gradients are gradients, made of one whose explanations are what the recipe's name says."""
    if recipe not in RECIPES:
        raise MisuseError(f"explanation: expected one of {', '.join(RECIPES)}, got {recipe!r}")
    smoothed, kind = recipe.startswith("smoothed"), recipe.removeprefix("smoothed").removeprefix("-")
    power = 2 if kind == "squared" else 1
    asked: Oracle = ScaledInputs(oracle, FAR[oracle.offer.dtype], power=power) if smoothed else oracle
    if kind == "input-times-gradient":
        return DividedByInput(asked)
    if kind in ("absolute", "squared"):
        return SignsFromValues(asked, power=power)
    if kind == "normalised":
        return ScaledByValues(asked)
    if kind == "normalised-input-times-gradient":
        return ScaledByValues(DividedByInput(asked))
    if kind == "normalised-absolute":
        return SignsFromValues(ScaledByValues(asked, signed=False))
    return asked


def restored(clone: Clone, recipe: str, dtype: DType) -> Clone:
    """The target's own clone, of a clone that the adapter led to: seen from afar, inputs were shrunk."""
    if not recipe.startswith("smoothed"):
        return clone
    if not isinstance(clone, Network):
        raise MisuseError(f"restored: expected a network of known layers, got {type(clone).__name__}")
    factor = FAR[dtype]
    first, *rest = clone.weights
    skip = None if clone.skip is None else clone.skip / factor
    return replace(clone, weights=(first / factor, *rest), skip=skip)
