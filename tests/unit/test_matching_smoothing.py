"""ReLU smoothing: every way to write a ReLU, derivatives that are true, and a plain network at the end."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import relumine as rl
from problems import two_layer
from relumine.reconstruct.matching.smoothing import ReluSmoothing, _SmoothedReLU

WAYS = {
    "module": torch.nn.ReLU(),
    "in place": lambda z: torch.nn.ReLU(inplace=True)(z.clone()),
    "functional": functional.relu,
    "torch": torch.relu,
    "method": lambda z: z.relu(),
}


def points() -> torch.Tensor:
    return torch.linspace(-3, 3, 61, dtype=torch.float64)


@pytest.mark.parametrize("relu", WAYS.values(), ids=WAYS)
def test_every_relu_is_rounded_near_the_corner_and_only_there(relu):
    z = points()
    half = 0.5 * float(z.square().mean().sqrt())
    with ReluSmoothing(0.5):
        rounded = relu(z)
    near = z.abs() < half
    assert (rounded[near] > z.relu()[near]).all()
    torch.testing.assert_close(rounded[~near], z.relu()[~near])
    assert torch.equal(relu(z), z.relu()), "outside the context nothing is changed"


def test_its_first_and_second_derivatives_are_true():
    z = points()[::3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: _SmoothedReLU.apply(z, 0.77), z)
    assert torch.autograd.gradgradcheck(lambda z: _SmoothedReLU.apply(z, 0.77), z)


def test_the_corner_becomes_sharp_before_the_end():
    widths = [ReluSmoothing.at(share, 1.0).width for share in (0, 0.35, 0.7, 0.9)]
    assert widths == pytest.approx([1, 0.5, 0, 0])


@pytest.mark.parametrize("dead", [0.0, 1.0])
def test_a_layer_of_zeros_does_no_harm(dead):
    z = (dead * torch.ones(1, 4)).requires_grad_()
    with ReluSmoothing(1.0):
        slope = torch.autograd.grad(torch.relu(z).sum(), z, create_graph=True)[0]
    assert torch.isfinite(torch.autograd.grad(slope.sum(), z)[0]).all()


def test_round_corners_help_gradients_to_be_matched():
    def student(seed: int) -> torch.nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))

    problem = two_layer(12, 9, 3, seed=0)
    x = np.random.default_rng(1).standard_normal((2000, 12))
    gaps = {0.0: [], 1.0: []}
    for width, found in gaps.items():
        for seed in range(3):
            result = rl.GradientMatching(student, 20, steps=400, relu_smoothing=width)(problem.oracle, rng=seed)
            found.append(np.square(result.predict(x) - problem.predict(x)).mean())
    assert np.mean(gaps[1.0]) < np.mean(gaps[0.0])
