"""TorchOracle takes any module, leaves it as it was, and says clearly what it cannot take."""

import numpy as np
import pytest
import torch
from torch import nn

import relumine as rl
from problems import two_layer


def mlp(K: int = 3, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, K)).to(dtype)


def some_inputs(n: int = 5, d: int = 6) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n, d))


class Does(nn.Module):
    """A module without parameters that calls a function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def test_it_answers_what_the_module_answers() -> None:
    module, x = mlp(), some_inputs()
    answer = rl.TorchOracle(module, (2, 3))(x, gradients=True)
    tensor = torch.from_numpy(x)
    assert np.array_equal(answer.values, module(tensor).detach().numpy())
    for i in range(len(x)):
        jacobian = torch.autograd.functional.jacobian(lambda row: module(row[None])[0], tensor[i])
        assert np.allclose(answer.jacobians[i], jacobian.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_is_that_of_the_parameters(dtype: torch.dtype) -> None:
    assert rl.TorchOracle(mlp(dtype=dtype), 6).offer.dtype == str(dtype).removeprefix("torch.")
    buffered = nn.BatchNorm1d(6, affine=False).to(dtype)
    assert rl.TorchOracle(buffered, 6).offer.dtype == str(dtype).removeprefix("torch.")


def test_a_module_without_parameters_is_asked_in_float64() -> None:
    asked_in = []
    module = Does(lambda x: asked_in.append(x.dtype) or x**2)
    assert rl.TorchOracle(module, 6).offer.dtype == "float64"
    assert rl.TorchOracle(module, 6, dtype="float32").offer.dtype == "float32"
    assert set(asked_in) == {torch.float32, torch.float64}


@pytest.mark.parametrize("values", ["real", "logits", "probabilities"])
@pytest.mark.parametrize("K", [1, 3])
def test_values_are_of_the_chosen_kind(K: int, values: str) -> None:
    module, x = mlp(K), some_inputs()
    got = rl.TorchOracle(module, 6, values=values)(x, gradients=False).values
    outputs = module(torch.from_numpy(x)).detach()
    squashed = torch.sigmoid(outputs) if K == 1 else torch.softmax(outputs, dim=1)
    assert np.allclose(got, (squashed if values == "probabilities" else outputs).numpy(), rtol=1e-14)


@pytest.mark.parametrize("ending", [nn.Softmax(dim=1), nn.Sigmoid()])
def test_a_module_that_answers_probabilities_is_recognised(ending: nn.Module) -> None:
    plain = mlp(1 if isinstance(ending, nn.Sigmoid) else 3)
    module = nn.Sequential(plain, ending)
    x = some_inputs()
    once = rl.TorchOracle(module, 6, values="probabilities")(x, gradients=True)
    behind = rl.TorchOracle(plain, 6, values="probabilities")(x, gradients=True)
    assert np.allclose(once.values, behind.values, rtol=1e-14)
    assert np.allclose(once.jacobians, behind.jacobians, rtol=0, atol=1e-15)
    with pytest.raises(rl.MisuseError, match="say values='probabilities'"):
        rl.TorchOracle(module, 6)
    assert rl.TorchOracle(module, 6, values="real").offer.values == "real"


def test_log_probabilities_are_logits() -> None:
    x = some_inputs()
    plain, logged = mlp(), nn.Sequential(mlp(), nn.LogSoftmax(dim=1))
    probabilities = [rl.TorchOracle(m, 6, values="probabilities")(x, gradients=False).values for m in (plain, logged)]
    assert np.allclose(*probabilities, rtol=1e-13)
    assert rl.TorchOracle(logged, 6).offer.values == "logits"


def test_saturated_probabilities_keep_their_relative_precision() -> None:
    problem = two_layer(6, 8, 3)
    module = mlp()
    with torch.no_grad():
        for layer, weight, bias in zip((module[1], module[3]), problem.weights, problem.biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight * 10))
            layer.bias.copy_(torch.from_numpy(bias * 10))
    x = some_inputs(50)
    through = rl.LogitLink(rl.TorchOracle(module, 6, values="probabilities"))(x, gradients=True)
    direct = rl.TorchOracle(module, 6)(x, gradients=True)
    assert np.ptp(direct.values, axis=1).max() > 100
    centred = direct.jacobians - direct.jacobians.mean(axis=1, keepdims=True)
    assert np.abs(through.jacobians - centred).max() < 1e-12 * np.abs(centred).max()


def test_the_module_is_left_as_it_was_found() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 3))
    module.train()
    module[1].eval()
    module[0].weight.requires_grad_(False)
    module[4].weight.grad = torch.ones(3, 8)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    oracle = rl.TorchOracle(module, 6)
    first = oracle(some_inputs(), gradients=True)
    second = oracle(some_inputs(), gradients=False)
    assert np.allclose(first.values, second.values, rtol=1e-6)
    assert [part.training for part in module] == [True, False, True, True, True]
    assert module.training
    assert [p.requires_grad for p in module.parameters()] == [False, True, True, True, True, True]
    assert (module[4].weight.grad == 1).all()
    assert all(p.grad is None for p in module.parameters() if p is not module[4].weight)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_the_module_is_restored_after_it_raised() -> None:
    def fragile(x: torch.Tensor) -> torch.Tensor:
        if (x > 1000).any():
            raise ValueError("too large\nand a second line")
        return x * 1.5

    module = Does(fragile).train()
    oracle = rl.TorchOracle(module, 6)
    with pytest.raises(rl.OracleFailedError, match=r"the module raised ValueError: too large$"):
        oracle(np.full((1, 6), 2000.0), gradients=True)
    assert module.training
    assert len(oracle(some_inputs(), gradients=True)) == 5


def test_it_answers_gradients_whatever_the_surroundings() -> None:
    module = mlp()
    oracle = rl.TorchOracle(module, 6)
    expected = oracle(some_inputs(), gradients=True)
    for surroundings in (torch.no_grad(), torch.inference_mode()):
        with surroundings:
            assert np.array_equal(oracle(some_inputs(), gradients=True).jacobians, expected.jacobians)
            assert rl.TorchOracle(module, 6).offer == oracle.offer


def test_a_module_may_overwrite_its_input() -> None:
    oracle = rl.TorchOracle(nn.Sequential(nn.ReLU(inplace=True), mlp()), 6)
    x = some_inputs()
    before = x.copy()
    jacobians = oracle(x, gradients=True).jacobians
    assert np.array_equal(x, before)
    assert (jacobians[(x <= 0)[:, None, :].repeat(3, axis=1)] == 0).all()


def test_a_module_may_answer_from_its_own_memory() -> None:
    """What it answers may be a view of a buffer, which a caller must not be able to overwrite."""
    memory = torch.ones(3).double()
    oracle = rl.TorchOracle(Does(lambda x: memory.expand(len(x), 3)), 6, gradients="none")
    oracle(some_inputs(), gradients=False).values[:] = 9
    assert (memory == 1).all()


class _Relu(torch.autograd.Function):
    """A user's own operation, whose backward pass leaves torch and so cannot be vectorised."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(np.where(x.numpy() > 0, gradient.numpy(), 0))


def test_operations_that_cannot_be_vectorised_are_differentiated_one_by_one() -> None:
    plain = mlp()
    custom = nn.Sequential(plain[0], plain[1], Does(_Relu.apply), plain[3])
    x = some_inputs()
    expected, got = (rl.TorchOracle(module, 6)(x, gradients=True) for module in (plain, custom))
    assert np.allclose(expected.jacobians, got.jacobians, rtol=0, atol=1e-14)


@pytest.mark.parametrize("gradients", ["all", "top", 1])
def test_memory_is_bounded_by_the_rows_asked_at_once(gradients: str | int) -> None:
    sizes = []
    module = nn.Sequential(Does(lambda x: sizes.append(len(x)) or x), mlp())
    small = rl.TorchOracle(module, 6, rows_at_once=7, gradients=gradients)
    sizes.clear()
    answer = small(some_inputs(30), gradients=True)
    assert sizes == [7, 7, 7, 7, 2]
    assert np.allclose(
        answer.jacobians, rl.TorchOracle(mlp(), 6, gradients=gradients)(some_inputs(30), gradients=True).jacobians
    )


def test_wide_modules_are_asked_fewer_rows_at_once() -> None:
    sizes = []
    watched = Does(lambda x: sizes.append(len(x)) or x)
    wide = nn.Sequential(watched, nn.Linear(6, 100_000), nn.ReLU(), nn.Linear(100_000, 10))
    oracle = rl.TorchOracle(wide, 6)
    sizes.clear()
    oracle(some_inputs(50), gradients=True)
    assert max(sizes) * 10 * 100_000 <= 2**22


def test_gradients_of_the_largest_and_of_one_output() -> None:
    x = some_inputs()
    everything = rl.TorchOracle(mlp(), 6)(x, gradients=True)
    top = rl.TorchOracle(mlp(), 6, gradients="top")(x, gradients=True)
    first = rl.TorchOracle(mlp(), 6, gradients=0)(x, gradients=True)
    largest = everything.values.argmax(axis=1)
    assert np.allclose(top.jacobians[:, 0], everything.jacobians[np.arange(len(x)), largest], rtol=0, atol=1e-15)
    assert np.allclose(first.jacobians[:, 0], everything.jacobians[:, 0], rtol=0, atol=1e-15)


def test_an_output_that_does_not_see_the_input_has_gradient_zero() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = nn.Parameter(torch.tensor(2.0).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x[:, 0] ** 2, self.constant.expand(len(x))], dim=1)

    jacobians = rl.TorchOracle(Half(), 6)(some_inputs(), gradients=True).jacobians
    assert (jacobians[:, 1] == 0).all()
    assert np.allclose(jacobians[:, 0, 0], 2 * some_inputs()[:, 0])


def test_a_random_module_is_offered_as_random() -> None:
    noisy = nn.Sequential(mlp(), Does(lambda x: x + torch.randn_like(x)))
    assert rl.TorchOracle(noisy, 6).offer.random
    assert not rl.TorchOracle(nn.Sequential(mlp(), nn.Dropout()).train(), 6).offer.random


def test_the_box_is_passed_on() -> None:
    assert rl.TorchOracle(mlp(), 6, box=(0, 1)).offer.box == (0, 1)


def exported(module: nn.Module, rows: int) -> torch.export.ExportedProgram:
    return torch.export.export(module, (torch.zeros(rows, 6).double(),))


@pytest.mark.parametrize("rows", [1, 4])
def test_of_an_exported_program_the_module_is_asked_for(rows: int) -> None:
    with pytest.raises(rl.MisuseError, match=r"pass its \.module\(\)"):
        rl.TorchOracle(exported(mlp(), rows), 6)


def test_exported_for_one_row_is_asked_row_by_row() -> None:
    module = mlp()
    got = rl.TorchOracle(exported(module, 1).module(), 6)(some_inputs(), gradients=True)
    assert np.allclose(got.jacobians, rl.TorchOracle(module, 6)(some_inputs(), gradients=True).jacobians)


def test_exported_for_several_rows_is_misuse() -> None:
    with pytest.raises(rl.MisuseError, match="cannot take float64 inputs"):
        rl.TorchOracle(exported(mlp(), 4).module(), 6)


def test_a_module_made_in_inference_mode_answers_values_only() -> None:
    with torch.inference_mode():
        module = mlp()
    assert len(rl.TorchOracle(module, 6, gradients="none")(some_inputs(), gradients=False)) == 5
    with pytest.raises(rl.MisuseError, match="say gradients='none'"):
        rl.TorchOracle(module, 6)


MISUSES: dict[str, tuple[object, dict[str, object], str]] = {
    "wrong shape": (mlp(), {"input_shape": (2, 4)}, r"shape \('n', 2, 4\): mat1 and mat2 .* check input_shape"),
    "wrong dtype": (mlp(), {"dtype": "float32"}, "cannot take float32 inputs"),
    "half precision": (mlp(dtype=torch.float16), {}, r"got torch\.float16; call module\.float\(\)"),
    "two precisions": (nn.Sequential(mlp(), nn.Linear(3, 3)), {}, r"got torch\.float32, torch\.float64"),
    "a function": (np.tanh, {}, "expected an nn.Module, got ufunc; for a function use FunctionOracle"),
    "a tuple": (Does(lambda x: (x, x)), {}, "expected it to return a tensor, got tuple"),
    "labels": (Does(lambda x: x.argmax(dim=1)), {}, "return scores, not labels"),
    "images": (
        Does(lambda x: x.reshape(-1, 2, 3)),
        {},
        r"expected outputs of shape \(1, K\) or \(1,\), got \(1, 2, 3\)",
    ),
    "nothing": (Does(lambda x: x[:, :0]), {}, "expected outputs of shape"),
    "neighbours": (Does(lambda x: x - x.mean(dim=0)), {}, "depends on its neighbours"),
    "a shared answer": (Does(lambda x: x.mean(dim=0, keepdim=True).expand(len(x), 6)), {}, "depends on its neighbours"),
    "cut graph": (Does(lambda x: x.detach() * 2), {}, "say gradients='none'"),
    "half-cut graph": (Does(lambda x: x.detach() * 2 + 0 * x), {}, "gradients are 0"),
    "through numpy": (Does(lambda x: torch.from_numpy(np.sin(x.detach().numpy()))), {}, "say gradients='none'"),
    "values": (mlp(), {"values": "label"}, "values: expected one of"),
    "gradients": (mlp(), {"gradients": "some"}, "gradients: expected one of"),
    "output": (mlp(), {"gradients": 3}, "an output below 3"),
    "rows at once": (mlp(), {"rows_at_once": 0}, "rows_at_once: expected at least 1"),
    "box": (mlp(), {"box": (1, 0)}, "box: expected"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_named_with_its_remedy(misuse: str) -> None:
    module, options, complaint = MISUSES[misuse]
    with pytest.raises(rl.MisuseError, match=complaint):
        rl.TorchOracle(module, **{"input_shape": 6, **options})


def test_a_module_with_no_gradients_answers_values() -> None:
    oracle = rl.TorchOracle(Does(lambda x: x.detach() * 2), 6, gradients="none")
    assert np.array_equal(oracle(some_inputs(), gradients=False).values, 2 * some_inputs())


def test_answers_of_neighbours_are_avoided_one_by_one() -> None:
    oracle = rl.TorchOracle(Does(lambda x: x - 0.5 * x.mean(dim=0)), 6, rows_at_once=1)
    assert np.allclose(oracle(some_inputs(), gradients=False).values, 0.5 * some_inputs())


def test_answers_that_are_not_numbers_are_named() -> None:
    oracle = rl.TorchOracle(Does(torch.sqrt), 6)
    with pytest.raises(rl.BadAnswerError, match="values: expected finite numbers, got NaN"):
        oracle(-np.ones((2, 6)), gradients=False)
