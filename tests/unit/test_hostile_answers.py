"""No answer of a server, however made, takes much memory or time: each is refused with a sentence."""

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hostile_answers as hostile
import relumine as rl
from relumine.cli import app

TESTS = Path(hostile.__file__).parent
MEMORY = 2 * 2**30
SECONDS = 30

# The most memory of a process itself, in bytes: ru_maxrss of a child starts with its parent's.
PEAK = 'peak = 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))'

# Asks every model of the server once for values and once for gradients, with no more memory than is allowed.
PROGRAM = f"""
import json, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
import numpy as np
import relumine as rl
from relumine.oracle.http import sender
sender._FIRST_WAIT = 0.01
offer = rl.Offer(inputs=({hostile.INPUTS},), outputs={hostile.OUTPUTS}, values="real")
url, count, timeout, workers = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
def asked(i):
    started, found = time.monotonic(), ""
    try:
        with rl.HttpOracle(f"{{url}}{{i}}", offer=offer, retries=1, timeout=timeout) as oracle:
            oracle(np.ones((1, {hostile.INPUTS})), gradients=bool(i % 2))
        found = "was taken"
    except rl.OracleError as error:
        found = str(error)
    except BaseException as error:
        found = f"INTERNAL {{type(error).__name__}}: {{error}}"[:500]
    return found, time.monotonic() - started
with ThreadPoolExecutor(workers) as pool:
    found = list(pool.map(asked, range(count)))
{PEAK}
print(json.dumps([found, peak]))
"""


def outcome(answers: list[tuple[str, hostile.Raw]], timeout: float, workers: int) -> tuple[list[list[object]], int]:
    with hostile.answering({str(i): raw for i, (_, raw) in enumerate(answers)}) as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, str(len(answers)), str(timeout), str(workers)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found, memory = json.loads(done.stdout)
    return found, memory


def check(answers: list[tuple[str, hostile.Raw]], timeout: float, workers: int) -> None:
    found, memory = outcome(answers, timeout, workers)
    strange = [
        f"{name}: {seconds:.1f} s: {text[:200]}"
        for (name, _), (text, seconds) in zip(answers, found, strict=True)
        if seconds > SECONDS
        or "INTERNAL" in text
        or text == "was taken"
        or not 20 < len(text) < 1000
        or not text.isprintable()
    ]
    assert not strange
    assert memory < MEMORY


def test_hostile_answers_are_refused_within_2_gb_and_30_s():
    answers = hostile.hostile_answers()
    assert len(answers) >= 200
    check(answers, timeout=10, workers=1)


def test_a_server_that_never_comes_to_an_end_is_left_after_the_timeout():
    check(list(hostile.endless()), timeout=1, workers=10)


def test_an_honest_answer_may_be_packed(tmp_path):
    body = gzip.compress(json.dumps(hostile.HONEST).encode())
    offer = rl.Offer(inputs=(hostile.INPUTS,), outputs=hostile.OUTPUTS, values="real")
    with (
        hostile.answering({"net": hostile.said(body, "200 OK", "Content-Encoding: gzip")}) as url,
        rl.HttpOracle(f"{url}net", offer=offer, run=tmp_path) as oracle,
    ):
        assert not oracle(np.ones((1, hostile.INPUTS)), gradients=True).jacobians.any()


@pytest.mark.parametrize("name", ["6400 MB of zeros by gzip", "lists, 900 deep"])
def test_the_command_says_so_and_leaves_with_3(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = dict(hostile.hostile_answers())[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # other tests' part of it
    with hostile.answering({"net": raw}) as url:
        asked = ["reconstruct", f"{url}net", "--input-shape", "5", "--outputs", "3", "--run", "run"]
        done = CliRunner().invoke(app, asked)
    assert done.exit_code == 3, done.output
    assert "expected" in done.output
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY / 4


# The fullest answers that the largest request leaves room for, four at a time as a client reads them: together they
# take no longer to compute than one of them may last.
WIDEST = f"""
import resource, time
from concurrent.futures import ThreadPoolExecutor
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
from relumine.oracle.http.decoding import decoded
from relumine.oracle.http.limits import Limits
from relumine.oracle.http.oracle import _NUMBERS_AT_ONCE
limits = Limits(_NUMBERS_AT_ONCE)
def read(unit):
    lists, marks = (sum(unit.count(mark) for mark in some) for some in ((b"[", b"{{"), (b"[", b"{{", b",")))
    count = min(limits.size // len(unit), limits.values // marks, limits.lists // max(1, lists)) - 2
    text = b"[" + unit * count + b"0]"
    limits.check_values(text)
    decoded(text)
started = time.process_time()  # of all four: other work on the machine does not count
with ThreadPoolExecutor(4) as pool:
    list(pool.map(read, (b"[0],", b"[],", b'{{"a":0}},', b'"a",')))
seconds = time.process_time() - started
{PEAK}
print(seconds, peak)
"""


def test_the_fullest_answers_to_the_largest_request_fit():
    done = subprocess.run([sys.executable, "-c", WIDEST], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, memory = map(float, done.stdout.split())
    assert seconds < SECONDS
    assert memory < MEMORY
