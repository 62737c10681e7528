"""Offers and answers: what is promised is checked."""

import numpy as np
import pytest

import relumine as rl
from problems import two_layer


def test_an_offer_knows_its_sizes() -> None:
    offer = rl.Offer(inputs=[1, 28, 28], outputs=np.int64(10))
    assert offer.dimension == 784
    assert offer.inputs == (1, 28, 28)
    assert offer.gradient_rows == 10
    assert rl.Offer((4,), 3, gradients="top").gradient_rows == 1
    assert rl.Offer((4,), 3, gradients=2).gradient_rows == 1
    assert rl.Offer((4,), 3, gradients="none").gradient_rows == 0


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"inputs": 784}, "inputs: expected a shape, like"),
        ({"inputs": ()}, "inputs: expected a shape of positive"),
        ({"inputs": (0, 3)}, "inputs: expected a shape of positive"),
        ({"inputs": (2.5,)}, "inputs: expected a shape, like"),
        ({"outputs": 0}, "outputs: expected at least 1"),
        ({"outputs": 1.5}, "outputs: expected an integer"),
        ({"values": "scores"}, "values: expected one of"),
        ({"gradients": "some"}, "gradients: expected one of"),
        ({"gradients": 3}, "an output below 2"),
        ({"dtype": "float16"}, "dtype: expected one of"),
        ({"box": (1.0, 0.0)}, "box: expected"),
        ({"box": (np.nan, 1.0)}, "box: expected"),
    ],
)
def test_impossible_offers_are_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(rl.MisuseError, match=complaint):
        rl.Offer(**{"inputs": (4,), "outputs": 2, **fields})


X = np.zeros((5, 4))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((np.zeros((5, 3)), np.zeros((5, 2, 4))), r"values: expected shape \(5, 2\), got \(5, 3\)"),
        ((np.zeros(5), np.zeros((5, 2, 4))), r"values: expected shape \(5, 2\), got \(5,\)"),
        ((np.zeros((5, 2)), np.zeros((5, 4))), r"gradients: expected shape \(5, 2, 4\), got \(5, 4\)"),
        ((np.zeros((5, 2)), None), "promises 'all', got none"),
        ((np.full((5, 2), np.nan), np.zeros((5, 2, 4))), "NaN or infinity in 5 of 5 rows"),
        ((np.zeros((5, 2)), np.full((5, 2, 4), np.inf)), "gradients: expected finite"),
        ((None, None), "values: expected shape"),
        (("nonsense", None), "values: expected numbers"),
        (([[1.0], [1.0, 2.0]], None), "values: expected numbers"),
        (np.zeros((5, 2)), "expected a pair"),
        ((1, 2, 3), "expected a pair"),
    ],
)
def test_bad_answers_are_named(answer: object, complaint: str) -> None:
    oracle = rl.FunctionOracle(lambda x, gradients: answer, rl.Offer((4,), 2))
    with pytest.raises(rl.BadAnswerError, match=complaint):
        oracle(X, gradients=True)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [([[0.5, 0.6]], "do not sum to 1"), ([[-0.1, 1.1]], "outside"), ([[1.2]], "outside"), ([[-0.5]], "outside")],
)
def test_what_is_no_probability_is_named(values: list[list[float]], complaint: str) -> None:
    offer = rl.Offer((4,), len(values[0]), values="probabilities", gradients="none")
    oracle = rl.FunctionOracle(lambda x, gradients: (np.array(values), None), offer)
    with pytest.raises(rl.BadAnswerError, match=complaint):
        oracle(X[:1], gradients=False)


def test_a_tensor_with_a_graph_is_named() -> None:
    import torch

    oracle = rl.FunctionOracle(
        lambda x, gradients: (torch.zeros(5, 2, requires_grad=True), None), rl.Offer((4,), 2, gradients="none")
    )
    with pytest.raises(rl.BadAnswerError, match="values: expected numbers"):
        oracle(X, gradients=False)


def test_an_oracle_that_returns_no_answer_is_named() -> None:
    class Pair:
        offer = rl.Offer((4,), 2)

        def __call__(self, inputs: np.ndarray, *, gradients: bool) -> object:
            return np.zeros((5, 2)), None

    with pytest.raises(rl.BadAnswerError, match="expected an Answer"):
        rl.Metered(Pair())(X, gradients=False)


def test_gradients_that_nobody_asked_for_are_dropped() -> None:
    problem = two_layer(4, 3, 2)
    oracle = rl.FunctionOracle(lambda x, _: (problem.predict(x), problem.jacobian(x)), problem.offer)
    assert oracle(X, gradients=False).gradients is None
