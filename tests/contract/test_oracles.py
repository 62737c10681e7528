"""One list of oracles, one contract that all of them keep."""

import dataclasses
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification, make_multilabel_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import relumine as rl
from problems import Problem, network, two_layer
from servers import ModelServer, serve_for_good

D = 6


def as_torch(problem: Problem, *ending: torch.nn.Module, shape: tuple[int, ...] = (D,)) -> torch.nn.Module:
    """The same network as a torch module that takes inputs of ``shape``."""
    dtype = getattr(torch, problem.dtype)
    layers: list[torch.nn.Module] = [torch.nn.Flatten()]
    for weight, bias in zip(problem.weights, problem.biases, strict=True):
        layer = torch.nn.Linear(*weight.shape[::-1], dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1], *ending)


def torch_oracle(K: int = 3, dtype: str = "float64", **options: object) -> rl.TorchOracle:
    return rl.TorchOracle(as_torch(two_layer(D, 9, K, dtype=dtype)), (2, 3), **options)


def scripted() -> rl.TorchOracle:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return rl.TorchOracle(torch.jit.script(as_torch(two_layer(D, 9, 3))), (D,))


def traced() -> rl.TorchOracle:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return rl.TorchOracle(torch.jit.trace(as_torch(two_layer(D, 9, 3)), torch.zeros(2, D).double()), (D,))


def exported(rows: int, *, dynamic: bool) -> rl.TorchOracle:
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    example = (torch.zeros(rows, D).double(),)
    program = torch.export.export(as_torch(two_layer(D, 9, 3)), example, dynamic_shapes=shapes)
    return rl.TorchOracle(program.module(), (D,))


def convolutional() -> rl.TorchOracle:
    torch.manual_seed(0)
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return rl.TorchOracle(module.double(), (2, 4, 4))


@cache
def fitted(make: Callable[[], object], data: str, outputs: int) -> object:
    rng = 0
    if data == "regression":
        x, y = make_regression(80, D, n_targets=outputs, random_state=rng)
    elif data == "labels":
        x, y = make_multilabel_classification(80, D, n_classes=outputs, random_state=rng)
    else:
        x, y = make_classification(80, D, n_informative=4, n_classes=outputs, random_state=rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make().fit(x, y)


def regressor(activation: str = "relu") -> MLPRegressor:
    return MLPRegressor(hidden_layer_sizes=(8, 5), activation=activation, max_iter=40, random_state=0)


def tanh_regressor() -> MLPRegressor:
    return regressor("tanh")


def logistic_regressor() -> MLPRegressor:
    return regressor("logistic")


def identity_regressor() -> MLPRegressor:
    return regressor("identity")


def classifier() -> MLPClassifier:
    return MLPClassifier(hidden_layer_sizes=7, max_iter=40, random_state=0)


def scaled_classifier() -> object:
    return make_pipeline(StandardScaler(), MinMaxScaler(), classifier())


def sklearn_oracle(make: Callable[[], object], data: str, outputs: int, **options: object) -> rl.SklearnOracle:
    return rl.SklearnOracle(fitted(make, data, outputs), **options)


@cache
def http_oracle(dtype: str = "float64", **said: object) -> rl.HttpOracle:
    problem = two_layer(D, 9, 3, dtype=dtype, **said)
    return rl.HttpOracle(serve_for_good(ModelServer(problem.oracle)), offer=problem.offer, batch=4)


def shown(change: Callable[[np.ndarray, np.ndarray], np.ndarray], **fields: object) -> rl.FunctionOracle:
    """An oracle whose gradients are not gradients, but what ``change`` makes of inputs and gradients."""
    truth = two_layer(D, 9, 3, **fields).oracle

    def query(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        answer = truth(x, gradients=gradients)
        return answer.values, change(x[:, None], answer.jacobians) if gradients else None

    return rl.FunctionOracle(query, truth.offer)


def times(x: np.ndarray, J: np.ndarray) -> np.ndarray:
    return x * J


def magnitude(x: np.ndarray, J: np.ndarray) -> np.ndarray:
    return np.abs(J)


def normalised(x: np.ndarray, J: np.ndarray) -> np.ndarray:
    return J / np.maximum(np.abs(J).max(axis=2, keepdims=True), 1e-30)


def normalised_magnitude(x: np.ndarray, J: np.ndarray) -> np.ndarray:
    return np.abs(normalised(x, J))


def in_a_ledger(oracle: rl.Oracle) -> rl.Metered:
    return rl.Metered(oracle, ledger=rl.Ledger(":memory:"))


Subject = Callable[[], rl.Oracle]
probabilities = {"values": "probabilities"}
SUBJECTS: dict[str, Subject] = {
    "function": lambda: two_layer(D, 9, 3).oracle,
    "function, K=1": lambda: two_layer(D, 9).oracle,
    "function, float32": lambda: two_layer(D, 9, 3, dtype="float32").oracle,
    "function, probabilities": lambda: two_layer(D, 9, 3, **probabilities).oracle,
    "function, values only": lambda: two_layer(D, 9, 3, gradients="none").oracle,
    "function, top": lambda: two_layer(D, 9, 3, gradients="top").oracle,
    "function, one output": lambda: two_layer(D, 9, 3, gradients=1).oracle,
    "torch, float64": torch_oracle,
    "torch, float32": lambda: torch_oracle(dtype="float32"),
    "torch, K=1": lambda: torch_oracle(1),
    "torch, real": lambda: torch_oracle(values="real"),
    "torch, top": lambda: torch_oracle(gradients="top"),
    "torch, one output": lambda: torch_oracle(gradients=2),
    "torch, values only": lambda: torch_oracle(gradients="none"),
    "torch, None, values only": lambda: torch_oracle(gradients=None),
    "torch, probabilities": lambda: torch_oracle(**probabilities),
    "torch, top probability": lambda: torch_oracle(gradients="top", **probabilities),
    "torch, sigmoid": lambda: torch_oracle(1, **probabilities),
    "torch, ends in a softmax": lambda: rl.TorchOracle(
        as_torch(two_layer(D, 9, 3), torch.nn.Softmax(dim=1)), (D,), **probabilities
    ),
    "torch, ends in a sigmoid": lambda: rl.TorchOracle(
        as_torch(two_layer(D, 9), torch.nn.Sigmoid()), (D,), **probabilities
    ),
    "torch, returns (n,)": lambda: rl.TorchOracle(as_torch(two_layer(D, 9), torch.nn.Flatten(0)), (D,)),
    "torch, three rows at once": lambda: torch_oracle(rows_at_once=3),
    "torch, deep": lambda: rl.TorchOracle(as_torch(network(D, 8, 7, 3)), D),
    "torch, convolutional": convolutional,
    "torch, scripted": scripted,
    "torch, traced": traced,
    "torch, exported": lambda: exported(2, dynamic=True),
    "torch, exported for one row": lambda: exported(1, dynamic=False),
    "http": http_oracle,
    "http, float32": lambda: http_oracle("float32"),
    "http, values only": lambda: http_oracle(gradients="none"),
    "http, top": lambda: http_oracle(gradients="top"),
    "http, probabilities": lambda: http_oracle(**probabilities),
    "http, ledger": lambda: in_a_ledger(http_oracle()),
    "link, http": lambda: rl.LogitLink(http_oracle(**probabilities)),
    "sklearn, linear": lambda: sklearn_oracle(LinearRegression, "regression", 1),
    "sklearn, linear, K=3": lambda: sklearn_oracle(LinearRegression, "regression", 3),
    "sklearn, ridge": lambda: sklearn_oracle(Ridge, "regression", 1),
    "sklearn, lasso": lambda: sklearn_oracle(Lasso, "regression", 1),
    "sklearn, elastic net": lambda: sklearn_oracle(ElasticNet, "regression", 1),
    "sklearn, ridge classifier": lambda: sklearn_oracle(RidgeClassifier, "classes", 3),
    "sklearn, logistic, two": lambda: sklearn_oracle(LogisticRegression, "classes", 2),
    "sklearn, logistic, two, logits": lambda: sklearn_oracle(LogisticRegression, "classes", 2, values="logits"),
    "sklearn, logistic, three": lambda: sklearn_oracle(LogisticRegression, "classes", 3),
    "sklearn, logistic, three, top": lambda: sklearn_oracle(LogisticRegression, "classes", 3, gradients="top"),
    "sklearn, relu": lambda: sklearn_oracle(regressor, "regression", 1),
    "sklearn, relu, K=2": lambda: sklearn_oracle(regressor, "regression", 2),
    "sklearn, tanh": lambda: sklearn_oracle(tanh_regressor, "regression", 1),
    "sklearn, sigmoid": lambda: sklearn_oracle(logistic_regressor, "regression", 1),
    "sklearn, identity": lambda: sklearn_oracle(identity_regressor, "regression", 1),
    "sklearn, network, two": lambda: sklearn_oracle(classifier, "classes", 2),
    "sklearn, network, three": lambda: sklearn_oracle(classifier, "classes", 3),
    "sklearn, network, three, logits": lambda: sklearn_oracle(classifier, "classes", 3, values="logits"),
    "sklearn, network, labels": lambda: sklearn_oracle(classifier, "labels", 3),
    "sklearn, pipeline": lambda: sklearn_oracle(scaled_classifier, "classes", 3),
    "link": lambda: rl.LogitLink(two_layer(D, 9, 3, **probabilities).oracle),
    "link, K=1": lambda: rl.LogitLink(two_layer(D, 9, 1, **probabilities).oracle),
    "link, K=2, top": lambda: rl.LogitLink(two_layer(D, 9, 2, gradients="top", **probabilities).oracle),
    "link, K=2, one output": lambda: rl.LogitLink(two_layer(D, 9, 2, gradients=1, **probabilities).oracle),
    "link, float32": lambda: rl.LogitLink(two_layer(D, 9, 3, dtype="float32", **probabilities).oracle),
    "link, torch": lambda: rl.LogitLink(torch_oracle(**probabilities)),
    "link, sklearn": lambda: rl.LogitLink(sklearn_oracle(classifier, "classes", 2)),
    "link, values only": lambda: rl.LogitLink(two_layer(D, 9, 3, gradients="none", **probabilities).oracle),
    "differences": lambda: rl.FiniteDifferences(two_layer(D, 9, 3, gradients="none").oracle, 1e-6),
    "differences, K=1": lambda: rl.FiniteDifferences(two_layer(D, 9).oracle, 1e-6),
    "differences, link": lambda: rl.FiniteDifferences(
        rl.LogitLink(two_layer(D, 9, 3, gradients="none", **probabilities).oracle), 1e-6
    ),
    "divided": lambda: rl.DividedByInput(shown(times)),
    "divided, top": lambda: rl.DividedByInput(shown(times, gradients="top")),
    "divided, float32": lambda: rl.DividedByInput(shown(times, dtype="float32")),
    "divided, probabilities": lambda: rl.DividedByInput(shown(times, **probabilities)),
    "signs": lambda: rl.SignsFromValues(shown(magnitude)),
    "signs, top": lambda: rl.SignsFromValues(shown(magnitude, gradients="top")),
    "signs, one output": lambda: rl.SignsFromValues(shown(magnitude, gradients=2)),
    "signs, float32": lambda: rl.SignsFromValues(shown(magnitude, dtype="float32")),
    "signs, probabilities": lambda: rl.SignsFromValues(shown(magnitude, **probabilities)),
    "signs, squares": lambda: rl.SignsFromValues(shown(lambda x, J: J**2), power=2),
    "scaled": lambda: rl.ScaledByValues(shown(normalised)),
    "scaled, top": lambda: rl.ScaledByValues(shown(normalised, gradients="top")),
    "scaled, float32": lambda: rl.ScaledByValues(shown(normalised, dtype="float32")),
    "scaled, without signs": lambda: rl.SignsFromValues(rl.ScaledByValues(shown(normalised_magnitude), signed=False)),
    "far away": lambda: rl.ScaledInputs(two_layer(D, 9, 3).oracle, 8.0),
    "averaged": lambda: rl.Averaged(two_layer(D, 9, 3).oracle, 3),
    "averaged, float32": lambda: rl.Averaged(two_layer(D, 9, 3, dtype="float32").oracle, 3, rounded=True),
    "averaged, probabilities": lambda: rl.Averaged(two_layer(D, 9, 3, **probabilities).oracle, 2),
    "averaged, values only": lambda: rl.Averaged(two_layer(D, 9, 3, gradients="none").oracle, 2),
    "among others": lambda: rl.DecoyQueries(two_layer(D, 9, 3).oracle, 4),
    "among others, top": lambda: rl.DecoyQueries(two_layer(D, 9, 3, gradients="top").oracle, 4, values=False),
    "among others, values only": lambda: rl.DecoyQueries(two_layer(D, 9, 3, gradients="none").oracle, 4),
    "metered": lambda: rl.Metered(torch_oracle()),
    "metered, top": lambda: rl.Metered(two_layer(D, 9, 3, gradients="top").oracle),
    "metered, ledger": lambda: in_a_ledger(two_layer(D, 9, 3).oracle),
    "metered, ledger, values only": lambda: in_a_ledger(two_layer(D, 9, 3, gradients="none").oracle),
    "link, metered": lambda: rl.LogitLink(in_a_ledger(two_layer(D, 9, 3, **probabilities).oracle)),
}


VALUES_ONLY = [name for name in SUBJECTS if name.endswith("values only")]
WITH_GRADIENTS = [name for name in SUBJECTS if name not in VALUES_ONLY]


def dashed(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_")


@pytest.fixture(params=SUBJECTS, ids=dashed)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


def some_inputs(offer: rl.Offer, n: int = 9) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((n, offer.dimension))


def asked(oracle: rl.Oracle, x: np.ndarray) -> rl.Answer:
    """All that the oracle offers about x."""
    return oracle(x, gradients=oracle.offer.gradients != "none")


def close(first: np.ndarray, second: np.ndarray, offer: rl.Offer, slack: float = 1) -> bool:
    """Equal up to rounding, relative to the largest number."""
    rounding = slack * 100 * np.finfo(offer.dtype).eps
    return bool(np.abs(first - second).max(initial=0) <= rounding * max(1.0, np.abs(first).max(initial=0)))


def test_it_is_an_oracle_with_a_frozen_offer(subject: Subject) -> None:
    oracle = subject()
    assert isinstance(oracle, rl.Oracle)
    assert oracle.offer == oracle.offer
    with pytest.raises(dataclasses.FrozenInstanceError):
        oracle.offer.outputs = 17


@pytest.mark.parametrize("n", [0, 1, 7])
def test_shapes_are_as_offered(subject: Subject, n: int) -> None:
    oracle = subject()
    offer = oracle.offer
    x = some_inputs(offer, n)
    answer = asked(oracle, x)
    assert answer.values.shape == (n, offer.outputs)
    assert answer.values.dtype == np.float64
    if offer.gradients != "none":
        assert answer.jacobians.shape == (n, offer.gradient_rows, offer.dimension)
        assert answer.jacobians.dtype == np.float64
    assert oracle(x, gradients=False).gradients is None
    assert np.isfinite(answer.values).all()


def test_values_are_of_the_offered_kind(subject: Subject) -> None:
    oracle = subject()
    values = asked(oracle, some_inputs(oracle.offer)).values
    if oracle.offer.values == "probabilities":
        assert (values > 0).all()
        assert (values < 1).all()
        assert oracle.offer.outputs == 1 or np.allclose(values.sum(axis=1), 1, atol=1e-6)
    elif oracle.offer.values == "logits":
        assert values.min() < 0 or values.max() > 1


def test_values_are_the_same_with_and_without_gradients(subject: Subject) -> None:
    oracle = subject()
    x = some_inputs(oracle.offer)
    assert close(asked(oracle, x).values, oracle(x, gradients=False).values, oracle.offer)


@pytest.mark.parametrize("subject", VALUES_ONLY, ids=dashed, indirect=True)
def test_gradients_that_are_not_offered_are_misuse(subject: Subject) -> None:
    oracle = subject()
    assert oracle.offer.gradients == "none"
    with pytest.raises(rl.MisuseError, match="offers none"):
        oracle(some_inputs(oracle.offer), gradients=True)


@pytest.mark.parametrize("subject", WITH_GRADIENTS, ids=dashed, indirect=True)
def test_gradients_agree_with_differences_of_the_values(subject: Subject) -> None:
    oracle = subject()
    offer = oracle.offer
    x = some_inputs(offer)
    answer = oracle(x, gradients=True)
    step, tolerance = (1e-6, 1e-6) if offer.dtype == "float64" else (3e-3, 3e-3)
    moves = step * np.eye(offer.dimension)
    ahead = oracle((x[:, None] + moves).reshape(-1, offer.dimension), gradients=False).values
    behind = oracle((x[:, None] - moves).reshape(-1, offer.dimension), gradients=False).values
    differences = ((ahead - behind) / (2 * step)).reshape(len(x), offer.dimension, -1).transpose(0, 2, 1)
    if offer.gradients == "top":
        differences = differences[np.arange(len(x)), answer.values.argmax(axis=1)][:, None]
    elif offer.gradients != "all":
        differences = differences[:, [offer.gradients]]
    # The median over the inputs, because one of them may lie next to a kink.
    gap = np.abs(answer.jacobians - differences).max(axis=(1, 2))
    assert np.median(gap) <= tolerance * np.abs(differences).max()


def test_answers_do_not_depend_on_the_batch(subject: Subject) -> None:
    oracle = subject()
    x = some_inputs(oracle.offer)
    together = asked(oracle, x)
    alone = [asked(oracle, row[None]) for row in x[::-1]][::-1]
    assert close(together.values, np.concatenate([answer.values for answer in alone]), oracle.offer)
    if together.gradients is not None:
        # Differences of values magnify their rounding.
        slack = 1e6 if isinstance(oracle, rl.FiniteDifferences | rl.ScaledByValues | rl.SignsFromValues) else 1
        assert close(together.gradients, np.concatenate([a.jacobians for a in alone]), oracle.offer, slack)


def test_nothing_is_mutated(subject: Subject) -> None:
    oracle = subject()
    x = some_inputs(oracle.offer)
    before = x.copy()
    first = asked(oracle, x)
    assert (x == before).all()
    values = first.values.copy()
    first.values[:] = 77
    if first.gradients is not None:
        first.gradients[:] = 77
    assert close(asked(oracle, x).values, values, oracle.offer)


def test_inputs_may_be_of_any_layout(subject: Subject) -> None:
    oracle = subject()
    x = some_inputs(oracle.offer).astype(np.float32)
    expected = oracle(x.astype(np.float64), gradients=False).values
    for other in (x, np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2], x.tolist()):
        assert close(expected, oracle(other, gradients=False).values, oracle.offer)


def test_read_only_inputs_are_taken(subject: Subject) -> None:
    oracle = subject()
    x = some_inputs(oracle.offer)
    x.setflags(write=False)
    assert len(asked(oracle, x)) == len(x)


@pytest.mark.parametrize("wrong", ["one row", "too wide", "not flat", "NaN", "infinite", "text", "ragged"])
def test_wrong_inputs_are_refused(subject: Subject, wrong: str) -> None:
    oracle = subject()
    x = some_inputs(oracle.offer)
    hole = x.copy()
    hole[1, 2] = np.nan
    far = x.copy()
    far[0, 0] = np.inf
    inputs = {
        "one row": x[0],
        "too wide": np.hstack([x, x]),
        "not flat": x[:, None],
        "NaN": hole,
        "infinite": far,
        "text": [["a"] * oracle.offer.dimension],
        "ragged": [[1.0], [1.0, 2.0]],
    }[wrong]
    for gradients in {False, oracle.offer.gradients != "none"}:
        with pytest.raises(rl.MisuseError, match="inputs: expected"):
            oracle(inputs, gradients=gradients)
