"""What a student is compared by behind a defence: no gap to what the defence would show of the same maps."""

import numpy as np
import pytest
import torch

import relumine as rl
from problems import two_layer
from relumine import defend
from relumine.audit.knowledge import knowledge_of
from relumine.explain import MapKind
from relumine.reconstruct.matching.loss import distorted_by, gap, kind_of

D, K = 6, 3
X = np.random.default_rng(0).standard_normal((5, D))


def shown_of(words: str) -> MapKind:
    return knowledge_of("gradients", defend.parse(words)).maps


def maps_of(words: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients themselves, and what is shown of them."""
    truth = two_layer(D, 9, K, values="logits").oracle
    answers = truth(X, gradients=True).jacobians, defend.parse(words)(truth)(X, gradients=True).jacobians
    return torch.from_numpy(answers[0]), torch.from_numpy(answers[1])


@pytest.mark.parametrize("words", ["topk:2", "magnitude", "maxnorm", "magnitude+maxnorm", "topk:2+maxnorm"])
def test_true_maps_have_no_gap(words):
    true, answered = maps_of(words)
    shown = shown_of(words)
    assert float(gap(shown, true, answered, 1.0)) < 1e-12
    assert float(gap(shown, true + torch.randn_like(true), answered, 1.0)) > 0.1


@pytest.mark.parametrize("words", ["sign", "topk:2+sign", "heatmap:8", "heatmap:8,signed"])
def test_maps_closer_to_the_true_ones_have_a_smaller_gap(words):
    true, answered = maps_of(words)
    noise = torch.from_numpy(np.random.default_rng(1).standard_normal(true.shape))
    gaps = [float(gap(shown_of(words), true + size * noise, answered, 1.0)) for size in (0, 0.3, 3)]
    assert gaps == sorted(gaps)


@pytest.mark.parametrize("words", ["magnitude", "sign", "maxnorm"])
def test_what_is_lost_does_not_matter(words):
    true, answered = maps_of(words)
    same = {"magnitude": -true, "sign": 3 * true, "maxnorm": 3 * true}[words]
    assert float(gap(shown_of(words), same, answered, 1.0)) == pytest.approx(
        float(gap(shown_of(words), true, answered, 1.0))
    )


def test_hidden_coordinates_may_not_be_larger_than_those_shown():
    answered = torch.tensor([[[3.0, -2.0, 0.0, 0.0]]])
    shown = MapKind(masked=True)
    assert float(gap(shown, torch.tensor([[[3.0, -2.0, 1.9, -2.0]]]), answered, 1.0)) == 0
    assert float(gap(shown, torch.tensor([[[3.0, -2.0, 4.0, 0.0]]]), answered, 1.0)) == pytest.approx(4)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_student_s_probabilities_are_distorted_as_the_defence_does(outputs):
    oracle = two_layer(D, 9, outputs, values="probabilities").oracle
    defended = defend.ReverseSigmoid(oracle, 0.7, 0.2)
    mine = distorted_by((0.7, 0.2), torch.from_numpy(oracle(X, gradients=False).values))
    assert np.allclose(mine.numpy(), defended(X, gradients=False).values, atol=1e-6)


def test_gradients_kept_behind_a_label_are_those_of_what_was_hidden():
    for values, kind in (("logits", "logits"), ("probabilities", "probabilities")):
        offer = defend.parse("label:kept")(two_layer(D, 9, K, values=values).oracle).offer
        assert (offer.values, offer.explained) == ("label", values)
        assert kind_of(offer, np.eye(K)) == kind
    rounded = defend.parse("round:1")(two_layer(D, 9, K, values="probabilities").oracle).offer
    assert (rounded.values, rounded.explained) == ("real", "probabilities")


def test_what_is_explained_must_be_a_number():
    with pytest.raises(rl.MisuseError, match="explained"):
        rl.Offer((2,), 2, explained="label")
