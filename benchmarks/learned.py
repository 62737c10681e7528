"""Learned reconstruction: what a step of gradient matching costs, and what choosing queries is worth.

python benchmarks/learned.py steps           a step of gradient matching against a plain step and the naive one
python benchmarks/learned.py queries         medoids of the pool against random queries, over seeds
python benchmarks/learned.py settings        λ, learning rate and round corners, judged by answers that were held out
python benchmarks/learned.py deep            optimiser, λ and rate for deep students, judged likewise
python benchmarks/learned.py noisy           λ for students of SmoothGrad's maps, judged likewise
python benchmarks/learned.py classes         λ for students of another class, judged likewise
python benchmarks/learned.py alike           how alike SmoothGrad's maps of different images are
python benchmarks/learned.py unseen          units of conv nets that images switch on and Gaussian inputs never
python benchmarks/learned.py --table         write the tables in docs/learned.md from the rows

Run it with OMP_NUM_THREADS=1. Rows go to benchmarks/results/learned_*.jsonl; rows of ``queries``, ``settings``,
``deep``, ``noisy`` and ``classes`` that are there are not run again.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import relumine as rl
from relumine import explain, zoo
from relumine.oracle.base import Offer
from relumine.reconstruct.matching.fit import _StudentFit
from relumine.reconstruct.matching.logits import Queried
from relumine.reconstruct.matching.loss import Matching
from relumine.study import Experiment, LocalProcesses, RunStore, Student, Target, run_study
from relumine.study.designs import GRADIENT, Panel, figure, scale_named
from relumine.study.trial import material, trained_target

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "learned.md"

# Network, input shape: batch 32, ten classes, as the students of the experiments are trained.
STEPS = (("conv", (1, 28, 28)), ("vgg11", (3, 32, 32)), ("conv", (3, 32, 32)), ("resnet18_small", (3, 32, 32)))
BATCH = 32
ROUNDS = 12

CHOICES = ((Target("conv", "mnist"), (10, 30)), (Target("two_layer", "mnist"), (10, 30)))
SEEDS = 5

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"weight": 0.01},
    {"weight": 1.0},
    {"learning_rate": 0.03},
    {"learning_rate": 0.12},
    {"steps": 1600},
    {"relu_smoothing": 0.0},
    {"relu_smoothing": 0.5},
    {"logits_by": "cross-entropy"},
)
DEEP_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"optimiser": "adam"},
    {"weight": 0.3},
    {"weight": 10.0},
    {"learning_rate": 0.12},
)


class Judged(NamedTuple):
    """Students whose settings are judged: of which target, asked how, fitted how if nothing is changed.

    sigma: of SmoothGrad, in units of σ_D; 0 for raw gradients
    """

    name: str
    target: Target
    source: str
    queries: int
    fitting: dict[str, Any]
    changes: tuple[dict[str, Any], ...]
    seeds: int
    sigma: float = 0.0


_CONV, _TWO_LAYER = Target("conv", "mnist"), Target("two_layer", "mnist")
_CIFAR_CONV = scale_named("laptop").target("cifar10", "conv")
_VGG11 = Target("vgg11", "cifar10", options={"width": 16})
JUDGED = (
    Judged("MNIST conv, 10 of pool", _CONV, "pool", 10, {"steps": 800}, SETTINGS, 3),
    Judged("MNIST conv, 10 gaussian", _CONV, "gaussian", 10, {"steps": 800}, SETTINGS, 3),
    Judged("MNIST 2-layer, 10 of pool", _TWO_LAYER, "pool", 10, {"steps": 800}, SETTINGS, 3),
    Judged("CIFAR10 conv, 100 of pool", _CIFAR_CONV, "pool", 100, {"steps": 600}, SETTINGS, 1),
)
DEEP = (
    Judged(
        "VGG11, 1,000 of pool",
        _VGG11,
        "pool",
        1000,
        {"steps": 1000, "batch": 16, "optimiser": "muon", "weight": 1.0},
        DEEP_SETTINGS,
        1,
    ),
)
NOISY_SETTINGS = ({"weight": 0.1}, {"weight": 1.0}, {"weight": 10.0})
NOISY = (
    Judged("CIFAR10 conv, 100", _CIFAR_CONV, "pool", 100, {"steps": 600}, NOISY_SETTINGS, 1, sigma=1.0),
    Judged("CIFAR10 conv, 1,000", _CIFAR_CONV, "pool", 1000, {"steps": 1500}, NOISY_SETTINGS, 1, sigma=1.0),
    Judged("VGG11, 1,000", _VGG11, "pool", 1000, DEEP[0].fitting, NOISY_SETTINGS[1:], 1, sigma=1.0),
    Judged("MNIST conv, 10", _CONV, "pool", 10, {"steps": 800}, NOISY_SETTINGS, 1, sigma=1.0),
    Judged("MNIST conv, 1,000", _CONV, "pool", 1000, {"steps": 3000}, NOISY_SETTINGS, 1, sigma=1.0),
)
HELD_OUT = 1000

# By data, the numbers of queries and the λ with which pairs of the figure "unknown-class" are judged.
PAIRS = {"mnist": ((10, 1000), (0.1, 1.0, 10.0)), "cifar10": ((1000,), (1.0, 10.0))}
WEIGHTS = (0.1, 1.0, 10.0)

# SmoothGrad's σ in units of σ_D; 0 stands for raw gradients.
SIGMAS = (0.0, 1.0, 0.1, 0.3)
SMOOTHED = ("conv", "vgg11", "resnet18")
IMAGES, MAP_SAMPLES = 100, 30
INPUTS = 1000


def steps() -> None:
    """All kinds of steps in turn, round after round, so that a busy machine slows all alike."""
    rows = []
    for name, shape in STEPS:
        kinds = _steps_of(name, shape)
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for round_ in range(ROUNDS + 2):
            for kind, step in kinds.items():
                started = time.perf_counter()
                step()
                if round_ >= 2:  # the first rounds warm up
                    seconds[kind].append(time.perf_counter() - started)
        plain = seconds["plain"]
        ratios = {kind: median(b / a for a, b in zip(plain, some, strict=True)) for kind, some in seconds.items()}
        row = {"network": name, "shape": shape, "batch": BATCH, "rounds": ROUNDS, "ratio": ratios, **_where()}
        print(json.dumps(row), flush=True)
        rows.append(row)
        _write(RESULTS / "learned_steps.jsonl", rows)


def _steps_of(name: str, shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """A plain training step, ours with and without round corners, and one that compares all ten gradients."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((BATCH, *shape))
    target = zoo.network(name, shape, 10, 1).eval()
    answer = explain.ExplainedOracle(target, explain.Gradient(), shape)(inputs.reshape(BATCH, -1), gradients=True)
    offer = Offer(inputs=shape, outputs=10, values="logits", gradients="all", dtype="float32")
    fresh = functools.partial(zoo.network, name, shape, 10)
    method = rl.GradientMatching(fresh, BATCH, steps=10**6, batch=BATCH, learning_rate=1e-3, weight=0.1)
    task = Matching(method, Queried(offer, inputs, answer), torch.zeros(()))

    def fit(rounding: float) -> _StudentFit:
        smoothed = dataclasses.replace(method, relu_smoothing=rounding)
        return _StudentFit(smoothed, fresh(0), task, torch.empty(0, dtype=torch.int64), rng)

    return {
        "plain": _plain(zoo.network(name, shape, 10, 0), task.inputs, task.values.argmax(1)),
        "matching": fit(1.0).train_step,
        "matching, plain ReLU": fit(0.0).train_step,
        "naive": _naive(zoo.network(name, shape, 10, 0), task),
    }


def _plain(student: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    student.eval()
    optimiser = torch.optim.AdamW(student.parameters(), 1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(student(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def _naive(student: nn.Module, task: Matching) -> Callable[[], None]:
    maps = task.maps
    assert maps is not None
    student.eval()
    optimiser = torch.optim.AdamW(student.parameters(), 1e-4, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        inputs = task.inputs.clone().requires_grad_()
        values = student(inputs)
        gap = torch.zeros(())
        for k in range(values.shape[1]):
            (slope,) = torch.autograd.grad(values[:, k].sum(), inputs, create_graph=True)
            gap = gap + (slope - maps[:, k]).square().sum()
        (gap / (len(inputs) * task.scale) + 0.1 * (values - task.values).square().mean()).backward()
        optimiser.step()

    return step


def queries() -> None:
    """The same students, asked the same number of times at random and at medoids of the pool."""
    study = [
        Experiment(target, Student(target.network), budget, source=source, seed=seed)
        for target, budgets in CHOICES
        for budget in budgets
        for source in ("pool", "active")
        for seed in range(SEEDS)
    ]
    path = RESULTS / "learned_queries.jsonl"
    with RunStore(path.with_suffix(".sqlite")) as store:
        rows = run_study(study, store, LocalProcesses(), watch=lambda standing: print(standing.done, standing.total))
    kept = [
        {
            "network": row.experiment.target.network,
            "data": row.experiment.target.data,
            "queries": row.experiment.budget,
            "source": row.experiment.source,
            "seed": row.experiment.seed,
            "accuracy": row.measures.test_accuracy,
            "agreement": row.measures.agreement,
            **_where(),
        }
        for row in rows
        if row.measures is not None
    ]
    _write(path, kept)


def settings() -> None:
    """Students of shallow networks, one setting changed at a time, judged by the target's answers at other images."""
    _judge(JUDGED, RESULTS / "learned_settings.jsonl")


def deep() -> None:
    """The same of a deep network."""
    _judge(DEEP, RESULTS / "learned_deep.jsonl")


def noisy() -> None:
    """The same of students of SmoothGrad's maps."""
    _judge(NOISY, RESULTS / "learned_noisy.jsonl")


def _judge(students: Iterable[Judged], path: Path) -> None:
    rows = _read(path.name) if path.exists() else []
    done = {(row["of"], json.dumps(row["settings"]), row["seed"]) for row in rows}
    for of in students:
        split, deviation = material(of.target.data, of.target.standardise)
        shown = explain.SmoothGrad(of.sigma * deviation) if of.sigma else explain.Gradient()
        oracle = explain.ExplainedOracle(trained_target(of.target).module, shown, split.shape, rng=0)
        queries = split.pool[:5000] if of.source == "pool" else of.source
        make = functools.partial(zoo.network, of.target.network, split.shape, 10, **of.target.options)
        for seed, changed in itertools.product(range(of.seeds), of.changes):
            if (of.name, json.dumps(changed), seed) in done:
                continue
            fitting = of.fitting | changed
            method = rl.GradientMatching(make, of.queries, source=queries, explanation=shown, **fitting)
            result = method(oracle, rng=seed)
            row = {"of": of.name, "settings": changed, "seed": seed}
            row |= {"gap": _gap(result, oracle, split.pool[-HELD_OUT:]), **_where()}
            print(json.dumps(row), flush=True)
            rows.append(row)
            _write(path, rows)


def classes() -> None:
    """Students that cannot be their target, at several λ."""
    path = RESULTS / "learned_classes.jsonl"
    rows = _read(path.name) if path.exists() else []
    done = {(row["target"], row["student"], row["queries"], row["weight"]) for row in rows}
    for panel, count, weight in _judged_pairs():
        target, student = panel.target, panel.student
        if (target.network, student.network, count, weight) in done:
            continue
        split = material(target.data, target.standardise).split
        oracle = explain.ExplainedOracle(trained_target(target).module, explain.Gradient(), split.shape)
        make = functools.partial(zoo.network, student.network, split.shape, 10, **student.options)
        fitting = panel.plan.settings(GRADIENT, count) | {"weight": weight}
        result = rl.GradientMatching(make, count, source=split.pool[:-HELD_OUT], **fitting)(oracle, rng=0)
        row = {"target": target.network, "student": student.network, "queries": count, "weight": weight, "seed": 0}
        row |= {"gap": _gap(result, oracle, split.pool[-HELD_OUT:]), **_where()}
        print(json.dumps(row), flush=True)
        rows.append(row)
        _write(path, rows)


def _judged_pairs() -> Iterable[tuple[Panel, int, float]]:
    for panel in figure("unknown-class", scale_named("laptop")).panels:
        counts, weights = PAIRS[panel.data]
        for count, weight in itertools.product(counts, weights):
            yield panel, count, weight


def alike() -> None:
    """Of maps of many images, which share is common to all, and how many directions they have.

    Both from the products of two independent maps of each image, in whose mean SmoothGrad's own noise is not.
    """
    scale = scale_named("laptop")
    rows = []
    for data, network in (("mnist", "conv"), *(("cifar10", network) for network in SMOOTHED)):
        target = scale.target(data, network)
        split, deviation = material(target.data, target.standardise)
        module = trained_target(target).module
        images = torch.from_numpy(split.pool[:IMAGES].reshape(-1, *split.shape)).float()
        for sigma in SIGMAS:
            by = explain.SmoothGrad(sigma * deviation, MAP_SAMPLES) if sigma else explain.Gradient()
            one, other = (_one_map_each(by, module, images, seed) for seed in (0, 1))
            products = one @ other.T
            products = (products + products.T) / 2
            common = (products.sum() - products.trace()) / (IMAGES * (IMAGES - 1)) / (products.trace() / IMAGES)
            rank = products.trace() ** 2 / np.square(products).sum()
            row = {"data": data, "network": network, "sigma": sigma, "images": IMAGES, "samples": MAP_SAMPLES}
            rows.append(row | {"common": common, "rank": rank, **_where()})
            print(json.dumps(rows[-1]), flush=True)
    _write(RESULTS / "learned_alike.jsonl", rows)


def _one_map_each(by: explain.Explanation, module: nn.Module, images: torch.Tensor, seed: int) -> np.ndarray:
    """The map of one random combination of outputs, the same for all images."""
    direction = torch.randn(1, 1, 10, generator=torch.Generator().manual_seed(0))
    rng = np.random.default_rng(seed)
    batches = images.split(10)  # type: ignore[no-untyped-call]
    parts = [by.maps(module, part, classes=direction.expand(len(part), 1, 10), rng=rng).maps for part in batches]
    return torch.cat(parts).flatten(1).double().numpy()


def unseen() -> None:
    """Of the units that are on for some image, how many no Gaussian input switches on."""
    scale = scale_named("laptop")
    rows = []
    for data in ("mnist", "cifar10"):
        split = material(data, False).split
        module = trained_target(scale.target(data, "conv")).module
        gaussian = torch.randn(INPUTS, *split.shape, generator=torch.Generator().manual_seed(0))
        images = torch.from_numpy(split.pool[:INPUTS].reshape(-1, *split.shape)).float()
        for layer, (here, there) in enumerate(zip(_on(module, images), _on(module, gaussian), strict=True), 1):
            row = {"data": data, "layer": layer, "units": here.numel(), "on": int(here.sum())}
            rows.append(row | {"unseen": int((here & ~there).sum()), "inputs": INPUTS, **_where()})
            print(json.dumps(rows[-1]), flush=True)
    _write(RESULTS / "learned_unseen.jsonl", rows)


def _on(module: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    """For each layer of ReLUs, which are on for some input."""
    kept: list[torch.Tensor] = []
    relus = [layer for layer in module.modules() if isinstance(layer, nn.ReLU)]
    hooks = [relu.register_forward_hook(lambda _, __, after: kept.append((after > 0).any(0))) for relu in relus]
    with torch.no_grad():
        module(inputs)
    for hook in hooks:
        hook.remove()
    return kept


def _gap(result: rl.Reconstruction, oracle: rl.Oracle, held_out: np.ndarray) -> float:
    """Squared error of the logits at inputs that were not asked, relative to the logits' variance."""
    inputs = held_out.reshape(len(held_out), -1)
    wanted = oracle(inputs, gradients=False).values
    return float(np.square(result.predict(inputs) - wanted).mean() / wanted.var())


def table() -> None:
    """All tables between their marks in the page."""
    page = PAGE.read_text("utf-8")
    tables = {
        "steps": _steps_table,
        "queries": _queries_table,
        "settings": _settings_table,
        "deep": _deep_table,
        "noisy": _noisy_table,
        "classes": _classes_table,
        "alike": _alike_table,
        "unseen": _unseen_table,
    }
    for name, lines in tables.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = page.split(start)
        page = before + start + "\n".join(lines()) + "\n" + end + rest.split(end)[1]
    PAGE.write_text(page, "utf-8")


def _steps_table() -> Iterable[str]:
    yield "| network | input | matching | matching, plain ReLU | all ten gradients |"
    yield "|---|---|---|---|---|"
    for row in _read("learned_steps.jsonl"):
        ratio, shape = row["ratio"], "×".join(map(str, row["shape"]))
        numbers = [ratio["matching"], ratio["matching, plain ReLU"], ratio["naive"]]
        yield f"| {row['network']} | {shape} | " + " | ".join(f"{number:.2f}x" for number in numbers) + " |"


def _queries_table() -> Iterable[str]:
    rows = _read("learned_queries.jsonl")
    yield "| network | queries | random | medoids | difference, ± its standard error | seeds |"
    yield "|---|---|---|---|---|---|"
    for network, count in dict.fromkeys((row["network"], row["queries"]) for row in rows):
        here = [row for row in rows if (row["network"], row["queries"]) == (network, count)]
        some = {
            source: {r["seed"]: r["agreement"] for r in here if r["source"] == source} for source in ("pool", "active")
        }
        seeds = sorted(some["pool"].keys() & some["active"].keys())
        gains = [100 * (some["active"][seed] - some["pool"][seed]) for seed in seeds]
        means = [100 * fmean(some[source][seed] for seed in seeds) for source in ("pool", "active")]
        gain = f"{fmean(gains):+.1f} ± {stdev(gains) / len(gains) ** 0.5:.1f}"
        yield f"| {network} | {count} | {means[0]:.1f} % | {means[1]:.1f} % | {gain} | {len(seeds)} |"


def _settings_table() -> Iterable[str]:
    return _judged_table(JUDGED, SETTINGS, "learned_settings.jsonl")


def _deep_table() -> Iterable[str]:
    return _judged_table(DEEP, DEEP_SETTINGS, "learned_deep.jsonl")


def _noisy_table() -> Iterable[str]:
    return _judged_table(NOISY, NOISY_SETTINGS, "learned_noisy.jsonl")


def _judged_table(students: tuple[Judged, ...], changes: Iterable[dict[str, Any]], name: str) -> Iterable[str]:
    rows = _read(name)
    yield "| changed | " + " | ".join(of.name for of in students) + " |"
    yield "|---|" + "---|" * len(students)
    for changed in changes:
        found = [[r["gap"] for r in rows if (r["of"], r["settings"]) == (of.name, changed)] for of in students]
        cells = [f"{fmean(some):.3f} ({len(some)})" if some else "–" for some in found]
        name = ", ".join(f"{key} = {value}" for key, value in changed.items()) or "nothing"
        yield f"| {name} | " + " | ".join(cells) + " |"


def _classes_table() -> Iterable[str]:
    gaps = {(r["target"], r["student"], r["queries"], r["weight"]): r["gap"] for r in _read("learned_classes.jsonl")}
    yield "| target by student, queries | " + " | ".join(f"λ = {weight:g}" for weight in WEIGHTS) + " |"
    yield "|---|" + "---|" * len(WEIGHTS)
    for target, student, count in dict.fromkeys((target, student, count) for target, student, count, _ in gaps):
        cells = [gaps.get((target, student, count, weight)) for weight in WEIGHTS]
        shown = " | ".join("–" if gap is None else f"{gap:.3f}" for gap in cells)
        yield f"| {target} by {student}, {count:,} | {shown} |"


def _alike_table() -> Iterable[str]:
    rows = _read("learned_alike.jsonl")
    sigmas = sorted(SIGMAS)
    yield "| network | " + " | ".join(f"σ/σ_D = {sigma:g}" for sigma in sigmas) + " |"
    yield "|---|" + "---|" * len(sigmas)
    for data, network in dict.fromkeys((row["data"], row["network"]) for row in rows):
        here = {row["sigma"]: row for row in rows if (row["data"], row["network"]) == (data, network)}
        cells = [f"{100 * here[sigma]['common']:.0f} %, {here[sigma]['rank']:.1f}" for sigma in sigmas]
        yield f"| {data} {network} | " + " | ".join(cells) + " |"


def _unseen_table() -> Iterable[str]:
    yield "| conv net of | layer | units | on for some image | of these on for no Gaussian input |"
    yield "|---|---|---|---|---|"
    for row in _read("learned_unseen.jsonl"):
        share = f"{row['unseen']:,} ({100 * row['unseen'] / row['on']:.0f} %)"
        yield f"| {row['data']} | {row['layer']} | {row['units']:,} | {row['on']:,} | {share} |"


def _where() -> dict[str, Any]:
    return {
        "torch": version("torch"),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def _read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {part.__name__: part for part in (steps, queries, settings, deep, noisy, classes, alike, unseen)}
    parser.add_argument("part", nargs="?", choices=list(parts))
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if chosen.part:
        parts[chosen.part]()
    if chosen.table:
        table()
