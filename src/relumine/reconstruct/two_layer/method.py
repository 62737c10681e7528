"""TwoLayer: any network with one hidden layer, with K outputs from about 1.5 gradient queries per K hidden ReLUs."""

from dataclasses import dataclass, replace

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Oracle
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.result import Outcome, Reconstruction, attempt
from relumine.reconstruct.tensor.run import TensorRun
from relumine.reconstruct.tensor.smooth import SmoothRun
from relumine.reconstruct.top_class.method import TopRun
from relumine.reconstruct.two_layer.agreement import Run
from relumine.reconstruct.two_layer.line import LineRun
from relumine.reconstruct.verification import FRESH_POINTS

# After these outcomes of the tensor a line is searched: parallel rows and outputs are told apart there.
_DOUBTED = (Outcome.NOT_THIS_CLASS, Outcome.NOT_VERIFIED)
_LEAST = 10


@dataclass(frozen=True)
class TwoLayer:
    """Reconstruct x ↦ W relu(Ax + b) + c exactly: any norms, biases, h unknown, h > d, any number of outputs.

    The Jacobians at about 1.5·h/K inputs are decomposed into units (the tensor package); what that leaves open, and one
    output, is searched on a line by meeting tangents (line.py, mending.py). Signs and orientations need no queries
    (shallow.py). The result is compared with the target at fresh points, at several scales, and at points close to the
    recovered boundaries, where a wrong one would show. Other activations than ReLU: see tensor/smooth.py.

    Where one output is explained at a time (the largest, or one of your choice) rather than all, see top_class.py.

    limit: give up after this many gradient queries; None means 20,000
    points: how many fresh points to compare, by value queries
    """

    limit: int = 20_000
    points: int = FRESH_POINTS

    def __post_init__(self) -> None:
        if self.limit < _LEAST or self.points < 1:
            got = f"got {self.limit} and {self.points}"
            raise MisuseError(f"TwoLayer: expected limit >= {_LEAST} and points >= 1, {got}")

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        offer = oracle.offer
        if offer.gradients == "none" or offer.values in ("label", "none"):
            raise MisuseError(
                f"TwoLayer needs values and gradients; the oracle offers values={offer.values!r}, "
                f"gradients={offer.gradients!r}. Use TwoLayerFromValues() where there are values only"
            )
        meter = metered(oracle)
        before = meter.spent
        rng = np.random.default_rng(rng)
        run = self._run(meter, rng)
        outcome, remark = attempt(run.reconstruct)
        left = self.limit - meter.spent.since(before).gradient_queries
        if outcome in _DOUBTED and isinstance(run, TensorRun) and left >= _LEAST:
            run = LineRun(replace(self, limit=left), meter, rng)
            outcome, remark = attempt(run.reconstruct)
        if isinstance(run, Run) and run.smooth(outcome):
            run = SmoothRun(meter, rng, run.asker.seen(), limit=self.limit, points=self.points)
            outcome, remark = attempt(run.reconstruct)
        return Reconstruction(run.clone(), outcome, meter.spent.since(before), run.evidence(remark), repr(self))

    def _run(self, meter: Metered, rng: np.random.Generator) -> Run | TopRun | SmoothRun:
        offer = meter.offer
        if offer.gradient_rows < offer.outputs:
            return TopRun(meter, rng, limit=self.limit, points=self.points)
        one = offer.outputs == 1 or (offer.outputs == 2 and offer.values == "probabilities")
        return LineRun(self, meter, rng) if one else TensorRun(self, meter, rng)
