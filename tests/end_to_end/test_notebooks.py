"""The notebooks: they run from top to bottom, and are committed with what they print and draw."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def kinds_of_outputs(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """What each cell shows: text, tables ("text/html") and pictures; warnings of other libraries are left out."""
    shown = [[one for one in cell.get("outputs", []) if one.get("name") != "stderr"] for cell in notebook.cells]
    return [{kind for one in cell for kind in one.get("data", {"text"})} for cell in shown]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_was_committed(path, tmp_path):
    committed = nbformat.read(path, as_version=4)
    fresh = nbformat.from_dict(committed)
    NotebookClient(fresh, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    assert kinds_of_outputs(fresh) == kinds_of_outputs(committed)
    assert {"image/png"} & set().union(*kinds_of_outputs(committed))
    assert [cell.execution_count for cell in committed.cells if cell.cell_type == "code"] == [
        *range(1, 1 + sum(cell.cell_type == "code" for cell in committed.cells))
    ]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["audit-scikit-learn", "twenty-saliency-maps", "which-defence-helps"]
