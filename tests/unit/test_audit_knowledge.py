"""What attacks know of a target's maps: what a server's description, an explanation or a defence says they are."""

import numpy as np
import pytest
import torch

import relumine as rl
from problems import two_layer
from relumine import defend, explain
from relumine.audit.attacks import attacks_for
from relumine.audit.knowledge import knowledge_of, maps_of, unknown_maps
from relumine.audit.levels import Setting
from relumine.audit.plan import lines_of
from relumine.audit.result import AttackKey
from relumine.audit.settings import AuditSettings
from relumine.explain.map_kind import ADAPTABLE, GRADIENT, WORDS, MapKind, map_kind

OFFER = rl.Offer((6,), 3, "logits", "all", "float64")
URL = "http://127.0.0.1:1/v1/models/net"


def names(word: str, offer: rl.Offer = OFFER) -> list[str]:
    return [attack.key.name for attack in attacks_for("gradients", offer, maps=map_kind(word))]


def test_gradients_are_what_models_here_show():
    assert maps_of(rl.FunctionOracle(lambda x, _: (x, None), OFFER)) == GRADIENT
    assert names("gradient")[0] == "exact"


@pytest.mark.parametrize("word", WORDS)
def test_a_server_s_description_says_what_it_shows(word):
    with rl.HttpOracle(URL, offer=OFFER, explanation=word) as oracle:
        assert maps_of(oracle) == map_kind(word)
        assert unknown_maps(oracle) == ""


@pytest.mark.parametrize("word", [word for word in ADAPTABLE if word != "gradient"])
def test_maps_that_can_be_made_gradients_again_are(word):
    assert "exact, adapted" in names(word)


@pytest.mark.parametrize("word", ["input-times-gradient", "squared", "normalised-input-times-gradient"])
def test_a_network_is_recovered_from_every_map_that_a_preflight_tells(word):
    problem = two_layer(6, 5, 3)

    def shown(x, gradients):
        answer = problem.oracle(x, gradients=gradients)
        return answer.values, None if not gradients else SHOWN[word](x[:, None], answer.jacobians)

    oracle = rl.Metered(rl.FunctionOracle(shown, problem.oracle.offer))
    (attack, *_) = attacks_for("gradients", oracle.offer, maps=map_kind(word))
    assert attack(oracle, 100_000, 0).outcome is rl.Outcome.RECOVERED


SHOWN = {
    "input-times-gradient": lambda x, maps: x * maps,
    "squared": lambda x, maps: maps**2,
    "normalised-input-times-gradient": lambda x, maps: (
        x * maps / np.maximum(abs(x * maps).max(axis=2, keepdims=True), 1e-300)
    ),
}


@pytest.mark.parametrize("word", [word for word in ADAPTABLE if word != "gradient"])
def test_an_audit_of_a_server_plans_for_the_maps_it_shows(word):
    with rl.HttpOracle(URL, offer=OFFER, explanation=word) as oracle:
        lines = lines_of(oracle, AuditSettings(target=URL, levels=("gradients",)), Setting())
    assert [line.exact[0] for line in lines] == [AttackKey("exact", adapted=True)]


def test_integrated_gradients_are_matched_as_such():
    assert not [name for name in names("integrated-gradients") if name in ("exact", "exact, adapted")]
    assert "learned" in names("integrated-gradients")


def test_what_no_attack_knows_is_said():
    with rl.HttpOracle(URL, offer=OFFER, explanation="occlusion") as oracle:
        assert "occlusion" in unknown_maps(oracle)
        assert maps_of(oracle) == GRADIENT


def test_values_alone_are_the_same_everywhere():
    values = rl.Offer((6,), 3, "logits", "none", "float64")
    assert names("absolute", values) == names("gradient", values)


@pytest.mark.parametrize("word", [word for word in WORDS if word not in ("none", "smoothgrad", "absolute-gradient")])
def test_a_word_is_written_as_it_is_read(word):
    assert map_kind(word).word == word


def test_words_that_nobody_knows_are_refused():
    with pytest.raises(rl.MisuseError, match=r"input-times-gradient.*got 'occlusion'"):
        map_kind("occlusion")


@pytest.mark.parametrize(
    ("explanation", "word"),
    [
        (explain.Gradient(), "gradient"),
        (explain.AbsoluteGradient(), "absolute"),
        (explain.InputTimesGradient(), "input-times-gradient"),
        (explain.SmoothGrad(0.3), "smoothed"),
        (explain.IntegratedGradients(), "integrated-gradients"),
    ],
)
def test_explanations_say_what_their_maps_are(explanation, word):
    oracle = explain.ExplainedOracle(torch.nn.Linear(6, 3), explanation, (6,))
    assert maps_of(oracle).word == word


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("magnitude", "absolute"),
        ("maxnorm", "normalised"),
        ("magnitude+maxnorm", "normalised-absolute"),
        ("smoothgrad:4,0.1+magnitude", "smoothed-absolute"),
        ("round:3", "gradient"),
        ("heatmap:8", None),
        ("topk:2", None),
        ("sign", None),
    ],
)
def test_defences_say_what_they_leave_of_maps(words, word):
    assert knowledge_of("gradients", defend.parse(words)).maps.word == word


def test_defences_are_put_in_front_of_what_a_target_shows():
    known = knowledge_of("gradients", defend.parse("magnitude"), maps=MapKind(times_input=True))
    assert known.maps == MapKind(times_input=True, magnitudes=True)


@pytest.mark.parametrize(("told", "expected"), [("smoothed", 2.5), ("gradient", None)])
def test_noise_that_a_server_does_not_tell_is_taken_for_the_data_s(told, expected):
    smoothing = knowledge_of("gradients", None, 2.5, map_kind(told)).maps.smoothing
    assert (smoothing and smoothing.sigma) == expected
