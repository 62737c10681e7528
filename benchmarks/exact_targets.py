"""Targets of the exact benchmark: random networks, and networks trained on data that comes with scikit-learn."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.special import softmax
from sklearn import datasets
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import relumine as rl
from relumine import zoo
from relumine.oracle.base import GradientKind, ValueKind

Array = np.ndarray
DATASETS = {"digits": (64, 10), "diabetes": (10, 1), "wine": (13, 3), "breast cancer": (30, 2)}  # inputs, outputs
SCALINGS = ("scaled", "unscaled", "pipeline")


@dataclass(frozen=True, eq=False)
class Target:
    """Who answers, and the truth to compare with; ``data`` and ``score`` if it was trained."""

    oracle: rl.Oracle
    truth: Callable[[Array], Array]
    data: Array | None = None
    score: float | None = None


def gaussian_points(d: int, seed: int) -> Array:
    """10,000 points N(0, I) that no method has seen."""
    return np.random.default_rng([seed, 3]).standard_normal((10_000, d))


def relative_error(predict: Callable[[Array], Array], truth: Callable[[Array], Array], points: Array) -> float:
    """max |f̂ − f| / max |f| at these points."""
    expected = truth(points)
    return float(np.abs(predict(points) - expected).max() / np.abs(expected).max())


def agreement(predict: Callable[[Array], Array], truth: Callable[[Array], Array], points: Array) -> float:
    """The share of these points at which the largest output is the same."""
    return float(np.mean(predict(points).argmax(axis=1) == truth(points).argmax(axis=1)))


@dataclass(frozen=True, eq=False)
class Network:
    """x ↦ W relu(Ax + b) + c."""

    A: Array
    b: Array
    W: Array
    c: Array

    def predict(self, x: Array) -> Array:
        outputs: Array = np.maximum(x @ self.A.T + self.b, 0) @ self.W.T + self.c
        return outputs

    def query(self, x: Array, gradients: bool) -> tuple[Array, Array | None]:
        z = x @ self.A.T + self.b
        values = np.maximum(z, 0) @ self.W.T + self.c
        if not gradients:
            return values, None
        active = (z > 0)[:, None, :] * self.W
        return values, (active.reshape(-1, len(self.A)) @ self.A).reshape(len(x), len(self.c), -1)

    def module(self, dtype: str) -> torch.nn.Module:
        """The same network as a torch module of this precision."""
        (h, d), K = self.A.shape, len(self.c)
        module = torch.nn.Sequential(torch.nn.Linear(d, h), torch.nn.ReLU(), torch.nn.Linear(h, K))
        for parameter, numbers in zip(module.parameters(), (self.A, self.b, self.W, self.c), strict=True):
            parameter.data = torch.tensor(numbers, dtype=getattr(torch, dtype))
        return module


def network_of(module: torch.nn.Module) -> Network:
    """The parameters that a torch module has, as float64 numbers."""
    return Network(*(parameter.detach().numpy().astype(np.float64) for parameter in module.parameters()))


def random_network(d: int, h: int, K: int, bias: bool, seed: int) -> Network:
    """He's scales, biases N(0, 1/4)."""
    rng = np.random.default_rng([seed, d, h, K, bias, 1])
    A, W = rng.standard_normal((h, d)) / np.sqrt(d), rng.standard_normal((K, h)) * np.sqrt(2 / h)
    return Network(A, 0.5 * bias * rng.standard_normal(h), W, 0.5 * bias * rng.standard_normal(K))


def paper_network(d: int, h: int, seed: int) -> Network:
    """The paper's model class: unit rows, no biases, one output; its weights N(0, 1)."""
    rng = np.random.default_rng([seed, d, h, 2])
    A = rng.standard_normal((h, d))
    A /= np.linalg.norm(A, axis=1, keepdims=True)
    return Network(A, np.zeros(h), rng.standard_normal((1, h)), np.zeros(1))


def asked_as_function(network: Network, gradients: GradientKind = "all") -> Target:
    """The network behind a Python function, in float64."""
    K, d = len(network.c), network.A.shape[1]
    offer = rl.Offer((d,), K, "real" if K == 1 else "logits", gradients)
    return Target(rl.FunctionOracle(network.query, offer), network.predict)


# How torch computes each activation, so that no target shares code with the method.
ACTIVATIONS = {
    "gelu": torch.nn.GELU(),
    "silu": torch.nn.SiLU(),
    "tanh": torch.nn.Tanh(),
    "sigmoid": torch.nn.Sigmoid(),
    "softplus": torch.nn.Softplus(),
}
# Made of straight pieces of which one shows far out only, and such that no table of names has.
OTHERS = {
    "relu6": torch.nn.ReLU6(),
    "hardtanh": torch.nn.Hardtanh(),
    "mish": torch.nn.Mish(),
    "softsign": torch.nn.Softsign(),
}


def smooth_target(network: Network, activation: str, dtype: str, values: ValueKind) -> Target:
    """The network with this activation as a torch module; the truth is the same one, computed in float64."""
    truth = _with_activation(network, activation, "float64", values)
    oracle = rl.TorchOracle(_with_activation(network, activation, dtype, values), network.A.shape[1], values=values)
    return Target(oracle, torch.no_grad()(lambda points: truth(torch.as_tensor(points)).numpy()))


def _with_activation(network: Network, activation: str, dtype: str, values: ValueKind) -> torch.nn.Module:
    first, _, last = network.module(dtype).children()
    return _answering(torch.nn.Sequential(first, (ACTIVATIONS | OTHERS)[activation], last), values)


def asked_as_module(network: Network, dtype: str, data: Array | None = None, score: float | None = None) -> Target:
    """The network as a torch module; the truth is the function its parameters define, computed in float64."""
    module = network.module(dtype)
    oracle = rl.TorchOracle(module, network.A.shape[1], values="real" if len(network.c) == 1 else "logits")
    return Target(oracle, network_of(module).predict, data, score)


# -- trained torch networks


def trained_target(d: int, h: int, K: int, seed: int) -> Target:
    """A float32 module trained on the digits: ten classes, or (K = 1) the log-odds that the digit is at least 5."""
    inputs, labels = _digits(d)
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(d, h), torch.nn.ReLU(), torch.nn.Linear(h, K))
    x = torch.tensor(inputs, dtype=torch.float32)
    y = torch.tensor(labels) if K > 1 else torch.tensor(labels >= 5, dtype=torch.float32)[:, None]
    loss = torch.nn.CrossEntropyLoss() if K > 1 else torch.nn.BCEWithLogitsLoss()
    optimiser = torch.optim.Adam(module.parameters(), lr=2e-3)
    for _ in range(30):
        for batch in torch.randperm(len(x)).split(64):  # type: ignore[no-untyped-call]
            optimiser.zero_grad()
            loss(module(x[batch]), y[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        logits = module(x)
    right = logits.argmax(1) == y if K > 1 else (logits > 0) == (y > 0.5)
    return asked_as_module(network_of(module), "float32", inputs, float(right.float().mean()))


def mnist_target(h: int, values: ValueKind, seed: int) -> Target:
    """A float32 module trained on MNIST for three epochs, and its logits or probabilities on the test images."""
    train, test = _mnist()
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(784, h), torch.nn.ReLU(), torch.nn.Linear(h, 10))
    x, y = torch.tensor(train[0], dtype=torch.float32), torch.tensor(train[1])
    loss, optimiser = torch.nn.CrossEntropyLoss(), torch.optim.Adam(module.parameters(), lr=1e-3)
    for _ in range(3):
        for batch in torch.randperm(len(x)).split(128):  # type: ignore[no-untyped-call]
            optimiser.zero_grad()
            loss(module(x[batch]), y[batch]).backward()
            optimiser.step()
    network = network_of(module)
    score = float(np.mean(network.predict(test[0]).argmax(axis=1) == test[1]))
    truth = network.predict if values == "logits" else lambda points: softmax(network.predict(points), axis=1)
    return Target(rl.TorchOracle(_answering(module, values), 784, values=values), truth, test[0], score)


def _answering(module: torch.nn.Module, values: ValueKind) -> torch.nn.Module:
    return module if values == "logits" else torch.nn.Sequential(module, torch.nn.Softmax(dim=1))


@cache
def _mnist() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Images in [0, 1] and labels, for training and for testing; docs/data.md says where they are found."""
    data = zoo.dataset("mnist")
    train, test = ((part.inputs.reshape(-1, 784).astype(np.float64), part.labels) for part in (data.train, data.test))
    return train, test


@cache
def _digits(d: int) -> tuple[Array, Array]:
    """scikit-learn's 8×8 digits: enlarged to 28×28 in [0, 1], or their first d principal components, of variance 1."""
    images, labels = datasets.load_digits(return_X_y=True)
    if d == 784:
        images = images.reshape(-1, 1, 8, 8) / 16
        larger = torch.nn.functional.interpolate(torch.tensor(images), size=(28, 28), mode="bilinear")
        return larger.reshape(-1, d).numpy(), labels
    return PCA(d, whiten=True, random_state=0).fit_transform(images), labels


# -- trained scikit-learn networks


def sklearn_target(dataset: str, scaling: str, h: int, values: ValueKind, seed: int) -> Target:
    """An MLP trained on standardised or raw inputs, or (pipeline) trained on standardised and asked raw ones."""
    model, scaler, x, score = _fitted(dataset, scaling != "unscaled", h, seed)
    if scaling == "scaled":
        x = scaler.transform(x)
    elif scaling == "pipeline":
        model = make_pipeline(scaler, model)
    oracle = rl.SklearnOracle(model, values=values)
    return Target(oracle, lambda points: oracle(points, gradients=False).values, x, score)


@cache
def _fitted(dataset: str, scaled: bool, h: int, seed: int) -> tuple[BaseEstimator, StandardScaler, Array, float]:
    """The model, a scaler of its data, the raw data, the score on it (accuracy, or R²)."""
    # scikit-learn hands out the diabetes data standardised unless told otherwise.
    raw = {"scaled": False} if dataset == "diabetes" else {}
    x, y = getattr(datasets, f"load_{dataset.replace(' ', '_')}")(return_X_y=True, **raw)
    scaler = StandardScaler().fit(x)
    inputs = scaler.transform(x) if scaled else x
    # The regressor's targets are about 150, which takes scikit-learn's default rate too long to reach.
    maker, rate = (MLPRegressor, 1e-2) if dataset == "diabetes" else (MLPClassifier, 1e-3)
    model = maker(hidden_layer_sizes=(h,), max_iter=500, learning_rate_init=rate, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(inputs, y)
    return model, scaler, x, float(model.score(inputs, y))
