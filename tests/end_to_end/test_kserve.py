"""A real KServe server with a Captum explainer, started on loopback: the network is reconstructed through HTTP."""

import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import relumine as rl
from problems import Problem, error, two_layer
from servers import kserve


@pytest.fixture(scope="module", params=["float64", "float32"])
def problem(request) -> Problem:
    return two_layer(784, 64, 10, dtype=request.param, seed=4)


@pytest.fixture(scope="module")
def url(problem, tmp_path_factory):
    with kserve(problem, tmp_path_factory.mktemp("kserve")) as address:
        yield address


def test_a_network_behind_kserve_is_recovered_for_hardly_more_than_here(problem, url, tmp_path):
    with rl.HttpOracle(url, offer=problem.offer, run=tmp_path) as oracle:
        remote = rl.TwoLayer()(oracle, rng=0)
        assert oracle.traffic.repeated == 0
    assert remote.outcome is rl.Outcome.RECOVERED
    assert remote.hidden == (64,)
    assert error(remote, problem) <= {"float64": 1e-9, "float32": 1e-4}[problem.dtype]
    local = rl.TwoLayer()(problem.oracle, rng=0)
    assert remote.spent.queries <= 1.2 * local.spent.queries


def test_the_open_inference_protocol_gives_the_same_numbers(problem, url, tmp_path):
    x = np.random.default_rng(0).standard_normal((3, 784))
    answers = []
    for address in (url, url.replace("/v1/", "/v2/")):
        with rl.HttpOracle(address, offer=problem.offer, run=tmp_path) as oracle:
            answers.append((oracle(x, gradients=False).values, oracle(x, gradients=True).jacobians))
    assert all(np.array_equal(first, second) for first, second in zip(*answers, strict=True))


def test_a_connection_that_kserve_closed_after_an_error_does_no_harm(problem, url, tmp_path):
    x = np.random.default_rng(0).standard_normal((3, 784))
    with rl.HttpOracle(url, offer=problem.offer, run=tmp_path) as oracle:
        first = oracle(x, gradients=False)
        assert httpx.post(f"{url}:predict", json={"nonsense": 1}).status_code == 500
        assert np.array_equal(oracle(x, gradients=False).values, first.values)


def test_a_model_that_is_not_there_is_said_with_the_server_s_words(problem, url, tmp_path):
    with (
        rl.HttpOracle(url + "work", offer=problem.offer, run=tmp_path) as oracle,
        pytest.raises(rl.OracleFailedError, match=r"got 404 .*network.* does not exist.*check the model's name"),
    ):
        oracle(np.ones((1, 784)), gradients=False)
