"""What is exported predicts the same as ``predict``."""

import os
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open

import relumine as rl
from relumine.reconstruct.activation import NAMES, RELU, Activation
from relumine.reconstruct.export import check_writable, load

SHAPES = {
    "plain": {"hidden": (7,)},
    "linear": {"hidden": ()},
    "skip": {"hidden": (7,), "skip": True},
    "deep": {"hidden": (7, 5)},
    "softmax": {"hidden": (7,), "values": "probabilities"},
    "sigmoid": {"hidden": (7,), "values": "probabilities", "outputs": 1, "skip": True},
    **{f"of {name}": {"hidden": (7, 5), "activation": Activation(name)} for name in NAMES if name != "tabulated"},
    "a slope per unit": {"activation": Activation("leaky_relu", np.linspace(-0.5, 0.9, 7))},
    "a table per unit": {"activation": Activation("tabulated", table=np.random.default_rng(2).normal(size=(7, 4, 3)))},
}


def make_network(hidden=(7,), outputs=3, skip=False, values="logits", inputs=(1, 3, 4), activation=RELU) -> rl.Network:
    rng = np.random.default_rng(0)
    sizes = [int(np.prod(inputs)), *hidden, outputs]
    return rl.Network(
        weights=tuple(rng.standard_normal((n, m)) for m, n in pairwise(sizes)),
        biases=tuple(rng.standard_normal(n) for n in sizes[1:]),
        inputs=inputs,
        skip=rng.standard_normal((outputs, sizes[0])) if skip else None,
        values=values,
        activation=activation,
    )


@pytest.fixture(params=SHAPES)
def network(request: pytest.FixtureRequest) -> rl.Network:
    return make_network(**SHAPES[request.param])


@pytest.fixture
def points() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((100, 12))


def test_torch_module_predicts_the_same_for_flat_and_for_shaped_inputs(network, points):
    module = network.to_torch()
    for inputs in (points, points.reshape(-1, 1, 3, 4)):
        answers = module(torch.tensor(inputs)).detach().numpy()
        np.testing.assert_allclose(answers, network.predict(points), rtol=1e-12, atol=1e-12)


def test_torch_module_names_its_parameters_as_the_network_does(network):
    assert set(network.to_torch().state_dict()) == set(network.parameters)


def test_onnx_predicts_the_same(network, points, tmp_path):
    session = onnxruntime.InferenceSession(network.save(tmp_path / "clone.onnx"), providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {"input": points.reshape(-1, 1, 3, 4)})
    np.testing.assert_allclose(answers, network.predict(points), rtol=1e-12, atol=1e-12)


def test_safetensors_round_trip_is_exact(network, points, tmp_path):
    again = load(network.save(tmp_path / "clone.safetensors"))
    assert (again.inputs, again.values, again.hidden) == (network.inputs, network.values, network.hidden)
    assert str(again.activation) == str(network.activation)
    np.testing.assert_array_equal(again.predict(points), network.predict(points))


def test_safetensors_says_which_version_wrote_it(tmp_path):
    path = make_network().save(tmp_path / "clone.safetensors")
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["relumine.version"] == rl.__version__


def test_a_torch_module_takes_the_weights_of_a_safetensors_file(points, tmp_path):
    from safetensors.torch import load_file

    network = make_network(skip=True)
    module = make_network(skip=True).to_torch()
    module.load_state_dict(load_file(network.save(tmp_path / "clone.safetensors")))
    np.testing.assert_allclose(module(torch.tensor(points)).detach().numpy(), network.predict(points), rtol=1e-12)


def test_missing_folders_are_made(tmp_path):
    assert make_network().save(tmp_path / "new" / "folder" / "clone.onnx").exists()


def test_another_ending_is_refused_with_the_two_known_ones(tmp_path):
    with pytest.raises(rl.MisuseError, match=r"\.safetensors or \.onnx, got .*clone\.pkl"):
        make_network().save(tmp_path / "clone.pkl")


@pytest.mark.parametrize("writing", [lambda path: make_network().save(path), check_writable])
def test_an_unwritable_place_is_said_plainly(tmp_path, writing):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.onnx").mkdir()
    for path in (tmp_path / "file" / "clone.safetensors", tmp_path / "folder.onnx"):
        with pytest.raises(rl.MisuseError, match=f"cannot write {path}"):
            writing(path)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = make_network().save(tmp_path / "clone.safetensors")
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(rl.MisuseError, match="No space left"):
        make_network(outputs=5).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_onnx_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(rl.MisuseError, match=r"pip install 'relumine\[onnx\]'"):
        make_network().save(tmp_path / "clone.onnx")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x00" * 100])
def test_loading_a_broken_file_says_so(tmp_path, content):
    path = Path(tmp_path / "broken.safetensors")
    path.write_bytes(content)
    with pytest.raises(rl.TargetError, match=r"broken\.safetensors: expected a \.safetensors file"):
        load(path)


def test_loading_another_s_weights_says_that_a_factory_is_needed(tmp_path):
    from safetensors.numpy import save_file

    save_file({"fc.weight": np.zeros((2, 2))}, tmp_path / "other.safetensors")
    with pytest.raises(rl.TargetError, match="--factory"):
        load(tmp_path / "other.safetensors")
