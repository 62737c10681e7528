"""Gates: what fails, what passes, and what nobody can tell."""

import pytest

import relumine as rl
from audits import about, failed, record
from relumine.audit.curves import curves_of
from relumine.audit.gate import judge, parse_condition
from relumine.audit.levels import LEVELS
from relumine.audit.result import Gate, Record

# Enough test inputs that an agreement is what it looks like, unless a test says otherwise.
MANY = 10**7


def gate(text: str, *records: Record, test_inputs: int = MANY, **fields: object) -> Gate:
    audited = about(test_inputs=test_inputs, **fields)
    return judge(parse_condition(text), curves_of(records, list(LEVELS.values())), audited)


def status(text: str, *records: Record, **fields: object) -> str:
    return gate(text, *records, **fields).status


# What is written


@pytest.mark.parametrize(
    ("text", "level", "milestone", "at", "threshold", "inclusive"),
    [
        ("queries-to-95 < 1000", "", "95", 0, 1000, False),
        ("queries-to-exact<=1,000", "", "exact", 0, 1000, True),
        ("gradients: queries-to-50 < 1_000", "gradients", "50", 0, 1000, False),
        (" agreement-at-100  >  0.9 ", "", None, 100, 0.9, False),
        ("top-gradient: agreement-at-1,000 >= 90 %", "top-gradient", None, 1000, 0.9, True),
    ],
)
def test_conditions_are_read(text, level, milestone, at, threshold, inclusive):
    found = parse_condition(text)
    assert (found.level, found.milestone, found.at) == (level, milestone, at)
    assert (found.threshold, found.inclusive) == (threshold, inclusive)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "queries-to-95",
        "queries-to-80 < 1000",
        "queries-to-95 < many",
        "queries-to-95 < -5",
        "queries-to-95 < 0",
        "queries-to-95 < 99.5",
        "queries-to-95 < 90 %",
        "queries-to-95 > 1000",
        "queries-to-95 == 1000",
        "agreement-at-100 < 0.9",
        "agreement-at-100 > 90",
        "agreement-at-0 > 0.9",
        "agreement > 0.9",
        "agreement-at-100 > 0",
        "saliency: queries-to-95 < 1000",
        "queries-to-95 < 1000 and more",
        "safe",
    ],
)
def test_nonsense_is_answered_with_the_grammar(text):
    with pytest.raises(rl.MisuseError, match="expected 'queries-to-95 < 1000'") as error:
        parse_condition(text)
    assert repr(text) in str(error.value)


# Queries to a milestone


def test_a_crossed_threshold_fails_whatever_the_other_seeds_say():
    records = [record(0.4, 100, 0), record(0.4, 1000, 0), record(0.4, 100, 1), record(0.96, 1000, 1, queries=700)]
    found = gate("queries-to-95 < 1000", *records)
    assert found.status == "failed"
    assert "95 % agreement with 700 queries" in found.reason


def test_enough_queries_without_crossing_pass():
    records = [record(0.4, 100), record(0.6, 1000)]
    assert status("queries-to-95 < 1000", *records) == "passed"
    assert status("queries-to-95 <= 1000", *records) == "passed"
    assert "no 95 % agreement by these attacks with 1,000 queries" in gate("queries-to-95 < 1000", *records).reason


def test_the_threshold_itself():
    at = record(0.96, 1000)
    assert status("queries-to-95 < 1000", at) == "undecided"
    assert status("queries-to-95 < 1000", record(0.4, 999), at) == "passed"
    assert status("queries-to-95 <= 1000", at) == "failed"
    assert status("queries-to-95 < 1001", at) == "failed"


def test_too_small_a_budget_decides_nothing():
    found = gate("queries-to-95 < 1000", record(0.4, 100))
    assert found.status == "undecided"
    assert "only 100 queries were tried" in found.reason


def test_nothing_is_read_between_two_budgets():
    found = gate("queries-to-95 < 500", record(0.4, 100), record(0.96, 1000))
    assert found.status == "undecided"
    assert "reached with 1,000 queries and not with 100" in found.reason


def test_an_error_is_no_pass():
    assert status("queries-to-95 < 1000", record(0.4, 1000), failed(1000, 1)) == "undecided"
    assert status("queries-to-95 < 1000", failed(1000)) == "undecided"
    assert "error" in gate("queries-to-95 < 1000", failed(1000)).reason


@pytest.mark.parametrize("milestone", ["95", "exact"])
def test_an_exact_attack_that_was_stopped_by_the_clock_is_no_pass(milestone):
    stopped = failed(999, attack="exact", error="TimeUp: stopped after 60 s of computing")
    assert status(f"queries-to-{milestone} < 1000", record(0.4, 999), stopped) == "undecided"


def test_an_error_does_not_hide_a_failure():
    assert status("queries-to-95 < 1000", record(0.97, 100), failed(100, 1)) == "failed"


def test_exactness_has_a_gate_of_its_own():
    exact = record(0.9999, 1000, attack="exact", outcome="RECOVERED", queries=60)
    assert status("queries-to-exact < 100", exact) == "failed"
    assert status("queries-to-exact < 50", exact) == "undecided"
    tried = record(None, 50, attack="exact", outcome="BUDGET_EXHAUSTED", queries=40)
    assert status("queries-to-exact < 50", tried, exact) == "passed"


# Levels and defences


def test_a_level_is_judged_alone_if_it_is_named():
    records = [record(0.97, 100, level="gradients"), record(0.3, 1000, level="label")]
    assert status("queries-to-95 < 1000", *records) == "failed"
    assert status("gradients: queries-to-95 < 1000", *records) == "failed"
    assert status("label: queries-to-95 < 1000", *records) == "passed"


def test_who_sees_more_can_ignore_it():
    records = [record(0.97, 100, level="label"), record(0.3, 1000, level="probabilities")]
    assert status("probabilities: queries-to-95 < 1000", *records) == "failed"


def test_one_undecided_level_leaves_all_undecided():
    assert status("queries-to-95 < 1000", record(0.3, 1000), record(0.3, 10, level="label")) == "undecided"


def test_a_failed_level_fails_whatever_is_undecided():
    assert status("queries-to-95 < 1000", record(0.3, 10, level="label"), record(0.99, 100)) == "failed"


def test_a_level_that_was_not_tried_decides_nothing():
    found = gate("logits: queries-to-95 < 1000", record(0.3, 1000))
    assert found.status == "undecided"
    assert "nothing was tried at the level 'logits'" in found.reason


def test_what_a_defence_would_do_is_no_part_of_the_gate():
    assert status("queries-to-95 < 1000", record(0.97, 100), record(0.3, 1000, defence="label")) == "failed"
    assert status("queries-to-95 < 1000", record(0.3, 1000), record(0.97, 10, defence="round:9")) == "passed"
    assert status("queries-to-95 < 1000", record(0.3, 1000, defence="label")) == "undecided"


# Agreement at a number of queries


def test_agreement_at_a_number_of_queries():
    records = [record(0.5, 10), record(0.92, 100), record(0.97, 1000)]
    assert status("agreement-at-100 > 0.9", *records) == "failed"
    assert status("agreement-at-100 > 0.93", *records) == "passed"
    assert status("agreement-at-100 >= 0.92", *records) == "failed"
    assert status("agreement-at-100 > 95 %", *records) == "passed"
    assert status("agreement-at-10 > 0.9", *records) == "passed"
    assert status("agreement-at-50 > 0.9", *records) == "undecided"
    assert status("agreement-at-50 > 0.95", *records) == "passed"
    assert status("agreement-at-5000 > 0.98", *records) == "undecided"
    assert status("agreement-at-5000 > 0.95", *records) == "failed"


def test_the_best_seed_counts():
    assert status("agreement-at-100 > 0.9", record(0.5, 100, 0), record(0.95, 100, 1)) == "failed"


def test_no_clone_at_all_is_no_agreement():
    assert status("agreement-at-100 > 0.9", record(None, 100, outcome="BUDGET_EXHAUSTED")) == "undecided"
    assert status("agreement-at-100 > 0.9", failed(100)) == "undecided"
    assert status("agreement-at-100 > 0.9", record(0.5, 100), failed(100, 1)) == "undecided"


# Targets that say nothing


def test_agreement_that_a_constant_guess_has_decides_nothing():
    found = gate("queries-to-95 < 1000", record(1.0, 10), majority=0.97)
    assert found.status == "undecided"
    assert "always guessing one class" in found.reason
    assert status("queries-to-99 < 1000", record(1.0, 10), majority=0.97) == "failed"
    assert status("agreement-at-100 > 0.9", record(1.0, 10), majority=0.97) == "undecided"
    assert status("queries-to-exact < 100", record(1.0, 10, outcome="RECOVERED"), majority=1.0) == "failed"


# Attacks that show nothing


@pytest.mark.parametrize("text", ["queries-to-95 < 1000", "agreement-at-999 > 95 %"])
def test_a_copy_no_better_than_a_constant_guess_is_no_pass(text):
    found = gate(text, record(0.659, 999), majority=0.66)
    assert found.status == "undecided"
    assert "no copy was better than a constant guess" in found.reason
    assert status(text, record(0.67, 999), majority=0.66, test_inputs=200) == "undecided"
    assert status(text, record(0.8, 999), majority=0.66, test_inputs=200) == "passed"


@pytest.mark.parametrize("text", ["queries-to-95 < 1000", "agreement-at-999 > 95 %"])
def test_a_pool_smaller_than_the_threshold_is_no_pass(text):
    found = gate(text, record(0.7, 999), pool=449)
    assert found.status == "undecided"
    assert "attackers had 449 inputs to ask" in found.reason
    assert status(text, record(0.7, 999), pool=999) == "passed"
    assert status(text, record(0.97, 440), pool=449) == "failed"


@pytest.mark.parametrize("text", ["queries-to-95 < 1000", "agreement-at-999 > 95 %"])
def test_an_agreement_that_test_inputs_cannot_tell_from_the_threshold_is_no_pass(text):
    found = gate(text, record(0.947, 999), test_inputs=450)
    assert found.status == "undecided"
    assert "94.7% of 450 test inputs" in found.reason
    assert status(text, record(0.90, 999, 0), record(0.947, 999, 1), test_inputs=450) == "undecided"
    assert status(text, record(0.947, 100), record(0.93, 999), test_inputs=450) == "undecided"
    assert status(text, record(0.92, 999), test_inputs=450) == "passed"


def test_neither_pool_nor_guessing_matters_to_exactness():
    tried = record(None, 999, attack="exact", outcome="BUDGET_EXHAUSTED")
    assert status("queries-to-exact < 1000", tried, pool=10, test_inputs=0, majority=1.0) == "passed"
