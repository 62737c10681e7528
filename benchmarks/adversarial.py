"""Targets made to fool a verification: is every clone that is called recovered right where the inputs are?

python benchmarks/adversarial.py                    everything that is not in benchmarks/results/ yet (about an hour)
python benchmarks/adversarial.py --only orthant     one kind of target; --seeds N for another number of seeds
python benchmarks/adversarial.py --only small       2,000 small networks with one hidden layer, degenerate ones too
python benchmarks/adversarial.py --table            what the rows say

Run it with OMP_NUM_THREADS=1. A row is written as soon as it is known; rows that are there are not run again.
"""

import argparse
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from sklearn import datasets
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

import case_rows
import relumine as rl
from relumine.oracle.base import Array, ValueKind

RESULTS = Path(__file__).parent / "results" / "adversarial.jsonl"
SMALL = RESULTS.with_name("small.jsonl")  # 2,000 rows of their own
SEEDS = 20
GIVEN, JUDGED = 300, 10_000  # inputs that the method is given, and Gaussian points that judge a clone
SECONDS = 60  # a run that takes longer counts as one that hung
# A clone further off than this, relative to the spread of the answers, is wrong, if rounding does not explain it.
WRONG = {"float64": 1e-6, "float32": 1e-3}
ROUNDING = 1e3  # in rounding units of the largest answer


@dataclass(frozen=True, eq=False)
class Target:
    """Who answers, and the data that it was made for."""

    oracle: rl.Oracle
    data: Array


class Affine(nn.Module):
    """x ↦ (x − mean) / scale, as a scaler in front of a network does it."""

    def __init__(self, mean: Array, scale: Array, dtype: torch.dtype) -> None:
        super().__init__()
        self.mean, self.scale = torch.tensor(mean, dtype=dtype), torch.tensor(scale, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.scale


class Function(nn.Module):
    """A module of a function; ``network`` is a part of it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], network: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.network = function, network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def network(
    rng: np.random.Generator, *widths: int, bias: float = 0.5, dtype: torch.dtype = torch.float64
) -> nn.Sequential:
    """A random ReLU network."""
    layers: list[nn.Module] = []
    for d, h in pairwise(widths):
        layer = nn.Linear(d, h, dtype=dtype)
        layer.weight.data = torch.tensor(rng.standard_normal((h, d)) / np.sqrt(d), dtype=dtype)
        layer.bias.data = torch.tensor(bias * rng.standard_normal(h), dtype=dtype)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def first(module: nn.Sequential) -> nn.Linear:
    """The first layer of a network."""
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    return layer


def asked(module: nn.Module, d: int, values: ValueKind = "logits", **others: object) -> rl.Oracle:
    return rl.TorchOracle(module, d, values=values, **others)  # type: ignore[arg-type]


# -- kinds of targets


def normalised(rng: np.random.Generator, seed: int) -> Target:
    """A scaler in front of a network, for data at quite another scale than N(0, I)."""
    d, dtype = int(rng.integers(4, 20)), (torch.float64, torch.float32)[seed % 4 == 3]
    mean, scale = 10 ** rng.uniform(-2, 6) * rng.standard_normal(d), 10 ** rng.uniform(-2, 6) * rng.uniform(0.5, 2, d)
    if dtype == torch.float32:  # further from zero float32 does not tell the data apart
        mean = mean * min(1.0, 100 * scale.min() / np.abs(mean).max())
    module = nn.Sequential(Affine(mean, scale, dtype), network(rng, d, 12, 3, dtype=dtype))
    data = mean + scale * rng.standard_normal((GIVEN, d))
    return Target(asked(module, d, "probabilities" if seed % 2 else "logits"), data)


def far_unit(rng: np.random.Generator, seed: int) -> Target:
    """A network of which one unit switches only far from the origin, amid the data."""
    d = 8
    centre = 10 ** rng.uniform(1, 8) * _direction(rng, d)
    module = network(rng, d, 10, 2)
    row = first(module).weight.data[0].numpy()
    first(module).bias.data[0] = -float(row @ centre)
    return Target(asked(module, d), centre + rng.standard_normal((GIVEN, d)))


def dead_zone(rng: np.random.Generator, seed: int) -> Target:
    """All units are off, or saturated, around the origin; the data lie where they are not."""
    d = 8
    far = 10 ** rng.uniform(1, 8)
    direction = _direction(rng, d)
    module = network(rng, d, 10, 2)
    first(module).bias.data -= far * torch.linalg.norm(first(module).weight.data, dim=1)
    toward = np.linalg.lstsq(first(module).weight.data.numpy(), -first(module).bias.data.numpy(), rcond=None)[0]
    data = toward + 0.1 * far * direction + rng.standard_normal((GIVEN, d))
    return Target(asked(module, d), data)


def scales(rng: np.random.Generator, seed: int) -> Target:
    """Weights of very different scales: of coordinates, of units and of outputs."""
    d = 8
    coordinates, units = 10 ** rng.uniform(-6, 6, d), 10 ** rng.uniform(-3, 3, 10)
    module = network(rng, d, 10, 3)
    first(module).weight.data *= torch.tensor(np.outer(units, 1 / coordinates))
    first(module).bias.data *= torch.tensor(units)
    return Target(asked(module, d), coordinates * rng.standard_normal((GIVEN, d)))


def nearly_linear(rng: np.random.Generator, seed: int) -> Target:
    """A linear model, or a large number, and a little of a network: 1e-1 to 1e-6 of it."""
    d = 8
    straight, bent, little = network(rng, d, 2), network(rng, d, 6, 2), 10 ** rng.uniform(-6, -1)
    if seed % 2:
        first(straight).weight.data *= 0
    module = Function(lambda x: straight(x) + little * bent(x), nn.ModuleList([straight, bent]))
    return Target(asked(module, d, "real"), rng.standard_normal((GIVEN, d)))


def clipped(rng: np.random.Generator, seed: int) -> Target:
    """Inputs clipped to a range, or outputs."""
    d, limit = 8, 10 ** rng.uniform(-0.5, 1)
    inside = network(rng, d, 2) if seed % 2 else network(rng, d, 6, 2)
    if seed % 4 < 2:
        module = Function(lambda x: inside(torch.clamp(x, -limit, limit)), inside)
    else:
        module = Function(lambda x: torch.clamp(inside(x), -limit, limit), inside)
    return Target(asked(module, d, "real"), rng.standard_normal((GIVEN, d)))


def orthant(rng: np.random.Generator, seed: int) -> Target:
    """A unit that is on only inside the orthant of the data."""
    d = 10
    inside, signs = network(rng, d, 2 if seed % 2 else 6, *([] if seed % 2 else [2])), np.sign(rng.standard_normal(d))
    turn, weight = torch.tensor(signs), torch.tensor(rng.standard_normal(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        return inside(x) + torch.relu(1 - 50 * torch.relu(-x * turn).sum(dim=1, keepdim=True)) * weight  # type: ignore

    data = signs * np.abs(rng.standard_normal((GIVEN, d)))
    return Target(asked(Function(function, inside), d, "real"), data)


def box(rng: np.random.Generator, seed: int) -> Target:
    """Inputs in [0, 1], and a unit that is on in a corner of it, where the data are."""
    d = 8
    module, corner = network(rng, d, 8, 2), rng.integers(0, 2, d).astype(float)
    row = 2 * corner - 1
    first(module).weight.data[0] = torch.tensor(row)
    first(module).bias.data[0] = 0.5 - float(row @ corner)
    data = np.clip(np.abs(corner - 0.3 * rng.uniform(size=(GIVEN, d))), 0, 1)
    return Target(asked(module, d, box=(0.0, 1.0)), data)


def biased(rng: np.random.Generator, seed: int) -> Target:
    """One output and biases, which PaperTwoLayer excludes."""
    d = 12
    scale = 10 ** rng.uniform(-10, 0)
    module = network(rng, d, 4, 1, bias=scale)
    return Target(asked(module, d, "real"), scale * rng.standard_normal((GIVEN, d)))


def smooth(rng: np.random.Generator, seed: int) -> Target:
    """No ReLU network at all: sharp softplus units, or a curvature that hardly shows."""
    d = 8
    inside, outside, much = network(rng, d, 6), network(rng, 6, 2), 10 ** rng.uniform(1, 4)
    if seed % 2:
        module = Function(lambda x: outside(nn.functional.softplus(inside(x), beta=much, threshold=50)), inside)
    else:
        module = Function(lambda x: outside(inside(x)) + (inside(x)[:, :2] / much) ** 2 / much, inside)
    module.outside = outside
    return Target(asked(module, d, "real"), rng.standard_normal((GIVEN, d)))


class Small(nn.Module):
    """One hidden layer and a linear part beside it."""

    def __init__(self, hidden: nn.Linear, activation: nn.Module, outer: nn.Linear, skip: nn.Linear) -> None:
        super().__init__()
        self.hidden, self.activation, self.outer, self.skip = hidden, activation, outer, skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.activation(self.hidden(x))) + self.skip(x)  # type: ignore[no-any-return]


def small(rng: np.random.Generator, seed: int) -> Target:
    """Any small network with one hidden layer: sizes, activations, precision, and what makes networks degenerate."""
    d, h = (int(np.exp(rng.uniform(0, np.log(40.99)))) for _ in range(2))
    K, dtype = int(rng.integers(1, 11)), (torch.float64, torch.float32)[seed % 4 == 3]
    hidden, outer, skip = (nn.Linear(*size, dtype=dtype) for size in ((d, h), (h, K), (d, K)))
    for layer, bias in ((hidden, 0.5 * (rng.uniform() < 0.8)), (outer, 0.5), (skip, 0.0)):
        shape = layer.weight.shape
        layer.weight.data = torch.tensor(rng.standard_normal(shape) / np.sqrt(shape[1]), dtype=dtype)
        layer.bias.data = torch.tensor(bias * rng.standard_normal(shape[0]), dtype=dtype)
    if rng.uniform() < 0.85:
        skip.weight.data *= 0
    _degenerate(rng, hidden, outer)
    # Others than ReLU in three of ten; their kinks and bends lie where inputs are.
    activation = SMOOTH[int(rng.integers(len(SMOOTH)))] if rng.uniform() < 0.3 else nn.ReLU()
    values: ValueKind = "real" if K == 1 else ("logits", "probabilities", "real")[int(rng.integers(3))]
    try:
        oracle = asked(Small(hidden, activation, outer, skip), d, values)
    except (
        rl.MisuseError
    ):  # scaled so much that it is saturated nearly everywhere: its gradients are refused as cut off
        return small(rng, seed)
    return Target(oracle, rng.standard_normal((GIVEN, d)))


def _degenerate(rng: np.random.Generator, hidden: nn.Linear, outer: nn.Linear) -> None:
    """In half of the networks one or two of what makes units hard to tell apart."""
    rows, biases, weights = hidden.weight.data, hidden.bias.data, outer.weight.data
    h, K = len(rows), len(weights)
    for what in rng.integers(8, size=int(rng.integers(3)) if rng.uniform() < 0.6 else 0):
        i, j = (int(unit) for unit in rng.integers(h, size=2))
        if what < 2:  # a duplicate, or an opposite unit
            sign = 1 - 2 * int(what)
            rows[i], biases[i] = sign * rows[j].clone(), sign * biases[j].clone()
        elif what == 2:  # parallel, elsewhere
            rows[i] = 1.5 * rows[j].clone()
        elif what == 3:  # dead
            rows[i] *= 0
        elif what == 4:  # an output that is constant, or all of them
            weights[int(rng.integers(K)) if rng.uniform() < 0.7 else slice(None)] *= 0
        elif what == 5:  # outputs that are multiples of each other
            weights[int(rng.integers(K))] = -2 * weights[int(rng.integers(K))].clone()
        elif what == 6:  # another scale
            factor = float(10 ** rng.uniform(-3, 3))
            rows *= factor
            biases *= factor
            weights /= factor
        else:  # two units with the same outputs
            weights[:, i] = weights[:, j].clone()


SMOOTH = (
    nn.LeakyReLU(0.2),
    nn.ReLU6(),
    nn.Hardtanh(),
    nn.GELU(),
    nn.SiLU(),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.Softplus(),
    nn.ELU(),
)


def torch_scaled(rng: np.random.Generator, seed: int) -> Target:
    """A torch network, deep or shallow, trained for a moment on bundled data behind a scaler."""
    inputs, labels = _bundled(("iris", "wine", "breast cancer")[seed % 3])
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-3
    dtype, d, K = (torch.float64, torch.float32)[seed // 3 % 2], inputs.shape[1], int(labels.max()) + 1
    widths = (d, 16, K) if seed // 6 % 2 == 0 else (d, 8, 6, K)
    module = nn.Sequential(Affine(mean, scale, dtype), network(rng, *widths, dtype=dtype))
    _train(module, torch.tensor(inputs, dtype=dtype), torch.tensor(labels))
    return Target(asked(module, d, ("logits", "probabilities")[seed % 2]), inputs)


def sklearn_scaled(rng: np.random.Generator, seed: int) -> Target:
    """A scikit-learn classifier behind a scaler."""
    inputs, labels = _bundled(("iris", "wine", "breast cancer", "digits")[seed % 4])
    model = _classifier(seed)
    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):
        pipe = make_pipeline((StandardScaler(), MinMaxScaler())[seed // 4 % 2], model).fit(inputs, labels)
    return Target(rl.SklearnOracle(pipe, values="probabilities"), inputs)


def _classifier(seed: int) -> BaseEstimator:
    widths = [(16,), (8,), (32,), (8, 6)][seed // 8 % 4]
    if seed % 7 == 6:
        return LogisticRegression(max_iter=200)
    return MLPClassifier(widths, max_iter=100, random_state=seed)


def _train(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@cache
def _bundled(name: str) -> tuple[Array, Array]:
    load = {
        "iris": datasets.load_iris,
        "wine": datasets.load_wine,
        "breast cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
    }
    inputs, labels = load[name](return_X_y=True)
    return inputs, labels


def _direction(rng: np.random.Generator, d: int) -> Array:
    row = rng.standard_normal(d)
    return np.asarray(row / np.linalg.norm(row))


KINDS: dict[str, Callable[[np.random.Generator, int], Target]] = {
    kind.__name__: kind
    for kind in (
        normalised,
        far_unit,
        dead_zone,
        scales,
        nearly_linear,
        clipped,
        orthant,
        box,
        biased,
        smooth,
        torch_scaled,
        sklearn_scaled,
        small,
    )
}
# How often each kind is drawn, in units of the number of seeds: of models with scalers at least 200.
TIMES = {"sklearn_scaled": 6, "torch_scaled": 5, "small": 100}


# -- runs


@dataclass(frozen=True)
class Case:
    """One run: which target, reconstructed how, and whether the owner's inputs were given."""

    kind: str
    seed: int
    method: str
    given: bool


def cases(kinds: list[str], first: int, seeds: int) -> Iterator[Case]:
    for kind in kinds:
        for seed in range(first, first + seeds * TIMES.get(kind, 1)):
            for method in methods(kind, seed):
                # TwoLayer(inputs=X) is another thing: it asks nothing else.
                for given in (False,) if method == "TwoLayer" or kind == "small" else (True, False):
                    yield Case(kind, seed, method, given)


def methods(kind: str, seed: int) -> list[str]:
    """Auto for all, and one other method in turn."""
    if kind == "small":
        return [("TwoLayer", "Auto")[seed % 2]]
    if kind == "biased":
        return ["Auto", "PaperTwoLayer"]
    return ["Auto", ("Linear", "Deep", "TwoLayerFromValues", "TwoLayer")[seed % 4]] if seed % 1000 < SEEDS else ["Auto"]


def method_of(case: Case, data: Array) -> rl.Reconstructor:
    fields = {"inputs": data} if case.given else {}
    needed = {"hidden": 4} if case.method == "PaperTwoLayer" else {}
    return getattr(rl, case.method)(**needed, **fields)  # type: ignore[no-any-return]


class Hung(Exception):
    """A run took too long."""


def _hung(number: int, frame: FrameType | None) -> None:
    raise Hung


def run(case: Case) -> case_rows.Row:
    rng = np.random.default_rng([case.seed, 18])
    target = KINDS[case.kind](rng, case.seed)
    meter = rl.Metered(target.oracle)
    signal.signal(signal.SIGALRM, _hung)
    signal.alarm(SECONDS)
    started = time.monotonic()
    try:
        result = method_of(case, target.data)(meter, rng=case.seed)
    except Hung:
        return _row(meter, started, "HUNG", None, None)
    except rl.RelumineError as error:
        return _row(meter, started, type(error).__name__, None, None)
    finally:
        signal.alarm(0)
    if result.outcome is not rl.Outcome.RECOVERED:
        return _row(meter, started, result.outcome.name, None, None)
    gaussian = np.random.default_rng([case.seed, 19]).standard_normal((JUDGED, meter.offer.dimension))
    if meter.offer.box is not None:
        gaussian = np.clip(0.5 + 0.25 * gaussian, *meter.offer.box)
    errors = [_error(result, target, points) for points in (target.data, gaussian)]
    return _row(meter, started, "RECOVERED", *errors)


def _error(result: rl.Reconstruction, target: Target, points: Array) -> float:
    """The largest error at these points, beyond rounding, relative to how much answers vary, there or on the data."""
    offer = target.oracle.offer
    points = points.astype(offer.dtype).astype(np.float64)
    truth = target.oracle(points, gradients=False).values
    rounding = ROUNDING * np.finfo(offer.dtype).eps * np.abs(truth).max()
    spread = max(np.ptp(values, axis=0).max() for values in (truth, target.oracle(target.data, gradients=False).values))
    return float(max(0.0, np.abs(result.predict(points) - truth).max() - rounding) / (spread or 1.0))


def _row(meter: rl.Metered, started: float, outcome: str, data: float | None, gaussian: float | None) -> case_rows.Row:
    limit = WRONG[meter.offer.dtype]
    wrong = [error is not None and not error <= limit for error in (data, gaussian)]
    return {
        "outcome": outcome,
        "wrong_on_data": wrong[0],
        "wrong_at_gaussian": wrong[1],
        "error_on_data": data,
        "error_at_gaussian": gaussian,
        "gradient_queries": meter.spent.gradient_queries,
        "value_queries": meter.spent.value_queries,
        "seconds": round(time.monotonic() - started, 2),
    }


# -- the table


def table(rows: list[case_rows.Row]) -> str:
    lines = [
        "| kind | method | inputs given | runs | recovered and right | wrong on data | wrong at Gaussian points "
        "| not recovered | hung | longest, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, bool], list[case_rows.Row]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["method"], row["given"]), []).append(row)
    return "\n".join([*lines, *(_line(*group, of) for group, of in groups.items())])


def _line(kind: str, method: str, given: bool, rows: list[case_rows.Row]) -> str:
    outcomes = Counter(row["outcome"] for row in rows)
    data = sum(row["wrong_on_data"] for row in rows)
    gaussian = sum(row["wrong_at_gaussian"] for row in rows)
    right = sum(
        row["outcome"] == "RECOVERED" and not (row["wrong_on_data"] or row["wrong_at_gaussian"]) for row in rows
    )
    rest = len(rows) - outcomes["RECOVERED"] - outcomes["HUNG"]
    longest = max(row["seconds"] for row in rows)
    numbers = f"{len(rows)} | {right} | {data} | {gaussian} | {rest} | {outcomes['HUNG']} | {longest:.0f}"
    return f"| {kind} | {method} | {'yes' if given else 'no'} | {numbers} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=[kind for kind in KINDS if kind != "small"])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--without", action="store_true", help="only runs that are given no inputs")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    chosen.rows = chosen.rows or (SMALL if chosen.only == ["small"] else RESULTS)
    if chosen.table:
        print(table(case_rows.read(chosen.rows)))
        return
    wanted = (case for case in cases(chosen.only, chosen.first, chosen.seeds) if not (chosen.without and case.given))
    case_rows.run_missing(wanted, run, chosen.rows)


if __name__ == "__main__":
    main()
