"""Engines run jobs in parallel: in processes on this machine, or on a Ray cluster.

A job is a function and one argument. An engine yields (argument, result) as jobs end, in no particular order; a job
that raised or whose process died yields a ``Lost`` and does not stop the others. Every process computes with one
thread, so that sums are always taken in the same order and results do not depend on the engine.
"""

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NamedTuple, Self, TypeVar

from relumine.environment import environment
from relumine.errors import MisuseError
from relumine.text import one_line

A = TypeVar("A")
R = TypeVar("R")

# How often a job is started again whose process or machine died; one that eats all memory would go on for ever.
_STARTED_AGAIN = 1

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# What decides where data and targets are found; a worker must see the same as its parent.
_PLACES = ("RELUMINE_DATA", "RELUMINE_CACHE", "RELUMINE_DEVICE")


@dataclass(frozen=True)
class Lost:
    """What a job yields that raised an error, or whose process died."""

    reason: str


class Engine(ABC):
    """Runs jobs between entering and leaving a ``with`` block.

    workers:      how many at a time
    shares_files: whether jobs see the files of this machine
    """

    workers: int = 1
    shares_files: bool = True

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Stop whatever is still running."""

    @abstractmethod
    def run(self, function: Callable[[A], R], arguments: Iterable[A]) -> Iterator[tuple[A, R | Lost]]:
        """Call ``function``, which must be importable by name, with each argument; one is taken as its job starts."""


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


class LocalProcesses(Engine):
    """``workers`` processes on this machine (as many as it has cores, by default).

    They are spawned, not forked, because torch's threads do not survive a fork. They end with the process that
    started them, even if that is killed.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = _checked(workers if workers is not None else os.cpu_count() or 1)
        self._crew: list[_Worker] = []

    def __exit__(self, *_: object) -> None:
        for worker in self._crew:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._crew.clear()

    def run(self, function: Callable[[A], R], arguments: Iterable[A]) -> Iterator[tuple[A, R | Lost]]:
        """Give each idle worker the next argument, and start workers while there are fewer than allowed."""
        waiting = iter(arguments)
        idle = [*self._crew]
        busy: dict[Connection, tuple[_Worker, A]] = {}
        while True:
            for argument in islice(waiting, self.workers - len(busy)):
                worker = idle.pop() if idle else self._started()
                busy[worker.pipe] = worker, argument
                with suppress(BrokenPipeError, ConnectionResetError):  # it is gone; receiving from it will say so
                    worker.pipe.send((function, argument))
            if not busy:
                return
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, argument = busy.pop(pipe)
                result = self._received(worker)
                if worker in self._crew:
                    idle.append(worker)
                yield argument, result

    def _started(self) -> _Worker:
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,), daemon=True)
        with environment(_ONE_THREAD):
            process.start()
        there.close()
        worker = _Worker(process, here)
        self._crew.append(worker)
        return worker

    def _received(self, worker: _Worker) -> Any:
        try:
            return worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._crew.remove(worker)
            code = worker.process.exitcode
            killed = " (out of memory?)" if code == -signal.SIGKILL else ""
            return Lost(f"the process that ran it ended with code {code}{killed}")


def _work(pipe: Connection) -> None:
    """What a worker does all day."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, argument = pipe.recv()
        except EOFError:
            return
        pipe.send(_done(function, argument))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _done(function: Callable[..., Any], argument: object) -> Any:
    """The job's result, or Lost."""
    import torch

    torch.set_num_threads(1)
    try:
        return function(argument)
    except Exception as error:
        return Lost(f"{type(error).__name__}: {error}")


class ThisProcess(Engine):
    """No processes at all: one job after the other, here. For jobs that wait for others more than they compute."""

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, function: Callable[[A], R], arguments: Iterable[A]) -> Iterator[tuple[A, R | Lost]]:
        """Call it; Ctrl-C reaches the function."""
        for argument in arguments:
            yield argument, _done(function, argument)


class RayCluster(Engine):
    """The Ray cluster at ``address``, or one of ``workers`` processes that is started here on the loopback interface.

    On a cluster every machine needs this version of relumine and, for MNIST and CIFAR10, the data; jobs at a time are
    limited to ``workers``, or else to the cluster's CPUs. GPUs are shared by the jobs of a time. A job whose worker or
    machine is lost is started again elsewhere, once.
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = _checked(workers if workers is not None else os.cpu_count() or 1)
        self.shares_files = address is None
        self._limited = workers is not None
        self._address = address
        self._started = False
        self._gpus = 0.0

    def __enter__(self) -> Self:
        ray = _ray(at_home=self._address is None)
        if not ray.is_initialized():
            self._start(ray)
            self._started = True
        if not self._limited:
            self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._gpus = gpu_share(ray.cluster_resources().get("GPU", 0), self.workers)
        return self

    def _start(self, ray: Any) -> None:
        places = {name: os.environ[name] for name in _PLACES if name in os.environ}
        options: dict[str, Any] = {"address": self._address}
        if self._address is None:
            options = {"num_cpus": self.workers, "include_dashboard": False}
        try:
            ray.init(
                **options,
                runtime_env={"env_vars": _ONE_THREAD | places},
                log_to_driver=False,
                logging_level="error",
            )
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            place = self._address or "this machine"
            raise MisuseError(f"engine ray: cannot reach or start a cluster at {place}: {error}") from error

    def __exit__(self, *_: object) -> None:
        if self._started:
            _ray().shutdown()
            self._started = False

    def run(self, function: Callable[[A], R], arguments: Iterable[A]) -> Iterator[tuple[A, R | Lost]]:
        """Keep as many jobs in the cluster as there are workers."""
        ray = _ray()
        remote = ray.remote(num_cpus=1, num_gpus=self._gpus, max_retries=_STARTED_AGAIN)(_done)
        waiting = iter(arguments)
        busy: dict[Any, A] = {}
        while True:
            for argument in islice(waiting, self.workers - len(busy)):
                busy[remote.remote(function, argument)] = argument
            if not busy:
                return
            for reference in ray.wait(list(busy))[0]:
                argument = busy.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayError as error:
                    result = Lost(f"{one_line(error)}")
                yield argument, result


def gpu_share(gpus: float, workers: int) -> float:
    """Of a GPU, what each of ``workers`` jobs gets where there are ``gpus``, so that all fit: a whole one or 1 / n."""
    return 0.0 if gpus < 1 else 1.0 / -(-workers // int(gpus))


def _ray(*, at_home: bool = False) -> Any:
    """The library. ``at_home``: no other machine shall join, so Ray must not listen to the network."""
    # Ray reports its use to its makers unless told not to; that is for the user to allow.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a change to come
    if at_home:
        # Read when Ray is imported; off, as it is on Windows and macOS, Ray keeps to the loopback interface.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise MisuseError("engine ray: Ray is not installed; pip install 'relumine[ray]'") from error
    return ray


def engine_named(name: str, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine that a user's words stand for."""
    if name == "ray":
        return RayCluster(workers, address)
    if name != "local":
        raise MisuseError(f"engine: expected local or ray, got {name!r}")
    if address is not None:
        raise MisuseError("an address belongs to a Ray cluster: add --engine ray")
    return LocalProcesses(workers)


def _checked(workers: int) -> int:
    if workers < 1:
        raise MisuseError(f"workers: expected at least 1, got {workers}")
    return workers


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
