"""Experiment and Row: what to run, and what came out. Plain data that can be written as JSON and read back."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from relumine.errors import MisuseError
from relumine.explain.map_kind import ExplanationName
from relumine.jobs.provenance import Provenance
from relumine.jobs.store import read

Source = Literal["pool", "gaussian", "active"]
Loss = Literal["joint", "membership", "exact", "head"]

# The outcome of a row whose experiment raised an error; the others are the names of relumine.Outcome.
FAILED = "FAILED"


@dataclass(frozen=True)
class Target:
    """A network of the zoo trained on its part of a dataset; what ``zoo.dataset`` and ``zoo.trained`` are told."""

    network: str
    data: str
    standardise: bool = False
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Access:
    """What the endpoint answers.

    explanation: which map is shown where gradients are asked
    classes:     of which outputs: "all", "top", or the index of one
    of:          what values are, and what is explained: "logits", "probabilities" or "log-probabilities"
    sigma:       SmoothGrad's noise in units of σ_D, the standard deviation of the data
    samples:     SmoothGrad's N, or the steps of integrated gradients
    """

    explanation: ExplanationName = "gradient"
    classes: Literal["all", "top"] | int = "all"
    of: Literal["logits", "probabilities", "log-probabilities"] = "logits"
    sigma: float | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        _require_one_of("Access.explanation", self.explanation, get_args(ExplanationName))
        if (self.sigma is not None) != (self.explanation == "smoothgrad"):
            raise MisuseError(f"Access.sigma: belongs to 'smoothgrad' and only there, got {self.sigma}")


@dataclass(frozen=True)
class Student:
    """The network that is trained on the answers."""

    network: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One student trained on one set of answers.

    source:   where queries come from: the student's "pool", N(0, I) ("gaussian"), or "active" choice from the pool
    loss:     "joint", "membership" (asks for values only), or no student: "exact" (of "pool" images TwoLayer(inputs=…),
              else Auto), or "head" (Head, where all but the target's last layer is public)
    budget:   queries; of "exact" and "head" the most
    seed:     of everything random apart from the target
    settings: further fields of GradientMatching, such as steps and batch
    """

    target: Target
    student: Student
    budget: int
    access: Access = field(default_factory=Access)
    source: Source = "pool"
    loss: Loss = "joint"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_one_of("Experiment.source", self.source, get_args(Source))
        _require_one_of("Experiment.loss", self.loss, get_args(Loss))
        if self.budget < 1:
            raise MisuseError(f"Experiment.budget: expected at least 1 query, got {self.budget}")

    @cached_property
    def key(self) -> str:
        """What this experiment is known by: the same for equal experiments, in every process and on every machine."""
        return key_of(self)

    def __str__(self) -> str:
        target, student = self.target, self.student.network
        asked = "values" if self.loss == "membership" else f"{self.access.explanation} of {self.access.classes}"
        return f"{target.data} {target.network} by {student}, {self.budget} {self.source} × {asked}, seed {self.seed}"


@dataclass(frozen=True)
class Measures:
    """How good the student is.

    test_accuracy:      share of test inputs whose label the student gives the largest output
    target_accuracy:    the same of the target
    agreement:          share of test inputs on which student and target give the same output the largest value
    gaussian_agreement: the same on inputs from N(0, I)
    worst_gap:          largest |student − target| of any output on a test input, relative to the target's largest
    """

    test_accuracy: float
    target_accuracy: float
    agreement: float
    gaussian_agreement: float
    worst_gap: float


@dataclass(frozen=True)
class Row:
    """What came out of an experiment.

    outcome:  a name of relumine.Outcome, or "FAILED", in which case ``error`` says why
    remark:   what the reconstruction's evidence says besides
    spent:    value_queries, gradient_queries and floats, as the meter counted them
    measures: None where there is no student to measure
    """

    experiment: Experiment
    outcome: str
    error: str | None
    remark: str
    spent: Mapping[str, int]
    measures: Measures | None
    provenance: Provenance

    @property
    def failed(self) -> bool:
        """Whether the experiment raised an error instead of ending."""
        return self.outcome == FAILED

    @property
    def result(self) -> dict[str, Any]:
        """The row without its provenance: equal for every run of the same experiment."""
        return {name: part for name, part in asdict(self).items() if name != "provenance"}

    def to_json(self) -> str:
        return json.dumps({"key": self.experiment.key, **asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> "Row":
        plain = json.loads(line)
        del plain["key"]
        return read(cls, plain)


def key_of(record: Experiment | Target) -> str:
    """A digest of what a record holds."""
    return hashlib.sha256(json.dumps(asdict(record), sort_keys=True).encode()).hexdigest()[:20]


def _require_one_of(field: str, got: object, expected: tuple[str, ...]) -> None:
    if got not in expected:
        raise MisuseError(f"{field}: expected one of {', '.join(expected)}, got {got!r}")
