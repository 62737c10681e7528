"""A TARGET becomes an oracle, or an error that says what to do. Pickles never run."""

import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import skops.io
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import relumine as rl
from relumine.targets import fingerprint, load_target

FACTORIES = """
import numpy as np
import torch
import relumine as rl
from sklearn.linear_model import LinearRegression

def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))

def image_module():
    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))

def estimator():
    return LinearRegression().fit(np.eye(4), np.arange(4.0))

def unfitted():
    return LinearRegression()

def oracle():
    return rl.FunctionOracle(lambda x, gradients: (x[:, :1], None), rl.Offer((2,), 1, gradients="none"))

instance = module()
number = 3

def returns_nothing(): pass
def raises(): raise ValueError("no weights today")
def leaves(): raise SystemExit(4)
def wants_more(argument): pass
"""


class Bomb:
    """Unpickling this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of factories whose name no other test uses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"made_{tmp_path.name}.py").write_text(FACTORIES)
    return tmp_path


@pytest.fixture
def made(folder: Path) -> str:
    return f"made_{folder.name}"


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))


def exported(module: torch.nn.Module, path: str = "model.pt2", rows: int = 2, dynamic: bool = True) -> str:
    shapes = ({0: torch.export.Dim("rows")},) if dynamic else None
    torch.export.save(torch.export.export(module, (torch.randn(rows, 6),), dynamic_shapes=shapes), path)
    return path


def scripted(module: torch.nn.Module, path: str = "model.pt") -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(path)
    return path


def rewritten(path: str, changes: dict[str, bytes]) -> str:
    """The archive with some parts replaced or added, by the end of their names."""
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w") as target:
        root = source.namelist()[0].partition("/")[0]
        kept = {name: source.read(name) for name in source.namelist()}
        kept |= {f"{root}/{name}": content for name, content in changes.items()}
        for name, content in kept.items():
            target.writestr(name, content)
    Path(path).write_bytes(copy.getvalue())
    return path


def assert_answers_as(oracle: rl.Oracle, module: torch.nn.Module) -> None:
    points = np.random.default_rng(0).standard_normal((20, 6))
    expected = module(torch.tensor(points, dtype=torch.float32)).detach().numpy()
    answer = oracle(points, gradients=True)
    np.testing.assert_allclose(answer.values, expected, atol=1e-5)
    assert answer.jacobians.shape == (20, 3, 6)


def test_a_factory_of_a_module(made):
    oracle = load_target(f"{made}:module")
    assert (oracle.offer.inputs, oracle.offer.outputs, oracle.offer.values) == ((6,), 3, "logits")


def test_an_object_that_is_a_model_already(made):
    assert load_target(f"{made}:instance").offer.outputs == 3


def test_a_factory_of_an_estimator(made):
    assert load_target(f"{made}:estimator").offer.inputs == (4,)


def test_a_factory_of_an_oracle(made):
    assert load_target(f"{made}:oracle").offer.gradients == "none"


def test_options_are_passed_on(made):
    offer = load_target(f"{made}:module", values="probabilities", gradients="none").offer
    assert (offer.values, offer.gradients) == ("probabilities", "none")


def test_images_need_their_shape(made):
    with pytest.raises(rl.TargetError, match="--input-shape"):
        load_target(f"{made}:image_module")
    assert load_target(f"{made}:image_module", input_shape=(1, 4, 4)).offer.inputs == (1, 4, 4)


@pytest.mark.parametrize("dynamic", [True, False])
def test_an_exported_program(module, dynamic):
    assert_answers_as(load_target(exported(module, rows=2 if dynamic else 1, dynamic=dynamic)), module)


def test_an_exported_program_with_buffers_and_constants():
    class Normalised(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.ones(6))
            self.scale = torch.full((6,), 2.0)
            self.layer = torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer((x - self.mean) * self.scale)

    module = Normalised()
    assert_answers_as(load_target(exported(module)), module)


def test_a_program_for_a_fixed_number_of_rows_says_how_to_export_it(module):
    with pytest.raises(rl.TargetError, match=r"takes 4 at a time.*dynamic_shapes"):
        load_target(exported(module, rows=4, dynamic=False))


def test_a_torchscript_file(module):
    assert_answers_as(load_target(scripted(module)), module)


def test_weights_with_a_factory(made, module):
    save_file(module.state_dict(), "weights.safetensors")
    assert_answers_as(load_target("weights.safetensors", factory=f"{made}:module"), module)


@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_a_clone_needs_no_factory(values):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((5, 6)), rng.standard_normal((3, 5))
    network = rl.Network(weights, (np.zeros(5), np.ones(3)), (2, 3), values=values)
    oracle = load_target(str(network.save("clone.safetensors")))
    points = rng.standard_normal((20, 6))
    assert (oracle.offer.inputs, oracle.offer.values, oracle.offer.dtype) == ((2, 3), values, "float64")
    np.testing.assert_allclose(oracle(points, gradients=False).values, network.predict(points), atol=1e-12)


@pytest.mark.parametrize(
    "estimator",
    [LinearRegression(), LogisticRegression(), MLPClassifier((4,), max_iter=5, solver="adam", random_state=0)],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_scikit_learn_model(estimator):
    rng = np.random.default_rng(0)
    skops.io.dump(estimator.fit(rng.standard_normal((60, 6)), rng.integers(0, 3, 60)), "model.skops")
    assert load_target("model.skops").offer.inputs == (6,)


# What must be refused


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.pth", "model.ckpt", "model.bin"])
def test_pickles_are_refused_by_name(name):
    with pytest.raises(rl.TargetError, match=r"pickled.*\.pt2.*safetensors.*skops"):
        load_target(name)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_refused(module, zipped):
    torch.save(module.state_dict(), "model.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(rl.TargetError, match=r"torch\.save.*pickled"):
        load_target("model.pt")


def bomb_bytes(folder: Path, torch_format: bool) -> bytes:
    if not torch_format:
        return pickle.dumps(Bomb(folder / "exploded"))
    buffer = io.BytesIO()
    torch.save(Bomb(folder / "exploded"), buffer)
    return buffer.getvalue()


def with_first_entry(path: str, part: str, **changes: object) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(part))
        content = json.loads(archive.read(name))
    entry = next(iter(content["config"].values()))
    entry |= changes
    return {part: json.dumps(content).encode()}


def test_pickled_sample_inputs_of_a_program_are_not_read(folder, module):
    path = rewritten(exported(module), {"data/sample_inputs/model.pt": bomb_bytes(folder, True)})
    assert_answers_as(load_target(path), module)
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("where", ["weight", "legacy weights", "legacy constants", "opaque constant", "compiled code"])
def test_a_program_with_pickled_parts_is_refused_and_they_do_not_run(folder, module, where):
    path = exported(module)
    weights, constants = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
    opaque = {"config": {"k": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}}}
    changes = {
        "weight": {
            **with_first_entry(path, weights, use_pickle=True),
            "data/weights/weight_0": bomb_bytes(folder, True),
        },
        "legacy weights": {"data/weights/model.pt": bomb_bytes(folder, True)},
        "legacy constants": {"data/constants/model.pt": bomb_bytes(folder, True)},
        "opaque constant": {
            constants: json.dumps(opaque).encode(),
            "data/constants/opaque_obj_0": bomb_bytes(folder, False),
        },
        "compiled code": {"data/aotinductor/model/model.so": b"\x7fELF"},
    }[where]
    with pytest.raises(rl.TargetError, match="pickled"):
        load_target(rewritten(path, changes))
    assert not (folder / "exploded").exists()


def test_a_bomb_in_torchscript_s_clothes_does_not_explode(folder, module):
    path = rewritten(scripted(module), {"data.pkl": bomb_bytes(folder, False)})
    with pytest.raises(rl.TargetError):
        load_target(path)
    assert not (folder / "exploded").exists()


def test_skops_files_with_other_types_are_refused():
    skops.io.dump(make_pipeline(FunctionTransformer(eval), LinearRegression()), "model.skops")
    with pytest.raises(rl.TargetError, match=r"builtins\.eval"):
        load_target("model.skops")


@pytest.mark.parametrize("ending", ["pt", "pt2", "safetensors", "skops"])
@pytest.mark.parametrize("content", [b"", b"nonsense\n" * 50, b"PK\x03\x04 not a zip"])
def test_nonsense_is_refused(ending, content):
    Path(f"model.{ending}").write_bytes(content)
    with pytest.raises(rl.TargetError, match=f"model.{ending}"):
        load_target(f"model.{ending}")


@pytest.mark.parametrize("ending", ["pt", "pt2", "skops"])
def test_a_zip_of_something_else_is_refused(ending):
    with zipfile.ZipFile(f"model.{ending}", "w") as archive:
        archive.writestr("folder/readme", "nothing to see")
    with pytest.raises(rl.TargetError, match=f"model.{ending}"):
        load_target(f"model.{ending}")


def test_weights_that_do_not_fit_are_refused(made):
    save_file({"other.weight": torch.zeros(2, 2)}, "weights.safetensors")
    with pytest.raises(rl.TargetError, match="do not fit"):
        load_target("weights.safetensors", factory=f"{made}:module")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("model", "expected package.module:factory, an exported program"),
        ("missing.onnx", "nothing of that name"),
        ("missing.pt2", "nothing of that name"),
        ("no_such_module_here:make", "no module 'no_such_module_here'"),
        (":make", "expected package.module:factory"),
        ("{made}:", "expected package.module:factory"),
        ("{made}:nope", "has no 'nope'; it has module"),
        ("{made}:number", "expected a function that returns a model, got int"),
        ("{made}:returns_nothing", "expected an nn.Module.*got NoneType"),
        ("{made}:raises", "ValueError: no weights today"),
        ("{made}:leaves", "SystemExit"),
        ("{made}:wants_more", "called without arguments, failed with TypeError"),
        ("{made}:unfitted", "not fitted"),
    ],
)
def test_what_cannot_be_loaded_is_explained(made, target, message):
    with pytest.raises(rl.TargetError, match=message):
        load_target(target.format(made=made))


def test_a_folder_is_not_a_file(folder):
    (folder / "model.pt2").mkdir()
    with pytest.raises(rl.TargetError, match="got a folder"):
        load_target("model.pt2")


def test_a_module_that_fails_on_import_is_explained(folder):
    (folder / "broken_on_import.py").write_text("import a_package_nobody_has")
    with pytest.raises(rl.TargetError, match="no module 'a_package_nobody_has'"):
        load_target("broken_on_import:make")


def test_options_that_do_not_apply_are_refused(made, module):
    with pytest.raises(rl.TargetError, match="leave out --values"):
        load_target(f"{made}:oracle", values="logits")
    with pytest.raises(rl.TargetError, match="leave out --input-shape"):
        load_target(f"{made}:estimator", input_shape=(4,))
    with pytest.raises(rl.TargetError, match=r"--factory belongs to a \.safetensors file"):
        load_target(exported(module), factory=f"{made}:module")


def test_a_wrong_shape_is_explained(made):
    with pytest.raises(rl.TargetError, match=r"with inputs of shape \(7,\)"):
        load_target(f"{made}:module", input_shape=(7,))


def test_fingerprints_tell_files_apart_by_their_content(folder):
    for name, content in {"a.pt2": b"1", "b.pt2": b"1", "c.pt2": b"2"}.items():
        (folder / name).write_bytes(content)
    assert fingerprint("a.pt2") == fingerprint("b.pt2") != fingerprint("c.pt2")
    assert fingerprint("package:make") == "package:make"
