"""Servers whose explanations are no plain gradients: attacks know what the server's description says."""

import pytest

import relumine as rl
from relumine.audit.served import attacks_at, explanation_of, warning_about

OFFER = rl.Offer((6,), 3, "logits", "all", "float64")
URL = "http://127.0.0.1:1/v1/models/net"


def names(explanation: str, offer: rl.Offer = OFFER) -> list[str]:
    return [attack.key.name for attack in attacks_at("gradients", offer, None, 1.0, explanation)]


def test_gradients_are_what_models_here_show():
    assert explanation_of(rl.FunctionOracle(lambda x, _: (x, None), OFFER)) == "gradient"
    assert names("gradient")[0] == "exact"


def test_a_server_s_description_says_what_it_shows():
    with rl.HttpOracle(URL, offer=OFFER, explanation="absolute") as oracle:
        assert explanation_of(oracle) == "absolute"


@pytest.mark.parametrize("explanation", ["absolute", "normalised", "normalised-absolute", "smoothed"])
def test_maps_that_can_be_made_gradients_again_are(explanation):
    assert "exact, adapted" in names(explanation)
    assert warning_about(explanation) == ""


def test_integrated_gradients_are_matched_as_such():
    assert "exact" not in names("integrated-gradients")
    assert "learned" in names("integrated-gradients")


def test_what_no_attack_knows_is_said():
    assert warning_about("gradient") == ""
    assert "occlusion" in warning_about("occlusion")


def test_values_alone_are_the_same_everywhere():
    values = rl.Offer((6,), 3, "logits", "none", "float64")
    assert names("absolute", values) == names("gradient", values)
