"""Text classifiers: token ids in, values and token attributions out, and what these give away."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import relumine as rl
from relumine.audit.attacks import attacks_for
from relumine.audit.levels import LEVELS, levels_of
from relumine.cli import app
from relumine.oracle.metering.metered import Metered
from relumine.oracle.tokens import TokenOracle
from relumine.targets import load_target
from text_classifier import agreements, texts, write_classifier


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_classifier(folder)
    return folder


@pytest.fixture(scope="module")
def oracle(folder: Path) -> TokenOracle:
    loaded = load_target(str(folder / "bert"))
    assert isinstance(loaded, TokenOracle)
    return loaded


def test_one_command_audits_a_text_classifier_s_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    said = ("--data", "reviews.csv", "--budget", "10", "--seeds", "1", "--workers", "1", "-o", "text.json")
    result = CliRunner().invoke(app, ["audit", "bert", *said])
    assert result.exit_code == 0, result.output
    found = json.loads(Path("text.json").read_text())
    levels = ["label", "probabilities", "logits", "token-gradients", "token-integrated-gradients"]
    assert [curve["level"] for curve in found["curves"]] == levels
    assert found["about"]["target_accuracy"] > 0.9
    assert {one["outcome"] for one in found["records"]} == {"FITTED"}


def test_values_are_the_model_s_own(folder, oracle):
    from transformers import AutoModelForSequenceClassification

    sentences, labels = texts(50, seed=3)
    rows = oracle.encode(sentences)
    module = AutoModelForSequenceClassification.from_pretrained(folder / "bert").eval()
    for row, sentence, value in zip(rows, sentences, oracle(rows, gradients=False).values, strict=True):
        ids = torch.tensor(row[: len(sentence.split()) + 2], dtype=torch.long)[None]
        with torch.no_grad():
            np.testing.assert_allclose(value, module(input_ids=ids).logits[0].numpy(), atol=1e-4)
    shares = load_target(str(folder / "bert"), values="probabilities", input_shape=(16,))
    assert shares.offer.inputs == (16,)
    assert np.mean(shares(shares.encode(sentences), gradients=False).values.argmax(axis=1) == labels) > 0.9


@pytest.mark.parametrize(("nodes", "off"), [(50, 0.2), (300, 1e-3)])
def test_integrated_gradients_are_complete_and_padding_adds_nothing(oracle, monkeypatch, nodes, off):
    monkeypatch.setattr("relumine.oracle.tokens._NODES", nodes)
    rows = oracle.encode(texts(40, seed=4)[0])
    maps = oracle.attributions(rows, "integrated-gradients")
    values = oracle(rows, gradients=False).values
    # From the same number of attended tokens, all of them padding.
    lengths = (rows != oracle.padding).sum(axis=1)
    same = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
    for group in (one for one in same if len(one) > 1):
        rest = values[group] - maps[group].sum(axis=2)
        assert np.ptp(rest, axis=0).max() < off * np.ptp(values)
    assert not maps[(rows == oracle.padding)[:, None].repeat(2, axis=1)].any()


def test_input_times_gradient_is_the_slope_of_a_token_s_embedding(oracle):
    row = oracle.encode(["good1 word1 bad1"])
    maps = oracle.attributions(row, "input-times-gradient")[0]
    weight = oracle.embedding.weight
    token, step = int(row[0, 1]), 1e-2
    before, change = weight[token].clone(), []
    for sign in (1, -1):
        weight[token] = before * (1 + sign * step)
        change.append(oracle(row, gradients=False).values[0])
    weight[token] = before
    np.testing.assert_allclose(maps[:, 1], (change[0] - change[1]) / (2 * step), rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_attributions_take_fewer_queries_than_values(oracle, seed):
    found = agreements(oracle, 100, seed)
    assert found["token-integrated-gradients"] > max(found["label"], found["logits"]) + 0.05
    assert found["token-integrated-gradients"] > 0.82
    assert agreements(oracle, 300, seed)["label"] > 0.85


def test_with_a_public_embedding_table_embeddings_are_inputs_with_gradients(folder, oracle):
    embedded = load_target(str(folder / "bert"), gradients="all")
    assert (embedded.offer.inputs, embedded.offer.gradients) == ((19, 16), "all")
    sentences = texts(30, seed=6)[0]
    ids, rows = oracle.encode(sentences), embedded.encode(sentences)
    np.testing.assert_array_equal(rows, embedded.filled([row[row != 0].astype(int).tolist() for row in ids]))
    answer = embedded(rows, gradients=True)
    np.testing.assert_allclose(answer.values, oracle(ids, gradients=False).values, atol=1e-5)
    summed = (rows[:, None] * answer.jacobians).reshape(30, 2, 19, 16).sum(axis=3)
    np.testing.assert_allclose(summed, oracle.attributions(ids, "input-times-gradient"), atol=1e-4)
    pool, test = (embedded.encode(texts(count, seed=200 + count)[0]) for count in (50, 400))
    linear = next(one for one in attacks_for("logits", LEVELS["logits"].of(embedded).offer) if "linear" in one.key.name)
    clone = linear(Metered(LEVELS["logits"].of(embedded), budget=50), 50, 0, pool.reshape(50, 19, 16))
    truth = embedded(test, gradients=False).values.argmax(axis=1)
    assert np.mean(clone.predict(test).argmax(axis=1) == truth) > 0.78


def test_ids_in_an_npz_file_are_data_too(folder, oracle, tmp_path):
    rows = [row[row != 0].astype(np.uint8) for row in oracle.encode(texts(30, seed=5)[0])]
    short = np.array([row[:5] for row in rows])
    np.savez(tmp_path / "ids.npz", inputs=short, labels=np.arange(30) % 2)
    result = rl.audit(str(folder / "bert"), tmp_path / "ids.npz", budget=2, seeds=1, levels=["label"], progress=False)
    assert result.about.test_inputs == 15
    np.savez(tmp_path / "wrong.npz", inputs=short + 200)
    with pytest.raises(rl.RelumineError, match="token ids, expected whole numbers from 0 to 183"):
        rl.audit(str(folder / "bert"), tmp_path / "wrong.npz", budget=2, seeds=1, progress=False)


def test_what_is_asked_wrongly_is_said(folder, oracle, tmp_path):
    with pytest.raises(rl.MisuseError, match="token ids"):
        rl.Auto()(oracle, rng=0)
    with pytest.raises(rl.TargetError, match="most tokens of a text, up to 19"):
        load_target(str(folder / "bert"), input_shape=(64,))
    (tmp_path / "two.csv").write_text("a,b\nx,y\n")
    with pytest.raises(rl.RelumineError, match="a column called text"):
        rl.audit(str(folder / "bert"), tmp_path / "two.csv", budget=2, progress=False)


def test_other_targets_have_no_token_levels():
    module = torch.nn.Linear(3, 2)
    names = [level.name for level in levels_of(rl.TorchOracle(module, 3), local=True)]
    assert not [name for name in names if name.startswith("token")]
