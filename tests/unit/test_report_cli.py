"""``relumine report``: a page from what an audit stored, or a message that says what is wrong."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import audit_examples as examples
from relumine.audit.store import AuditStore, read_result
from relumine.cli import app
from relumine.report.page import render


def run(*arguments: object):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def stored(tmp_path):
    """A run folder as an audit leaves it."""
    with AuditStore.in_folder(tmp_path / "run") as store:
        store.note("result", examples.full().to_json())
    return tmp_path / "run"


def test_a_run_folder_is_drawn_into_itself(stored):
    ended = run(stored)
    assert ended.exit_code == 0
    assert ended.stdout.strip() == f"wrote {stored / 'report.html'}"
    assert (stored / "report.html").read_text("utf-8") == render(examples.full())


def test_a_result_file_is_drawn_where_one_says(tmp_path):
    (tmp_path / "result.json").write_text(examples.full().to_json(), "utf-8")
    ended = run(tmp_path / "result.json", "-o", tmp_path / "page.html")
    assert ended.exit_code == 0
    assert (tmp_path / "page.html").read_text("utf-8") == render(examples.full())


def test_drawing_again_changes_nothing_that_is_stored(stored):
    run(stored)
    assert read_result(stored).to_json() == examples.full().to_json()


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "null", '{"about": 1}', "no JSON", '{"about": {}, "verdict": ""}', "[" * 100_000],
    ids=["empty", "object", "list", "null", "other", "text", "half", "deep"],
)
def test_a_file_that_is_no_result_is_told(tmp_path, content):
    (tmp_path / "result.json").write_text(content)
    ended = run(tmp_path / "result.json")
    assert ended.exit_code == 2
    assert "expected a result.json of 'relumine audit'" in ended.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("name", "lie"), [("status", "safe"), ("mean", "many"), ("target_map", None), ("shape", -1)])
def test_a_result_that_was_tampered_with_is_told_or_drawn(tmp_path, name, lie):
    def told(value: object) -> object:
        if isinstance(value, dict):
            return {key: lie if key == name else told(part) for key, part in value.items()}
        return [told(part) for part in value] if isinstance(value, list) else value

    (tmp_path / "result.json").write_text(json.dumps(told(json.loads(examples.full().to_json()))))
    ended = run(tmp_path / "result.json")
    assert ended.exit_code == 2
    assert "cannot be drawn" in ended.stderr


def test_bytes_that_are_no_text_are_told(tmp_path):
    (tmp_path / "result.json").write_bytes(b"\xff\xfe\x00")
    assert "expected a result.json" in run(tmp_path / "result.json").stderr


def test_a_folder_without_an_audit_is_told_and_left_alone(tmp_path):
    ended = run(tmp_path)
    assert ended.exit_code == 2
    assert "expected the run folder of an audit" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_an_audit_that_has_not_ended_is_told(tmp_path):
    with AuditStore.in_folder(tmp_path):
        pass
    ended = run(tmp_path)
    assert ended.exit_code == 2
    assert "--resume" in ended.stderr


def test_what_is_not_there_or_cannot_be_written_is_told(stored, tmp_path):
    assert "cannot read" in run(tmp_path / "nowhere").stderr
    ended = run(stored, "-o", tmp_path / "no" / "folder" / "page.html")
    assert ended.exit_code == 2
    assert "choose another place" in ended.stderr


def commands_of(page: Path) -> list[list[str]]:
    """The relumine commands of a page, in words."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index("relumine") + 1 :] for line in words if "relumine" in line]


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.mark.parametrize("words", commands_of(TUTORIAL), ids=" ".join)
def test_commands_of_the_tutorial_are_understood(words):
    command = next(one for one in app.registered_commands if one.callback.__name__ == words[0])
    parser = typer.main.get_command_from_info(command, pretty_exceptions_short=False, rich_markup_mode=None)
    parser.make_context(words[0], list(words[1:]))
