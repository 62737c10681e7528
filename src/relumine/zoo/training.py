"""Targets: networks trained on the target's part of a split, kept with a card that says how."""

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn import functional

from relumine.device import device
from relumine.environment import cache_folder, replacing
from relumine.errors import MisuseError
from relumine.jobs.provenance import versions
from relumine.zoo.data import Examples, Split
from relumine.zoo.networks import network

# Changes when the same card would no longer give the same weights.
_FORMAT = 1
_ROWS_AT_ONCE = 500


@dataclass(frozen=True)
class Training:
    """How a target is trained by AdamW: ``steps`` mini-batches, the learning rate falling to 0 along a cosine.

    Steps and not epochs, so that small datasets are trained as long as large ones. ``mirror`` shows every image
    as it is or left-right mirrored, by chance.
    """

    learning_rate: float = 1e-3
    steps: int = 2000
    batch: int = 128
    weight_decay: float = 0.0
    mirror: bool = False

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or self.learning_rate <= 0 or self.weight_decay < 0:
            raise MisuseError(f"Training: expected positive steps, batch and learning rate, got {self}")


# Our choice for each network, since the paper gives none; docs/data.md has the accuracies on MNIST.
TRAINING = {
    "linear": Training(learning_rate=3e-3, steps=4000),
    "two_layer": Training(learning_rate=2e-3, steps=6000),
    "conv": Training(learning_rate=2e-3, steps=3000, weight_decay=0.3),
    "vgg11": Training(steps=1600, mirror=True),
    "resnet18": Training(steps=1600, mirror=True),
    "resnet18_small": Training(steps=1600, mirror=True),
}


@dataclass(frozen=True)
class Card:
    """What a trained target is: ``recipe`` holds all that its weights follow from, the rest is what came out."""

    recipe: Mapping[str, Any]
    test_accuracy: float
    parameters: int
    seconds: float
    weights_sha256: str
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Trained:
    """A target in eval mode, its card, and whether it was found in the cache."""

    module: nn.Module
    card: Card
    reused: bool


def trained(
    name: str,
    split: Split,
    *,
    seed: int = 0,
    settings: Training | None = None,
    options: Mapping[str, Any] | None = None,
    cache: Path | None = None,
) -> Trained:
    """The network ``name`` trained on ``split.train``; from the cache if it was trained so before.

    settings: the network's own if None; options: of ``network``; cache: a folder, by default ``targets`` in the
    cache folder. The same recipe gives the same weights on the same machine and number of threads.
    """
    settings = settings or TRAINING.get(name, Training())
    recipe = _recipe(name, split, seed, settings, dict(options or {}))
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    path = (cache or cache_folder() / "targets") / f"{name}-{split.name.split()[0]}-{digest}.safetensors"
    fresh = partial(network, name, split.shape, split.classes, seed, **recipe["options"])
    module = fresh()
    card = _kept(module, path, recipe)
    if card is not None:
        return Trained(module.eval(), card, reused=True)
    module = fresh()
    start = time.perf_counter()
    _train(module, split, seed, settings)
    weights = save_tensors(module.state_dict())
    card = Card(
        recipe=recipe,
        test_accuracy=accuracy(module, split.test),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        seconds=round(time.perf_counter() - start, 1),
        weights_sha256=hashlib.sha256(weights).hexdigest(),
        versions=versions(),
    )
    _keep(path, weights, card)
    return Trained(module, card, reused=False)


def accuracy(module: nn.Module, examples: Examples) -> float:
    """The share of examples whose label the module gives the largest output, in eval mode."""
    module.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(examples), _ROWS_AT_ONCE):
            inputs = torch.tensor(examples.inputs[start : start + _ROWS_AT_ONCE])
            guesses = module(inputs).argmax(1).numpy()
            right += int((guesses == examples.labels[start : start + _ROWS_AT_ONCE]).sum())
    return right / len(examples)


def _recipe(name: str, split: Split, seed: int, settings: Training, options: dict[str, Any]) -> dict[str, Any]:
    recipe = {
        "format": _FORMAT,
        "network": name,
        "options": options,
        "input_shape": split.shape,
        "classes": split.classes,
        "data": {
            "name": split.name,
            "training_examples": len(split.train),
            "sha256": _fingerprint(split.train, split.test),
        },
        "seed": seed,
        "settings": asdict(settings),
    }
    # As it will come back from the file, so that recipes can be compared.
    return dict(json.loads(json.dumps(recipe)))


def _fingerprint(*parts: Examples) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part.inputs).data)
        digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()


def _train(module: nn.Module, split: Split, seed: int, settings: Training) -> None:
    examples = split.train
    if not len(examples) or not 0 <= examples.labels.min() <= examples.labels.max() < split.classes:
        raise MisuseError(f"trained: expected examples with labels from 0 to {split.classes - 1}")
    where = device()
    module.to(where)
    inputs, labels = torch.from_numpy(examples.inputs).to(where), torch.from_numpy(examples.labels).to(where)
    if inputs.ndim == 4:  # on CPUs convolutions train up to twice as fast in this layout
        inputs = inputs.to(memory_format=torch.channels_last)
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(module.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    rng = np.random.default_rng(seed)
    module.train()
    for step, rows in zip(range(1, settings.steps + 1), _batches(len(examples), settings.batch, rng), strict=False):
        optimiser.zero_grad()
        shown = _mirrored(inputs[rows], rng) if settings.mirror else inputs[rows]
        loss: Tensor = functional.cross_entropy(module(shown), labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if (step % 20 == 0 or step == settings.steps) and not np.isfinite(loss.item()):
            raise MisuseError(f"training diverged at step {step} (loss {loss}); lower the learning rate of {settings}")
    module.to("cpu")
    module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    module.eval()


def _mirrored(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Each image left-right mirrored with probability ½."""
    chance = torch.from_numpy(rng.random(len(images)) < 0.5).reshape(-1, *[1] * (images.ndim - 1)).to(images.device)
    return torch.where(chance, images.flip(-1), images)


def _batches(count: int, batch: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Mini-batches of row numbers: shuffled passes over all rows, one after the other."""
    left, batch = np.empty(0, dtype=np.int64), min(batch, count)
    while True:
        if len(left) < batch:
            left = rng.permutation(count)
        yield torch.from_numpy(left[:batch])
        left = left[batch:]


def _kept(module: nn.Module, path: Path, recipe: Mapping[str, Any]) -> Card | None:
    """Load the kept weights into ``module`` and return their card; None, with a notice, if they cannot be trusted."""
    if not path.exists() or not path.with_suffix(".json").exists():
        return None
    try:
        card = Card(**json.loads(path.with_suffix(".json").read_text("utf-8")))
        weights = path.read_bytes()
        if card.recipe != recipe or card.weights_sha256 != hashlib.sha256(weights).hexdigest():
            raise ValueError("the weights are not those that the card describes")
        module.load_state_dict(load_tensors(weights))
    except Exception as error:  # whatever is wrong with the files, training again puts it right
        warnings.warn(f"the checkpoint {path} is damaged ({error}); the target is trained again", stacklevel=3)
        return None
    return card


def _keep(path: Path, weights: bytes, card: Card) -> None:
    """Write weights, then card: weights without a card are no checkpoint. A full disk costs the next run time only."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(weights)
        with replacing(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(asdict(card), indent=2) + "\n", "utf-8")
    except OSError as error:
        warnings.warn(f"cannot keep the trained target in {path.parent}: {error}; set RELUMINE_CACHE", stacklevel=3)
