"""Reconstructing behind an adapter: counted at the target, verified in the target's own inputs."""

from dataclasses import replace

import numpy as np

from relumine.adapt.recipes import adapted, restored
from relumine.explain.map_kind import MapKind
from relumine.oracle.base import Offer
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.result import Reconstruction, Reconstructor
from relumine.reconstruct.verification import verified
from relumine.reconstruct.verification.domain import Domain


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
