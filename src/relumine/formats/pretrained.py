"""Hugging Face folders (``save_pretrained``) and hf:// addresses: image and text classifiers of ``transformers``.

Weights are read from safetensors files only, and of the folder only the few files that are named here. What would run
code of the model's author, load other models, or be far larger than the weights is refused before it is built.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from relumine.errors import TargetError, translated
from relumine.formats.loaded import Loaded
from relumine.oracle.base import GradientKind, Oracle, ValueKind
from relumine.text import one_line

if TYPE_CHECKING:
    from relumine.oracle.tokens import Encode

_CONFIG = "config.json"
_REPOSITORY = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_NEEDED = (_CONFIG, "*.safetensors", "*.safetensors.index.json", "tokenizer.json", "preprocessor_config.json")
_KINDS = {"ForImageClassification": "image", "ForSequenceClassification": "text"}
_MOST_CONFIG = 2**20  # configurations have some kilobytes
_MOST_INDEX = 16 * 2**20  # some 100 bytes for each tensor
# Fields of a configuration that bring code, other libraries or other models along.
_REFUSED = ("auto_map", "quantization_config", "custom_pipelines")
# Longest text that is asked, in tokens, unless --input-shape says otherwise.
_LONGEST = 128


def downloaded(address: str) -> Path:
    """The folder of hf://org/model or hf://org/model@revision, from the Hub or from its cache on this machine."""
    found = _REPOSITORY.fullmatch(address)
    if found is None:
        raise TargetError(f"{address}: expected hf://ORG/MODEL or hf://ORG/MODEL@REVISION")
    _require_transformers(address)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(found[1], revision=found[2], allow_patterns=list(_NEEDED)))
    except Exception as error:  # the Hub's client has many kinds
        raise TargetError(
            f"{address}: cannot be downloaded ({one_line(error, named=False)[:200]}); check the name and the network, "
            "or give the folder of a model that was saved with save_pretrained"
        ) from error


def load_pretrained(
    folder: Path,
    *,
    input_shape: tuple[int, ...] | None = None,
    values: ValueKind | None = None,
    gradients: GradientKind | None = None,
) -> Loaded | Oracle:
    """An image classifier of pixels in [0, 1], or the oracle of a text classifier; a TargetError for all else."""
    _require_transformers(folder)
    said = _config(folder / _CONFIG)
    kind = _kind(folder, said)
    sizes = _sizes(folder)
    with translated(TargetError, f"{folder}: cannot be loaded: "), _quiet():
        module = _module(folder, said, kind, sizes)
        if kind == "image":
            shape = _image_shape(folder, said)
            return Loaded(_Pixels(module, *_normalisation(folder, shape[0])).eval(), shape)
        return _text_oracle(folder, module, input_shape, values, gradients)


def _require_transformers(target: object) -> None:
    from importlib.util import find_spec

    if find_spec("transformers") is None:
        raise TargetError(f"{target}: needs transformers: pip install 'relumine[transformers]'")


def _config(path: Path, *, most: int = _MOST_CONFIG) -> dict[str, Any]:
    """A JSON object of a folder, of moderate size."""
    try:
        if path.stat().st_size > most:
            raise TargetError(f"{path}: expected at most {most:,} bytes, got {path.stat().st_size:,}")
        said = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TargetError(f"{path}: expected JSON, got {one_line(error)}") from error
    if not isinstance(said, dict):
        raise TargetError(f"{path}: expected a JSON object, got {type(said).__name__}")
    return said


def _kind(folder: Path, said: dict[str, Any]) -> str:
    refused = [name for name in _REFUSED if said.get(name)]
    if refused or (folder / "adapter_config.json").exists():
        raise TargetError(
            f"{folder}: expected a model that transformers itself computes, got one with "
            f"{refused[0] if refused else 'an adapter'}, which brings code or other models along; merge adapters, "
            "dequantise, or export it to ONNX"
        )
    named = said.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else ""
    kind = next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), None)
    if kind is None:
        raise TargetError(f"{folder}: expected a model {' or '.join(_KINDS)}, got architectures = {named!r}"[:400])
    return kind


def _sizes(folder: Path) -> dict[str, int]:
    """How many numbers each tensor of the safetensors files has."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise TargetError(
            f"{folder}: expected weights in .safetensors files, got none; pickled weights (.bin) may run any code: "
            "save the model again with model.save_pretrained(folder)"
        )
    for index in folder.glob("*.safetensors.index.json"):
        _check_index(index, {file.name for file in files})
    sizes: dict[str, int] = {}
    for file in files:
        with translated(TargetError, f"{file}: cannot be loaded: "), safe_open(file, "pt") as opened:
            sizes |= {name: math.prod(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return sizes


def _check_index(path: Path, files: set[str]) -> None:
    """An index of sharded weights names files beside it and no others, which transformers does not ask for."""
    named = _config(path, most=_MOST_INDEX).get("weight_map")
    if not isinstance(named, dict):
        raise TargetError(f"{path}: expected weight_map, a file's name for each tensor, got {type(named).__name__}")
    odd = next((name for name in named.values() if not isinstance(name, str) or name not in files), None)
    if odd is not None:
        raise TargetError(f"{path}: expected names of .safetensors files in its own folder, got {odd!r}"[:400])


def _module(folder: Path, said: dict[str, Any], kind: str, sizes: dict[str, int]) -> nn.Module:
    import transformers

    automatic = {
        "image": transformers.AutoModelForImageClassification,
        "text": transformers.AutoModelForSequenceClassification,
    }[kind]
    _check_numbers(folder, said, len(sizes), sum(sizes.values()))
    how = {"trust_remote_code": False, "local_files_only": True}
    config = transformers.AutoConfig.from_pretrained(folder, **how)
    with torch.device("meta"):  # without its numbers, to see how many there would be
        expected = sum(tensor.numel() for tensor in automatic.from_config(config).state_dict().values())
    if expected > 2 * sum(sizes.values()) + _MOST_CONFIG:
        raise TargetError(
            f"{folder}: the configuration describes {expected:,} numbers, its files have {sum(sizes.values()):,}"
        )
    module, found = automatic.from_pretrained(
        folder,
        config=config,
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
        **how,
    )
    lacking = [*found["missing_keys"], *found["mismatched_keys"]]
    if lacking:
        raise TargetError(f"{folder}: the weights do not fit the configuration: {sorted(map(str, lacking))[0]}")
    return cast(nn.Module, module.eval().requires_grad_(False))


def _check_numbers(folder: Path, said: Any, tensors: int, numbers: int) -> None:
    """No size beyond the numbers there are, and no more layers than tensors, before anything is built."""
    for name, value in said.items() if isinstance(said, dict) else ():
        for number in value if isinstance(value, list) else (value,):
            most = tensors if re.search(r"layer|depth|block|stage", name) else max(numbers, _MOST_CONFIG)
            if isinstance(number, int) and abs(number) > most:
                raise TargetError(f"{folder}: {name} = {number} does not fit {tensors} tensors of {numbers:,} numbers")
            _check_numbers(folder, number, tensors, numbers)


def _image_shape(folder: Path, said: dict[str, Any]) -> tuple[int, int, int]:
    size = said.get("image_size")
    if size is None and (folder / "preprocessor_config.json").is_file():
        prepared = _config(folder / "preprocessor_config.json")
        size = prepared.get("crop_size") if prepared.get("do_center_crop") else prepared.get("size")
    if isinstance(size, dict):
        size = [size.get("height", size.get("shortest_edge")), size.get("width", size.get("shortest_edge"))]
    sizes = size if isinstance(size, list) else [size, size]
    shape = (said.get("num_channels", 3), *sizes)
    if len(shape) != 3 or not all(isinstance(n, int) and 0 < n <= 4096 for n in shape):
        raise TargetError(f"{folder}: expected image_size and num_channels in {_CONFIG}, got {shape}"[:300])
    return shape


def _normalisation(folder: Path, channels: int) -> tuple[list[float], list[float]]:
    """Mean and deviation that the folder's preprocessing takes off pixels in [0, 1]."""
    path = folder / "preprocessor_config.json"
    said = _config(path) if path.is_file() else {}
    if not said.get("do_normalize", "image_mean" in said):
        return [0.0] * channels, [1.0] * channels
    found = []
    for name in ("image_mean", "image_std"):
        numbers: Any = said.get(name)
        plain = isinstance(numbers, list) and all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
        if not plain or len(numbers) != channels:
            raise TargetError(f"{path}: expected {name} with {channels} numbers, got {numbers!r}"[:300])
        found.append([float(n) for n in numbers])
    if min(map(abs, found[1])) == 0:
        raise TargetError(f"{path}: expected image_std above 0, got {found[1]}")
    return found[0], found[1]


def _text_oracle(
    folder: Path, module: Any, shape: tuple[int, ...] | None, values: ValueKind | None, gradients: GradientKind | None
) -> Oracle:
    from relumine.oracle.tokens import EmbeddingOracle, TokenOracle

    config, embedding = module.config, module.get_input_embeddings()
    padding, rows = getattr(config, "pad_token_id", None), int(embedding.weight.shape[0])
    if not isinstance(padding, int) or not 0 <= padding < rows:
        raise TargetError(f"{folder}: expected pad_token_id below {rows} in {_CONFIG}, got {padding!r}")
    # RoBERTa's positions begin behind the padding's.
    longest = getattr(config, "max_position_embeddings", _LONGEST + padding + 1) - padding - 1
    longest = max(1, min(_LONGEST, longest))
    shape = shape or (longest,)
    if len(shape) != 1 or shape[0] > longest:
        raise TargetError(
            f"{folder}: expected --input-shape with the most tokens of a text, up to {longest}, got {shape}"
        )
    encode, texts = _encoder(folder, rows, shape[0]), _Texts(module).eval()
    named = getattr(config, "id2label", None) or {}
    names = tuple(str(named.get(i, i)) for i in range(len(named)))
    said: dict[str, Any] = {} if values is None else {"values": values}
    with translated(TargetError, "cannot be asked: ", file=folder):
        oracle = TokenOracle(
            texts, embedding, padding=padding, longest=shape[0], encode=encode, class_names=names, **said
        )
        return oracle if gradients in (None, "none") else EmbeddingOracle(texts, oracle, gradients=gradients, **said)


def _encoder(folder: Path, rows: int, longest: int) -> "Encode | None":
    """Texts to the ids of their tokens, where the folder says how."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if tokenizer.get_vocab_size() > rows:
        raise TargetError(f"{folder}: tokenizer.json has {tokenizer.get_vocab_size()} tokens, the model {rows}")
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return lambda texts: [encoded.ids for encoded in tokenizer.encode_batch(list(texts))]


class _Pixels(nn.Module):
    """An image classifier's logits of pixels in [0, 1], normalised as its preprocessing does."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, mean: list[float], deviation: list[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.model(pixel_values=(images - self.mean) / self.deviation).logits)


class _Texts(nn.Module):
    """A text classifier's logits of ids and their mask, or of embeddings, which are 0 for padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            return cast(Tensor, self.model(input_ids=given, attention_mask=mask).logits)
        mask = (given != 0).any(dim=2).long()
        mask[:, 0] = 1
        return cast(Tensor, self.model(inputs_embeds=given, attention_mask=mask).logits)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars and advice."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        (logging.enable_progress_bar if bars else partial(int))()
