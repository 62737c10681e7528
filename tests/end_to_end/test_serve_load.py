"""``relumine serve`` as a process: asked by many at once, reconstructed through, and stopped.

``python test_serve_load.py --seconds 60`` loads it for longer than the suite does.
"""

import argparse
import itertools
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers import await_ready, free_port

MODEL = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from problems import two_layer
import relumine as rl

make = lambda: two_layer(20, 16, 3).oracle

def slow():
    problem = two_layer(20, 16, 3)

    def query(x, gradients):
        time.sleep(1)
        return problem.predict(x), problem.jacobian(x) if gradients else None

    return rl.FunctionOracle(query, problem.offer)
"""
KEYS = '[load]\ntoken = "load-secret-token"\n[small]\ntoken = "small-secret-token"\nbudget = 500\n'
CONNECTIONS = 4
RELUMINE = str(Path(sys.executable).with_name("relumine"))


@contextmanager
def serving(folder: Path, *options: str, model: str = "make") -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """The command as a process, and the address of its model."""
    (folder / "themodel.py").write_text(MODEL)
    (folder / "keys.toml").write_text(KEYS)
    port = free_port()
    command = [RELUMINE, "serve", f"themodel:{model}", "--port", str(port), "--name", "net"]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen([*command, *options], cwd=folder, stdout=log, stderr=log)
    try:
        await_ready(process, f"http://127.0.0.1:{port}/readyz", folder, 60)
        yield process, f"http://127.0.0.1:{port}/v1/models/net"
    finally:
        process.kill()
        process.wait()


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-secret-token"}


def load(url: str, seconds: float) -> tuple[Counter[tuple[str, int]], int]:
    """Ask over four connections as fast as it answers; statuses by who asked, and rows that the small budget got."""
    until = time.monotonic() + seconds
    seen: Counter[tuple[str, int]] = Counter()
    small = itertools.count()
    lock = threading.Lock()

    def connection(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with httpx.Client(timeout=30) as client:
            while time.monotonic() < until:
                name = str(rng.choice(["load", "small", "wrong"], p=[0.8, 0.1, 0.1]))
                rows = rng.standard_normal((int(rng.integers(1, 20)), 20))
                verb = rng.choice(["predict", "explain"])
                reply = client.post(f"{url}:{verb}", json={"instances": rows.tolist()}, headers=as_(name))
                with lock:
                    seen[name, reply.status_code] += 1
                    if name == "small" and reply.status_code == 200:
                        assert len(reply.json()["predictions"]) == len(rows)
                        [next(small) for _ in rows]

    threads = [threading.Thread(target=connection, args=(seed,)) for seed in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen, next(small)


def check_load(folder: Path, seconds: float) -> Counter[tuple[str, int]]:
    with serving(folder, "--key-file", "keys.toml") as (process, url):
        seen, small = load(url, seconds)
        assert {status for name, status in seen if name == "load"} == {200}
        assert {status for name, status in seen if name == "wrong"} == {401}
        assert {status for name, status in seen if name == "small"} <= {200, 429}
        assert small <= 500
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    return seen


def test_it_bears_a_load_and_stops_when_asked_to(tmp_path):
    seen = check_load(tmp_path, 2)
    assert seen["load", 200] > 50
    log = (tmp_path / "server.log").read_text()
    assert log.startswith("serving http://127.0.0.1:")
    assert "stopped after" in log
    assert "secret-token" not in log


def test_what_has_begun_is_finished_before_it_stops(tmp_path):
    with serving(tmp_path, model="slow") as (process, url):
        replies: list[httpx.Response] = []
        body = {"instances": np.ones((20, 20)).tolist()}
        thread = threading.Thread(target=lambda: replies.append(httpx.post(f"{url}:explain", json=body, timeout=60)))
        thread.start()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        thread.join()
        assert process.wait(20) == 0
    assert replies[0].status_code == 200
    assert len(replies[0].json()["explanations"]) == 20


def test_what_it_writes_down_is_enough_to_reconstruct_it(tmp_path):
    with serving(tmp_path, "--write-config", "net.toml", "--key-file", "keys.toml") as (_, url):
        command = [RELUMINE, "reconstruct", url, "--endpoint-config", "net.toml"]
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        allowed = {"RELUMINE_AUTHORIZATION": "Bearer load-secret-token"}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=allowed)
    assert refused.returncode == 3
    assert "got 401" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "RECOVERED" in done.stdout
    assert "secret-token" not in done.stdout + done.stderr
    assert not [p for p in (tmp_path / "relumine-runs").rglob("*") if p.is_file() and b"secret" in p.read_bytes()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        seen = check_load(Path(folder), seconds)
    print(f"{sum(seen.values()):,} requests in {seconds:g} s over {CONNECTIONS} connections: {dict(seen)}")


if __name__ == "__main__":
    main()
