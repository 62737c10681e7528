"""Recipes: which adapters stand between maps of a kind and the gradients that methods ask for.

The adapters that need no search are here; magnitudes (signs.py) and lost scales (normalised.py) take values to undo.
"""

from dataclasses import replace

import numpy as np

from relumine.adapt.base import Adapter, as_seen
from relumine.adapt.normalised import ScaledByValues
from relumine.adapt.signs import SignsFromValues
from relumine.errors import MisuseError
from relumine.explain.map_kind import ADAPTABLE, MapKind
from relumine.oracle.base import Answer, Array, DType, InFront, Offer, Oracle, checked_inputs, joined
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Clone, Reconstruction, Reconstructor
from relumine.reconstruct.verification import verified
from relumine.reconstruct.verification.domain import Domain

# So far out SmoothGrad's noise, of the size of an input, is lost; the biases keep the digits that remain.
FAR: dict[DType, float] = {"float64": 2.0**12, "float32": 2.0**10}
# What stands in for an input coordinate that is 0, as a share of the input's size (at least 1).
_NUDGE = 2.0**-20


class WithOffer(InFront):
    """An oracle of which more is known than it offers itself. ``one_by_one``: ask for one explanation at a time."""

    def __init__(self, oracle: Oracle, offer: Offer, *, one_by_one: bool = False) -> None:
        if offer.inputs != oracle.offer.inputs or offer.outputs != oracle.offer.outputs:
            raise MisuseError(f"the findings are of another target: {offer} does not describe {oracle.offer}")
        super().__init__(oracle, offer)
        self._one_by_one = one_by_one

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        if not (gradients and self._one_by_one and len(rows) > 1):
            return self._oracle(rows, gradients=gradients)
        return joined(self.offer, [self._oracle(row[None], gradients=True) for row in rows], gradients=True)


class ScaledInputs(InFront):
    """The target seen from afar: f(factor · u) as a function of u, with its gradients.

    SmoothGrad averages gradients at x + noise, and the noise does not grow with x. At ``factor`` times the distance all
    those points lie in one linear region, except next to its boundary, so the average is the gradient. A clone of this
    oracle is the target's with its first layer multiplied by ``factor``.

    power: 2 where explanations are squares of gradients
    """

    def __init__(self, oracle: Oracle, factor: float, *, power: int = 1) -> None:
        if not (np.isfinite(factor) and factor > 1):
            raise MisuseError(f"factor: expected a number above 1, got {factor}")
        if oracle.offer.box is not None:
            raise MisuseError(f"ScaledInputs: inputs must lie in {oracle.offer.box}, so there is no way out")
        super().__init__(oracle, replace(oracle.offer, random=False))
        self.factor = float(factor)
        self._power = power

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        answer = self._oracle(self.factor * rows, gradients=gradients)
        return Answer(answer.values, self.factor**self._power * answer.jacobians if gradients else None)


class DividedByInput(Adapter):
    """Divides each explanation by the input.

    For x ⊙ ∇f(x) the quotient is the gradient, and each coordinate keeps its relative precision. So it is for
    integrated gradients, DeepLift and the like where f is linear between 0 and x up to a positive factor, as in a
    network of one hidden layer without biases. Coordinates that are 0 are asked a little beside it, and these rows'
    values asked for separately.
    """

    def _with_gradients(self, rows: Array) -> Answer:
        asked = self._without_zeros(rows)
        answer = self._oracle(asked, gradients=True)
        values = answer.values.copy()
        moved = (asked != rows).any(axis=1)
        if moved.any():
            values[moved] = self._oracle(rows[moved], gradients=False).values
        return Answer(values, answer.jacobians / as_seen(self.offer, asked)[:, None, :])

    def _without_zeros(self, rows: Array) -> Array:
        nudge = _NUDGE * np.maximum(1, np.abs(rows).max(axis=1, keepdims=True, initial=0))
        highest = np.inf if self.offer.box is None else self.offer.box[1]
        return np.where(np.abs(rows) > nudge * _NUDGE, rows, np.where(rows + nudge > highest, -nudge, nudge))


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


def reconstruct_behind(
    asker: Reconstructor,
    meter: Metered,
    maps: MapKind | None,
    *,
    offer: Offer | None = None,
    one_by_one: bool = False,
    rng: int | np.random.Generator | None = None,
) -> Reconstruction:
    """What ``asker`` finds of a target whose explanations are maps of this kind (None: of no use).

    offer, one_by_one: as a preflight found them. ``spent`` is everything that the meter counted, a preflight included.
    """
    oracle = adapted(meter, maps, offer, one_by_one=one_by_one)
    if oracle is meter:
        before, result = meter.spent, asker(meter, rng)
        return replace(result, spent=before.then(result.spent))
    smoothed, inputs = maps is not None and maps.smoothing is not None, getattr(asker, "inputs", None)
    if smoothed and inputs is not None:  # it asks in other coordinates, far away
        asker = replace(asker, inputs=None)  # type: ignore[type-var]
    with meter.phase("behind the adapter"):
        result = asker(oracle, rng)
    if smoothed and result.clone is not None:
        # Compared far out so far; near the origin, where biases matter, a clone from afar has fewer digits.
        result = replace(result, clone=restored(result.clone, maps, oracle.offer.dtype))
        result = verified(result, meter, np.random.default_rng(rng), Domain.as_they_are(meter.offer, inputs))
    return replace(result, spent=meter.spent)
