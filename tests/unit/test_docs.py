"""Examples of the pages: they run, and print what they say."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from relumine.audit.gate import parse_condition
from relumine.audit.result import CloneMeasures, Usefulness
from relumine.audit.settings import read_settings

DOCS = Path(__file__).parents[2] / "docs"
ADDING = sorted((DOCS / "adding").glob("*.md"))
# Written by people or by generators of ours: cli.md is made by typer, word for word.
PAGES = [*DOCS.glob("../*.md"), *sorted(path for path in DOCS.rglob("*.md") if path.name != "cli.md")]
LONGEST_LINE, LONGEST_TABLE = 120, 30
# Instead: linear region, pre-activation, observation, ReLU smoothing, orientation, Gauss–Newton, the number itself.
PRIVATE_WORDS = (
    *("cells?", "signals?", "sights?", "round corners", "which way around", "Gauss and Newton"),
    *("Levenberg and Marquardt", "so many", "of so far", "whoever", "who asks"),
)


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


def test_every_condition_that_a_page_shows_can_be_read():
    page = (DOCS / "ci-gate.md").read_text()
    shown = re.findall(r"^\| `([^`]*[<>][^`]*)` \|", page, re.MULTILINE)
    assert len(shown) >= 4
    for text in (*shown, *re.findall(r'--fail-on "([^"]+)"', page)):
        parse_condition(text)


def test_the_settings_that_a_page_shows_are_settings(tmp_path):
    (toml,) = re.findall(r"```toml\n(.*?)```", (DOCS / "ci-gate.md").read_text(), re.DOTALL)
    (tmp_path / "audit.toml").write_text(toml)
    settings = read_settings(tmp_path / "audit.toml", {})
    assert settings.fail_on == ("queries-to-95 < 1000", "top-gradient: queries-to-exact < 1000")


def test_options_that_pages_name_exist():
    known = set(re.findall(r"`(?:-\w, )?(--[a-z-]+)", (DOCS / "cli.md").read_text()))
    for name in ("audit-reading", "ci-gate", "choosing", "responsible-use"):
        page = re.sub(r"^docker run .* relumine ", "", (DOCS / f"{name}.md").read_text(), flags=re.MULTILINE)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", page):
            assert option in known, f"{name}.md: {option}"


def test_the_page_on_reading_names_every_measure():
    page = (DOCS / "audit-reading.md").read_text()
    for record in (CloneMeasures, Usefulness):
        assert not [field.name for field in fields(record) if f"`{field.name}`" not in page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_are_wrapped(page):
    lines = enumerate(page.read_text().splitlines(), 1)
    assert not [number for number, line in lines if len(line) > LONGEST_LINE and not line.lstrip().startswith("|")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_large_tables_are_linked_data(page):
    tables = re.findall(r"(?:^ *\|.*\n)+", page.read_text(), re.MULTILINE)
    assert max((table.count("\n") - 2 for table in tables), default=0) <= LONGEST_TABLE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commits_are_named_by_rows_not_by_pages(page):
    words = re.findall(r"\b[0-9a-f]{7,40}\b", page.read_text())
    assert not [word for word in words if re.search("[0-9]", word) and re.search("[a-f]", word)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_use_the_words_of_the_field(page):
    assert not re.findall(rf"\b(?:{'|'.join(PRIVATE_WORDS)})\b", page.read_text(), re.IGNORECASE)
