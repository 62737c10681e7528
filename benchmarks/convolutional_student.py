"""The student that starts from what rl.Convolutional proved, beside a student from scratch with as many queries.

    python benchmarks/convolutional_student.py            # runs what is missing in results/convolutional_student.jsonl
    python benchmarks/convolutional_student.py --table    # writes the table of docs/convolutional.md

The networks are those of benchmarks/convolutional.py, and 300 images are the attacker's. The student from scratch has
the same architecture, with parameters of its own, and asks 100 of these images, chosen as the other's are (medoids).
docs/data.md says where the images are found.
"""

import argparse
import copy
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import case_rows
import convolutional
import relumine as rl
from relumine.reconstruct.matching.sources import Medoids

ROWS = convolutional.ROWS.with_name("convolutional_student.jsonl")
BEGIN, END = "<!-- table: benchmarks/convolutional_student.py --table -->", "<!-- end of students -->"
NAMES = (convolutional.COLOUR, "MNIST, trained, float32")
SEEDS = range(6000, 6003)
QUERIES = 100
# As many for both; hyperparameters are GradientMatching's own.
STEPS = 1000


def run(case: convolutional.Case) -> dict[str, Any]:
    """Both students of one network."""
    module, shape, images, tests = convolutional.target(case)
    assert images is not None
    oracle = rl.TorchOracle(module, shape, gradients="all", values="logits")
    pool = images.reshape(len(images), -1)

    def fresh(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            student = copy.deepcopy(module).float()
            for part in student.modules():
                if isinstance(part, (nn.Conv2d, nn.Linear)):
                    part.reset_parameters()
        return student

    truth = oracle(tests.reshape(len(tests), -1), gradients=False).values
    row: dict[str, Any] = {}
    ours = rl.Convolutional(fresh(case.seed), inputs=images, limit=QUERIES, steps=STEPS)
    scratch = rl.GradientMatching(fresh, QUERIES, source=Medoids(pool), steps=STEPS)
    for name, method in (("ours", ours), ("scratch", scratch)):
        began = time.process_time()
        result = method(oracle, rng=case.seed)
        said = result.predict(tests)
        error = np.square(said - truth).sum() / np.square(truth - truth.mean(axis=0)).sum()
        row |= {
            f"{name}_outcome": result.outcome.name,
            f"{name}_queries": result.spent.gradient_queries,
            f"{name}_agreement": float((said.argmax(axis=1) == truth.argmax(axis=1)).mean()),
            f"{name}_error": float(f"{error:.3g}"),
            f"{name}_seconds": round(time.process_time() - began, 1),
        }
        row |= {"remark": result.evidence.remark} if name == "ours" else {}
    return row


def table() -> str:
    """A line for each kind of network."""
    lines = ["| network | seeds | recovered | agreement | from scratch | error | from scratch |", "|" + "---|" * 7]
    for name in NAMES:
        own = [row for row in case_rows.read(ROWS) if row["target"] == name]
        if own:
            recovered = sum(row["ours_outcome"] == "RECOVERED" for row in own)
            cells = [name, str(len(own)), str(recovered)]
            cells += [f"{np.mean([row[f'{who}_agreement'] for row in own]):.1%}" for who in ("ours", "scratch")]
            cells += [f"{np.mean([row[f'{who}_error'] for row in own]):.3f}" for who in ("ours", "scratch")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    if parser.parse_args().table:
        case_rows.write_between(BEGIN, END, table(), convolutional.PAGE)
        return
    cases = [convolutional.Case(name, seed) for seed in SEEDS for name in NAMES]
    case_rows.run_missing(cases, run, ROWS)


if __name__ == "__main__":
    main()
