"""``relumine serve``: answer predictions and explanations of a model over HTTP."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from relumine.cli import options
from relumine.cli.exits import errors_as_messages, extra_installed

ExplanationName = Literal[
    "gradient", "absolute-gradient", "input-times-gradient", "integrated-gradients", "smoothgrad", "none"
]


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What to serve: a TARGET, as of 'reconstruct'.")],
    *,
    explain: Annotated[ExplanationName, typer.Option(help="Which explanation :explain answers.")] = "gradient",
    classes: Annotated[
        Literal["all", "top"], typer.Option(help="Explain every output, or each input's largest.")
    ] = "all",
    of: Annotated[options.ValueName, typer.Option(help="What values are, and what is explained.")] = "logits",
    dtype: Annotated[options.DTypeName | None, typer.Option(help="Precision; the model's own if not given.")] = None,
    sigma: Annotated[float, typer.Option(metavar="N", help="Standard deviation of SmoothGrad's noise.")] = 0.1,
    defend: options.Defend = None,
    seed: options.Seed = 0,
    input_shape: Annotated[str | None, options.shape_of("MODEL")] = None,
    factory: options.Factory = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="The model's name in the address.")] = "model",
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where to listen; other machines may ask only with --key-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 takes any that is free.")] = 8080,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Tokens and budgets, a TOML table per key: docs/endpoints.md.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows that each key may ask for, where its own is not given.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Most rows in a request.")] = 256,
    max_bytes: Annotated[int, typer.Option(min=1, metavar="N", help="Longest body of a request.")] = 2**24,
    write_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the endpoint's settings for 'reconstruct'.")
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Answer predictions and explanations of a model over HTTP (KServe v1).

    For trying out what an endpoint gives away, and for tests. Ctrl-C stops it.

    For models that you own or are allowed to test.
    """
    with errors_as_messages(debug):
        with extra_installed("serve"):
            from relumine.serve.app import Limits, make_app
            from relumine.serve.server import listen
            from relumine.serve.server import serve as run_server
        from relumine.oracle.http.endpoint import Endpoint
        from relumine.serve.explained import Choice, explained
        from relumine.serve.keys import read_keys
        from relumine.targets import load_target

        keys = read_keys(key_file, budget=budget)
        values = None if of == "logits" else of  # what most models answer, if they do not say
        oracle = load_target(model, input_shape=options.parsed_shape(input_shape), values=values, factory=factory)
        shown = explained(oracle, Choice(explain, classes, of, dtype, sigma, seed))
        defence = options.chosen_defence(defend)
        guard = None if defence is None else partial(defence, rng=seed)
        app = make_app(shown, name, keys=keys, limits=Limits(max_rows, max_bytes), defence=guard)
        listener = listen(host, port, keys)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        if write_config is not None:
            offer = (guard(shown) if guard else shown).offer
            Endpoint(f"{address}/v1/models/{name}", offer, explanation=explain).write(write_config)
        print(f"serving {address}/v1/models/{name} (:predict, :explain; {address}/docs)", flush=True)
        run_server(app, listener)
        used = sum(keys.used().values())
        print(f"stopped after {used:,} rows")
