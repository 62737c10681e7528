"""What an audit is told: on the command line, in audit.toml, and where nothing is said."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import relumine as rl
from relumine import zoo
from relumine.audit import default
from relumine.audit.settings import AuditSettings, read_settings


def test_without_a_target_the_network_that_comes_along_is_audited():
    settings = AuditSettings()
    assert (settings.name, settings.data, settings.input_shape) == ("digits", "digits", (1, 8, 8))
    oracle = settings.oracle()
    assert (oracle.offer.dtype, oracle.offer.outputs, oracle.offer.values) == ("float32", 10, "logits")
    test = zoo.dataset("digits").split(seed=0).test
    values = oracle(test.inputs.reshape(len(test), -1).astype(np.float64), gradients=False).values
    assert (values.argmax(1) == test.labels).mean() > 0.97


def test_its_card_says_how_it_was_trained():
    import hashlib
    import json

    folder = Path(default.__file__).parent / "digits"
    card = json.loads((folder / "card.json").read_text())
    weights = (folder / "weights.safetensors").read_bytes()
    assert card["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert len(weights) < 50_000
    assert card["recipe"]["options"] == {"hidden": 32}


def test_settings_go_to_other_processes_and_into_sets():
    settings = AuditSettings(levels=("logits",), defences=("round:2",))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert len({settings, AuditSettings(levels=("logits",), defences=("round:2",))}) == 1


def test_audit_toml_is_read_and_the_command_line_wins(tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text(
        'target = "models:net"\ninput-shape = [1, 8, 8]\nbudget = 50\nseeds = 2\nlevels = ["logits"]\n'
        'fail-on = ["queries-to-95 < 40"]\nauthorized_by = "me"\nrate = 2.5\n'
    )
    settings = read_settings(file, {"budget": 100, "seeds": None})
    assert (settings.target, settings.budget, settings.seeds) == ("models:net", 100, 2)
    assert (settings.input_shape, settings.levels) == ((1, 8, 8), ("logits",))
    assert (settings.endpoint.authorized_by, settings.endpoint.rate) == ("me", 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budgets = 3", "expected settings among .*budget.*got budgets"),
        ("budget = ", "expected a TOML file"),
        ("budget = 0", "budget: expected at least 1"),
        ('budget = "many"', "budget"),
        ('levels = ["everything"]', "levels: expected names of label"),
        ('defences = ["magic"]', "defence 'magic'"),
        ('fail_on = ["soon"]', "queries-to-95"),
        ('engine = "cloud"', "local or ray"),
        ("price = -1", "price"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, text, message):
    file = tmp_path / "audit.toml"
    file.write_text(text)
    with pytest.raises(rl.MisuseError, match=message):
        read_settings(file, {})


def test_a_missing_file_is_said():
    with pytest.raises(rl.MisuseError, match="expected a TOML file"):
        read_settings(Path("nowhere.toml"), {})


def test_what_changes_no_case_changes_no_fingerprint():
    before = AuditSettings().fingerprint()
    assert AuditSettings(budget=7, seeds=1, price=2.0, levels=("label",), workers=1).fingerprint() == before
    assert AuditSettings(data="mnist").fingerprint() != before
    assert AuditSettings(gradients="top").fingerprint() != before
