"""An audit as SARIF 2.1.0, which code scanning shows: a result per exposed output, and one per gate.

What is exposed today and gives the model away fails; what-ifs inform; what attacks could not tell is open.
"""

import hashlib
import json
from typing import Any
from urllib.parse import quote

from relumine.audit.result import AuditResult, Control, Gate, Severity
from relumine.audit.severity import REFERENCES

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

# By which code scanning sorts: the middles of CVSS's bands.
_SCORES: dict[Severity, float] = {"critical": 9.5, "high": 8.0, "medium": 5.5, "low": 2.0, "unknown": 0.0}
# SARIF's kind and level.
_KINDS: dict[Severity, tuple[str, str]] = {
    "critical": ("fail", "error"),
    "high": ("fail", "error"),
    "medium": ("fail", "warning"),
    "low": ("pass", "none"),
    "unknown": ("open", "none"),
}
_OF_GATES = {"failed": ("fail", "error"), "passed": ("pass", "none"), "undecided": ("open", "none")}


def sarif_json(result: AuditResult) -> str:
    """The file's text, to be written as UTF-8."""
    about = result.about
    run = {
        "tool": {
            "driver": {"name": "relumine", "version": about.versions.get("relumine", ""), "rules": _rules(result)}
        },
        "automationDetails": {"id": f"relumine/audit/{about.target}"},
        "invocations": [
            {
                "executionSuccessful": not any(curve.status == "inconclusive" for curve in result.curves),
                "commandLine": about.command,
                "startTimeUtc": about.started.replace("+00:00", "Z"),
            }
        ],
        "results": [*(_exposed(one, result) for one in result.controls), *(_gate(one, result) for one in result.gates)],
        "properties": {"verdict": result.verdict, "warnings": list(result.warnings), "data": about.data},
    }
    # What UTF-8 cannot hold, half a character in a name from outside, is replaced.
    text = json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _rules(result: AuditResult) -> list[dict[str, Any]]:
    tags = ["security", "external/cwe/cwe-200", *REFERENCES]
    return [
        {
            "id": _rule(control),
            "shortDescription": {"text": f"Model extraction from {control.label}"},
            "help": {"text": "\n".join(f"{name}: {about}" for name, about in REFERENCES.items())},
            "properties": {"tags": tags, "security-severity": str(_SCORES[control.severity])},
        }
        for control in result.controls
    ] + [{"id": "gate", "shortDescription": {"text": "A condition of --fail-on"}}]


def _rule(control: Control) -> str:
    return f"extraction/{control.level}"


def _exposed(control: Control, result: AuditResult) -> dict[str, Any]:
    kind, level = _KINDS[control.severity]
    if result.about.exposed and not control.exposed:
        kind, level = "informational", "none"
    text = f"{control.severity}: {control.label}. {control.action} {control.evidence}"
    numbers = {"queriesTo95": control.queries_to_95, "queriesToExact": control.queries_to_exact}
    about = {"exposed": control.exposed, "severity": control.severity, "suggestedLimit": control.suggested}
    return _result(_rule(control), kind, level, text, result) | {"properties": about | numbers}


def _gate(gate: Gate, result: AuditResult) -> dict[str, Any]:
    return _result("gate", *_OF_GATES[gate.status], f"{gate.status}: {gate.condition}: {gate.reason}", result)


def _result(rule: str, kind: str, level: str, text: str, result: AuditResult) -> dict[str, Any]:
    target = result.about.target
    # The same finding of the next version of a model is the same alert.
    same = hashlib.sha256(f"{target} {rule} {text if rule == 'gate' else ''}".encode("utf-8", "replace")).hexdigest()
    place = {"physicalLocation": {"artifactLocation": {"uri": quote(target, safe="/:@", errors="replace")}}}
    return {
        "ruleId": rule,
        "kind": kind,
        "level": level,
        "message": {"text": text},
        "locations": [place],
        "partialFingerprints": {"relumine/v1": same},
    }
