"""What a worker does: an experiment, from its description to its row; or the appendix's saliency maps of a network."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relumine.errors import MisuseError
from relumine.explain.map_kind import map_kind
from relumine.jobs.provenance import provenance
from relumine.measures import Compared
from relumine.oracle.base import Array, Oracle
from relumine.study.experiment import FAILED, Access, Experiment, Measures, Row, Target

if TYPE_CHECKING:
    from relumine.explain import Explanation
    from relumine.reconstruct.matching.sources import Source
    from relumine.reconstruct.result import Reconstruction
    from relumine.zoo import Split, Trained, Training

# The answers' noise is drawn from a stream of its own, so that it is not the student's.
_NOISE = 1

# Agreement away from the data is measured on these points, the same for all experiments.
_GAUSSIAN_POINTS = 2000
_GAUSSIAN_SEED = 1807

# Inputs held as float64 rows at once.
_ROWS_AT_ONCE = 500

# Of which a head may ask, and at which it is compared.
_HEAD_IMAGES = 300

# Columns of the appendix's grids, whose noise grows: σ in units of σ_D. At 0 it is the raw gradient.
SIGMAS = (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)
_IMAGES = 5

Predict = Callable[[Array], Array]


class Material(NamedTuple):
    """A dataset's three parts, and σ_D."""

    split: "Split"
    deviation: float


@lru_cache(maxsize=1)  # CIFAR10 takes half a gigabyte; experiments are ordered by target
def material(data: str, standardise: bool) -> Material:
    """The paper's split of a dataset."""
    from relumine import zoo

    loaded = zoo.dataset(data, standardise=standardise)
    return Material(loaded.split(seed=0), loaded.deviation)


def train_target(target: Target) -> float:
    """Train a target, or find it trained; its test accuracy."""
    return trained_target(target).card.test_accuracy


def trained_target(target: Target) -> "Trained":
    return _trained(json.dumps(asdict(target)))


@lru_cache(maxsize=2)
def _trained(plain: str) -> "Trained":
    """The target, by its JSON because records that hold mappings cannot be looked up."""
    from relumine import zoo

    target = Target(**json.loads(plain))
    split = material(target.data, target.standardise).split
    settings = training_settings(target)
    return zoo.trained(target.network, split, seed=target.seed, settings=settings, options=target.options)


def training_settings(target: Target) -> "Training":
    """The network's own settings, changed as the target says."""
    from relumine.zoo.training import TRAINING, Training

    try:
        return replace(TRAINING.get(target.network, Training()), **target.training)
    except TypeError as error:
        raise MisuseError(f"Target.training: {error}; expected fields of zoo.Training") from error


def run_experiment(experiment: Experiment, scratch: Path | None = None) -> Row:
    """Ask, train, measure. An error is a row too.

    scratch: a folder where a student's training is kept while it goes on, so that it need not start again.
    """
    started = time.perf_counter()
    folder = None if scratch is None else scratch / experiment.key
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        row = _conducted(experiment, folder and folder / "training", started)
    except Exception as error:
        row = failed_row(experiment, f"{type(error).__name__}: {error}", started)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def _conducted(experiment: Experiment, checkpoint: Path | None, started: float) -> Row:
    from relumine.explain import ExplainedOracle
    from relumine.oracle.metering.metered import Metered

    split, deviation = material(experiment.target.data, experiment.target.standardise)
    target = trained_target(experiment.target)
    shown = explanation(experiment.access, deviation)
    access = {"classes": experiment.access.classes, "of": experiment.access.of}
    noise = np.random.default_rng([experiment.seed, _NOISE])
    oracle = ExplainedOracle(target.module, shown, split.shape, rng=noise, **access)  # type: ignore[arg-type]
    budget = experiment.budget if (experiment.loss, experiment.source) == ("exact", "gaussian") else None
    result = asker(experiment, checkpoint)(Metered(oracle, budget=budget), experiment.seed)
    accuracy = target.card.test_accuracy
    return Row(
        experiment=experiment,
        outcome=result.outcome.name,
        error=None,
        remark=result.evidence.remark,
        spent=result.spent.counts,
        measures=None if result.clone is None else _measures(result.predict, oracle, split, accuracy),
        provenance=provenance(time.perf_counter() - started),
    )


def _measures(predict: Predict, oracle: Oracle, split: "Split", target_accuracy: float) -> Measures:
    """Compare ``predict`` with the unmetered ``oracle`` and with the labels of the test set."""
    from relumine.zoo import gaussian_inputs

    test, guesses = _compared(predict, oracle, split.test.inputs)
    gaussian, others = _compared(predict, oracle, gaussian_inputs(_GAUSSIAN_POINTS, split.shape, _GAUSSIAN_SEED))
    return Measures(
        test_accuracy=test.share(guesses, test.kind, split.test.labels),
        target_accuracy=target_accuracy,
        agreement=test.agreement(guesses, test.kind),
        gaussian_agreement=gaussian.agreement(others, gaussian.kind),
        worst_gap=test.gap(guesses, test.kind),
    )


def _compared(predict: Predict, oracle: Oracle, inputs: "np.ndarray") -> tuple[Compared, Array]:
    """What the target says, and what the student says there."""
    flat = inputs.reshape(len(inputs), -1)
    parts = [flat[i : i + _ROWS_AT_ONCE].astype(np.float64) for i in range(0, len(flat), _ROWS_AT_ONCE)]
    answers = np.concatenate([oracle(rows, gradients=False).values for rows in parts])
    return Compared(flat, answers, oracle.offer.values), np.concatenate([predict(rows) for rows in parts])


def failed_row(experiment: Experiment, error: str, started: float | None = None) -> Row:
    """The row of an experiment that did not end."""
    seconds = 0.0 if started is None else time.perf_counter() - started
    return Row(experiment, FAILED, error, "", {}, None, provenance(seconds))


def asker(experiment: Experiment, checkpoint: Path | None = None) -> "Callable[[Oracle, int], Reconstruction]":
    """The reconstructor of an experiment; a MisuseError if its settings are none of its method's."""
    from relumine.reconstruct.auto import Auto
    from relumine.reconstruct.matching.method import GradientMatching
    from relumine.reconstruct.two_layer.method import TwoLayer
    from relumine.zoo import network

    split, deviation = material(experiment.target.data, experiment.target.standardise)
    student = experiment.student
    if experiment.loss == "head":
        return partial(_head, experiment)
    if experiment.loss == "exact":
        return Auto() if experiment.source == "gaussian" else TwoLayer(inputs=_images(experiment, experiment.budget))
    try:
        return GradientMatching(
            partial(network, student.network, split.shape, split.classes, **student.options),
            experiment.budget,
            source=_source(experiment, split),
            loss=experiment.loss,
            explanation=explanation(experiment.access, deviation),
            checkpoint=checkpoint,
            **experiment.settings,
        )
    except TypeError as error:
        raise MisuseError(f"Experiment.settings: {error}; expected fields of GradientMatching") from error


def _head(experiment: Experiment, oracle: Oracle, seed: int) -> "Reconstruction":
    """The last layer of the target, from all others: every network of the zoo is a sequence that ends in a linear."""
    from relumine.reconstruct.head.method import Head

    backbone = trained_target(experiment.target).module[:-1]  # type: ignore[index]
    return Head(backbone, inputs=_images(experiment, _HEAD_IMAGES), queries=experiment.budget)(oracle, seed)


def _images(experiment: Experiment, count: int) -> "np.ndarray":
    """Images of the pool, drawn by the experiment's seed."""
    pool = material(experiment.target.data, experiment.target.standardise).split.pool
    chosen = np.random.default_rng(experiment.seed).permutation(len(pool))[:count]
    return pool[chosen].astype(np.float64)


def _source(experiment: Experiment, split: "Split") -> "str | np.ndarray | Source":
    from relumine.reconstruct.matching.sources import Medoids

    if experiment.source == "gaussian":
        return "gaussian"
    if experiment.budget > len(split.pool):
        raise MisuseError(
            f"budget: {experiment.budget:,} queries from a pool of {len(split.pool):,} ({experiment.target.data}); "
            "ask fewer, or use Gaussian queries"
        )
    return split.pool if experiment.source == "pool" else Medoids(split.pool)


def explanation(access: Access, deviation: float) -> "Explanation":
    """What the endpoint shows, on data with the standard deviation σ_D = ``deviation``."""
    from relumine.explain.methods import explanation_of

    return explanation_of(map_kind(access.explanation).smoothed_by((access.sigma or 0) * deviation), access.samples)


@dataclass(frozen=True)
class MapsWanted:
    """Which target, which σ is the paper's choice, and N."""

    title: str
    target: Target
    chosen: float
    samples: int


@dataclass(frozen=True, eq=False)
class Maps:
    """Images n×C×H×W and the maps of each one's largest output, per σ n×C×H×W.

    likeness:      per σ, the mean cosine between map and raw gradient
    repeatability: per σ, the mean cosine between maps with independent noise
    """

    wanted: MapsWanted
    images: np.ndarray
    maps: tuple[np.ndarray, ...]
    likeness: tuple[float, ...]
    repeatability: tuple[float, ...]

    def records(self) -> list[dict[str, Any]]:
        """One record per σ."""
        wanted = self.wanted
        return [
            {
                "figure": "smoothgrad",
                "network": wanted.target.network,
                "data": wanted.target.data,
                "sigma": sigma,
                "samples": wanted.samples,
                "images": len(self.images),
                "likeness": round(likeness, 4),
                "repeatability": round(repeatability, 4),
            }
            for sigma, likeness, repeatability in zip(SIGMAS, self.likeness, self.repeatability, strict=True)
        ]


def saliency_maps(wanted: MapsWanted) -> Maps:
    """Explain one test image of each of the first classes, twice with different noise."""
    test = material(wanted.target.data, wanted.target.standardise).split.test
    images = np.stack([test.inputs[int(np.argmax(test.labels == label))] for label in range(_IMAGES)])
    first, again = ([_maps(wanted, images, sigma, seed) for sigma in SIGMAS] for seed in (0, 1))
    likeness = tuple(_cosine(maps, first[0]) for maps in first)
    repeatability = tuple(_cosine(*both) for both in zip(first, again, strict=True))
    return Maps(wanted, images, tuple(first), likeness, repeatability)


def _maps(wanted: MapsWanted, images: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    from relumine.explain import ExplainedOracle

    access = Access("smoothgrad", sigma=sigma, samples=wanted.samples) if sigma else Access()
    shown = explanation(access, material(wanted.target.data, wanted.target.standardise).deviation)
    oracle = ExplainedOracle(trained_target(wanted.target).module, shown, images.shape[1:], classes="top", rng=seed)
    answer = oracle(images.reshape(len(images), -1), gradients=True)
    return answer.jacobians.reshape(images.shape).astype(np.float32)


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Mean over images; a map of zeros is like nothing."""
    a, b = first.reshape(len(first), -1), second.reshape(len(second), -1)
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(1)
    return float(np.mean(np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)))
