"""The demonstration: train two small networks, reconstruct them in every way that fits, draw the paper's search."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from relumine.errors import MisuseError
from relumine.oracle.base import Array
from relumine.oracle.torch import TorchOracle
from relumine.picture import draw_search
from relumine.reconstruct.paper import PaperTwoLayer
from relumine.reconstruct.result import Outcome, Reconstruction, Reconstructor
from relumine.reconstruct.two_layer import TwoLayer
from relumine.reconstruct.values import TwoLayerFromValues

if TYPE_CHECKING:
    import torch

_TEST_IMAGES = 500
_TRAINING_STEPS = 200
_UNITS_OF_TEN, _UNITS_OF_PARITY = 64, 24


@dataclass(frozen=True, eq=False)
class Digits:
    """scikit-learn's 8×8 digits, shuffled, pixels around 0: some to train on, some to test with."""

    images: Array
    labels: Array
    test_images: Array
    test_labels: Array

    @classmethod
    def load(cls, rng: np.random.Generator) -> "Digits":
        """They come with scikit-learn: nothing is downloaded."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = rng.permutation(len(images))
        images, labels = (images[order] - images.mean(axis=0)) / 4, labels[order]
        return cls(images[_TEST_IMAGES:], labels[_TEST_IMAGES:], images[:_TEST_IMAGES], labels[:_TEST_IMAGES])


@dataclass(frozen=True, eq=False)
class Target:
    """A trained network, how its outputs tell a class, and images that it was not trained on."""

    name: str
    module: "torch.nn.Module"
    classes: Callable[[Array], NDArray[Any]]
    images: Array
    labels: NDArray[Any]

    @property
    def oracle(self) -> TorchOracle:
        """Answers logits and their gradients."""
        return TorchOracle(self.module, input_shape=(64,), gradients="all", values="logits")

    @property
    def accuracy(self) -> float:
        """Share of the images that it gets right."""
        return float((self.classes(self.oracle(self.images, gradients=False).values) == self.labels).mean())


def run_demo(out: Path, seed: int) -> None:
    """Train, reconstruct, compare, draw."""
    _require_folder(out)
    console, started = Console(), time.monotonic()
    digits = Digits.load(np.random.default_rng(seed))
    paper = PaperTwoLayer(hidden=_UNITS_OF_PARITY)
    ours: dict[str, Reconstructor] = {"two-layer": TwoLayer(), "values": TwoLayerFromValues()}
    with console.status("training"), _one_thread():
        ten, parity = _ten_digits(digits, seed), _odd_or_even(digits, seed)
    _compare(console, ten, ours, seed)
    results = _compare(console, parity, {"paper": paper, **ours}, seed)
    console.print("two-layer asks for gradients, values for none; the paper's method needs one output and no biases.")
    if results["paper"].outcome is Outcome.RECOVERED:
        with console.status("drawing"):
            pictures = draw_search(parity.oracle, paper, out, seed, _remark(results))
        console.print(f"Its search, drawn: {' and '.join(map(str, pictures))}", highlight=False, soft_wrap=True)
    else:  # its theorem allows that, with probability delta
        console.print("It failed with this seed, so there is nothing to draw; try another --seed.")
    console.print(f"{time.monotonic() - started:.0f} seconds in all.", highlight=False)


def _require_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MisuseError(f"--out: expected a folder to write in, got {out} ({error.strerror})") from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small train faster so, and much faster on a machine that is busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ten_digits(digits: Digits, seed: int) -> Target:
    import torch

    labels = torch.tensor(digits.labels)
    network = _network(_UNITS_OF_TEN, 10, True, seed)
    module = _trained(network, digits, lambda logits: torch.nn.functional.cross_entropy(logits, labels))
    name = f"Which digit is it? 64-{_UNITS_OF_TEN}-10, with biases"
    return Target(name, module, lambda outputs: outputs.argmax(axis=1), digits.test_images, digits.test_labels)


def _odd_or_even(digits: Digits, seed: int) -> Target:
    import torch

    odd = torch.tensor(digits.labels % 2, dtype=torch.float64)[:, None]
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    module = _trained(_network(_UNITS_OF_PARITY, 1, False, seed), digits, lambda logits: loss(logits, odd))
    name = f"Is it odd? 64-{_UNITS_OF_PARITY}-1, without biases"
    return Target(name, module, lambda outputs: outputs[:, 0] > 0, digits.test_images, digits.test_labels % 2)


def _network(hidden: int, outputs: int, bias: bool, seed: int) -> "torch.nn.Module":
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = torch.nn.Linear(64, hidden, bias), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs, bias)
    return torch.nn.Sequential(*layers).double()


def _trained(
    module: "torch.nn.Module", digits: Digits, loss: "Callable[[torch.Tensor], torch.Tensor]"
) -> "torch.nn.Module":
    import torch

    images = torch.tensor(digits.images)
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(_TRAINING_STEPS):
        optimiser.zero_grad()
        loss(module(images)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return module


def _compare(
    console: Console, target: Target, methods: Mapping[str, Reconstructor], seed: int
) -> dict[str, Reconstruction]:
    """Reconstruct with each method and print a table of what it took."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("method")
    for header in ("gradient\nqueries", "value\nqueries", "queries\nper unit", "same\nanswers", "largest\ngap", "time"):
        table.add_column(header, justify="right")
    results = {}
    for name, method in methods.items():
        started = time.monotonic()
        with console.status(f"reconstructing: {name}"):
            results[name] = method(target.oracle, rng=seed)
        table.add_row(name, *_figures(results[name], target), f"{time.monotonic() - started:.1f} s")
    console.print(f"\n[bold]{target.name}[/] ({target.accuracy:.1%} of test images right)", highlight=False)
    console.print(table)
    return results


def _figures(result: Reconstruction, target: Target) -> list[str]:
    """Queries of each kind and per unit; agreement and largest relative gap on images that nobody asked about."""
    spent = result.spent
    queries = [f"{spent.gradient_queries:,}", f"{spent.value_queries:,}"]
    if result.outcome is not Outcome.RECOVERED:
        return [*queries, "", result.outcome.name.lower().replace("_", " "), ""]
    answers = target.oracle(target.images, gradients=False).values
    clone = result.predict(target.images)
    same = float((target.classes(clone) == target.classes(answers)).mean())
    gap = np.abs(clone - answers).max() / np.abs(answers).max()
    return [*queries, f"{spent.queries / sum(result.hidden):,.1f}", f"{same:.1%}", f"{gap:.0e}"]


def _remark(results: Mapping[str, Reconstruction]) -> str:
    paper, ours = (results[name].spent for name in ("paper", "two-layer"))
    return (
        f"The paper’s method: {paper.gradient_queries:,} gradient and {paper.value_queries:,} value queries.\n"
        f"TwoLayer, same network: {ours.gradient_queries:,} and {ours.value_queries:,}."
    )
