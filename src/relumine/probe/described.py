"""From a server's address to its description: the preflight of a server that nobody has described yet."""

import hashlib
from dataclasses import replace

from relumine.endpoints import EndpointOptions, oracle_at
from relumine.oracle.base import DType, GradientKind
from relumine.oracle.http.endpoint import Endpoint
from relumine.oracle.http.oracle import HttpOracle
from relumine.probe.discovery import in_precision, proposed, tells_all
from relumine.probe.findings import Findings
from relumine.probe.values import answers_in_float32


def found_at(
    url: str,
    said: EndpointOptions,
    *,
    inputs: tuple[int, ...] | None = None,
    gradients: GradientKind | None = None,
    seed: int = 0,
) -> HttpOracle:
    """The oracle at an address, in the precision in which it answers: a first answer in all digits tells that."""
    if inputs is not None and said.outputs is not None and tells_all(url):
        # Values of any kind pass as real numbers; the preflight tells which they are.
        def at(dtype: DType) -> HttpOracle:
            return oracle_at(url, replace(said, dtype=dtype), inputs=inputs, values="real", gradients=gradients)
    else:
        endpoint = proposed(url, inputs, said)

        def at(dtype: DType) -> HttpOracle:
            return HttpOracle.at(in_precision(endpoint, dtype))

    oracle = at("float64")
    return at("float32") if answers_in_float32(oracle, seed) else oracle


def run_name(oracle: HttpOracle, seed: int) -> str:
    """The folder of a preflight: answers are kept by what it assumed of the server, and bind no other run to that."""
    return f"probe-{hashlib.sha256(repr(oracle.offer).encode()).hexdigest()[:8]}-{seed}"


def description(oracle: HttpOracle, findings: Findings) -> Endpoint:
    """The server as the preflight found it, for reconstructions and audits."""
    offer = findings.offer if findings.offer.contributions else findings.adapt(oracle).offer
    return oracle.endpoint.changed(offer=offer, explanation=findings.recipe, batch=1 if findings.one_by_one else None)
