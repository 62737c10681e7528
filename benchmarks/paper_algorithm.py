"""The paper's Algorithm 1 on random targets of the paper's model class: how often it recovers, and at what cost.

python benchmarks/paper_algorithm.py                                  with gradients, d = 100, h = 4 … 64
python benchmarks/paper_algorithm.py --bound tight                    the same with the tight bound
python benchmarks/paper_algorithm.py --form values -d 20 --hidden 4 8 16   Algorithm 1-MQ

Targets: rows uniform on the unit sphere, output weights N(0, 1), no biases, float64; a fresh target and line per seed.
Prints one line of a Markdown table per h.
"""

import argparse
import time
from math import log2
from typing import Literal

import numpy as np

import relumine as rl

HEADER = (
    "| d | h | recovered | a kink beyond ±l | wrong, called recovered | gradient queries, mean (max) | h·log2(l/ε) | "
    "value queries, mean | worst error | seconds per run |\n|---|---|---|---|---|---|---|---|---|---|"
)


class Target:
    """x ↦ w·max(Ax, 0)."""

    def __init__(self, dimension: int, hidden: int, seed: int) -> None:
        rng = np.random.default_rng([seed, dimension, hidden])
        self.A = rng.standard_normal((hidden, dimension))
        self.A /= np.linalg.norm(self.A, axis=1, keepdims=True)
        self.w = rng.standard_normal(hidden)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return (np.maximum(x @ self.A.T, 0) @ self.w)[:, None]

    def farthest_kink(self, rng: int) -> float:
        """The largest |t| at which the line that Algorithm 1a draws with this seed crosses a unit's hyperplane."""
        u, v = np.random.default_rng(rng).standard_normal((2, self.A.shape[1]))
        return float(np.abs((self.A @ u) / (self.A @ v)).max())

    def query(self, x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        return self.predict(x), ((x @ self.A.T > 0) * self.w @ self.A)[:, None] if gradients else None


def error(result: rl.Reconstruction, target: Target) -> float:
    """max |f̂ − f| / max |f| on 10,000 Gaussian points."""
    x = np.random.default_rng(2).standard_normal((10_000, target.A.shape[1]))
    truth = target.predict(x)
    return float(np.abs(result.predict(x) - truth).max() / np.abs(truth).max())


def row(dimension: int, hidden: int, seeds: int, form: str, bound: Literal["paper", "tight"] | None) -> str:
    """Run ``seeds`` targets and summarise them."""
    offer = rl.Offer((dimension,), 1, gradients="all" if form == "gradients" else "none")
    method = rl.PaperTwoLayer(hidden, bound=bound)
    search = method.search(offer)
    spent, errors, beyond, began = [], [], 0, time.perf_counter()
    for seed in range(seeds):
        target = Target(dimension, hidden, seed)
        result = method(rl.FunctionOracle(target.query, offer), rng=seed)
        spent.append(result.spent)
        beyond += target.farthest_kink(seed) > search.l
        if result.outcome is rl.Outcome.RECOVERED:
            errors.append(error(result, target))
    seconds = (time.perf_counter() - began) / seeds
    gradients = [each.gradient_queries for each in spent]
    cells = (
        dimension,
        hidden,
        f"{len(errors)} of {seeds} ({len(errors) / seeds:.1%})",
        beyond,
        sum(each > 1e-6 for each in errors),
        f"{np.mean(gradients):.0f} ({max(gradients)})",
        f"{hidden * log2(search.l / search.epsilon):.0f}",
        f"{np.mean([each.value_queries for each in spent]):.0f}",
        f"{max(errors, default=np.nan):.0e}",
        f"{seconds:.2f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--dimension", type=int, default=100)
    parser.add_argument("--hidden", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--form", choices=["gradients", "values"], default="gradients")
    parser.add_argument("--bound", choices=["paper", "tight"])
    options = parser.parse_args()
    print(HEADER)
    for hidden in options.hidden:
        print(row(options.dimension, hidden, options.seeds, options.form, options.bound), flush=True)


if __name__ == "__main__":
    main()
