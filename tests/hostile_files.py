"""Model files written to do harm: to run code, to eat memory, to crash their reader. And honest ones, damaged."""

import copy
import io
import json
import pickle
import re
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import lightgbm
import numpy as np
import onnx
import skops.io
import torch
import xgboost
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save as safetensors_bytes
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC

import relumine as rl

ENDINGS = ("pt", "ts", "pt2", "onnx", "safetensors", "skops", "json", "ubj", "txt")
ZIPPED = ("pt", "ts", "pt2", "skops")

# (name, bytes): the name says what is wrong, its ending which format the file claims to be.
Files = Iterator[tuple[str, bytes]]


class Bomb:
    """Unpickling this leaves the canary behind."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.canary,)


# Honest files


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()


@cache
def honest(ending: str) -> bytes:
    """A small model in each format."""
    buffer = io.BytesIO()
    if ending in ("pt", "ts"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.script(module()), buffer)
    elif ending == "pt2":
        shapes = ({0: torch.export.Dim("rows")},)
        torch.export.save(torch.export.export(module(), (torch.zeros(2, 6),), dynamic_shapes=shapes), buffer)
    elif ending == "onnx":
        return graph([helper.make_node("Relu", ["sum"], ["output"])])
    elif ending == "safetensors":
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((5, 6)), rng.standard_normal((3, 5))
        clone = rl.Network(weights, (np.zeros(5), np.ones(3)), (6,))
        architecture = json.dumps({"layers": 2, "inputs": [6], "values": "logits"})
        tensors = {name: torch.tensor(array) for name, array in clone.parameters.items()}
        return safetensors_bytes(tensors, {"relumine.network": architecture})
    elif ending == "skops":
        return skops.io.dumps(fitted(LogisticRegression()))
    elif ending == "txt":
        booster = fitted(
            lightgbm.LGBMClassifier(n_estimators=3, num_leaves=4, min_child_samples=5, verbose=-1)
        ).booster_
        return booster.model_to_string().encode()
    else:
        booster = fitted(xgboost.XGBClassifier(n_estimators=3, max_depth=2)).get_booster()
        return bytes(booster.save_raw(ending))
    return buffer.getvalue()


def fitted(estimator: object) -> object:
    """To 60 inputs of 6 numbers in 3 classes."""
    rng = np.random.default_rng(0)
    return estimator.fit(rng.standard_normal((60, 6)), rng.integers(0, 3, 60))


def graph(nodes: list[object], *, shape: tuple[object, ...] = ("rows", 6), change: Callable | None = None) -> bytes:
    """An ONNX model: a dense layer from "input" to "sum", then these nodes."""
    rng = np.random.default_rng(0)
    tensors = {"W": rng.standard_normal((5, 6)).astype("f4"), "b": np.ones(5, "f4"), "huge": np.int64([2**40, 6])}
    dense = helper.make_node("Gemm", ["input", "W", "b"], ["sum"], transB=1)
    model = helper.make_model(
        helper.make_graph(
            [dense, *nodes],
            "hostile",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in tensors.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    if change is not None:
        change(model)
    return model.SerializeToString()


def rezipped(content: bytes, changes: dict[str, bytes | None]) -> bytes:
    """The archive with some parts replaced, added or (None) left out, by the end of their names."""
    copy = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(copy, "w") as target:
        names = source.namelist()
        root = f"{names[0].partition('/')[0]}/" if all("/" in name for name in names) else ""
        parts = {name: source.read(name) for name in names} | {root + name: part for name, part in changes.items()}
        for name, part in parts.items():
            if part is not None:
                target.writestr(name, part)
    return copy.getvalue()


def part_of(content: bytes, end: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(end))
        return archive.read(name)


# Hostile files


def hostile_files(canary: Path) -> Files:
    """Every one of these must be refused."""
    yield from disguises(canary)
    yield from wrong_endings()
    yield from truncated()
    yield from zip_bombs()
    yield from strange_archives()
    yield from hostile_onnx()
    yield from hostile_programs(canary)
    yield from hostile_scripts(canary)
    yield from hostile_estimators(canary)
    yield from hostile_trees()
    yield from hostile_forests()
    yield from hostile_weights()


def disguises(canary: Path) -> Files:
    torch_file = io.BytesIO()
    torch.save(Bomb(canary), torch_file)
    array = io.BytesIO()
    np.save(array, np.array([Bomb(canary)], dtype=object), allow_pickle=True)
    contents = {f"pickle{protocol}": pickle.dumps(Bomb(canary), protocol) for protocol in range(6)}
    contents |= {"torch.save": torch_file.getvalue(), "npy": array.getvalue(), "empty": b"", "text": b"nonsense\n" * 50}
    for name, content in contents.items():
        for ending in (*ENDINGS, "pkl", "joblib", "pth", "ckpt", "bin"):
            yield f"{name}.{ending}", content


def wrong_endings() -> Files:
    for real in ENDINGS:
        for claimed in ENDINGS:
            if {real, claimed} != {"pt", "ts"} and real != claimed:
                yield f"really_{real}.{claimed}", honest(real)


def truncated() -> Files:
    for ending in ENDINGS:
        content = honest(ending)
        for share in (0.02, 0.2, 0.5, 0.8, 0.97):
            yield f"truncated_{share}.{ending}", content[: int(share * len(content))]


def zip_bombs() -> Files:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("bomb/data.pkl", bytes(2**28 + 2**26))
    lying = bytearray(packed.getvalue())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):  # the uncompressed size, twice
        position = lying.rindex(signature) + offset
        lying[position : position + 4] = struct.pack("<I", 100)
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for i in range(21_000):
            archive.writestr(f"a/{i}", b"")
    for ending in ZIPPED:
        yield f"bomb.{ending}", packed.getvalue()
        yield f"lying_bomb.{ending}", bytes(lying)
        yield f"many_parts.{ending}", many.getvalue()


def strange_archives() -> Files:
    for ending in ZIPPED:
        content = honest(ending)
        for name in ("../../evil", "/etc/evil", "a\\..\\evil"):
            yield f"outside_{name.count('.')}_{len(name)}.{ending}", _with_part(content, zipfile.ZipInfo(name), b"x")
        link = zipfile.ZipInfo("archive/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        yield f"link.{ending}", _with_part(content, link, b"/etc/passwd")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            first = archive.namelist()[0]
        yield f"twice.{ending}", _with_part(content, zipfile.ZipInfo(first), b"other")
        encrypted = bytearray(content)
        position = encrypted.index(b"PK\x01\x02") + 8
        encrypted[position] |= 1
        yield f"encrypted.{ending}", bytes(encrypted)
        yield f"other_archive.{ending}", _with_part(_empty_archive(), zipfile.ZipInfo("folder/readme"), b"nothing here")


def _empty_archive() -> bytes:
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    return buffer.getvalue()


def _with_part(content: bytes, part: zipfile.ZipInfo, data: bytes) -> bytes:
    buffer = io.BytesIO(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name twice
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(part, data)
    return buffer.getvalue()


def hostile_onnx() -> Files:
    node = helper.make_node
    relu = node("Relu", ["sum"], ["output"])

    def external(place: str, **more: str) -> Callable:
        def change(model: onnx.ModelProto) -> None:
            tensor = model.graph.initializer[0]
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in {"location": place, **more}.items():
                tensor.external_data.add(key=key, value=value)

        return change

    places = (
        "/etc/passwd",
        "../secret",
        "..",
        "a/../../b",
        "",
        ".",
        "missing",
        "C:\\secret",
        "link",
        "a\0b",
        "folder/x",
    )
    for i, place in enumerate(places):
        yield f"external_{i}.onnx", graph([relu], change=external(place))
    for i, where in enumerate(({"offset": "-4"}, {"length": "-1"}, {"length": str(2**40)}, {"offset": "0x1"})):
        yield f"external_position_{i}.onnx", graph([relu], change=external("beside.bin", **where))

    def first(**fields: object) -> Callable:
        def change(model: onnx.ModelProto) -> None:
            tensor = model.graph.initializer[0]
            for name, value in fields.items():
                if name == "dims":
                    del tensor.dims[:]
                    tensor.dims.extend(value)
                else:
                    setattr(tensor, name, value)

        return change

    for dims in ([2**62, 2**62], [2**40], [-1, 30], [-5, -6], [5, 7], [0, 6], [30]):
        yield f"dims_{dims[0]}_{len(dims)}.onnx", graph([relu], change=first(dims=dims))
    for kind in (2, 3, 4, 5, 8, 10, 14, 16, 17, 22, 99):
        yield f"element_{kind}.onnx", graph([relu], change=first(data_type=kind))
    yield "half_a_number.onnx", graph([relu], change=first(raw_data=b"123"))

    absurd = {
        "expand": [node("Expand", ["input", "huge"], ["wide"]), node("Relu", ["wide"], ["output"])],
        "filled": [node("ConstantOfShape", ["huge"], ["output"])],
        "pads": [
            node("Constant", [], ["pads"], value_ints=[0, 0, 2**40, 0]),
            node("Pad", ["sum", "pads"], ["output"]),
        ],
        "negative_pads": [
            node("Constant", [], ["pads"], value_ints=[0, -9, 0, 0]),
            node("Pad", ["sum", "pads"], ["output"]),
        ],
        "outer": [
            node("Constant", [], ["tall"], value_ints=[-1, 1]),
            node("Reshape", ["sum", "tall"], ["x0"]),
            *(
                part
                for i in range(8)
                for part in (
                    node("Transpose", [f"x{i}"], [f"t{i}"]),
                    node("MatMul", [f"x{i}", f"t{i}"], [f"m{i}"]),
                    node("Reshape", [f"m{i}", "tall"], [f"x{i + 1}"]),
                )
            ),
            node("Relu", ["x8"], ["output"]),
        ],
        "conv": [
            node("Constant", [], ["image"], value_ints=[1, 1, 1, 5]),
            node("Reshape", ["sum", "image"], ["x"]),
            node("Constant", [], ["w"], value=numpy_helper.from_array(np.ones((1, 1, 1, 1), "f4"))),
            node("Conv", ["x", "w"], ["output"], pads=[2**20] * 4),
        ],
    }
    broken = {
        "cycle": [
            node("Add", ["sum", "b2"], ["a2"]),
            node("Add", ["a2", "sum"], ["b2"]),
            node("Relu", ["b2"], ["output"]),
        ],
        "nothing_there": [node("Relu", ["elsewhere"], ["output"])],
        "no_output": [node("Relu", ["sum"], ["other"])],
        "no_inputs": [node("Relu", [], ["output"])],
        "many_outputs": [node("Relu", ["sum"], ["output", "more"])],
        "unknown": [node("Frobnicate", ["sum"], ["output"])],
        "loop": [node("Loop", ["sum"], ["output"])],
        "scan": [node("Scan", ["sum"], ["output"])],
        "domain": [node("Relu", ["sum"], ["output"], domain="evil.corp")],
        "microsoft": [node("FusedMatMul", ["sum", "W"], ["output"], domain="com.microsoft")],
        "shapes": [node("MatMul", ["sum", "sum"], ["output"])],
        "whole": [node("Shape", ["sum"], ["output"])],
        "attribute": [node("Gemm", ["sum", "W"], ["output"], transB="yes")],
        "pool": [node("MaxPool", ["sum"], ["output"], kernel_shape=[2, 2])],
        "pool_0": [node("AveragePool", ["sum"], ["output"], kernel_shape=[0])],
        "training": [node("BatchNormalization", ["sum", "b", "b", "b", "b"], ["output"], training_mode=1)],
        "gather": [node("Gather", ["sum", "huge"], ["output"], axis=1)],
        "negative_split": [node("Split", ["sum"], ["output"], axis=9)],
        "many_nodes": [node("Identity", ["sum"], [f"n{i}"]) for i in range(20_001)],
    }
    for name, nodes in (absurd | broken).items():
        yield f"{name}.onnx", graph(nodes)

    def two_inputs(model: onnx.ModelProto) -> None:
        model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 6]))

    def function(model: onnx.ModelProto) -> None:
        model.functions.add(name="Relu", domain="")

    def old(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 1

    def sparse(model: onnx.ModelProto) -> None:
        model.graph.sparse_initializer.add()

    def nothing(model: onnx.ModelProto) -> None:
        model.ClearField("graph")

    def subgraph(model: onnx.ModelProto) -> None:
        node = model.graph.node.add(op_type="If", input=["sum"], output=["other"])
        node.attribute.append(helper.make_attribute("then_branch", model.graph))

    for change in (two_inputs, function, old, sparse, nothing, subgraph):
        yield f"{change.__name__}.onnx", graph([relu], change=change)
    for sizes in ((2**40, 6), ("rows", 2**40), ("rows", -6), ("rows", 0), (4, 6), (6,), ()):
        yield f"input_{'_'.join(map(str, sizes))}.onnx", graph([relu], shape=sizes)


def hostile_programs(canary: Path) -> Files:
    content = honest("pt2")
    model, config = "models/model.json", "data/weights/model_weights_config.json"
    torch_file = io.BytesIO()
    torch.save(Bomb(canary), torch_file)

    def program(change: Callable[[dict], None]) -> bytes:
        said = json.loads(part_of(content, model))
        change(said)
        return rezipped(content, {model: json.dumps(said).encode()})

    def first_node(**fields: object) -> bytes:
        return program(lambda said: said["graph_module"]["graph"]["nodes"][0].update(fields))

    command = {"name": "command", "arg": {"as_string": f"touch {canary}"}, "kind": 1}
    targets = (
        "torch.os.system torch._utils.os.system torch.load torch.hub.load torch.ops.aten.from_file.default "
        "torch.ops.aten.save torch.ops.aten.nonsense.default torch.ops.aten.relu.nonsense torch.ops.load_library "
        "torch.ops.higher_order.cond _operator.methodcaller _operator.call math.factorial #evil:thing builtins.eval "
        "torch.ops.aten.empty.memory_format torch.ops.aten.relu.__class__ torch"
    )
    for i, target in enumerate(targets.split()):
        yield f"target_{i}.pt2", first_node(target=target, inputs=[command])

    def weight(**fields: object) -> bytes:
        said = json.loads(part_of(content, config))
        next(iter(said["config"].values())).update(fields)
        return rezipped(content, {config: json.dumps(said).encode(), "data/weights/weight_9": torch_file.getvalue()})

    def meta(**fields: object) -> bytes:
        said = json.loads(part_of(content, config))
        next(iter(said["config"].values()))["tensor_meta"].update(fields)
        return rezipped(content, {config: json.dumps(said).encode()})

    yield "pickled_weight.pt2", weight(use_pickle=True, path_name="weight_9")
    yield "weight_elsewhere.pt2", weight(path_name="../../../etc/passwd")
    yield "weight_missing.pt2", weight(path_name="weight_77")
    for i, sizes in enumerate(([2**40, 6], [5, 2**62], [-1, 6], [5, 7], [6], [5.5, 6], ["5", "six"])):
        yield f"sizes_{i}.pt2", meta(sizes=[{"as_int": size} for size in sizes])
    for i, strides in enumerate(([2**40, 1], [6, -1], [1])):
        yield f"strides_{i}.pt2", meta(strides=[{"as_int": stride} for stride in strides])
    yield "offset.pt2", meta(storage_offset={"as_int": 5})
    yield "offset_below.pt2", meta(storage_offset={"as_int": -5})
    yield "type.pt2", meta(dtype=13)
    bomb = torch_file.getvalue()
    for name in ("data/weights/model.pt", "data/constants/model.pt", "data/constants/opaque_obj_0", "evil.pkl"):
        yield f"part_{name.replace('/', '_')}.pt2", rezipped(content, {name: bomb})
    yield "compiled.pt2", rezipped(content, {"data/aotinductor/model/model.so": b"\x7fELF"})
    yield "no_model.pt2", rezipped(content, {model: None})
    yield "no_weights.pt2", rezipped(content, {config: None})
    for i, text in enumerate(
        (b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"graph_module": 3}', b"1e999")
    ):
        yield f"json_{i}.pt2", rezipped(content, {model: text})
    yield "uses_before.pt2", program(lambda said: said["graph_module"]["graph"]["nodes"].reverse())
    yield "no_nodes.pt2", program(lambda said: said["graph_module"]["graph"]["nodes"].clear())
    yield "two_outputs.pt2", program(lambda s: s["graph_module"]["signature"]["output_specs"].append({"token": {}}))
    yield "no_input.pt2", program(lambda s: s["graph_module"]["signature"]["input_specs"].pop())
    wide = {"name": "size", "arg": {"as_ints": [2**30, 2**30]}, "kind": 1}
    seen = {"name": "self", "arg": {"as_tensor": {"name": "input"}}, "kind": 1}
    yield "wide.pt2", first_node(target="torch.ops.aten.expand.default", inputs=[seen, wide])
    pads = {"name": "pad", "arg": {"as_ints": [2**30, 2**30]}, "kind": 1}
    yield "pads.pt2", first_node(target="torch.ops.aten.constant_pad_nd.default", inputs=[seen, pads])


def main_source(content: bytes) -> str:
    """Where the outermost module's source lies; torch changes the name if the process has scripted another."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = (name for name in archive.namelist() if re.search(r"/code/.*/container(/.*)?\.py$", name))
    return name.partition("/")[2]


def script_source(content: bytes, change: Callable[[str], str]) -> bytes:
    """A TorchScript archive with its main source file changed."""
    name = main_source(content)
    return rezipped(content, {name: change(part_of(content, name).decode()).encode()})


def hostile_scripts(canary: Path) -> Files:
    content = honest("pt")
    before_return = re.compile(r"\n(    return )")

    def first_line(line: str) -> bytes:
        return script_source(content, lambda text: before_return.sub(rf"\n    {line}\n\1", text, count=1))

    lines = (
        f'torch.save(input, "{canary}")',
        f'_9 = torch.add_(input, torch.sum(torch.from_file("{canary}", True, 10)))',
        f'ops.aten.save(input, "{canary}")',
        f'_9 = ops.aten.from_file("{canary}", True, 10)',
        'print("hello")',
        "_9 = torch.zeros([1000000, 1000000])",
        "_9 = torch.repeat(input, [1000000, 1000000])",
        "_9 = ops.evil.run(input)",
        "_9 = __torch__.torch.classes.evil.Thing()",
        "_9 = fork(self, input)",
        'ops.prim.Print("hello")',
        "_9 = torch.add_(input, torch.sum(torch.expand(input, [1073741824, 1073741824, 6])))",
        "_9 = torch.add_(input, torch.sum(torch.constant_pad_nd(input, [1073741824, 1073741824])))",
    )
    for i, line in enumerate(lines):
        yield f"line_{i}.pt", first_line(line)
    loop = "while True:\n      _9 = torch.add_(input, 1)"
    yield "endless.pt", first_line(loop)
    yield "many_rounds.pt", first_line("for _8 in range(1000000000000):\n      _9 = torch.add_(input, 1)")
    method = f'\n  def __setstate__(self, state: int) -> None:\n    torch.save(state, "{canary}")\n    return None\n'
    yield "setstate.pt", script_source(content, lambda text: text + method)
    default = f'\n  def other(self,\n    x: None=torch.save(3, "{canary}")) -> None:\n    return None\n'
    yield "default.pt", script_source(content, lambda text: text + default)
    other = f'\n  def other(self) -> None:\n    torch.save(3, "{canary}")\n    return None\n'
    yield "other_method.pt", script_source(content, lambda text: text + other)
    for i, text in enumerate(("", "x = 3", "def f(:\n", "\0\0", "class A(Module):\n  x : int\n" * 3, "(" * 5000)):
        yield f"source_{i}.pt", script_source(content, lambda _, text=text: text)

    data = part_of(content, "data.pkl")
    yield "global.pt", rezipped(content, {"data.pkl": pickle.dumps(Bomb(canary), 2)})
    yield "constants.pt", rezipped(content, {"constants.pkl": pickle.dumps((Bomb(canary),), 2)})
    yield "newer_pickle.pt", rezipped(content, {"data.pkl": pickle.dumps(Bomb(canary), 4)})
    yield "memo.pt", rezipped(content, {"data.pkl": b"\x80\x02)r" + struct.pack("<I", 2**32 - 1) + b"."})
    yield "bytearray.pt", rezipped(content, {"data.pkl": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"."})
    yield "long.pt", rezipped(content, {"data.pkl": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"."})
    yield "stack.pt", rezipped(content, {"data.pkl": b"\x80\x02RRRR."})
    yield "no_stop.pt", rezipped(content, {"data.pkl": data[:-1]})
    yield "empty_pickle.pt", rezipped(content, {"data.pkl": b""})
    yield "no_storage.pt", rezipped(content, {"data/0": None})
    yield "short_storage.pt", rezipped(content, {"data/0": b"1234"})
    yield (
        "beyond_storage.pt",
        rezipped(content, {"data.pkl": data.replace(b"(K\x05K\x06t", b"(J\xff\xff\xff\x7fK\x06t", 1)}),
    )
    yield (
        "below_storage.pt",
        rezipped(content, {"data.pkl": data.replace(b"(K\x05K\x06t", b"(J\xff\xff\xff\xffK\x06t", 1)}),
    )
    yield (
        "on_a_gpu.pt",
        rezipped(content, {"data.pkl": data.replace(b"X\x03\x00\x00\x00cpu", b"X\x04\x00\x00\x00cuda")}),
    )
    yield "no_code.pt", rezipped(content, {main_source(content): None})


def hostile_estimators(canary: Path) -> Files:
    content = honest("skops")
    yield "eval.skops", skops.io.dumps(make_pipeline(FunctionTransformer(eval), LogisticRegression()))
    schema = json.loads(part_of(content, "schema.json"))

    def changed(**fields: object) -> bytes:
        return rezipped(content, {"schema.json": json.dumps(schema | fields).encode()})

    yield "system.skops", changed(__class__="system", __module__="posix")
    yield "touch.skops", changed(__class__="Path", __module__="pathlib")
    yield "optimiser.skops", changed(__class__="np", __module__="sklearn.neural_network._stochastic_optimizers")
    yield "loader.skops", changed(__loader__="EvilNode")
    yield "method.skops", changed(__loader__="MethodNode", __class__="f", __module__="os", content={"func": "system"})
    yield "no_content.skops", changed(content=None)
    for i, text in enumerate((b"", b"[]", b"{}", b"null", b"[" * 100_000, b"\xff")):
        yield f"schema_{i}.skops", rezipped(content, {"schema.json": text})
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        array = next(name for name in archive.namelist() if name.endswith(".npy"))
        numbers = archive.read(array)
    pickled = io.BytesIO()
    np.save(pickled, np.array([Bomb(canary)], dtype=object), allow_pickle=True)
    yield "pickled_array.skops", rezipped(content, {array: pickled.getvalue()})
    yield "absurd_array.skops", rezipped(content, {array: re.sub(rb"\((\d+), ?(\d*)\)", rb"(9\1,\2)", numbers)})
    yield "short_array.skops", rezipped(content, {array: numbers[:-8]})
    yield "no_array.skops", rezipped(content, {array: None})


def hostile_trees() -> Files:
    """Trees whose children, features or sizes lie: libraries would read beyond their memory."""
    plain = json.loads(honest("json"))

    def first_tree(change: Callable[[dict], None]) -> bytes:
        said = json.loads(json.dumps(plain))
        change(said["learner"]["gradient_booster"]["model"]["trees"][0])
        return json.dumps(said).encode()

    def first(name: str, value: int) -> Callable[[dict], None]:
        return lambda tree: tree[name].__setitem__(0, value)

    for name, value in (
        *(("left_children", value) for value in (0, 7, 2**31 - 1, 10**12)),
        *(("right_children", value) for value in (1, -5)),
        *(("split_indices", value) for value in (6, -1, 2**31)),
        ("split_type", 1),
    ):
        yield f"{name}_{value}.json", first_tree(first(name, value))
    for name in ("left_children", "split_conditions", "base_weights", "default_left"):
        yield f"short_{name}.json", first_tree(lambda tree, name=name: tree[name].pop())
    for name in ("num_nodes", "num_feature", "size_leaf_vector"):
        lie = {name: str(10**9)}
        yield f"{name}.json", first_tree(lambda tree, lie=lie: tree["tree_param"].update(lie))

    def model(change: Callable[[dict], None]) -> bytes:
        said = json.loads(json.dumps(plain))
        change(said["learner"])
        return json.dumps(said).encode()

    def booster(said: dict) -> dict:
        return said["gradient_booster"]["model"]

    yield "no_trees.json", model(lambda said: booster(said)["trees"].clear())
    yield "group.json", model(lambda said: booster(said)["tree_info"].__setitem__(0, 99))
    yield "rounds.json", model(lambda said: booster(said)["iteration_indptr"].__setitem__(1, 99))
    yield "linear.json", model(lambda said: said["gradient_booster"].update(name="gblinear"))
    for name in ("num_feature", "num_class"):
        lie = {name: str(10**12)}
        yield f"many_{name}.json", model(lambda said, lie=lie: said["learner_model_param"].update(lie))
    for i, text in enumerate((b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"learner": {}}', b"1e999")):
        yield f"json_{i}.json", text
    for i, content in enumerate(
        (b"[" * 100_000, b"[$l#L" + struct.pack(">q", 2**60), b"[#L" + struct.pack(">q", -5), b"SL" + b"\x7f" * 8, b"{")
    ):
        yield f"binary_{i}.ubj", content

    text = honest("txt").decode()

    def line(name: str, value: str) -> bytes:
        return re.sub(rf"^{name}=.*$", f"{name}={value}", text, count=1, flags=re.MULTILINE).encode()

    for name, value in (
        *(("left_child", value) for value in ("0 -1 -3", "9 -1 -3", "1 -1", "-9 -1 -3", "x y z", f"{10**20} -1 -3")),
        *(("split_feature", value) for value in ("0 0 6", "-1 0 0", "0")),
        *(("num_leaves", value) for value in ("0", "-4", "5", f"{10**12}", "x")),
        *(("max_feature_idx", value) for value in ("-1", f"{10**12}", "3")),
        *(("num_tree_per_iteration", value) for value in ("0", "2", "1000000000")),
        *(("decision_type", "3 2 2"), ("num_cat", "1"), ("is_linear", "1"), ("leaf_value", "1.0")),
        ("num_class", "9"),
    ):
        yield f"{name}_{len(value)}_{value[:2].strip()}.txt", line(name, value)
    yield "no_tree.txt", (text.partition("Tree=0")[0] + text[text.index("\nend of trees") :]).encode()


def hostile_forests() -> Files:
    """The same in scikit-learn's models and in ONNX files of such models."""
    forest = fitted(RandomForestClassifier(2, max_depth=2, random_state=0))
    for field, value in (("left_child", 10**6), ("right_child", 0), ("feature", 99)):
        state = forest.estimators_[0].tree_.__getstate__()
        state["nodes"] = state["nodes"].copy()
        state["nodes"][field][0] = value
        lying = copy.deepcopy(forest)
        lying.estimators_[0].tree_.__setstate__(state)
        yield f"forest_{field}.skops", skops.io.dumps(lying)
    other = copy.deepcopy(forest)
    other.n_features_in_ = 5
    yield "forest_of_others.skops", skops.io.dumps(other)
    boosted = fitted(HistGradientBoostingClassifier(max_iter=2))
    for field, value in (("left", 10**6), ("right", 0), ("feature_idx", 99), ("is_categorical", 1)):
        lying = copy.deepcopy(boosted)
        lying._predictors[0][0].nodes[field][0] = value
        yield f"histogram_{field}.skops", skops.io.dumps(lying)
    machine = fitted(SVC())
    for field in ("support_vectors_", "_dual_coef_", "_intercept_", "_n_support", "support_"):
        lying = copy.deepcopy(machine)
        setattr(lying, field, getattr(machine, field)[:-1])
        yield f"support_{field}.skops", skops.io.dumps(lying)

    def ensemble(change: Callable[[dict], None], *, op: str = "TreeEnsembleClassifier", inputs: int = 6) -> bytes:
        tree = {
            "nodes_treeids": [0, 0, 0],
            "nodes_nodeids": [0, 1, 2],
            "nodes_featureids": [0, 0, 0],
            "nodes_values": [0.5, 0.0, 0.0],
            "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
            "nodes_truenodeids": [1, 0, 0],
            "nodes_falsenodeids": [2, 0, 0],
            "class_treeids": [0, 0],
            "class_nodeids": [1, 2],
            "class_ids": [0, 1],
            "class_weights": [1.0, 1.0],
            "classlabels_int64s": [0, 1],
        }
        change(tree)
        node = helper.make_node(op, ["input"], ["label", "scores"], domain="ai.onnx.ml", **tree)
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("label", "scores")]
        entry = helper.make_tensor_value_info("input", TensorProto.FLOAT, (None, inputs))
        made = helper.make_model(
            helper.make_graph([node], "trees", [entry], outputs),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
            ir_version=8,
        )
        return made.SerializeToString()

    for name, values in (
        *(("nodes_truenodeids", values) for values in ([0, 0, 0], [9, 0, 0], [-1, 0, 0], [1, 0])),
        *(("nodes_featureids", values) for values in ([6, 0, 0], [-1, 0, 0], [2**40, 0, 0])),
        *(("class_ids", values) for values in ([0, 2], [-1, 0], [0, 2**40])),
        *(("class_nodeids", values) for values in ([1, 7], [1])),
        *(("nodes_nodeids", values) for values in ([0, 1, 1], [2, 1, 0])),
        *(("classlabels_int64s", [0]), ("nodes_values", [0.5]), ("nodes_modes", ["LEAF"])),
    ):
        lie = {name: values}
        yield f"{name}_{len(values)}_{values[0]}_{values[-1]}.onnx", ensemble(lambda tree, lie=lie: tree.update(lie))
    yield "support_machine.onnx", ensemble(lambda tree: None, op="SVMClassifier")
    yield "inputs_0.onnx", ensemble(lambda tree: None, inputs=0)


def hostile_weights() -> Files:
    content = honest("safetensors")
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]

    def with_header(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text + data

    def changed(**fields: object) -> bytes:
        first = {**header["layers.0.weight"], **fields}
        return with_header(json.dumps({**header, "layers.0.weight": first}).encode())

    for i, size in enumerate((0, 2**63 - 1, 2**64 - 1, length + 10**6, 3)):
        yield f"header_{i}.safetensors", struct.pack("<Q", size) + content[8:]
    for i, text in enumerate((b"{", b"[]", b"null", b"{}", b'{"a":' * 50_000, b"\xff" * 40)):
        yield f"json_{i}.safetensors", with_header(text)
    for i, shape in enumerate(([2**40, 6], [2**62, 2**62], [-5, 6], [5, 7], [], ["a"], [5.5])):
        yield f"shape_{i}.safetensors", changed(shape=shape)
    for i, place in enumerate(([0, 2**60], [-8, 232], [8, 0], [0], [0, 8])):
        yield f"offsets_{i}.safetensors", changed(data_offsets=place)
    for i, kind in enumerate(("F16", "X99", "BOOL", 3)):
        yield f"type_{i}.safetensors", changed(dtype=kind)
    for i, said in enumerate(
        (
            {"layers": 10**12, "inputs": [6], "values": "logits"},
            {"layers": -1, "inputs": [6], "values": "logits"},
            {"layers": 2, "inputs": [2**40], "values": "logits"},
            {"layers": 2, "inputs": [-6], "values": "logits"},
            {"layers": 2, "inputs": [6], "values": "evil"},
            {"layers": "two", "inputs": "six", "values": 3},
            [],
            {},
        )
    ):
        metadata = {"relumine.network": json.dumps(said)}
        yield f"metadata_{i}.safetensors", with_header(json.dumps({**header, "__metadata__": metadata}).encode())


# Folders of MLflow and of transformers


@cache
def honest_folder() -> dict[str, bytes]:
    """A small BERT as save_pretrained writes it, with a tokenizer."""
    from tempfile import TemporaryDirectory

    from tokenizers import Tokenizer, models
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=10,
    )  # fmt: skip
    with TemporaryDirectory() as name:
        BertForSequenceClassification(config).save_pretrained(name)
        vocabulary = {"[UNK]": 1, "a": 2, "b": 3}
        Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")).save(f"{name}/tokenizer.json")
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def hostile_folders(canary: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """(name, files by their names): each is to be refused."""
    yield from _hostile_registries(canary)
    yield from _hostile_classifiers(canary)


def _hostile_registries(canary: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    bomb, run = pickle.dumps(Bomb(canary)), f"__import__('pathlib').Path({str(canary)!r}).touch()"
    flavours = {
        "pickle": "sklearn: {pickled_model: model.pkl, serialization_format: cloudpickle}",
        "claims_skops": "sklearn: {pickled_model: model.skops, serialization_format: skops}",
        "torch": "pytorch: {model_data: data}",
        "code": f"python_function: {{loader_module: evil, code: code, run: {json.dumps(run)}}}",
        "parent": "onnx: {data: ../folder/x}",
        "absolute": "onnx: {data: /etc/hostname}",
        "link": "sklearn: {pickled_model: ../link}",
        "number": "onnx: {data: 7}",
        "empty": "xgboost: {data: ''}",
        "itself": "transformers: {model_binary: .}",
        "apply": f"!!python/object/apply:os.system ['touch {canary}']",
    }
    files = {"model.pkl": bomb, "model.skops": bomb, "data/model.pth": bomb, "evil.py": run.encode()}
    for name, said in flavours.items():
        yield f"mlflow_{name}", {**files, "MLmodel": f"flavors:\n  {said}\n".encode()}
    laughs = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'ha'}]" for i in range(12))
    texts = {
        "laughs": f"{laughs}\nflavors: *l11",
        "deep": "[" * 50_000,
        "long": "a" * 2**21,
        "bytes": "\x00\xff",
        "none": "",
    }
    for name, text in texts.items():
        yield f"mlflow_{name}", {"MLmodel": text.encode("latin-1")}


def _hostile_classifiers(canary: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    honest = honest_folder()
    config = json.loads(honest["config.json"])
    code = f"import pathlib; pathlib.Path({str(canary)!r}).touch()".encode()
    changes: dict[str, dict[str, object]] = {
        "auto_map": {"auto_map": {"AutoModelForSequenceClassification": "evil.Model", "AutoConfig": "evil.Config"}},
        "quantised": {"quantization_config": {"quant_method": "evil", "load_in_4bit": True}},
        "layers": {"num_hidden_layers": 10**9},
        "wide": {"hidden_size": 2**40},
        "wide_32": {"hidden_size": 2**18},
        "vocabulary": {"vocab_size": 2**62},
        "negative": {"hidden_size": -8},
        "zero": {"num_attention_heads": 0},
        "text": {"hidden_size": "8"},
        "list": {"hidden_size": [8]},
        "padding": {"pad_token_id": 10**6},
        "no_padding": {"pad_token_id": None},
        "other": {"architectures": ["os.system"]},
        "several": {"architectures": ["BertForSequenceClassification", "Evil"]},
        "type": {"model_type": "../evil"},
        "missing": {"num_hidden_layers": 2},
        "labels": {"id2label": {str(i): "x" for i in range(5)}},
        "activation": {"hidden_act": "evil"},
    }
    for name, change in changes.items():
        yield f"hf_{name}", {**honest, "config.json": json.dumps(config | change).encode(), "evil.py": code}
    for name, content in {"deep": b"[" * 10**5, "long": b" " * 2**21, "list": b"[]", "cut": b'{"a'}.items():
        yield f"hf_config_{name}", {**honest, "config.json": content}
    bomb = pickle.dumps(Bomb(canary))
    without = {name: content for name, content in honest.items() if name != "model.safetensors"}
    yield "hf_pickle", {**without, "pytorch_model.bin": bomb}
    yield "hf_disguised", {**without, "model.safetensors": bomb}
    yield "hf_cut", {**without, "model.safetensors": honest["model.safetensors"][:-50]}
    yield "hf_header", {**without, "model.safetensors": struct.pack("<Q", 2**40) + b"{}"}
    yield "hf_index", {**without, "model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/hostname"}}'}
    yield "hf_adapter", {**honest, "adapter_config.json": b'{"base_model_name_or_path": "evil/model"}'}
    for name, content in {"pickled": bomb, "deep": b"[" * 10**5, "empty": b"{}"}.items():
        yield f"hf_tokenizer_{name}", {**honest, "tokenizer.json": content}
    vocabulary = {f"t{i}": i for i in range(5000)}
    tokenizer = json.loads(honest["tokenizer.json"])
    tokenizer["model"]["vocab"] |= vocabulary
    yield "hf_tokenizer_large", {**honest, "tokenizer.json": json.dumps(tokenizer).encode()}


# Damaged files


def mutated(ending: str, count: int, seed: int) -> Iterator[bytes]:
    """Honest files with a few bytes changed, exchanged or left out: some still load, none may crash or run anything."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        content = bytearray(honest(ending))
        for _ in range(rng.integers(1, 6)):
            at = int(rng.integers(len(content)))
            kind = rng.integers(4)
            if kind == 0:
                content[at] = int(rng.integers(256))
            elif kind == 1:
                content[at : at + 4] = rng.bytes(4)
            elif kind == 2:
                content[at : at + int(rng.integers(1, 40))] = b""
            else:
                content[at : at + 8] = b"\xff" * 8
        yield repaired(bytes(content)) if ending in ZIPPED and rng.integers(2) else bytes(content)


def repaired(content: bytes) -> bytes:
    """An archive whose checksums fit its damaged parts, so that the damage reaches the reader behind."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {}
            for part in archive.infolist():
                part.CRC = None  # type: ignore[assignment]
                with archive.open(part) as stream:
                    stream._expected_crc = None  # type: ignore[attr-defined]
                    parts[part.filename] = stream.read()
    except Exception:
        return content
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()
