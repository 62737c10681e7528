"""ONNX files become torch modules that compute what onnxruntime computes, with gradients."""

import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import relumine as rl
from relumine.formats.onnx_ops import OPERATORS
from relumine.targets import load_target
from relumine.zoo import NETWORKS, network

SMALL = {"vgg11": {"width": 4}, "resnet18": {"width": 4}, "resnet18_small": {"width": 4}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(module: torch.nn.Module, shape: tuple[int, ...], *, newest: bool = False, rows: str | int = "rows") -> str:
    """By torch's TorchScript exporter, or by the newest one, which goes through torch.export."""
    example = torch.zeros(2 if rows == "rows" else rows, *shape, dtype=next(module.parameters()).dtype)
    dynamic = {"dynamic_axes": {"input": {0: "rows"}}} if rows == "rows" else {}
    if newest:
        dynamic = {"dynamic_shapes": ({0: torch.export.Dim("rows")},)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        torch.onnx.export(
            module.eval(), (example,), "model.onnx", dynamo=newest, verbose=False, input_names=["input"], **dynamic
        )
        logging.disable(logging.NOTSET)
    return "model.onnx"


def written(nodes, constants, shape, *, opset=17, kind=TensorProto.FLOAT) -> str:
    """A file of these nodes, from ``input`` to ``output``."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("input", kind, ["rows", *shape])],
        [helper.make_tensor_value_info("output", kind, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, "model.onnx")
    return "model.onnx"


def assert_same_as_onnxruntime(oracle: rl.Oracle, path: str = "model.onnx") -> None:
    offer = oracle.offer
    points = np.random.default_rng(5).standard_normal((8, offer.dimension))
    session = onnxruntime.InferenceSession(path)
    (entry,) = session.get_inputs()
    rows = points.reshape(8, *offer.inputs).astype(offer.dtype)
    expected = session.run(None, {entry.name: rows})[0].reshape(8, -1)
    np.testing.assert_allclose(oracle(points, gradients=False).values, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "newest"), [*((name, False) for name in NETWORKS), ("conv", True), ("resnet18_small", True)]
)
def test_every_network_of_the_zoo_comes_back_equal(name, newest):
    torch.manual_seed(0)
    shape = (3, 16, 16)
    module = network(name, shape, 5, **SMALL.get(name, {}))
    oracle = load_target(exported(module, shape, newest=newest))
    assert (oracle.offer.inputs, oracle.offer.outputs, oracle.offer.dtype) == (shape, 5, "float32")
    points = np.random.default_rng(1).standard_normal((10, oracle.offer.dimension))
    truth = rl.TorchOracle(module, shape)(points, gradients=True)
    answer = oracle(points, gradients=True)
    for ours, theirs in ((answer.values, truth.values), (answer.jacobians, truth.jacobians)):
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert_same_as_onnxruntime(oracle)


@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_a_clone_saved_as_onnx_is_a_target(values):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((5, 6)), rng.standard_normal((3, 5))
    clone = rl.Network(weights, (np.zeros(5), np.ones(3)), (2, 3), skip=rng.standard_normal((3, 6)), values=values)
    oracle = load_target(str(clone.save("model.onnx")), values=values)
    points = rng.standard_normal((20, 6))
    assert (oracle.offer.inputs, oracle.offer.dtype) == ((2, 3), "float64")
    np.testing.assert_allclose(oracle(points, gradients=True).values, clone.predict(points), atol=1e-12)


def test_a_float64_network_with_convolutions_is_checked_too():
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    oracle = load_target(exported(module, (1, 4, 4)))
    points = np.random.default_rng(0).standard_normal((5, 16))
    truth = rl.TorchOracle(module, (1, 4, 4))(points, gradients=True)
    np.testing.assert_allclose(oracle(points, gradients=True).jacobians, truth.jacobians, atol=1e-12)


def test_a_two_layer_network_is_recovered_from_its_onnx_file():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).double()
    result = rl.TwoLayer()(load_target(exported(module, (8,))), rng=0)
    assert result.outcome is rl.Outcome.RECOVERED
    points = np.random.default_rng(0).standard_normal((50, 8))
    np.testing.assert_allclose(result.predict(points), module(torch.tensor(points)).detach().numpy(), atol=1e-10)


rng = np.random.default_rng(0)
W = rng.standard_normal((2, 3, 3, 3)).astype(np.float32)
node = helper.make_node
POOLED = (3, 7, 8)
# One or more nodes from "input" to "output", the constants they use, the shape of one input, the operators' version.
UNARY = """Abs Elu Erf Exp Flatten HardSigmoid HardSwish Identity LeakyRelu LogSoftmax Neg Relu Selu Sigmoid
Softmax Softplus Softsign Tanh"""
CASES: dict[str, tuple[list[object], dict[str, object], tuple[int, ...], int]] = {
    **{op.lower(): ([node(op, ["input"], ["output"])], {}, (5,), 17) for op in UNARY.split()},
    "mean": ([node("ReduceMean", ["input"], ["output"], axes=[-1])], {}, (5,), 17),
    **{
        op.lower(): ([node(op, ["input", "c"], ["output"])], {"c": np.float32([1, 2, -3, 4, 5])}, (5,), 17)
        for op in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu"]
    },
    "positive": (
        [
            node("Exp", ["input"], ["e"]),
            node("Sqrt", ["e"], ["s"]),
            node("Reciprocal", ["s"], ["r"]),
            node("Pow", ["r", "two"], ["p"]),
            node("Log", ["p"], ["output"]),
        ],
        {"two": np.float32(2)},
        (5,),
        17,
    ),
    "matmul": ([node("MatMul", ["input", "m"], ["output"])], {"m": np.ones((5, 2), np.float32)}, (5,), 13),
    "gemm": (
        [node("Gemm", ["input", "m", "c"], ["output"], alpha=0.5, beta=2.0, transB=1)],
        {"m": rng.standard_normal((2, 5)).astype(np.float32), "c": np.float32([1, 2])},
        (5,),
        13,
    ),
    "conv, strides and groups": (
        [node("Conv", ["input", "w"], ["output"], strides=[2, 1], dilations=[1, 2], pads=[1, 0, 1, 0], group=1)],
        {"w": W},
        POOLED,
        17,
    ),
    "conv, uneven pads": ([node("Conv", ["input", "w"], ["output"], pads=[0, 1, 2, 1])], {"w": W}, POOLED, 17),
    "conv, same upper": (
        [node("Conv", ["input", "w"], ["output"], auto_pad="SAME_UPPER", strides=[2, 2])],
        {"w": W},
        POOLED,
        17,
    ),
    "conv, same lower": (
        [node("Conv", ["input", "w"], ["output"], auto_pad="SAME_LOWER", strides=[2, 2])],
        {"w": W},
        POOLED,
        17,
    ),
    "conv, one axis": (
        [node("Conv", ["input", "w", "b"], ["output"])],
        {"w": W[..., 0], "b": np.float32([1, 2])},
        (3, 9),
        17,
    ),
    "max pool": (
        [node("MaxPool", ["input"], ["output"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1])],
        {},
        POOLED,
        17,
    ),
    "max pool, ceil": (
        [node("MaxPool", ["input"], ["output"], kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1)],
        {},
        POOLED,
        17,
    ),
    "average pool": (
        [node("AveragePool", ["input"], ["output"], kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1])],
        {},
        POOLED,
        17,
    ),
    "average pool, uneven": (
        [node("AveragePool", ["input"], ["output"], kernel_shape=[3, 3], pads=[0, 1, 1, 0])],
        {},
        POOLED,
        17,
    ),
    "average pool, counted": (
        [node("AveragePool", ["input"], ["output"], kernel_shape=[3, 3], pads=[0, 1, 1, 0], count_include_pad=1)],
        {},
        POOLED,
        17,
    ),
    "global average": ([node("GlobalAveragePool", ["input"], ["output"])], {}, POOLED, 17),
    "global max": ([node("GlobalMaxPool", ["input"], ["output"])], {}, POOLED, 17),
    "batch norm": (
        [node("BatchNormalization", ["input", "a", "b", "c", "d"], ["output"], epsilon=0.01)],
        {name: np.float32([1, 2, 3]) for name in "abcd"},
        POOLED,
        17,
    ),
    "layer norm": (
        [node("LayerNormalization", ["input", "a", "b"], ["output"])],
        {name: np.float32([1, 2, 3, 4, 5]) for name in "ab"},
        (5,),
        17,
    ),
    "gelu": ([node("Gelu", ["input"], ["output"], approximate="tanh")], {}, (5,), 20),
    "dropout": ([node("Dropout", ["input"], ["output"])], {}, (5,), 17),
    "clip": (
        [node("Clip", ["input", "low", "high"], ["output"])],
        {"low": np.float32(-0.5), "high": np.float32(0.7)},
        (5,),
        17,
    ),
    "clip, old": ([node("Clip", ["input"], ["output"], min=-0.5)], {}, (5,), 7),
    "softmax, old": ([node("Softmax", ["input"], ["output"], axis=1)], {}, (2, 3), 11),
    "softmax, new": ([node("Softmax", ["input"], ["output"], axis=1)], {}, (2, 3), 13),
    "shapes": (
        [
            node("Shape", ["input"], ["sizes"]),
            node("Gather", ["sizes", "zero"], ["rows"], axis=0),
            node("Unsqueeze", ["rows", "axis"], ["row"]),
            node("Constant", [], ["rest"], value_ints=[-1]),
            node("Concat", ["row", "rest"], ["shape"], axis=0),
            node("Transpose", ["input"], ["turned"], perm=[0, 2, 1]),
            node("Reshape", ["turned", "shape"], ["output"]),
        ],
        {"zero": np.int64(0), "axis": np.int64([0])},
        (2, 3),
        17,
    ),
    "parts": (
        [
            node("Slice", ["input", "one", "far", "one"], ["tail"]),
            node("Split", ["tail"], ["first", "second"], axis=1),
            node("Gather", ["input", "picked"], ["chosen"], axis=1),
            node("Concat", ["first", "second", "chosen"], ["output"], axis=1),
        ],
        {"one": np.int64([1]), "far": np.int64([2**40]), "picked": np.int64([-1, 0])},
        (5,),
        17,
    ),
    "squeezed": (
        [
            node("Squeeze", ["input", "axes"], ["flat"]),
            node("Pad", ["flat", "pads"], ["padded"]),
            node("Cast", ["padded"], ["wide"], to=TensorProto.DOUBLE),
            node("Cast", ["wide"], ["narrow"], to=TensorProto.FLOAT),
            node("ReduceSum", ["narrow", "last"], ["sums"], keepdims=1),
            node("ReduceMax", ["narrow"], ["tops"], axes=[1], keepdims=1),
            node("Concat", ["sums", "tops"], ["output"], axis=1),
        ],
        {"axes": np.int64([2]), "pads": np.int64([0, 1, 0, 2]), "last": np.int64([1])},
        (5, 1),
        17,
    ),
    "filled": (
        [
            node("ConstantOfShape", ["shape"], ["zeros"]),
            node("Expand", ["bias", "wide"], ["biases"]),
            node("Add", ["zeros", "biases"], ["sum"]),
            node("Add", ["input", "sum"], ["output"]),
        ],
        {"shape": np.int64([1, 5]), "bias": np.float32([[2]]), "wide": np.int64([1, 5])},
        (5,),
        17,
    ),
}


def flattened(nodes: list[object]) -> list[object]:
    """The oracle wants rows of numbers."""
    copies = [onnx.NodeProto.FromString(part.SerializeToString()) for part in nodes]
    for copy in copies:
        for i, name in enumerate(copy.output):
            copy.output[i] = "result" if name == "output" else name
    return [*copies, helper.make_node("Flatten", ["result"], ["output"], axis=1)]


@pytest.mark.parametrize("case", CASES)
def test_operators_compute_what_onnxruntime_computes(case):
    nodes, constants, shape, opset = CASES[case]
    path = written(flattened(nodes), constants, shape, opset=opset)
    assert_same_as_onnxruntime(load_target(path, values="real", gradients="all"))


def test_every_operator_is_tried():
    assert {part.op_type for nodes, *_ in CASES.values() for part in nodes} == OPERATORS.keys()


def test_a_model_for_one_row_answers_many(folder):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))
    oracle = load_target(exported(module, (2, 3), rows=1))
    points = np.random.default_rng(0).standard_normal((7, 6))
    expected = module(torch.tensor(points, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(oracle(points, gradients=True).values, expected, atol=1e-5)


def test_sizes_that_are_left_open_must_be_said():
    relu = [node("GlobalAveragePool", ["input"], ["mean"]), node("Flatten", ["mean"], ["output"])]
    path = written(relu, {}, (3, "height", "width"))
    with pytest.raises(rl.TargetError, match="--input-shape"):
        load_target(path)
    assert load_target(path, input_shape=(3, 4, 4), values="real").offer.inputs == (3, 4, 4)


def test_external_data_beside_the_file_is_read():
    module = torch.nn.Sequential(torch.nn.Linear(6, 3))
    path = exported(module, (6,))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    points = np.random.default_rng(0).standard_normal((7, 6))
    expected = module(torch.tensor(points, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(load_target(path)(points, gradients=False).values, expected, atol=1e-5)
