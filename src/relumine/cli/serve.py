"""``relumine serve``: answer predictions and explanations of a model over HTTP."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from relumine.cli import options
from relumine.cli.exits import errors_as_messages, extra_installed
from relumine.cli.options import option
from relumine.errors import MisuseError

if TYPE_CHECKING:
    from relumine.serve.guard import App

ExplanationName = Literal[
    "gradient", "absolute-gradient", "input-times-gradient", "integrated-gradients", "smoothgrad", "none"
]


def serve(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="What to serve: a TARGET, as of 'reconstruct'.")
    ] = None,
    *,
    in_front_of: Annotated[
        str | None, option("URL", "Stand in front of this server instead: --defend and budgets for it.")
    ] = None,
    explain: Annotated[ExplanationName, option(None, "Which explanation :explain answers.")] = "gradient",
    classes: Annotated[Literal["all", "top"], option(None, "Explain every output, or each input's largest.")] = "all",
    of: Annotated[options.ValueName, option(None, "What values are, and what is explained.")] = "logits",
    dtype: Annotated[options.DTypeName | None, option(None, "Precision; the model's own if not given.")] = None,
    sigma: Annotated[float, option("N", "Standard deviation of SmoothGrad's noise.")] = 0.1,
    defend: options.Defend = None,
    seed: Annotated[int | None, option("N", "Seed of the noise, to be kept secret. Default: random.", min=0)] = None,
    input_shape: Annotated[str | None, options.shape_of("MODEL or URL")] = None,
    factory: options.Factory = None,
    endpoint_config: options.EndpointConfig = None,
    outputs: options.Outputs = None,
    authorized_by: options.AuthorizedBy = None,
    timeout: options.Timeout = None,
    name: Annotated[str, option("NAME", "The model's name in the address.")] = "model",
    host: Annotated[
        str, option("HOST", "Where to listen; other machines may ask a MODEL only with --key-file.")
    ] = "127.0.0.1",
    port: Annotated[int, option("N", "0 takes any that is free.", min=0, max=65535)] = 8080,
    key_file: Annotated[
        Path | None, option("FILE", "Tokens and budgets, a TOML table per key: docs/endpoints.md.")
    ] = None,
    client_header: Annotated[
        str | None, option("NAME", "Header that tells clients apart, e.g. X-API-Key; else their address does.")
    ] = None,
    budget_per_client: Annotated[
        int | None, option("N", "Rows that each client may ask for, where its key says nothing.", min=1)
    ] = None,
    budget_file: Annotated[Path | None, option("FILE", "Count rows there, so that budgets outlive the server.")] = None,
    budget_hours: Annotated[
        float | None, option("N", "Renew each client's budget after this many hours; else never.")
    ] = None,
    max_rows: Annotated[int, option("N", "Most rows in a request.", min=1)] = 256,
    max_bytes: Annotated[int, option("N", "Longest body of a request.", min=1)] = 2**24,
    write_config: Annotated[Path | None, option("FILE", "Write the endpoint's settings for 'reconstruct'.")] = None,
    debug: options.Debug = False,
) -> None:
    """Answer predictions and explanations of a model over HTTP (KServe v1), or guard a server that does.

    A MODEL is served for trying out what an endpoint gives away. With --in-front-of a defence and a budget for each
    client stand in front of a server that is there already: docs/defences.md. Ctrl-C stops it.

    For models that you own or are allowed to test.
    """
    with errors_as_messages(debug):
        with extra_installed("serve"):
            from relumine.serve.app import make_app
            from relumine.serve.forwarding import Forwarding
            from relumine.serve.guard import Guard
            from relumine.serve.payload import Limits
            from relumine.serve.server import listen
            from relumine.serve.server import serve as run_server
        from relumine.endpoints import EndpointOptions, endpoint_at
        from relumine.oracle.http.endpoint import Endpoint
        from relumine.serve.budgets import Budgets
        from relumine.serve.explained import Choice, explained
        from relumine.serve.keys import read_keys
        from relumine.targets import load_target

        if (model is None) == (in_front_of is None):
            raise MisuseError("expected a MODEL to serve or --in-front-of URL, got both or none")
        source = secrets.randbits(128) if seed is None else seed
        keys = read_keys(key_file, budget=budget_per_client, header=client_header)
        budgets = Budgets(budget_file, period=None if budget_hours is None else 3600 * budget_hours)
        limits, defence = Limits(max_rows, max_bytes), options.chosen_defence(defend)
        shape = options.parsed_shape(input_shape)
        app: App
        if in_front_of is not None:
            said = EndpointOptions(endpoint_config, outputs, dtype, authorized_by, timeout=timeout)
            gradients = "none" if explain == "none" else classes
            offered = {} if endpoint_config else {"inputs": shape, "values": of, "gradients": gradients}
            behind = endpoint_at(in_front_of, said, **offered)
            app = guard = Guard(
                Forwarding(behind), behind, defence=defence, keys=keys, budgets=budgets, seed=source, limits=limits
            )
            endpoint = guard.endpoint
        else:
            values = None if of == "logits" else of  # what most models answer, if they do not say
            oracle = load_target(model or "", input_shape=shape, values=values, factory=factory)
            oracle = explained(oracle, Choice(explain, classes, of, dtype, sigma, source))
            app = make_app(oracle, name, keys=keys, budgets=budgets, limits=limits, defence=defence, seed=source)
            offer = (defence(oracle) if defence else oracle).offer
            endpoint = Endpoint(f"http://localhost/v1/models/{name}", offer, explanation=explain)
        listener = listen(host, port, needs_keys=model is not None and not keys.are_needed)
        endpoint = endpoint.at(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}")
        if write_config is not None:
            endpoint.write(write_config)
        print(f"serving {endpoint.url}", flush=True)
        run_server(app, listener)
        print(f"stopped after {sum(budgets.used().values()):,} rows")
        budgets.close()
