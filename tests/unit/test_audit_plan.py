"""The plan of an audit: budgets, curves, and when a curve's answer is clear."""

from dataclasses import replace

import pytest

import relumine as rl
from problems import two_layer
from relumine.audit.levels import LEVELS, Setting
from relumine.audit.plan import CurvePlan, between, budgets_of, exact_until, lines_of, standing
from relumine.audit.result import AttackKey, Case, CloneMeasures, Record
from relumine.audit.settings import AuditSettings


def settings(**fields: object) -> AuditSettings:
    return AuditSettings(target="somebody:network", **fields)


def record(attack: str = "learned", budget: int = 10, seed: int = 0, outcome: str = "FITTED", agreement: float = 0.5):
    measures = CloneMeasures(agreement, agreement, None, None, 0.1, None, None)
    return Record(Case("logits", "", attack, budget, seed), outcome, "", None, {"value_queries": budget}, measures, 1.0)


EXACT, LEARNED = AttackKey("exact"), AttackKey("student")
LINE = CurvePlan(LEVELS["logits"], "", (EXACT,), (LEARNED,))


@pytest.mark.parametrize(
    ("budget", "conditions", "expected"),
    [
        (1, (), (1,)),
        (1000, (), (1, 10, 100, 1000)),
        (250, (), (1, 10, 100, 250)),
        (1000, ("queries-to-95 < 500",), (1, 10, 100, 499, 1000)),
        (1000, ("queries-to-95 < 1000",), (1, 10, 100, 999)),
        (1000, ("agreement-at-50 > 0.9", "queries-to-exact <= 5000"), (1, 10, 50, 100, 1000)),
    ],
)
def test_budgets_are_powers_of_ten_and_what_gates_ask_for(budget, conditions, expected):
    assert budgets_of(settings(budget=budget, fail_on=conditions)) == expected


def test_every_level_is_attacked_and_a_defence_where_it_changes_most():
    oracle = two_layer(6, 5, 3).oracle
    lines = lines_of(oracle, settings(defences=("round:2", "high-confidence")), Setting())
    assert [line.key for line in lines[-2:]] == [("gradients", "round:2"), ("probabilities", "high-confidence")]
    assert len(lines) == 9
    assert all(line.attacks for line in lines)


def test_named_levels_are_all_there_is():
    lines = lines_of(
        two_layer(6, 5, 3).oracle, settings(levels=("logits", "gradients"), defences=("round:2",)), Setting()
    )
    assert [line.key for line in lines] == [
        ("logits", ""),
        ("gradients", ""),
        ("logits", "round:2"),
        ("gradients", "round:2"),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"levels": ("gradients",)}, "this target can give label, probabilities, logits"),
        ({"defences": ("topk:3",)}, "nothing to change"),
    ],
)
def test_what_the_target_cannot_give_is_refused(fields, message):
    with pytest.raises(rl.MisuseError, match=message):
        lines_of(two_layer(6, 5, 3, gradients="none").oracle, settings(**fields), Setting())


def test_a_server_defends_itself():
    remote = AuditSettings(target="http://127.0.0.1:1/v1/models/net", defences=("round:2",))
    with pytest.raises(rl.MisuseError, match="a server defends itself"):
        lines_of(two_layer(6, 5, 3).oracle, remote, Setting())


def test_who_ignores_explanations_is_run_once():
    lines = {line.level.name: line for line in lines_of(two_layer(6, 5, 3).oracle, settings(), Setting())}
    names = {level: [attack.name for attack in line.attacks] for level, line in lines.items()}
    assert "values-only student" in names["logits"]
    assert "values-only student" not in names["gradients"]
    assert "learned" in names["gradients"]
    assert lines["integrated-gradients"].exact == ()
    (alone,) = lines_of(two_layer(6, 5, 3).oracle, settings(levels=("integrated-gradients",)), Setting())
    assert {"exact, from values", "values-only student"} < {attack.name for attack in alone.attacks}


def test_a_curve_goes_on_while_the_answer_is_open():
    assert standing(LINE, [], 2).stopped == ""
    now = standing(LINE, [record(seed=0, agreement=1.0), record(seed=1)], 2)
    assert (now.exact, now.learned, now.stopped) == ((EXACT,), (LEARNED,), "")


def test_a_curve_is_clear_when_every_seed_recovered_the_target():
    records = [record("exact", seed=seed, outcome="RECOVERED", agreement=1.0) for seed in range(2)]
    assert "exactly" in standing(LINE, records, 2).stopped
    assert standing(LINE, records[:1], 2).stopped == ""


def test_students_stop_at_99_per_cent_and_exact_attacks_go_on():
    records = [record(seed=seed, agreement=0.995) for seed in range(2)]
    now = standing(LINE, records, 2)
    assert (now.exact, now.learned, now.stopped) == ((EXACT,), (), "")
    hopeless = [record("exact", seed=seed, outcome="NOT_THIS_CLASS") for seed in range(2)]
    assert "99%" in standing(LINE, [*records, *hopeless], 2).stopped


def test_agreement_makes_nothing_clear_to_a_gate_about_exactness():
    records = [record(seed=seed, agreement=0.995) for seed in range(2)]
    records += [record("exact", seed=seed, outcome="NOT_THIS_CLASS") for seed in range(2)]
    now = standing(LINE, records, 2, exact_matters=True)
    assert (now.exact, now.learned, now.stopped) == ((), (LEARNED,), "")
    asked = settings(fail_on=("logits: queries-to-exact < 500", "queries-to-95 < 800"))
    assert (exact_until("logits", asked), exact_until("label", asked)) == (499, 0)


def test_an_exact_attack_that_met_another_class_of_models_is_not_tried_again():
    records = [record("exact", seed=seed, outcome="NOT_PIECEWISE_LINEAR") for seed in range(2)]
    assert standing(LINE, records, 2).exact == ()
    assert standing(LINE, records, 2).learned == (LEARNED,)


def test_what_the_main_milestone_takes_is_narrowed_down_by_ratio():
    missed, reached = record(budget=100, agreement=0.9), record(budget=1000, agreement=0.96)
    assert between(LINE, [missed]) == []
    assert between(LINE, [missed, reached]) == [Case("logits", "", "learned", 316, 0)]
    assert [one.budget for one in between(LINE, [missed, reached, record(budget=316, agreement=0.97)])] == [178]
    assert [one.budget for one in between(LINE, [missed, reached, record(budget=316, agreement=0.93)])] == [562]
    assert between(LINE, [missed, record(budget=140, agreement=0.96)]) == []
    both = between(LINE, [missed, reached, replace(reached, case=replace(reached.case, attack="exact"))])
    assert [one.attack for one in both] == ["exact", "learned"]
    elsewhere = replace(reached, case=replace(reached.case, level="label"))
    assert between(LINE, [missed, elsewhere]) == []
