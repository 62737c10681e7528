"""PerClient: the defended oracle that each client asks."""

import threading
from collections import OrderedDict

from relumine.defend.registry import Chain
from relumine.oracle.base import Answer, Array, Oracle
from relumine.serve.keys import Client

# So many clients' defences are kept, the last ones to ask: strangers with new addresses must not fill the memory.
_MOST_CLIENTS = 10_000


class PerClient:
    """A defended oracle for each client, if the defence remembers questions; else one for all.

    All share their sources of noise. With a source each, from the same seed, the difference of two clients' answers
    would be without fresh noise; with different seeds, clients could average consistent noise away.

    seed: source of the noise; None is one that nobody can guess
    """

    def __init__(self, behind: Oracle, defence: Chain | None, seed: int | None) -> None:
        self._behind, self._defence = behind, defence
        self._sources = defence.sources(seed) if defence else []
        self._first = self._made()
        self._kept: OrderedDict[str, tuple[Oracle, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()
        self.offer = self._first.offer

    def _made(self) -> Oracle:
        return self._defence.in_front_of(self._behind, self._sources) if self._defence else self._behind

    def __call__(self, client: Client, rows: Array, gradients: bool) -> Answer:
        """What this client is answered."""
        if self._defence is None or not self._defence.remembers:
            return self._first(rows, gradients=gradients)
        with self._lock:
            oracle, lock = self._kept.setdefault(client.name, (self._made(), threading.Lock()))
            self._kept.move_to_end(client.name)
            if len(self._kept) > _MOST_CLIENTS:
                self._kept.popitem(last=False)
        with lock:
            return oracle(rows, gradients=gradients)
