"""Reconstruction through HTTP beside the time that the requests alone take.

    python benchmarks/endpoint.py --runs 5

Starts a real KServe server with a Captum explainer on this machine, reconstructs a 784-64-10 network through it, and
compares with the same reconstruction of the network in this process: queries, error, and the wall time of the
reconstruction, from opening the ledger to closing the connections, over the time during which a request was on its way
(``time_ratio``). A request is on its way from when it is sent until all bytes of its answer are there; encoding the
question, reading the JSON, keeping the answer and all else is outside. The sum of the requests' times
(``time_ratio_sum``) would grow if a question were split into requests that overlap; here none do, so it is the same.
Then the same requests are sent once more by a plain script: httpx, one after the other, the answers read with
``json()`` and nothing done with them (``time_ratio_plain``).

Other work on the machine stretches all of these. Processor time it nearly leaves alone: ``cpu_ratio`` is what client
and server used over what the server used and the client needed to send and receive.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import relumine as rl
from problems import Problem, error, two_layer
from relumine.oracle.http.limits import Limits
from relumine.oracle.http.sender import Sender
from servers import kserve


class Clock:
    """Seconds in a block, and of processor time: the client's, its requests' among them, and the server's.

    Reading the server's takes milliseconds, so that is done before the other clocks start and after they stopped.
    """

    def __init__(self) -> None:
        self.seconds = self.client = self.server = self.requests = 0.0
        self.sent: list[tuple[str, bytes]] = []
        self._exchange = Sender._exchange

    def __enter__(self) -> "Clock":
        def timed(
            sender: Sender, client: httpx.Client, url: str, content: bytes, limits: Limits
        ) -> tuple[int, httpx.Headers, bytearray]:
            self.sent.append((url, content))
            started = time.thread_time()
            try:
                return self._exchange(sender, client, url, content, limits)
            finally:
                self.requests += time.thread_time() - started

        Sender._exchange = timed  # type: ignore[method-assign, assignment]
        self.server -= _server_seconds()
        self.client -= time.process_time()
        self.seconds -= time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.client += time.process_time()
        self.server += _server_seconds()
        Sender._exchange = self._exchange  # type: ignore[method-assign]


def _server_seconds() -> float:
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return float(sum(each.user + each.system for each in times))


def _plainly(sent: list[tuple[str, bytes]]) -> float:
    """Seconds that a script takes which sends these requests and reads the answers."""
    started = time.perf_counter()
    with httpx.Client(trust_env=False) as client:
        for url, content in sent:
            client.post(url, content=content, headers={"Content-Type": "application/json"}).json()
    return time.perf_counter() - started


def measured(problem: Problem, url: str, seed: int, folder: Path) -> dict[str, object]:
    """One reconstruction in this process, which also imports what is imported late, and one through HTTP."""
    started = time.perf_counter()
    local = rl.TwoLayer()(problem.oracle, rng=seed)
    seconds_local = time.perf_counter() - started
    with Clock() as used, rl.HttpOracle(url, offer=problem.offer, run=folder / str(seed)) as oracle:
        remote = rl.TwoLayer()(oracle, rng=seed)
        traffic = oracle.traffic
    seconds_plain = _plainly(used.sent)
    return {
        "dtype": problem.dtype,
        "seed": seed,
        "outcome": remote.outcome.name,
        "error": error(remote, problem),
        "queries": remote.spent.queries,
        "queries_local": local.spent.queries,
        "queries_ratio": round(remote.spent.queries / local.spent.queries, 3),
        "requests": traffic.requests,
        "seconds": round(used.seconds, 3),
        "seconds_busy": round(traffic.busy_seconds, 3),
        "seconds_requests": round(traffic.seconds, 3),
        "seconds_local": round(seconds_local, 3),
        "seconds_plain": round(seconds_plain, 3),
        "time_ratio": round(used.seconds / traffic.busy_seconds, 3),
        "time_ratio_sum": round(used.seconds / traffic.seconds, 3),
        "time_ratio_plain": round(used.seconds / seconds_plain, 3),
        "cpu_client": round(used.client, 3),
        "cpu_requests": round(used.requests, 3),
        "cpu_server": round(used.server, 3),
        "cpu_ratio": round((used.server + used.client) / (used.server + used.requests), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the rows, as JSON lines")
    options = parser.parse_args()
    for dtype in ("float64", "float32"):
        problem = two_layer(784, 64, 10, dtype=dtype, seed=4)
        with tempfile.TemporaryDirectory() as folder, kserve(problem, Path(folder)) as url:
            rows = [measured(problem, url, seed, Path(folder)) for seed in range(options.runs)]
        for row in rows:
            print(json.dumps(row))
            if options.out is not None:
                with options.out.open("a") as file:
                    print(json.dumps(row), file=file)
        ratios = {
            name: statistics.median(float(str(row[name])) for row in rows)
            for name in ("queries_ratio", "time_ratio", "time_ratio_sum", "time_ratio_plain", "cpu_ratio")
        }
        worst = max(float(str(row["error"])) for row in rows)
        print(f"{dtype}: medians {ratios}, worst error {worst:.1e}")


if __name__ == "__main__":
    main()
