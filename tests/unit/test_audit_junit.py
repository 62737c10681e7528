"""The JUnit file: accepted by parsers, and true."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from junitparser import Error, Failure, JUnitXml

from audits import about, failed, record, result
from relumine.audit.curves import curves_of
from relumine.audit.junit import junit_xml
from relumine.audit.levels import LEVELS
from relumine.audit.result import AuditResult, Gate

RECORDS = (record(0.96), record(0.3, level="logits"), failed(level="label"))
GATES = (
    Gate("queries-to-95 < 1000", "failed", "gradients: reached with 100 queries"),
    Gate("logits: queries-to-95 < 100", "passed", "not reached with 100 queries"),
    Gate("label: queries-to-95 < 100", "undecided", "cases ended with an error"),
)
HOSTILE = "</testcase> \x00\x1b[31m ]]> & \"quotes\" 'single' <script>alert(1)</script> \ud800 \uffff \U0001f600"


def whole(**fields: object) -> AuditResult:
    curves = curves_of(RECORDS, list(LEVELS.values()))
    plain = result(curves=curves, gates=GATES, records=RECORDS, warnings=("Too few seeds.",))
    return replace(plain, **fields)


def parsed(made: AuditResult) -> ElementTree.Element:
    return ElementTree.fromstring(junit_xml(made).encode())


def cases(made: AuditResult) -> dict[str, ElementTree.Element]:
    return {case.get("name"): case for case in parsed(made).iter("testcase")}


def test_gates_fail_pass_or_err():
    found = cases(whole())
    assert found["queries-to-95 < 1000"].find("failure").get("message") == "gradients: reached with 100 queries"
    passed = found["logits: queries-to-95 < 100"]
    assert (passed.find("failure"), passed.find("error")) == (None, None)
    undecided = found["label: queries-to-95 < 100"]
    assert undecided.find("failure") is None
    assert undecided.find("error").text == "cases ended with an error"


def test_curves_never_fail_but_may_err():
    found = cases(whole(gates=()))
    assert set(found) == {"gradients of all classes", "logits", "label only"}
    assert not [case for case in found.values() if case.find("failure") is not None]
    assert [name for name, case in found.items() if case.find("error") is not None] == ["label only"]
    assert (
        "95 % agreement: 100 queries (100 to 100, 1 seeds)" in found["gradients of all classes"].find("system-out").text
    )
    assert "not reached within 100 queries" in found["logits"].find("system-out").text


def test_counts_are_those_of_the_cases():
    root = parsed(whole())
    for element in (root, root.find("testsuite")):
        assert {name: element.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
            "tests": "6",
            "failures": "1",
            "errors": "2",
            "skipped": "0",
        }


def test_the_form_is_what_ci_systems_read():
    root = parsed(whole())
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.get("timestamp") == "2026-01-01T00:00:00"
    assert [child.tag for child in suite] == ["properties", *["testcase"] * 6, "system-out"]
    for case in suite.iter("testcase"):
        assert case.get("classname")
        assert float(case.get("time")) >= 0
    assert "A verdict.\nwarning: Too few seeds." in suite.find("system-out").text
    assert {one.get("name"): one.get("value") for one in suite.iter("property")}["seeds"] == "3"


def test_another_parser_finds_the_same(tmp_path):
    path = tmp_path / "junit.xml"
    path.write_text(junit_xml(whole(verdict=HOSTILE)), "utf-8")
    (suite,) = JUnitXml.fromfile(str(path))
    ended = {case.name: [type(one) for one in case.result] for case in suite}
    assert ended["queries-to-95 < 1000"] == [Failure]
    assert ended["label: queries-to-95 < 100"] == ended["label only"] == [Error]
    assert ended["logits"] == ended["logits: queries-to-95 < 100"] == []
    assert (suite.tests, suite.failures, suite.errors) == (6, 1, 2)


def test_an_audit_without_anything_is_a_file_too():
    root = parsed(result())
    assert root.get("tests") == "0"


@pytest.mark.parametrize("place", ["target", "command", "data"])
def test_names_from_outside_are_escaped(place):
    root = parsed(whole(about=about(**{place: HOSTILE})))
    assert not list(root.iter("script"))
    texts = [value for element in root.iter() for value in element.attrib.values()]
    assert any("<script>alert(1)</script>" in text for text in texts)
    assert not any("\x00" in text or "\x1b" in text for text in texts)


def test_texts_from_outside_are_escaped():
    curve = replace(curves_of(RECORDS, [LEVELS["gradients"]])[0], label=HOSTILE)
    gates = tuple(replace(gate, condition=HOSTILE, reason=HOSTILE) for gate in GATES)
    root = parsed(whole(curves=(curve,), gates=gates, verdict=HOSTILE, warnings=(HOSTILE,)))
    assert not list(root.iter("script"))
    assert len(list(root.iter("testcase"))) == 4
    assert "\U0001f600" in root.find("testsuite/system-out").text
