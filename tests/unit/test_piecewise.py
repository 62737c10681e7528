"""Activations made of straight pieces: named, and the same function as the target."""

import numpy as np
import pytest
import torch

import relumine as rl

ACTIVATIONS = {
    "leaky_relu(0.2)": lambda: torch.nn.LeakyReLU(0.2),
    "prelu": lambda: torch.nn.PReLU(12),
    "hardtanh": torch.nn.Hardtanh,
    "relu": torch.nn.ReLU,
}


def target(name: str, dtype: torch.dtype, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(30, 12), ACTIVATIONS[name](), torch.nn.Linear(12, 4)).to(dtype)
    module[0].weight.data *= 3
    if name == "prelu":
        module[1].weight.data = torch.linspace(-0.3, 0.7, 12, dtype=dtype)
    return module


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_activation_is_named_and_the_clone_is_the_target(name, dtype, seed, tmp_path):
    module = target(name, dtype, seed)
    oracle = rl.TorchOracle(module, 30, values="logits", gradients="all")
    result = rl.TwoLayer()(oracle, rng=seed)
    x = np.random.default_rng(seed).standard_normal((500, 30)).astype(np.float32).astype(np.float64)
    truth = oracle(x, gradients=False).values
    assert result.outcome is rl.Outcome.RECOVERED
    assert (result.activation, result.hidden) == (name, (12,))
    assert np.abs(result.predict(x) - truth).max() <= (1e-9 if dtype == torch.float64 else 1e-4) * np.abs(truth).max()
    assert np.allclose(result.to_torch()(torch.tensor(x)).detach(), result.predict(x), atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_relu6_and_hard_tanh_make_the_same_networks(seed):
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(20, 6), torch.nn.ReLU6(), torch.nn.Linear(6, 3)).double()
    module[0].weight.data *= 5
    oracle = rl.TorchOracle(module, 20, values="logits", gradients="all")
    result = rl.TwoLayer()(oracle, rng=seed)
    x = np.random.default_rng(seed).standard_normal((500, 20))
    truth = oracle(x, gradients=False).values
    assert result.outcome is rl.Outcome.RECOVERED
    assert result.activation == "hardtanh"
    assert np.abs(result.predict(x) - truth).max() <= 1e-9 * np.abs(truth).max()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_upper_ends_that_show_far_out_only_take_few_queries_behind_probabilities(seed):
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(50, 32), torch.nn.ReLU6(), torch.nn.Linear(32, 10)).double()
    module[0].weight.data *= 1.7
    oracle = rl.TorchOracle(torch.nn.Sequential(module, torch.nn.Softmax(dim=1)), 50, values="probabilities")
    result = rl.TwoLayer()(oracle, rng=seed)
    x = 4 * np.random.default_rng(seed).standard_normal((500, 50))
    assert result.outcome is rl.Outcome.RECOVERED
    assert (result.hidden, result.activation) == ((32,), "hardtanh")
    assert np.abs(result.predict(x) - oracle(x, gradients=False).values).max() <= 1e-9
    assert result.spent.gradient_queries <= 100


def test_a_linear_part_that_is_no_sum_of_units_stays_one():
    torch.manual_seed(0)
    layers, skip = torch.nn.Sequential(torch.nn.Linear(20, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)), None
    skip = torch.nn.Linear(20, 3)

    class Beside(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.skip = layers, skip

        def forward(self, x):
            return self.layers(x) + self.skip(x)

    result = rl.TwoLayer()(rl.TorchOracle(Beside().double(), 20, values="logits", gradients="all"), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    assert result.activation == "relu"
    assert result.clone.skip is not None
