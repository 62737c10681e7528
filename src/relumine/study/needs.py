"""What a study will need, estimated before it starts: hours and gigabytes."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from relumine.console import counted
from relumine.study.experiment import Access, Experiment, Target

# Seconds of one plain training step (batch 32) on one core of a 2020s server, for networks as wide as _WIDTH says.
_STEP = {
    ("digits", "linear"): 0.0006,
    ("digits", "two_layer"): 0.001,
    ("digits", "conv"): 0.0035,
    ("digits", "vgg11"): 0.012,
    ("digits", "resnet18_small"): 0.02,
    ("mnist", "linear"): 0.0006,
    ("mnist", "two_layer"): 0.002,
    ("mnist", "conv"): 0.01,
    ("cifar10", "conv"): 0.055,
    ("cifar10", "vgg11"): 0.36,
    ("cifar10", "resnet18_small"): 0.36,
    ("cifar10", "resnet18"): 1.2,
}
_UNKNOWN = 0.1
_WIDTH, _WIDTH_OF_LITERATURE = {"digits": 8, "cifar10": 32}, 64
_BATCH = 32
# One step that matches gradients, against a plain one.
_MATCHING = 2.0
# Passes of one input: forward 1, backward 1 to the input and 1 to the weights.
_PASSES_PER_STEP = 3
_CLASSES = 10

# Bytes of a dataset's three parts in float32, and of one map.
_DATA = {"mnist": 0.25e9, "cifar10": 0.8e9}
_MAP = {"mnist": 784 * 8, "cifar10": 3072 * 8}
# torch itself; and answers are held in double precision by the oracle, joined, and once more for the student.
_PROCESS = 0.6e9
_COPIES = 2.5


def seconds(experiment: Experiment) -> float:
    """Of one core, roughly."""
    settings, target = experiment.settings, experiment.target
    batch = min(int(settings.get("batch", _BATCH)), experiment.budget)
    step = _step(target.data, experiment.student.network, experiment.student.options) * batch / _BATCH
    steps = int(settings.get("steps", 1000)) * int(settings.get("members", 1))
    asked = _step(target.data, target.network, target.options) / _BATCH / _PASSES_PER_STEP
    if experiment.loss == "membership":
        return steps * step + experiment.budget * asked
    gradients = _gradients(experiment.access)
    own = _own_gradients(experiment)
    backward = gradients * (_CLASSES if experiment.access.classes == "all" else 1)
    return steps * step * _MATCHING * own + experiment.budget * asked * (gradients + backward)


def training_seconds(target: Target) -> float:
    """Of one core, roughly, if the target is not in the cache."""
    from relumine.study.trial import training_settings

    settings = training_settings(target)
    return settings.steps * _step(target.data, target.network, target.options) * settings.batch / _BATCH


def _step(data: str, network: str, options: Mapping[str, Any]) -> float:
    seconds = _STEP.get((data, network), _UNKNOWN)
    if data in _WIDTH and network.startswith(("vgg", "resnet")):
        seconds *= (options.get("width", _WIDTH_OF_LITERATURE) / _WIDTH[data]) ** 2
    return seconds


def memory(experiment: Experiment) -> float:
    """Bytes that a worker needs for it, roughly."""
    data = experiment.target.data
    classes = _CLASSES if experiment.access.classes == "all" else 1
    maps = 0 if experiment.loss == "membership" else experiment.budget * classes * _MAP.get(data, 0)
    return _PROCESS + _DATA.get(data, 0) + _COPIES * maps


def _gradients(access: Access) -> int:
    return (access.samples or 10) if access.explanation in ("smoothgrad", "integrated-gradients") else 1


def _own_gradients(experiment: Experiment) -> int:
    """Of a student, for one map: SmoothGrad's mean is compared by two."""
    if experiment.match == "gradient":
        return 1
    return 2 if experiment.access.explanation == "smoothgrad" else _gradients(experiment.access)


def note(experiments: Sequence[Experiment], targets: Sequence[Target], workers: int) -> str:
    """A line that says how long it will take."""
    if not experiments:
        return "nothing left to run"
    hours = (sum(map(seconds, experiments)) + sum(map(training_seconds, targets))) / workers / 3600
    wait = f"{hours:.1f} hours" if hours > 1 else counted(max(1, round(60 * hours)), "minute")
    largest = max(map(memory, experiments))
    together = sum(sorted(map(memory, experiments))[-workers:])
    text = (
        f"{counted(len(experiments), 'experiment')} and {counted(len(targets), 'target')} to go: roughly {wait} on "
        f"{counted(workers, 'core')}, up to {largest / 1e9:.1f} GB per worker"
    )
    available = _memory_of_this_machine()
    if available is not None and together > available:
        text += (
            f"; together they may need {together / 1e9:.0f} GB and this machine has {available / 1e9:.0f}: "
            "use fewer --workers"
        )
    return text


def _memory_of_this_machine() -> float | None:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):  # Windows
        return None
