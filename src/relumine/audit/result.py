"""What an audit found: plain data, from cases that were run to the report that is drawn. Written and read as JSON.

A *case* is one reconstruction: one level of access, one defence, one attack, one budget, one seed. Its outcome is a
*record*. Records of the same level and defence make a *curve*; the best attack at each budget is the curve's point.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, Literal

from relumine.jobs.store import read
from relumine.text import NOTHING, count

# How a curve ended.
Status = Literal["exact", "reached", "not reached", "inconclusive"]
# How grave it is to expose an output; "unknown" where the attacks showed nothing.
Severity = Literal["critical", "high", "medium", "low", "unknown"]
# How a gate ended.
GateStatus = Literal["passed", "failed", "undecided"]

# A curve is known by what is exposed and by the defence in front of it.
CurveKey = tuple[str, str]

# Agreements whose price in queries is asked for.
MILESTONES = (0.5, 0.9, 0.95, 0.99)

# Networks, families of scikit-learn's models, and what learns the contributions of features.
StudentKind = Literal[
    "two_layer", "conv", "linear", "kernel", "nearest", "forest", "boosted", "contributions", "head", "bag of tokens"
]


@dataclass(frozen=True)
class AttackKey:
    """What an attack is.

    kind:     "exact" aims at the target itself, a "student" learns to answer as it does
    of:       what it uses: explanations with the values that come with them, values alone, or of these the label
    adapted:  it makes gradients of other maps, or asks in a way that a defence answers
    averaged: each of its answers is the mean of several
    ordinary: it asks inputs like those of the owner's users, and none of its own choice
    student:  what it trains
    """

    kind: Literal["exact", "student"]
    of: Literal["explanations", "values", "labels"] = "explanations"
    adapted: bool = False
    averaged: bool = False
    ordinary: bool = False
    student: StudentKind = "two_layer"

    @property
    def name(self) -> str:
        """By which results and readers know it."""
        base = _BASES[self.kind, self.of == "explanations"]
        form = {"two_layer": "", "conv": "convolutional", "head": "head of the backbone"}.get(
            self.student, self.student
        )
        ways = {"adapted": self.adapted, "averaged": self.averaged, "labels": self.of == "labels", form: form != ""}
        ways |= {"ordinary requests": self.ordinary}
        return ", ".join([base, *(way for way, used in ways.items() if used)])


_BASES = {
    ("exact", True): "exact",
    ("exact", False): "exact, from values",
    ("student", True): "learned",
    ("student", False): "values-only student",
}


# From the explanations of requests that look like anybody's.
ORDINARY = AttackKey("exact", ordinary=True)


def attack_name(written: str, level: str) -> str:
    """The name of today of an attack at a level, of one that an older result may have written."""
    if written == "exact" and level in ("probabilities", "logits", "values"):
        return _BASES["exact", False]
    return written.replace("membership", _BASES["student", False])


@dataclass(frozen=True)
class Case:
    """One reconstruction.

    level:   what is exposed, a name of ``audit.levels.LEVELS``
    defence: the words of a chain of defences (docs/defences.md), "" for none
    attack:  the name of an ``AttackKey``
    budget:  queries that may be asked, at most
    """

    level: str
    defence: str
    attack: str
    budget: int
    seed: int

    @cached_property
    def key(self) -> str:
        """What this case is known by in the run store."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class CloneMeasures:
    """How good a clone is, asked beside the target; nobody's queries.

    agreement:            share of test inputs for which clone and target give the same class
    gaussian_agreement:   the same on N(0, I)
    accuracy:             share of test inputs whose true label the clone gives; None without labels
    target_accuracy:      the same of the target
    worst_gap:            largest |clone − target| of any output on a test input, relative to the target's largest
    transfer:             share of the adversarial examples fooling the clone that fool the target too; None where
                          fewer than ten could be made
    parameters_recovered: share of the target's parameters recovered to 1e-6 relative; None where it cannot be known
    r2:                   of a regression, the share of the target's variance that the clone explains; else None

    Of a regression, agreement is the share of test inputs on which both are close (``measures.CLOSE``).
    """

    agreement: float
    gaussian_agreement: float
    accuracy: float | None
    target_accuracy: float | None
    worst_gap: float
    transfer: float | None
    parameters_recovered: float | None
    r2: float | None = None


@dataclass(frozen=True)
class Record:
    """What came out of a case.

    outcome:  a name of relumine.Outcome, "REFUSED" where the endpoint refused to go on, or "FAILED" with ``error``
    spent:    value_queries, gradient_queries and floats, as the meter counted them; confirming: those of the queries
              that only confirmed a clone which was exact already
    measures: None where there is no clone
    """

    case: Case
    outcome: str
    remark: str
    error: str | None
    spent: Mapping[str, int]
    measures: CloneMeasures | None
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether it ended by an error."""
        return self.outcome == "FAILED"

    @property
    def exact(self) -> bool:
        """Whether the target was recovered exactly, up to what its answers' precision allows."""
        return self.outcome == "RECOVERED"

    @property
    def queries(self) -> int:
        """Rows that were needed: an attacker has the model before it is confirmed."""
        asked = sum(self.spent.get(kind, 0) for kind in ("value_queries", "gradient_queries"))
        return asked - self.spent.get("confirming", 0)


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    mean: float
    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Point:
    """The best attack at one budget.

    attack, …:       the best of this budget and of smaller ones, at this level and at those that are part of it
    queries, floats: really spent, mean over seeds
    exact:           in how many seeds the target was recovered exactly
    highest:         largest agreement of any attack and seed with at most this budget
    tried:           queries put to use at this budget in every seed
    """

    budget: int
    attack: str
    queries: float
    floats: float
    exact: int
    agreement: Spread
    gaussian_agreement: Spread
    worst_gap: Spread
    highest: float = 1.0
    tried: int = 0
    accuracy: Spread | None = None
    transfer: Spread | None = None
    parameters_recovered: Spread | None = None
    r2: Spread | None = None


@dataclass(frozen=True)
class Need:
    """The queries that a milestone took: None where it was not reached within ``tried`` queries.

    milestone: "50", "90", "95", "99" (per cent of agreement), or "exact"
    queries:   really spent, over the seeds that reached it
    missed:    the most queries tried with which no seed reached it
    """

    milestone: str
    queries: Spread | None
    floats: float | None
    tried: int
    missed: int = 0

    @property
    def goal(self) -> str:
        """What was to be reached, as "95 % agreement"."""
        return "exact reconstruction" if self.milestone == "exact" else f"{self.milestone} % agreement"

    @property
    def taken(self) -> str:
        """The mean number of queries, or that those tried were not enough."""
        if self.queries is not None:
            return f"{self.queries.mean:,.0f}" if isfinite(self.queries.mean) else count(self.queries.mean)
        return f"> {self.tried:,}" if self.tried else NOTHING


@dataclass(frozen=True)
class Usefulness:
    """What a defended explanation is worth to its honest reader, against the undefended one.

    rank_correlation: Spearman's, of the magnitudes' ranks, mean over inputs
    top_overlap:      share of the most important tenth of the coordinates that both have
    deletion:         how fast the class's probability falls when important coordinates are removed first: the area
                      under that curve, as a share of the undefended map's advantage over a random order (1: as good)
    insertion:        the same when they are added first
    Both are None where the undefended map is no better than a random order.
    """

    rank_correlation: float
    top_overlap: float
    deletion: float | None
    insertion: float | None
    inputs: int


@dataclass(frozen=True)
class Curve:
    """How agreement grows with queries at one level behind one defence.

    label:      what a reader calls what is exposed
    changes:    what the defence changes, in a sentence; "" for none
    baseline:   name of the level that shows the same values without explanations, "" if this is it
    attacks:    all that were tried
    stopped:    why no larger budget was tried
    usefulness: None where there is no explanation
    """

    level: str
    label: str
    defence: str
    changes: str
    baseline: str
    attacks: tuple[str, ...]
    points: tuple[Point, ...]
    needs: tuple[Need, ...]
    status: Status
    stopped: str
    usefulness: Usefulness | None = None

    @property
    def key(self) -> CurveKey:
        """What it is known by."""
        return self.level, self.defence

    @property
    def name(self) -> str:
        """By which tables and charts know it."""
        return f"{self.label}, {self.defence}" if self.defence else self.label

    @property
    def tried(self) -> int:
        """Queries put to use, at most."""
        return max((need.tried for need in self.needs), default=0)

    def need(self, milestone: str) -> Need:
        """The queries to a milestone."""
        return next((need for need in self.needs if need.milestone == milestone), Need(milestone, None, None, 0))


@dataclass(frozen=True)
class Control:
    """The number that a control needs: at how many queries per client an exposed output gives the model away.

    suggested: queries per client that stay below everything measured, 0 where even one is too many, None where nothing
               was reached
    evidence:  the sentence that says what it rests on
    exposed:   whether it is exposed today; else it is a what-if
    action:    what to do about it
    """

    level: str
    label: str
    queries_to_95: float | None
    queries_to_exact: float | None
    suggested: int | None
    evidence: str
    exposed: bool = False
    severity: Severity = "unknown"
    action: str = ""


@dataclass(frozen=True)
class Picture:
    """One input of the gallery, and the maps of target and clone for it; row-major, of ``shape``."""

    input: tuple[float, ...]
    target_map: tuple[float, ...]
    clone_map: tuple[float, ...]
    shape: tuple[int, ...]
    target_class: str
    clone_class: str


@dataclass(frozen=True)
class UnitPair:
    """A hidden unit of the target and the recovered one, both scaled to length 1; row-major."""

    true: tuple[float, ...]
    recovered: tuple[float, ...]
    distance: float


@dataclass(frozen=True)
class Gate:
    """A condition of ``--fail-on`` and how it ended."""

    condition: str
    status: GateStatus
    reason: str


@dataclass(frozen=True)
class About:
    """What was audited, how, and with what.

    test_inputs:     how many inputs clones were compared on
    pool:            how many inputs attackers could draw from; None where these were random
    majority:        share of them that the target puts in its most frequent class: what a constant guess agrees with
    target_accuracy: share of them whose true label the target gives; None without labels
    exposed:         names of the levels that are exposed today; empty where that was not said
    """

    target: str
    fingerprint: str
    input_shape: tuple[int, ...]
    outputs: int
    values: str
    gradients: str
    dtype: str
    data: str
    labels: bool
    class_names: tuple[str, ...]
    authorized_by: str | None
    seeds: int
    budget: int
    price: float | None
    command: str
    started: str
    seconds: float
    versions: Mapping[str, str]
    commit: str | None
    test_inputs: int = 0
    pool: int | None = None
    majority: float | None = None
    target_accuracy: float | None = None
    exposed: tuple[str, ...] = ()

    @property
    def regression(self) -> bool:
        """Whether the target predicts numbers, not classes."""
        return self.values == "real"


@dataclass(frozen=True)
class AuditResult:
    """Everything that a report shows.

    verdict:  one sentence; warnings: what voids or weakens it, first in every report
    limits:   what the audit cannot tell
    """

    about: About
    verdict: str
    warnings: tuple[str, ...]
    curves: tuple[Curve, ...]
    controls: tuple[Control, ...]
    gates: tuple[Gate, ...]
    limits: tuple[str, ...]
    gallery: tuple[Picture, ...] = ()
    units: tuple[UnitPair, ...] = ()
    records: tuple[Record, ...] = field(default=(), repr=False)

    def to_json(self) -> str:
        """The result file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "AuditResult":
        """The result that ``to_json`` wrote."""
        plain = json.loads(text)
        for curve in plain["curves"]:
            curve["attacks"] = [attack_name(attack, curve["level"]) for attack in curve["attacks"]]
            for point in curve["points"]:
                name_today(point, curve["level"])
        for record in plain["records"]:
            name_today(record["case"], record["case"]["level"])
        return read(cls, plain)


def name_today(named: dict[str, Any], level: str) -> None:
    """Give a point or case of an older result the attack's name of today."""
    named["attack"] = attack_name(named["attack"], level)
