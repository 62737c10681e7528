"""How grave an exposed output is, and what to do about it."""

import pytest

from audits import about, failed, record
from relumine.audit.curves import curves_of
from relumine.audit.gate import judge, parse_condition
from relumine.audit.levels import LEVELS
from relumine.audit.result import Control, Record
from relumine.audit.settings import AuditSettings
from relumine.audit.verdict import controls_of, verdict_of
from relumine.errors import MisuseError


def controls(*records: Record, **fields: object) -> dict[str, Control]:
    curves = curves_of(records, list(LEVELS.values()))
    return {control.level: control for control in controls_of(curves, about(**fields))}


def at(agreement: float, level: str = "gradients", **fields: object) -> list[Record]:
    """Three seeds at two budgets, of which the first shows nothing."""
    small = [record(0.2, 10, seed, level=level) for seed in range(3)]
    return small + [record(agreement, 1000, seed, level=level, **fields) for seed in range(3)]


@pytest.mark.parametrize(
    ("agreement", "severity"), [(0.97, "high"), (0.91, "high"), (0.9, "medium"), (0.75, "medium"), (0.74, "low")]
)
def test_severities_are_those_of_the_published_thresholds(agreement, severity):
    assert controls(*at(agreement))["gradients"].severity == severity


def test_an_exact_copy_is_critical():
    assert controls(*at(1.0, attack="exact", outcome="RECOVERED"))["gradients"].severity == "critical"


@pytest.mark.parametrize(
    ("records", "fields"),
    [
        ([*at(0.6), failed(1000, 2)], {}),
        (at(0.6), {"majority": 0.8}),
        (at(0.97), {"majority": 0.92}),
        (at(0.11), {"majority": 0.3}),
    ],
    ids=["error", "constant", "more constant", "no better than guessing"],
)
def test_what_attacks_could_not_show_is_unknown_and_never_low(records, fields):
    control = controls(*records, **fields)["gradients"]
    assert control.severity == "unknown"
    assert control.action.startswith("Decide nothing by this")


def test_where_one_query_is_too_many_it_is_not_to_be_exposed():
    for price in (1, 2, 3):
        control = controls(*(record(0.97, price, seed) for seed in range(3)))["gradients"]
        assert (control.suggested, control.action.startswith("Do not expose it")) == (0, True)
    usual = controls(*at(0.97))["gradients"]
    assert usual.suggested == 10
    assert usual.action == "Limit each client to 10 queries in all."


def test_where_no_limit_follows_the_queries_to_90_per_cent_are_said():
    control = controls(*at(0.92))["gradients"]
    assert (control.severity, control.suggested) == ("high", None)
    assert "well below the 1,000 queries after which a copy agreed on 90 %" in control.action


def test_a_defence_that_held_and_values_alone_are_alternatives():
    held = [record(0.3, 1000, seed, defence="round:1") for seed in range(3)]
    assert "or put it behind round:1, which held" in controls(*at(0.97), *held)["gradients"].action
    assert "or show its logits without" in controls(*at(0.97), *at(0.6, "logits"))["gradients"].action


def test_what_is_exposed_today_is_apart_from_what_ifs():
    records = [*at(0.97), *at(0.6, "logits")]
    found = controls(*records, exposed=("logits",))
    assert {level: control.exposed for level, control in found.items()} == {"gradients": False, "logits": True}
    curves = curves_of(records, list(LEVELS.values()))
    assert verdict_of(curves, about(exposed=("logits",))).startswith("Not reconstructed by these attacks")
    assert verdict_of(curves, about()).startswith("This model can be imitated")


def test_gates_are_about_what_is_exposed_unless_they_name_a_level():
    curves = curves_of([*at(0.97), *at(0.6, "logits")], list(LEVELS.values()))
    for text, status in (("queries-to-95 < 1000", "passed"), ("gradients: queries-to-95 <= 1000", "failed")):
        assert judge(parse_condition(text), curves, about(exposed=("logits",))).status == status, text


def test_presets_are_gates():
    assert AuditSettings(preset="owasp-aitg", budget=500).fail_on == ("agreement-at-500 > 0.9",)
    both = AuditSettings(preset="owasp-aitg-warning", fail_on=("queries-to-exact < 10",))
    assert both.fail_on == ("queries-to-exact < 10", "agreement-at-1000 >= 0.75")
    with pytest.raises(MisuseError, match="owasp-aitg"):
        AuditSettings(preset="iso")


def test_what_is_exposed_is_audited_and_known():
    assert AuditSettings(levels=("label",), exposed=("logits",)).levels == ("label", "logits")
    with pytest.raises(MisuseError, match="exposed: expected names of label"):
        AuditSettings(exposed=("weights",))
