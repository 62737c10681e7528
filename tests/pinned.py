"""Queries per hidden unit of every method on a few small networks, and the file that pins them.

python tests/pinned.py      measure, show what changed, and pin it: after a change that is meant to change queries
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import relumine as rl
from problems import Problem, linear, network, two_layer

PINS = Path(__file__).parent / "pinned.json"
SEEDS = (11, 12, 13)

Queries = dict[str, float]


@dataclass(frozen=True)
class Case:
    """A method, and networks of one shape that it must recover, one per seed."""

    method: rl.Reconstructor
    target: Callable[[int], Problem]

    def measure(self) -> Queries:
        """Queries per hidden unit (of a linear model: per model), verification included; mean over the seeds."""
        spent, units = [], []
        for seed in SEEDS:
            result = self.method(self.target(seed).oracle, rng=seed)
            assert result.outcome is rl.Outcome.RECOVERED, f"seed {seed}: {result.outcome.value}"
            spent.append(result.spent)
            units.append(max(1, sum(result.hidden)))
        pairs = list(zip(spent, units, strict=True))
        return {
            "gradients": round(fmean(each.gradient_queries / h for each, h in pairs), 3),
            "values": round(fmean(each.value_queries / h for each, h in pairs), 3),
        }


CASES = {
    "Linear, 12-5": Case(rl.Linear(), lambda seed: linear(5, seed=seed)),
    "PaperTwoLayer, 16-8-1": Case(rl.PaperTwoLayer(8), lambda seed: two_layer(16, 8, paper=True, seed=seed)),
    "TwoLayer, 64-32-10": Case(rl.TwoLayer(), lambda seed: two_layer(64, 32, 10, seed=seed)),
    "TwoLayer, 64-32-1": Case(rl.TwoLayer(), lambda seed: two_layer(64, 32, seed=seed)),
    "TwoLayer, 10-40-3": Case(rl.TwoLayer(), lambda seed: two_layer(10, 40, 3, seed=seed)),
    "TwoLayer, 64-32-10, float32": Case(rl.TwoLayer(), lambda seed: two_layer(64, 32, 10, seed=seed, dtype="float32")),
    "TwoLayer, 64-32-10, probabilities": Case(
        rl.TwoLayer(), lambda seed: two_layer(64, 32, 10, seed=seed, values="probabilities")
    ),
    "TwoLayer, 32-16-5, top class": Case(rl.TwoLayer(), lambda seed: two_layer(32, 16, 5, seed=seed, gradients="top")),
    "TwoLayerFromValues, 16-8-3": Case(
        rl.TwoLayerFromValues(), lambda seed: two_layer(16, 8, 3, seed=seed, gradients="none")
    ),
    "TwoLayerFromValues, 16-8-1": Case(
        rl.TwoLayerFromValues(), lambda seed: two_layer(16, 8, seed=seed, gradients="none")
    ),
    "Deep, 16-8-8-3": Case(rl.Deep(), lambda seed: network(16, 8, 8, 3, seed=seed)),
    "Auto, 64-32-10": Case(rl.Auto(), lambda seed: two_layer(64, 32, 10, seed=seed)),
}


def pinned() -> dict[str, Queries]:
    """What was pinned last."""
    known: dict[str, Queries] = json.loads(PINS.read_text())
    return known


def main() -> None:
    """Measure every case and write the pins."""
    before = pinned() if PINS.exists() else {}
    after = {}
    for name, case in CASES.items():
        after[name] = case.measure()
        was = "" if before.get(name) == after[name] else f"   was {before.get(name, 'not pinned')}"
        print(f"{name:36} {after[name]}{was}", flush=True)
    PINS.write_text(json.dumps(after, indent=1) + "\n")


if __name__ == "__main__":
    main()
