"""What the explanations of a few ordinary requests tell: TwoLayer(inputs=X) on networks trained on MNIST.

    python benchmarks/ordinary.py                 # runs what is missing in results/ordinary.jsonl
    python benchmarks/ordinary.py --table

Ten float32 784-128-10 of seeds that were not looked at while the method was made, asked their own pool's first images.
docs/data.md says where MNIST is found.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import relumine as rl
from relumine import zoo
from relumine.oracle.base import ValueKind

ROWS = Path(__file__).parent / "results" / "ordinary.jsonl"
SEEDS = range(100, 110)
IMAGES = (20, 1000)
VALUES: tuple[ValueKind, ...] = ("logits", "probabilities")
CASES = [*product(IMAGES, VALUES, SEEDS)]


def run(images: int, values: ValueKind, seed: int) -> dict[str, Any]:
    """One network asked by these of its pool's images only."""
    split = zoo.dataset("mnist").split(seed=seed)
    module = zoo.trained("two_layer", split, seed=seed, options={"hidden": 128}).module
    oracle = rl.TorchOracle(module, split.shape, values=values)
    began = time.perf_counter()
    result = rl.TwoLayer(inputs=split.pool[:images].astype(np.float64))(oracle, rng=seed)
    seconds = time.perf_counter() - began
    tests = split.test.inputs.reshape(len(split.test), -1).astype(np.float64)
    truth, said = oracle(tests, gradients=False).values, result.predict(tests)
    return {
        "images": images,
        "values": values,
        "seed": seed,
        "outcome": result.outcome.name,
        "units": result.hidden[0] if result.hidden else 0,
        "gradient_queries": result.spent.gradient_queries,
        "value_queries": result.spent.value_queries,
        "agreement": float((said.argmax(axis=1) == truth.argmax(axis=1)).mean()),
        "gap": float(f"{np.abs(said - truth).max() / np.abs(truth).max():.3g}"),
        "seconds": round(seconds, 1),
        "remark": result.evidence.remark,
    }


def rows() -> list[dict[str, Any]]:
    """The rows on file."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def table() -> None:
    """The mean and the worst of each kind of case."""
    for images, values in product(IMAGES, VALUES):
        own = [row for row in rows() if (row["images"], row["values"]) == (images, values)]
        if own:
            agreements = [row["agreement"] for row in own]
            asked = [row["gradient_queries"] for row in own], [row["value_queries"] for row in own]
            print(
                f"{images} images, {values}, {len(own)} seeds: agreement {np.mean(agreements):.2%}, "
                f"worst {min(agreements):.2%}, {np.mean(asked[0]):.1f} gradient and {np.mean(asked[1]):.0f} value "
                f"queries, {np.mean([row['units'] for row in own]):.0f} units"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing; print the table")
    if not parser.parse_args().table:
        torch.set_num_threads(1)
        done = {(row["images"], row["values"], row["seed"]) for row in rows()}
        for case in CASES:
            if case not in done:
                with ROWS.open("a") as file:
                    file.write(json.dumps(run(*case)) + "\n")
    table()


if __name__ == "__main__":
    main()
