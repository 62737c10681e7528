"""Head: a secret head on a public backbone."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import relumine as rl
from relumine.cli import app

SHAPE, FEATURES = (1, 8, 8), 24


def backbone(seed=0, dtype=torch.float32, features=FEATURES):
    """Two convolutions and an average: some of its features are off at some inputs."""
    torch.manual_seed(seed)
    parts = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, features, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(dtype)


def behind(phi, head, **offer):
    return rl.TorchOracle(nn.Sequential(phi, head), SHAPE, **offer)


def linear(outputs, dtype=torch.float32, seed=100):
    torch.manual_seed(seed)
    return nn.Linear(FEATURES, outputs).to(dtype)


def perceptron(phi, sizes, seed, dtype=torch.float32):
    """Hidden layers whose units are on at about half of N(0, I)."""
    torch.manual_seed(seed)
    features = phi(torch.randn(200, *SHAPE, dtype=dtype)).detach()
    layers = []
    for before, after in zip((features.shape[1], *sizes), sizes, strict=False):
        layer = nn.Linear(before, after).to(dtype)
        with torch.no_grad():
            layer.weight /= (features @ layer.weight.T).std(0)[:, None]
            layer.bias.copy_(0.5 * torch.randn(after) - (features @ layer.weight.T).mean(0))
            features = layer(features).relu()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 5).to(dtype))


def up_to_a_common_row(weights, values):
    return weights - weights.mean(axis=0) if values == "probabilities" and len(weights) > 1 else weights


@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_linear_head_falls_to_one_gradient_query(dtype, outputs, values):
    for seed in range(3):
        phi, head = backbone(seed, dtype), linear(outputs, dtype, seed + 100)
        inputs = np.random.default_rng(seed).standard_normal((300, 64))
        result = rl.Head(phi, inputs=inputs[:250])(behind(phi, head, values=values), rng=seed)
        assert result.outcome is rl.Outcome.RECOVERED
        assert result.spent.gradient_queries == 1
        truth = up_to_a_common_row(head.weight.detach().numpy(), values)
        found = up_to_a_common_row(result.parameters["layers.0.weight"], values)
        features = rl.TorchOracle(phi, SHAPE, values="real")(inputs[:200], gradients=False).values
        often = (features > 0).sum(axis=0) > 2
        assert often.sum() > FEATURES / 2
        assert np.abs(found - truth)[:, often].max() < 1e-4 * np.abs(truth).max()
        answers = behind(phi, head, values=values)(inputs[250:], gradients=False).values
        assert np.abs(result.predict(inputs[250:]) - answers).max() < 1e-5


def test_inputs_are_made_up_where_none_are_given():
    phi, head = backbone(), linear(5)
    result = rl.Head(phi)(behind(phi, head), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    fresh = np.random.default_rng(1).standard_normal((500, 64))
    missed = np.abs(result.predict(fresh) - behind(phi, head)(fresh, gradients=False).values).max(axis=1)
    assert np.mean(missed < 1e-5) > 0.98


@pytest.mark.parametrize("gradients", ["top", 1])
@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_a_linear_head_of_which_one_output_is_explained(values, gradients):
    for seed in range(3):
        phi, head = backbone(seed), linear(5, seed=seed + 100)
        oracle = behind(phi, head, values=values, gradients=gradients)
        result = rl.Head(phi)(oracle, rng=seed)
        assert result.outcome is rl.Outcome.RECOVERED
        fresh = np.random.default_rng(seed).standard_normal((50, 64))
        assert np.abs(result.predict(fresh) - oracle(fresh, gradients=False).values).max() < 1e-3


def rarely_on(phi, seed, units=3):
    """A hidden layer of 12 units, of which some are on at one input in forty."""
    head = perceptron(phi, (12,), seed)
    torch.manual_seed(seed)
    features = phi(torch.randn(2000, *SHAPE)).detach()
    with torch.no_grad():
        head[0].bias[:units] -= torch.quantile(head[0](features)[:, :units], 1 - 1 / 40, dim=0)
        head[2].weight[:, :units] *= 10
    return head


def test_units_that_are_rarely_on_are_found_or_missed_in_words():
    recovered = []
    for seed in range(6):
        phi = backbone(seed, features=48)
        oracle = behind(phi, rarely_on(phi, seed))
        inputs = np.random.default_rng(seed).standard_normal((400, 64))
        result = rl.Head(phi, inputs=inputs)(oracle, rng=seed)
        if result.outcome is rl.Outcome.RECOVERED:
            truth = oracle(inputs, gradients=False).values
            recovered.append(np.abs(result.predict(inputs) - truth).max() / np.abs(truth).max())
    assert len(recovered) >= 2
    assert max(recovered) < 1e-2


@pytest.mark.parametrize("values", ["logits", "probabilities"])
@pytest.mark.parametrize("seed", [1, 2])
def test_one_hidden_layer_falls_to_a_few_ordinary_inputs(seed, values):
    phi = backbone(seed, features=48)
    oracle = behind(phi, perceptron(phi, (16,), seed), values=values)
    inputs = np.random.default_rng(seed).standard_normal((700, 64))
    result = rl.Head(phi, inputs=inputs[:300])(oracle, rng=seed)
    assert result.outcome is rl.Outcome.RECOVERED
    assert result.hidden == (16,)
    assert result.spent.gradient_queries <= 30
    truth, said = oracle(inputs[300:], gradients=False).values, result.predict(inputs[300:])
    missed = np.abs(said - truth).max(axis=1) / np.abs(truth).max()
    assert np.mean(missed < 1e-4) > 0.98  # some input may have a feature on that is off at all 300
    assert np.mean(said.argmax(axis=1) == truth.argmax(axis=1)) > 0.995


def test_a_deeper_head_gets_a_student_that_is_not_called_recovered():
    phi = backbone(1, features=48)
    oracle = behind(phi, perceptron(phi, (12, 8), 1))
    inputs = np.random.default_rng(0).standard_normal((600, 64))
    result = rl.Head(phi, inputs=inputs[:300], queries=60)(oracle, rng=0)
    assert result.outcome is rl.Outcome.FITTED
    assert result.spent.gradient_queries <= 60
    truth, said = oracle(inputs[300:], gradients=False).values, result.predict(inputs[300:])
    assert np.mean(said.argmax(axis=1) == truth.argmax(axis=1)) > 0.75
    assert np.abs(result.to_torch()(torch.tensor(inputs[300:])).detach().numpy() - said).max() < 1e-5


def test_a_hidden_layer_of_which_one_output_is_explained_is_refused_after_a_few_queries():
    phi = backbone(1, features=48)
    result = rl.Head(phi)(behind(phi, perceptron(phi, (12,), 1), gradients="top"), rng=0)
    assert result.outcome is rl.Outcome.NOT_THIS_CLASS
    assert "two outputs or more" in result.evidence.remark


def test_a_budget_that_ends_is_an_outcome():
    phi = backbone(1, features=48)
    oracle = behind(phi, perceptron(phi, (16,), 1))
    for budget in (1, 30, 60):
        result = rl.Head(phi)(rl.Metered(oracle, budget=budget), rng=0)
        assert result.outcome is rl.Outcome.BUDGET_EXHAUSTED
        assert result.spent.queries <= budget


def test_a_backbone_that_is_not_the_targets_is_told_from_one_gradient():
    oracle = behind(backbone(0), linear(5))
    result = rl.Head(backbone(1))(oracle, rng=0)
    assert result.outcome is rl.Outcome.NOT_THIS_CLASS
    assert "cannot have passed through this backbone" in result.evidence.remark
    assert result.clone is None
    assert result.spent.queries == 1


def test_a_backbone_may_be_any_oracle_of_features():
    rng = np.random.default_rng(0)
    A, W, b = rng.standard_normal((6, 20)), rng.standard_normal((3, 6)), rng.standard_normal(3)

    def features(x, gradients):
        return np.tanh(x @ A.T), (1 - np.tanh(x @ A.T) ** 2)[:, :, None] * A if gradients else None

    def target(x, gradients):
        phi, jacobian = features(x, gradients)
        return phi @ W.T + b, W @ jacobian if gradients else None

    phi = rl.FunctionOracle(features, rl.Offer(inputs=(20,), outputs=6))
    result = rl.Head(phi)(rl.FunctionOracle(target, rl.Offer(inputs=(20,), outputs=3, values="logits")), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    assert np.abs(result.parameters["layers.0.weight"] - W).max() < 1e-9
    with pytest.raises(rl.MisuseError, match=r"clone\.head"):
        result.to_torch()


def test_the_clone_is_backbone_and_head(tmp_path):
    phi, head = backbone(), linear(5)
    oracle = behind(phi, head)
    result = rl.Head(phi)(oracle, rng=0)
    fresh = np.random.default_rng(1).standard_normal((7, 64))
    truth = oracle(fresh, gradients=False).values
    shaped = fresh.reshape(-1, *SHAPE).astype(np.float32)
    assert np.abs(result.to_torch()(torch.tensor(shaped)).detach().numpy() - truth).max() < 1e-5
    session = onnxruntime.InferenceSession(result.save(tmp_path / "clone.onnx"))
    (said,) = session.run(None, {"input": shaped})
    assert np.abs(said - truth).max() < 1e-5
    names = set(load_file(result.save(tmp_path / "clone.safetensors")))
    assert any(name.startswith("backbone.") for name in names)
    assert any(name.startswith("head.") for name in names)


def test_misuse_is_said_before_anything_is_asked():
    phi = backbone()
    with pytest.raises(rl.MisuseError, match="needs values and gradients"):
        rl.Head(phi)(behind(phi, linear(3), gradients="none"))
    with pytest.raises(rl.MisuseError, match="cannot take float32 inputs"):
        rl.Head(nn.Linear(10, 3))(behind(phi, linear(3)))
    with pytest.raises(rl.MisuseError, match="expected a torch module, or an oracle"):
        rl.Head(lambda x: x)(behind(phi, linear(3)))
    features = rl.FunctionOracle(lambda x, _: (x, None), rl.Offer(inputs=(10,), outputs=10))
    with pytest.raises(rl.MisuseError, match="inputs of 64 numbers"):
        rl.Head(features)(behind(phi, linear(3)))
    with pytest.raises(rl.MisuseError, match="points"):
        rl.Head(phi, points=0)
    with pytest.raises(rl.MisuseError, match="queries"):
        rl.Head(phi, queries=0)


# -- the commands


@pytest.fixture
def exported(tmp_path):
    """A target and its backbone as files, and inputs."""
    phi, head = backbone(1), linear(5)
    with torch.no_grad():  # all classes are met
        head.weight *= 20
        head.bias -= head(phi(torch.randn(100, *SHAPE))).mean(0)
    target = nn.Sequential(phi, head).eval()
    example, batch = torch.zeros(2, *SHAPE), torch.export.Dim("batch")
    for name, module in (("target", target), ("backbone", phi.eval()), ("other", backbone(2).eval())):
        torch.export.save(
            torch.export.export(module, (example,), dynamic_shapes=({0: batch},)), tmp_path / f"{name}.pt2"
        )
    np.savez(tmp_path / "data.npz", inputs=np.random.default_rng(0).standard_normal((300, *SHAPE)).astype(np.float32))
    return tmp_path


def said(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_reconstruct_takes_a_backbone(exported):
    clone = exported / "clone.onnx"
    words = ("reconstruct", exported / "target.pt2", "--data", exported / "data.npz", "--json", "--output", clone)
    done = said(*words, "--backbone", exported / "backbone.pt2")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["outcome"] == "RECOVERED"
    assert found["spent"]["gradient_queries"] == 1
    assert clone.exists()
    other = said(*words, "--backbone", exported / "other.pt2")
    assert other.exit_code == 3
    assert "cannot have passed through this backbone" in json.loads(other.stdout)["evidence"]["remark"]


def test_what_is_wrong_with_a_backbone_is_said(exported):
    target = exported / "target.pt2"
    assert "no other --method" in said("reconstruct", target, "--backbone", target, "--method", "deep").output
    assert "--backbone" in said("reconstruct", target, "--backbone", exported / "nothing.pt2").output
    assert "--backbone" in said("reconstruct", target, "--backbone", "http://127.0.0.1:1/v1/models/m").output


def test_an_audit_says_what_a_public_backbone_gives_away(exported):
    levels = ("label", "backbone-gradients")
    target, data, named = (str(exported / name) for name in ("target.pt2", "data.npz", "backbone.pt2"))
    result = rl.audit(target, data, levels=levels, backbone=named, budget=100, seeds=1, progress=False)
    (curve,) = (curve for curve in result.curves if curve.level == "backbone-gradients")
    assert curve.label == "gradients (if your backbone is public)"
    assert curve.need("exact").queries.mean == 1
    with pytest.raises(rl.MisuseError, match="backbone-gradients"):
        rl.audit(target, data, levels=("backbone-gradients",), budget=10, seeds=1, progress=False)
