"""Pages of the site that are not in docs/: the API, one per room, notebooks, and files that pages link."""

import inspect
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import relumine as rl

ROOT = Path(__file__).parents[2]
# What pages link outside docs/: texts become pages, pictures and rows are copied.
LINKED = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "notebooks/*.ipynb",
    "action.yml",
    "templates/*.yml",
    "Dockerfile",
    "results/*.png",
    "results/*.jsonl",
    "results/*.csv",
    "benchmarks/results/*.jsonl",
)
# The rooms of public names in the order of the overview.
TITLES = {
    "auditing": "Auditing",
    "reconstruct": "Methods and results",
    "oracle": "Oracles",
    "adapt": "Adapters",
    "probe": "Preflight",
    "errors": "Errors",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the linked files."""
    for name, text in api_pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        for name, content in notebook_page(path).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    for path in sorted(path for pattern in LINKED for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def notebook_page(path: Path) -> dict[str, str | bytes]:
    """A notebook as a page, and its pictures; links between notebooks lead to pages."""
    from nbconvert import MarkdownExporter

    text, found = MarkdownExporter().from_filename(str(path), {"output_files_dir": path.stem})
    text = re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", text)
    text = re.sub(
        r"^# .*$", rf"\g<0>\n\n[Download the notebook]({path.name}){{ download }}", text, count=1, flags=re.MULTILINE
    )
    return {f"{path.stem}.md": text, **found["outputs"]}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links across the border of docs/ to where the linked file lies in the site.

    On the site the repository's root and docs/ are one folder.
    """
    folder = Path(page.file.src_uri).parent

    def moved(found: re.Match[str]) -> str:
        link = os.path.normpath(folder / found[1])
        inside = link.removeprefix("../").removeprefix("docs/").replace(".ipynb", ".md")
        return f"]({os.path.relpath(inside, folder)}"

    return re.sub(r"\]\(((?:\.\./|docs/)[^)#\s]+)", moved, markdown)


def api_pages() -> dict[str, str]:
    """An overview of every public name, and a page per room with the docstrings."""
    rooms = {room: sorted(name for name in rl.__all__ if _room(name) == room) for room in map(_room, rl.__all__)}
    if untitled := rooms.keys() - TITLES.keys():
        raise PluginError(f"public names come from {untitled}: add it to TITLES of {__file__} and to nav of mkdocs.yml")
    overview = ["# API", "", "```python", "import relumine as rl", "```", ""]
    for room, title in TITLES.items():
        rows = [f"| [`rl.{name}`]({room}.md#{_path(name)}) | {_summary(name)} |" for name in rooms[room]]
        overview += [f"## {title}", "", "| name | what it is |", "|---|---|", *rows, ""]
    pages = {"index": "\n".join(overview)}
    for room, names in rooms.items():
        pages[room] = "\n\n".join([f"# {TITLES[room]}", *(f"::: {_path(name)}" for name in names)])
    return pages


def _path(name: str) -> str:
    """What the reference is made of: ``rl.audit`` is a package, too, so the function is named."""
    return "relumine.auditing.audit" if name == "audit" else f"relumine.{name}"


def _room(name: str) -> str:
    """The room that a public name comes from: relumine.oracle.base is of oracle."""
    return "auditing" if name == "audit" else str(getattr(rl, name).__module__).split(".")[1]


def _summary(name: str) -> str:
    first = (inspect.getdoc(getattr(rl, name)) or "").partition("\n\n")[0]
    return re.sub(r"``(.+?)``", r"`\1`", first.replace("\n", " ")).replace("|", r"\|")
