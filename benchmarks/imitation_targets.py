"""Trained models of many kinds for ``imitation.py``: scikit-learn's and torch's, on its data sets, raw and scaled."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn import datasets
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import relumine as rl

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Trained:
    """A model to imitate: its oracle, and inputs that it was not trained on."""

    name: str
    kind: str
    oracle: rl.Oracle
    inputs: Array


@dataclass(frozen=True)
class Recipe:
    """How to train one."""

    kind: str
    data: str
    make: Callable[[], Any]
    scaled: bool = True

    @property
    def name(self) -> str:
        """Unlike any other's."""
        return f"{self.kind}, {self.data}{'' if self.scaled else ' raw'}"

    def trained(self) -> Trained:
        """The model, trained on a third of its data."""
        inputs, labels = data(self.data)
        count = len(inputs) // 3
        if isinstance(model := self.make(), nn.Module):
            return Trained(self.name, self.kind, _torch(model, inputs[:count], labels[:count]), inputs[count:])
        model = make_pipeline(StandardScaler(), model) if self.scaled else model
        return Trained(self.name, self.kind, _sklearn(model.fit(inputs[:count], labels[:count])), inputs[count:])


@cache
def data(name: str) -> tuple[Array, Array]:
    """Inputs in random order, and labels."""
    loaders: dict[str, Callable[[], Any]] = {
        "digits": partial(datasets.load_digits, return_X_y=True),
        "breast cancer": partial(datasets.load_breast_cancer, return_X_y=True),
        "moons": partial(datasets.make_moons, 3000, noise=0.2, random_state=0),
        "clusters": partial(
            datasets.make_classification, 3000, 20, n_informative=8, n_classes=4, class_sep=1.5, random_state=0
        ),
        "units": partial(_units),
    }
    inputs, labels = loaders[name]()
    order = np.random.default_rng(0).permutation(len(inputs))
    scale = 16.0 if name == "digits" else 1.0
    return np.asarray(inputs, dtype=np.float64)[order] / scale, np.asarray(labels)[order]


def _units() -> tuple[Array, Array]:
    """Columns in units from thousandths to thousands, far from the origin."""
    inputs, labels = datasets.make_classification(
        3000, 12, n_informative=6, n_classes=3, n_clusters_per_class=1, class_sep=1.2, random_state=1
    )
    rng = np.random.default_rng(1)
    return inputs * 10.0 ** rng.uniform(-3, 3, 12) + 10.0 ** rng.uniform(-2, 4, 12), labels


def _sklearn(model: Any) -> rl.Oracle:
    """By probabilities, or by margins where there are no others."""
    inputs, outputs = model.n_features_in_, len(model.classes_)
    values: Literal["probabilities", "logits"] = "probabilities" if hasattr(model, "predict_proba") else "logits"

    def query(rows: Array, gradients: bool) -> tuple[Array, None]:
        if values == "probabilities":
            return model.predict_proba(rows), None
        margins = model.decision_function(rows)
        return (np.stack([-margins, margins], axis=1) if margins.ndim == 1 else margins), None

    offer = rl.Offer(inputs=(inputs,), outputs=outputs, values=values, gradients="none", dtype="float64")
    return rl.FunctionOracle(query, offer)


def _torch(module: nn.Module, inputs: Array, labels: Array) -> rl.Oracle:
    rows, wanted = torch.from_numpy(inputs).float(), torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(module.parameters(), 3e-3)
    module.train()
    for _ in range(60):
        for part in torch.split(torch.randperm(len(rows), generator=generator), 32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(rows[part]), wanted[part]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return rl.TorchOracle(module.eval(), input_shape=inputs.shape[1:], gradients="none", values="logits")


def _mlp(activation: Callable[[], nn.Module], inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(inputs, affine=False)  # a scaler inside the model
    return nn.Sequential(
        norm, nn.Linear(inputs, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, outputs)
    )


def _cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


class _Transformer(nn.Module):
    """The rows of a digit as eight tokens."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(torch.randn(8, 32) / 8)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """n×64 to n×10 logits."""
        tokens = self.embed(rows.reshape(-1, 8, 8)) + self.place
        result: torch.Tensor = self.head(self.layer(tokens).mean(dim=1))
        return result


RECIPES = (
    Recipe("logistic regression", "digits", partial(LogisticRegression, max_iter=2000)),
    Recipe("logistic regression", "breast cancer", LogisticRegression),
    Recipe("logistic regression", "units", LogisticRegression),
    Recipe("linear discriminant", "units", LinearDiscriminantAnalysis, scaled=False),
    Recipe("quadratic discriminant", "moons", QuadraticDiscriminantAnalysis, scaled=False),
    Recipe("naive Bayes", "units", GaussianNB, scaled=False),
    Recipe("SVM", "digits", SVC),
    Recipe("SVM", "breast cancer", SVC),
    Recipe("SVM", "moons", SVC, scaled=False),
    Recipe("SVM", "units", SVC),
    Recipe("nearest neighbours", "digits", KNeighborsClassifier, scaled=False),
    Recipe("nearest neighbours", "clusters", KNeighborsClassifier),
    Recipe("nearest neighbours", "units", KNeighborsClassifier),
    Recipe("tree", "breast cancer", partial(DecisionTreeClassifier, max_depth=5, random_state=0), scaled=False),
    Recipe("tree", "moons", partial(DecisionTreeClassifier, max_depth=6, random_state=0), scaled=False),
    Recipe("tree", "units", partial(DecisionTreeClassifier, max_depth=6, random_state=0), scaled=False),
    Recipe("random forest", "digits", partial(RandomForestClassifier, random_state=0), scaled=False),
    Recipe("random forest", "breast cancer", partial(RandomForestClassifier, random_state=0), scaled=False),
    Recipe("random forest", "clusters", partial(RandomForestClassifier, random_state=0), scaled=False),
    Recipe("extra trees", "units", partial(ExtraTreesClassifier, random_state=0), scaled=False),
    Recipe("gradient boosting", "breast cancer", partial(GradientBoostingClassifier, random_state=0), scaled=False),
    Recipe("gradient boosting", "units", partial(GradientBoostingClassifier, random_state=0), scaled=False),
    Recipe("histogram boosting", "digits", partial(HistGradientBoostingClassifier, random_state=0), scaled=False),
    Recipe("histogram boosting", "moons", partial(HistGradientBoostingClassifier, random_state=0), scaled=False),
    Recipe("AdaBoost", "clusters", partial(AdaBoostClassifier, random_state=0), scaled=False),
    Recipe("MLP relu", "digits", partial(MLPClassifier, (64,), max_iter=400, random_state=0)),
    Recipe("MLP relu", "breast cancer", partial(MLPClassifier, (32,), max_iter=1000, random_state=0)),
    Recipe("MLP relu", "units", partial(MLPClassifier, (32,), max_iter=500, random_state=0)),
    Recipe("MLP tanh", "clusters", partial(MLPClassifier, (32,), activation="tanh", max_iter=500, random_state=0)),
    Recipe("MLP tanh", "moons", partial(MLPClassifier, (16,), activation="tanh", max_iter=1000, random_state=0)),
    Recipe("MLP GELU", "digits", partial(_mlp, nn.GELU, 64, 10)),
    Recipe("MLP GELU", "units", partial(_mlp, nn.GELU, 12, 3), scaled=False),
    Recipe("MLP relu, 2 layers", "clusters", partial(_mlp, nn.ReLU, 20, 4)),
    Recipe("CNN with batch norm", "digits", _cnn),
    Recipe("transformer", "digits", _Transformer),
)
