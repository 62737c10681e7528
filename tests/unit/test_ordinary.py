"""TwoLayer(inputs=X): only inputs of X are asked, in their order, and what they do not tell is said."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import relumine as rl
from problems import Array, Capped, two_layer
from relumine.oracle.base import Answer, Offer


@cache
def digits() -> tuple[Array, Array]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order] / 16, labels[order]


@cache
def trained(seed: int, hidden: int = 24) -> torch.nn.Module:
    inputs, labels = digits()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))
    x, y = torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    return module.eval()


class Noting:
    """Remembers which rows were asked, with gradients and without."""

    def __init__(self, oracle: rl.Oracle) -> None:
        self._oracle = oracle
        self.rows: list[tuple[bool, Array]] = []

    @property
    def offer(self) -> Offer:
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        self.rows += [(gradients, row) for row in inputs]
        return self._oracle(inputs, gradients=gradients)


def agreement(result: rl.Reconstruction, oracle: rl.Oracle, points: Array) -> float:
    truth = oracle(points, gradients=False).values
    return float((result.predict(points).argmax(axis=1) == truth.argmax(axis=1)).mean())


@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_ordinary_images_tell_nearly_all_decisions(values):
    inputs, _ = digits()
    for seed in range(3):
        oracle = Noting(rl.TorchOracle(trained(seed), 64, values=values))
        result = rl.TwoLayer(inputs=inputs[:300])(oracle, rng=seed)
        asked = np.array([row for _, row in oracle.rows])
        places = [int(np.abs(inputs[:300] - row).max(axis=1).argmin()) for row in asked]
        assert np.abs(inputs[places] - asked).max() <= 1e-7
        assert result.spent.gradient_queries <= 24
        assert agreement(result, oracle, inputs[300:]) >= 0.995
        assert result.evidence.verification_points == 40
        assert result.evidence.verification_gap <= 1e-5


def test_inputs_are_asked_in_their_order_and_as_few_as_it_takes():
    inputs, _ = digits()
    oracle = Noting(rl.TorchOracle(trained(0), 64, values="logits"))
    rl.TwoLayer(inputs=inputs[:300])(oracle, rng=0)
    first = [int(np.abs(inputs - row).max(axis=1).argmin()) for gradients, row in oracle.rows if gradients]
    start = next(i for i, (gradients, _) in enumerate(oracle.rows) if not gradients)
    assert first[:start] == list(range(start))
    assert len(oracle.rows) < 300


def test_a_network_whose_units_all_switch_is_recovered():
    for seed in range(3):
        problem = two_layer(30, 16, 5, bias=True, seed=seed)
        inputs = np.random.default_rng([seed, 9]).standard_normal((100, 30))
        result = rl.TwoLayer(inputs=inputs)(Capped(problem.oracle, 100), rng=seed)
        assert result.outcome is rl.Outcome.RECOVERED
        assert result.hidden == (16,)
        assert result.evidence.verification_points == 40
        fresh = np.random.default_rng([seed, 10]).standard_normal((1000, 30))
        truth = problem.oracle(fresh, gradients=False).values
        assert np.abs(result.predict(fresh) - truth).max() <= 1e-9 * np.abs(truth).max()


def test_what_never_switches_is_said_to_be_unknown():
    problem = two_layer(30, 16, 5, bias=True, seed=0)
    near = np.random.default_rng(1).standard_normal(30) + 0.3 * np.random.default_rng(2).standard_normal((200, 30))
    result = rl.TwoLayer(inputs=near)(problem.oracle, rng=0)
    assert result.outcome is rl.Outcome.INCOMPLETE
    assert 0 < result.hidden[0] < 16
    assert f"{result.hidden[0]} units" in result.evidence.remark
    assert "rank" in result.evidence.remark
    truth = problem.oracle(near, gradients=False).values
    assert np.abs(result.predict(near) - truth).max() <= 1e-9 * np.abs(truth).max()


def test_too_few_inputs_are_not_called_a_recovery():
    problem = two_layer(30, 16, 5, bias=True, seed=0)
    inputs = np.random.default_rng(3).standard_normal((10, 30))
    for count in (1, 2, 5, 10):
        result = rl.TwoLayer(inputs=inputs[:count])(Capped(problem.oracle, 2 * count), rng=0)
        assert result.outcome in (rl.Outcome.INCOMPLETE, rl.Outcome.NOT_THIS_CLASS)
        truth = problem.oracle(inputs[:1], gradients=False).values
        assert np.abs(result.predict(inputs[:1]) - truth).max() <= 1e-9 * np.abs(truth).max()


def test_one_output_is_refused_with_a_way_out():
    with pytest.raises(rl.MisuseError, match="two outputs or more"):
        rl.TwoLayer(inputs=np.zeros((3, 30)))(two_layer(30, 4, 1, bias=True, seed=0).oracle)


def test_no_limit_means_the_default_limit():
    problem = two_layer(10, 6, 3, bias=True, seed=0)
    result = rl.TwoLayer(limit=None)(problem.oracle, rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    assert result.spent == rl.TwoLayer(limit=20_000)(problem.oracle, rng=0).spent
