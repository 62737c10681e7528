"""MLflow models: models:/NAME/VERSION, models:/NAME@ALIAS, runs:/RUN/PATH, a model's folder, or mlruns with one in it.

MLflow finds (and downloads) the folder, nothing more: its own loaders unpickle. The flavours whose files are no
programs are read by relumine's readers; the others are refused.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relumine.environment import environment
from relumine.errors import TargetError
from relumine.formats.loaded import library
from relumine.text import one_line

SCHEMES = ("models:/", "runs:/", "mlflow-artifacts:/")
MLMODEL = "MLmodel"
_MOST_BYTES = 2**20  # descriptions have some kilobytes
# Below a folder with more files than these, models are not searched for.
_MOST_FILES = 100_000

# Newer versions of MLflow do not read mlruns unless told to. Bars of files that are copied are no progress.
_SETTINGS = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}

# By flavour: the field that names its file, and the endings of files that are no programs, with the format each is.
_FLAVOURS: dict[str, tuple[str, dict[str, str]]] = {
    "onnx": ("data", {".onnx": ".onnx"}),
    "xgboost": ("data", {".ubj": ".ubj", ".json": ".json"}),
    "lightgbm": ("data", {".lgb": ".txt", ".txt": ".txt"}),
    "sklearn": ("pickled_model", {".skops": ".skops"}),
    "pytorch": ("model_data", {".pt2": ".pt2"}),
    "transformers": ("model_binary", {"": ""}),
}
_SAFELY = (
    "log it again as mlflow.sklearn.log_model(…, serialization_format='skops'), mlflow.pytorch.log_model(…, "
    "serialization_format='pt2'), mlflow.onnx, mlflow.xgboost, or mlflow.lightgbm of a Booster; or serve it (mlflow "
    "models serve) and give the address, http://…/invocations"
)


def is_mlflow(text: str) -> bool:
    """Whether a target is an address of MLflow's, or a folder with a model of its in it."""
    folder = Path(text)
    return text.startswith(SCHEMES) or (folder.is_dir() and bool(folder.name == "mlruns" or _has_model(folder)))


def _has_model(folder: Path) -> bool:
    return (folder / MLMODEL).is_file()


@contextmanager
def model_folder(text: str) -> Iterator[Path]:
    """The folder with the MLmodel file; what was downloaded for it goes with it."""
    folder = Path(text)
    if not text.startswith(SCHEMES):
        yield folder if _has_model(folder) else _only_model_in(folder)
        return
    with TemporaryDirectory(prefix="relumine-mlflow-") as own:
        yield _downloaded(text, own)


def _only_model_in(folder: Path) -> Path:
    """The one model below mlruns, where there is one."""
    found = []
    for i, (path, _, files) in enumerate(os.walk(folder)):
        if MLMODEL in files:
            found.append(Path(path))
        if i > _MOST_FILES:
            break
    if len(found) != 1:
        listed = ", ".join(map(str, sorted(found)[:4])) or "none"
        raise TargetError(f"{folder}: expected one MLflow model in it, got {len(found)} ({listed}); give one's folder")
    return found[0]


def _downloaded(address: str, own: str) -> Path:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    artifacts = library("mlflow.artifacts", address, "mlflow")
    try:
        with environment(_SETTINGS):
            return Path(artifacts.download_artifacts(artifact_uri=address, dst_path=own))
    except Exception as error:  # stores have errors of their own
        where = os.environ.get("MLFLOW_TRACKING_URI") or "this folder's mlflow.db or mlruns"
        raise TargetError(
            f"{address}: MLflow did not find it ({one_line(error, named=False)[:200]}) in {where}: "
            "MLFLOW_TRACKING_URI and MLFLOW_REGISTRY_URI say where yours are"
        ) from error


def model_file(folder: Path, said_as: str) -> tuple[Path, str]:
    """The file that holds the model, and the ending of its format ("" for a folder of save_pretrained)."""
    flavours = _flavours(folder / MLMODEL)
    for flavour, (field, formats) in _FLAVOURS.items():
        said = flavours.get(flavour)
        if not isinstance(said, dict):
            continue
        path = _inside(folder, said.get(field), said_as)
        if flavour == "pytorch" and path.is_dir():
            exported = (path / "model.pt2").exists()
            path = _inside(folder, f"{said[field]}/model.{'pt2' if exported else 'pth'}", said_as)
        ending = path.suffix.lower() if path.suffix.lower() in formats or "" not in formats else ""
        if ending not in formats:
            raise TargetError(
                f"{said_as}: its {flavour} flavour is pickled ({path.name}), and pickles may run any code when they "
                f"are loaded; {_SAFELY}"
            )
        if not path.exists():
            raise TargetError(f"{said_as}: {MLMODEL} names {path.name}, which is not there; log the model again")
        return path, formats[ending]
    named = ", ".join(str(name) for name in list(flavours)[:8]) or "none"
    raise TargetError(
        f"{said_as}: expected one of the flavours {', '.join(_FLAVOURS)}, got {named}"[:400] + f"; {_SAFELY}"
    )


def _flavours(path: Path) -> dict[str, Any]:
    yaml = library("yaml", path, "mlflow")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise TargetError(f"{path}: expected at most {_MOST_BYTES:,} bytes, got {path.stat().st_size:,}")
        said = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise TargetError(f"{path}: expected the YAML of an MLflow model, got {one_line(error)[:200]}") from error
    flavours = said.get("flavors") if isinstance(said, dict) else None
    if not isinstance(flavours, dict):
        raise TargetError(f"{path}: expected the flavors of an MLflow model, got none")
    return flavours


def _inside(folder: Path, name: object, said_as: str) -> Path:
    """A file of the folder; links that lead out of it are refused."""
    if not isinstance(name, str) or not name:
        raise TargetError(f"{said_as}: expected the name of its file in {MLMODEL}, got {name!r}"[:300])
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise TargetError(f"{said_as}: {MLMODEL} names a file outside of the model's folder, {name!r}"[:300])
    return path
