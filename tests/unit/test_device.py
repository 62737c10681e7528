"""GPUs: which is used is decided in one place, and everything that trains or fits keeps to it.

No GPU is needed: torch's "meta" device has shapes and devices but no numbers, and refuses to mix with the CPU. Fitting
there gets as far as fetching the result, which has none.
"""

import numpy as np
import pytest
import torch

import relumine as rl
from problems import two_layer
from relumine import device as choice
from relumine.explain import IntegratedGradients, SmoothGrad
from relumine.jobs.engines import gpu_share
from relumine.jobs.provenance import versions
from relumine.zoo.data import Examples, Split
from relumine.zoo.training import Training, trained

NO_NUMBERS = "Cannot copy out of meta tensor"


@pytest.mark.parametrize(
    ("there", "said", "expected"),
    [(True, "", "cuda"), (False, "", "cpu"), (True, "cpu", "cpu"), (False, "cuda", "cpu")],
)
def test_a_gpu_is_used_where_there_is_one(monkeypatch, there, said, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setenv("RELUMINE_DEVICE", said)
    versions.cache_clear()
    assert choice.device() == expected
    assert versions().get("device", "cpu") == expected
    versions.cache_clear()


@pytest.fixture
def elsewhere(monkeypatch):
    """Everything is fitted on the meta device; losses are 1."""
    for module in ("relumine.reconstruct.matching.method", "relumine.zoo.training"):
        monkeypatch.setattr(f"{module}.device", lambda: "meta")
    for name in ("item", "__float__"):
        said = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, said=said: 1.0 if tensor.is_meta else said(tensor))


def student(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))


@pytest.mark.parametrize("explanation", [None, SmoothGrad(0.1, 3), IntegratedGradients()], ids=str)
def test_students_are_fitted_there(elsewhere, explanation):
    oracle = two_layer(5, 4, 3).oracle
    method = rl.GradientMatching(student, queries=40, steps=30, optimiser="muon", explanation=explanation)
    with pytest.raises(NotImplementedError, match=NO_NUMBERS):
        method(oracle, rng=0)


def test_targets_are_trained_there(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setenv("RELUMINE_CACHE", str(tmp_path))
    rng = np.random.default_rng(0)
    some = Examples(rng.random((40, 1, 8, 8), dtype=np.float32), rng.integers(0, 2, 40))
    with pytest.raises(NotImplementedError, match=NO_NUMBERS):
        trained("conv", Split("random", 2, some, some.inputs, some), seed=0, settings=Training(steps=5, mirror=True))


@pytest.mark.parametrize(
    ("gpus", "workers", "share"), [(0, 4, 0), (1, 1, 1), (1, 4, 1 / 4), (4, 2, 1), (4, 64, 1 / 16), (3, 8, 1 / 3)]
)
def test_the_jobs_of_a_time_share_the_gpus(gpus, workers, share):
    assert gpu_share(gpus, workers) == share
    assert share == 0 or gpus // share >= workers
