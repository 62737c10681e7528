"""Levels of access: what each shows of a target, and what it hides."""

import numpy as np
import pytest
import torch

import relumine as rl
from problems import Counting, Noisy, two_layer
from relumine import explain
from relumine.audit.levels import LEVELS, Setting, levels_of

X = np.random.default_rng(5).standard_normal((4, 6))


def names(oracle: rl.Oracle, *, local: bool = True) -> list[str]:
    return [level.name for level in levels_of(oracle, local=local)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["label", "probabilities", "logits", "top-gradient", "gradients", "smoothgrad", "integrated-gradients"]),
        ({"gradients": "top"}, ["label", "probabilities", "logits", "top-gradient"]),
        ({"gradients": "none"}, ["label", "probabilities", "logits"]),
        ({"values": "probabilities", "gradients": "none"}, ["label", "probabilities"]),
        ({"values": "real", "gradients": "none"}, ["values"]),
    ],
)
def test_a_target_is_seen_at_the_levels_that_its_offer_can_give(fields, expected):
    assert names(two_layer(6, 5, 3, **fields).oracle) == expected


def test_a_single_real_output_has_values_and_gradients_and_no_label():
    oracle = two_layer(6, 5).oracle
    assert names(oracle) == ["values", "gradients", "smoothgrad", "integrated-gradients"]
    assert [level.label for level in levels_of(oracle, local=True)][1] == "gradient"


def test_who_answers_labels_only_has_one_level():
    labels = rl.FunctionOracle(
        lambda x, _: (np.eye(3)[(x[:, 0] > 0).astype(int)], None), rl.Offer((6,), 3, "label", "none")
    )
    assert names(labels) == ["label"]


def test_a_server_is_seen_only_as_it_answers():
    assert "smoothgrad" not in names(two_layer(6, 5, 3).oracle, local=False)


def test_baselines_show_the_same_values():
    for level in levels_of(two_layer(6, 5, 3, values="probabilities").oracle, local=True):
        assert level.baseline == ("probabilities" if "grad" in level.name else "")


# Of trees, and of text classifiers: test_tree_shap.py, test_tokens.py.
CONTRIBUTIONS = ("shap", "token-gradients", "token-integrated-gradients")


@pytest.mark.parametrize("name", [name for name in LEVELS if name not in CONTRIBUTIONS])
def test_a_view_keeps_its_word(name):
    problem = two_layer(6, 5, 1 if name == "values" else 3)
    view = LEVELS[name].of(problem.oracle)
    explained = view.offer.gradients != "none"
    assert explained == ("grad" in name)
    answer = rl.Metered(view)(X, gradients=explained)  # a meter holds answers against the offer
    kinds = {"label": "label", "probabilities": "probabilities", "values": "real"}
    assert view.offer.values == kinds.get(name, "logits")
    assert np.array_equal(answer.values.argmax(1), problem.predict(X).argmax(1))


def test_values_are_asked_without_gradients():
    counting = Counting(two_layer(6, 5, 3).oracle)
    for name in ("label", "probabilities", "logits"):
        LEVELS[name].of(counting)(X, gradients=False)
    assert (counting.gradient_queries, counting.value_queries) == (0, 12)


def test_integrated_gradients_are_what_explain_computes():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).double()
    view = LEVELS["integrated-gradients"].of(rl.TorchOracle(module, (6,)))
    reference = explain.ExplainedOracle(module, explain.IntegratedGradients(), (6,))
    answers = [oracle(X, gradients=True) for oracle in (view, reference)]
    assert np.allclose(answers[0].jacobians, answers[1].jacobians, atol=1e-12)
    assert np.allclose(answers[0].values, answers[1].values, atol=1e-12)


def test_smoothgrad_s_noise_is_of_the_data_s_size():
    problem = two_layer(6, 40, 3)
    exact = problem.jacobian(X)
    errors = [
        np.abs(LEVELS["smoothgrad"].of(problem.oracle, Setting(size, 0))(X, gradients=True).jacobians - exact).max()
        for size in (1e-9, 1.0)
    ]
    assert errors[0] < 1e-9 < errors[1]


def test_a_random_target_is_still_called_random():
    assert all(
        level.of(Noisy(two_layer(6, 5, 3).oracle, 0.1)).offer.random
        for level in LEVELS.values()
        if level.name not in ("values", *CONTRIBUTIONS)
    )
