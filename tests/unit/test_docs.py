"""Examples of the pages: they run, and print what they say."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ADDING = sorted((DOCS / "adding").glob("*.md"))


@pytest.mark.parametrize("page", ADDING, ids=lambda page: page.stem)
def test_the_example_prints_what_it_says(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(code, page.name, "exec"), {"__name__": "page"})
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected


def test_there_is_a_page_for_everything_that_can_be_added():
    assert {page.stem for page in ADDING} == {"oracle", "explanation", "defence", "reconstruction"}
