"""ART's FunctionallyEquivalentExtraction, run in a process of its own with a time limit.

ART changes numpy's global generator and its own global settings, and may search for ever.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from exact_targets import Array, gaussian_points, random_network, relative_error

SECONDS = 30  # of processor time; the runs that end need less than 10
SAMPLES = 1000  # for its fit of the last layer; they are queries too


class _Counted:
    """The target's values in float64, counted at the oracle."""

    def __init__(self, predict: Callable[[Array], Array]) -> None:
        self._predict = predict
        self.queries = 0

    def __call__(self, x: Array) -> Array:
        self.queries += len(x)
        return self._predict(x)


class _NeverEnded(Exception):
    """The time limit was reached."""


def run(d: int, h: int, K: int, seed: int) -> dict[str, Any]:
    """Outcome, error, queries and seconds of one extraction of ``random_network(d, h, K, True, seed)``."""
    command = [sys.executable, "-W", "ignore", __file__, *map(str, (d, h, K, seed))]
    # The process limits itself; should it not, this does.
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=40 * SECONDS)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _extract(d: int, h: int, K: int, seed: int) -> dict[str, Any]:
    import art.config
    from art.attacks.extraction import FunctionallyEquivalentExtraction
    from art.estimators.classification import BlackBoxClassifierNeuralNetwork

    # Both settings are in ART's favour: with its defaults inputs and answers are float32, and its search never ends.
    art.config.ART_NUMPY_DTYPE = np.float64
    network = random_network(d, h, K, True, seed)
    asked = _Counted(network.predict)
    np.random.seed(seed)
    attack = FunctionallyEquivalentExtraction(
        BlackBoxClassifierNeuralNetwork(asked, (d,), K, preprocessing=None), num_neurons=h
    )
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    began, outcome, found, remark = time.perf_counter(), "returned", None, ""
    try:
        found = attack.extract(np.random.default_rng([seed, 4]).standard_normal((SAMPLES, d)))
    except _NeverEnded:
        outcome = "never ended"
    except Exception as error:
        outcome, remark = "refused", f"{type(error).__name__}: {error}"
    signal.setitimer(signal.ITIMER_PROF, 0)
    row = {"outcome": outcome, "value_queries": asked.queries, "seconds": time.perf_counter() - began, "remark": remark}
    if found is not None:
        row["error"] = relative_error(found.predict, network.predict, gaussian_points(d, seed))
    return row


def _stop(*_: object) -> None:
    raise _NeverEnded


if __name__ == "__main__":
    print(json.dumps(_extract(*map(int, sys.argv[1:]))))
