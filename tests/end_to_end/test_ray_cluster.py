"""A Ray cluster that was there before, with a GPU in name: jobs share it, and outlive the workers that ran them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from relumine.jobs.engines import RayCluster


def survivor(argument: tuple[str, int]) -> tuple[int, str]:
    """Says how often it was started, and which GPU it was given; its worker dies the first ``deaths`` times."""
    folder, deaths = argument
    tries = Path(folder) / f"{deaths}"
    with tries.open("a") as file:
        file.write("x")
    if len(tries.read_text()) <= deaths:
        os._exit(1)
    return len(tries.read_text()), os.environ.get("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def address(monkeypatch) -> Iterator[str]:
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))  # where its workers find ``survivor``
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False})
    yield made.address
    made.shutdown()


def test_jobs_share_the_gpu_and_are_started_again_where_a_worker_dies(address, tmp_path):
    with RayCluster(address=address) as engine:
        assert (engine.workers, engine.shares_files) == (2, False)
        found = dict(engine.run(survivor, [(str(tmp_path), 0), (str(tmp_path), 1)]))
    assert found == {(str(tmp_path), 0): (1, "0"), (str(tmp_path), 1): (2, "0")}
