"""A limit on the time that a job computes, in whichever process it runs."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeUp(BaseException):
    """The time is up. No Exception, so that no job takes it for an error of its own and goes on."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeUp inside after this many seconds of computing; waiting, as for a server, does not count.

    Only a process's first thread can be stopped, and only where the system has such a clock (not on Windows).
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        raise TimeUp(f"stopped after {seconds:g} s of computing; --time-limit allows more")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
