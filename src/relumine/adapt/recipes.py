"""Recipes: which adapters stand between maps of a kind and the gradients that methods ask for."""

from dataclasses import replace

from relumine.adapt.divided import DividedByInput
from relumine.adapt.normalised import ScaledByValues
from relumine.adapt.scaled_inputs import ScaledInputs
from relumine.adapt.signs import SignsFromValues
from relumine.adapt.with_offer import WithOffer
from relumine.errors import MisuseError
from relumine.explain.map_kind import ADAPTABLE, MapKind
from relumine.oracle.base import DType, Offer, Oracle
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Clone

# So far out SmoothGrad's noise, of the size of an input, is lost; the biases keep the digits that remain.
FAR: dict[DType, float] = {"float64": 2.0**12, "float32": 2.0**10}


def adapted(oracle: Oracle, maps: MapKind | None, offer: Offer | None = None, *, one_by_one: bool = False) -> Oracle:
    """An oracle whose gradients are gradients, made of one whose explanations are maps of this kind (None: of no use).

    offer, one_by_one: as a preflight found them
    """
    offer = offer or oracle.offer
    offer = replace(offer, gradients="none") if maps is None else offer
    if offer != oracle.offer or one_by_one:
        oracle = WithOffer(oracle, offer, one_by_one=one_by_one)
    if maps is None:
        return oracle
    if not maps.invertible:
        raise MisuseError(f"explanation: expected one of {', '.join(ADAPTABLE)}, got {maps.word or maps}")
    power = 2 if maps.squared else 1
    asked: Oracle = ScaledInputs(oracle, FAR[oracle.offer.dtype], power=power) if maps.smoothing else oracle
    if maps.times_input:
        asked = DividedByInput(asked)
    if maps.scaled:
        asked = ScaledByValues(asked, signed=not maps.magnitudes)
    return SignsFromValues(asked, power=power) if maps.magnitudes else asked


def restored(clone: Clone, maps: MapKind | None, dtype: DType) -> Clone:
    """The target's own clone, of a clone that the adapter led to: seen from afar, inputs were shrunk."""
    if maps is None or maps.smoothing is None:
        return clone
    if not isinstance(clone, Network):
        raise MisuseError(f"restored: expected a network of known layers, got {type(clone).__name__}")
    factor = FAR[dtype]
    first, *rest = clone.weights
    skip = None if clone.skip is None else clone.skip / factor
    return replace(clone, weights=(first / factor, *rest), skip=skip)
