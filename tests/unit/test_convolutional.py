"""Convolutional networks: recovered as a whole, or as far as it is sure."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn
from typer.testing import CliRunner

import relumine as rl
from relumine.audit.attacks import attacks_for
from relumine.cli import app
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork
from relumine.reconstruct.convolutional.layers import Front, Geometry, Layer, Stage
from relumine.targets import load_target

SHAPE = (1, 12, 12)


def made(seed: int) -> nn.Module:
    """Two convolutions with max-pools, one dense layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
            *(nn.Flatten(), nn.Linear(72, 10)),
        )
    return layers.double().eval()


def oracle_of(module: nn.Module, **offer: str) -> rl.TorchOracle:
    return rl.TorchOracle(module, input_shape=SHAPE, **{"gradients": "all", "values": "logits", **offer})


def fresh(count: int = 200) -> np.ndarray:
    return np.random.default_rng(9).standard_normal((count, 144))


def with_bias(layer: nn.Conv2d) -> np.ndarray:
    """Kernels and biases, scaled to length one: a channel's scale is free."""
    rows = np.hstack([layer.weight.detach().flatten(1).numpy(), layer.bias.detach().numpy()[:, None]])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("seed", [3, 5])
def test_what_is_proved_is_the_target_s(seed):
    module = made(seed)
    result = rl.Convolutional(made(77), steps=0)(oracle_of(module), rng=0)
    found = (result.proved or result).to_torch().features[0]
    cosines = with_bias(found) @ with_bias(module[0]).T
    assert cosines.shape == (3, 3)
    assert np.allclose(cosines.max(axis=0), 1, atol=1e-9)
    if result.outcome is rl.Outcome.RECOVERED:
        truth = oracle_of(module)(fresh(), gradients=False).values
        assert np.abs(result.predict(fresh()) - truth).max() < 1e-6


def test_a_network_is_recovered_with_its_layers(tmp_path):
    module = made(5)
    result = rl.Convolutional(made(77))(oracle_of(module), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED, result.evidence.remark
    assert result.hidden[:2] == (3, 8)
    truth = oracle_of(module)(fresh(), gradients=False).values
    np.testing.assert_allclose(result.predict(fresh()), truth, atol=1e-6)
    np.testing.assert_allclose(result.to_torch()(torch.from_numpy(fresh())).numpy(), truth, atol=1e-6)
    session = onnxruntime.InferenceSession(result.save(tmp_path / "clone.onnx"))
    (answer,) = session.run(None, {"input": fresh().reshape(-1, *SHAPE).astype(np.float32)})
    np.testing.assert_allclose(answer, truth, atol=1e-4)
    operators = {node.op_type for node in onnx.load(tmp_path / "clone.onnx").graph.node}
    assert operators >= {"Conv", "MaxPool", "Gemm"}
    saved = result.save(tmp_path / "clone.safetensors")
    again = load_target(str(saved))
    assert (again.offer.inputs, again.offer.values) == (SHAPE, "logits")
    np.testing.assert_allclose(again(fresh(), gradients=False).values, result.predict(fresh()), atol=1e-12)


def test_where_queries_end_a_student_starts_from_what_is_proved(tmp_path):
    module, inputs, better = made(5), fresh(400), []
    oracle = oracle_of(module)
    truth = oracle(inputs[150:], gradients=False).values
    result = rl.Convolutional(made(77), inputs=inputs[:150], limit=150)(oracle, rng=0)
    assert result.outcome is rl.Outcome.FITTED
    assert result.spent.gradient_queries == 150
    assert "starts from convolutional layer 1, proved" in result.evidence.remark
    found = result.proved.to_torch().features[0]
    assert np.allclose((with_bias(found) @ with_bias(module[0]).T).max(axis=0), 1, atol=1e-9)
    scratch = rl.GradientMatching(made(77).float(), 150, source=inputs[:150])(oracle, rng=0)
    for one in (result, scratch):
        better.append(np.square(one.predict(inputs[150:]) - truth).sum())
    assert better[0] < better[1] / 2
    again = load_target(str(result.save(tmp_path / "clone.safetensors")))
    np.testing.assert_allclose(again(inputs, gradients=False).values, result.predict(inputs), atol=1e-9)


LAYER = {"stride": [1, 1], "padding": [0, 0], "pool": None}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"inputs": [1, 12]}, "expected 3 numbers"),
        ({"inputs": [1, 10**6, 10**6]}, "absurdly large"),
        ({"inputs": [2, 12, 12]}, "behind 2 channels"),
        ({"layers": []}, "argument"),
        ({"layers": [LAYER | {"padding": [10**6, 10**6]}]}, "absurdly large"),
        ({"layers": [LAYER | {"stride": [0, 1]}]}, "at least 1"),
        ({"layers": [LAYER | {"pool": {"kind": "all"}}]}, "a pool of the kind 'all'"),
        ({"values": 3}, "values"),
    ],
)
def test_a_file_that_does_not_fit_its_layers_is_refused(changed, reason, tmp_path):
    layer = Layer(Geometry(Stage((3, 3)), (1, 12, 12)), np.ones((2, 9)), np.zeros(2))
    clone = ConvolutionalNetwork(Front((1, 12, 12), (layer,)), (np.ones((3, 200)),), (np.zeros(3),), values="logits")
    path = clone.save(tmp_path / "clone.safetensors")
    assert load_target(str(path)).offer.outputs == 3
    about = {"inputs": [1, 12, 12], "values": "logits", "layers": [LAYER]} | changed
    save_file(dict(clone.parameters), path, {"relumine.convolutional": json.dumps(about)})
    with pytest.raises(rl.TargetError, match=reason):
        load_target(str(path))


def test_misuse_is_named():
    with pytest.raises(rl.MisuseError, match="gradients of all outputs"):
        rl.Convolutional(made(0))(oracle_of(made(0), gradients="top"))
    with pytest.raises(rl.MisuseError, match="limit"):
        rl.Convolutional(made(0), limit=1)
    with pytest.raises(rl.MisuseError, match="plain convolutions"):
        rl.Convolutional(nn.Sequential(nn.Conv2d(1, 3, 3, dilation=2)))(oracle_of(made(0)))
    flat = rl.FunctionOracle(lambda x, gradients: None, rl.Offer(inputs=(9,), outputs=3, values="logits"))
    with pytest.raises(rl.MisuseError):
        rl.Convolutional(made(0))(flat)


def test_a_hidden_layer_behind_features_that_are_often_off_is_recovered():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        layers = nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(108, 12), nn.ReLU(), nn.Linear(12, 10)),
        )
    module = layers.double().eval()
    result = rl.Convolutional(module)(oracle_of(module), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED, result.evidence.remark
    assert result.hidden == (3, 12)
    truth = oracle_of(module)(fresh(), gradients=False).values
    np.testing.assert_allclose(result.predict(fresh()), truth, atol=1e-6)


def of_one_layer(seed: int, **convolution: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 3, 3, **convolution), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(10)]
        module = nn.Sequential(*layers).double().eval()
        module(torch.zeros(1, *SHAPE, dtype=torch.float64))
    return module


@pytest.mark.parametrize("convolution", [{"padding": 1}, {}])
def test_an_unknown_architecture_is_told(convolution):
    module = of_one_layer(1, **convolution)
    result = rl.Convolutional()(oracle_of(module), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED, result.evidence.remark
    first, _, pool = result.to_torch().features[:3]
    assert (first.kernel_size, first.padding, pool.kernel_size) == ((3, 3), module[0].padding, (2, 2))
    truth = oracle_of(module)(fresh(), gradients=False).values
    np.testing.assert_allclose(result.predict(fresh()), truth, atol=1e-6)


def test_auto_tells_images_apart_from_rows():
    images = rl.Auto()(oracle_of(of_one_layer(2, padding=1)), rng=0)
    assert images.outcome is rl.Outcome.RECOVERED
    assert any(phase.startswith("convolutions: ") for phase in images.spent.phases)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(144, 12), nn.ReLU(), nn.Linear(12, 10)).double()
    rows = rl.Auto()(oracle_of(layers), rng=0)
    assert rows.outcome is rl.Outcome.RECOVERED
    assert rows.hidden == (12,)
    asked = sum(n.gradient_queries for phase, n in rows.spent.phases.items() if phase.startswith("convolutions: "))
    assert 0 < asked < 20


def test_one_command_writes_the_layers(tmp_path):
    written = tmp_path / "clone.onnx"
    export = {"input_names": ["input"], "dynamic_axes": {"input": {0: "batch"}}, "dynamo": False}
    torch.onnx.export(of_one_layer(3, padding=1).float(), (torch.zeros(2, *SHAPE),), tmp_path / "model.onnx", **export)
    told = ["--method", "convolutional", "--architecture", str(tmp_path / "model.onnx")]
    for options in ([], told):
        result = CliRunner().invoke(app, ["reconstruct", str(tmp_path / "model.onnx"), "-o", str(written), *options])
        assert result.exit_code == 0, result.output
        assert {node.op_type for node in onnx.load(written).graph.node} >= {"Conv", "MaxPool", "Gemm"}
        written.unlink()
    result = CliRunner().invoke(app, ["reconstruct", str(tmp_path / "model.onnx"), *told[2:]])
    assert result.exit_code == 2
    assert "--architecture belongs to --method convolutional" in result.output


def test_the_audit_attacks_images():
    oracle = oracle_of(of_one_layer(1, padding=1))
    (attack,) = (one for one in attacks_for("gradients", oracle.offer) if one.key.name == "exact, convolutional")
    images = fresh().reshape(-1, *SHAPE)
    assert attack(Metered(oracle, budget=500), 500, 0, images).outcome is rl.Outcome.RECOVERED
    few = attack(Metered(oracle, budget=10), 10, 0, images)
    assert few.outcome is rl.Outcome.BUDGET_EXHAUSTED
