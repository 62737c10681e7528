"""Queries per unit of every method stay what they were: a regression of more than 10 % fails."""

import pytest

from pinned import CASES, pinned

# Another processor rounds otherwise, which moves a search by a query or two; more is a change of the method.
SLACK = 1.10


@pytest.mark.parametrize("name", CASES)
def test_queries_per_unit_do_not_grow(name):
    now, before = CASES[name].measure(), pinned()[name]
    advice = f"{name}: {now} queries per unit, pinned {before}; if that is meant: python tests/pinned.py"
    assert now["gradients"] <= SLACK * before["gradients"], advice
    assert sum(now.values()) <= SLACK * sum(before.values()), advice


def test_every_pin_belongs_to_a_case():
    assert set(pinned()) == set(CASES)
