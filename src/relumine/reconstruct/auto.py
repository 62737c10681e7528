"""Auto: the simplest method that explains the target."""

from dataclasses import dataclass, replace

import numpy as np

from relumine.oracle.base import Offer, Oracle
from relumine.oracle.metered import Spent, Tally, metered
from relumine.reconstruct.linear import Linear
from relumine.reconstruct.result import Outcome, Reconstruction, Reconstructor
from relumine.reconstruct.two_layer import TwoLayer
from relumine.reconstruct.values import TwoLayerFromValues


@dataclass(frozen=True)
class Auto:
    """A linear model first, which costs a few queries to rule out; then one hidden layer.

    The second step uses gradients where all of them are offered, else values alone. All steps ask through one
    meter, and ``spent`` books each phase under the name of its step. The first recovered clone is returned, or what
    the last step said.
    """

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        meter = metered(oracle)
        generator = np.random.default_rng(rng)
        phases: dict[str, Tally] = {}
        for name, method in _steps(meter.offer).items():
            before = meter.spent
            result = method(meter, generator)
            phases |= {f"{name}: {phase}": tally for phase, tally in meter.spent.since(before).phases.items()}
            if result.outcome in (Outcome.RECOVERED, Outcome.BUDGET_EXHAUSTED):
                break
        return replace(result, spent=Spent.of(phases))


def _steps(offer: Offer) -> dict[str, Reconstructor]:
    if offer.gradient_rows == offer.outputs:
        return {"linear": Linear(), "two layers": TwoLayer()}
    return {"linear": Linear(), "two layers from values": TwoLayerFromValues()}
