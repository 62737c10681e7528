"""Auto: the simplest method that explains the target."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from relumine.oracle.base import Offer, Oracle
from relumine.oracle.metering.metered import Spent, Tally, metered
from relumine.oracle.metering.recording import Recorder
from relumine.reconstruct.deep.method import Deep
from relumine.reconstruct.linear import Linear
from relumine.reconstruct.result import Outcome, Reconstruction, Reconstructor
from relumine.reconstruct.two_layer.method import TwoLayer
from relumine.reconstruct.values.method import TwoLayerFromValues

# What no other method would change; what rules out the exact methods that follow.
_FINAL = (Outcome.RECOVERED, Outcome.BUDGET_EXHAUSTED)
_HOPELESS = (Outcome.NOT_PIECEWISE_LINEAR, Outcome.SATURATED)
# What gradients show to have more than one hidden layer, values would only show again.
_ONE_EXPLAINED = "two layers, one output explained"
_SAID_AGAIN = (_ONE_EXPLAINED, Outcome.NOT_THIS_CLASS)
_STUDENT_NEXT = "no exact method applies; a student learns from the same answers: Auto(student=GradientMatching(…))"


@dataclass(frozen=True)
class Auto:
    """A linear model first, which costs a few queries to rule out; then one hidden layer, then several.

    Where gradients of all outputs are offered these are used; where one output is explained at a time, for one hidden
    layer at most; else values alone, for one hidden layer too. All steps ask through one meter, and ``spent`` books
    each phase under the name of its step; several layers are searched with the answers that ruled out one. The first
    recovered clone is returned, or what the last step said.

    student: a method for what no exact one could reconstruct, e.g. GradientMatching(…)
    """

    student: Reconstructor | None = None

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        meter = Recorder(metered(oracle))
        generator = np.random.default_rng(rng)
        phases: dict[str, Tally] = {}
        for name, method in _steps(meter.offer).items():
            before = meter.spent
            result = method(meter, generator)
            phases |= {f"{name}: {phase}": tally for phase, tally in meter.spent.since(before).phases.items()}
            if result.outcome in _FINAL:
                return replace(result, spent=Spent.of(phases))
            if result.outcome in _HOPELESS or (name, result.outcome) == _SAID_AGAIN:
                break
        if self.student is None:
            remark = "; ".join(filter(None, (result.evidence.remark, _STUDENT_NEXT)))
            return replace(result, spent=Spent.of(phases), evidence=replace(result.evidence, remark=remark))
        before = meter.spent
        result = self.student(meter, generator)
        phases |= {f"student: {phase}": tally for phase, tally in meter.spent.since(before).phases.items()}
        return replace(result, spent=Spent.of(phases))


def _steps(offer: Offer) -> dict[str, Callable[[Recorder, np.random.Generator], Reconstruction]]:
    if offer.gradient_rows == offer.outputs:
        return {"linear": Linear(), "two layers": TwoLayer(), "deep": _deep}
    if offer.gradients != "none":
        return {"linear": Linear(), _ONE_EXPLAINED: TwoLayer(), "two layers from values": TwoLayerFromValues()}
    return {"linear": Linear(), "two layers from values": TwoLayerFromValues()}


def _deep(meter: Recorder, rng: np.random.Generator) -> Reconstruction:
    return Deep().after(meter.kept(), meter, rng)
