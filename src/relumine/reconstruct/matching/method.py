"""GradientMatching: a student trained on what the oracle answered (the paper's experimental design)."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from relumine.device import device
from relumine.errors import BudgetError, MisuseError
from relumine.explain.map_kind import GRADIENT, MapKind
from relumine.oracle.base import Answer, Array, Offer, Oracle
from relumine.oracle.metering.metered import Spent, metered
from relumine.reconstruct.matching.sources import Source, source_of
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction

if TYPE_CHECKING:
    import torch

    from relumine.explain import Explanation

Loss = Literal["joint", "gradient", "membership"]


# Share of the answers that is held out to keep the best state. Fewer than these judge nothing, and are trained on.
_HELD_OUT, _FEWEST_HELD_OUT = 0.1, 5
# λ where maps tell signs, sizes and scale, and where values have to find them.
_WEIGHT, _WEIGHT_OF_VALUES_FIRST = 0.1, 10.0
_LEAST = {"queries": 1, "steps": 1, "batch": 1, "weight": 0, "relu_smoothing": 0}


@dataclass(frozen=True)
class Fitting:
    """The progress of one fitting."""

    step: int
    steps: int
    loss: float
    validation: float | None


@dataclass(frozen=True, eq=False)
class GradientMatching:
    """Train a student to answer as the oracle did: ℓ_J = ℓ_G + λ·ℓ_M, or either alone.

    Probabilities that have their digits are compared as the logits behind them.

    student:       makes a module from a seed, or is the module to start from (a copy is trained). It takes n×shape
                   tensors and returns n×K logits, or n×K real numbers where the oracle's values are real.
    queries:       how many inputs are asked; with their gradients, unless the loss is "membership"
    source:        "gaussian", an array of inputs to draw from, or a Source such as Medoids(pool)
    loss:          "joint", "gradient" (ℓ_G alone), "membership" (ℓ_M alone)
    weight:        λ; if None 0.1, or 10 where maps have lost signs or scale, or are of probabilities whose logits
                   cannot be known: values have to find the way then. ℓ_G is divided by the mean square of one
                   answered gradient, ℓ_M by the variance of the answered values where these are logits or real, so
                   that λ means the same for every target
    logits_by:     how ℓ_M compares logits: "squared" error, or "cross-entropy" as in the paper, which throws away what
                   they say beyond probabilities
    explanation:   what the answers' gradients are, if not gradients: the same is then asked of the student.
                   None takes them for gradients
    shown:         what the answers' maps are, where a defence leaves less of them: no more is compared of the student
    distorted:     beta and gamma of a reverse sigmoid on probabilities: the student's are distorted alike
    steps, batch, learning_rate: of the optimiser, whose rate falls to 0 along a cosine. A layer of n inputs learns at
                   learning_rate/√n. What diverges begins anew at a quarter of that, five times at most
    optimiser:     "adam", or "muon", which moves a layer in all directions alike: dearer per step, and far better for
                   deep students
    relu_smoothing: half the width of the parabola in place of each ReLU's corner at first, in root mean squares of
                   its pre-activations; 0 fits a plain ReLU network from the start
    checkpoint:    a file; a run that is killed goes on from there to the same result
    watch:         is told where the fitting stands
    """

    student: "Callable[[int], torch.nn.Module] | torch.nn.Module"
    queries: int
    _: KW_ONLY
    source: "str | np.ndarray | Source" = "gaussian"
    loss: Loss = "joint"
    weight: float | None = None
    logits_by: Literal["squared", "cross-entropy"] = "squared"
    explanation: "Explanation | None" = None
    shown: MapKind = GRADIENT
    distorted: tuple[float, float] | None = None
    steps: int = 1000
    batch: int = 32
    learning_rate: float = 0.06
    optimiser: Literal["adam", "muon"] = "adam"
    relu_smoothing: float = 1.0
    checkpoint: str | Path | None = field(default=None, repr=False)
    watch: Callable[[Fitting], None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", source_of(self.source))
        _check(self)

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        """Ask, then fit; the outcome is never more than FITTED, and the evidence says how well."""
        offer = oracle.offer
        _check_offer(self, offer)
        meter, generator = metered(oracle), np.random.default_rng(rng)
        before = meter.spent
        assert isinstance(self.source, Source)
        inputs = self.source.pick(offer, self.queries, generator)
        student = self._student(offer, generator)
        try:
            with meter.phase("ask"):
                answer = meter(inputs, gradients=self.loss != "membership")
        except BudgetError as error:
            remark = Evidence(remark=str(error))
            return Reconstruction(None, Outcome.BUDGET_EXHAUSTED, meter.spent.since(before), remark, repr(self))
        return self._fitted(offer, student, inputs, answer, generator, meter.spent.since(before))

    def fit(
        self,
        offer: Offer,
        inputs: Array,
        answer: Answer,
        rng: int | np.random.Generator | None,
        spent: Spent,
        held_out: "np.ndarray | None" = None,
    ) -> Reconstruction:
        """The student of answers that were asked already: ``queries`` and ``source`` do not matter.

        held_out: which answers judge it; a random tenth if nothing is said
        """
        _check_offer(self, offer)
        generator = np.random.default_rng(rng)
        return self._fitted(offer, self._student(offer, generator), inputs, answer, generator, spent, held_out)

    def _student(self, offer: Offer, rng: np.random.Generator) -> "torch.nn.Module":
        from relumine.reconstruct.matching.student import checked_student

        return checked_student(self.student, int(rng.integers(2**31)), offer)

    def _fitted(
        self,
        offer: Offer,
        student: "torch.nn.Module",
        inputs: Array,
        answer: Answer,
        rng: np.random.Generator,
        spent: Spent,
        judges: "np.ndarray | None" = None,
    ) -> Reconstruction:
        import torch

        from relumine.reconstruct.matching.fit import fit
        from relumine.reconstruct.matching.logits import Queried, in_logits_if_known
        from relumine.reconstruct.matching.loss import Matching
        from relumine.reconstruct.matching.student import StudentClone

        like = next(student.to(device()).parameters()).detach()
        logits = in_logits_if_known(offer, inputs, answer) if self._plain else None
        task = Matching(self, logits or Queried(offer, inputs, answer), like)
        held_out = torch.from_numpy(self._held_out(len(task), rng) if judges is None else judges)
        gap = fit(self, student, task, held_out, rng)
        clone = StudentClone(student.to("cpu"), offer.inputs, "probabilities" if logits else task.answered)
        evidence = Evidence(
            verification_gap=gap,
            verification_points=len(held_out),
            remark="the gap is the loss on held-out answers" if len(held_out) else "too few answers to hold any out",
        )
        return Reconstruction(clone, Outcome.FITTED, spent, evidence, repr(self))

    @property
    def _plain(self) -> bool:
        """Whether answers are values and gradients themselves, so that those of logits follow from probabilities'."""
        from relumine.explain import Gradient

        gradients = self.loss == "membership" or self.explanation in (None, Gradient())
        return gradients and self.shown == GRADIENT and self.distorted is None

    def weight_of(self, offer: Offer) -> float:
        """λ for answers of this offer."""
        if self.weight is not None:
            return self.weight
        told = self.explanation is None or self.explanation.linear
        flat = (offer.explained or offer.values) == "probabilities"
        return _WEIGHT if told and not self.shown.partial and not flat else _WEIGHT_OF_VALUES_FIRST

    def _held_out(self, count: int, rng: np.random.Generator) -> "np.ndarray":
        """Which answers judge the student instead of training it: none of a few, where each says too much."""
        held = int(_HELD_OUT * count)
        return rng.permutation(count)[: held if held >= _FEWEST_HELD_OUT else 0]


def _check(method: GradientMatching) -> None:
    for name, least in _LEAST.items():
        if getattr(method, name) is not None and not getattr(method, name) >= least:
            raise MisuseError(f"{name}: expected at least {least}, got {getattr(method, name)}")
    if method.optimiser not in ("adam", "muon"):
        raise MisuseError(f"optimiser: expected 'adam' or 'muon', got {method.optimiser!r}")
    if method.logits_by not in ("squared", "cross-entropy"):
        raise MisuseError(f"logits_by: expected 'squared' or 'cross-entropy', got {method.logits_by!r}")
    if not method.learning_rate > 0:
        raise MisuseError(f"learning_rate: expected a positive number, got {method.learning_rate}")


def _check_offer(method: GradientMatching, offer: Offer) -> None:
    if method.loss != "membership" and offer.gradients == "none":
        raise MisuseError("GradientMatching: the oracle offers no gradients; say loss='membership'")
    if method.loss != "gradient" and offer.values == "none":
        raise MisuseError("GradientMatching: the oracle offers no values; say loss='gradient'")
