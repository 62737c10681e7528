"""Options that several commands share, each declared once, and how their words are read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relumine.cli.exits import say
from relumine.errors import MisuseError

if TYPE_CHECKING:
    from relumine.defend.registry import Chain
    from relumine.oracle.base import Array, Offer
    from relumine.reconstruct.result import Reconstructor

ValueName = Literal["logits", "probabilities", "real"]
AnswerName = Literal["logits", "probabilities", "real", "label"]
GradientName = Literal["all", "top", "none"]
DTypeName = Literal["float32", "float64"]
EngineName = Literal["local", "ray"]
MethodName = Literal["auto", "paper", "two-layer", "deep", "values", "linear", "convolutional"]


def option(metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """An option of a command: what stands for its value in --help, and what --help says of it."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


Debug = Annotated[bool, option(None, "Show where an error was raised.", "--debug")]
Quiet = Annotated[bool, option(None, "Results and errors only, no progress.", "--quiet", "-q")]
Verbose = Annotated[bool, option(None, "Write down each step as it ends.", "--verbose", "-v")]
Json = Annotated[bool, option(None, "Print what came out as JSON instead of tables.", "--json")]
Seed = Annotated[int, option("N", "Source of all randomness; the same seed asks the same questions.", min=0)]

# What is asked, and what it does not say of itself.


def shape_of(argument: str) -> Any:
    """The option --input-shape of a command whose model is called ``argument``."""
    return option("N,N,…", f"Shape of one input, e.g. 1,28,28, where {argument} does not say.")


Target = Annotated[str, typer.Argument(metavar="TARGET", help="What to ask: a TARGET, as of 'reconstruct'.")]
InputShape = Annotated[str | None, shape_of("TARGET")]
Values = Annotated[AnswerName | None, option(None, "What the target's outputs are.")]
Gradients = Annotated[GradientName | None, option(None, "Of which outputs gradients are answered.")]
Factory = Annotated[str | None, option("MODULE:NAME", "Makes the module that .safetensors weights belong to.")]
Backbone = Annotated[
    str | None,
    option(
        "FILE",
        "The public backbone of TARGET, if it has one: .onnx, .pt2, .pt or package.module:factory, from inputs to "
        "features. The head behind it is reconstructed.",
    ),
]
Defend = Annotated[
    list[str] | None,
    option("SPEC", "Show less, e.g. round:4+top: docs/defences.md; repeatable, first innermost.", "--defend"),
]

# How it is asked.

Method = Annotated[
    MethodName,
    option(
        None,
        "auto: linear, then convolutions (of images), then one hidden layer, then several. paper: Algorithm 1 "
        "of the paper, needs --hidden. two-layer: one hidden layer from gradients. deep: several. values: one, without "
        "gradients. linear: none. convolutional: convolutions and dense layers.",
    ),
]
Architecture = Annotated[
    str | None,
    option(
        "FILE",
        "For --method convolutional: a model with the target's layers, .onnx, .pt2, .pt or package.module:factory; its "
        "parameters do not matter. Without, as many layers as can be told are.",
    ),
]
Hidden = Annotated[int | None, option("N", "Number of hidden units, for --method paper.", min=1)]
Inputs = Annotated[
    Path | None,
    option("FILE", "Inputs that TARGET is made for, as of 'audit': where to search, and where a clone must be right."),
]
Budget = Annotated[
    int | None,
    option("N", "Ask at most this many queries; 1,000,000 if not given, 10,000 where TARGET is a server.", min=1),
]
Run = Annotated[
    Path | None, option("FOLDER", "Keep every answer there; the same command goes on after an interruption.")
]
Address = Annotated[str | None, option("ADDRESS", "Of a running Ray cluster; without, one is started here.")]

# Servers.

EndpointConfig = Annotated[Path | None, option("FILE", "What a server promises and how it is asked, as TOML.")]
Outputs = Annotated[int | None, option("N", "Number of outputs of a server without --endpoint-config.", min=1)]
ServerDType = Annotated[DTypeName | None, option(None, "In which a server computes; float32 if not given.")]
AuthorizedBy = Annotated[
    str | None, option("TEXT", "Who allowed the test of a server that is not on this machine; kept.")
]
Rate = Annotated[float | None, option("N", "Requests per second; 5 for a server elsewhere if not given.")]
Concurrency = Annotated[int | None, option("N", "Requests at a time; 2 for a server elsewhere, here 4.", min=1)]
Timeout = Annotated[float | None, option("SECONDS", "For one request; 30 if not given.")]


def parsed_shape(text: str | None) -> tuple[int, ...] | None:
    """What --input-shape says."""
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise MisuseError(f"--input-shape: expected positive integers such as 784 or 1,28,28, got {text!r}")
    return shape


def chosen_defence(specs: list[str] | None) -> "Chain | None":
    """What --defend says, in words."""
    from relumine.defend import parse

    if not specs:
        return None
    chain = parse("+".join(specs))
    say(f"defended: {chain.changes}")
    return chain


def chosen_method(
    method: MethodName,
    hidden: int | None,
    inputs: "Array | None" = None,
    backbone: str | None = None,
    offer: "Offer | None" = None,
    architecture: str | None = None,
) -> "Reconstructor":
    """What these options say, told what the target offers and which inputs it is made for."""
    import relumine as rl

    if backbone is not None and method != "auto":
        raise MisuseError(f"--backbone: expected no other --method, got {method}; leave one of them out")
    if backbone is not None and offer is not None:
        from relumine.targets import load_backbone

        return rl.Head(load_backbone(backbone, offer), inputs)
    if architecture is not None and method != "convolutional":
        raise MisuseError(f"--architecture belongs to --method convolutional, got {method}; leave one of them out")
    if architecture is not None and offer is not None:
        from relumine.targets import load_architecture

        return rl.Convolutional(load_architecture(architecture, offer), inputs)
    if method == "paper":
        if hidden is None:
            raise MisuseError("--method paper needs to know the number of hidden units: add --hidden N")
        return rl.PaperTwoLayer(hidden=hidden, inputs=inputs)
    if hidden is not None:
        raise MisuseError("--hidden belongs to --method paper; the other methods find the number themselves")
    names = {"two-layer": "TwoLayer", "values": "TwoLayerFromValues"}
    where = {} if inputs is None else {"inputs": inputs}
    asker: Reconstructor = getattr(rl, names.get(method, method.capitalize()))(**where)
    return asker
