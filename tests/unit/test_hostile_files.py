"""No file runs code, none brings the process down, and each is refused with a reason."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import hostile_files as files
import relumine as rl
from relumine.targets import load_target

TESTS = Path(files.__file__).parent
MEMORY = 2 * 2**30
SECONDS = 30


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").write_bytes(bytes(200))
    (tmp_path / "beside.bin").write_bytes(bytes(200))
    (tmp_path / "link").symlink_to("/etc/hostname")
    return tmp_path


# Loads files one after the other with no more memory than is allowed, and says what was wrong with any.
LIMITED = f"""
import resource, sys, time, warnings
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
warnings.simplefilter("ignore")
import hostile_files as files
import relumine as rl
from relumine.targets import load_target

def load(path):
    started = time.monotonic()
    try:
        return load_target(path)
    finally:
        if time.monotonic() - started > {SECONDS}:
            print(path, "took too long")
"""

REFUSED = """
import shutil

def write(path, content):
    if isinstance(content, bytes):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    else:
        for inside, part in content.items():
            write(path / inside, part)

def refuse(cases, canary):
    count = 0
    for count, (name, content) in enumerate(cases, 1):
        path = Path.cwd() / name
        write(path, content)
        try:
            load(str(path))
            print(name, "was loaded")
        except rl.TargetError as error:
            if name not in str(error) or len(str(error)) < len(str(path)) + 20 or "MemoryError" in str(error):
                print(name, "no reason in", error)
        except BaseException as error:
            print(name, type(error).__name__, error)
        if canary.exists():
            print(name, "ran")
            canary.unlink()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    print("tried", count)

canary = Path.cwd() / "canary"
"""

HOSTILE = f"{REFUSED}refuse(files.hostile_files(canary), canary)"

FOLDERS = f"""{REFUSED}
write(Path.cwd() / "honest", files.honest_folder())
load(str(Path.cwd() / "honest"))  # what is refused below is not refused for being a folder
refuse(files.hostile_folders(canary), canary)
"""

DAMAGED = """
refused = 0
for ending in files.ENDINGS:
    for i, content in enumerate(files.mutated(ending, 40, seed=len(ending))):
        path = Path(f"mutated_{i}.{ending}")
        path.write_bytes(content)
        try:
            oracle = load(str(path))
            oracle([[0.5] * 6], gradients=oracle.offer.gradients != "none")
        except rl.RelumineError:
            refused += 1
        path.unlink()
print("refused", refused)
"""


def said_by(program: str) -> list[str]:
    """In a process of its own, whose end tells of what Python cannot catch."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LIMITED + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_hostile_files_are_refused_with_a_reason_within_2_gb_and_30_s_and_do_nothing(folder):
    *wrong, tried = said_by(HOSTILE)
    assert not wrong
    assert int(tried.split()[-1]) >= 300


def test_hostile_folders_are_refused_with_a_reason_within_2_gb_and_30_s_and_do_nothing(folder):
    *wrong, tried = said_by(FOLDERS)
    assert not wrong
    assert int(tried.split()[-1]) >= 45


def test_damaged_files_do_not_crash_the_process(folder):
    *wrong, refused = said_by(DAMAGED)
    assert not wrong
    assert int(refused.split()[-1]) >= 100


def test_the_bombs_are_live(folder):
    """Read by those who trust them, these files do run: what is refused above is not harmless anyway."""
    canary = folder / "canary"
    contents = dict(files.hostile_scripts(canary))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("line_0.pt", "line_1.pt"):
            (folder / name).write_bytes(contents[name])
            torch.jit.load(name)(torch.zeros(1, 6))
            assert canary.exists(), name
            canary.unlink()
    (folder / "bomb").write_bytes(dict(files.disguises(canary))["torch.save.pt"])
    torch.load("bomb", weights_only=False)
    assert canary.exists()


def test_what_a_program_says_besides_its_graph_is_not_run(folder):
    """Symbolic sizes, guards and names are evaluated or written into source by torch's own loader."""
    canary = folder / "canary"
    evil = f"__import__('pathlib').Path('{canary}').touch()"
    content = files.honest("pt2")
    said = json.loads(files.part_of(content, "models/model.json"))
    said["guards_code"] = [evil]
    said["range_constraints"] = {evil: {"min_val": 0, "max_val": None}}
    for tensor in said["graph_module"]["graph"]["tensor_values"].values():
        for size in tensor["sizes"]:
            if "as_expr" in size:
                size["as_expr"]["expr_str"] = evil
    name = json.dumps(f"x=({evil})")
    text = json.dumps(said).replace('"as_tensor": {"name": "input"}', f'"as_tensor": {{"name": {name}}}')
    said = json.loads(text)
    values = said["graph_module"]["graph"]["tensor_values"]
    values[f"x=({evil})"] = values.pop("input")
    (folder / "model.pt2").write_bytes(files.rezipped(content, {"models/model.json": json.dumps(said).encode()}))
    points = np.random.default_rng(0).standard_normal((4, 6))
    expected = files.module()(torch.tensor(points, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(load_target("model.pt2")(points, gradients=True).values, expected, atol=1e-6)
    assert not canary.exists()


def test_special_files_are_not_opened(folder):
    os.mkfifo("model.pt2")
    with pytest.raises(rl.TargetError, match="got a special file"):
        load_target("model.pt2")


def test_honest_files_are_loaded(folder):
    for ending in files.ENDINGS:
        (folder / f"model.{ending}").write_bytes(files.honest(ending))
        assert load_target(f"model.{ending}").offer.inputs == (6,)


@pytest.mark.parametrize("ending", ["pt", "onnx"])
def test_a_link_to_a_model_is_followed(folder, ending):
    (folder / "blob").write_bytes(files.honest(ending))
    (folder / f"model.{ending}").symlink_to("blob")
    assert load_target(f"model.{ending}").offer.inputs == (6,)
