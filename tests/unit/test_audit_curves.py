"""Curves: the best attack at each budget, and what each milestone took, by hand-made records."""

from dataclasses import replace

import pytest

from audits import failed, record, result
from relumine.audit.curves import curves_of, needs_of, points_of
from relumine.audit.levels import LEVELS
from relumine.audit.result import AuditResult, Record

GRADIENTS = [LEVELS["gradients"]]


def need(records: list[Record], milestone: str):
    return next(one for one in needs_of(records) if one.milestone == milestone)


def status(*records: Record) -> str:
    return curves_of(records, GRADIENTS)[0].status


def test_a_point_is_the_attack_with_the_highest_mean_over_seeds():
    records = [record(0.9, seed=0), record(0.5, seed=1)]
    records += [record(0.8, seed=0, attack="other"), record(0.7, seed=1, attack="other")]
    (point,) = points_of(records)
    assert point.attack == "other"
    assert (point.agreement.mean, point.agreement.low, point.agreement.high) == (pytest.approx(0.75), 0.7, 0.8)
    assert point.agreement.seeds == 2


def test_exactness_counts_more_than_agreement():
    exact = record(0.999, attack="exact", outcome="RECOVERED", queries=40)
    (point,) = points_of([record(1.0), exact])
    assert (point.attack, point.exact, point.queries, point.floats) == ("exact", 1, 40, 400)


def test_a_seed_without_a_clone_counts_against_its_attack():
    lucky = [record(0.9, seed=0, attack="lucky"), record(None, seed=1, attack="lucky", outcome="SEARCH_FAILED")]
    (point,) = points_of([*lucky, record(0.6, seed=0), record(0.6, seed=1)])
    assert point.attack == "learned"
    (point,) = points_of(lucky)
    assert point.agreement.seeds == 1


def test_a_larger_budget_is_never_worse():
    records = [record(agreement, budget) for budget, agreement in ((10, 0.48), (100, 0.93), (1000, 0.56))]
    points = points_of(records)
    assert [point.agreement.mean for point in points] == [0.48, 0.93, 0.93]
    assert [(point.queries, point.tried, point.highest) for point in points] == [
        (10, 10, 0.48),
        (100, 100, 0.93),
        (100, 1000, 0.93),
    ]


@pytest.mark.parametrize(
    ("defence", "counts"),
    [
        ("topk:8", True),
        ("noise:0.1,gradients", True),
        ("topk:8+magnitude", True),
        ("noise:0.1", False),
        ("topk:8+label", False),
        ("budget:100", False),
        ("near:3", False),
        ("box:-1,1", False),
    ],
)
def test_a_defence_of_explanations_is_no_safer_than_the_values_beside_them(defence, counts):
    records = [record(0.97, level="logits"), record(0.4, defence=defence)]
    (curve,) = [one for one in curves_of(records, GRADIENTS) if one.defence]
    assert (curve.points[-1].agreement.mean == 0.97) is counts
    assert (curve.status == "reached") is counts


@pytest.mark.parametrize("defence", ["", "noise:0.1"])
def test_a_level_that_shows_more_is_never_worse(defence):
    shown = {"label": 0.731, "probabilities": 0.607, "gradients": 0.5}
    found = [record(agreement, level=level, defence=defence) for level, agreement in shown.items()]
    levels = [LEVELS["label"], LEVELS["probabilities"], replace(LEVELS["gradients"], baseline="probabilities")]
    curves = curves_of(found, levels)
    assert [curve.points[0].agreement.mean for curve in curves] == [0.731] * 3
    assert curves[2].points[0].attack == "learned, of label only"


def test_exact_recovery_from_less_counts_where_more_is_shown():
    values = record(1.0, level="logits", outcome="RECOVERED", queries=50)
    top = record(0.6, level="top-gradient")
    curves = curves_of([values, top], [LEVELS["logits"], LEVELS["top-gradient"], GRADIENTS[0]])
    assert [(curve.level, curve.status) for curve in curves] == [("logits", "exact"), ("top-gradient", "exact")]
    assert curves[1].need("exact").queries.mean == 50


def test_what_is_seen_behind_a_defence_is_no_part_of_what_is_seen_without():
    found = [record(0.9, level="logits", defence="round:2"), record(0.5, defence="round:2"), record(0.8)]
    curves = curves_of(found, [LEVELS["logits"], *GRADIENTS])
    assert [curve.points[0].agreement.mean for curve in curves] == [0.9, 0.8, 0.9]


def test_budgets_without_any_clone_have_no_point():
    ended = record(None, 10, outcome="BUDGET_EXHAUSTED")
    assert [point.budget for point in points_of([record(0.9, 1000), ended, record(0.3, 100)])] == [100, 1000]


def test_a_need_is_what_was_really_spent_by_the_cheapest_case_of_each_seed():
    records = [
        record(0.4, 10, 0),
        record(0.96, 100, 0, queries=90),
        record(0.97, 1000, 0, queries=1000),
        record(0.4, 10, 1),
        record(0.94, 100, 1),
        record(0.99, 1000, 1, queries=800),
        record(0.95, 1000, 1, queries=300, attack="other"),
    ]
    found = need(records, "95")
    assert (found.queries.low, found.queries.high, found.queries.mean, found.queries.seeds) == (90, 300, 195, 2)
    assert found.floats == 1950
    assert (found.tried, found.missed) == (800, 10)
    assert need(records, "50").queries.high == 100
    assert need(records, "99").queries.seeds == 1


def test_exact_is_recovered_and_nothing_else():
    assert need([record(1.0)], "exact").queries is None
    assert need([record(1.0, outcome="RECOVERED", queries=33)], "exact").queries.mean == 33


def test_not_reached_says_how_many_queries_were_tried_in_every_seed():
    records = [record(0.3, 100, 0), record(0.3, 1000, 0), record(0.3, 100, 1), record(0.3, 1000, 1, queries=700)]
    found = need(records, "90")
    assert found.queries is None
    assert (found.tried, found.missed) == (700, 700)


def test_an_attack_that_gave_up_tried_no_more_than_it_asked():
    gave_up = record(None, 1000, attack="exact", outcome="NOT_THIS_CLASS", queries=20)
    assert need([gave_up], "exact").tried == 20
    assert need([gave_up, record(0.4, 1000)], "exact").tried == 1000


@pytest.mark.parametrize("outcome", ["REFUSED", "BUDGET_EXHAUSTED"])
def test_who_is_cut_off_could_not_have_asked_more(outcome):
    assert need([record(None, 1000, outcome=outcome, queries=200)], "95").tried == 1000


def test_a_client_s_budget_is_a_cut_off_too():
    assert need([record(0.4, 1000, defence="budget:200", queries=200)], "95").tried == 1000
    assert need([record(0.4, 1000, defence="round:4", queries=200)], "95").tried == 200


def test_a_budget_with_errors_shows_nothing_about_what_is_missed():
    records = [record(0.3, 100), record(0.3, 1000), failed(1000, attack="exact")]
    assert need(records, "95").missed == 100


def test_what_was_missed_lies_below_what_was_reached():
    records = [record(0.3, 100), record(0.96, 300), record(0.9, 1000)]
    assert need(records, "95").missed == 100


def test_how_a_curve_ends():
    assert status(record(0.4)) == "not reached"
    assert status(record(0.95)) == "reached"
    assert status(record(0.4), record(0.999, seed=1, outcome="RECOVERED")) == "exact"
    assert status(record(None, outcome="NOT_THIS_CLASS")) == "not reached"


def test_an_error_never_looks_like_a_verdict():
    assert status(failed()) == "inconclusive"
    assert status(record(0.4), failed(seed=1)) == "inconclusive"
    assert status(record(0.97), failed(seed=1)) == "reached"


def test_curves_come_level_by_level_without_defence_first():
    records = [
        record(0.9, defence="round:2"),
        record(0.9),
        record(0.3, level="logits"),
        record(0.2, level="label"),
    ]
    curves = curves_of(
        records,
        [LEVELS["logits"], LEVELS["gradients"]],
        stopped={("gradients", ""): "exact in all seeds"},
    )
    assert [(one.level, one.defence) for one in curves] == [("logits", ""), ("gradients", ""), ("gradients", "round:2")]
    assert [one.stopped for one in curves] == ["", "exact in all seeds", ""]
    assert curves[2].changes == "Rounds values and gradients to 2 decimals."
    assert (curves[0].baseline, curves[1].baseline) == ("", "logits")


def test_curves_survive_being_written():
    made = result(curves=curves_of([record(0.96), record(0.2, seed=1)], GRADIENTS))
    assert AuditResult.from_json(made.to_json()) == made
