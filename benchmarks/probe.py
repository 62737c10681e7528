"""The preflight over captum's methods: is each told, and is no adapter used that gives wrong gradients?

    python benchmarks/probe.py                            # prints the table
    python benchmarks/probe.py --seeds 2 -o benchmarks/results/probe.jsonl

Targets: networks trained on scikit-learn's digits and random ones, with and without biases, in float64 and float32,
that answer logits or probabilities. Whatever the preflight says, the gradients of the adapter that it chooses are then
compared with the target's own at fresh points: ``gap`` is the median over points of the largest difference, relative to
the largest gradient.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import relumine as rl
from relumine.adapt.recipes import FAR

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the explainers that the tests use
from explainers import METHODS, Shown, expected, explained, image_network, inputs_of, random_network, right

DTYPES = {"float64": torch.float64, "float32": torch.float32}
# An adapter's gradient that is further off than this is wrong.
WRONG = {"float64": 1e-6, "float32": 5e-2}
# captum's LRP has no rule for a softmax.
UNAVAILABLE = {("LRP", "probabilities")}


@dataclass(frozen=True)
class Row:
    """One preflight."""

    target: str
    method: str
    values: str
    dtype: str
    seed: int
    kind: str
    recipe: str | None
    expected: list[str]
    expected_recipe: str | None
    right: bool
    gap: float | None
    wrong: bool
    value_queries: int
    explanation_queries: int


@cache
def digits(bias: bool) -> nn.Sequential:
    """64-32-10, trained to fit the digits."""
    data = load_digits()
    x, y = torch.tensor(data.data / 16).float(), torch.tensor(data.target)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32, bias=bias), nn.ReLU(), nn.Linear(32, 10, bias=bias))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return module.eval()


def targets(dtype: torch.dtype, seed: int) -> Iterator[tuple[str, nn.Sequential, bool]]:
    """Name, module, and whether it has biases."""
    for bias in (True, False):
        named = "" if bias else ", no biases"
        copied = nn.Sequential(*(layer for layer in digits(bias)))
        fresh = random_network(64, 32, 10, bias=bias, seed=0, dtype=dtype)
        fresh.load_state_dict(copied.state_dict())
        yield f"digits{named}", fresh, bias
        yield f"random{named}", random_network(20, 16, 4, bias=bias, seed=1 + seed, dtype=dtype), bias


def cases(seed: int) -> Iterator[tuple[str, nn.Sequential, bool, Shown, str]]:
    for dtype, values in product(DTYPES, ("logits", "probabilities")):
        for name, module, bias in targets(DTYPES[dtype], seed):
            for method in METHODS:
                if (method, values) not in UNAVAILABLE:
                    yield name, module, bias, Shown(method, values), dtype
        image = image_network(8, 3, seed=seed, dtype=DTYPES[dtype])
        yield "images", image, True, Shown("GradCAM", values), dtype


def gap(findings: rl.Findings, oracle: rl.Oracle, module: nn.Sequential, shown: Shown) -> float | None:
    """How far the adapter's gradients are from the target's own."""
    if findings.maps is None:
        return None
    ending = [nn.Softmax(dim=1)] if shown.values == "probabilities" else []
    truth = rl.TorchOracle(nn.Sequential(*module, *ending), inputs_of(module), values=shown.values)
    factor = FAR[findings.offer.dtype] if findings.maps.smoothing else 1.0
    size = 1.0 if shown.values == "logits" else 0.1 / factor
    points = size * np.random.default_rng(77).standard_normal((7, inputs_of(module)))
    points = points.astype(np.float32).astype(np.float64)
    try:
        ours = findings.adapt(oracle)(points, gradients=True).jacobians / factor
    except rl.BadAnswerError:
        return None  # the adapter says itself that it does not know
    theirs = truth(factor * points, gradients=True).jacobians
    return float(np.median(np.abs(ours - theirs).max(axis=(1, 2)) / np.abs(theirs).max()))


def measured(name: str, module: nn.Sequential, bias: bool, shown: Shown, dtype: str, seed: int) -> Row:
    torch.manual_seed(seed)
    oracle = explained(module, shown)
    findings = rl.Probe()(oracle, rng=seed)
    kinds, recipe = expected(shown, bias=bias)
    off = gap(findings, oracle, module, shown)
    return Row(
        target=name,
        method=shown.method,
        values=shown.values,
        dtype=dtype,
        seed=seed,
        kind=findings.kind,
        recipe=findings.recipe,
        expected=sorted(kinds),
        expected_recipe=recipe,
        right=right(findings, shown, bias=bias, dtype=dtype),
        gap=off,
        wrong=off is not None and off > WRONG[dtype],
        value_queries=findings.spent.value_queries,
        explanation_queries=findings.spent.gradient_queries,
    )


def table(rows: list[Row]) -> Table:
    result = Table(title="Preflight: right classifications, by method")
    columns = list(product(("logits", "probabilities"), DTYPES))
    for header in ("method", *(f"{values}, {dtype}" for values, dtype in columns), "wrong gradients", "median queries"):
        result.add_column(header)
    for method in dict.fromkeys(row.method for row in rows):
        of = [row for row in rows if row.method == method]
        cells = []
        for values, dtype in columns:
            some = [row for row in of if (row.values, row.dtype) == (values, dtype)]
            cells.append(f"{sum(row.right for row in some)} of {len(some)}" if some else "–")
        queries = np.median([row.value_queries + row.explanation_queries for row in of])
        result.add_row(method, *cells, str(sum(row.wrong for row in of)), f"{queries:.0f}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="also write every preflight as a line of JSON")
    parser.add_argument(
        "--seeds", type=int, default=1, help="repetitions, each with other random networks and questions"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [measured(*case, seed) for seed in range(options.seeds) for case in cases(seed)]
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("".join(f"{json.dumps(asdict(row), ensure_ascii=False)}\n" for row in rows))
    Console(width=150).print(table(rows))
    share = sum(row.right for row in rows) / len(rows)
    print(f"{len(rows)} preflights, {share:.1%} right, {sum(row.wrong for row in rows)} with wrong gradients")
    for row in rows:
        if not row.right or row.wrong:
            what = f"{row.method} of {row.values}, {row.dtype}, {row.target}"
            print(f"  {what}: {row.kind}, recipe {row.recipe}, gap {row.gap}")


if __name__ == "__main__":
    main()
