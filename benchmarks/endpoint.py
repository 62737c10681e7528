"""Reconstruction through HTTP beside the time that the requests alone take.

    python benchmarks/endpoint.py --runs 5

Starts a real KServe server with a Captum explainer on this machine, reconstructs a 784-64-10 network through it, and
compares with the same reconstruction of the network in this process: queries, error, and the wall time of the
reconstruction over the time during which a request was on its way (``time_ratio``). The sum of the requests' times
(``time_ratio_sum``) is no measure of overhead: it grows when a question is split into requests that overlap.

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

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import relumine as rl
from problems import Problem, error, two_layer
from relumine.oracle.sender import Sender
from servers import kserve


class Processor:
    """Seconds of processor time: the client's, its requests' among them, and the server's."""

    def __init__(self) -> None:
        self.client, self.server, self.requests = -time.process_time(), -_server_seconds(), 0.0
        self._exchange = Sender._exchange

    def __enter__(self) -> "Processor":
        def timed(*arguments: object) -> object:
            started = time.thread_time()
            try:
                return self._exchange(*arguments)
            finally:
                self.requests += time.thread_time() - started

        Sender._exchange = timed
        return self

    def __exit__(self, *_: object) -> None:
        Sender._exchange = self._exchange
        self.client += time.process_time()
        self.server += _server_seconds()


def _server_seconds() -> float:
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def measured(problem: Problem, url: str, seed: int, folder: Path) -> dict[str, object]:
    """One reconstruction in this process, which also imports what is imported late, and one through HTTP."""
    started = time.perf_counter()
    local = rl.TwoLayer()(problem.oracle, rng=seed)
    seconds_local = time.perf_counter() - started
    started = time.perf_counter()
    with Processor() as used, rl.HttpOracle(url, offer=problem.offer, run=folder / str(seed)) as oracle:
        remote = rl.TwoLayer()(oracle, rng=seed)
        traffic = oracle.traffic
    seconds = time.perf_counter() - started
    return {
        "dtype": problem.dtype,
        "seed": seed,
        "outcome": remote.outcome.name,
        "error": error(remote, problem),
        "queries": remote.spent.queries,
        "queries_local": local.spent.queries,
        "queries_ratio": round(remote.spent.queries / local.spent.queries, 3),
        "requests": traffic.requests,
        "seconds": round(seconds, 3),
        "seconds_busy": round(traffic.busy_seconds, 3),
        "seconds_requests": round(traffic.seconds, 3),
        "seconds_local": round(seconds_local, 3),
        "time_ratio": round(seconds / traffic.busy_seconds, 3),
        "time_ratio_sum": round(seconds / traffic.seconds, 3),
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
            for name in ("queries_ratio", "time_ratio", "time_ratio_sum", "cpu_ratio")
        }
        worst = max(float(str(row["error"])) for row in rows)
        print(f"{dtype}: medians {ratios}, worst error {worst:.1e}")


if __name__ == "__main__":
    main()
