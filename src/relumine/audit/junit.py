"""An audit as a JUnit file, which CI systems show: gates are test cases, and so are curves.

A gate that failed is a failure. A gate that is undecided, and a curve whose attacks ended with an error, are errors:
they say nothing about the model. A curve alone never fails: how much may leak is for a gate to say.
"""

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from relumine.audit.result import AuditResult, Curve, Gate, Need

# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(result: AuditResult) -> str:
    """The file's text, to be written as UTF-8. What comes from outside is escaped; what XML cannot hold is replaced."""
    cases = [*map(_gate, result.gates), *(_curve(curve, result) for curve in result.curves)]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": "0",
        "time": f"{result.about.seconds:.3f}",
    }
    root = Element("testsuites", {"name": "relumine audit", **counts})
    # JUnit's times have no zone; audits are dated in UTC.
    named = {"name": _plain(result.about.target), "timestamp": result.about.started[:19]}
    suite = SubElement(root, "testsuite", named | counts)
    suite.append(_properties(result))
    suite.extend(cases)
    _text(suite, "system-out", "\n".join((result.verdict, *(f"warning: {one}" for one in result.warnings))))
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _properties(result: AuditResult) -> Element:
    about, found = result.about, Element("properties")
    facts = {"command": about.command, "data": about.data, "seeds": about.seeds, "budget": about.budget}
    for name, value in (facts | {f"version of {one}": text for one, text in about.versions.items()}).items():
        SubElement(found, "property", name=_plain(name), value=_plain(str(value)))
    return found


def _gate(gate: Gate) -> Element:
    case = Element("testcase", classname="relumine.audit.gates", name=_plain(gate.condition), time="0.000")
    if gate.status == "passed":
        _text(case, "system-out", gate.reason)
    else:
        tag, kind = ("failure", "gate") if gate.status == "failed" else ("error", "undecided")
        SubElement(case, tag, type=kind, message=_plain(gate.reason)).text = _plain(gate.reason)
    return case


def _curve(curve: Curve, result: AuditResult) -> Element:
    seconds = sum(one.seconds for one in result.records if (one.case.level, one.case.defence) == curve.key)
    case = Element("testcase", classname="relumine.audit.curves", name=_plain(curve.name), time=f"{seconds:.3f}")
    needs = "\n".join(map(_need, curve.needs))
    if curve.status == "inconclusive":
        SubElement(case, "error", type="inconclusive", message="attacks ended with an error").text = needs
    else:
        _text(case, "system-out", f"{curve.status}\n{needs}")
    return case


def _need(need: Need) -> str:
    if need.queries is None:
        return f"{need.goal}: not reached within {need.tried:,} queries"
    spread = need.queries
    return f"{need.goal}: {spread.mean:,.0f} queries ({spread.low:,.0f} to {spread.high:,.0f}, {spread.seeds} seeds)"


def _text(parent: Element, tag: str, text: str) -> None:
    SubElement(parent, tag).text = _plain(text)


def _plain(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
