"""Head: a secret head on a public backbone."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Array, Offer, Oracle
from relumine.oracle.metering.metered import Recorder, metered
from relumine.reconstruct.head.asker import HeadAsker
from relumine.reconstruct.head.backbone import backbone_of
from relumine.reconstruct.head.clone import HeadClone
from relumine.reconstruct.head.hidden import RARE, HiddenHead, hidden_head, uncovered
from relumine.reconstruct.head.linear import linear_head
from relumine.reconstruct.head.student import of_row_space, student
from relumine.reconstruct.head.subspace import LeftTheRowSpaceError
from relumine.reconstruct.result import Clone, Evidence, Outcome, Reconstruction, Stop, attempt
from relumine.reconstruct.verification import BENT, FRESH_POINTS, TOLERANCE

if TYPE_CHECKING:
    import torch

# A gap may be this many times the error of a pulled-back Jacobian: values add up errors of many units.
_ACCEPTED = 500.0
# Below this gap, relative to the spread of the answers, a head is close enough that no student would be better.
_CLOSE = 1e-2
_QUERIES = 100


@dataclass(frozen=True)
class Head:
    """The head of a target whose backbone is public, from gradients with respect to the input.

    J(x) = J_head(φ(x))·J_φ(x), and J_φ is computed from the backbone: a linear head follows from one gradient
    query, one hidden layer from about as many as TwoLayer takes. Only inputs are asked, never chosen features.

    backbone: φ as a torch module that takes the target's inputs, or as an oracle whose values are features and whose
        gradients are theirs (``TorchOracle(module, shape, values="real")``, or a FunctionOracle)
    inputs: the owner's inputs, n×d or n×shape: which are asked, and where a clone must be right; if None they are made
        up, of many sizes, which shows fewer of the units of a hidden layer
    points: how many further inputs are compared, by value queries; of a head with a hidden layer at least 300, or all
    queries: the most gradient queries; a student of a head with several hidden layers takes them all
    """

    backbone: "Oracle | torch.nn.Module" = field(repr=False, compare=False)
    inputs: Array | None = field(default=None, repr=False, compare=False)
    points: int = FRESH_POINTS
    queries: int = _QUERIES

    def __post_init__(self) -> None:
        if self.points < 1 or self.queries < 1:
            raise MisuseError(f"Head: expected points and queries >= 1, got {self.points} and {self.queries}")

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        """Reconstruct the head, and compare it at inputs that were not used."""
        offer = oracle.offer
        _check_offer(offer)
        backbone = backbone_of(self.backbone, offer)
        meter = Recorder(metered(oracle))
        before = meter.spent
        run = _HeadRun(self, HeadAsker(meter, backbone, self.inputs, self.queries, np.random.default_rng(rng)))
        outcome, remark = attempt(run.reconstruct)
        clone = None if run.head is None else HeadClone(backbone, run.head, offer.inputs)
        return Reconstruction(clone, outcome, meter.spent.since(before), run.evidence(remark), repr(self))


class _HeadRun:
    """The state of one reconstruction."""

    def __init__(self, settings: Head, asker: HeadAsker) -> None:
        self._settings, self._asker = settings, asker
        count = min(settings.points, len(asker.rows) // 2)
        self._points = list(range(len(asker.rows)))[len(asker.rows) - count :]
        self.head: Clone | None = None
        self._gap: float | None = None
        self._same = 0.0

    def reconstruct(self) -> None:
        """A linear head; else one hidden layer; else a student."""
        asker = self._asker
        self.head = linear_head(asker, self._points)
        if self.head is not None:
            self._compare()
            return
        if asker.offer.gradient_rows < asker.offer.outputs or asker.offer.outputs == 1:
            raise Stop(
                Outcome.NOT_THIS_CLASS,
                "the head is not linear, and a hidden layer is told from the gradients of two outputs or more at once",
            )
        found = self._hidden()
        outcome, remark = found.outcome, found.remark
        if outcome is Outcome.RECOVERED and self._gap is not None and self._gap <= self._tolerance(found):
            if (share := uncovered(asker, found.space.space)) > 0:
                remark = f"{share:.1%} of the inputs have a feature on whose weights too few answers show"
                raise Stop(outcome if share <= RARE else Outcome.INCOMPLETE, remark)
            return
        if outcome is Outcome.BUDGET_EXHAUSTED or self._nearly(outcome):
            raise Stop(Outcome.NOT_VERIFIED if outcome is Outcome.RECOVERED else outcome, remark)
        self._fit(found)

    def _hidden(self) -> HiddenHead:
        """One hidden layer."""
        settings = self._settings
        found = hidden_head(self._asker, len(self._points))
        self.head = found.network
        if self.head is not None:
            self._points = self._asker.compared(settings.points)
            self._compare()
        return found

    def _tolerance(self, found: HiddenHead) -> float:
        """As of every method; digits that pulling back costs are known."""
        return max(TOLERANCE[self._asker.offer.dtype], min(_ACCEPTED * found.space.error, BENT))

    def _nearly(self, outcome: Outcome) -> bool:
        """Whether what was found is close, and no student would be better."""
        close = self._gap is not None and self._gap <= _CLOSE
        return close and outcome in (Outcome.RECOVERED, Outcome.INCOMPLETE)

    def _fit(self, found: HiddenHead) -> None:
        """A student of the Jacobians asked so far and of as many more as are allowed."""
        asker = self._asker
        left = [i for i in asker.unasked if i not in set(self._points)]
        places = [*asker.asked, *left][: self._settings.queries]
        exact, before, same = self.head, self._gap, self._same
        try:
            fitted = student(found.space, places, asker.rng)
        except LeftTheRowSpaceError:
            fitted = None
        if fitted is not None and fitted.clone is not None:
            self.head = of_row_space(fitted.clone, found.space.space.basis)
            self._compare()
        if exact is not None and same >= self._same:
            self.head, self._gap, self._same = exact, before, same
            raise Stop(found.outcome if found.outcome is not Outcome.RECOVERED else Outcome.NOT_VERIFIED, found.remark)
        raise Stop(
            Outcome.FITTED,
            f"the head has more than one hidden layer, or units that these inputs do not tell apart ({found.remark}); "
            f"a student of {len(places)} Jacobians answers the same class at {self._same:.1%} of "
            f"{len(self._points)} inputs",
        )

    def _compare(self) -> None:
        """How far the head is off at the compared inputs."""
        assert self.head is not None
        gaps, self._same = self._asker.gaps(self.head, self._points)
        self._gap = float(gaps.max())

    def evidence(self, remark: str) -> Evidence:
        points = 0 if self._gap is None else len(self._points)
        where = "at given inputs" if self._asker.given else "at inputs that were made up"
        return Evidence(None, None, self._gap, points, remark, where=f"{where} whose gradients were not asked")


def _check_offer(offer: Offer) -> None:
    if offer.gradients == "none" or offer.values in ("label", "none"):
        raise MisuseError(
            f"Head needs values and gradients; the oracle offers values={offer.values!r}, gradients={offer.gradients!r}"
        )
