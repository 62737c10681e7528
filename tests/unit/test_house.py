"""The structure: which package may import which, what is public, and that the documentation says so."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import relumine as rl

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "relumine"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Who may import whom; rooms not named here stand closer to the door and may import any of these.
ARROWS = {
    "errors": {"text"},
    "text": set(),
    "device": set(),
    "environment": set(),
    "oracle": {"oracle", "errors", "text"},
    "explain": {"explain", "oracle", "errors", "text"},
    "defend": {"defend", "explain", "oracle", "errors", "text"},
    "reconstruct": {"reconstruct", "explain", "oracle", "device", "errors", "text"},
    "adapt": {"adapt", "reconstruct", "explain", "oracle", "errors", "text"},
    "jobs": {"jobs", "device", "environment", "errors", "text"},
    "audit": {
        *("audit", "console", "jobs", "measures", "study", "targets", "endpoints", "zoo", "probe", "defend", "adapt"),
        *("reconstruct", "explain", "oracle", "errors", "text"),
    },
    "report": {"report", "audit", "defend", "errors", "text"},
}

# The parts of oracle/ that hold a network: for reconstruct they do not exist.
TARGETS = {
    *("relumine.oracle.torch", "relumine.oracle.sklearn", "relumine.oracle.boosted", "relumine.oracle.predictor"),
    *(
        "relumine.oracle.http.oracle",
        "relumine.explain.oracle",
        "relumine.oracle.tokens",
    ),
}

# Holds a torch module for reconstruct: the public backbone of a target, never the target.
PUBLIC_PART = "reconstruct/head/torch_backbone.py"

# Modules that are about torch modules, and are only imported where there is one.
_MATCHING = ("fit", "logits", "loss", "optimiser", "smoothing", "student")
TORCH_BOUND = (
    *(
        "oracle/sklearn.py",
        "oracle/torch.py",
        "oracle/tokens.py",
        "explain/",
        "formats/",
        "reconstruct/export/torch.py",
        "zoo/",
        PUBLIC_PART,
    ),
    "reconstruct/convolutional/torch_module.py",
    *(f"reconstruct/matching/{part}.py" for part in _MATCHING),
)


def imports(module: Path) -> Iterator[str]:
    """Dotted names that a module imports, inside functions too, but not those for type checkers only."""
    tree = ast.parse(module.read_text())
    unchecked = {id(part) for node in ast.walk(tree) if _is_type_checking(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in unchecked:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def in_room(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def of_relumine(module: Path) -> list[str]:
    return [name for name in imports(module) if name.split(".")[0] == "relumine" and name != "relumine.__version__"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("module", [m for m in MODULES if in_room(m) in ARROWS], ids=name_of)
def test_imports_point_away_from_the_door(module):
    rooms = {room(name) for name in of_relumine(module)}
    assert rooms <= ARROWS[in_room(module)]


@pytest.mark.parametrize(
    "module",
    [m for m in MODULES if in_room(m) == "reconstruct" and m != PACKAGE / PUBLIC_PART],
    ids=name_of,
)
def test_reconstruct_sees_an_oracle_and_never_a_network(module):
    names = of_relumine(module)
    assert not [name for name in names if any(f"{name}.".startswith(f"{target}.") for target in TARGETS)]


@pytest.mark.parametrize("module", [m for m in MODULES if in_room(m) not in ("cli", "__main__")], ids=name_of)
def test_nobody_imports_the_command_line(module):
    assert "cli" not in {room(name) for name in of_relumine(module)}


def test_torch_is_imported_by_those_only_who_hold_a_module():
    names = [
        ".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts)
        for module in MODULES
        if not module.relative_to(PACKAGE).as_posix().startswith(TORCH_BOUND)
    ]
    program = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_is_there_and_explained():
    for name in rl.__all__:
        assert (getattr(rl, name).__doc__ or "").strip(), name


def test_type_checkers_see_the_same_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if _is_type_checking(node))
    assert {alias.asname for node in block.body for alias in node.names} == set(rl.__all__)


def test_names_that_users_rely_on():
    names = {"FunctionOracle", "TorchOracle", "Offer", "Outcome"}
    methods = {"TwoLayer", "PaperTwoLayer", "TwoLayerFromValues", "Linear"}
    assert names | methods <= set(rl.__all__)


def test_there_is_no_room_for_odds_and_ends():
    assert not [path for path in MODULES if re.fullmatch(r"_?(utils?|helpers?|misc|common)", path.stem)]


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == rl.__version__
    assert f"## {rl.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {rl.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_constraints_pin_every_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    names = {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in wanted}
    assert names - {"relumine"} <= pinned


def texts() -> Iterator[Path]:
    """Everything written by people: not what git ignores or a tool made."""
    for folder in ("src", "tests", "docs", "benchmarks", "notebooks", "templates", ".ci"):
        yield from (
            path for path in (ROOT / folder).rglob("*") if path.suffix not in (".pyc", ".png") and path.is_file()
        )
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.name != ".git" and path.suffix != ".sqlite")


def test_no_machine_s_own_path_is_written_down():
    pattern = re.compile(r"(?<![\w.~])/(?:root|home|work|Users)/\w")
    assert not [name_of(path) for path in texts() if pattern.search(path.read_text(errors="replace"))]


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\((?!https?:|#|api/)([^)#]+)", page.read_text()):  # api/ is generated
            assert (page.parent / link).exists(), f"{name_of(page)}: {link}"


def test_the_readme_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected
