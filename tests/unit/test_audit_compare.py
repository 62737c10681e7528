"""Two audits side by side: what the second gives away more, less, or nobody knows."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audits import about, failed, record, result
from relumine.audit.compare import compared
from relumine.audit.curves import curves_of
from relumine.audit.levels import LEVELS
from relumine.audit.result import AuditResult, Gate, Record
from relumine.cli import app


def audit(*records: Record, gate: str = "passed", **fields: object) -> AuditResult:
    gates = (Gate("queries-to-95 < 1000", gate, ""),)
    return result(about=about(**fields), curves=curves_of(records, list(LEVELS.values())), gates=gates)


def at(agreements: dict[int, float], **fields: object) -> list[Record]:
    return [record(share, budget, seed, **fields) for budget, share in agreements.items() for seed in range(3)]


WEAK, STRONG = at({100: 0.5, 1000: 0.96}), at({100: 0.96, 1000: 0.98})
NEVER = at({100: 0.5, 1000: 0.6})


@pytest.mark.parametrize(
    ("before", "after", "direction"),
    [
        (WEAK, STRONG, "more"),
        (STRONG, WEAK, "less"),
        (WEAK, WEAK, "same"),
        (NEVER, WEAK, "more"),
        (WEAK, NEVER, "less"),
        (NEVER, at({100: 0.5, 1000: 0.61}), "same"),
        (NEVER, at({100: 0.5, 1000: 0.7}), "more"),
        (NEVER, [*NEVER, *(failed(5000, seed) for seed in range(3))], "open"),
    ],
    ids=["sooner", "later", "equal", "at last", "no more", "sampling", "agreement", "error"],
)
def test_the_direction_is_that_of_the_second(before, after, direction):
    assert compared(audit(*before), audit(*after)).direction == direction


def test_what_was_not_tried_is_not_known_to_be_more():
    short = at({100: 0.5})
    found = compared(audit(*short), audit(*at({100: 0.5, 1000: 0.96})))
    assert {one.figure: one.direction for one in found.changes}["queries to 95 %"] == "open"


def test_a_gate_that_fails_now_counts():
    assert compared(audit(*NEVER), audit(*NEVER, gate="failed")).direction == "more"
    assert compared(audit(*NEVER), audit(*NEVER, gate="undecided")).direction == "open"


def test_what_makes_audits_hard_to_compare_is_said():
    found = compared(audit(*WEAK), audit(*WEAK, *at({100: 0.5}, level="logits"), data="other.npz", seeds=5))
    assert found.remarks == (
        "The audits used different inputs: digits.npz and other.npz.",
        "The audits used different numbers of seeds: 3 and 5.",
        "Only in the second: logits.",
    )


@pytest.mark.parametrize(("second", "code", "words"), [(STRONG, 10, "more than the first: grad"), (WEAK, 0, "beyond")])
def test_the_command_says_it_and_exits_by_it(tmp_path: Path, second, code, words):
    for name, records in (("first", WEAK), ("second", second)):
        (tmp_path / f"{name}.json").write_text(audit(*records).to_json())
    files = [str(tmp_path / "first.json"), str(tmp_path / "second.json")]
    ended = CliRunner().invoke(app, ["compare", *files], env={"COLUMNS": "150"})
    assert (ended.exit_code, words in ended.output) == (code, True), ended.output
    plain = json.loads(CliRunner().invoke(app, ["compare", "--json", *files]).stdout)
    assert plain["direction"] == {10: "more", 0: "same"}[code]
    assert len(plain["changes"]) == 7


def test_what_is_no_audit_is_told(tmp_path: Path):
    ended = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path)])
    assert (ended.exit_code, "expected the run folder of an audit" in ended.stderr) == (2, True)
