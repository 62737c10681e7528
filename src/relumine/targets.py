"""Loading a TARGET: from the words on a command line to an oracle.

``_FORMS`` lists what there is, docs/formats.md how each is read. No file is allowed to run code (``formats/`` says how
that is seen to). A factory is a program: name only those that you trust.
"""

import hashlib
import importlib
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relumine.endpoints import EndpointOptions, is_url, oracle_at
from relumine.errors import RelumineError, TargetError, translated
from relumine.formats.loaded import Loaded, width_of_first_layer
from relumine.formats.mlflow_model import is_mlflow, model_file, model_folder
from relumine.oracle.base import GradientKind, Offer, Oracle, ValueKind
from relumine.reconstruct.export import load
from relumine.text import one_line

if TYPE_CHECKING:
    import torch

_FORMS = (
    "package.module:factory, an exported program (.pt2), a TorchScript file (.pt), an ONNX file (.onnx), "
    ".safetensors weights with --factory, a scikit-learn model saved by skops (.skops), an XGBoost model (.json, "
    ".ubj), a LightGBM model (.txt), a model of MLflow's (models:/…, runs:/…, its folder), a transformers classifier "
    "(a folder of save_pretrained, hf://org/model), or a server's address (http://…)"
)
# By the ending of a file: the module of formats/ that reads it, and its function of the path and --input-shape.
_READERS = {
    ".skops": ("estimator", "load_skops"),
    ".pt": ("torchscript", "load_torchscript"),
    ".ts": ("torchscript", "load_torchscript"),
    ".pt2": ("exported", "load_exported"),
    ".onnx": ("onnx_module", "load_onnx"),
    ".json": ("boosted_files", "load_xgboost"),
    ".ubj": ("boosted_files", "load_xgboost"),
    ".txt": ("boosted_files", "load_lightgbm"),
}
_PICKLES = (".pkl", ".pickle", ".joblib", ".pth", ".ckpt", ".bin")


@dataclass(frozen=True)
class Options:
    """What the file does not say: the shape of one input, what a value is, which gradients are answered."""

    input_shape: tuple[int, ...] | None = None
    values: ValueKind | None = None
    gradients: GradientKind | None = None

    def given(self) -> dict[str, Any]:
        """Only those that were said, by their names."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def within(self, shape: tuple[int, ...] | None) -> "Options":
        """With the shape that a file declares, where none was said."""
        return replace(self, input_shape=self.input_shape or shape)


def load_target(
    text: str,
    *,
    input_shape: Sequence[int] | None = None,
    values: ValueKind | None = None,
    gradients: GradientKind | None = None,
    factory: str | None = None,
    endpoint: EndpointOptions | None = None,
) -> Oracle:
    """The oracle that ``text`` names, or a TargetError that says what was expected, what was got and what to do."""
    options = Options(None if input_shape is None else tuple(input_shape), values, gradients)
    suffix = Path(text).suffix.lower()
    if factory is not None and suffix != ".safetensors":
        raise TargetError(f"--factory belongs to a .safetensors file, got the target {text!r}; leave it out")
    endpoint = endpoint or EndpointOptions()
    if is_url(text):
        return oracle_at(text, endpoint, inputs=options.input_shape, values=values, gradients=gradients)
    if said := endpoint.given():
        raise TargetError(f"{text}: --{said[0]} belongs to a server's address; leave it out")
    if is_mlflow(text):
        return _from_mlflow(text, options)
    if (folder := _pretrained_folder(text)) is not None:
        return _from_pretrained(folder, options)
    if suffix == ".safetensors" or suffix in _READERS:
        return _from_file(_existing(text), suffix, options, factory)
    if suffix in _PICKLES:
        raise TargetError(f"{text}: {_no_pickle('this kind of file')}")
    if ":" in text:
        return _oracle(_made_by(text), options, text)
    raise TargetError(f"TARGET: expected {_FORMS}; got {text!r}")


def load_backbone(text: str, offer: Offer) -> Oracle:
    """The public backbone of a target of this offer: features and their gradients; or a TargetError."""
    if is_url(text):
        raise TargetError(f"--backbone: expected a file or package.module:factory, got the address {text!r}")
    try:
        return load_target(text, input_shape=offer.inputs, values="real", gradients="all")
    except RelumineError as error:
        raise TargetError(f"--backbone: {error}") from error


def load_architecture(text: str, offer: Offer) -> "torch.nn.Module":
    """A model with the layers of a target of this offer, whatever its parameters; or a TargetError."""
    from relumine.oracle.torch import TorchOracle

    if is_url(text):
        raise TargetError(f"--architecture: expected a file or package.module:factory, got the address {text!r}")
    try:
        loaded = load_target(text, input_shape=offer.inputs, values="real")
    except RelumineError as error:
        raise TargetError(f"--architecture: {error}") from error
    if not isinstance(loaded, TorchOracle):
        raise TargetError(f"--architecture: expected a network that torch computes, got {text!r}")
    return loaded.module


def fingerprint(text: str) -> str:
    """What tells this target from another: the SHA-256 of its file or folder, or the factory's name."""
    if is_mlflow(text):
        with model_folder(text) as folder:
            return fingerprint(str(model_file(folder, text)[0]))
    if (saved := _pretrained_folder(text)) is not None:
        files = sorted(one for one in saved.rglob("*") if one.is_file())
        named = "".join(f"{one.relative_to(saved)} {_digest(one)}\n" for one in files)
        return f"sha256:{hashlib.sha256(named.encode()).hexdigest()}"
    return f"sha256:{_digest(Path(text))}" if Path(text).is_file() else text


def _pretrained_folder(text: str) -> Path | None:
    """The folder of hf://org/model, or one of save_pretrained; None of other targets."""
    if text.startswith("hf://"):
        from relumine.formats.pretrained import downloaded

        return downloaded(text)
    folder = Path(text)
    return folder if folder.is_dir() and (folder / "config.json").is_file() else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_file(path: Path, suffix: str, options: Options, factory: str | None) -> Oracle:
    with translated(TargetError, f"{path}: cannot be loaded: "):
        if suffix == ".safetensors":
            return _from_safetensors(path, options, factory)
        if suffix == ".onnx" and (trees := _onnx_trees(path, options)) is not None:
            return trees
        module, reader = _READERS[suffix]
        with _quiet():
            loaded = getattr(importlib.import_module(f"relumine.formats.{module}"), reader)(path, options.input_shape)
            return _oracle(loaded.model, options.within(loaded.input_shape), path)


def _from_mlflow(text: str, options: Options) -> Oracle:
    with model_folder(text) as folder:
        path, suffix = model_file(folder, text)
        return _from_file(path, suffix, options, None) if suffix else _from_pretrained(path, options)


def _from_pretrained(folder: Path, options: Options) -> Oracle:
    from relumine.formats.pretrained import load_pretrained

    loaded = load_pretrained(folder, **options.given())
    return _oracle(loaded.model, options.within(loaded.input_shape), folder) if isinstance(loaded, Loaded) else loaded


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        other = "a special file" if path.exists() else "nothing of that name"
        raise TargetError(f"{text}: expected a file, got {'a folder' if path.is_dir() else other}")
    return path


def _made_by(text: str) -> object:
    """What the factory ``package.module:name`` returns; the current folder is searched first."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise TargetError(f"expected package.module:factory, got {text!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    made: Any
    try:
        made = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        what = f"no module {error.name!r}" if error.name else str(error)
        raise TargetError(f"{text}: {what} in this folder or among the installed packages") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"{text}: importing {module_name} failed with {one_line(error)}") from error
    for part in name.split("."):
        if not hasattr(made, part):
            raise TargetError(f"{text}: {module_name} has no {name!r}; it has {_public_names(made)}")
        made = getattr(made, part)
    if _is_model(made):
        return made
    if not callable(made):
        raise TargetError(f"{text}: expected a function that returns a model, got {type(made).__name__}")
    try:
        return made()
    except (Exception, SystemExit) as error:
        raise TargetError(f"{text}: the factory, called without arguments, failed with {one_line(error)}") from error


def _public_names(module: object) -> str:
    """Functions and classes that were written there, not imported."""
    home = getattr(module, "__name__", None)
    written = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == home]
    return ", ".join(name for name in written[:8] if not name.startswith("_")) or "no functions"


def _is_model(candidate: object) -> bool:
    return not isinstance(candidate, type) and (
        _is_module(candidate) or predicts(candidate) or isinstance(candidate, Oracle)
    )


def _is_module(candidate: object) -> bool:
    torch = sys.modules.get("torch")  # a caller that holds a module has imported torch
    return torch is not None and isinstance(candidate, torch.nn.Module)


def predicts(candidate: object) -> bool:
    """Whether it predicts as scikit-learn's models do."""
    return any(hasattr(candidate, name) for name in ("predict_proba", "decision_function", "predict"))


def oracle_of(
    model: object,
    *,
    input_shape: Sequence[int] | None = None,
    values: ValueKind | None = None,
    gradients: GradientKind | None = None,
) -> Oracle:
    """The oracle in front of a model in memory, or a TargetError."""
    return _oracle(model, Options(None if input_shape is None else tuple(input_shape), values, gradients), "model")


def _oracle(model: object, options: Options, text: object) -> Oracle:
    """The oracle in front of whatever a factory, a file or a caller gave."""
    if _is_module(model):
        return _torch_oracle(model, options, text)  # type: ignore[arg-type]
    if predicts(model):
        return _sklearn_oracle(model, options, text)
    if isinstance(model, Oracle) and not isinstance(model, type):
        if options.given():
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in options.given())
            raise TargetError(f"{text}: an Oracle makes its own offer; leave out {flags}")
        return model
    raise TargetError(
        f"{text}: expected an nn.Module, an Oracle, or a model with predict_proba, decision_function or predict, "
        f"got {type(model).__name__}"
    )


def _torch_oracle(module: "torch.nn.Module", options: Options, text: object) -> Oracle:
    from relumine.oracle.torch import TorchOracle

    said = options.given()
    shape = said.pop("input_shape", None) or width_of_first_layer(module)
    if shape is None:
        raise TargetError(f"{text}: the shape of one input is not written there; say it, e.g. --input-shape 1,28,28")
    try:
        return TorchOracle(module, input_shape=shape, **said)
    except RelumineError as error:
        raise TargetError(f"{text}: with inputs of shape {shape}: {error}") from error


def _sklearn_oracle(estimator: object, options: Options, text: object) -> Oracle:
    """With gradients where the model's parameters give them; else its predictions."""
    said = options.given()
    if said.pop("input_shape", None):
        raise TargetError(f"{text}: a model of this kind knows the size of its inputs; leave out --input-shape")
    try:
        from relumine.oracle.sklearn import SklearnOracle

        return SklearnOracle(estimator, **said)
    except RelumineError as error:
        if said.pop("gradients", "none") != "none":
            raise TargetError(f"{text}: --gradients: this model has none ({error}); leave the option out") from error
    from relumine.oracle.boosted import boosted
    from relumine.oracle.predictor import PredictorOracle

    try:
        return PredictorOracle(boosted(estimator) or estimator, **said)
    except RelumineError as error:
        raise TargetError(f"{text}: {error}") from error


def _from_safetensors(path: Path, options: Options, factory: str | None) -> Oracle:
    if factory is None:
        from relumine.formats.dry_run import dry_run

        network = load(path)
        clone = network.to_torch()
        dry_run(clone, network.inputs, path)
        said: dict[str, Any] = {"input_shape": network.inputs, "values": network.values}
        return _torch_oracle(clone, Options(**said | options.given()), path)
    from safetensors.torch import load_file

    module = _made_by(factory)
    if not _is_module(module):
        raise TargetError(f"--factory {factory}: expected an nn.Module to put weights in, got {type(module).__name__}")
    try:
        module.load_state_dict(load_file(path))  # type: ignore[attr-defined]
    except RuntimeError as error:
        raise TargetError(f"{path}: these weights do not fit the module of {factory}: {error}") from error
    return _torch_oracle(module, options, path)  # type: ignore[arg-type]


def _onnx_trees(path: Path, options: Options) -> Oracle | None:
    """The oracle of a file with operators of scikit-learn's kind."""
    from relumine.formats.onnx_trees import is_of_scikit_learn, load_onnx_trees

    if not is_of_scikit_learn(path):
        return None
    if options.gradients not in (None, "none"):
        raise TargetError(f"{path}: operators of scikit-learn's kind have no gradients; leave --gradients out")
    return load_onnx_trees(path, options.values)


def _no_pickle(what: str) -> str:
    return (
        f"{what} is pickled, and pickles may run any code when they are loaded; save the model with "
        "torch.export.save (.pt2), its state dict with safetensors (and --factory), a scikit-learn model with skops, "
        "XGBoost's and LightGBM's models with their own save_model"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's deprecation warnings and logged tracebacks: what matters is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
