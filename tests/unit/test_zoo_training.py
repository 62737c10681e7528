"""Targets: trained, carded, kept, reused, and trained again when what was kept is damaged."""

import json
import warnings

import numpy as np
import pytest
import torch

import relumine as rl
from relumine import zoo

SHORT = zoo.Training(learning_rate=0.01, steps=60, batch=64)


@pytest.fixture(scope="module")
def digits():
    return zoo.dataset("digits").split(seed=0)


def train(digits, cache, name="linear", **changes):
    return zoo.trained(name, digits, **{"settings": SHORT, "cache": cache} | changes)


def same(one, other):
    return all(torch.equal(one.state_dict()[key], value) for key, value in other.state_dict().items())


@pytest.mark.parametrize(("name", "least"), [("linear", 0.85), ("two_layer", 0.9), ("conv", 0.85)])
def test_short_training_is_enough_for_digits(digits, tmp_path, name, least):
    result = train(digits, tmp_path, name)
    guesses = result.module(torch.from_numpy(digits.test.inputs)).argmax(1).numpy()
    assert result.card.test_accuracy == (guesses == digits.test.labels).mean() > least
    assert not result.module.training


def test_batch_norm_is_kept_with_the_weights(digits, tmp_path):
    settings = zoo.Training(learning_rate=1e-3, steps=12, batch=16)
    first = train(digits, tmp_path, "resnet18_small", settings=settings)
    again = train(digits, tmp_path, "resnet18_small", settings=settings)
    assert again.reused
    assert same(first.module, again.module)


def test_a_target_is_kept_and_reused(digits, tmp_path):
    first = train(digits, tmp_path)
    again = train(digits, tmp_path)
    assert (first.reused, again.reused) == (False, True)
    assert same(first.module, again.module)
    assert not again.module.training
    assert again.card == first.card
    assert len([*tmp_path.glob("*.safetensors")]) == 1


def test_the_card_says_what_the_target_is(digits, tmp_path):
    card = train(digits, tmp_path, seed=5).card
    written = json.loads(next(tmp_path.glob("*.json")).read_text("utf-8"))
    assert written["test_accuracy"] == card.test_accuracy
    assert written["recipe"]["seed"] == 5
    assert written["recipe"]["settings"]["steps"] == 60
    assert written["recipe"]["data"]["name"] == "digits"
    assert written["parameters"] == 650
    assert {"relumine", "torch", "numpy", "python"} == {*written["versions"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"settings": zoo.Training(learning_rate=0.01, steps=61, batch=64)},
        {"name": "two_layer", "options": {"hidden": 8}},
        {"digits": zoo.dataset("digits").split(seed=1)},
        {"digits": zoo.dataset("digits", standardise=True).split(seed=0)},
    ],
)
def test_another_recipe_is_another_target(digits, tmp_path, changes):
    train(digits, tmp_path)
    assert not train(**{"digits": digits, "cache": tmp_path} | changes).reused
    assert len([*tmp_path.glob("*.safetensors")]) == 2


def test_training_follows_from_its_seed(digits, tmp_path):
    first = train(digits, tmp_path / "a", "conv")
    torch.manual_seed(77)
    np.random.seed(77)
    assert same(first.module, train(digits, tmp_path / "b", "conv").module)
    assert not same(first.module, train(digits, tmp_path / "c", "conv", seed=1).module)


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def alter(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, alter, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("ending", ["safetensors", "json"])
def test_a_damaged_checkpoint_is_trained_again_with_a_notice(digits, tmp_path, damage, ending):
    first = train(digits, tmp_path)
    damage(next(tmp_path.glob(f"*.{ending}")))
    with pytest.warns(UserWarning, match="damaged"):
        again = train(digits, tmp_path)
    assert not again.reused
    assert same(first.module, again.module)
    assert train(digits, tmp_path).reused


def test_weights_without_a_card_are_trained_again_in_silence(digits, tmp_path):
    train(digits, tmp_path)
    next(tmp_path.glob("*.json")).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not train(digits, tmp_path).reused


def test_a_cache_that_cannot_be_written_costs_only_a_notice(digits, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="RELUMINE_CACHE"):
        assert train(digits, tmp_path / "file" / "folder").card.test_accuracy > 0.85


def test_the_cache_folder_is_the_environments(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("RELUMINE_CACHE", str(tmp_path))
    train(digits, None)
    assert [*(tmp_path / "targets").glob("linear-digits-*.safetensors")]


def test_misuse_says_what_was_expected(digits, tmp_path):
    with pytest.raises(rl.MisuseError, match="positive steps"):
        zoo.Training(steps=0)
    with pytest.raises(rl.MisuseError, match="lower the learning rate"):
        train(digits, tmp_path, "conv", settings=zoo.Training(learning_rate=1e30))
    wrong = zoo.Split("wrong", 5, digits.train, digits.pool, digits.test)
    with pytest.raises(rl.MisuseError, match="labels from 0 to 4"):
        train(wrong, tmp_path)
