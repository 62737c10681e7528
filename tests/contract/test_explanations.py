"""What every explanation promises: its shape, its cost, answers known in closed form, randomness as an argument."""

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

import relumine as rl
from relumine import explain
from relumine.oracle.base import Oracle

METHODS = [
    explain.Gradient(),
    explain.AbsoluteGradient(),
    explain.InputTimesGradient(),
    explain.SmoothGrad(sigma=0.3, samples=4),
    explain.IntegratedGradients(steps=7, baseline=0.25),
]
SHAPE, OUTPUTS = (2, 3, 3), 5
DIMENSION = 18

every_method = pytest.mark.parametrize("method", METHODS, ids=repr)
every_class = pytest.mark.parametrize("classes", ["all", "top", 3])
every_kind = pytest.mark.parametrize("of", ["real", "logits", "probabilities", "log-probabilities"])


def linear(seed=0):
    """W x + b, and W."""
    torch.manual_seed(seed)
    layer = nn.Linear(DIMENSION, OUTPUTS).double()
    return nn.Sequential(nn.Flatten(), layer), layer.weight.detach().numpy()


def curved(outputs=OUTPUTS, dtype=torch.float64):
    """A smooth network: every derivative that a student's loss needs is there and is not zero."""
    torch.manual_seed(1)
    layers = nn.Flatten(), nn.Linear(DIMENSION, 8), nn.Tanh(), nn.Linear(8, outputs)
    return nn.Sequential(*layers).to(dtype)


def inputs(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, DIMENSION))


def tensor(rows):
    return torch.from_numpy(rows.reshape(-1, *SHAPE))


@every_method
@every_class
@every_kind
def test_answers_keep_the_promise_of_the_offer(method, classes, of):
    oracle = explain.ExplainedOracle(curved(), method, SHAPE, classes=classes, of=of, rng=0)
    assert isinstance(oracle, Oracle)
    answer = rl.Metered(oracle)(inputs(4), gradients=True)
    assert answer.values.shape == (4, OUTPUTS)
    assert answer.jacobians.shape == (4, OUTPUTS if classes == "all" else 1, DIMENSION)
    assert oracle.offer.random == isinstance(method, explain.SmoothGrad)
    np.testing.assert_allclose(oracle(inputs(4), gradients=False).values, answer.values, rtol=1e-12)


@every_method
@every_class
def test_cost_is_what_hooks_count(method, classes):
    module, passed = curved(), {"forward": 0, "backward": 0}

    def count(_module, _inputs, output):
        passed["forward"] += len(output)
        if output.requires_grad:
            output.register_hook(lambda gradient: passed.update(backward=passed["backward"] + len(gradient)))

    module.register_forward_hook(count)
    oracle = explain.ExplainedOracle(module, method, SHAPE, classes=classes, rng=0)
    passed.update(forward=0, backward=0)
    answer = oracle(inputs(6), gradients=True)
    cost = method.cost(oracle.offer)
    assert passed == {"forward": 6 * cost.forward, "backward": 6 * cost.backward}
    assert answer.values.size + answer.jacobians.size == 6 * cost.floats


@every_method
def test_linear_models_have_known_answers(method):
    module, W = linear()
    x = inputs(3)
    maps = explain.ExplainedOracle(module, method, SHAPE, rng=0)(x, gradients=True).jacobians
    known = {
        "Gradient": np.broadcast_to(W, maps.shape),
        "SmoothGrad": np.broadcast_to(W, maps.shape),
        "AbsoluteGradient": np.broadcast_to(abs(W), maps.shape),
        "InputTimesGradient": x[:, None] * W,
        "IntegratedGradients": (x[:, None] - 0.25) * W,
    }
    np.testing.assert_allclose(maps, known[type(method).__name__], atol=1e-14)


def test_gradients_of_probabilities_and_their_logarithms_are_those_of_softmax():
    module, W = linear()
    x = inputs(3)
    ask = {
        of: explain.ExplainedOracle(module, explain.Gradient(), SHAPE, of=of)
        for of in ("probabilities", "log-probabilities")
    }
    p = ask["probabilities"](x, gradients=True)
    log_p = ask["log-probabilities"](x, gradients=True)
    centred = W - (p.values @ W)[:, None]
    np.testing.assert_allclose(log_p.values, np.log(p.values), atol=1e-13)
    np.testing.assert_allclose(log_p.jacobians, centred, atol=1e-13)
    np.testing.assert_allclose(p.jacobians, p.values[:, :, None] * centred, atol=1e-13)


def test_one_output_is_a_probability_through_the_sigmoid():
    x = inputs(3)
    logit = explain.ExplainedOracle(curved(1), explain.Gradient(), SHAPE)(x, gradients=True)
    p = explain.ExplainedOracle(curved(1), explain.Gradient(), SHAPE, of="probabilities")(x, gradients=True)
    np.testing.assert_allclose(p.values, 1 / (1 + np.exp(-logit.values)), rtol=1e-12)
    np.testing.assert_allclose(p.jacobians, (p.values * (1 - p.values))[:, :, None] * logit.jacobians, rtol=1e-10)


@every_method
@every_kind
def test_top_and_chosen_classes_are_rows_of_all(method, of):
    x = inputs(20)

    def ask(classes):
        return explain.ExplainedOracle(curved(), method, SHAPE, classes=classes, of=of, rng=7)(x, gradients=True)

    everything = ask("all")
    top = everything.values.argmax(1)
    assert len(set(top)) > 1
    np.testing.assert_allclose(ask("top").jacobians[:, 0], everything.jacobians[np.arange(20), top], atol=1e-14)
    np.testing.assert_allclose(ask(2).jacobians[:, 0], everything.jacobians[:, 2], atol=1e-14)


@every_method
def test_the_same_rng_gives_the_same_answers_however_they_are_batched(method):
    x = inputs(700)
    at_once = explain.ExplainedOracle(curved(), method, SHAPE, rng=5)(x, gradients=True).jacobians
    torch.manual_seed(99)
    oracle = explain.ExplainedOracle(curved(), method, SHAPE, rng=np.random.default_rng(5))
    in_parts = np.concatenate([oracle(part, gradients=True).jacobians for part in (x[:1], x[1:300], x[300:])])
    np.testing.assert_allclose(in_parts, at_once, rtol=1e-9, atol=1e-12)


@every_method
def test_maps_leave_the_global_generators_alone(method):
    module = curved()
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    method.maps(module, tensor(inputs(2)), rng=1)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_smoothgrad_is_random_and_its_noise_has_variance_sigma_squared():
    class HalfSquaredNorm(nn.Module):
        """Its gradient at x + z is x + z, so a map shows the mean of the noise."""

        def forward(self, x):
            return x.flatten(1).pow(2).sum(1, keepdim=True) / 2

    oracle = explain.ExplainedOracle(HalfSquaredNorm(), explain.SmoothGrad(sigma=3.0, samples=4), SHAPE, rng=0)
    x = inputs(1000)
    noise = oracle(x, gradients=True).jacobians[:, 0] - x
    again = oracle(x, gradients=True).jacobians[:, 0] - x
    assert noise.var() == pytest.approx(3.0**2 / 4, rel=0.05)
    assert abs(np.corrcoef(noise.ravel(), again.ravel())[0, 1]) < 0.05


@every_class
@pytest.mark.parametrize("of", ["logits", "probabilities"])
def test_raw_gradients_are_what_a_torch_oracle_answers(classes, of):
    explained = explain.ExplainedOracle(curved(), explain.Gradient(), SHAPE, classes=classes, of=of)
    plain = rl.TorchOracle(curved(), input_shape=SHAPE, gradients=classes, values=of)
    assert explained.offer == plain.offer
    one, other = explained(inputs(5), gradients=True), plain(inputs(5), gradients=True)
    np.testing.assert_allclose(one.values, other.values, atol=1e-12)
    np.testing.assert_allclose(one.jacobians, other.jacobians, atol=1e-12)


def test_integrated_gradients_are_complete():
    module, x = curved(), inputs(5)
    method = explain.IntegratedGradients(steps=40, baseline=-0.5)
    answer = explain.ExplainedOracle(module, method, SHAPE)(x, gradients=True)
    with torch.no_grad():
        start = module(torch.full((1, *SHAPE), -0.5, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(answer.jacobians.sum(2), answer.values - start, atol=1e-9)


CAPTUM = {
    explain.Gradient(): lambda module, x, k: captum.attr.Saliency(module).attribute(x, target=k, abs=False),
    explain.AbsoluteGradient(): lambda module, x, k: captum.attr.Saliency(module).attribute(x, target=k),
    explain.InputTimesGradient(): lambda module, x, k: captum.attr.InputXGradient(module).attribute(x, target=k),
    explain.IntegratedGradients(steps=7, baseline=0.25): lambda module, x, k: captum.attr.IntegratedGradients(
        module
    ).attribute(x, target=k, n_steps=7, baselines=0.25),
}


@pytest.mark.parametrize("method", CAPTUM, ids=repr)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_captum_gives_the_same_maps(method):
    module, x = curved(), tensor(inputs(4))
    maps = method.maps(module, x).maps
    for k in range(OUTPUTS):
        reference = CAPTUM[method](module, x.clone(), k)
        torch.testing.assert_close(maps[:, k], reference, rtol=1e-6, atol=1e-7)


def test_captum_smoothgrad_has_the_same_mean_and_spread():
    module, x = curved(), tensor(inputs(1))
    ours = explain.SmoothGrad(sigma=0.8, samples=10).maps(module, x.repeat(1000, 1, 1, 1), classes=2, rng=0).maps[:, 0]
    tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(module))
    torch.manual_seed(0)
    theirs = tunnel.attribute(x.repeat(1000, 1, 1, 1), nt_samples=10, stdevs=0.8, target=2, abs=False)
    spread = ours.std(0)
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * spread / 1000**0.5 * 2**0.5).all()
    torch.testing.assert_close(theirs.std(0), spread, rtol=0.15, atol=0)


@every_method
def test_a_student_can_be_trained_through_its_maps(method):
    """The parameter gradient of a loss on maps equals its finite difference."""
    student, x = curved(), tensor(inputs(3))
    weight = student[1].weight

    def loss(create_graph):
        explained = method.maps(student, x, create_graph=create_graph, rng=11)
        return explained.maps.square().sum() + explained.values.square().sum()

    loss(create_graph=True).backward()
    step, slope = 1e-6, weight.grad[2, 5].item()
    with torch.no_grad():
        weight[2, 5] += step
        above = loss(create_graph=False)
        weight[2, 5] -= 2 * step
        below = loss(create_graph=False)
    assert slope == pytest.approx(((above - below) / (2 * step)).item(), rel=1e-5)


@every_method
def test_linear_methods_and_only_those_commute_with_projections(method):
    module, x = curved(), tensor(inputs(6))
    directions = torch.from_numpy(np.random.default_rng(3).standard_normal((6, 2, OUTPUTS)))
    everything = method.maps(module, x, rng=4).maps
    projected = method.maps(module, x, classes=directions, rng=4).maps
    commutes = torch.allclose(projected, torch.einsum("nrk,nk...->nr...", directions, everything), atol=1e-12)
    assert commutes == method.linear


@every_method
def test_a_module_is_left_as_it_was(method):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(DIMENSION, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    oracle = explain.ExplainedOracle(module, method, SHAPE, rng=0)
    one = oracle(inputs(1), gradients=True).jacobians
    with torch.no_grad():
        assert module.training
        module[1].weight.zero_()  # the oracle answers for the module it was given, not for what becomes of it
    first_of_many = explain.ExplainedOracle(module, method, SHAPE, rng=0)
    np.testing.assert_array_equal(first_of_many(inputs(1), gradients=True).jacobians, 0)
    assert np.abs(one).max() > 0
    assert torch.equal(before["2.running_mean"], module[2].running_mean)


def test_float32_modules_answer_and_offer_float32():
    oracle = explain.ExplainedOracle(curved(dtype=torch.float32), explain.Gradient(), SHAPE)
    precise = explain.ExplainedOracle(curved(), explain.Gradient(), SHAPE)
    assert (oracle.offer.dtype, precise.offer.dtype) == ("float32", "float64")
    assert oracle(inputs(0), gradients=True).jacobians.shape == (0, OUTPUTS, DIMENSION)


class Detached(nn.Module):
    def forward(self, x):
        return x.flatten(1).detach()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: explain.SmoothGrad(sigma=0.0), "positive"),
        (lambda: explain.SmoothGrad(sigma=1.0, samples=0), "at least 1"),
        (lambda: explain.IntegratedGradients(steps=0), "at least 1"),
        (lambda: explain.IntegratedGradients(baseline=float("nan")), "finite"),
        (lambda: explain.ExplainedOracle(curved(), explain.Gradient(), (7,)), "cannot take float64 inputs of shape"),
        (lambda: explain.ExplainedOracle(curved(), explain.Gradient(), SHAPE, classes=5), "output below 5"),
        (lambda: explain.ExplainedOracle(curved(), explain.Gradient(), SHAPE, classes="best"), "'top'"),
        (lambda: explain.ExplainedOracle(curved(), explain.Gradient(), SHAPE, of="odds"), "log-probabilities"),
        (lambda: explain.ExplainedOracle(curved().half(), explain.Gradient(), SHAPE), "float32 or float64"),
        (lambda: explain.Gradient().maps(curved(), tensor(inputs(2)), classes=torch.ones(2, 5)), "expected a tensor"),
        (lambda: explain.Gradient().maps(curved(), tensor(inputs(2)), classes="best"), "'top'"),
        (lambda: explain.Gradient().maps(Detached(), tensor(inputs(2))), "cannot be differentiated"),
    ],
)
def test_misuse_says_what_was_expected(make, message):
    with pytest.raises(rl.MisuseError, match=message):
        make()


def test_a_module_that_returns_no_matrix_is_refused():
    with pytest.raises(rl.BadAnswerError, match="expected one tensor"):
        explain.ExplainedOracle(nn.Identity(), explain.Gradient(), SHAPE)
