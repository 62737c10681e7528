"""Averaged against noise, and DecoyQueries against a watch."""

import numpy as np
import pytest

import relumine as rl
from problems import two_layer
from relumine import defend

D = 6


def noisy(sigma: float, repeat: str) -> rl.Oracle:
    return defend.GaussianNoise(two_layer(D, 9, 3).oracle, sigma, repeat=repeat, rng=0)


def off(oracle: rl.Oracle, n: int = 40) -> tuple[float, float]:
    """Root mean square error of values and gradients at points inside cells."""
    x = np.random.default_rng(5).standard_normal((n, D))
    truth, answer = two_layer(D, 9, 3).oracle(x, gradients=True), oracle(x, gradients=True)
    pairs = ((answer.values, truth.values), (answer.jacobians, truth.jacobians))
    return tuple(float(np.sqrt(np.mean((a - b) ** 2))) for a, b in pairs)


@pytest.mark.parametrize(("repeat", "spread"), [("fresh", 0.0), ("consistent", 1e-6)])
def test_noise_falls_with_the_square_root(repeat, spread):
    for error in off(rl.Averaged(noisy(0.1, repeat), 100, spread=spread, rng=1)):
        assert 0.007 < error < 0.014


def test_asking_the_same_again_does_not_help_against_consistent_noise():
    assert min(off(rl.Averaged(noisy(0.1, "consistent"), 100))) > 0.08


def test_rounded_answers_show_how_far_they_can_be_trusted():
    answer = rl.Averaged(noisy(1e-3, "fresh"), 100, rounded=True)(np.ones((8, D)), gradients=True)
    for numbers in (answer.values, answer.jacobians):
        assert np.allclose(numbers, np.round(numbers, 3), atol=1e-12)
        assert not np.allclose(numbers, np.round(numbers, 2), atol=1e-12)


def test_neighbours_stay_inside_the_box():
    inside = rl.Averaged(defend.InputBox(noisy(0.1, "consistent"), 0, 1), 8, spread=0.01, rng=0)
    assert np.isfinite(inside(np.array([[0.0, 1.0, 0.5, 0.999, 0.001, 0.3]]), gradients=False).values).all()


def test_a_line_is_not_seen_among_other_rows():
    line = np.linspace(0, 1, 30)[:, None] * np.ones(D)
    watched = defend.LineWatch(two_layer(D, 9, 3).oracle, 3)
    with pytest.raises(rl.RefusedError):
        watched(line, gradients=True)
    unnoticed = defend.LineWatch(two_layer(D, 9, 3).oracle, 3)
    answer = rl.DecoyQueries(unnoticed, 64, rng=0)(line, gradients=True)
    assert not unnoticed.detected
    assert np.allclose(answer.values, two_layer(D, 9, 3).oracle(line, gradients=True).values)


def test_misuse():
    with pytest.raises(rl.MisuseError, match="at least twice"):
        rl.Averaged(noisy(0.1, "fresh"), 1)
    with pytest.raises(rl.MisuseError, match="at least 0"):
        rl.Averaged(noisy(0.1, "fresh"), 2, spread=-1)
    with pytest.raises(rl.MisuseError, match="at least 1 other"):
        rl.DecoyQueries(noisy(0.1, "fresh"), 0)
