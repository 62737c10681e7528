"""Metered counts every row, and stops before a budget is exceeded."""

import numpy as np
import pytest

import relumine as rl
from problems import Breaking, Counting, Lying, two_layer


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 5))


def test_it_counts_what_an_independent_counter_counts() -> None:
    counting = Counting(two_layer(5, 4, 3).oracle)
    metered = rl.Metered(counting)
    for n, gradients in [(1, True), (7, False), (100, True), (0, True), (33, False)]:
        metered(rows(n, n), gradients=gradients)
    spent = metered.spent
    assert (spent.value_queries, spent.gradient_queries) == (counting.value_queries, counting.gradient_queries)
    assert (spent.value_queries, spent.gradient_queries) == (40, 101)
    assert spent.floats == counting.floats == 141 * 3 + 101 * 15
    assert spent.queries == 141


@pytest.mark.parametrize(("gradients", "floats"), [("all", 3 + 15), ("top", 3 + 5), (1, 3 + 5)])
def test_it_counts_the_numbers_of_one_gradient_query(gradients: str | int, floats: int) -> None:
    metered = rl.Metered(two_layer(5, 4, 3, gradients=gradients).oracle)
    metered(rows(1), gradients=True)
    assert metered.spent.floats == floats


def test_it_books_by_phase() -> None:
    metered = rl.Metered(two_layer(5, 4, 3).oracle)
    with metered.phase("search"):
        metered(rows(4), gradients=True)
        with metered.phase("verification"):
            metered(rows(3), gradients=False)
        metered(rows(2), gradients=True)
    before = metered.spent
    metered(rows(1), gradients=False)
    phases = metered.spent.phases
    assert {name: tally.queries for name, tally in phases.items()} == {"search": 6, "verification": 3, "asking": 1}
    assert metered.spent.queries == sum(tally.queries for tally in phases.values())
    since = metered.spent.since(before)
    assert (since.queries, list(since.phases)) == (1, ["asking"])


def test_a_phase_ends_when_its_block_raises() -> None:
    metered = rl.Metered(two_layer(5, 4, 3).oracle)
    with pytest.raises(ZeroDivisionError), metered.phase("search"):
        raise ZeroDivisionError
    metered(rows(1), gradients=False)
    assert list(metered.spent.phases) == ["asking"]


@pytest.mark.parametrize("ledger", [False, True])
def test_the_budget_is_checked_before_asking(ledger: bool) -> None:
    counting = Counting(two_layer(5, 4, 3).oracle)
    metered = rl.Metered(counting, budget=10, ledger=rl.Ledger(":memory:") if ledger else None)
    metered(rows(4), gradients=True)
    metered(rows(6, 1), gradients=False)
    with pytest.raises(rl.BudgetError, match="budget of 10 queries is spent: 10 asked, 1 more"):
        metered(rows(1, 2), gradients=False)
    assert counting.queries == metered.spent.queries == 10


def test_a_question_that_is_too_long_is_not_asked_in_part() -> None:
    counting = Counting(two_layer(5, 4, 3).oracle)
    metered = rl.Metered(counting, budget=100, ledger=rl.Ledger(":memory:"))
    with pytest.raises(rl.BudgetError):
        metered(rows(101), gradients=True)
    assert counting.queries == 0
    metered(rows(100), gradients=True)


@pytest.mark.parametrize("budget", [0, -3])
def test_a_budget_of_nothing_is_misuse(budget: int) -> None:
    with pytest.raises(rl.MisuseError, match="at least 1"):
        rl.Metered(two_layer(5, 4).oracle, budget=budget)


def test_misuse_costs_nothing() -> None:
    counting = Counting(two_layer(5, 4, gradients="none").oracle)
    metered = rl.Metered(counting)
    for wrong in (np.zeros(5), np.zeros((2, 4)), np.full((1, 5), np.nan)):
        with pytest.raises(rl.MisuseError):
            metered(wrong, gradients=False)
    with pytest.raises(rl.MisuseError, match="offers none"):
        metered(rows(1), gradients=True)
    assert counting.calls == metered.spent.queries == 0


def test_an_oracle_that_raises_is_translated() -> None:
    metered = rl.Metered(Breaking(two_layer(5, 4).oracle, after=3))
    metered(rows(3), gradients=True)
    with pytest.raises(
        rl.OracleFailedError, match=r"ConnectionError: the target hung up \(asked 2 rows of 5"
    ) as caught:
        metered(rows(2), gradients=True)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert metered.spent.queries == 3


def test_an_interruption_is_not_translated() -> None:
    metered = rl.Metered(Breaking(two_layer(5, 4).oracle, after=0, failure=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        metered(rows(1), gradients=True)


def test_a_bad_answer_was_paid_for() -> None:
    lying = Lying(
        two_layer(5, 4, 3).oracle, lambda answer: rl.Answer(answer.values * np.nan, answer.gradients), after=5
    )
    metered = rl.Metered(lying)
    metered(rows(5), gradients=True)
    with pytest.raises(rl.BadAnswerError, match="NaN"):
        metered(rows(2), gradients=True)
    assert metered.spent.gradient_queries == 7


def test_watchers_see_phase_units_and_cost() -> None:
    seen: list[rl.Progress] = []
    metered = rl.Metered(two_layer(5, 4).oracle, watch=seen.append)
    with metered.phase("search"):
        metered(rows(4), gradients=True)
        metered.found(2)
        metered(rows(1), gradients=False)
    assert [(p.phase, p.units, p.spent.queries) for p in seen] == [
        ("search", None, 4),
        ("search", 2, 4),
        ("search", 2, 5),
    ]
