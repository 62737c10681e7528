"""Reconstruction, Outcome, Evidence: what a reconstructor returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from relumine.errors import BudgetError, MisuseError
from relumine.oracle.base import Array, Oracle
from relumine.oracle.metering.metered import Spent

if TYPE_CHECKING:
    import numpy as np
    import torch


class Outcome(Enum):
    """What happened, and what to change."""

    RECOVERED = "The reconstruction equals the target on every fresh point that was compared."
    FITTED = "A student was fitted to the answers: it resembles the target as far as the evidence says, and no more."
    NOT_VERIFIED = "A reconstruction was found, but it differs from the target on fresh points: do not rely on it."
    BUDGET_EXHAUSTED = "The budget ended before the reconstruction did: allow more queries and resume."
    INCOMPLETE = (
        "Only a part of the network was proved; the remark says what is missing and what it may cost: allow more."
    )
    NOT_THIS_CLASS = "The answers do not come from the class of models this method reconstructs: try another method."
    NOT_PIECEWISE_LINEAR = "The gradient changes everywhere, as no hidden layer found explains: try a learned student."
    SEARCH_FAILED = "The search met a case that its assumptions exclude: try another seed, or the method 'two-layer'."
    REFUSED = "The endpoint refused to answer any more: ask for less, in another way, or with the owner's consent."
    SATURATED = "The probabilities are so close to 0 and 1 that they hide the model: offer logits, or smaller inputs."


@dataclass(frozen=True)
class Evidence:
    """What the outcome rests on.

    noise_floor:          relative size of the smallest change that the answers can show
    smallest_spacing:     distance of the two closest kinks on a searched line, where a line was searched
    verification_gap:     largest |prediction − answer| on fresh points, relative to the largest |answer|
    verification_points:  how many fresh points were compared
    remark:               what a reader should know besides
    accuracy:             how close to the target the noise of its answers lets any clone come, where they are noisy:
                          the largest error expected at fresh points, relative to the largest |answer|
    where:                where the clone was compared
    """

    noise_floor: float | None = None
    smallest_spacing: float | None = None
    verification_gap: float | None = None
    verification_points: int = 0
    remark: str = ""
    accuracy: float | None = None
    where: str = ""

    @property
    def disagreement_below(self) -> float | None:
        """With 95 % confidence the clone differs from the target on less than this share of such points."""
        return 3 / self.verification_points if self.verification_points else None

    def and_met(self, gap: float, points: int, where: str) -> "Evidence":
        """This and a further comparison."""
        gap, points = max(gap, self.verification_gap or 0.0), self.verification_points + points
        return replace(self, verification_gap=gap, verification_points=points, where=where)


class Stop(Exception):
    """Ends a reconstruction early, with this outcome; never seen outside."""

    def __init__(self, outcome: Outcome, remark: str = "") -> None:
        super().__init__(remark)
        self.outcome = outcome
        self.remark = remark


def attempt(run: Callable[[], object]) -> tuple[Outcome, str]:
    """Run a method to its end, to a ``Stop`` or to the end of the budget: the outcome, and what to remark about it."""
    try:
        run()
    except Stop as stop:
        return stop.outcome, stop.remark
    except BudgetError as error:
        return Outcome.BUDGET_EXHAUSTED, str(error)
    return Outcome.RECOVERED, ""


class Clone(Protocol):
    """A reconstructed model: it predicts, and can be taken elsewhere."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units per hidden layer; of a student that is any model nothing is known."""
        return ()

    @property
    def parameters(self) -> "Mapping[str, np.ndarray]":
        """The parameters by name, where they have names."""
        return {}

    def predict(self, inputs: Array) -> Array:
        """n×d inputs to n×K outputs, of the kind that the oracle's values were."""

    def to_torch(self) -> "torch.nn.Module":
        """A module that takes n×d (or n×shape) tensors and predicts the same."""

    def save(self, path: str | Path) -> Path:
        """Write a .safetensors or .onnx file."""


@dataclass(frozen=True, repr=False)
class Reconstruction:
    """What came out of asking: a clone (if any), the verdict, the cost and the evidence.

    ``proved`` is what an unfinished run knows for sure: the first layers, as a model whose outputs are the
    pre-activations of the last of them.
    """

    clone: Clone | None
    outcome: Outcome
    spent: Spent
    evidence: Evidence = field(default_factory=Evidence)
    method: str = ""
    proved: Clone | None = None

    def __repr__(self) -> str:
        clone = "no clone" if self.clone is None else f"hidden={self.hidden}"
        queries = f"{self.spent.gradient_queries:,} gradient and {self.spent.value_queries:,} value queries"
        return f"<{self.method or 'reconstruction'}: {self.outcome.name}, {clone}, {queries}>"

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units found per hidden layer; empty for a linear model or when nothing was found."""
        return self.clone.hidden if self.clone else ()

    @property
    def activation(self) -> str | None:
        """What the clone's hidden units compute, such as "relu" or "gelu"; None where there are none."""
        activation = getattr(self.clone, "activation", None)
        return None if activation is None or not self.hidden else str(activation)

    @property
    def parameters(self) -> "Mapping[str, np.ndarray]":
        """The clone's parameters by name."""
        return self._existing().parameters

    def predict(self, inputs: Array) -> Array:
        """What the clone answers to n×d inputs: n×K numbers of the oracle's kind."""
        return self._existing().predict(inputs)

    def to_torch(self) -> "torch.nn.Module":
        """The clone as a torch module."""
        return self._existing().to_torch()

    def save(self, path: str | Path) -> Path:
        """Write the clone as .safetensors or .onnx, by the ending of ``path``."""
        return self._existing().save(path)

    def _existing(self) -> Clone:
        if self.clone is None:
            raise MisuseError(f"there is no clone to use. {self.outcome.value}")
        return self.clone


class Reconstructor(Protocol):
    """A method: a frozen record of its configuration, called with an oracle and a source of randomness."""

    def __call__(self, oracle: Oracle, rng: "int | np.random.Generator | None" = None) -> Reconstruction:
        """Reconstruct; failure is an outcome, misuse raises."""
