"""The arithmetic of docs/scale-out.md: what a study of ResNet-18 on ImageNet takes, from rows that were measured.

    python benchmarks/scale_out.py

Measured: the seconds of the students of ResNet-18 on CIFAR10 in ``results/main.jsonl`` (one CPU core, 3,000 steps of 16
images). Computed: the operations of both networks, hence seconds on the same core. How much longer students are
fitted, the speed of a GPU and prices are options: assumptions, not measurements.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from relumine.zoo.networks import network

ROWS = Path(__file__).parents[1] / "results" / "main.jsonl"
KINDS = {"gradient": "gradient queries", "smoothgrad": "SmoothGrad queries", "none": "values alone"}
BUDGETS, SEEDS = (100, 1_000, 10_000), 3
PIXELS = 3 * 224 * 224
# Multiply-adds of ResNet-18 on one image of ImageNet, 1.8e9 (He et al. 2016, table 1), twice: torch counts both.
RESNET18 = 3.6e9


def flops(name: str, shape: tuple[int, ...], classes: int, **options: int) -> float:
    """Of one forward pass."""
    module = network(name, shape, classes, **options).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, *shape))
    return float(counter.get_total_flops())


def seconds(kind: str) -> list[float]:
    """Of the rows of ResNet-18's students from 1,000 queries and fewer, where asking takes little of the time."""
    found = []
    for line in ROWS.read_text().splitlines():
        row = json.loads(line)
        asked = row["experiment"]
        access = asked["access"]["explanation"] if asked["loss"] != "membership" else "none"
        if asked["target"]["network"] == "resnet18_small" and access == kind and asked["budget"] in (100, 1000):
            found.append(row["provenance"]["seconds"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longer", type=float, default=10.0, help="fittings than on CIFAR10, in images (assumed)")
    parser.add_argument("--speedup", type=float, default=100.0, help="of a GPU over one CPU core (assumed)")
    parser.add_argument("--gpu-hour", type=float, default=1.0, help="price of a GPU for an hour (assumed)")
    parser.add_argument("--core-hour", type=float, default=0.04, help="price of a core for an hour (assumed)")
    said = parser.parse_args()
    small = flops("resnet18_small", (3, 32, 32), 10, width=32)
    larger = RESNET18 / small
    longer = said.longer
    print(f"operations of a forward pass: {small:.3g} and {RESNET18:.3g}, {larger:.0f} times")
    total = 0.0
    for kind, name in KINDS.items():
        measured = seconds(kind)
        median = statistics.median(measured)
        hours = median * larger * longer / 3600
        tasks = len(BUDGETS) * SEEDS
        total += tasks * hours
        print(
            f"{name}: {median:,.0f} s (n = {len(measured)}, {min(measured):,.0f} to {max(measured):,.0f}); "
            f"x {larger:.0f} x {longer:.0f} = {hours:,.0f} core hours a student; {tasks} students {tasks * hours:,.0f}"
        )
    gpu = total / said.speedup
    tasks = len(KINDS) * len(BUDGETS) * SEEDS
    print(f"{tasks} tasks, {total:,.0f} core hours ({total * said.core_hour:,.0f} at the price)")
    print(f"with a GPU {said.speedup:.0f} times as fast as a core: {gpu:,.0f} GPU hours ({gpu * said.gpu_hour:,.0f})")
    for queries in BUDGETS:
        memory = queries * PIXELS * (8 + 8 + 4 + 4) / 2**30
        print(f"{queries:,} queries, one map each: {memory:,.1f} GiB (inputs and maps, float64 and a float32 copy)")


if __name__ == "__main__":
    main()
