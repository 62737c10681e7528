"""Models by the addresses people use: MLflow's registry, runs and servers, and Hugging Face's folders."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import relumine as rl
from relumine.cli import app
from relumine.targets import fingerprint, load_target
from servers import free_port, program

X, Y = load_iris(return_X_y=True)
MODEL = LogisticRegression(max_iter=1000).fit(X, Y)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mlruns: a registered model, its alias, and a run with another."""
    folder = tmp_path_factory.mktemp("mlflow")
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow
    from mlflow import MlflowClient

    mlflow.set_tracking_uri(f"file://{folder}/mlruns")
    plain = {"pip_requirements": ["scikit-learn"]}
    with mlflow.start_run() as run:
        mlflow.sklearn.log_model(
            MODEL, name="model", registered_model_name="iris", pyfunc_predict_fn="predict_proba", **plain
        )
    MlflowClient().set_registered_model_alias("iris", "champion", "1")
    (folder / "run").write_text(run.info.run_id)
    mlflow.sklearn.save_model(MODEL, folder / "pickled", serialization_format="cloudpickle", **plain)
    mlflow.set_tracking_uri(None)
    del os.environ["MLFLOW_ALLOW_FILE_STORE"]
    np.savez(folder / "iris.npz", inputs=X, labels=Y)
    return folder


@pytest.fixture
def in_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{store}/mlruns")
    return store


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def audited(target: str, data: str, *arguments: str) -> dict[str, object]:
    name = f"{abs(hash((target, *arguments)))}.json"
    run("audit", target, "--data", data, "--budget", "20", "--seeds", "1", "--workers", "1", "-o", name, *arguments)
    return json.loads(Path(name).read_text())


def test_a_registered_model_is_audited_by_its_address(in_store):
    found = audited("models:/iris@champion", "iris.npz", "--levels", "probabilities,gradients")
    assert found["about"]["target"] == "models:/iris@champion"
    assert {curve["level"] for curve in found["curves"]} == {"probabilities", "gradients"}
    assert max(one["measures"]["agreement"] for one in found["records"] if one["measures"]) > 0.9


def test_every_address_of_a_model_is_the_same_model(in_store):
    (folder,) = (path.parent for path in Path("mlruns").rglob("MLmodel"))
    addresses = ["models:/iris/1", "models:/iris@champion", f"runs:/{Path('run').read_text()}/model", "mlruns"]
    expected = MODEL.predict_proba(X)
    for address in (*addresses, str(folder)):
        np.testing.assert_allclose(load_target(address)(X, gradients=False).values, expected, atol=1e-12)
    assert len({fingerprint(address) for address in (*addresses, str(folder))}) == 1


def test_a_registry_in_a_database_is_asked_by_mlflow(in_store, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    (folder,) = (path.parent.resolve() for path in Path("mlruns").rglob("MLmodel"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")  # MLflow's default kind of store
    client = MlflowClient()
    client.create_registered_model("flowers")
    client.create_model_version("flowers", f"file://{folder}")
    values = load_target("models:/flowers/1")(X, gradients=False).values
    np.testing.assert_allclose(values, MODEL.predict_proba(X), atol=1e-12)


def test_what_is_pickled_is_refused_with_advice(in_store, tmp_path):
    with pytest.raises(rl.TargetError, match=r"sklearn flavour is pickled .*skops.*mlflow models serve"):
        load_target("pickled")
    shutil.copytree("pickled", tmp_path / "two" / "a")
    shutil.copytree("pickled", tmp_path / "two" / "b")
    (tmp_path / "two").rename(tmp_path / "mlruns")
    with pytest.raises(rl.TargetError, match="expected one MLflow model in it, got 2"):
        load_target(str(tmp_path / "mlruns"))


def test_an_address_that_is_not_there_is_said(in_store):
    with pytest.raises(rl.TargetError, match=r"MLflow did not find it .*MLFLOW_TRACKING_URI"):
        load_target("models:/nobody/7")


@pytest.mark.parametrize("flavour", ["xgboost", "lightgbm", "onnx", "pytorch"])
def test_flavours_that_are_no_programs(flavour, tmp_path, monkeypatch):
    import lightgbm
    import mlflow
    import onnx
    import xgboost

    monkeypatch.chdir(tmp_path)
    saved, plain = tmp_path / "saved", {"pip_requirements": []}
    if flavour == "xgboost":
        model = xgboost.XGBClassifier(n_estimators=3, max_depth=2).fit(X, Y)
        mlflow.xgboost.save_model(model, saved, **plain)
        expected = model.predict_proba(X)
    elif flavour == "lightgbm":
        booster = lightgbm.train(
            {"objective": "multiclass", "num_class": 3, "verbose": -1}, lightgbm.Dataset(X, Y), num_boost_round=3
        )
        mlflow.lightgbm.save_model(booster, saved, **plain)
        expected = booster.predict(X)
    else:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()
        expected = module(torch.tensor(X, dtype=torch.float32)).detach().numpy()
        if flavour == "pytorch":
            example = X[:3].astype(np.float32)
            mlflow.pytorch.save_model(module, saved, input_example=example, serialization_format="pt2", **plain)
        else:
            shapes = {"input": {0: torch.export.Dim.DYNAMIC}}
            torch.onnx.export(module, (torch.zeros(2, 4),), "m.onnx", dynamo=True, dynamic_shapes=shapes)
            mlflow.onnx.save_model(onnx.load("m.onnx"), saved, **plain)
    np.testing.assert_allclose(load_target(str(saved))(X, gradients=False).values, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("flavors: {sklearn: {pickled_model: ../outside.skops}}", "outside of the model's folder"),
        ("flavors: {sklearn: {pickled_model: /etc/hostname}}", "outside of the model's folder"),
        ("flavors: {onnx: {data: [1]}}", "expected the name of its file"),
        ("flavors: {python_function: {loader_module: os}}", "expected one of the flavours"),
        ("flavors: !!python/object/apply:os.system [touch canary]", "expected the YAML"),
        ("flavors: {onnx: {data: model.onnx}}", "names model.onnx, which is not there"),
        ("- 1", "expected the flavors"),
        ("[" * 100_000, "expected the YAML"),
    ],
)
def test_hostile_descriptions_are_refused(text, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.skops").write_bytes(b"")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "MLmodel").write_text(text)
    with pytest.raises(rl.TargetError, match=reason):
        load_target("model")
    assert not (tmp_path / "canary").exists()


def test_a_real_mlflow_server_is_audited(in_store, tmp_path, monkeypatch):
    (folder,) = (path.parent for path in Path("mlruns").rglob("MLmodel"))
    port = free_port()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # it calls uvicorn
    command = (
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        str(folder.resolve()),
        "-p",
        str(port),
        "--env-manager",
        "local",
    )
    with program(*command, ready=f"http://127.0.0.1:{port}/ping", folder=tmp_path, seconds=120):
        address = f"http://127.0.0.1:{port}/invocations"
        found = audited(address, "iris.npz", "--input-shape", "4")
        split = rl.Endpoint(address, rl.Offer((4,), 3, values="probabilities", gradients="none"), columns=tuple("abcd"))
        with rl.HttpOracle.at(split) as oracle:
            np.testing.assert_allclose(oracle(X[:5], gradients=False).values, MODEL.predict_proba(X[:5]), rtol=1e-6)
    assert (found["about"]["values"], found["about"]["outputs"]) == ("probabilities", 3)
    assert found["about"]["target_accuracy"] > 0.9


# Hugging Face


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small convolutional image classifier in a folder, and digits."""
    from transformers import ResNetConfig, ResNetForImageClassification

    folder = tmp_path_factory.mktemp("images")
    torch.manual_seed(0)
    config = ResNetConfig(
        num_channels=1,
        embedding_size=8,
        hidden_sizes=[8, 12],
        depths=[1, 1],
        layer_type="basic",
        num_labels=10,
        image_size=8,
    )
    ResNetForImageClassification(config).eval().save_pretrained(folder / "resnet")
    prepared = {"do_normalize": True, "image_mean": [0.5], "image_std": [0.25]}
    (folder / "resnet" / "preprocessor_config.json").write_text(json.dumps(prepared))
    digits, labels = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", inputs=digits.reshape(-1, 1, 8, 8)[:300] / 16, labels=labels[:300])
    return folder


def test_an_image_classifier_s_folder_is_audited(images, monkeypatch):
    monkeypatch.chdir(images)
    found = audited("resnet", "digits.npz", "--levels", "logits")
    assert (found["about"]["input_shape"], found["about"]["outputs"]) == ([1, 8, 8], 10)
    assert [curve["level"] for curve in found["curves"]] == ["logits"]


def test_an_image_classifier_takes_pixels_and_has_gradients(images):
    from transformers import AutoModelForImageClassification

    oracle = load_target(str(images / "resnet"))
    module = AutoModelForImageClassification.from_pretrained(images / "resnet").eval()
    pixels = torch.rand(3, 1, 8, 8, requires_grad=True)
    logits = module(pixel_values=(pixels - 0.5) / 0.25).logits
    answer = oracle(pixels.detach().reshape(3, -1).numpy(), gradients=True)
    np.testing.assert_allclose(answer.values, logits.detach().numpy(), atol=1e-5)
    (slope,) = torch.autograd.grad(logits[:, 4].sum(), pixels)
    np.testing.assert_allclose(answer.jacobians[:, 4], slope.reshape(3, -1).numpy(), atol=1e-5)


def changed(images: Path, to: Path, **config: object) -> Path:
    shutil.copytree(images / "resnet", to)
    said = json.loads((to / "config.json").read_text()) | config
    (to / "config.json").write_text(json.dumps(said))
    return to


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"auto_map": {"AutoModelForImageClassification": "evil.Model"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({"architectures": ["ResNetModel"]}, "expected a model ForImageClassification or"),
        ({"architectures": 3}, "expected a model ForImageClassification or"),
        ({"depths": [10**9, 1]}, "depths = 1000000000 does not fit"),
        ({"embedding_size": 10**12}, "embedding_size = 1000000000000 does not fit"),
        ({"hidden_sizes": [8, 900_000]}, "describes .* numbers"),
        ({"hidden_sizes": [8, 16]}, "weights do not fit|cannot be loaded"),
        ({"depths": [1, 3]}, "weights do not fit"),
        ({"model_type": "no-such-model"}, "cannot be loaded"),
        ({"image_size": -4}, "expected image_size"),
    ],
)
def test_configurations_that_bring_more_than_weights_are_refused(images, tmp_path, config, reason):
    with pytest.raises(rl.TargetError, match=reason):
        load_target(str(changed(images, tmp_path / "model", **config)))


def test_pickled_weights_are_refused(images, tmp_path):
    folder = changed(images, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(rl.TargetError, match=r"\.safetensors files, got none.*save_pretrained"):
        load_target(str(folder))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """An image classifier whose weights are in several files."""
    from transformers import AutoModelForImageClassification, ResNetConfig

    config = ResNetConfig(num_channels=1, embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
    config.image_size = 8
    module = AutoModelForImageClassification.from_config(config)
    module.save_pretrained(tmp_path / "model", max_shard_size="2KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    return tmp_path / "model"


def test_weights_in_several_files_are_read(sharded):
    assert load_target(str(sharded)).offer.inputs == (1, 8, 8)


def test_an_index_that_names_a_file_outside_its_folder_is_refused(sharded):
    index = sharded / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    moved = next(iter(said["weight_map"].values()))
    (sharded / moved).rename(sharded.parent / moved)
    said["weight_map"] = {name: f"../{file}" if file == moved else file for name, file in said["weight_map"].items()}
    index.write_text(json.dumps(said))
    with pytest.raises(rl.TargetError, match=r"index\.json: expected names of .* in its own folder, got '\.\./"):
        load_target(str(sharded))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Where the Hub's client keeps what it downloaded, without a network."""
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # for workers, which are processes of their own
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # for the worker processes of an audit
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("revision", ["", "@main", f"@{'a' * 40}"])
def test_a_model_of_the_hub_is_audited_from_the_cache(images, cache, monkeypatch, revision):
    kept = cache / "models--somebody--resnet"
    shutil.copytree(images / "resnet", kept / "snapshots" / ("a" * 40))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("a" * 40)
    monkeypatch.chdir(images)
    address = f"hf://somebody/resnet{revision}"
    found = audited(address, "digits.npz", "--levels", "logits", "--run", str(cache / "run"))
    assert (found["about"]["target"], found["about"]["input_shape"]) == (address, [1, 8, 8])


def test_the_hub_without_a_network_is_said(cache):
    with pytest.raises(rl.TargetError, match=r"hf://nobody/none: cannot be downloaded .*folder"):
        load_target("hf://nobody/none")
    for wrong in ("hf://none", "hf://a/b/c", "hf://a/b;c"):
        with pytest.raises(rl.TargetError, match="expected hf://ORG/MODEL"):
            load_target(wrong)
