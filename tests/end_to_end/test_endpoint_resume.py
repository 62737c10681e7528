"""kill -9 of the client or of the server at random moments: the same result, and nothing is paid for twice.

``python test_endpoint_resume.py --kills 20`` does it more often than the suite; ``--serve`` and ``--ask`` are the
processes that are killed.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

import relumine as rl
from problems import two_layer
from relumine.oracle.metering.canary import Canary
from servers import ModelServer, Reply, Seen, await_ready, free_port, served

PROBLEM = two_layer(12, 20, 3, seed=3)
BATCH, CONCURRENCY = 2, 2


def serve(folder: Path, port: int) -> None:
    """Answer slowly, and leave a receipt for every row before it is answered."""
    receipts = os.open(folder / "receipts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def receipt(seen: Seen, reply: Reply) -> None:
        verb = seen.path.rpartition(":")[2]
        lines = [f"{verb} {np.array(row).tobytes().hex()}\n" for row in seen.body["instances"]]
        os.write(receipts, "".join(lines).encode())
        time.sleep(0.01)

    with served(ModelServer(PROBLEM.oracle, receipt), port):
        signal.pause()


def ask(folder: Path, port: int) -> None:
    """Reconstruct over HTTP, and write down the result."""
    settings = {"batch": BATCH, "concurrency": CONCURRENCY, "retries": 9}
    with rl.HttpOracle(f"http://127.0.0.1:{port}/v1/models/net", offer=PROBLEM.offer, run=folder, **settings) as oracle:
        result = rl.TwoLayer()(oracle, rng=5)
    asked = result.spent.queries - result.spent.phases["canary"].queries
    # Renamed when complete: a kill while writing leaves no half result.
    np.savez(folder / "unfinished.npz", outcome=result.outcome.name, asked=asked, **result.parameters)
    (folder / "unfinished.npz").rename(folder / "result.npz")


def started(what: str, folder: Path, port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, __file__, what, str(folder), "--port", str(port)]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if what == "--serve":
        await_ready(process, f"http://127.0.0.1:{port}/", folder, 30)
    return process


def receipts_in(folder: Path) -> list[str]:
    path = folder / "receipts"
    return path.read_text().splitlines() if path.exists() else []


def run(folder: Path, kills: list[tuple[str, int]]) -> tuple[dict[str, np.ndarray], int]:
    """Let a run come to its end, killing the client or the server after so many rows; the result, and how many hit."""
    folder.mkdir()
    port, hits = free_port(), 0
    processes = {what: started(what, folder, port) for what in ("--serve", "--ask")}
    for what, after in kills:
        while processes["--ask"].poll() is None and len(receipts_in(folder)) < after:
            time.sleep(0.002)
        ended = processes["--ask"].poll() is not None
        processes[what].kill()
        processes[what].wait()
        if not ended:
            hits += 1
            processes[what] = started(what, folder, port)
    log = folder / "server.log"
    try:
        assert processes["--ask"].wait(120) in ((0, -signal.SIGKILL) if hits < len(kills) else (0,)), log.read_text()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    with np.load(folder / "result.npz") as result:
        return dict(result), hits


def check_ledger(folder: Path, hits: int, asked: int) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        rows = ledger.execute("SELECT question, occurrence, input, gradient IS NOT NULL FROM answers").fetchall()
    assert len({row[:2] for row in rows}) == len(rows)
    canaries = {row.tobytes() for row in Canary(PROBLEM.offer).rows}
    assert len([row for row in rows if row[2] not in canaries]) == asked
    on_file = Counter(f"{'explain' if explain else 'predict'} {row.hex()}" for _, _, row, explain in rows)
    sent = Counter(receipts_in(folder))
    assert on_file <= sent
    # Only what was on its way when something was killed is asked once more.
    assert sum((sent - on_file).values()) <= hits * BATCH * CONCURRENCY


def check_kills(folder: Path, kills: int, seed: int = 0) -> int:
    rng = np.random.default_rng(seed)
    undisturbed, _ = run(folder / "undisturbed", [])
    total = len(receipts_in(folder / "undisturbed"))
    moments = np.sort(rng.integers(1, total, kills))
    killed = [("--ask" if i % 2 else "--serve", int(after)) for i, after in enumerate(moments)]
    disturbed, hits = run(folder / "killed", killed)
    assert str(undisturbed["outcome"]) == "RECOVERED"
    assert undisturbed.keys() == disturbed.keys()
    for name, expected in undisturbed.items():
        assert np.array_equal(disturbed[name], expected), name
    check_ledger(folder / "killed", hits, int(undisturbed["asked"]))
    return hits


def test_a_killed_client_or_server_costs_only_what_was_on_its_way(tmp_path):
    assert check_kills(tmp_path, 4) >= 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path, metavar="FOLDER")
    parser.add_argument("--ask", type=Path, metavar="FOLDER")
    parser.add_argument("--port", type=int)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.port)
    elif options.ask is not None:
        ask(options.ask, options.port)
    else:
        with tempfile.TemporaryDirectory() as folder:
            hits = check_kills(Path(folder), options.kills)
        print(f"killed {hits} times, resumed, same result bit for bit, nothing on file twice")


if __name__ == "__main__":
    main()
