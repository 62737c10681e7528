"""Maps compared by the spectrum of the asked pictures."""

import numpy as np
import pytest
import torch

import relumine as rl
from problems import two_layer
from relumine import explain, zoo
from relumine.reconstruct.matching_shown import Shown
from relumine.reconstruct.matching_spectrum import Spectrum


def smooth(count: int, seed: int = 0) -> torch.Tensor:
    coarse = torch.randn(count, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=8, mode="bilinear")


def wave(times: int) -> torch.Tensor:
    """A map of length one that goes up and down so many times."""
    across = torch.cos(2 * torch.pi * times * torch.arange(8) / 8).expand(1, 1, 8, 8)
    return across / across.norm()


def test_what_pictures_differ_in_counts_most():
    seen = Spectrum.of(smooth(200))
    sizes = [float(seen(wave(times)).norm()) for times in range(5)]
    assert sizes[0] > sizes[1] > max(sizes[2:])
    assert sizes[0] > 5 * max(sizes[2:])


def test_it_weighs_a_difference_by_what_it_does_to_pictures():
    pictures = smooth(4000)
    pictures = pictures - pictures.mean((0, 2, 3), keepdim=True)
    seen = Spectrum.of(pictures)
    flat, fine = wave(0), wave(2)
    effect = [float((pictures * each).sum((2, 3)).square().mean()) for each in (flat, fine)]
    weight = [float(seen(each).square().sum()) for each in (flat, fine)]
    # Smooth pictures are not quite the same everywhere, so that one spectrum does not tell all about them.
    assert weight[0] / weight[1] == pytest.approx(effect[0] / effect[1], rel=0.7)


def test_of_white_noise_all_frequencies_count_alike():
    seen = Spectrum.of(torch.randn(2000, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    maps = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(seen(maps).square().sum(), maps.square().sum(), rtol=0.05)


@pytest.mark.parametrize("pictures", [torch.zeros(1, 1, 4, 4), torch.ones(3, 2, 4, 4), smooth(1)])
def test_few_or_equal_pictures_leave_something_of_every_frequency(pictures):
    assert (Spectrum.of(pictures).amplitude > 0).all()
    assert torch.isfinite(Spectrum.of(pictures).amplitude).all()


def test_a_student_learns_by_it():
    split = zoo.dataset("digits").split(seed=0)
    target = zoo.trained("linear", split).module
    oracle = explain.ExplainedOracle(target, explain.Gradient(), split.shape)
    method = rl.GradientMatching(
        lambda seed: zoo.network("linear", split.shape, 10, seed),
        20,
        source=split.pool,
        compared_by="spectrum",
        steps=300,
        learning_rate=0.3,
    )
    rows = split.test.inputs.reshape(len(split.test), -1)
    guessed = method(oracle, rng=0).predict(rows).argmax(1)
    assert (guessed == oracle(rows, gradients=False).values.argmax(1)).mean() > 0.97


def test_only_whole_maps_of_pictures_have_a_spectrum():
    student = torch.nn.Linear(12, 3)
    with pytest.raises(rl.MisuseError, match="expected pictures as inputs"):
        rl.GradientMatching(student, 5, compared_by="spectrum")(two_layer(12, 9, 3).oracle, rng=0)
    with pytest.raises(rl.MisuseError, match="have no spectrum"):
        rl.GradientMatching(student, 5, compared_by="spectrum", shown=Shown(signs=True))
    with pytest.raises(rl.MisuseError, match="compared_by"):
        rl.GradientMatching(student, 5, compared_by="edges")


def test_values_alone_need_no_pictures():
    method = rl.GradientMatching(torch.nn.Linear(12, 3), 5, loss="membership", compared_by="spectrum", steps=2)
    assert method(two_layer(12, 9, 3).oracle, rng=0).outcome is rl.Outcome.FITTED
    assert np.isfinite(method(two_layer(12, 9, 3).oracle, rng=0).predict(np.zeros((1, 12)))).all()


def test_answers_are_seen_as_maps_are_however_many():
    seen = Spectrum.of(smooth(20))
    maps = torch.randn(600, 2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    alike, size = seen.of_answers(maps.clone())
    assert torch.allclose(alike, seen(maps), atol=1e-6)
    assert size == pytest.approx(float(alike.square().sum() / 1200), rel=1e-5)
