"""Muon: steps that move a layer in all directions alike."""

import numpy as np
import pytest
import torch

import relumine as rl
from problems import two_layer
from relumine.reconstruct.matching.optimiser import Muon, orthogonal


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e10])
def test_a_step_has_singular_values_of_one(seed, size):
    torch.manual_seed(seed)
    matrix = size * torch.randn(6, 15) * torch.logspace(0, -2, 6)[:, None]
    step = orthogonal(matrix)
    assert torch.allclose(torch.linalg.svdvals(step), torch.ones(6), atol=1e-2)
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    assert torch.allclose(step.double(), left @ right, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_step_has_the_precision_of_the_weights(dtype):
    torch.manual_seed(0)
    step = orthogonal(torch.randn(4, 9).to(dtype))
    assert step.dtype == dtype
    assert torch.allclose(torch.linalg.svdvals(step.double()), torch.ones(4).double(), atol=2e-2)


def test_nothing_to_learn_is_no_step():
    assert torch.equal(orthogonal(torch.zeros(3, 5)), torch.zeros(3, 5))
    weight = torch.nn.Parameter(torch.ones(4, 3))
    weight.grad = torch.zeros(4, 3)
    Muon([{"params": [weight], "lr": 0.1}]).step()
    assert torch.equal(weight.detach(), torch.ones(4, 3))


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (16, 4, 3, 3), (7,)])
def test_weights_move_by_the_rate_in_the_root_mean_square(shape):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape))
    before = weight.detach().clone()
    weight.grad = torch.randn(shape)
    Muon([{"params": [weight], "lr": 0.01}]).step()
    assert (weight.detach() - before).square().mean().sqrt().item() == pytest.approx(0.01, rel=1e-3)


def test_an_ill_conditioned_layer_is_learnt_where_adam_is_still_far_away():
    torch.manual_seed(0)
    inputs = torch.randn(500, 30) @ torch.linalg.qr(torch.randn(30, 30))[0] * torch.logspace(0, -2, 30)
    inputs = inputs @ torch.linalg.qr(torch.randn(30, 30))[0]
    wanted = inputs @ torch.randn(30, 20)

    def left(make) -> float:
        weight = torch.nn.Parameter(torch.zeros(20, 30))
        optimiser = make([{"params": [weight], "lr": 0.03}])
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 300)
        for _ in range(300):
            optimiser.zero_grad()
            (inputs @ weight.T - wanted).square().mean().backward()
            optimiser.step()
            cosine.step()
        return (inputs @ weight.T - wanted).square().mean().item()

    assert left(Muon) < 0.5 * left(torch.optim.Adam)


def test_a_student_learns_by_it():
    problem = two_layer(12, 9, 3, seed=0)
    small = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
    result = rl.GradientMatching(small, 60, steps=300, optimiser="muon")(problem.oracle, rng=0)
    x = np.random.default_rng(99).standard_normal((2000, 12))
    assert (result.predict(x).argmax(1) == problem.predict(x).argmax(1)).mean() > 0.85


def test_a_fitting_that_diverges_is_told():
    problem = two_layer(12, 9, 3, seed=0)
    small = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
    with pytest.raises(rl.MisuseError, match="lower the learning rate"):
        rl.GradientMatching(small, 60, steps=50, learning_rate=1e30, optimiser="muon")(problem.oracle, rng=0)


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_a_gradient_that_is_no_number_is_told(optimiser):
    class Steep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cliff = torch.nn.Linear(12, 3), torch.nn.Parameter(torch.zeros(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) @ (torch.eye(3) + self.cliff.sqrt())

    with pytest.raises(rl.MisuseError, match="lower the learning rate"):
        rl.GradientMatching(Steep(), 60, steps=50, optimiser=optimiser)(two_layer(12, 9, 3, seed=0).oracle, rng=0)
