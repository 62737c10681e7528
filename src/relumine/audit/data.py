"""The owner's inputs: arrays, tables, a folder of images, or IDX files, checked before anything is asked.

Nothing in these files is executed: arrays of Python objects (pickles) are refused, and images are opened in a few
plain formats only. What is too big, damaged, or not of the target's shape is a DataError that says so.
"""

import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relumine.audit.tables import TABLES, read_table
from relumine.errors import DataError
from relumine.oracle.base import Array, Offer
from relumine.reconstruct.verification import fresh_points
from relumine.text import one_line

# The name of the data where none was given.
GAUSSIAN = "random inputs (no data given)"
_GAUSSIAN_INPUTS = 4000

# More inputs than these are not needed: the rest is left out, chosen at random.
_MOST_INPUTS = 20_000
# Numbers and packed files that are held at once, at most.
_MOST_BYTES = 2**31

_INPUT_NAMES = ("inputs", "x", "x_test", "images", "data", "arr_0")
_LABEL_NAMES = ("labels", "y", "y_test", "targets", "arr_1")
_NAMES_NAME = "class_names"

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_IDX_IMAGES = re.compile(r"images?[-.]idx\d[-.]ubyte(\.gz|\.xz)?$")

_FORMS = "an .npz, .npy, .csv or .parquet file, a folder of images, an IDX file of images or a folder with one"
# How files of other kinds become one of these.
_CONVERT = {
    ".pkl .pickle .joblib .pt .pth": "it may run code when it is read; in your own Python, numpy.savez('inputs.npz', "
    "inputs=X, labels=y)",
    ".xlsx .xls .ods": "save the sheet as CSV",
    ".h5 .hdf5 .mat .tfrecord": "read it with its library, then numpy.savez('inputs.npz', inputs=X, labels=y)",
    ".feather .arrow .json .jsonl": "with pandas, DataFrame.to_parquet('inputs.parquet')",
    ".zip .tar .gz .tgz": "unpack it first",
    ".png .jpg .jpeg .bmp .gif .webp .tif .tiff": "give the folder of images, not one of them",
}

# Classes 0, 1, 2, …, or the numbers that a regressor is to predict.
Labels = NDArray[np.int64] | NDArray[np.float64]


class Halves(NamedTuple):
    """What an attacker may draw queries from, and what clones are judged on."""

    pool: "AuditData"
    test: "AuditData"


@dataclass(frozen=True, eq=False)
class AuditData:
    """Inputs n×shape, their labels if they are known, and what they are called.

    class_names: one per class, empty where there are none
    name:        for the report
    """

    inputs: NDArray[np.float32]
    labels: Labels | None
    class_names: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels.shape != (len(self.inputs),):
            raise DataError(
                f"{self.name}: expected a label for each of {len(self.inputs)} inputs, got {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self.inputs.shape[1:]

    @property
    def rows(self) -> Array:
        """The inputs as an oracle takes them: n×d in float64."""
        return self.inputs.reshape(len(self), -1).astype(np.float64)

    @property
    def deviation(self) -> float:
        """σ_D, the standard deviation of all their numbers."""
        return float(self.inputs.std(dtype=np.float64))

    @property
    def given(self) -> bool:
        """Whether they are the owner's, and not drawn at random."""
        return self.name != GAUSSIAN

    def chosen(self, order: NDArray[np.intp]) -> "AuditData":
        """Some of them."""
        labels = None if self.labels is None else self.labels[order]
        return AuditData(self.inputs[order], labels, self.class_names, self.name)

    def halves(self, seed: int = 0) -> Halves:
        """Split at random: attackers draw from one half, the other judges."""
        if len(self) < 2:
            raise DataError(f"{self.name}: expected at least 2 inputs, a half to ask and a half to judge by")
        order = np.random.default_rng(seed).permutation(len(self))
        middle = len(self) // 2
        return Halves(self.chosen(order[:middle]), self.chosen(order[middle:]))


def gaussian_data(offer: Offer, rng: int | np.random.Generator | None = 0) -> AuditData:
    """Inputs where none are given: N(0, 1) numbers, or points of the box of valid inputs."""
    points = fresh_points(offer, _GAUSSIAN_INPUTS, np.random.default_rng(rng))
    return AuditData(points.reshape(-1, *offer.inputs).astype(np.float32), None, (), GAUSSIAN)


def load_data(
    path: str | Path,
    shape: Sequence[int],
    classes: int | None = None,
    *,
    label_column: str | None = None,
    real: bool = False,
) -> AuditData:
    """The inputs in ``path`` for a target of this ``shape`` that tells ``classes`` apart, or predicts ``real`` numbers.

    .npz:             ``inputs`` (n×shape, n×d, or channels last) and, if known, ``labels`` and ``class_names``
    .npy:             the inputs alone
    .csv, .parquet:   a row per input; labels in ``label_column``, or in a column called label, target, class or y
    folder of images: one subfolder per class, or images without labels
    IDX:              a file of images or a folder with one; labels from the file beside it, if there is one

    Bytes are scaled to [0, 1]; other numbers are taken as they are.
    """
    path, shape = Path(path), tuple(shape)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected {_FORMS}")
    if path.suffix.lower() in TABLES and path.is_file():
        found = _Found(*read_table(path, prod(shape), label_column))
    elif label_column is not None:
        raise DataError(f"{path}: --label-column belongs to a .csv or .parquet file; leave it out")
    else:
        found = reader_of(path)(path, shape)
    return checked_data(found.inputs, found.labels, found.class_names, shape, classes, path, real=real)


def checked_data(
    inputs: "np.ndarray[Any, Any]",
    labels: "np.ndarray[Any, Any] | None",
    class_names: tuple[str, ...],
    shape: tuple[int, ...],
    classes: int | None,
    path: Path | str,
    *,
    real: bool = False,
) -> AuditData:
    """Inputs and labels from anywhere, as a target of this shape takes them; ``path`` is what messages call them."""
    numbers = _numbers(_of_shape(inputs, shape, path), path)
    found, names = _labels(_Found(inputs, labels, class_names), len(numbers), classes, path, real=real)
    if not real:
        _check_classes(found, names, classes, path)
    return AuditData(numbers, found, names, Path(path).name or str(path)).chosen(_kept(len(numbers)))


class _Found(NamedTuple):
    """What a file or folder holds, unchecked."""

    inputs: "np.ndarray[Any, Any]"
    labels: "np.ndarray[Any, Any] | None" = None
    class_names: tuple[str, ...] = ()


def reader_of(path: Path) -> Callable[[Path, tuple[int, ...]], _Found]:
    """What reads this file or folder, or a DataError."""
    if path.is_dir():
        return _from_idx_folder if _idx_files(path) else _from_images
    if path.suffix.lower() in (".npz", ".npy"):
        return _from_npz if path.suffix.lower() == ".npz" else _from_npy
    if _IDX_IMAGES.search(path.name):
        return _from_idx
    advice = next((how for endings, how in _CONVERT.items() if path.suffix.lower() in endings.split()), None)
    how = advice or "numpy.savez('inputs.npz', inputs=X, labels=y) writes one; IDX files end in images-idx3-ubyte"
    raise DataError(f"{path}: expected {_FORMS}; {how}")


# .npz


def _from_npz(path: Path, _: tuple[int, ...]) -> _Found:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            inputs = next((names[name] for name in _INPUT_NAMES if name in names), None)
            if inputs is None:
                got = ", ".join(list(names)[:8]) or "nothing"
                raise DataError(f"{path}: expected an array called 'inputs' (and 'labels'), got {got}")
            labels = next((names[name] for name in _LABEL_NAMES if name in names), None)
            called = names.get(_NAMES_NAME)
            return _Found(
                _array(archive, inputs, path),
                None if labels is None else _array(archive, labels, path),
                () if called is None else tuple(str(name) for name in _array(archive, called, path).ravel()),
            )
    except DataError:
        raise
    except Exception as error:  # a damaged archive or header can raise almost anything
        raise DataError(f"{path}: cannot be read as .npz ({one_line(error)}); write it with numpy.savez") from error


def _from_npy(path: Path, _: tuple[int, ...]) -> _Found:
    try:
        return _Found(_read_array(path.open, "inputs", path.stat().st_size, path))
    except DataError:
        raise
    except Exception as error:  # a damaged header can raise almost anything
        raise DataError(f"{path}: cannot be read as .npy ({one_line(error)}); write it with numpy.save") from error


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> "np.ndarray[Any, Any]":
    size = archive.getinfo(name).file_size
    return _read_array(lambda _: archive.open(name), name, size, path)


def _read_array(open_: Callable[[str], Any], name: str, there: int, path: Path) -> "np.ndarray[Any, Any]":
    """One array, after a look at its header: no objects, and no more numbers than the file holds."""
    with open_("rb") as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise DataError(
            f"{path}: the array {name!r} holds Python objects, which are pickled and may run any code; "
            "save plain numbers (for labels, integers or strings)"
        )
    size = prod(shape) * dtype.itemsize
    if size > _MOST_BYTES:
        raise DataError(f"{path}: the array {name!r} of shape {shape} takes {size / 2**30:.1f} GiB; {_fewer()}")
    if size > there:
        raise DataError(f"{path}: the array {name!r} says that its shape is {shape}, but its file is shorter")
    with open_("rb") as stream:
        result: np.ndarray[Any, Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return result


# IDX


def _idx_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and _IDX_IMAGES.search(path.name))


def _from_idx_folder(folder: Path, shape: tuple[int, ...]) -> _Found:
    """The test set, where there are several: targets were trained on the other."""
    found = _idx_files(folder)
    tests = [path for path in found if path.name.startswith(("t10k", "test"))] or found
    if len({path.name.split(".")[0] for path in tests}) > 1:
        raise DataError(
            f"{folder}: expected one IDX file of images, got {', '.join(path.name for path in tests)}; name one of them"
        )
    return _from_idx(tests[0], shape)


def _from_idx(path: Path, _: tuple[int, ...]) -> _Found:
    from relumine.zoo.files import content, idx

    inputs = idx(content(path, _MOST_BYTES), str(path))
    beside = re.sub(r"images?[-.]idx\d", "labels-idx1", path.name).removesuffix(".gz").removesuffix(".xz")
    labels = next((one for end in ("", ".gz", ".xz") if (one := path.parent / f"{beside}{end}").is_file()), None)
    return _Found(inputs, None if labels is None else idx(content(labels, _MOST_BYTES), str(labels)))


# Images


def _from_images(folder: Path, shape: tuple[int, ...]) -> _Found:
    groups = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    groups = [group for group in groups if _images_in(group)]
    # Folders called 0, 1, 2, … are the classes of these numbers; others are numbered in the order of their names.
    numbered = all(group.name.isascii() and group.name.isdecimal() for group in groups)
    labels = [int(group.name) if numbered else i for i, group in enumerate(groups)]
    found = [(path, label) for group, label in zip(groups, labels, strict=True) for path in _images_in(group)]
    found = found or [(path, 0) for path in _images_in(folder)]
    if not found:
        raise DataError(f"{folder}: expected images ({', '.join(_IMAGES)}), there or in subfolders by class; got none")
    found = [found[i] for i in _kept(len(found))]
    if len(found) * prod(shape) > _MOST_BYTES:
        raise DataError(f"{folder}: {len(found)} images of {prod(shape)} bytes are too many; {_fewer()}")
    inputs = np.stack([_image(path, shape) for path, _ in found])
    if not groups:
        return _Found(inputs)
    return _Found(
        inputs, np.array([label for _, label in found]), () if numbered else tuple(group.name for group in groups)
    )


def _images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _IMAGES and path.is_file())


def _image(path: Path, shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    """Bytes of the target's shape: grey, or red, green and blue planes."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of images so large that unpacking them may be an attack
            with Image.open(path, formats=_IMAGE_FORMATS) as image:
                width, height = image.size
                colours = _colours(shape, height, width, path)
                pixels = np.asarray(image.convert("L" if colours == 1 else "RGB"))
    except DataError:
        raise
    except Exception as error:  # decoders of damaged images can raise almost anything
        raise DataError(f"{path}: cannot be read as an image ({one_line(error)}); replace or remove it") from error
    return pixels.reshape(shape) if colours == 1 else np.moveaxis(pixels, -1, 0).reshape(shape)


def _colours(shape: tuple[int, ...], height: int, width: int, path: Path) -> int:
    """1 or 3, where an image of this size is an input of the target's shape."""
    for colours in (1, 3):
        if shape in ((colours, height, width), (colours * height * width,)) or (colours, *shape) == (1, height, width):
            return colours
    raise DataError(
        f"{path}: an image of {width}×{height} pixels is no input of shape {shape}; expected images of the target's "
        "size (they are not resized here, because only you know how the target's inputs are prepared), or an .npz file"
    )


# Checks


def _of_shape(inputs: "np.ndarray[Any, Any]", shape: tuple[int, ...], path: Path | str) -> "np.ndarray[Any, Any]":
    """n×shape. Only what cannot be mistaken is reshaped: flat rows, channels last, axes of length 1."""
    got = inputs.shape[1:]
    if inputs.ndim == 0 or len(inputs) == 0:
        raise DataError(f"{path}: expected inputs of shape {('n', *shape)}, got {inputs.shape}")
    if len(shape) == 3 and got == (*shape[1:], shape[0]) and got != shape:
        return np.moveaxis(inputs, -1, 1)
    same = [axis for axis in got if axis != 1] == [axis for axis in shape if axis != 1]
    if same or (prod(got) == prod(shape) and 1 in (len(got), len(shape))):
        return inputs.reshape(-1, *shape)
    raise DataError(f"{path}: the target takes inputs of shape {shape}, these have {got}; save them as {('n', *shape)}")


def _numbers(inputs: "np.ndarray[Any, Any]", path: Path | str) -> NDArray[np.float32]:
    if inputs.dtype.kind not in "fiub":
        raise DataError(f"{path}: expected inputs that are numbers, got {inputs.dtype}")
    if inputs.size * 4 > _MOST_BYTES:
        raise DataError(f"{path}: {len(inputs)} inputs of {inputs[0].size} numbers are too many; {_fewer()}")
    with np.errstate(over="ignore"):
        numbers = inputs.astype(np.float32)
    if inputs.dtype == np.uint8:
        numbers /= np.float32(255)
    bad = np.flatnonzero((~np.isfinite(numbers)).reshape(len(numbers), -1).any(axis=1))
    if len(bad):
        counted = f"{len(bad)} of {len(numbers)} inputs, the first of them number {bad[0] + 1}"
        raise DataError(f"{path}: NaN or infinity in {counted}; remove them, or fill in as in the model's training")
    return numbers


def _labels(
    found: _Found, count: int, classes: int | None, path: Path | str, *, real: bool
) -> tuple[Labels | None, tuple[str, ...]]:
    labels, names = found.labels, found.class_names
    if labels is None:
        return None, names
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (count,):
        raise DataError(f"{path}: expected {count} labels, one per input, got shape {labels.shape}")
    if real:
        return _real_labels(labels, path), ()
    if labels.dtype.kind in "US":
        if names:
            raise DataError(f"{path}: labels are words already; leave out '{_NAMES_NAME}', or save them as integers")
        text = labels if labels.dtype.kind == "U" else np.strings.decode(labels, "utf-8", "replace")
        words, numbers = np.unique(text, return_inverse=True)
        return numbers.astype(np.int64), tuple(words.tolist())
    known, numbers = np.unique(labels, return_inverse=True)
    if classes is not None and len(known) == max(classes, 2) and known.dtype.kind in "fiu" and not names:
        # As many numbers as there are classes stand for these in their order, as scikit-learn has it.
        counted = np.array_equal(known, np.arange(len(known)))
        return numbers.astype(np.int64), () if counted else tuple(f"{number:g}" for number in known)
    if labels.dtype.kind not in "fiub" or not ((labels >= 0) & (labels < 2**31) & (np.floor(labels) == labels)).all():
        raise DataError(
            f"{path}: expected labels 0, 1, 2, … (or words), got {labels.dtype} such as {labels[0]}; "
            "is the target a regressor? Then say --values real"
        )
    return labels.astype(np.int64), names


def _real_labels(labels: "np.ndarray[Any, Any]", path: Path | str) -> NDArray[np.float64]:
    if labels.dtype.kind not in "fiub" or not np.isfinite(labels).all():
        raise DataError(f"{path}: the target predicts numbers; expected finite numbers to predict, got {labels.dtype}")
    return labels.astype(np.float64)


def _check_classes(labels: Labels | None, names: tuple[str, ...], classes: int | None, path: Path | str) -> None:
    # A single output tells two classes apart.
    known = None if classes is None else max(classes, 2)
    if known is not None and labels is not None and labels.max() >= known:
        raise DataError(f"{path}: the target tells {known} classes apart, got the label {labels.max()}")
    if known is not None and len(names) > known:
        raise DataError(f"{path}: the target tells {known} classes apart, got {len(names)} class names")


def _kept(count: int) -> NDArray[np.intp]:
    """Which of the inputs are used."""
    if count <= _MOST_INPUTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).permutation(count)[:_MOST_INPUTS])


def _fewer() -> str:
    return f"save fewer inputs (some {_MOST_INPUTS // 10:,} are enough)"
