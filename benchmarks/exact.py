"""Exact reconstruction: is it recovered, how exactly, from how many queries, in what time? Ours, the paper's, ART's.

python benchmarks/exact.py                      everything that is not in benchmarks/results/ yet (about two hours)
python benchmarks/exact.py --only tensor        one experiment; --seeds N for another number of seeds
python benchmarks/exact.py --table              write the tables of the pages from the rows

Run it with OMP_NUM_THREADS=1. A row is written as soon as it is known; rows that are there are not run again.
ART comes with the extra: pip install -c constraints.txt -e '.[benchmark]'; docs/data.md says where MNIST is found.
"""

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import exact_art
import exact_table
import relumine as rl
from exact_targets import (
    ACTIVATIONS,
    DATASETS,
    OTHERS,
    SCALINGS,
    Array,
    Target,
    agreement,
    asked_as_function,
    asked_as_module,
    gaussian_points,
    mnist_target,
    paper_network,
    random_network,
    relative_error,
    sklearn_target,
    smooth_target,
    trained_target,
)
from relumine import defend
from relumine.oracle.base import ValueKind

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """One run: which target, asked how, by whom."""

    experiment: str
    target: str
    d: int
    h: int
    K: int
    bias: bool
    dtype: str
    values: ValueKind
    method: str
    seed: int


def _case(experiment: str, target: str, size: tuple[int, int, int], method: str, seed: int, **others: Any) -> Case:
    usual: dict[str, Any] = {"bias": True, "dtype": "float64", "values": "real" if size[2] == 1 else "logits"}
    return Case(experiment, target, *size, method=method, seed=seed, **usual | others)


# -- the experiments, each from small to large, as functions from a number of seeds to cases


def art(seeds: int = 20) -> Iterator[Case]:
    """The same small targets asked by ART, by our method from values, by our method from gradients."""
    for h, seed in product((4, 8, 16), range(seeds)):
        for method in ("ART", "TwoLayerFromValues", "TwoLayer"):
            yield _case("art", "random", (20, h, 3), method, seed)


def paper(seeds: int = 5) -> Iterator[Case]:
    """The paper's model class asked by the paper's algorithm and by ours."""
    for h, seed, method in product((4, 8, 16, 32, 64), range(seeds), ("PaperTwoLayer", "TwoLayer")):
        yield _case("paper", "paper's class", (100, h, 1), method, seed, bias=False)


def sklearn(seeds: int = 5) -> Iterator[Case]:
    """Trained scikit-learn MLPs, asked for probabilities and for logits (a regressor: for its number)."""
    for (dataset, (d, K)), scaling, h, seed in product(DATASETS.items(), SCALINGS, (16, 100), range(seeds)):
        for values in ("real",) if K == 1 else ("probabilities", "logits"):
            outputs = 1 if (K, values) == (2, "logits") else K  # the log-odds of two classes are one number
            yield _case("sklearn", f"{dataset}, {scaling}", (d, h, outputs), "Auto", seed, values=values)


def float32(seeds: int = 20) -> Iterator[Case]:
    """Torch modules that compute in float32, random and trained."""
    for (d, h), K, target, seed in product(((50, 32), (784, 128)), (10, 1), ("random", "trained"), range(seeds)):
        yield _case("float32", target, (d, h, K), "TwoLayer", seed, dtype="float32")


def values(seeds: int = 20) -> Iterator[Case]:
    """Values alone, at the sizes of published work."""
    for (h, K), seed in product(((32, 1), (128, 1), (128, 10)), range(seeds)):
        yield _case("values", "random", (784, h, K), "TwoLayerFromValues", seed)


def seconds(seeds: int = 5) -> Iterator[Case]:
    """The time of the method beside that of a float64 torch module."""
    for seed in range(seeds):
        yield _case("seconds", "random, torch", (784, 1000, 10), "TwoLayer", seed)


def float64(seeds: int = 10) -> Iterator[Case]:
    """Random networks of all sizes with one output, on seeds that were not looked at while the method was made."""
    sizes = ((20, 20), (50, 32), (784, 128), (50, 500), (784, 1000), (50, 2000))
    for (d, h), bias, seed in product(sizes, (True, False), range(6000, 6000 + seeds)):
        yield _case("float64", "random", (d, h, 1), "TwoLayer", seed, bias=bias)


def _unseen(seeds: int) -> range:
    """Seeds that were not looked at while the method was made."""
    return range(1000, 1000 + seeds)


def tensor(seeds: int = 20) -> Iterator[Case]:
    """Ten outputs, with and without biases: the Jacobian tensor."""
    for (d, h), bias, seed in product(((100, 64), (784, 128), (784, 256)), (True, False), _unseen(seeds)):
        yield _case("tensor", "random", (d, h, 10), "TwoLayer", seed, bias=bias)


def smooth(seeds: int = 10) -> Iterator[Case]:
    """Other activations than ReLU, which the method is not told."""
    shown = tuple(product(("float64", "float32"), ("logits", "probabilities")))
    for size, (dtype, values) in product(((50, 32, 10), (50, 32, 3), (784, 64, 10)), shown):
        for activation, seed in product(ACTIVATIONS, _unseen(seeds)):
            yield _case("smooth", f"random, {activation}", size, "TwoLayer", seed, dtype=dtype, values=values)


def others(seeds: int = 5) -> Iterator[Case]:
    """ReLU6, hard tanh, and activations that the method does not know."""
    for activation, values, seed in product(OTHERS, ("logits", "probabilities"), _unseen(seeds)):
        yield _case("others", f"random, {activation}", (50, 32, 10), "TwoLayer", seed, values=values)


def mnist(seeds: int = 5) -> Iterator[Case]:
    """Torch modules trained on MNIST in float32."""
    for h, values, seed in product((128, 256), ("logits", "probabilities"), _unseen(seeds)):
        yield _case("mnist", "MNIST", (784, h, 10), "TwoLayer", seed, dtype="float32", values=values)


def few(seeds: int = 10) -> Iterator[Case]:
    """Two and three outputs."""
    for K, seed in product((3, 2), _unseen(seeds)):
        yield _case("few", "random", (784, 128, K), "TwoLayer", seed)


def wide(seeds: int = 20) -> Iterator[Case]:
    """More units than Gaussian points can tell apart, and more than inputs."""
    for seed in _unseen(seeds):
        yield _case("wide", "random", (784, 1000, 10), "TwoLayer", seed)
    for seed in range(3011, 3011 + seeds):
        yield _case("wide", "random", (50, 2000, 10), "TwoLayer", seed)


def rounded(seeds: int = 10) -> Iterator[Case]:
    """Answers rounded to a few decimals; seeds from 1000 on were not looked at while the method was made."""
    for decimals, seed in product((6, 5, 4, 3), [*range(seeds), *range(1000, 1000 + seeds)]):
        yield _case("rounded", f"random, {decimals} decimals", (50, 32, 10), "TwoLayer", seed)
    for (h, K), decimals, seed in product(((32, 1), (64, 2)), (6, 4), range(1000, 1000 + seeds // 2)):
        yield _case("rounded", f"random, {decimals} decimals", (50, h, K), "TwoLayer", seed)
    for decimals, seed in product((4, 5, 6), range(2000, 2000 + 2 * seeds)):
        yield _case("rounded", f"random, {decimals} decimals", (784, 64, 10), "TwoLayer", seed)


def noisy(seeds: int = 20) -> Iterator[Case]:
    """Every number of an answer times 1 + 1e-3·N(0, 1), drawn anew at every query."""
    for (d, h), seed in product(((784, 64), (100, 48)), range(2000, 2000 + seeds)):
        yield _case("noisy", "random, noise 0.001", (d, h, 10), "TwoLayer", seed)


EXPERIMENTS = {
    each.__name__: each
    for each in (
        *(tensor, smooth, others, mnist, few, wide, paper, sklearn, float32, rounded, noisy),
        *(seconds, values, art, float64),
    )
}


# -- running one case


class Timed:
    """An oracle that counts and times its own answers, independently of the meter."""

    def __init__(self, oracle: rl.Oracle) -> None:
        self._oracle = oracle
        self.seconds = self.cpu_seconds = 0.0
        self.queries = 0

    @property
    def offer(self) -> rl.Offer:
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> rl.Answer:
        began, cpu = time.perf_counter(), time.process_time()
        answer = self._oracle(inputs, gradients=gradients)
        self.seconds += time.perf_counter() - began
        self.cpu_seconds += time.process_time() - cpu
        self.queries += len(answer)
        return answer


def target_of(case: Case) -> Target:
    """The case's target, the same whenever it is made."""
    if case.target == "paper's class":
        return asked_as_function(paper_network(case.d, case.h, case.seed))
    return _random_target(case) if case.target.startswith("random") else _trained_target(case)


def _trained_target(case: Case) -> Target:
    if case.experiment == "mnist":
        return mnist_target(case.h, case.values, case.seed)
    if case.experiment == "float32":
        return trained_target(case.d, case.h, case.K, case.seed)
    dataset, scaling = case.target.split(", ")
    return sklearn_target(dataset, scaling, case.h, case.values, case.seed)


def _random_target(case: Case) -> Target:
    network = random_network(case.d, case.h, case.K, case.bias, case.seed)
    if case.experiment in ("smooth", "others"):
        return smooth_target(network, case.target.removeprefix("random, "), case.dtype, case.values)
    if case.dtype == "float32" or "torch" in case.target:
        return asked_as_module(network, case.dtype)
    target = asked_as_function(network, "none" if case.method == "TwoLayerFromValues" else "all")
    if case.experiment == "rounded":
        decimals = case.target.removeprefix("random, ").removesuffix(" decimals")
        return replace(target, oracle=defend.parse(f"round:{decimals}")(target.oracle))
    if case.experiment == "noisy":
        blurred = defend.parse(f"noise:{case.target.removeprefix('random, noise ')},multiplicative")
        return replace(target, oracle=blurred(target.oracle, rng=case.seed))
    return target


def method_of(case: Case) -> rl.Reconstructor:
    """The case's method; only the paper's algorithm has to be told the number of units."""
    return rl.PaperTwoLayer(case.h, delta=0.05) if case.method == "PaperTwoLayer" else getattr(rl, case.method)()


def run(case: Case) -> dict[str, Any]:
    """What came out of one case."""
    if case.method == "ART":
        return exact_art.run(case.d, case.h, case.K, case.seed)
    target = target_of(case)
    oracle = Timed(target.oracle)
    began, cpu = time.perf_counter(), time.process_time()
    result = method_of(case)(oracle, rng=case.seed)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    if oracle.queries != result.spent.queries:
        raise RuntimeError(f"{case}: {oracle.queries} rows were asked and {result.spent.queries} reported")
    return {
        "outcome": result.outcome.name,
        "units": result.hidden[0] if result.hidden else 0,
        "activation": result.activation,
        "gradient_queries": result.spent.gradient_queries,
        "value_queries": result.spent.value_queries,
        "seconds": seconds,
        "oracle_seconds": oracle.seconds,
        "cpu_seconds": cpu_seconds,
        "oracle_cpu_seconds": oracle.cpu_seconds,
        "noise_floor": result.evidence.noise_floor,
        "accuracy": result.evidence.accuracy,
        "remark": result.evidence.remark,
        "score": target.score,
    } | _errors(case, target, result)


def _errors(case: Case, target: Target, result: rl.Reconstruction) -> dict[str, float]:
    """At Gaussian points, and on the data that the target was trained on."""
    if result.clone is None:
        return {}
    points = gaussian_points(case.d, case.seed)
    errors = {"error": relative_error(result.predict, target.truth, points)}
    if target.data is not None:
        errors["error_on_data"] = relative_error(result.predict, target.truth, target.data)
        if case.experiment == "mnist":
            errors["agreement"] = agreement(result.predict, target.truth, target.data)
    if case.experiment in ("rounded", "noisy", "others") and case.K > 1:
        errors["agreement"] = agreement(result.predict, target.truth, points)
    return errors


# -- rows


def rows_of(experiment: str) -> list[dict[str, Any]]:
    """The rows on file, one per case; a line that was cut off by an interruption does not count."""
    path = _path(experiment)
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return list({_key(row): row for row in reversed(rows)}.values())[::-1]


def run_missing(experiment: str, seeds: int | None) -> None:
    """Run the cases that have no row yet, writing each row as it comes."""
    make = EXPERIMENTS[experiment]
    for case in make() if seeds is None else make(seeds):
        # Read anew each time: another run may be at work on the same experiment.
        if _key(asdict(case)) in map(_key, rows_of(experiment)):
            continue
        row = asdict(case) | {name: _short(value) for name, value in run(case).items()} | _versions()
        _append(_path(experiment), json.dumps(row))
        print(*asdict(case).values(), row["outcome"], row.get("error"), f"{row['seconds']:.1f} s", flush=True)


def _path(experiment: str) -> Path:
    return RESULTS / f"exact_{experiment}.jsonl"


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[field.name] for field in fields(Case))


def _append(path: Path, line: str) -> None:
    cut_off = path.exists() and not path.read_text().endswith("\n")
    with path.open("a") as file:
        file.write("\n" * cut_off + line + "\n")


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


@cache
def _versions() -> dict[str, str]:
    packages = ("numpy", "scipy", "torch", "scikit-learn", "adversarial-robustness-toolbox")
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "--", "../../src") else "")
    versions = [
        f"Python {platform.python_version()}",
        *(f"{name} {found}" for name in packages if (found := _version(name))),
    ]
    return {"commit": commit, "versions": ", ".join(versions)}


def _version(package: str) -> str | None:
    """None if it is not installed: only ART's own rows need ART."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=RESULTS, text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--table", action="store_true", help="run nothing; write the tables from the rows")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if options.table:
        exact_table.write({name: rows_of(name) for name in EXPERIMENTS})
        return
    for experiment in [options.only] if options.only else EXPERIMENTS:
        run_missing(experiment, options.seeds)


if __name__ == "__main__":
    main()
