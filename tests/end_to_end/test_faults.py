"""A proxy that breaks requests: every run ends with the right result, and no answer is paid for twice.

``python test_faults.py --runs 20`` does it more often than the suite.
"""

import argparse
import json
import sqlite3
import sys
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import relumine as rl
from problems import error, two_layer
from servers import Faults, FaultyProxy, ModelServer, served

PROBLEM = two_layer(20, 24, 3, seed=2)
TIMEOUT = 2.0  # a busy machine is no fault
SETTINGS = {"batch": 2, "timeout": TIMEOUT, "retries": 8}


def reconstructed(url: str, folder: Path, seed: int) -> rl.Reconstruction:
    with rl.HttpOracle(url, offer=PROBLEM.offer, run=folder, **SETTINGS) as oracle:
        return rl.TwoLayer()(oracle, rng=seed)


def on_file(folder: Path) -> Counter[tuple[str, str]]:
    """What the ledger holds, as the proxy saw it go by."""
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        rows = ledger.execute("SELECT input, gradient IS NOT NULL FROM answers").fetchall()
    verbs = ("predict", "explain")
    return Counter((verbs[explain], json.dumps(np.frombuffer(row).tolist())) for row, explain in rows)


def check_run(folder: Path, seed: int) -> dict[str, int]:
    """Reconstruct through a proxy that breaks requests; how many of each kind it broke."""
    with served(ModelServer(PROBLEM.oracle)) as url:
        undisturbed = reconstructed(url, folder / "undisturbed", seed)
        proxy = FaultyProxy(urlsplit(url).port, Faults(), seed, hang=1.2 * TIMEOUT)
        with proxy.running() as port:
            result = reconstructed(f"http://127.0.0.1:{port}/v1/models/net", folder / "disturbed", seed)
    assert result.outcome is rl.Outcome.RECOVERED
    assert error(result, PROBLEM) <= 1e-9
    for name, expected in undisturbed.parameters.items():
        assert np.array_equal(result.parameters[name], expected), name
    assert result.spent == undisturbed.spent
    delivered = Counter((path.rpartition(":")[2], row) for path, row in proxy.delivered)
    assert delivered == on_file(folder / "disturbed")  # every answer that came through is on file, and once
    assert sum(delivered.values()) == result.spent.queries
    return proxy.broken


def test_a_run_ends_with_the_right_result_whatever_breaks(tmp_path):
    assert sum(check_run(tmp_path, seed=1).values()) > 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    broken: Counter[str] = Counter()
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            broken.update(check_run(Path(folder), seed))
    print(f"{runs} runs, broken: {dict(broken)}; every result right, every answer that came through on file once")


if __name__ == "__main__":
    main()
