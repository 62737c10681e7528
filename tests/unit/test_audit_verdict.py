"""The words of an audit: true to their evidence, never stronger."""

import re

import pytest

from audits import about, failed, record
from relumine.audit.curves import curves_of
from relumine.audit.data import GAUSSIAN
from relumine.audit.levels import LEVELS
from relumine.audit.result import ORDINARY, Control, Curve, Record
from relumine.audit.verdict import controls_of, limits_of, queries, verdict_of, warnings_of


def learned(agreement: float, budget: int, level: str = "gradients", defence: str = "") -> list[Record]:
    return [record(agreement, budget, seed, level=level, defence=defence) for seed in range(3)]


def exact(budget: int, asked: int, seeds: int = 3) -> list[Record]:
    return [
        record(1.0, budget, seed, attack="exact", outcome="RECOVERED", queries=asked + seed) for seed in range(seeds)
    ]


def curves(*records: list[Record]) -> tuple[Curve, ...]:
    return curves_of([one for group in records for one in group], list(LEVELS.values()))


def verdict(*records: list[Record], **facts: object) -> str:
    return verdict_of(curves(*records), about(**facts), [one for each in records for one in each])


def warnings(*records: list[Record], **facts: object) -> str:
    every = [one for group in records for one in group]
    return "\n".join(warnings_of(curves_of(every, list(LEVELS.values())), about(**facts), every))


def control(*records: list[Record], **facts: object) -> Control:
    return controls_of(curves(*records), about(**facts))[-1]


# The verdict


def test_an_exact_copy_is_named_with_its_price():
    said = verdict(learned(0.3, 10), exact(100, 52), learned(0.2, 100, "logits"))
    assert "can be copied exactly. In all 3 runs an attacker who sees its gradients of all classes" in said
    assert "53 queries (52 to 54)" in said
    assert "From its logits alone, without explanations, these attacks did not manage that with 100 queries" in said
    assert "ordinary requests" not in said


def test_what_ordinary_requests_give_away_is_said_beside_an_exact_copy():
    few = [record(0.5, 1, seed, attack=ORDINARY.name) for seed in range(3)]
    more = [record(0.97, 10, seed, attack=ORDINARY.name, outcome="INCOMPLETE") for seed in range(3)]
    said = verdict(few, more, exact(100, 52))
    assert "Even 10 ordinary requests, none of them chosen, gave a copy that" in said
    assert "97 % of the test inputs" in said


def test_runs_that_failed_to_copy_are_not_hidden():
    said = verdict([*exact(100, 52, seeds=1), record(0.3, seed=1), record(0.3, seed=2)])
    assert "In 1 of 3 runs" in said


def test_an_imitation_says_on_how_many_inputs():
    said = verdict(learned(0.3, 10), learned(0.96, 100), learned(0.3, 100, "logits"), learned(0.97, 1000, "logits"))
    assert "can be imitated. In all 3 runs" in said
    assert "100 queries for a copy that gives the same class on at least 95 % of the test inputs" in said
    assert "From its logits alone, without explanations, the same took 1,000 queries" in said


def test_what_was_not_reached_is_not_called_safe():
    said = verdict(learned(0.3, 10), learned(0.514, 1000))
    assert said.startswith("Not reconstructed by these attacks within 1,000 queries")
    assert "51.4 % of the test inputs, always answering the most frequent class on 11 %" in said


def test_levels_that_were_tried_less_are_not_covered_by_those_tried_more():
    said = verdict(learned(0.3, 10), learned(0.5, 1000, "logits"))
    assert "within 10 to 1,000 queries, depending on what is shown" in said


def test_a_copy_that_is_no_better_than_guessing_is_called_so():
    said = verdict(learned(0.4, 100), majority=0.567)
    assert "40 % of the test inputs, which is no better than always answering the most frequent class (56.7 %)" in said


def test_no_copy_at_all():
    ended = [record(None, 100, seed, outcome="BUDGET_EXHAUSTED") for seed in range(3)]
    assert verdict(ended) == "Not reconstructed by these attacks within 100 queries: no copy was made."


@pytest.mark.parametrize("others", [[], learned(0.4, 100, "label")])
def test_errors_give_no_verdict(others):
    said = verdict([failed(100, seed) for seed in range(3)], others)
    assert said.startswith("No verdict: ")
    assert "error" in said


def test_nothing_tried_gives_no_verdict():
    assert verdict_of((), about()).startswith("No verdict")


def test_what_was_reached_counts_although_others_failed():
    assert verdict(learned(0.97, 100), [failed(100, level="label")]).startswith("This model can be imitated")


def test_agreement_with_a_constant_target_is_no_verdict():
    said = verdict(learned(1.0, 1), majority=0.98)
    assert said.startswith("No verdict on what leaks: the model puts 98 % of the test inputs in one class")


def test_a_constant_target_that_is_recovered_had_little_to_copy():
    said = verdict(exact(10, 4), majority=1.0)
    assert "copied exactly" in said
    assert "There was little to copy: the model puts 100 % of the test inputs in one class." in said


def test_a_regression_has_no_classes():
    said = verdict(learned(0.97, 100, "values"), outputs=1, values="real", majority=0.08)
    assert "class" not in said
    assert "comes close to it on at least 95 %" in said


def test_random_inputs_are_called_so():
    assert "95 % of the random inputs" in verdict(learned(0.97, 100), data=GAUSSIAN)


def test_defences_that_held_are_named_with_what_was_tried():
    open_door = learned(0.97, 100)
    said = verdict(open_door, learned(0.4, 1000, defence="label"), learned(0.97, 100, defence="round:6"))
    assert "Of 2 defended versions, 1 (label) kept them below 95 % with 1,000 queries." in said
    said = verdict(open_door, learned(0.97, 100, defence="round:6"))
    assert "No defended version of 1 tried kept these attacks below 95 %" in said
    said = verdict(open_door, [failed(100, defence="label")])
    assert "defended" not in said


@pytest.mark.parametrize(
    "records",
    [
        learned(0.3, 1000),
        learned(0.97, 100),
        exact(100, 50),
        learned(0.97, 100) + learned(0.3, 1000, defence="label"),
        [failed()],
    ],
)
def test_no_sentence_promises_safety(records):
    facts = about()
    drawn = curves(records)
    texts = [verdict_of(drawn, facts), *warnings_of(drawn, facts), *limits_of(drawn, facts)]
    texts += [one.evidence for one in controls_of(drawn, facts)]
    assert not re.search(r"\b(safe|secure|protected|impossible|guarantee)", " ".join(texts), re.IGNORECASE)


# Warnings


def test_a_sound_audit_has_no_warnings():
    assert warnings(learned(0.97, 100)) == ""


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"data": GAUSSIAN}, "No data was given"),
        ({"seeds": 1}, "run only once"),
        ({"seeds": 2}, "run only twice"),
        ({"test_inputs": 50}, "on 50 inputs only: an agreement of 95 % may be off by 6.2 %"),
        ({"target_accuracy": 0.12}, "hardly more than guessing does (10 %): it is untrained"),
        ({"target_accuracy": 0.52, "outputs": 1, "values": "logits"}, "guessing does (50 %)"),
        ({"values": "label", "gradients": "none"}, "answers labels only"),
        (
            {"majority": 0.97},
            "The model puts 97 % of the test inputs in one class: an agreement of 50 % or 90 % or 95 %",
        ),
        ({"majority": 0.6}, "an agreement of 50 % shows nothing"),
        ({"outputs": 1, "values": "real"}, "within 10 % of the standard deviation"),
    ],
)
def test_what_weakens_a_verdict_is_said(facts, said):
    assert said in warnings(learned(0.97, 100), **facts)


def test_errors_are_counted_and_come_first():
    said = warnings([*learned(0.97, 100), failed(100, 7, attack="exact")], seeds=1)
    assert said.startswith(
        "1 of 4 cases ended with an error, the first (exact, gradients): OracleFailedError: the target"
    )


def test_errors_are_said_of_curves_too():
    (said,) = warnings_of(curves([failed()]), about())
    assert said.startswith("Attacks ended with an error: gradients of all classes")


def test_limits_follow_what_was_done():
    plain = limits_of(curves(learned(0.97, 100)), about())
    assert any("900 test inputs" in one for one in plain)
    assert not any("defence" in one for one in plain)
    assert any(
        "Attackers knew which defence" in one for one in limits_of(curves(learned(0.9, 1, defence="top")), about())
    )
    assert any("Without labels" in one for one in limits_of((), about(labels=False)))
    assert not any("given inputs like" in one for one in limits_of((), about(data=GAUSSIAN)))


# Controls


def test_a_budget_lies_below_all_that_worked_and_not_above_what_was_tried():
    found = control(learned(0.3, 10), learned(0.6, 100), learned(0.96, 1000), exact(3000, 1800))
    assert (found.queries_to_95, found.queries_to_exact, found.suggested) == (1000, 1800, 100)
    assert (
        "95 % agreement took 1,000 queries at least, in all 3 runs; exact reconstruction took 1,800" in found.evidence
    )
    assert "with 100 queries the best copy agreed on 60 %" in found.evidence


def test_a_budget_is_at_most_half_of_the_price_and_round():
    assert control(learned(0.3, 900), exact(1000, 913)).suggested == 450


def test_the_luckiest_run_sets_the_price():
    records = [record(0.3, 100, seed) for seed in range(3)] + [record(0.96, 1000, 0, queries=400)]
    found = control([*records, record(0.3, 1000, 1), record(0.3, 1000, 2)])
    assert (found.queries_to_95, found.suggested) == (400, 100)
    assert "in 1 of 3 runs" in found.evidence


def test_no_budget_is_small_enough_for_what_leaks_at_once():
    found = control(learned(0.97, 1))
    assert found.suggested == 0
    assert "No limit that leaves a client anything to ask is small enough" in found.evidence


def test_no_budget_follows_where_nothing_smaller_was_tried():
    found = control(learned(0.97, 100))
    assert found.suggested is None
    assert "Nothing smaller was tried" in found.evidence


def test_no_budget_follows_from_failure():
    found = control(learned(0.4, 1000))
    assert (found.queries_to_95, found.queries_to_exact, found.suggested) == (None, None, None)
    assert "Neither 95 % agreement nor exact reconstruction by these attacks with 1,000 queries" in found.evidence
    assert "error" in control([failed()]).evidence
    assert "No attack" in control([record(None, outcome="NOT_THIS_CLASS", queries=0)]).evidence


def test_a_constant_target_has_no_price_of_agreement():
    found = control(learned(0.3, 1), learned(1.0, 10), majority=0.99)
    assert (found.queries_to_95, found.suggested) == (None, None)
    assert "No exact reconstruction" in found.evidence


def test_controls_are_about_what_is_exposed_now():
    found = controls_of(curves(learned(0.4, 10), learned(0.4, 10, "label"), learned(0.4, 10, defence="top")), about())
    assert [one.level for one in found] == ["label", "gradients"]


# Numbers


def test_queries_are_counted():
    assert [queries(1), queries(2), queries(1234.4)] == ["1 query", "2 queries", "1,234 queries"]


def test_a_pool_smaller_than_the_budget_is_said():
    assert "Attackers had 449 inputs" in warnings(learned(0.9, 1000), pool=449, budget=1000)
    assert "Attackers had" not in warnings(learned(0.9, 1000), pool=1000, budget=1000)
    assert "Attackers had" not in warnings(learned(0.9, 1000), pool=None, budget=1000)
