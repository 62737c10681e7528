"""TorchScript and exported programs come back equal, whatever networks the zoo has."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import relumine as rl
from relumine.targets import load_target
from relumine.zoo import NETWORKS, network

SHAPE = (3, 16, 16)
SMALL = {"vgg11": {"width": 4}, "resnet18": {"width": 4}, "resnet18_small": {"width": 4}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scripted(module: nn.Module, shape: tuple[int, ...]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save("model.pt")
    return "model.pt"


def traced(module: nn.Module, shape: tuple[int, ...]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(module, like(module).new_zeros(2, *shape)).save("model.ts")
    return "model.ts"


def exported(module: nn.Module, shape: tuple[int, ...]) -> str:
    example = (like(module).new_zeros(2, *shape),)
    program = torch.export.export(module, example, dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.export.save(program, "model.pt2")
    return "model.pt2"


def like(module: nn.Module) -> torch.Tensor:
    return next(module.parameters())


WRITERS = {"scripted": scripted, "traced": traced, "exported": exported}


def assert_comes_back_equal(module: nn.Module, shape: tuple[int, ...], writer: str) -> None:
    oracle = load_target(WRITERS[writer](module.eval(), shape), input_shape=shape)
    points = np.random.default_rng(1).standard_normal((6, oracle.offer.dimension))
    truth = rl.TorchOracle(module, shape)
    assert oracle.offer == truth.offer
    ours, theirs = oracle(points, gradients=True), truth(points, gradients=True)
    for first, second in ((ours.values, theirs.values), (ours.jacobians, theirs.jacobians)):
        assert np.abs(first - second).max() <= 1e-5 * np.abs(second).max()


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_of_the_zoo_comes_back_equal(name, writer):
    if name == "resnet18" and writer != "scripted":
        name = "resnet18_small"  # the same blocks, a quarter of the time
    assert_comes_back_equal(network(name, SHAPE, 5, **SMALL.get(name, {})), SHAPE, writer)


class Mixed(nn.Module):
    """A bit of what people write besides: constants, shapes, branches, several results, activations of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.linspace(-1, 1, 6))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) / 2.0
        rows = x.shape[0]
        signal = nn.functional.leaky_relu(self.first(x)).view(rows, 2, 4)
        left, right = signal.chunk(2, dim=1)
        joined = torch.cat([left.squeeze(1), torch.tanh(right.squeeze(1))], dim=1)
        other = nn.functional.gelu(self.second(joined[:, 2:6])) + nn.functional.softplus(self.norm(joined))
        return nn.functional.log_softmax(self.last(torch.clamp(other, min=-0.5)), dim=1)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding="same"),
            nn.GroupNorm(2, 4),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Dropout(0.5),
            nn.BatchNorm2d(4),
            nn.ELU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * self.head(self.body(x))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("make", "shape"), [(Mixed, (6,)), (Images, (2, 8, 8))])
def test_what_people_write_comes_back_equal(make, shape, dtype, writer):
    torch.manual_seed(0)
    assert_comes_back_equal(make().to(dtype), shape, writer)
