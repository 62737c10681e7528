"""Targets that no exact method fits end soon: within a bounded number of queries, and with an outcome that says so."""

import numpy as np
import pytest

import relumine as rl
from problems import Capped, two_layer

d, K = 8, 2
MOST = 3000


def oracle(query, most=MOST):
    return Capped(rl.FunctionOracle(query, rl.Offer((d,), K, values="real")), most)


def sharp_softplus(seed: int, sharpness: float):
    rng = np.random.default_rng(seed)
    A, W = rng.standard_normal((6, d)) / np.sqrt(d), rng.standard_normal((K, 6))

    def query(x, gradients):
        z = x @ A.T
        slopes = 0.5 * (1 + np.tanh(sharpness * z / 2))
        return np.logaddexp(0, sharpness * z) / sharpness @ W.T, np.einsum("ki,ni,ij->nkj", W, slopes, A)

    return oracle(query)


def tiny_curvature(seed: int, much: float):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((K, d))

    def query(x, gradients):
        z = x @ A.T
        return z + z**2 / much, (1 + 2 * z / much)[:, :, None] * A

    return oracle(query)


def clipped_inputs(seed: int, limit: float):
    problem = two_layer(d, 6, K, seed=seed)

    def query(x, gradients):
        inside = np.clip(x, -limit, limit)
        return problem.predict(inside), problem.jacobian(inside) * (np.abs(x) < limit)[:, None]

    return oracle(query)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sharpness", [3e2, 3e3, 1e4])
def test_sharp_softplus_units_are_told_from_kinks(seed, sharpness):
    target = sharp_softplus(seed, sharpness)
    result = rl.Auto()(target, rng=seed)
    assert result.outcome is not rl.Outcome.RECOVERED or result.activation == "softplus"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("much", [1e3, 1e6, 1e9])
def test_a_tiny_curvature_ends_the_search(seed, much):
    assert rl.Auto()(tiny_curvature(seed, much), rng=seed).outcome is not rl.Outcome.RECOVERED


@pytest.mark.parametrize("limit", [0.5, 2.0])
def test_clipped_inputs_end_the_search_in_time(limit):
    target = clipped_inputs(0, limit)
    result = rl.Deep(limit=1500, seconds=2)(target, rng=0)
    assert result.outcome is not rl.Outcome.RECOVERED or np.allclose(
        result.predict(np.ones((1, d))), target(np.ones((1, d)), gradients=False).values
    )


def test_time_is_an_outcome():
    result = rl.Deep(seconds=1e-6)(two_layer(8, 4, 2).oracle, rng=0)
    assert result.outcome is rl.Outcome.INCOMPLETE
    assert "raise `seconds`" in result.evidence.remark
