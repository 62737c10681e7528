"""The limit on the time that a job computes."""

import signal
import threading
import time

import pytest

from relumine.jobs.engines import TimeUp, limited


def compute(seconds: float) -> None:
    """Where errors are handled, as attacks do, the clock is none."""
    began = time.process_time()
    while time.process_time() - began < seconds:
        try:
            sum(range(1000))
        except Exception:
            continue


def test_a_job_is_stopped_when_its_time_is_up():
    began = time.process_time()
    with pytest.raises(TimeUp, match=r"stopped after 0.1 s of computing; --time-limit allows more"), limited(0.1):
        compute(10)
    assert time.process_time() - began < 2


def test_waiting_does_not_count_and_nothing_is_left_behind():
    before = signal.getsignal(signal.SIGPROF)
    with limited(0.2):
        time.sleep(0.4)
    assert signal.getsignal(signal.SIGPROF) is before
    compute(0.3)


def test_in_other_threads_there_is_no_limit_and_no_error():
    done = []

    def run() -> None:
        with limited(0.1):
            done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done
