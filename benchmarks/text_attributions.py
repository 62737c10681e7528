"""What token attributions of a text classifier give away: agreement of the best student by what is shown.

    python benchmarks/text_attributions.py   # seeds 10 to 19 at 30, 100 and 300 queries

The target is a BERT of two layers (hidden size 16, 184 tokens) trained on sentences in which 120 of 180 words count
for or against; a seed draws the sentences that are asked and 600 others on which student and target are compared.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from case_rows import read, run_missing
from relumine.oracle.tokens import TokenOracle
from relumine.targets import load_target
from text_classifier import SHOWN, agreements, write_classifier

ROWS = Path(__file__).parent / "results" / "text_attributions.jsonl"


@dataclass(frozen=True)
class Case:
    """One draw of sentences, and how many of them are asked."""

    seed: int
    queries: int


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_classifier(Path(folder))
        oracle = load_target(f"{folder}/bert")
    assert isinstance(oracle, TokenOracle)
    cases = [Case(seed, queries) for queries in (30, 100, 300) for seed in range(10, 20)]
    run_missing(cases, lambda case: dict(agreements(oracle, case.queries, case.seed)), ROWS)
    rows = read(ROWS)
    for queries in sorted({row["queries"] for row in rows}):
        found = np.array([[row[name] for name in SHOWN] for row in rows if row["queries"] == queries])
        cells = [f"{100 * mean:.1f} ± {100 * std:.1f}" for mean, std in zip(found.mean(0), found.std(0), strict=True)]
        print(f"| {queries} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
