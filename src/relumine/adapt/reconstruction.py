"""Reconstructing behind an adapter: counted at the target, verified in the target's own inputs."""

from dataclasses import replace

import numpy as np

from relumine.adapt.recipes import adapted, restored
from relumine.adapt.with_offer import WithOffer
from relumine.explain.map_kind import GRADIENT, MapKind
from relumine.oracle.base import Offer
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.result import Outcome, Reconstruction, Reconstructor
from relumine.reconstruct.verification import FRESH_POINTS, TOLERANCE, fresh_points, relative_gap


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
    offer = offer or meter.offer
    offer = replace(offer, gradients="none") if maps is None else offer
    if maps in (GRADIENT, None) and offer == meter.offer and not one_by_one:
        before, result = meter.spent, asker(meter, rng)
        return replace(result, spent=before.then(result.spent))
    told = WithOffer(meter, offer, one_by_one=one_by_one)
    with meter.phase("behind the adapter"):
        result = asker(told if maps is None else adapted(told, maps), rng)
    if maps is not None and maps.smoothing is not None and result.clone is not None:
        result = _verified(replace(result, clone=restored(result.clone, maps, offer.dtype)), meter, rng)
    return replace(result, spent=meter.spent)


def _verified(result: Reconstruction, meter: Metered, rng: int | np.random.Generator | None) -> Reconstruction:
    """Compared far out so far; near the origin, where biases matter, a clone from afar has fewer digits."""
    if result.outcome is not Outcome.RECOVERED:
        return result
    points = fresh_points(meter.offer, FRESH_POINTS, np.random.default_rng(rng))
    with meter.phase("verify"):
        gap = relative_gap(result.predict, meter, points)
    outcome = Outcome.RECOVERED if gap <= TOLERANCE[meter.offer.dtype] else Outcome.NOT_VERIFIED
    evidence = replace(result.evidence, verification_gap=gap, verification_points=FRESH_POINTS)
    return replace(result, outcome=outcome, evidence=evidence)
