"""TwoLayerFromValues where values have few digits: recovered, how exactly, as exactly as stated, from how many values?

python benchmarks/exact_values_noisy.py                    all that is not in results/exact_values_noisy.jsonl yet
python benchmarks/exact_values_noisy.py --values logits    one kind of values; --seeds 0 1 for these seeds
python benchmarks/exact_values_noisy.py --table            write the table in docs/two-layer.md from the rows

Run it with OMP_NUM_THREADS=1 (about half an hour). A row is written as soon as it is known; rows that are there are not
run again. The seeds were not looked at while the method was made.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, softmax

import case_rows
import relumine as rl
from exact_targets import Array, Network, agreement, gaussian_points, network_of, random_network, relative_error
from relumine import defend
from relumine.oracle.base import ValueKind

RESULTS = Path(__file__).parent / "results" / "exact_values_noisy.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "two-layer.md"
SEEDS = tuple(range(1000, 1010))
SIZES = ((12, 5, 3), (20, 10, 1), (50, 16, 3), (50, 32, 10))
ANSWERS = ("6 decimals", "4 decimals", "3 decimals", "float32")
_BEGIN, _END = "<!-- few digits: from the rows -->", "<!-- end of few digits -->"


@dataclass(frozen=True)
class Case:
    """One run: which network, answering how."""

    values: ValueKind
    d: int
    h: int
    K: int
    answers: str
    seed: int


def cases(seeds: tuple[int, ...] = SEEDS) -> Iterator[Case]:
    """Logits first, since they take less time."""
    kinds: tuple[ValueKind, ...] = ("logits", "probabilities")
    for values in kinds:
        for size in SIZES:
            for answers in ANSWERS:
                yield from (Case(values, *size, answers, seed) for seed in seeds if seed % 10 < _most(values, size))


def _most(values: str, size: tuple[int, int, int]) -> int:
    """How many seeds: probabilities take more time, and the larger networks up to a minute each."""
    return 2 if size == SIZES[-1] else 5 if size == SIZES[-2] or values == "probabilities" else 10


def _answering(network: Network, values: str) -> Callable[[Array], Array]:
    """The truth, in float64 and never rounded."""
    if values == "logits":
        return network.predict
    link = expit if len(network.c) == 1 else (lambda logits: softmax(logits, axis=1))
    return lambda points: link(network.predict(points))


def _asked(case: Case) -> tuple[rl.Oracle, Callable[[Array], Array]]:
    network = random_network(case.d, case.h, case.K, True, case.seed)
    kind: ValueKind = "real" if (case.K, case.values) == (1, "logits") else case.values
    if case.answers == "float32":
        module = network.module("float32")
        return rl.TorchOracle(module, case.d, values=kind), _answering(network_of(module), case.values)
    truth = _answering(network, case.values)
    offer = rl.Offer((case.d,), case.K, kind, "none")
    oracle = rl.FunctionOracle(lambda points, gradients: (truth(points), None), offer)
    return defend.parse(f"round:{case.answers[0]}")(oracle), truth


def run(case: Case) -> dict[str, Any]:
    """What came out of one case; errors at 10,000 Gaussian points, relative to the largest value there."""
    oracle, truth = _asked(case)
    began = time.process_time()
    result = rl.TwoLayerFromValues()(oracle, rng=case.seed)
    row = {
        "outcome": result.outcome.name,
        "units": result.hidden[0] if result.hidden else 0,
        "value_queries": result.spent.value_queries,
        "cpu_seconds": round(time.process_time() - began, 2),
        "remark": result.evidence.remark,
    }
    if result.clone is None:
        return row
    points, stated = gaussian_points(case.d, case.seed), result.evidence.accuracy
    row |= {"error": float(f"{relative_error(result.predict, truth, points):.3g}")}
    row |= {"stated": None if stated is None else float(f"{stated:.3g}")}
    return row if case.K == 1 else row | {"agreement": agreement(result.predict, truth, points)}


# -- the table


def table() -> str:
    """One line per network and kind of answers."""
    kinds: dict[tuple[object, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in case_rows.read(RESULTS):
        kinds[case_rows.key(row, Case)[:-1]].append(row)
    lines = [
        "| network | values | recovered | least agreement | worst error | accuracy stated, median "
        "(largest error / stated) | values asked, mean | processor seconds, mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in cases((0,)):
        found = kinds.get(case_rows.key(asdict(case), Case)[:-1])
        if found:
            lines.append(_line(case, found))
    return "\n".join(lines)


def _line(case: Case, found: list[dict[str, Any]]) -> str:
    right = [row for row in found if row["outcome"] == "RECOVERED"]
    cells = [
        f"{case.d}-{case.h}-{case.K}",
        f"{case.values}, {case.answers}",
        f"{len(right)} of {len(found)}",
        f"{min(row['agreement'] for row in right):.2%}" if right and case.K > 1 else "–",
        f"{max(row['error'] for row in right):.1e}" if right else "–",
        "–",
        f"{np.mean([row['value_queries'] for row in found]):,.0f}",
        f"{np.mean([row['cpu_seconds'] for row in found]):.1f}",
    ]
    if right:
        most = max(row["error"] / row["stated"] for row in right)
        cells[5] = f"{np.median([row['stated'] for row in right]):.1e} ({most:.1f})"
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", choices=("logits", "probabilities"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--table", action="store_true", help="run nothing; write the table from the rows")
    options = parser.parse_args()
    if options.table:
        case_rows.write_between(_BEGIN, _END, table(), PAGE)
        return
    wanted = [case for case in cases(tuple(options.seeds)) if options.values in (None, case.values)]
    case_rows.run_missing(wanted, run, RESULTS)


if __name__ == "__main__":
    main()
