"""Exact reconstruction where one output is explained at a time: recovered, how exactly, from how many rows?

python benchmarks/top_class.py                   everything that is not in benchmarks/results/exact_top.jsonl yet
python benchmarks/top_class.py --only trained    one group; --seeds 0 10 for these seeds
python benchmarks/top_class.py --table           write the table in docs/two-layer.md from the rows

Run it with OMP_NUM_THREADS=1 (about 20 minutes). A row is written as soon as it is known; rows that are there are not
run again. Seeds 100 to 109 were run once, after the method was finished.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.datasets import load_digits

import case_rows
import relumine as rl
from exact_targets import Network, gaussian_points, network_of, random_network, relative_error
from relumine.oracle.base import GradientKind, ValueKind

RESULTS = Path(__file__).parent / "results" / "exact_top.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "two-layer.md"
SEEDS = (*range(10), *range(100, 110))
_BEGIN, _END = "<!-- top class: from the rows -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Case:
    """One run: which target, asked how."""

    group: str
    target: str
    d: int
    h: int
    K: int
    values: ValueKind = "logits"
    gradients: GradientKind = "top"
    dtype: str = "float64"
    seed: int = 0


def cases(seeds: tuple[int, ...] = SEEDS) -> Iterator[Case]:
    """From the cases that the documentation names first to the odd ones."""
    for seed in seeds:
        yield Case("logits", "random", 784, 64, 10, seed=seed)
        yield Case("logits", "trained", 784, 64, 10, seed=seed)
        yield Case("logits", "trained", 64, 32, 10, seed=seed)
        yield Case("float32", "random", 784, 64, 10, dtype="float32", seed=seed)
        yield Case("float32", "trained", 784, 64, 10, dtype="float32", seed=seed)
        yield Case("probabilities", "random", 784, 64, 10, "probabilities", seed=seed)
        yield Case("probabilities", "trained", 784, 64, 10, "probabilities", seed=seed)
        yield Case("probabilities", "trained", 64, 32, 10, "probabilities", seed=seed)
        yield Case("all probabilities", "trained", 784, 64, 10, "probabilities", "all", seed=seed)
        yield Case("all probabilities", "trained, sharpened tenfold", 784, 64, 10, "probabilities", "all", seed=seed)
        yield Case("odd", "two outputs", 784, 64, 2, seed=seed)
        yield Case("odd", "two probabilities", 100, 32, 2, "probabilities", seed=seed)
        yield Case("odd", "more units than inputs", 20, 60, 5, seed=seed)
        yield Case("odd", "no biases", 784, 64, 10, seed=seed)
        yield Case("odd", "one unit", 784, 1, 10, seed=seed)
        yield Case("odd", "half of the outputs see no unit", 100, 32, 10, seed=seed)


# -- targets


def network_for(case: Case) -> Network:
    """The case's target, the same whenever it is made."""
    if case.target.startswith("trained"):
        found = trained_network(case.d, case.h, case.K, case.seed)
        sharper = 10.0 if "sharpened" in case.target else 1.0
        return Network(found.A, found.b, sharper * found.W, sharper * found.c)
    network = random_network(case.d, case.h, case.K, case.target != "no biases", case.seed)
    if case.target.startswith("half"):
        W = network.W.copy()
        W[::2] = 0
        return Network(network.A, network.b, W, network.c)
    return network


@cache
def trained_network(d: int, h: int, K: int, seed: int) -> Network:
    """A float64 network trained on scikit-learn's digits (d = 784: enlarged to 28×28) for 40 epochs."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images).reshape(-1, 1, 8, 8) / 16
    side = round(d**0.5)
    x = torch.nn.functional.interpolate(x, size=(side, side), mode="bilinear").reshape(-1, d)
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(d, h), torch.nn.ReLU(), torch.nn.Linear(h, K)).double()
    optimiser = torch.optim.Adam(module.parameters(), lr=2e-3)
    for _ in range(40):
        for batch in torch.randperm(len(x)).split(64):  # type: ignore[no-untyped-call]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x[batch]), torch.tensor(labels)[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return network_of(module)


def run(case: Case) -> dict[str, Any]:
    """What came out of one case; errors at 10,000 Gaussian points that nobody has seen."""
    module = network_for(case).module(case.dtype)
    truth = network_of(module).predict  # the function that the parameters define, computed in float64
    oracle = rl.TorchOracle(module, case.d, values=case.values, gradients=case.gradients)
    began = time.perf_counter()
    result = rl.TwoLayer()(oracle, rng=case.seed)
    row = {
        "outcome": result.outcome.name,
        "units": result.hidden[0] if result.hidden else 0,
        "gradient_queries": result.spent.gradient_queries,
        "value_queries": result.spent.value_queries,
        "seconds": round(time.perf_counter() - began, 2),
        "remark": result.evidence.remark,
    }
    if result.clone is None:
        return row
    if case.values == "probabilities":
        points = gaussian_points(case.d, case.seed)
        error = float(np.abs(result.predict(points) - softmax(truth(points), axis=1)).max())
    else:
        error = relative_error(result.predict, truth, gaussian_points(case.d, case.seed))
    return row | {"error": float(f"{error:.3g}")}


# -- the table


def table() -> str:
    """One line per kind of target."""
    kinds: dict[tuple[object, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in case_rows.read(RESULTS):
        kinds[case_rows.key(row, Case)[1:-1]].append(row)
    lines = [
        "| target | answers | recovered | largest error | gradient rows per unit | value rows per unit |",
        "|---|---|---|---|---|---|",
    ]
    for (target, d, h, K, values, gradients, dtype), found in kinds.items():
        right = [row for row in found if row["outcome"] == "RECOVERED"]
        worst = max((row["error"] for row in right), default=float("nan"))
        asked = [f"{np.mean([row[kind] for row in found]) / h:.1f}" for kind in ("gradient_queries", "value_queries")]
        shown = f"{values}, {gradients}" + ("" if dtype == "float64" else f", {dtype}")
        lines.append(
            f"| {d}-{h}-{K}, {target} | {shown} | {len(right)} of {len(found)} | {worst:.1e} | {' | '.join(asked)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted({case.group for case in cases((0,))}))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--table", action="store_true", help="run nothing; write the table from the rows")
    options = parser.parse_args()
    if options.table:
        case_rows.write_between(_BEGIN, _END, table(), PAGE)
        return
    wanted = [case for case in cases(tuple(options.seeds)) if options.only in (None, case.group)]
    case_rows.run_missing(wanted, run, RESULTS)


if __name__ == "__main__":
    main()
