"""Deep networks: are they recovered, how exactly, from how many queries?

python benchmarks/deep.py                   everything that is not in benchmarks/results/ yet (about an hour)
python benchmarks/deep.py --only random     one experiment; --widths 100-32-16-10 for these networks only
python benchmarks/deep.py --table           write the tables and the figures of docs/deep.md from the rows

Run it with OMP_NUM_THREADS=1. A row is written as soon as it is known; rows that are there are not run again. No seed
was looked at while the method was made; docs/deep.md names those that were when it was mended.
"""

import argparse
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

import deep_table
import relumine as rl
from relumine import zoo
from relumine.jobs.provenance import provenance
from relumine.oracle.base import DType

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """One run: the widths of a network, inputs first and outputs last, e.g. "40-20-10-2", and how it computes."""

    experiment: str
    widths: str
    dtype: DType
    seed: int
    values: Literal["logits", "probabilities"] = "logits"

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(int, self.widths.split("-")))


SEEDS = range(5000, 5010)
# Quick ones first.
RANDOM: tuple[tuple[str, DType], ...] = (
    ("100-32-16-10", "float64"),
    ("784-64-32-10", "float64"),
    ("64-64-64-10", "float64"),
    ("20-10-5-3", "float64"),
    ("40-20-10-2", "float64"),
    ("80-40-20-2", "float64"),
    ("100-32-16-10", "float32"),
    ("784-64-32-10", "float32"),
    ("784-100-50-10", "float32"),
    ("40-20-10-10-3", "float64"),
    ("80-40-20-1", "float64"),
    ("40-20-10-10-1", "float64"),
    ("10-20-20-1", "float64"),
    ("32-32-32-32-5", "float64"),
    ("64-16-16-16-16-10", "float64"),
    ("100-64-32-16-10", "float32"),
)


def random() -> Iterator[Case]:
    """Random networks: contracting, equal widths, few outputs, an expanding first layer, up to four hidden layers."""
    for widths, dtype in RANDOM:
        for seed in SEEDS:
            yield Case("random", widths, dtype, seed)


def trained() -> Iterator[Case]:
    """Trained on MNIST and computing in float32, through logits and through probabilities."""
    for seed in SEEDS:
        yield Case("trained", "784-64-32-10", "float32", seed)
        yield Case("trained", "784-64-32-10", "float32", seed, "probabilities")


EXPERIMENTS = {each.__name__: each for each in (random, trained)}


class Timed:
    """A random network that counts and times its own answers, independently of the meter."""

    def __init__(self, case: Case) -> None:
        sizes, dtype, seed = case.sizes, case.dtype, case.seed
        rng = np.random.default_rng([seed, *sizes])
        self.weights, self.biases = [], []
        for i, (wide, narrow) in enumerate(pairwise(sizes)):
            # He's scale keeps the signal's size from layer to layer; the first layer's inputs have no ReLU before them.
            scale = np.sqrt((2 if i else 1) / wide)
            self.weights.append((rng.standard_normal((narrow, wide)) * scale).astype(dtype))
            self.biases.append((rng.standard_normal(narrow) * 0.5).astype(dtype))
        self.offer = rl.Offer((sizes[0],), sizes[-1], "real" if sizes[-1] == 1 else case.values, "all", dtype)
        self.seconds = 0.0
        self.queries = 0

    def __call__(self, inputs: np.ndarray, *, gradients: bool) -> rl.Answer:
        began = time.perf_counter()
        values, masks = self.values(inputs.astype(self.offer.dtype))
        jacobians = None
        if gradients:
            jacobians = np.broadcast_to(self.weights[-1], (len(inputs), *self.weights[-1].shape))
            for weight, mask in zip(self.weights[-2::-1], masks[::-1], strict=True):
                jacobians = (jacobians * mask[:, None, :]) @ weight
        if self.offer.values == "probabilities":
            values = _softmax(values)
            if jacobians is not None:
                jacobians = values[:, :, None] * (jacobians - np.einsum("nk,nkd->nd", values, jacobians)[:, None])
        self.seconds += time.perf_counter() - began
        self.queries += len(inputs)
        return rl.Answer(values, jacobians)

    def values(self, signal: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        masks = []
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            signal = signal @ weight.T + bias
            masks.append((signal > 0).astype(signal.dtype))
            signal = np.maximum(signal, 0)
        return signal @ self.weights[-1].T + self.biases[-1], masks


def _softmax(logits: np.ndarray) -> np.ndarray:
    found = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def train(target: Timed, seed: int) -> None:
    """1,500 steps of Adam on MNIST, from the random weights that the target has."""
    import torch

    data = zoo.dataset("mnist").train
    inputs, labels = torch.tensor(data.inputs).flatten(1), torch.tensor(data.labels.astype(np.int64))
    shapes = [tuple(weight.shape[::-1]) for weight in target.weights]
    layers = [torch.nn.Linear(*shape) for shape in shapes]
    for layer, weight, bias in zip(layers, target.weights, target.biases, strict=True):
        layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    module = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))[:-1]
    optimiser = torch.optim.Adam(module.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(1500):
        batch = torch.randint(len(inputs), (128,), generator=generator)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    dtype = target.offer.dtype
    target.weights = [layer.weight.detach().numpy().astype(dtype) for layer in layers]
    target.biases = [layer.bias.detach().numpy().astype(dtype) for layer in layers]


def run(case: Case) -> dict[str, Any]:
    """What came out of one case; the error is the largest on 10,000 Gaussian points, relative to the largest output."""
    target = Timed(case)
    if case.experiment == "trained":
        train(target, case.seed)
    began = time.perf_counter()
    result = rl.Deep()(target, rng=case.seed)
    seconds = time.perf_counter() - began
    if target.queries != result.spent.queries:
        raise RuntimeError(f"{case}: {target.queries} rows were asked and {result.spent.queries} reported")
    row = {
        "outcome": result.outcome.name,
        "hidden": result.hidden,
        "proved": result.proved.hidden if result.proved else (),
        "gradient_queries": result.spent.gradient_queries,
        "value_queries": result.spent.value_queries,
        "seconds": round(seconds, 2),
        "oracle_seconds": round(target.seconds, 2),
        "remark": result.evidence.remark,
    }
    if result.clone is not None:
        points = np.random.default_rng([case.seed, 7]).standard_normal((10_000, case.sizes[0]))
        truth = target.values(points.astype(case.dtype))[0].astype(np.float64)
        if case.values == "probabilities":
            truth = _softmax(truth)
        row["error"] = float(f"{np.abs(result.predict(points) - truth).max() / np.abs(truth).max():.3g}")
        if case.experiment == "trained":
            images = zoo.dataset("mnist").test.inputs.reshape(-1, case.sizes[0])
            labels = target.values(images.astype(case.dtype))[0].argmax(axis=1)
            row["agreement"] = float((result.predict(images.astype(np.float64)).argmax(axis=1) == labels).mean())
    return row


def rows_of(experiment: str) -> list[dict[str, Any]]:
    """The rows on file; a line that was cut off by an interruption does not count."""
    path = RESULTS / f"deep_{experiment}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def run_missing(experiment: str, widths: str | None) -> None:
    """Run the cases that have no row yet, writing each row as it comes."""
    done = {_key(row) for row in rows_of(experiment)}
    for case in EXPERIMENTS[experiment]():
        if _key(asdict(case)) in done or widths not in (None, case.widths):
            continue
        versions = f"Python {platform.python_version()}, numpy {np.__version__}"
        row = asdict(case) | run(case) | {"commit": provenance(0).commit, "versions": versions}
        with (RESULTS / f"deep_{experiment}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*asdict(case).values(), row["outcome"], row.get("error"), f"{row['seconds']} s", flush=True)


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row.get(field.name, field.default) for field in fields(Case))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=EXPERIMENTS)
    parser.add_argument("--widths", help='of these networks only, e.g. "100-32-16-10"')
    parser.add_argument("--table", action="store_true", help="run nothing; write tables and figure from the rows")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if options.table:
        deep_table.write({name: rows_of(name) for name in EXPERIMENTS})
        return
    for experiment in [options.only] if options.only else EXPERIMENTS:
        run_missing(experiment, options.widths)


if __name__ == "__main__":
    main()
