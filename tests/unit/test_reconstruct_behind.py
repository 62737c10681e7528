"""Reconstructing behind an adapter: everything that was asked is counted, once."""

import pytest

import relumine as rl
from problems import two_layer
from relumine.adapt.recipes import reconstruct_behind
from relumine.explain.map_kind import map_kind
from relumine.oracle.metering.metered import Metered


@pytest.mark.parametrize("recipe", ["gradient", "input-times-gradient"])
def test_what_was_asked_before_in_a_phase_of_the_same_name_counts(recipe):
    meter = Metered(two_layer(4, 3, 2).oracle)
    with meter.phase("verify"):
        meter([[0.5] * 4] * 5, gradients=False)
    result = reconstruct_behind(rl.Linear(), meter, map_kind(recipe), rng=0)
    assert result.spent == meter.spent
    assert result.spent.phases["verify"].value_queries >= 5
