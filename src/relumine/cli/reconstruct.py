"""``relumine reconstruct``: ask a model until its parameters are known."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relumine.cli import options
from relumine.cli.exits import INCONCLUSIVE, errors_as_messages, interruption_explained, ledger_in, say
from relumine.cli.options import option
from relumine.errors import MisuseError

if TYPE_CHECKING:
    from rich.console import Console

    from relumine.defend.registry import Chain
    from relumine.oracle.base import Oracle
    from relumine.oracle.metering.ledger import Ledger
    from relumine.reconstruct.result import Reconstruction


# Where --budget does not say. Ten times what the largest network of the tables needs from values alone (2^16.7); of a
# server, what most can be asked within a day of its rate limits, and few would pay for more without being asked.
_BUDGET, _BUDGET_OF_SERVER = 1_000_000, 10_000


def reconstruct(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="package.module:factory, a .pt2 file (torch.export), a .pt file (TorchScript), an .onnx file, "
            ".safetensors weights with --factory, a .skops file (scikit-learn), models:/NAME/VERSION (MLflow), "
            "hf://ORG/MODEL (Hugging Face), the folder of either, or the address of a model server, "
            "http://HOST:PORT/v1/models/NAME. Pickles are never loaded.",
        ),
    ],
    *,
    method: options.Method = "auto",
    budget: options.Budget = None,
    seed: options.Seed = 0,
    hidden: options.Hidden = None,
    data: options.Inputs = None,
    backbone: options.Backbone = None,
    architecture: options.Architecture = None,
    input_shape: options.InputShape = None,
    values: options.Values = None,
    gradients: options.Gradients = None,
    factory: options.Factory = None,
    run: options.Run = None,
    output: Annotated[
        list[Path] | None, option("FILE", "Write the clone: .safetensors or .onnx; repeatable.", "--output", "-o")
    ] = None,
    endpoint_config: options.EndpointConfig = None,
    outputs: options.Outputs = None,
    dtype: options.ServerDType = None,
    authorized_by: options.AuthorizedBy = None,
    rate: options.Rate = None,
    concurrency: options.Concurrency = None,
    timeout: options.Timeout = None,
    defend: options.Defend = None,
    probe: Annotated[
        bool, option(None, "First find out what the explanations are, as 'relumine probe' does, and use it.", "--probe")
    ] = False,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Ask a model questions until its parameters are known.

    What was found is compared with TARGET at fresh points, and at all inputs of --data, before it is called recovered.

    For models that you own or are allowed to test.
    """
    with errors_as_messages(debug):
        from rich.console import Console

        from relumine.adapt.recipes import reconstruct_behind
        from relumine.audit.data import load_data
        from relumine.console import Watch, show
        from relumine.endpoints import EndpointOptions
        from relumine.explain.map_kind import map_kind
        from relumine.oracle.http.oracle import HttpOracle
        from relumine.oracle.metering.metered import Metered
        from relumine.probe.preflight import Probe
        from relumine.probe.screen import show_findings
        from relumine.reconstruct.export import check_writable
        from relumine.targets import fingerprint, load_target

        options.chosen_method(
            method, hidden, backbone=backbone, architecture=architecture
        )  # what is wrong with it is said before anything is loaded
        defence = options.chosen_defence(defend)
        if defence is not None:
            _check_defensible(target, defence, run)
        for path in output or []:
            check_writable(path)
        screen = Console(stderr=True, quiet=quiet)
        shape = options.parsed_shape(input_shape)
        said = EndpointOptions(endpoint_config, outputs, dtype, authorized_by, rate, concurrency, timeout)
        with screen.status(f"loading {target}"):
            oracle = load_target(
                target, input_shape=shape, values=values, gradients=gradients, factory=factory, endpoint=said
            )
        inputs = None if data is None else load_data(data, oracle.offer.inputs).rows
        asker = options.chosen_method(method, hidden, inputs, backbone, oracle.offer, architecture)
        remote = oracle if isinstance(oracle, HttpOracle) else None
        if defence is not None:
            oracle = defence(oracle, rng=seed)
        if remote is not None and run is None:
            run = remote.run / f"{method}-{seed}"  # paid answers are always kept
            screen.print(f"answers are kept in {run}", markup=False, soft_wrap=True)
        budget = budget or (_BUDGET if remote is None else _BUDGET_OF_SERVER)
        facts = {"target": fingerprint(target), "factory": factory, "method": asker, "seed": seed, "probe": probe}
        facts |= {
            name: fingerprint(str(file))
            for name, file in (("data", data), ("backbone", backbone), ("architecture", architecture))
            if file
        }
        started = time.monotonic()
        with (
            _ledger(run, oracle, defend=defence, **facts) as ledger,
            Watch(screen, verbose=verbose) as watch,
            interruption_explained(watch, ledger),
        ):
            meter = Metered(oracle, ledger=ledger, budget=budget, watch=watch)
            if probe:
                found = Probe()(meter, rng=seed)
                show_findings(screen, found)
                result = reconstruct_behind(
                    asker, meter, found.maps, offer=found.offer, one_by_one=found.one_by_one, rng=seed
                )
            else:
                maps = map_kind("gradient" if remote is None else remote.endpoint.explanation)
                result = reconstruct_behind(asker, meter, maps, rng=seed)
        seconds = time.monotonic() - started
        print(_as_json(result, seconds)) if json_ else show(Console(), result, seconds, remote)
        _write_clones(result, output or [], screen if json_ else Console())


def _check_defensible(target: str, defence: "Chain", run: Path | None) -> None:
    from relumine.endpoints import is_url

    if is_url(target):
        raise MisuseError("--defend: expected a model that is loaded here; a server defends itself")
    if defence.remembers and run is not None:
        raise MisuseError(f"--run: answers behind {defence} depend on earlier ones, so that no run can go on")


@contextmanager
def _ledger(run: Path | None, oracle: "Oracle", **facts: object) -> "Iterator[Ledger | None]":
    """The ledger of a run folder, bound to what must be the same when the run is resumed."""
    if run is None:
        yield None
        return
    with ledger_in(run) as ledger:
        ledger.belongs_to(oracle.offer, **{name: str(fact) for name, fact in facts.items()})
        yield ledger


def _as_json(result: "Reconstruction", seconds: float) -> str:
    """What ``show`` says, for programs."""
    plain = {
        "outcome": result.outcome.name,
        "meaning": result.outcome.value,
        "method": result.method,
        "hidden": result.hidden,
        "activation": result.activation,
        "spent": asdict(result.spent),
        "evidence": asdict(result.evidence),
        "seconds": round(seconds, 2),
    }
    return json.dumps(plain, indent=1, ensure_ascii=False, default=float)


def _write_clones(result: "Reconstruction", paths: list[Path], console: "Console") -> None:
    from relumine.reconstruct.result import Outcome

    if result.outcome is not Outcome.RECOVERED:
        if paths:
            say("No clone was written, because none is known to be right.")
        raise typer.Exit(INCONCLUSIVE)
    for path in paths:
        console.print(f"wrote {result.save(path)}", highlight=False, markup=False, soft_wrap=True)
