"""``relumine probe``: find out what an endpoint's answers and explanations are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from relumine.cli import options
from relumine.cli.exits import errors_as_messages, ledger_in, say
from relumine.cli.options import option

if TYPE_CHECKING:
    from relumine.oracle.base import Oracle


def probe(
    target: options.Target,
    *,
    json_: options.Json = False,
    write_config: Annotated[
        Path | None, option("FILE", "Write TOML: for a server what reconstruct reads with --endpoint-config.")
    ] = None,
    seed: options.Seed = 0,
    input_shape: options.InputShape = None,
    gradients: Annotated[
        options.GradientName | None,
        option(None, "all: an answer has an explanation of each output. top: one of one output."),
    ] = None,
    factory: options.Factory = None,
    endpoint_config: options.EndpointConfig = None,
    outputs: options.Outputs = None,
    authorized_by: options.AuthorizedBy = None,
    debug: options.Debug = False,
) -> None:
    """Find out what an endpoint's answers and explanations are.

    Asks a few dozen questions: what values are, how precise, which output is explained, and whether the explanation is
    the gradient or something gradients can be made of. If not, says what is lost.

    For models that you own or are allowed to test.
    """
    with errors_as_messages(debug):
        import json

        from rich.console import Console

        from relumine.endpoints import EndpointOptions, is_url
        from relumine.probe.discovery import found_at
        from relumine.probe.preflight import Probe
        from relumine.probe.screen import show_findings
        from relumine.probe.screen import write_config as written
        from relumine.targets import load_target

        shape = options.parsed_shape(input_shape)
        said = EndpointOptions(endpoint_config, outputs, None, authorized_by)
        with Console(stderr=True).status(f"asking {target}"):
            oracle: Oracle
            if is_url(target) and endpoint_config is None:
                oracle = found_at(target, said, inputs=shape, gradients=gradients, seed=seed)
            else:
                oracle = load_target(target, input_shape=shape, gradients=gradients, factory=factory, endpoint=said)
            with _kept(oracle, seed) as meter:
                findings = Probe()(meter, rng=seed)
        if json_:
            print(json.dumps(findings.as_dict(), indent=2, ensure_ascii=False))
        else:
            show_findings(Console(), findings)
        if write_config is not None:
            say(f"wrote {written(findings, oracle, write_config)}")


@contextmanager
def _kept(oracle: "Oracle", seed: int) -> "Iterator[Oracle]":
    """A server through a ledger of the probe's own."""
    from relumine.oracle.http.oracle import HttpOracle
    from relumine.oracle.metering.metered import Metered
    from relumine.probe.discovery import run_name

    if not isinstance(oracle, HttpOracle):
        yield oracle
        return
    with ledger_in(oracle.run / run_name(oracle, seed)) as ledger:
        yield Metered(oracle, ledger=ledger)
