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

GOOD, BAD, PLAIN = (tuple(f"{word}{i}" for i in range(60)) for word in ("good", "bad", "word"))


def texts(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Sentences of plain words with a few that count, and whether the good ones prevail."""
    rng = np.random.default_rng(seed)
    found, labels = [], []
    while len(found) < count:
        words = [*rng.choice(PLAIN, rng.integers(2, 8)), *rng.choice(GOOD + BAD, rng.integers(1, 5))]
        balance = sum((word in GOOD) - (word in BAD) for word in words)
        if balance:
            found.append(" ".join(rng.permutation(words)))
            labels.append(int(balance > 0))
    return found, np.array(labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, trained, its tokenizer, and a table of texts that it was not trained on."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("texts")
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    vocabulary = {word: i for i, word in enumerate((*special, *GOOD, *BAD, *PLAIN))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=20, hidden_dropout_prob=0, id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1}, pad_token_id=0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    sentences, labels = texts(2000, seed=1)
    tokenizer.enable_padding(pad_id=0)
    ids = torch.tensor([one.ids for one in tokenizer.encode_batch(sentences)])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        some = torch.randint(len(ids), (64,), generator=generator)
        output = model(input_ids=ids[some], attention_mask=(ids[some] != 0).long(), labels=torch.tensor(labels)[some])
        output.loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.eval().save_pretrained(folder / "bert")
    tokenizer.save(str(folder / "bert" / "tokenizer.json"))
    sentences, labels = texts(800, seed=2)
    names = ["positive" if label else "negative" for label in labels]
    rows = "".join(f"{sentence},{name}\n" for sentence, name in zip(sentences, names, strict=True))
    (folder / "reviews.csv").write_text(f"text,label\n{rows}")
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
    weight = oracle._embedding.weight
    token, step = int(row[0, 1]), 1e-2
    before, change = weight[token].clone(), []
    for sign in (1, -1):
        weight[token] = before * (1 + sign * step)
        change.append(oracle(row, gradients=False).values[0])
    weight[token] = before
    np.testing.assert_allclose(maps[:, 1], (change[0] - change[1]) / (2 * step), rtol=0.05, atol=1e-3)


def agreements(oracle: TokenOracle, budget: int, seed: int) -> dict[str, float]:
    """Of the best attack at each level, on fresh texts."""
    pool, test = (oracle.encode(texts(count, seed=100 + seed + i)[0]) for i, count in enumerate((400, 600)))
    truth = oracle(test, gradients=False).values.argmax(axis=1)
    found = {}
    for name in ("label", "logits", "token-gradients", "token-integrated-gradients"):
        shown = LEVELS[name].of(oracle)
        attack = attacks_for(name, shown.offer)[0]
        clone = attack(Metered(shown, budget=budget), budget, seed, pool)
        found[name] = float(np.mean(clone.predict(test).argmax(axis=1) == truth))
    return found


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
