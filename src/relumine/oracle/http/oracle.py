"""HttpOracle: a model behind a server's address. For endpoints that you own or are allowed to test."""

import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from relumine.errors import MisuseError, RelumineError
from relumine.oracle.base import Answer, Array, Offer, Part, checked_answer, checked_inputs, joined
from relumine.oracle.http.endpoint import Endpoint
from relumine.oracle.http.limits import Limits
from relumine.oracle.http.protocol import protocol_of
from relumine.oracle.http.sender import Cancellation, Sender

# Numbers in one answer, some 10 MB of JSON; batches are made smaller for that. Smaller answers took the same time when
# measured (docs/endpoints.md), and are more requests.
_NUMBERS_AT_ONCE = 2**19


class HttpOracle:
    """Asks a model server: KServe v1, Open Inference Protocol v2, TorchServe, MLflow, or any that answers JSON.

    url:      of the model, e.g. http://127.0.0.1:8080/v1/models/net
    offer:    what it promises
    run:      folder in which a meter keeps every answer; relumine-runs/HOST-PORT-NAME if not given
    settings: the other fields of an Endpoint: authorized_by, batch, concurrency, rate, timeout, gradients_at, …

    A server that is not on this machine is asked only if ``authorized_by`` says who allowed it, and then at most five
    times a second unless ``rate`` says otherwise. 401, 403 and 451 end the run.
    """

    def __init__(self, url: str, *, offer: Offer, run: str | Path | None = None, **settings: Any) -> None:
        try:
            endpoint = Endpoint(url, offer, **settings)
        except TypeError as error:
            raise MisuseError(f"HttpOracle: expected the fields of an Endpoint, got {', '.join(settings)}") from error
        self._set_up(endpoint, run)

    @classmethod
    def at(cls, endpoint: Endpoint, *, run: str | Path | None = None) -> Self:
        """The oracle of an endpoint that is described already, as by a TOML file."""
        oracle = cls.__new__(cls)
        oracle._set_up(endpoint, run)
        return oracle

    def _set_up(self, endpoint: Endpoint, run: str | Path | None) -> None:
        endpoint.require_authorization()
        self.endpoint, self.offer, self._protocol = endpoint, endpoint.offer, protocol_of(endpoint)
        self.run = Path(run) if run is not None else Path("relumine-runs") / endpoint.name
        allowed = {"authorized by": endpoint.authorized_by} if endpoint.authorized_by else {}
        self.facts: Mapping[str, str] = {"endpoint": endpoint.url, **allowed}  # what the ledger of a run is bound to
        self._sender = Sender(endpoint)
        self.traffic = self._sender.traffic
        self._workers = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="relumine-http")

    def __repr__(self) -> str:
        return f"HttpOracle({self.endpoint.url})"

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        parts = sorted(self.parts(rows, gradients=gradients), key=lambda part: part.positions.start)
        answer = joined(self.offer, [part.answer for part in parts], gradients=gradients)
        return checked_answer(self.offer, len(rows), answer, gradients=gradients)

    def parts(self, inputs: Array, *, gradients: bool) -> Iterator[Part]:
        """Answers as they come in, several requests at a time.

        If one fails no more are sent, those on their way are still handed out, and then the failure is raised.
        """
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        size = max(1, min(self.endpoint.batch, _NUMBERS_AT_ONCE // self._protocol.numbers(gradients=gradients)))
        batches = [range(i, min(i + size, len(rows))) for i in range(0, len(rows), size)]
        with _interruption_put_off() as stop:
            if len(batches) == 1:  # the usual case; to wake another thread for it takes time
                yield self._ask(rows, batches[0], gradients, stop)
            else:
                yield from self._at_a_time(rows, batches, gradients, stop)

    def _at_a_time(self, rows: Array, batches: list[range], gradients: bool, stop: Cancellation) -> Iterator[Part]:
        """Several requests at a time, until one fails or ``stop``."""
        waiting = iter(batches)
        flying: set[Future[Part]] = set()
        failure: BaseException | None = None
        while True:
            if not stop.is_set():
                for batch in islice(waiting, (self.endpoint.concurrency or 1) - len(flying)):
                    chosen = rows[batch.start : batch.stop]
                    flying.add(self._workers.submit(self._ask, chosen, batch, gradients, stop))
            if not flying:
                break
            landed, flying = wait(flying, return_when=FIRST_COMPLETED)
            for future in landed:
                error = future.exception()
                if error is None:
                    yield future.result()
                else:
                    failure = failure or error
                    stop.set()
        if failure is not None:
            raise failure

    def _ask(self, rows: Array, batch: range, gradients: bool, stop: Cancellation) -> Part:
        body = self._protocol.body(np.ascontiguousarray(rows))
        limits = Limits(len(rows) * self._protocol.numbers(gradients=gradients))
        asked = self._protocol.exchanges(gradients=gradients)
        said = {verb: self._sender.post(self._protocol.url(gradients=verb), body, stop, limits) for verb in asked}
        return Part(batch, self._protocol.read(len(rows), said))


@contextmanager
def _interruption_put_off() -> Iterator[Cancellation]:
    """Ctrl-C sends nothing more but waits for what is on its way, which is paid for. A second one does not wait."""
    stop = Cancellation()

    def put_off(*_: object) -> None:
        if stop.interrupted:
            raise KeyboardInterrupt
        stop.interrupted = True
        stop.set()

    mine = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if mine:
        signal.signal(signal.SIGINT, put_off)
    try:
        yield stop
    except RelumineError:
        if not stop.interrupted:  # else it may have failed for not being tried again
            raise
    finally:
        stop.set()
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if stop.interrupted:
        raise KeyboardInterrupt
