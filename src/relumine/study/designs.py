"""The paper's figures as declared studies, at three scales.

The paper gives neither widths, optimiser, epochs nor λ: those here are our own choice. Where it is silent on the grid
of budgets we take powers of ten, up to the pool's 10,000.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from relumine.errors import MisuseError
from relumine.study.experiment import Access, Experiment, Loss, Source, Student, Target

FigureName = Literal["main", "unknown-class", "gaussian", "access", "noise", "smoothgrad"]
ScaleName = Literal["smoke", "laptop", "paper"]

# Figures of students, and with them the saliency maps.
CURVES: tuple[FigureName, ...] = ("main", "unknown-class", "gaussian", "access", "noise")
FIGURES: tuple[FigureName, ...] = (*CURVES, "smoothgrad")

# SmoothGrad in the experiments: N, and σ in units of σ_D. The paper takes 1000 σ_D on MNIST; with images in [0, 1] the
# map then no longer depends on the image, and "access" shows what remains (docs/learned.md).
_SAMPLES = 10
SIGMA, _PAPERS_SIGMA, _LITTLE_SIGMA = 1.0, 1000.0, 0.1

_TITLES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR10",
    "digits": "digits",
    "linear": "1-layer",
    "two_layer": "2-layer",
    "conv": "conv",
    "vgg11": "VGG11",
    "resnet18": "ResNet-18",
}


@dataclass(frozen=True)
class Plan:
    """How a scale treats one of the paper's networks.

    network, options, training: what the zoo is told
    budgets, seeds:             for each of both a student is trained
    bends:                      further budgets in the main figure, where its curves bend
    steps:                      of a student's training, by the least number of queries
    learning_rate:              of a student's training, for a layer of one input
    fitting:                    further settings of every student
    matching:                   further settings of students that match maps
    smoothing:                  further settings of students that match SmoothGrad's maps of the experiments' σ
    """

    network: str
    budgets: tuple[int, ...]
    seeds: int
    steps: Mapping[int, int]
    learning_rate: float = 0.06
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    fitting: Mapping[str, Any] = field(default_factory=dict)
    matching: Mapping[str, Any] = field(default_factory=dict)
    smoothing: Mapping[str, Any] = field(default_factory=dict)
    bends: tuple[int, ...] = ()

    def settings(self, curve: "CurveDesign", budget: int) -> dict[str, Any]:
        """Of GradientMatching."""
        steps = self.steps[max(least for least in self.steps if least <= budget)]
        settings = {"steps": steps, "learning_rate": self.learning_rate, **self.fitting}
        if curve.loss in ("exact", "head"):
            return {}
        if curve.loss == "membership":
            return settings
        return settings | dict(self.matching) | (dict(self.smoothing) if curve.name == SMOOTHGRAD.name else {})


@dataclass(frozen=True)
class Scale:
    """One size of the whole design: which data stand for the paper's, and a plan for each of its networks."""

    name: ScaleName
    about: str
    data: Mapping[str, str]
    plans: Mapping[tuple[str, str], Plan]
    map_samples: int

    def target(self, data: str, network: str) -> Target:
        """What stands for the paper's target."""
        plan = self.plans[data, network]
        return Target(plan.network, self.data[data], options=plan.options, training=plan.training)

    def title(self, data: str, network: str) -> str:
        """What a reader calls it, a stand-in by its own name."""
        here, theirs = _TITLES[self.data[data]], _TITLES[data]
        return f"{here}, {_TITLES[network]}" if self.faithful else f"{here} for {theirs}, {_TITLES[network]}"

    @property
    def faithful(self) -> bool:
        """Whether the data are the paper's, so that its claims can be judged."""
        return all(here == theirs for theirs, here in self.data.items())


@dataclass(frozen=True)
class CurveDesign:
    """One kind of query.

    seeds:    at most, where a student is dear
    networks: only of these targets and students
    budgets:  in place of the plan's
    source:   in place of the panel's
    """

    name: str
    label: str
    loss: Loss = "joint"
    settings: Mapping[str, Any] = field(default_factory=dict)
    access: Access = field(default_factory=Access)
    seeds: int | None = None
    networks: tuple[str, ...] | None = None
    budgets: tuple[int, ...] | None = None
    source: Source | None = None


@dataclass(frozen=True)
class Panel:
    """One target and one student; ``name`` is what the paper calls it, ``title`` what it is here."""

    name: str
    title: str
    data: str
    target: Target
    student: Student
    plan: Plan
    source: Source = "pool"

    def experiment(self, curve: CurveDesign, budget: int, seed: int) -> Experiment:
        """One point of one seed of one curve."""
        return Experiment(
            self.target,
            self.student,
            budget,
            access=curve.access,
            source=curve.source or self.source,
            loss=curve.loss,
            seed=seed,
            settings=self.plan.settings(curve, budget) | dict(curve.settings),
        )

    def experiments(self, curve: CurveDesign) -> list[Experiment]:
        if curve.networks is not None and not {self.target.network, self.student.network} <= {*curve.networks}:
            return []
        seeds = range(min(self.plan.seeds, curve.seeds or self.plan.seeds))
        return [self.experiment(curve, budget, seed) for budget in curve.budgets or self.plan.budgets for seed in seeds]


@dataclass(frozen=True)
class Figure:
    """One figure: a panel per pair of networks, a curve per kind of query, marks of how many an exact method takes."""

    name: FigureName
    title: str
    panels: tuple[Panel, ...]
    curves: tuple[CurveDesign, ...]
    marks: tuple[CurveDesign, ...] = ()

    @cached_property
    def experiments(self) -> list[Experiment]:
        """Everything that has to be run for it."""
        return [e for panel in self.panels for e in self.of(panel)]

    def of(self, panel: Panel) -> list[Experiment]:
        """What has to be run for one of its panels."""
        return [e for curve in (*self.curves, *self.marks) for e in panel.experiments(curve)]


MEMBERSHIP = CurveDesign("membership", "membership", loss="membership", settings={"logits_by": "cross-entropy"})
# A stronger baseline than the paper's, which compares probabilities.
MEMBERSHIP_LOGITS = CurveDesign("membership logits", "membership, by logits", loss="membership")
GRADIENT = CurveDesign("gradient", "membership + gradient")
SMOOTHGRAD = CurveDesign(
    "smoothgrad", "membership + SmoothGrad", access=Access("smoothgrad", sigma=SIGMA, samples=_SAMPLES)
)
TOP = CurveDesign("top class", "top class only", access=Access(classes="top"))
PROBABILITIES = CurveDesign("probabilities", "of probabilities", access=Access(of="probabilities"))
TOP_PROBABILITY = CurveDesign(
    "top probability", "top class, of probabilities", access=Access(classes="top", of="probabilities")
)
# The student's own integrated gradients make a step twenty times as dear.
_INTEGRATED = Access("integrated-gradients", samples=20)
INTEGRATED = CurveDesign("integrated", "integrated gradients", settings={"steps": 800}, access=_INTEGRATED, seeds=1)
_FAR = Access("smoothgrad", sigma=_PAPERS_SIGMA, samples=_SAMPLES)
FAR = CurveDesign("far", "SmoothGrad, σ as in the paper", access=_FAR, seeds=1)
_LITTLE = Access("smoothgrad", sigma=_LITTLE_SIGMA, samples=_SAMPLES)
LITTLE = CurveDesign("little", "SmoothGrad, σ = 0.1 σ_D", access=_LITTLE)
# The paper names one loss for all students. Those of another class gain from a larger λ than this, their own class's
# (docs/learned.md), and not all of them alike.
ONE_WEIGHT = CurveDesign(
    "one weight",
    "membership + gradient, λ as for its own class",
    settings={"weight": 0.1},
    networks=("two_layer", "conv"),
)
# No student: the units that switch among the same images, by the tensor of their Jacobians (docs/two-layer.md).
# Budgets are numbers of images, around the fewest that tell 256 units from ten outputs.
_TENS = (10, 30, 40, 50, 60, 100)
ORDINARY = CurveDesign("ordinary", "exact, from ordinary images", loss="exact", networks=("two_layer",), budgets=_TENS)
# Gradient queries until the whole network is known, and its last layer if the others are public; the most that may be
# asked are as many as any student takes.
EXACT = CurveDesign(
    "exact", "exact", loss="exact", source="gaussian", networks=("linear", "two_layer"), budgets=(10_000,), seeds=1
)
_DEEP_NETWORKS = ("conv", "vgg11", "resnet18", "resnet18_small")
HEAD = CurveDesign("head", "exact, public backbone", loss="head", networks=_DEEP_NETWORKS, budgets=(100,), seeds=1)
_MAIN = (MEMBERSHIP, MEMBERSHIP_LOGITS, GRADIENT, SMOOTHGRAD, ORDINARY)
_OTHERS = (MEMBERSHIP, GRADIENT, ONE_WEIGHT)
_NOISE = (MEMBERSHIP, GRADIENT, LITTLE, replace(SMOOTHGRAD, label="SmoothGrad, σ = σ_D"))
_THREE = (MEMBERSHIP, MEMBERSHIP_LOGITS, GRADIENT)
_ACCESS = (*_THREE, TOP, PROBABILITIES, TOP_PROBABILITY, INTEGRATED, FAR)

_NETWORKS = (
    ("mnist", "linear"),
    ("mnist", "two_layer"),
    ("mnist", "conv"),
    ("cifar10", "conv"),
    ("cifar10", "vgg11"),
    ("cifar10", "resnet18"),
)
_PAIRS = (
    ("mnist", "linear", "two_layer"),
    ("mnist", "two_layer", "conv"),
    ("cifar10", "resnet18", "vgg11"),
    ("mnist", "two_layer", "linear"),
    ("mnist", "conv", "two_layer"),
    ("cifar10", "vgg11", "resnet18"),
)
# Those that the paper asks without data.
_WITHOUT_DATA = _NETWORKS[:4]
# The networks of the appendix, whose saliency maps it shows.
SALIENCY = (("mnist", "conv"), ("cifar10", "vgg11"), ("cifar10", "resnet18"))


def figure(name: FigureName, scale: Scale) -> Figure:
    """A figure at a scale. "smoothgrad" has no students: its maps are drawn of ``SALIENCY``."""
    if name == "main":
        panels = tuple(_panel(scale, *each) for each in _NETWORKS)
        panels = tuple(_asked(each, sorted({*each.plan.budgets, *each.plan.bends})) for each in panels)
        return Figure(name, "Gradient queries versus membership queries", panels, _MAIN, (EXACT, HEAD))
    if name == "unknown-class":
        panels = tuple(_panel(scale, *each) for each in _PAIRS)
        return Figure(name, "Unknown model class", panels, _OTHERS)
    if name == "gaussian":
        panels = tuple(_panel(scale, *each, source="gaussian") for each in _WITHOUT_DATA)
        return Figure(name, "Unknown data: queries from N(0, I)", panels, _THREE)
    if name == "access":
        return Figure(name, "What the endpoint shows (not in the paper)", (_panel(scale, "mnist", "conv"),), _ACCESS)
    if name == "noise":
        panels = tuple(_panel(scale, *each) for each in _NETWORKS[3:])
        panels = tuple(_asked(each, [b for b in each.plan.budgets if 1 < b <= 1000]) for each in panels)
        return Figure(name, "How much noise SmoothGrad needs to hide a network (not in the paper)", panels, _NOISE)
    if name == "smoothgrad":
        return Figure(name, "Saliency maps by SmoothGrad", (), ())
    raise MisuseError(f"figure: expected one of {', '.join(FIGURES)} or all, got {name!r}")


def _panel(scale: Scale, data: str, target: str, student: str | None = None, source: Source = "pool") -> Panel:
    plan = scale.plans[data, student or target]
    if student is not None:
        plan = replace(plan, matching={**_OF_ANOTHER_CLASS, **plan.matching})
    by = "" if student is None else f" by {_TITLES[student]}"
    name = f"{data} {target}" if student is None else f"{data} {target} by {student}"
    learner = Student(plan.network, plan.options)
    return Panel(name, scale.title(data, target) + by, data, scale.target(data, target), learner, plan, source)


def _asked(panel: Panel, budgets: Sequence[int]) -> Panel:
    return replace(panel, plan=replace(panel.plan, budgets=tuple(budgets)))


# Students' learning rates: a linear student has no corners to stumble over.
_RATE = {"linear": 0.3, "two_layer": 0.06, "conv": 0.06, "vgg11": 0.06, "resnet18": 0.06}

# CIFAR10 needs a wider conv net than MNIST, and pictures seen from both sides.
_CIFAR_CONV: dict[str, Any] = {
    "options": {"channels": [32, 64], "hidden": 128},
    "training": {"steps": 6000, "weight_decay": 0.0, "mirror": True},
    # By held-out answers: the student's own gradients are noisier here than the values (docs/learned.md).
    "smoothing": {"weight": 1.0},
}

# A student that cannot be its target cannot match its gradients either; λ by held-out answers (docs/learned.md). Deep
# students keep their own, by the same answers.
_OF_ANOTHER_CLASS: dict[str, Any] = {"weight": 10.0}

# How deep students learn from gradients (docs/learned.md).
_DEEP: dict[str, Any] = {
    "fitting": {"optimiser": "muon", "batch": 16},
    "matching": {"weight": 1.0},
}


def _smoke() -> Scale:
    budgets = (1, 10, 100)

    def light(network: str) -> Plan:
        return Plan(network, budgets, 2, {1: 200}, _RATE[network], training={"steps": 300})

    def narrow(network: str) -> Plan:
        training = {"steps": 300, "learning_rate": 2e-3}
        return Plan(network, budgets, 2, {1: 100}, 0.06, {"width": 8}, training, **_DEEP)

    plans = {(data, network): light(network) for data, network in _NETWORKS[:4]}
    plans |= {("cifar10", "vgg11"): narrow("vgg11"), ("cifar10", "resnet18"): narrow("resnet18_small")}
    about = (
        "scikit-learn's digits stand for MNIST and CIFAR10, VGG11 and ResNet-18 are an eighth as wide, and students "
        "are trained for few steps: everything runs, and nothing is learnt about the paper's claims"
    )
    return Scale("smoke", about, {"mnist": "digits", "cifar10": "digits"}, plans, map_samples=20)


def _laptop() -> Scale:
    budgets = (1, 10, 100, 1000, 10_000)

    def heavy(network: str, steps: int) -> Plan:
        """Half as wide as in the literature, which is a quarter of the work.

        From 1,000 gradient queries on curves flatten: 3,000 tell where between them and 10,000 a level is reached.
        """
        return Plan(
            network,
            (*budgets[:-1], 3000, budgets[-1]),
            3,
            {1: 600, 1000: 2000, 10_000: 3000},
            _RATE["vgg11"],
            {"width": 32},
            {"steps": steps, "learning_rate": 2e-3},
            **_DEEP,
        )

    def light(network: str, steps: int) -> Plan:
        return Plan(network, budgets, 3, {1: steps, 1000: 3000}, _RATE[network], bends=(3, 30, 300))

    plans = {
        ("mnist", "linear"): light("linear", 800),
        ("mnist", "two_layer"): light("two_layer", 1600),
        ("mnist", "conv"): light("conv", 800),
    }
    plans["cifar10", "conv"] = Plan("conv", budgets, 3, {1: 600, 1000: 1500}, _RATE["conv"], **_CIFAR_CONV)
    plans |= {("cifar10", "vgg11"): heavy("vgg11", 3000), ("cifar10", "resnet18"): heavy("resnet18_small", 2400)}
    about = (
        "the paper's data, up to 3 seeds; VGG11 and ResNet-18, whose stem has stride 2, have half the channels of the "
        "literature, and students of few steps"
    )
    return Scale("laptop", about, {"mnist": "mnist", "cifar10": "cifar10"}, plans, map_samples=100)


def _paper() -> Scale:
    budgets = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
    steps = {1: 2000, 1000: 10_000}
    plans = {(data, network): Plan(network, budgets, 5, steps, _RATE[network]) for data, network in _NETWORKS[:3]}
    plans["cifar10", "conv"] = Plan("conv", budgets, 5, steps, _RATE["conv"], **_CIFAR_CONV)
    plans |= {
        (data, network): Plan(network, budgets, 5, steps, _RATE[network], **_DEEP) for data, network in _NETWORKS[4:]
    }
    about = "the paper's data and networks, 5 seeds"
    return Scale("paper", about, {"mnist": "mnist", "cifar10": "cifar10"}, plans, map_samples=100)


SCALES: Mapping[str, Callable[[], Scale]] = {"smoke": _smoke, "laptop": _laptop, "paper": _paper}


def scale_named(name: str) -> Scale:
    if name not in SCALES:
        raise MisuseError(f"scale: expected one of {', '.join(SCALES)}, got {name!r}")
    return SCALES[name]()
