"""kill -9 at random moments: the resumed run ends with the same result, and pays for nothing twice.

``python test_resume.py --kills 20`` does it more often than the suite; ``--run FOLDER`` is the run that is killed.
"""

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import relumine as rl
from problems import two_layer

METHODS = {"TwoLayer": rl.TwoLayer(), "TwoLayerFromValues": rl.TwoLayerFromValues()}


def receipt(question: bytes, gradients: bool) -> bytes:
    return question.hex().encode() + (b"1" if gradients else b"0")


def reconstruct(folder: Path, method: str) -> None:
    """Reconstruct a target that leaves a receipt for every row before it answers, and takes its time."""
    receipts = os.open(folder / "receipts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    problem = two_layer(8, 12 if method == "TwoLayer" else 4, seed=3)

    def query(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        os.write(
            receipts, b"".join(row.tobytes().hex().encode() + b"01"[gradients : gradients + 1] + b"\n" for row in x)
        )
        time.sleep(0.003)
        return problem.predict(x), problem.jacobian(x) if gradients else None

    metered = rl.Metered(rl.FunctionOracle(query, problem.offer), ledger=rl.Ledger(folder / "ledger.sqlite"))
    result = METHODS[method](metered, rng=5)
    spent = np.array([result.spent.value_queries, result.spent.gradient_queries, result.spent.floats])
    # Renamed when complete: a kill while writing leaves no half result.
    np.savez(folder / "unfinished.npz", outcome=result.outcome.name, spent=spent, **result.parameters)
    (folder / "unfinished.npz").rename(folder / "result.npz")


def started(folder: Path, method: str) -> "subprocess.Popen[bytes]":
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, __file__, "--run", str(folder), "--method", method], env=environment, stderr=subprocess.PIPE
    )


def receipts_in(folder: Path) -> list[bytes]:
    path = folder / "receipts"
    return path.read_bytes().splitlines() if path.exists() else []


def finished(folder: Path, method: str) -> dict[str, np.ndarray]:
    """Let the run come to its end."""
    process = started(folder, method)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    with np.load(folder / "result.npz") as result:
        return dict(result)


def killed(folder: Path, method: str, receipts: int, delay: float) -> bool:
    """Start or resume the run; kill it a moment after so many rows have reached the target. False if it had ended."""
    process = started(folder, method)
    while process.poll() is None and len(receipts_in(folder)) < receipts:
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def check_kills(folder: Path, method: str, kills: int, seed: int = 0) -> int:
    """Kill a run so often, let it end, and compare; returns how many kills met a run that had not ended."""
    rng = np.random.default_rng(seed)
    undisturbed = finished(folder / "undisturbed", method)
    total = len(receipts_in(folder / "undisturbed"))
    hits = sum(
        killed(folder / "killed", method, int(after), rng.uniform(0, 0.004))
        for after in np.sort(rng.uniform(0, total, kills))
    )
    resumed = finished(folder / "killed", method)
    assert str(undisturbed["outcome"]) == "RECOVERED"
    assert undisturbed.keys() == resumed.keys()
    for name, expected in undisturbed.items():
        assert np.array_equal(resumed[name], expected), name
    check_ledger(folder / "killed", hits, int(undisturbed["spent"][:2].sum()))
    return hits


def check_ledger(folder: Path, hits: int, queries: int) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        rows = ledger.execute("SELECT question, occurrence, input, gradient IS NOT NULL FROM answers").fetchall()
    assert len(rows) == queries
    assert len({row[:2] for row in rows}) == len(rows)
    on_file = Counter(receipt(question, bool(gradients)) for _, _, question, gradients in rows)
    sent = Counter(receipts_in(folder))
    assert on_file <= sent
    # Only what was on its way when the run was killed, one call of at most 64 rows, is asked once more.
    assert sum((sent - on_file).values()) <= 64 * hits
    assert max((sent - on_file).values(), default=0) <= hits


@pytest.mark.parametrize(("method", "kills"), [("TwoLayer", 4), ("TwoLayerFromValues", 1)])
def test_a_killed_run_resumes_with_the_same_result_and_pays_for_nothing_twice(method, kills, tmp_path):
    assert check_kills(tmp_path, method, kills) >= kills - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, metavar="FOLDER")
    parser.add_argument("--method", choices=METHODS, default="TwoLayer")
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    if options.run is not None:
        reconstruct(options.run, options.method)
        return
    with tempfile.TemporaryDirectory() as folder:
        hits = check_kills(Path(folder), options.method, options.kills)
    print(f"{options.method}: killed {hits} times, resumed, same result bit for bit, nothing on file twice")


if __name__ == "__main__":
    main()
