"""The command line: one thin command per library call, and one place that turns errors into messages.

Exit codes: 0 done, 1 internal error, 2 usage, 3 inconclusive (not recovered, the oracle failed, the budget ended),
130 interrupted. Heavy imports wait until a command runs, so that ``--help`` answers at once.
"""

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relumine import __version__
from relumine.errors import BudgetError, MisuseError, OracleError, RelumineError

if TYPE_CHECKING:
    from relumine.defend.registry import Chain
    from relumine.oracle.base import Oracle
    from relumine.oracle.ledger import Ledger
    from relumine.reconstruct.result import Reconstructor

DONE, INTERNAL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

_RESPONSIBLE = "For models that you own or are allowed to test."

app = typer.Typer(
    name="relumine",
    help=f"How much of a model do its predictions and explanations give away? Reconstruct it and see. {_RESPONSIBLE}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


Method = Literal["auto", "paper", "two-layer", "deep", "values", "linear"]
Values = Literal["logits", "probabilities", "real"]
Gradients = Literal["all", "top", "none"]
DTypeName = Literal["float32", "float64"]
ExplanationName = Literal[
    "gradient", "absolute-gradient", "input-times-gradient", "integrated-gradients", "smoothgrad", "none"
]
Figure = Literal["all", "main", "unknown-class", "gaussian", "access", "smoothgrad"]
Scale = Literal["smoke", "laptop", "paper"]
EngineName = Literal["local", "ray"]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")]
Seed = Annotated[
    int, typer.Option(min=0, metavar="N", help="Source of all randomness; the same seed asks the same questions.")
]
Defend = Annotated[
    list[str] | None,
    typer.Option(
        "--defend", metavar="SPEC", help="Show less, e.g. round:4+top: docs/defences.md; repeatable, first innermost."
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"relumine {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def reconstruct(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="package.module:factory, a .pt2 file (torch.export), a .pt file (TorchScript), an .onnx file, "
            ".safetensors weights with --factory, a .skops file (scikit-learn), or the address of a model server, "
            "http://HOST:PORT/v1/models/NAME. Pickles are never loaded.",
        ),
    ],
    *,
    method: Annotated[
        Method,
        typer.Option(
            help="auto: linear, then one hidden layer, then several. paper: Algorithm 1 of the paper, needs --hidden. "
            "two-layer: one hidden layer from gradients. deep: several. values: one, without gradients. linear: none."
        ),
    ] = "auto",
    budget: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ask at most this many queries.")] = None,
    seed: Seed = 0,
    hidden: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of hidden units, for --method paper.")
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Shape of one input, e.g. 1,28,28, where TARGET does not say.")
    ] = None,
    values: Annotated[Values | None, typer.Option(help="What the target's outputs are.")] = None,
    gradients: Annotated[Gradients | None, typer.Option(help="Of which outputs gradients are answered.")] = None,
    factory: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="Makes the module that .safetensors weights belong to.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep every answer there; the same command goes on after an interruption."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the clone: .safetensors or .onnx; repeatable."),
    ] = None,
    endpoint_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What a server promises and how it is asked, as TOML.")
    ] = None,
    outputs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of outputs of a server without --endpoint-config.")
    ] = None,
    dtype: Annotated[DTypeName | None, typer.Option(help="In which a server computes; float32 if not given.")] = None,
    authorized_by: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Who allowed the test of a server that is not on this machine; kept."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Requests per second; 5 for a server elsewhere if not given.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests at a time; 2 for a server elsewhere, here 4.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="For one request; 30 if not given.")] = None,
    defend: Defend = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="First find out what the explanations are, as 'relumine probe' does, and use it."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Ask a model questions until its parameters are known.

    What was found is compared with TARGET at fresh points before it is called recovered.

    For models that you own or are allowed to test.
    """
    with _errors_as_messages(debug):
        from rich.console import Console

        from relumine.console import Watch, about_endpoint, show
        from relumine.endpoints import EndpointOptions
        from relumine.oracle.http import HttpOracle
        from relumine.oracle.metered import Metered
        from relumine.probe.preflight import Probe
        from relumine.probe.run import reconstruct_behind
        from relumine.probe.screen import show_findings
        from relumine.reconstruct.export import check_writable
        from relumine.reconstruct.result import Outcome
        from relumine.targets import fingerprint, load_target

        asker = _reconstructor(method, hidden)
        defence = _defence(defend)
        if defence is not None:
            _check_defensible(target, defence, run)
        for path in output or []:
            check_writable(path)
        screen = Console(stderr=True)
        shape = _parsed_shape(input_shape)
        said = EndpointOptions(endpoint_config, outputs, dtype, authorized_by, rate, concurrency, timeout)
        with screen.status(f"loading {target}"):
            oracle = load_target(
                target, input_shape=shape, values=values, gradients=gradients, factory=factory, endpoint=said
            )
        remote = oracle if isinstance(oracle, HttpOracle) else None
        if defence is not None:
            oracle = defence(oracle, rng=seed)
        if remote is not None and run is None:
            run = remote.run / f"{method}-{seed}"  # paid answers are always kept
            _say(f"answers are kept in {run}")
        facts = {"target": fingerprint(target), "factory": factory, "method": asker, "seed": seed, "probe": probe}
        ledger = _ledger(run, oracle, defend=defence, **facts) if run else None
        started = time.monotonic()
        with Watch(screen) as watch, _interruption_explained(watch, ledger):
            meter = Metered(oracle, ledger=ledger, budget=budget, watch=watch)
            if probe:
                found = Probe()(meter, rng=seed)
                show_findings(screen, found)
                result = reconstruct_behind(
                    asker, meter, found.recipe, offer=found.offer, one_by_one=found.one_by_one, rng=seed
                )
            else:
                recipe = "gradient" if remote is None else remote.endpoint.explanation
                result = reconstruct_behind(asker, meter, recipe, rng=seed)
        show(Console(), result, time.monotonic() - started, about_endpoint(remote) if remote else [])
        if result.outcome is not Outcome.RECOVERED:
            if output:
                _say("No clone was written, because none is known to be right.")
            raise typer.Exit(INCONCLUSIVE)
        for path in output or []:
            print(f"wrote {result.save(path)}")


@app.command()
def probe(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="What to ask: a TARGET, as of 'reconstruct'.")],
    *,
    json_: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    write_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write TOML: for a server what reconstruct reads with --endpoint-config."),
    ] = None,
    seed: Seed = 0,
    input_shape: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Shape of one input, e.g. 1,28,28, where TARGET does not say.")
    ] = None,
    gradients: Annotated[
        Gradients | None, typer.Option(help="all: an answer has an explanation of each output. top: one of one output.")
    ] = None,
    factory: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="Makes the module that .safetensors weights belong to.")
    ] = None,
    endpoint_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What a server promises and how it is asked, as TOML.")
    ] = None,
    outputs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of outputs of a server without --endpoint-config.")
    ] = None,
    authorized_by: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Who allowed the test of a server that is not on this machine; kept."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Find out what an endpoint's answers and explanations are.

    Asks a few dozen questions: what values are, how precise, which output is explained, and whether the explanation is
    the gradient or something gradients can be made of. If not, says what is lost.

    For models that you own or are allowed to test.
    """
    with _errors_as_messages(debug):
        import json

        from rich.console import Console

        from relumine.endpoints import EndpointOptions, is_url
        from relumine.probe.preflight import Probe, answers_in_float32
        from relumine.probe.screen import show_findings
        from relumine.probe.screen import write_config as written
        from relumine.targets import load_target

        shape = _parsed_shape(input_shape)

        def loaded(values: Values | None = None, dtype: DTypeName | None = None) -> "Oracle":
            said = EndpointOptions(endpoint_config, outputs, dtype, authorized_by)
            return load_target(
                target, input_shape=shape, values=values, gradients=gradients, factory=factory, endpoint=said
            )

        with Console(stderr=True).status(f"asking {target}"):
            if is_url(target) and endpoint_config is None:
                # Nothing is known yet: values of any kind pass as real numbers, and a first answer tells the precision.
                oracle = loaded("real", "float64")
                oracle = loaded("real", "float32") if answers_in_float32(oracle, seed) else oracle
            else:
                oracle = loaded()
            findings = Probe()(oracle, rng=seed)
        if json_:
            print(json.dumps(findings.as_dict(), indent=2, ensure_ascii=False))
        else:
            show_findings(Console(), findings)
        if write_config is not None:
            _say(f"wrote {written(findings, oracle, write_config)}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the picture goes.")] = Path("demo"),
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Reconstruct small networks trained here and now.

    Trains on scikit-learn's digits, compares what each method asks for, and draws the paper's search. Takes under a
    minute and needs no network connection.
    """
    with _errors_as_messages(debug):
        from relumine.demo import run_demo

        run_demo(out, seed)


@app.command()
def reproduce(
    figure: Annotated[
        Figure,
        typer.Argument(
            metavar="FIGURE",
            help="main: gradient against membership queries. unknown-class: the student is of another class. gaussian: "
            "queries without data. access: what an endpoint may show instead (not in the paper). smoothgrad: the "
            "appendix's saliency maps. Or all.",
        ),
    ] = "all",
    *,
    scale: Annotated[
        Scale, typer.Option(help="smoke: minutes, on digits. laptop: hours on two cores. paper: the full design.")
    ] = "smoke",
    panel: Annotated[
        str, typer.Option(metavar="TEXT", help="Only panels whose name, such as 'mnist conv', has this in it.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where results go and are resumed; reproduced/SCALE if not given."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the page about it goes; results.md in --out if not given."),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Run nothing: draw figures and page from the rows in --out, and fail if they differ.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Experiments at a time; as many as there are cores if not given."),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="local: processes on this machine. ray: a Ray cluster; the same rows.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of a running Ray cluster; without, one is started here.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Repeat the paper's experiments, with its claims beside what comes out.

    Rows are kept as they come: the same command goes on where an interrupted one stopped, and tries again what failed.
    """
    with _errors_as_messages(debug):
        from rich.console import Console

        from relumine.study.engines import engine_named
        from relumine.study.reproduce import differences
        from relumine.study.reproduce import reproduce as reproduced
        from relumine.study.screen import show_claims

        folder = out or Path("reproduced") / scale
        if check:
            _report_differences(differences(scale, folder, page))
            return
        chosen = engine_named(engine, workers, address)
        result = reproduced(figure, scale, folder, chosen, Console(stderr=True), only=panel, page_path=page)
        show_claims(Console(), result.claims, result.faithful)
        print(f"wrote {result.page}")
        if result.failures:
            _say(f"{len(result.failures)} failed, as the page says; the same command tries them again.")
            raise typer.Exit(INCONCLUSIVE)


def _report_differences(wrong: list[str]) -> None:
    if wrong:
        _say(f"not what the rows say: {', '.join(wrong)}; run the command without --check to write them again.")
        raise typer.Exit(1)
    print("figures and page are what the rows say")


@app.command()
def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What to serve: a TARGET, as of 'reconstruct'.")],
    *,
    explain: Annotated[ExplanationName, typer.Option(help="Which explanation :explain answers.")] = "gradient",
    classes: Annotated[
        Literal["all", "top"], typer.Option(help="Explain every output, or each input's largest.")
    ] = "all",
    of: Annotated[Values, typer.Option(help="What values are, and what is explained.")] = "logits",
    dtype: Annotated[DTypeName | None, typer.Option(help="Precision; the model's own if not given.")] = None,
    sigma: Annotated[float, typer.Option(metavar="N", help="Standard deviation of SmoothGrad's noise.")] = 0.1,
    defend: Defend = None,
    seed: Seed = 0,
    input_shape: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Shape of one input, e.g. 1,28,28, where MODEL does not say.")
    ] = None,
    factory: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="Makes the module that .safetensors weights belong to.")
    ] = None,
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
    debug: Debug = False,
) -> None:
    """Answer predictions and explanations of a model over HTTP (KServe v1).

    For trying out what an endpoint gives away, and for tests. Ctrl-C stops it.

    For models that you own or are allowed to test.
    """
    with _errors_as_messages(debug):
        with _extra_installed("serve"):
            from relumine.serve.app import Limits, make_app
            from relumine.serve.server import listen
            from relumine.serve.server import serve as run_server
        from relumine.oracle.endpoint import Endpoint
        from relumine.serve.explained import Choice, explained
        from relumine.serve.keys import read_keys
        from relumine.targets import load_target

        keys = read_keys(key_file, budget=budget)
        values = None if of == "logits" else of  # what most models answer, if they do not say
        oracle = load_target(model, input_shape=_parsed_shape(input_shape), values=values, factory=factory)
        shown = explained(oracle, Choice(explain, classes, of, dtype, sigma, seed))
        defence = _defence(defend)
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


def _reconstructor(method: Method, hidden: int | None) -> "Reconstructor":
    import relumine as rl

    if method == "paper":
        if hidden is None:
            raise MisuseError("--method paper needs to know the number of hidden units: add --hidden N")
        return rl.PaperTwoLayer(hidden=hidden)
    if hidden is not None:
        raise MisuseError("--hidden belongs to --method paper; the other methods find the number themselves")
    names = {"two-layer": "TwoLayer", "values": "TwoLayerFromValues"}
    asker: Reconstructor = getattr(rl, names.get(method, method.capitalize()))()
    return asker


def _defence(specs: list[str] | None) -> "Chain | None":
    """What was chosen, told to whoever sits there."""
    from relumine.defend import parse

    if not specs:
        return None
    chain = parse("+".join(specs))
    _say(f"defended: {chain.changes}")
    return chain


def _check_defensible(target: str, defence: "Chain", run: Path | None) -> None:
    from relumine.endpoints import is_url

    if is_url(target):
        raise MisuseError("--defend: expected a model that is loaded here; a server defends itself")
    if defence.remembers and run is not None:
        raise MisuseError(f"--run: answers behind {defence} depend on earlier ones, so that no run can go on")


def _parsed_shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise MisuseError(f"--input-shape: expected positive integers such as 784 or 1,28,28, got {text!r}")
    return shape


def _ledger(run: Path, oracle: "Oracle", **facts: object) -> "Ledger":
    """The ledger of a run folder, bound to what must be the same when the run is resumed."""
    from relumine.oracle.ledger import Ledger

    ledger = Ledger(run / "ledger.sqlite")
    ledger.belongs_to(oracle.offer, **{name: str(fact) for name, fact in facts.items()})
    return ledger


@contextmanager
def _extra_installed(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MisuseError(f"this needs the package {error.name}: pip install 'relumine[{extra}]'") from error


@contextmanager
def _interruption_explained(watch: Any, ledger: "Ledger | None") -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        kept = (
            "Nothing is kept; with --run FOLDER every answer is."
            if ledger is None
            else f"{len(ledger):,} answers are kept in {ledger.path}; the same command goes on from there."
        )
        _say(f"\nInterrupted after {watch.queries:,} queries. {kept}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _errors_as_messages(debug: bool) -> Iterator[None]:
    """The one place that turns errors into a message and an exit code."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        _say("\nInterrupted.")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, RelumineError):
            _say(f"error: {error}")
            raise typer.Exit(INCONCLUSIVE if isinstance(error, OracleError | BudgetError) else USAGE) from None
        _say(f"internal error: {type(error).__name__}: {error}")
        _say("This is a fault in relumine. --debug shows where it happened; please report it.")
        raise typer.Exit(INTERNAL) from None


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def main() -> None:
    """The entry point ``relumine``."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a narrow encoding must not be an error
    app()
