"""A text classifier made here: sentences, a small BERT that is trained on them, and attacks on its attributions."""

from pathlib import Path

import numpy as np
import torch

from relumine.audit.attacks import attacks_for
from relumine.audit.levels import LEVELS
from relumine.oracle.metering.metered import Metered
from relumine.oracle.tokens import TokenOracle

GOOD, BAD, PLAIN = (tuple(f"{word}{i}" for i in range(60)) for word in ("good", "bad", "word"))

SHOWN = ("label", "logits", "token-gradients", "token-integrated-gradients")


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


def write_classifier(folder: Path) -> None:
    """A small BERT, trained, its tokenizer, and a table of texts that it was not trained on."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification

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


def agreements(oracle: TokenOracle, budget: int, seed: int) -> dict[str, float]:
    """Of the best attack at each level, on fresh texts."""
    pool, test = (oracle.encode(texts(count, seed=100 + seed + i)[0]) for i, count in enumerate((400, 600)))
    truth = oracle(test, gradients=False).values.argmax(axis=1)
    found = {}
    for name in SHOWN:
        shown = LEVELS[name].of(oracle)
        attack = attacks_for(name, shown.offer)[0]
        clone = attack(Metered(shown, budget=budget), budget, seed, pool)
        found[name] = float(np.mean(clone.predict(test).argmax(axis=1) == truth))
    return found
