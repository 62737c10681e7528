"""Convolutional networks from gradients of all outputs: rl.Convolutional, and a student from scratch beside it.

    python benchmarks/convolutional.py                       # runs what is missing in results/convolutional.jsonl
    python benchmarks/convolutional.py --only "MNIST, random, float64"
    python benchmarks/convolutional.py --untold              # the small ones, their architecture unknown, likewise
    python benchmarks/convolutional.py --table               # writes the tables of docs/convolutional.md

``MNIST`` is the zoo's network ``conv`` (3x3, 8 and 16 channels, max-pools, 64 hidden units, 10 outputs); trained ones
take 1,000 steps of Adam. ``CIFAR10`` is the same for colour images. The others are random networks. Seeds 7000 and up
were not looked at while the method was made. docs/data.md says where the images are found.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import case_rows
import relumine as rl
from relumine import zoo

ROWS = Path(__file__).parent / "results" / "convolutional.jsonl"
UNTOLD_ROWS = ROWS.with_name("convolutional_untold.jsonl")
UNTOLD, END_UNTOLD = "<!-- table: benchmarks/convolutional.py --untold --table -->", "<!-- end of untold -->"
PAGE = Path(__file__).parent.parent / "docs" / "convolutional.md"
BEGIN, END = "<!-- table: benchmarks/convolutional.py --table -->", "<!-- end of table -->"
SEEDS = range(7000, 7010)
FEW = range(7000, 7003)
TRAINED = zoo.Training(learning_rate=2e-3, steps=1000, weight_decay=0.3)
TESTS = 2000
# Cosine distance from which on a channel is another one; float32 kernels are known to 1e-4.
PRECISE = 1e-6


@dataclass(frozen=True)
class Case:
    """One network."""

    target: str
    seed: int


def _stage(before: int, after: int, *more: nn.Module, **options: Any) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, **options), *more[:-1], nn.ReLU(), *more[-1:]]


def _normed(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    means, variances = norm.running_mean, norm.running_var
    assert means is not None
    assert variances is not None
    for numbers in (norm.weight.data, variances):
        numbers.uniform_(0.5, 2.0)
    for numbers in (norm.bias.data, means):
        numbers.normal_(std=0.3)
    return norm


def _small(name: str) -> tuple[tuple[int, int, int], nn.Module]:
    """A random network of this kind, by torch's generator; its first inputs are 1x12x12 or 1x16x16."""
    pool = nn.MaxPool2d(2)
    match name:
        case "12x12, max-pools, linear":
            layers = [*_stage(1, 3, pool, padding=1), *_stage(3, 8, pool, padding=1), nn.Flatten(), nn.Linear(72, 10)]
            return (1, 12, 12), nn.Sequential(*layers)
        case "stride 2, padding":
            layers = [nn.Conv2d(1, 4, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)]
        case "average pool":
            layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 10)]
        case "batch norm":
            layers = [nn.Conv2d(1, 4, 3, padding=1), _normed(4), nn.ReLU(), pool, nn.Flatten(), nn.Linear(256, 10)]
        case "three convolutions":
            layers = [*_stage(1, 4, pool, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()]
            layers += [*_stage(4, 6, pool, padding=1), nn.Flatten(), nn.Linear(96, 10)]
        case _:
            raise ValueError(name)
    return (1, 16, 16), nn.Sequential(*layers)


SMALL = ("12x12, max-pools, linear", "stride 2, padding", "average pool", "batch norm", "three convolutions")
LARGE = ("MNIST, random, float64", "MNIST, trained, float64", "MNIST, random, float32", "MNIST, trained, float32")
COLOUR = "CIFAR10, trained, float64"


def target(case: Case) -> tuple[nn.Module, tuple[int, ...], np.ndarray | None, np.ndarray]:
    """The network, the shape of its inputs, the attacker's images, and those on which a clone is judged."""
    if case.target in SMALL:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            shape, module = _small(case.target)
        tests = np.random.default_rng([case.seed, 3]).standard_normal((TESTS, *shape))
        return module.double().eval(), shape, None, tests
    data, weights, dtype = case.target.split(", ")
    split = zoo.dataset(data.lower()).split(seed=0)
    if weights == "trained":
        module = zoo.trained("conv", split, seed=case.seed, settings=TRAINED).module
    else:
        module = zoo.network("conv", split.shape, split.classes, seed=case.seed)
    tests = split.test.inputs[:TESTS].astype(np.float64)
    return module.to(getattr(torch, dtype)).eval(), split.shape, split.pool[:300].astype(np.float64), tests


def run_untold(case: Case) -> dict[str, Any]:
    """One reconstruction, with an unknown architecture, and no student."""
    return run(case, told=False)


def run(case: Case, *, told: bool = True) -> dict[str, Any]:
    """One reconstruction, with the architecture told by a module."""
    module, shape, images, tests = target(case)
    oracle = rl.TorchOracle(module, shape, gradients="all", values="logits")
    began = time.process_time()
    result = rl.Convolutional(module if told else None, inputs=images, steps=0)(oracle, rng=case.seed)
    row = {
        "outcome": result.outcome.name,
        "gradient_queries": result.spent.gradient_queries,
        "value_queries": result.spent.value_queries,
        "cpu_seconds": round(time.process_time() - began, 1),
        "layers_wrong": 0,
        "remark": result.evidence.remark,
    }
    proved = result.proved or (result if result.outcome is rl.Outcome.RECOVERED else None)
    if proved is not None:
        row |= compared_layers(proved.to_torch(), module)
    if result.clone is not None:
        with torch.no_grad():
            truth = oracle(tests.reshape(len(tests), -1), gradients=False).values
        said = result.predict(tests)
        row["agreement"] = float((said.argmax(axis=1) == truth.argmax(axis=1)).mean())
        row["gap"] = float(f"{np.abs(said - truth).max() / np.abs(truth).max():.3g}")
    return row


def compared_layers(found: nn.Module, module: nn.Module) -> dict[str, int]:
    """Convolutional layers called proved, and those of them whose kernels or biases are not the target's.

    Channels may be in another order, and each may be scaled; the next layer's kernels take that up.
    """
    mine, theirs = affine_layers(found), affine_layers(module)
    places = [
        [(part.stride, _padding(part)) for part in one.modules() if isinstance(part, nn.Conv2d)]
        for one in (found, module)
    ]
    if places[0] != places[1][: len(places[0])] or any(
        a[0].shape[2:] != b[0].shape[2:] for a, b in zip(mine, theirs, strict=False)
    ):
        return {"layers_proved": len(mine), "layers_wrong": len(mine)}
    wrong, order, scale = 0, np.arange(mine[0][0].shape[1]), np.ones(mine[0][0].shape[1])
    for (kernels, biases), (truth, shifts) in zip(mine, theirs, strict=False):
        ours = np.hstack([(kernels * scale[:, None, None]).reshape(len(kernels), -1), biases[:, None]])
        same = np.hstack([truth[:, order].reshape(len(truth), -1), shifts[:, None]])
        norms = [np.linalg.norm(rows, axis=1) for rows in (ours, same)]
        cosines = ours @ same.T / np.outer(*norms)
        order = cosines.argmax(axis=1)
        scale = norms[0] / norms[1][order]
        wrong += int(cosines.max(axis=1).min() < 1 - PRECISE or len(set(order)) < len(truth))
    return {"layers_proved": len(mine), "layers_wrong": wrong}


def _padding(part: nn.Conv2d) -> tuple[int, ...]:
    """In numbers; "same" is half of an odd kernel."""
    if isinstance(part.padding, str):
        return tuple(size // 2 if part.padding == "same" else 0 for size in part.kernel_size)
    return part.padding


def affine_layers(module: nn.Module) -> list[tuple[np.ndarray, np.ndarray]]:
    """Kernels and biases of all convolutions, with the batch norms behind them folded in."""
    layers: list[tuple[np.ndarray, np.ndarray]] = []
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            assert part.bias is not None
            layers.append((part.weight.detach().double().numpy(), part.bias.detach().double().numpy()))
        elif isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            factor = (part.weight / (part.running_var + part.eps).sqrt()).detach().double().numpy()
            kernels, biases = layers.pop()
            shifted = (biases - part.running_mean.double().numpy()) * factor + part.bias.detach().double().numpy()
            layers.append((kernels * factor[:, None, None, None], shifted))
    return layers


def table(path: Path) -> str:
    """A line for each kind of network."""
    lines = ["| network | recovered | gradient queries (most) | worst gap | worst agreement | layers proved / wrong |"]
    lines.append("|---|---|---|---|---|---|")
    for name in (*LARGE, *SMALL, COLOUR):
        own = [row for row in case_rows.read(path) if row["target"] == name]
        if not own:
            continue
        right = [row for row in own if row["outcome"] == "RECOVERED"]
        asked = [row["gradient_queries"] for row in own]
        proved, wrong = (sum(row.get(f"layers_{word}", 0) for row in own) for word in ("proved", "wrong"))
        gap = f"{max(row['gap'] for row in right):.0e}" if right else "-"
        agreement = f"{min(row['agreement'] for row in right):.2%}" if right else "-"
        queries = f"{int(np.median(asked))} ({max(asked)})"
        lines.append(f"| {name} | {len(right)} of {len(own)} | {queries} | {gap} | {agreement} | {proved} / {wrong} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=(*LARGE, *SMALL, COLOUR))
    parser.add_argument("--seed", type=int, help="one seed, printed and not kept")
    parser.add_argument("--untold", action="store_true", help="the architecture is not told")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        case_rows.write_between(BEGIN, END, table(ROWS), PAGE)
        case_rows.write_between(UNTOLD, END_UNTOLD, table(UNTOLD_ROWS), PAGE)
        return
    if options.untold:
        cases = [Case(name, seed) for name in SMALL for seed in SEEDS if options.only in (None, name)]
        case_rows.run_missing(cases, run_untold, UNTOLD_ROWS)
        return
    names = (options.only,) if options.only else (*LARGE, *SMALL, COLOUR)
    if options.seed is not None:
        for name in names:
            print(asdict(Case(name, options.seed)) | run(Case(name, options.seed)), flush=True)
        return
    cases = [Case(name, seed) for name in names for seed in (FEW if name == COLOUR else SEEDS)]
    case_rows.run_missing(cases, run, ROWS)


if __name__ == "__main__":
    main()
