"""``relumine serve --in-front-of`` as a process: fifty clients at once, and kill -9 in between.

``python test_guard_process.py --kills 20`` kills it more often than the suite does.
"""

import argparse
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import relumine as rl
from problems import two_layer
from servers import ModelServer, await_ready, free_port, served

PROBLEM = two_layer(20, 16, 3)
CLIENTS = 50
BUDGET = 40  # rows of each client, and of all who share a key
RELUMINE = str(Path(sys.executable).with_name("relumine"))
OPTIONS = ("--client-header", "X-API-Key", "--budget-per-client", str(BUDGET), "--budget-file", "budgets.sqlite")


@contextmanager
def guarding(folder: Path, url: str, *options: str) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    port = free_port()
    command = [RELUMINE, "serve", "--in-front-of", url, "--input-shape", "20", "--outputs", "3", "--dtype", "float64"]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([*command, "--port", str(port), *options], cwd=folder, stdout=log, stderr=log)
    try:
        await_ready(process, f"http://127.0.0.1:{port}/healthz", folder, 60)
        yield process, f"http://127.0.0.1:{port}/v1/models/net"
    finally:
        process.kill()
        process.wait()


def asked_by_many(address: list[str], stop: threading.Event, answered: dict[str, int]) -> list[threading.Thread]:
    """Fifty clients that ask until ``stop``, with keys of their own and a common one in turn."""
    lock = threading.Lock()

    def client(number: int) -> None:
        rng = np.random.default_rng(number)
        with httpx.Client(timeout=30) as connection:
            while not stop.is_set():
                name = f"key {number}" if rng.random() < 0.5 else "shared"
                body = {"instances": rng.standard_normal((int(rng.integers(1, 4)), 20)).tolist()}
                try:
                    reply = connection.post(f"{address[0]}:predict", json=body, headers={"X-API-Key": name})
                except httpx.HTTPError:  # killed
                    time.sleep(0.05)
                    continue
                assert reply.status_code in (200, 429), reply.text
                if reply.status_code == 200:
                    with lock:
                        answered[name] = answered.get(name, 0) + len(reply.json()["predictions"])

    return [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]


def counted(folder: Path) -> dict[str, int]:
    with sqlite3.connect(folder / "budgets.sqlite") as file:
        return dict(file.execute("SELECT client, rows FROM used"))


def check_kills(folder: Path, kills: int) -> tuple[dict[str, int], dict[str, int]]:
    """Rows that each client was answered, and rows that were counted for it."""
    answered: dict[str, int] = {}
    stop, address = threading.Event(), ["http://127.0.0.1:9/v1/models/net"]
    threads = asked_by_many(address, stop, answered)
    with served(ModelServer(PROBLEM.oracle)) as url:
        for thread in threads:
            thread.start()
        for _ in range(kills):
            with guarding(folder, url, *OPTIONS) as (process, address[0]):
                time.sleep(0.4)
                process.kill()
        with guarding(folder, url, *OPTIONS) as (_, address[0]):
            until = time.monotonic() + 60
            while sum(counted(folder).values()) < 0.95 * BUDGET * CLIENTS and time.monotonic() < until:
                time.sleep(0.1)
            stop.set()
            for thread in threads:
                thread.join()
    return answered, counted(folder)


def test_budgets_hold_for_fifty_clients_at_once_and_over_kills(tmp_path):
    answered, used = check_kills(tmp_path, 2)
    assert len(used) == CLIENTS + 1
    assert max(used.values()) <= BUDGET
    assert max(answered.values()) <= BUDGET
    assert sum(answered.values()) <= sum(used.values())
    # Fifty requests of two rows on their way at each kill are counted and lost.
    assert sum(answered.values()) > sum(used.values()) - 2 * CLIENTS * 3


def test_what_it_writes_down_is_enough_to_audit_it_through_the_guard(tmp_path):
    with (
        served(ModelServer(PROBLEM.oracle)) as url,
        guarding(tmp_path, url, "--budget-per-client", "60", "--write-config", "net.toml") as (process, guarded),
    ):
        config = tmp_path / "net.toml"
        config.write_text(config.read_text().replace("retries = 6", "retries = 0"))  # 429 would be waited for
        command = [RELUMINE, "reconstruct", guarded, "--endpoint-config", "net.toml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        process.terminate()
        assert process.wait(20) == 0
    assert done.returncode == 3
    assert "the budget of 60 rows is spent" in done.stderr
    assert rl.Outcome.RECOVERED.name not in done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder:
        answered, used = check_kills(Path(folder), kills)
    print(
        f"{CLIENTS} clients, {kills} kills, budget {BUDGET}: {sum(answered.values()):,} rows answered (at most "
        f"{max(answered.values())} to one key), {sum(used.values()):,} counted (at most {max(used.values())})"
    )


if __name__ == "__main__":
    main()
