"""What a release consists of: a small source distribution, a wheel of the package alone, extras, a citation."""

import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from twine.commands.check import check

import relumine as rl

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NOT_FOR_USERS = {"all", "docs", "release", "test", "benchmark"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution, and the wheel that is built from it and nothing else."""
    folder = tmp_path_factory.mktemp("dist")
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(folder))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (wheel,) = WheelBuilder(str(folder / f"relumine-{rl.__version__}")).build(
        directory=str(folder), versions=["standard"]
    )
    return Path(sdist), Path(wheel)


def test_the_source_distribution_has_sources_and_texts_only(built):
    with tarfile.open(built[0]) as archive:
        names = {Path(name).parts[1] for name in archive.getnames()}
    texts = {path.name for path in ROOT.glob("*.md")}
    assert names - {".gitignore"} == texts | {
        "src",
        "pyproject.toml",
        "PKG-INFO",
        "CITATION.cff",
        "LICENSE",
        "constraints.txt",
    }
    assert built[0].stat().st_size < 1.5e6


def test_the_wheel_is_the_package(built):
    inside = set(zipfile.ZipFile(built[1]).namelist())
    ours = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name and ".egg-info" not in name}
    assert {name for name in inside if ".dist-info/" not in name} == ours
    about = f"relumine-{rl.__version__}.dist-info"
    assert {f"{about}/licenses/LICENSE", f"{about}/entry_points.txt", "relumine/py.typed"} <= inside


def test_an_index_would_take_both(built):
    assert not check([str(path) for path in built], strict=True)


def test_all_is_every_extra_that_users_need():
    (everything,) = EXTRAS["all"]
    assert set(everything.removeprefix("relumine[").removesuffix("]").split(",")) == EXTRAS.keys() - NOT_FOR_USERS


def test_the_citation_can_be_read():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "title", "message", "authors", "version"} <= citation.keys()
    assert citation["preferred-citation"]["doi"] == "10.1145/3287560.3287562"
