"""A secret head on a public backbone: rl.Head on the zoo's ResNet-18, trained on CIFAR10, in float32.

    python benchmarks/head.py                     # runs what is missing in results/head.jsonl
    python benchmarks/head.py --only linear       # of this head only
    python benchmarks/head.py --width 16          # of a narrower ResNet-18 with 128 features, a sixteenth of the work
    python benchmarks/head.py --table

The backbone is ResNet-18 (100 steps of training) without its last layer; the heads are trained on its features of 1,000
images of the target's training set, each seed with images and initial weights of its own. Queries are some of 600
images of the pool, which no head was trained on; agreement is that on 1,000 test images. Seeds 300 and up were not
looked at while the method was made. docs/data.md says where CIFAR10 is found.

All seeds ask the same 600 images, so what the backbone says to one is kept in relumine's cache folder: a Jacobian of
512 features takes six seconds.
"""

import argparse
import hashlib
import json
import time
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import relumine as rl
from relumine import zoo
from relumine.environment import cache_folder, replacing
from relumine.jobs.provenance import provenance
from relumine.oracle.base import ValueKind

ROWS = Path(__file__).parent / "results" / "head.jsonl"
HEADS = {"linear": (), "one hidden layer of 64": (64,), "two hidden layers of 32": (32, 32)}
VALUES: tuple[ValueKind, ...] = ("logits", "probabilities")
SEEDS = range(300, 310)
FEW = range(300, 302)
POOL, TESTS, TRAINING, STEPS = 600, 1000, 1000, 1500
QUERIES = 40  # gradient queries at most
WIDTH = 64  # of the backbone's first layers; 8 times as many features


def cases() -> list[tuple[str, ValueKind, int]]:
    """Ten seeds of the heads that are told exactly, two of the others."""
    exact = [(name, values, seed) for name, values, seed in product(tuple(HEADS)[:2], VALUES, SEEDS)]
    return [*exact, *product(tuple(HEADS)[2:], VALUES[:1], FEW)]


@cache
def public() -> tuple[zoo.Split, nn.Module]:
    split = zoo.dataset("cifar10").split(seed=0)
    settings, options = zoo.Training(steps=100, batch=64, mirror=True), {} if WIDTH == 64 else {"width": WIDTH}
    module = zoo.trained("resnet18", split, settings=settings, options=options).module
    assert isinstance(module, nn.Sequential)
    return split, module[:-1]


@cache
def features(part: str) -> Tensor:
    """φ of all images that heads are trained on, or compared at."""
    split, backbone = public()
    images = split.train.inputs[: 2 * TRAINING] if part == "train" else split.test.inputs[:TESTS]
    with torch.no_grad():
        return torch.cat([backbone(torch.tensor(images[i : i + 100])) for i in range(0, len(images), 100)])


class Kept:
    """The backbone as an oracle that computes features, and Jacobians, of an input once."""

    def __init__(self) -> None:
        split, module = public()
        self._oracle = rl.TorchOracle(module, split.shape, values="real")
        self.offer = self._oracle.offer
        weights = b"".join(part.numpy().tobytes() for part in module.state_dict().values())
        self._folder = cache_folder() / "backbones" / hashlib.sha256(weights).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, inputs: "np.ndarray", *, gradients: bool) -> rl.Answer:
        found = [self._computed(row, gradients) for row in inputs]
        if not gradients:
            return rl.Answer(np.array(found, dtype=np.float64))
        return rl.Answer(self(inputs, gradients=False).values, np.array(found, dtype=np.float64))

    def _computed(self, row: "np.ndarray", gradients: bool) -> "np.ndarray":
        name = hashlib.sha256(row.tobytes()).hexdigest()[:32]
        file = self._folder / f"{name}-{'jacobian' if gradients else 'features'}.npy"
        if not file.exists():
            answer = self._oracle(row[None], gradients=gradients)
            found = (answer.jacobians if gradients else answer.values)[0].astype(np.float32)
            with replacing(file) as unfinished, unfinished.open("wb") as out:
                np.save(out, found)
        return np.asarray(np.load(file))


def secret(hidden: tuple[int, ...], seed: int) -> nn.Module:
    """A head trained by Adam on the features of 1,000 images."""
    split, _ = public()
    torch.manual_seed(seed)
    sizes = (features("train").shape[1], *hidden)
    layers = [part for pair in zip(sizes, hidden, strict=False) for part in (nn.Linear(*pair), nn.ReLU())]
    head = nn.Sequential(*layers, nn.Linear(sizes[-1], split.classes))
    rows = torch.randperm(len(features("train")))[:TRAINING]
    inputs, labels = features("train")[rows], torch.tensor(split.train.labels[: 2 * TRAINING])[rows]
    optimiser = torch.optim.Adam(head.parameters(), 1e-3)
    for _ in range(STEPS):
        some = torch.randint(TRAINING, (64,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(head(inputs[some]), labels[some]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return head.eval()


def run(name: str, values: ValueKind, seed: int) -> dict[str, Any]:
    """One head, asked by images of the pool."""
    split, backbone = public()
    head = secret(HEADS[name], seed)
    oracle = rl.TorchOracle(nn.Sequential(backbone, head), split.shape, values=values)
    pool = split.pool[:POOL]
    began = time.process_time()
    result = rl.Head(Kept(), inputs=pool.astype(np.float64), queries=QUERIES)(oracle, rng=seed)
    seconds = time.process_time() - began
    row: dict[str, Any] = {
        "head": name,
        "width": WIDTH,
        "values": values,
        "seed": seed,
        "outcome": result.outcome.name,
        "units": list(result.hidden),
        "gradient_queries": result.spent.gradient_queries,
        "value_queries": result.spent.value_queries,
        "cpu_seconds": round(seconds, 1),
        "remark": result.evidence.remark,
    }
    if result.clone is not None:
        with torch.no_grad():
            truth = head(features("test")).softmax(1) if values == "probabilities" else head(features("test"))
            numbers = features("test").double().numpy()
        said = result.clone.head.predict(numbers)  # type: ignore[attr-defined]
        row["agreement"] = float((said.argmax(axis=1) == truth.argmax(1).numpy()).mean())
        row["gap"] = float(f"{np.abs(said - truth.numpy()).max() / truth.abs().max().item():.3g}")
        if name == "linear":
            row |= weights(result, head, values, pool)
    made = provenance(seconds)
    return row | {"commit": made.commit, "versions": dict(made.versions)}


def weights(result: rl.Reconstruction, head: nn.Module, values: ValueKind, pool: "np.ndarray") -> dict[str, Any]:
    """The largest error of a weight, relative to the largest weight; of features that are on at some image."""
    found = result.parameters["layers.0.weight"]
    truth = next(head.parameters()).detach().double().numpy()
    if values == "probabilities":  # logits are known up to a number common to all classes
        truth, found = truth - truth.mean(axis=0), found - found.mean(axis=0)
    with torch.no_grad():
        shown: Tensor = public()[1](torch.tensor(pool))
    live = np.ptp(shown.numpy(), axis=0) > 0
    error = np.abs(found - truth)[:, live].max() / np.abs(truth).max()
    return {"weight_error": float(f"{error:.3g}"), "features_on": int(live.sum())}


def rows() -> list[dict[str, Any]]:
    """The rows on file."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def table() -> None:
    """A line of Markdown for each kind of case."""
    print("| head | features | values | recovered | gradient queries (max) | value queries (max) | agreement | gap |")
    print("|---|---|---|---|---|---|---|---|")
    kinds = {(row["head"], row.get("width", 64), row["values"]): None for row in rows()}
    for name, width, values in kinds:
        own = [row for row in rows() if (row["head"], row.get("width", 64), row["values"]) == (name, width, values)]
        asked, plain = ([row[f"{kind}_queries"] for row in own] for kind in ("gradient", "value"))
        recovered = sum(row["outcome"] == "RECOVERED" for row in own)
        agreed, gap = min(row.get("agreement", 0.0) for row in own), max(row.get("gap", np.inf) for row in own)
        print(
            f"| {name} | {8 * width} | {values} | {recovered} of {len(own)} | {np.median(asked):.0f} ({max(asked)}) | "
            f"{np.median(plain):.0f} ({max(plain)}) | at least {agreed:.1%} | at most {gap:.1e} |"
        )
    errors = [row["weight_error"] for row in rows() if "weight_error" in row]
    if errors:
        print(f"\nweights of linear heads: error at most {max(errors):.1e} of the largest ({len(errors)} heads)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing; print the table")
    parser.add_argument("--only", choices=[*HEADS], help="run this kind of head only")
    parser.add_argument("--seeds", type=int, nargs="*", help="run these seeds only, and write nothing")
    parser.add_argument("--width", type=int, default=WIDTH)
    given = parser.parse_args()
    globals()["WIDTH"] = given.width
    torch.set_num_threads(1)
    if given.seeds is not None:
        for name, values, seed in product([given.only or "linear"], VALUES, given.seeds):
            print(json.dumps(run(name, values, seed)), flush=True)
        return
    done = {(row["head"], row["values"], row["seed"]) for row in rows() if row.get("width", 64) == WIDTH}
    for case in [] if given.table else cases():
        if case not in done and given.only in (None, case[0]):
            with ROWS.open("a") as file:
                file.write(json.dumps(run(*case)) + "\n")
    table()


if __name__ == "__main__":
    main()
