"""The page of defence results says what its rows say."""

import csv
import runpy
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROVENANCE = {"versions": {"relumine": "0"}, "commit": "abcdef0123", "seconds": 1.0}


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(ROOT / "benchmarks" / "defences_page.py"))


@pytest.fixture(scope="module")
def page(made):
    return lambda rows: " ".join(made["page"](rows).split())


def rows(defence: str, exact: str, *agreements: float, family: str = "rounding") -> list[dict]:
    common = {"data": "digits", "family": family, "level": "gradients", "defence": defence}
    worth = {"rank_correlation": 0.5, "top_overlap": 0.25, "deletion": 1.0, "insertion": 0.75}
    spent = {"value_queries": 7, "gradient_queries": 5}
    return [
        {
            **common,
            "attack": "",
            "usefulness": worth,
            "kept_class": 0.5,
            "values_as": None,
            "attacks": ["exact", "learned"],
        },
        *(
            {**common, **spent, **PROVENANCE, "attack": "exact", "exact": True, "budget": 20_000, "seed": seed}
            | {"outcome": exact, "agreement": 1.0 if exact == "RECOVERED" else 0.4}
            for seed in range(3)
        ),
        *(
            {**common, **PROVENANCE, "attack": "learned", "exact": False, "budget": budget, "seed": seed}
            | {"outcome": "FITTED", "agreement": agreement, "value_queries": 0, "gradient_queries": budget}
            for budget, agreement in zip((10, 100, 1000), agreements, strict=True)
            for seed in range(3)
        ),
    ]


THREE = [
    *rows("round:6", "RECOVERED", 0.9, 0.95, 0.99),
    *rows("round:2", "NOT_VERIFIED", 0.5, 0.96, 0.97),
    *rows("sign", "BUDGET_EXHAUSTED", 0.2, 0.3, 0.4),
]


def test_what_holds_and_what_does_not(page):
    text = page({"digits": THREE})
    assert "**1 were recovered exactly** with every seed tried: `round:6`." in text
    assert "within the queries tried: `round:2`." in text
    assert "that the explanation keeps): `sign` (40.0 %, 0.50)." in text
    assert "| rounding | `sign` | 0 of 3, BUDGET_EXHAUSTED, 40.0 % | 20.0 % (20–20) |" in text
    assert "`round:6` |" not in text  # of a family only what held best
    assert "| 50.0 % | 0.50, 0.25, 1.00 / 0.75 |" in text
    assert "Of 3 defended versions (3 seeds each)" in text


def test_the_table_has_every_version(made):
    weak, some, strong = csv.DictReader(StringIO(made["table"](THREE)))
    assert (weak["defence"], weak["exact"], weak["student, 10"]) == ("round:6", "3 of 3, 12 queries", "90.0 % (90–90)")
    assert [line["first close"] for line in (weak, some, strong)] == [
        "12: exact",
        "100: learned",
        "not within the queries tried",
    ]


def test_a_defence_of_explanations_does_not_hold_where_values_alone_are_enough(page):
    hidden = rows("topk:1", "NOT_VERIFIED", 0.1, 0.2, 0.3)
    hidden[0]["values_as"] = ("logits", "")
    values = [{**row, "level": "logits"} for row in rows("", "", 0.5, 0.96, 0.97, family="none")]
    values = [
        row | {"attack": row["attack"] and "values-only student"} for row in values if row.get("exact") is not True
    ]
    text = page({"digits": [*hidden, *values]})
    assert "| 96.0 % (96–96) (values alone) |" in text
    assert "within the queries tried: `topk:1`." in text
    unfinished = page({"digits": [*hidden, *(row for row in values if row.get("budget") != 1000)]})
    assert "Of 0 defended versions" in unfinished


def test_what_was_not_measured_to_the_end_is_not_said_to_hold(page):
    everything = rows("sign", "NOT_VERIFIED", 0.1, 0.2, 0.3)
    for missing in (1000, 20_000):
        text = page({"digits": [row for row in everything if row.get("budget") != missing]})
        assert "Of 0 defended versions" in text


def test_the_committed_page_is_what_the_committed_rows_say():
    command = [sys.executable, ROOT / "benchmarks" / "defences.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
