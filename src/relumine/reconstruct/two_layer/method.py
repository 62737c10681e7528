"""TwoLayer: any network with one hidden layer, with K outputs from little more than h/K gradient queries."""

from dataclasses import dataclass, field, replace

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array, Offer, Oracle
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.network import Network
from relumine.reconstruct.piecewise import named
from relumine.reconstruct.result import Outcome, Reconstruction, attempt
from relumine.reconstruct.tensor.ordinary import OrdinaryRun
from relumine.reconstruct.tensor.run import TensorRun
from relumine.reconstruct.tensor.smooth import SmoothRun
from relumine.reconstruct.top_class.method import TopRun
from relumine.reconstruct.two_layer.agreement import TwoLayerRun
from relumine.reconstruct.two_layer.line import LineRun
from relumine.reconstruct.two_layer.one_output import OneOutputRun
from relumine.reconstruct.values.explained import ExplainedRun
from relumine.reconstruct.verification import FRESH_POINTS, verified
from relumine.reconstruct.verification.domain import Domain, rows_of

# After these outcomes of the tensor a line is searched: parallel rows and outputs are told apart there.
_DOUBTED = (Outcome.NOT_THIS_CLASS, Outcome.NOT_VERIFIED)
_LEAST = 10
# With fewer inputs a layer mostly has more units than inputs, and a line is searched at once.
_INPUTS = 20
_MOST = 20_000


@dataclass(frozen=True)
class TwoLayer:
    """Reconstruct x ↦ W relu(Ax + b) + c exactly: any norms, biases, h unknown, h > d, any number of outputs.

    The Jacobians at h/K inputs and a few more are decomposed into units (the tensor package), with one output those
    on twelve lines through one point (one_output.py); what that leaves open is searched on a line (line.py). Signs and
    orientations need no queries (shallow.py). The result is compared with the target at fresh points, at points close
    to the recovered boundaries, where a wrong one would show, and from 1e-3 to 1e12 times N(0, I): units that switch
    far out are mended there. Other activations than ReLU: see tensor/smooth.py.

    Where one output is explained at a time (the largest, or one of your choice) rather than all, see top_class/ for
    logits and values/explained.py for probabilities.

    limit: give up after this many gradient queries; None means 20,000
    points: how many fresh points to compare, by value queries, half of them at N(0, I) where answers are exact; with
        one output the answers with gradients count, too
    inputs: ask these only, n×d or n×shape, in their order and as few as needed: what the explanations of ordinary
        requests tell (tensor/ordinary.py). Units that never switch among them stay part of an affine function; the
        outcome is then INCOMPLETE, and its remark says how many were found and how the clone agrees at unused inputs
    """

    limit: int | None = None
    points: int = FRESH_POINTS
    inputs: Array | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.most < _LEAST or self.points < 1:
            got = f"got {self.limit} and {self.points}"
            raise MisuseError(f"TwoLayer: expected limit >= {_LEAST} and points >= 1, {got}")

    @property
    def most(self) -> int:
        """The most gradient queries."""
        return _MOST if self.limit is None else self.limit

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        offer = oracle.offer
        if offer.gradients == "none" or offer.values in ("label", "none"):
            raise MisuseError(
                f"TwoLayer needs values and gradients; the oracle offers values={offer.values!r}, "
                f"gradients={offer.gradients!r}. Use TwoLayerFromValues() where there are values only"
            )
        if self.inputs is not None and not tells_units_apart(offer):
            raise MisuseError(
                "TwoLayer(inputs=…) needs the gradients of two outputs or more at every input; the oracle offers "
                f"{offer.gradient_rows} of {offer.outputs} {offer.values}. Leave inputs out to let it choose its own"
            )
        meter, generator = metered(oracle), np.random.default_rng(rng)
        result = self.search(meter, generator)
        # What is said of given inputs is said of these; they may lie anywhere.
        return result if self.inputs is not None else verified(result, meter, generator)

    def search(self, meter: Metered, rng: np.random.Generator, domain: Domain | None = None) -> Reconstruction:
        """The same, but what is not searched by ``TwoLayerRun`` is compared at N(0, I) alone.

        domain: where a clone must be right, in the coordinates of ``meter``
        """
        before = meter.spent
        run = self._run(meter, rng)
        if isinstance(run, TwoLayerRun):
            run.domain = domain or run.domain
        outcome, remark = attempt(run.reconstruct)
        left = self.most - meter.spent.since(before).gradient_queries
        searched = isinstance(run, TensorRun) and not isinstance(run, OrdinaryRun) and not run.asker.blurred
        if outcome in _DOUBTED and searched and left >= _LEAST:
            seen = run.seen if isinstance(run, OneOutputRun) else None
            run = LineRun(replace(self, limit=left), meter, rng, seen)
            run.domain = domain or run.domain
            outcome, remark = attempt(run.reconstruct)
        if self.inputs is None and isinstance(run, TwoLayerRun) and run.smooth(outcome):
            run = SmoothRun(meter, rng, run.asker.seen(), limit=self.most, points=self.points)
            outcome, remark = attempt(run.reconstruct)
        clone, evidence = run.clone(), run.evidence(remark)
        if isinstance(clone, Network) and outcome is Outcome.RECOVERED:
            clone = named(clone, evidence.noise_floor or 0.0)
        return Reconstruction(clone, outcome, meter.spent.since(before), evidence, repr(self))

    def _run(self, meter: Metered, rng: np.random.Generator) -> TwoLayerRun | TopRun | ExplainedRun | SmoothRun:
        offer = meter.offer
        if self.inputs is not None:
            return OrdinaryRun(self, meter, rng, rows_of(offer, self.inputs))
        if offer.gradient_rows < offer.outputs and not _one(offer):  # of two probabilities one tells the other
            if offer.values == "probabilities":
                return ExplainedRun(meter, rng, most=self.most, points=self.points)
            return TopRun(meter, rng, limit=self.most, points=self.points)
        if not _one(offer):
            return TensorRun(self, meter, rng)
        return (OneOutputRun if _on_lines_through_one_point(offer) else LineRun)(self, meter, rng)


def tells_units_apart(offer: Offer) -> bool:
    """Whether explanations of any inputs do, as ``inputs`` needs: those of two outputs or more at once."""
    return offer.gradient_rows == offer.outputs and not _one(offer)


def _one(offer: Offer) -> bool:
    """Whether outputs are multiples of one."""
    return offer.outputs == 1 or (offer.outputs == 2 and offer.values == "probabilities")


def _on_lines_through_one_point(offer: Offer) -> bool:
    """Whether one output is searched there first: exact numbers, and enough inputs that units may be fewer."""
    exact = offer.dtype == "float64" and offer.values != "probabilities"
    return exact and offer.box is None and offer.dimension >= _INPUTS
