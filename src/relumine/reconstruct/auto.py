"""Auto: the simplest method that explains the target."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from relumine.oracle.base import Array, Oracle
from relumine.oracle.metering.metered import Metered, Recorder, Spent, Tally, metered
from relumine.reconstruct.convolutional.method import Convolutional, fits
from relumine.reconstruct.deep.method import Deep
from relumine.reconstruct.linear import Linear
from relumine.reconstruct.result import Outcome, Reconstruction, Reconstructor
from relumine.reconstruct.two_layer.method import TwoLayer
from relumine.reconstruct.values.method import TwoLayerFromValues
from relumine.reconstruct.verification import verified
from relumine.reconstruct.verification.domain import Domain

# What no other method would change; what rules out the exact methods that follow.
_FINAL = (Outcome.RECOVERED, Outcome.BUDGET_EXHAUSTED)
_HOPELESS = (Outcome.NOT_PIECEWISE_LINEAR, Outcome.SATURATED)
# What gradients show to have more than one hidden layer, values would only show again.
_ONE_EXPLAINED = "two layers, one output explained"
_SAID_AGAIN = (_ONE_EXPLAINED, Outcome.NOT_THIS_CLASS)
# Gradient queries after which several layers are given up: six times what any network of benchmarks/deep.py took
# that was recovered. Corners that are nearly sharp can keep the search on lines busy for ever.
_DEEP_LIMIT = 12_000
# Asked early: without kernels it ends after a few queries, and each unit of one layer in turn would take hundreds.
_IMAGES = "convolutions"
_STUDENT_NEXT = "no exact method applies; a student learns from the same answers: Auto(student=GradientMatching(…))"

Step = Callable[[Recorder, np.random.Generator], Reconstruction]


@dataclass(frozen=True)
class Auto:
    """A linear model first, which costs a few queries to rule out; of images convolutional layers, which are told by
    a few more; then one hidden layer, then several.

    Where gradients of all outputs are offered these are used; where one output is explained at a time, for one hidden
    layer at most; else values alone, for one hidden layer too. All steps ask through one meter, and ``spent`` books
    each phase under the name of its step; several layers are searched with the answers that ruled out one. The first
    recovered clone is returned, or what the last step said.

    images: whether convolutional layers are tried, which ends in a student where they are there, and not all recovered
    student: a method for what no exact one could reconstruct, e.g. GradientMatching(…)
    inputs: the owner's inputs, n×d: where to search, and where a clone must be right
    """

    student: Reconstructor | None = None
    images: bool = True
    inputs: Array | Domain | None = field(default=None, repr=False, compare=False)

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        target, generator = metered(oracle), np.random.default_rng(rng)
        domain = Domain.of(target.offer, self.inputs)
        meter = Recorder(domain.standardised(target))
        phases: dict[str, Tally] = {}
        for name, method in self._steps(target, domain).items():
            before = meter.spent
            result = method(meter, generator)
            if name != _IMAGES:
                result = verified(result, meter, generator, domain)
            phases |= {f"{name}: {phase}": tally for phase, tally in meter.spent.since(before).phases.items()}
            if result.outcome in _FINAL or (name == _IMAGES and result.outcome is not Outcome.NOT_THIS_CLASS):
                return domain.restored(replace(result, spent=Spent.of(phases)))
            if result.outcome in _HOPELESS or (name, result.outcome) == _SAID_AGAIN:
                break
        if self.student is None:
            remark = "; ".join(filter(None, (result.evidence.remark, _STUDENT_NEXT)))
            evidence = replace(result.evidence, remark=remark)
            return domain.restored(replace(result, spent=Spent.of(phases), evidence=evidence))
        before = target.spent
        result = self.student(target, generator)
        phases |= {f"student: {phase}": tally for phase, tally in target.spent.since(before).phases.items()}
        return replace(result, spent=Spent.of(phases))

    def _steps(self, target: Metered, domain: Domain) -> dict[str, Step]:
        """The methods that fit the offer, by name."""
        offer = target.offer
        linear, values = Linear(inputs=domain.inner), TwoLayerFromValues(inputs=domain.inner)
        one_hidden = partial(TwoLayer().search, domain=domain.inner)
        if offer.gradient_rows == offer.outputs:
            deep = Deep(limit=_DEEP_LIMIT, inputs=domain.inner)
            # Weights are shared between pixels as they are, not as they are standardised.
            images = Convolutional(inputs=domain.outward(domain.samples) if len(domain.samples) else None)
            return {
                "linear": linear,
                **({_IMAGES: lambda _, rng: images(target, rng)} if self.images and fits(offer) else {}),
                "two layers": one_hidden,
                "deep": lambda meter, rng: deep.after(meter.kept(), meter, rng),
            }
        if offer.gradients != "none":
            return {"linear": linear, _ONE_EXPLAINED: one_hidden, "two layers from values": values}
        return {"linear": linear, "two layers from values": values}
