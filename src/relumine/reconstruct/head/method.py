"""Head: a secret head on a public backbone."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array, Offer, Oracle
from relumine.oracle.metering.metered import metered
from relumine.oracle.metering.recording import Recorder
from relumine.reconstruct.head.asker import Asker
from relumine.reconstruct.head.backbone import backbone_of
from relumine.reconstruct.head.clone import HeadClone
from relumine.reconstruct.head.linear import linear_head
from relumine.reconstruct.result import Clone, Evidence, Outcome, Reconstruction, Stop, attempt
from relumine.reconstruct.verification import FRESH_POINTS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Head:
    """The head of a target whose backbone is public, from gradients with respect to the input.

    J(x) = J_head(φ(x))·J_φ(x), and J_φ is computed from the backbone: a linear head follows from one gradient
    query, one hidden layer from about as many as TwoLayer takes. Only inputs are asked, never chosen features.

    backbone: φ as a torch module that takes the target's inputs, or as an oracle whose values are features and whose
        gradients are theirs (``TorchOracle(module, shape, values="real")``, or a FunctionOracle)
    inputs: the owner's inputs, n×d or n×shape: which are asked, and where a clone must be right; if None they are made
        up, of many sizes, which shows fewer of the units of a hidden layer
    points: how many further inputs are compared, by value queries
    """

    backbone: "Oracle | torch.nn.Module" = field(repr=False, compare=False)
    inputs: Array | None = field(default=None, repr=False, compare=False)
    points: int = FRESH_POINTS

    def __post_init__(self) -> None:
        if self.points < 1:
            raise MisuseError(f"Head: expected points >= 1, got {self.points}")

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        """Reconstruct the head, and compare it at inputs that were not used."""
        offer = oracle.offer
        _check_offer(offer)
        backbone = backbone_of(self.backbone, offer)
        meter = Recorder(metered(oracle))
        before = meter.spent
        run = _HeadRun(self, Asker(meter, backbone, self.inputs, np.random.default_rng(rng)))
        outcome, remark = attempt(run.reconstruct)
        clone = None if run.head is None else HeadClone(backbone, run.head, offer.inputs)
        return Reconstruction(clone, outcome, meter.spent.since(before), run.evidence(remark), repr(self))


class _HeadRun:
    """The state of one reconstruction."""

    def __init__(self, settings: Head, asker: Asker) -> None:
        self._asker = asker
        count = min(settings.points, len(asker.rows) // 2)
        self._points = list(range(len(asker.rows)))[len(asker.rows) - count :]
        self.head: Clone | None = None
        self._gap: float | None = None

    def reconstruct(self) -> None:
        self.head = head = linear_head(self._asker, self._points)
        if head is None:
            raise Stop(Outcome.NOT_THIS_CLASS, "the head is not linear")
        self._gap = float(self._asker.gaps(head, self._points)[0].max())

    def evidence(self, remark: str) -> Evidence:
        points = 0 if self._gap is None else len(self._points)
        return Evidence(None, None, self._gap, points, remark, where="")


def _check_offer(offer: Offer) -> None:
    if offer.gradients == "none" or offer.values in ("label", "none"):
        raise MisuseError(
            f"Head needs values and gradients; the oracle offers values={offer.values!r}, gradients={offer.gradients!r}"
        )
