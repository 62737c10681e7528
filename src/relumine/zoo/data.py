"""Datasets, and the paper's split into what the target, the student and the judge may see."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.errors import MisuseError
from relumine.zoo import files, sources

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs n×C×H×W (or n×shape) and their n labels."""

    inputs: Images
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise MisuseError(f"Examples: expected a label per input, got {len(self.inputs)} and {len(self.labels)}")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Split:
    """The paper's three parts: the target's training set, the student's pool (no labels), the test set of both."""

    name: str
    classes: int
    train: Examples
    pool: Images
    test: Examples

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pool.shape[1:]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset as published, in a training and a test part."""

    name: str
    classes: int
    train: Examples
    test: Examples

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.inputs.shape[1:]

    @property
    def deviation(self) -> float:
        """σ_D, the standard deviation of all numbers of the training part: the paper's unit of SmoothGrad noise."""
        return float(self.train.inputs.std(dtype=np.float64))

    def split(self, seed: int = 0) -> Split:
        """Take a pool as large as the test set from the training part; the rest trains the target.

        This gives the paper's numbers: 50,000 / 10,000 / 10,000 for MNIST and 40,000 / 10,000 / 10,000 for CIFAR10.
        """
        pool, count = len(self.test), len(self.train)
        if not 0 < pool < count:
            raise MisuseError(f"split: expected fewer test than training examples, got {pool} and {count}")
        order = np.random.default_rng(seed).permutation(count)
        train = Examples(self.train.inputs[order[pool:]], self.train.labels[order[pool:]])
        return Split(self.name, self.classes, train, self.train.inputs[order[:pool]], self.test)

    def standardised(self) -> "Dataset":
        """Each channel with mean 0 and variance 1 over the training part."""
        axes = (0, *range(2, self.train.inputs.ndim))
        mean = self.train.inputs.mean(axes, dtype=np.float64, keepdims=True)
        deviation = self.train.inputs.std(axes, dtype=np.float64, keepdims=True)
        deviation = np.where(deviation > 0, deviation, 1)

        def scaled(part: Examples) -> Examples:
            return Examples((part.inputs - mean.astype(np.float32)) / deviation.astype(np.float32), part.labels)

        return Dataset(f"{self.name} (standardised)", self.classes, scaled(self.train), scaled(self.test))


def dataset(name: str, *, standardise: bool = False) -> Dataset:
    """ "digits" (comes with scikit-learn), "mnist" or "cifar10" (found through RELUMINE_DATA, or downloaded).

    Inputs are n×C×H×W in float32, scaled to [0, 1], or per channel to mean 0 and variance 1.
    """
    readers = {"digits": _digits, "mnist": _mnist, "cifar10": _cifar10}
    if name not in readers:
        raise MisuseError(f"dataset: expected one of {', '.join(readers)}, got {name!r}")
    data = readers[name]()
    return data.standardised() if standardise else data


def gaussian_inputs(count: int, shape: tuple[int, ...], rng: int | np.random.Generator | None = None) -> Images:
    """count×shape numbers from N(0, 1): the paper's queries without knowledge of the data."""
    return np.random.default_rng(rng).standard_normal((count, *shape), dtype=np.float32)


def _digits() -> Dataset:
    """1,797 images of 8×8; a seventh of them, always the same, is the test part, as in MNIST."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # The published order goes by writer; shuffled, both parts see them all.
    order = np.random.default_rng(0).permutation(len(labels))
    inputs = (pixels[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = labels[order].astype(np.int64)
    tests = round(len(labels) / 7)
    train, test = Examples(inputs[tests:], labels[tests:]), Examples(inputs[:tests], labels[:tests])
    return Dataset("digits", 10, train, test)


def _mnist() -> Dataset:
    _, found = sources.contents("mnist", (sources.MNIST,))
    arrays = {name: files.idx(data, name) for name, data in found.items()}
    train = _examples(arrays["train-images-idx3-ubyte"][:, None], arrays["train-labels-idx1-ubyte"])
    test = _examples(arrays["t10k-images-idx3-ubyte"][:, None], arrays["t10k-labels-idx1-ubyte"])
    return Dataset("mnist", 10, train, test)


def _cifar10() -> Dataset:
    layout, found = sources.contents("cifar10", (sources.CIFAR10_BINARY, sources.CIFAR10_PYTHON))
    read = files.cifar_binary if layout is sources.CIFAR10_BINARY else files.cifar_python
    *batches, test = [read(found[name], name) for name in layout.files]
    train = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    return Dataset("cifar10", 10, _examples(train[0], train[1]), _examples(*test))


def _examples(images: files.Bytes, labels: files.Bytes) -> Examples:
    return Examples(images.astype(np.float32) / np.float32(255), labels.astype(np.int64))
