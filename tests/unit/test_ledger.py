"""The ledger: what was paid for is on disk before it is used, and is not paid for twice."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import relumine as rl
from problems import Breaking, Counting, Noisy, two_layer


def rows(n: int, seed: int = 0, d: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def a_run(oracle: rl.Oracle, path: Path, **options: object) -> tuple[list[rl.Answer], rl.Spent]:
    """A fixed sequence of questions, some asked twice, in batches of all sizes."""
    ledger = rl.Ledger(path)
    metered = rl.Metered(oracle, ledger=ledger, **options)
    try:
        answers = [metered(rows(n, seed), gradients=seed % 2 == 0) for seed, n in enumerate([1, 70, 3, 200, 5])]
        answers.append(metered(rows(70, 1), gradients=False))
        return answers, metered.spent
    finally:
        ledger.close()


def same(first: list[rl.Answer], second: list[rl.Answer]) -> bool:
    return all(
        np.array_equal(a.values, b.values)
        and (a.gradients is b.gradients is None or np.array_equal(a.gradients, b.gradients))
        for a, b in zip(first, second, strict=True)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "ledger.sqlite"


def test_a_finished_run_is_replayed_without_asking(path: Path) -> None:
    problem = two_layer(5, 4, 3)
    answers, spent = a_run(problem.oracle, path)
    again = Counting(problem.oracle)
    replayed, counted = a_run(again, path)
    assert again.calls == 0
    assert same(answers, replayed)
    assert counted == spent
    assert spent.queries == 349


@pytest.mark.parametrize("after", [0, 1, 64, 65, 75, 150, 270, 300])
def test_an_interrupted_run_resumes_and_pays_for_nothing_twice(path: Path, after: int, tmp_path: Path) -> None:
    problem = two_layer(5, 4, 3)
    uninterrupted, spent = a_run(problem.oracle, tmp_path / "other.sqlite")
    first = Counting(Breaking(problem.oracle, after))
    with pytest.raises(rl.OracleFailedError):
        a_run(first, path)
    second = Counting(problem.oracle)
    resumed, counted = a_run(second, path)
    assert same(uninterrupted, resumed)
    assert counted == spent
    assert first.queries + second.queries == spent.queries


def test_an_interrupted_question_may_be_asked_again_in_the_same_run(path: Path) -> None:
    problem = two_layer(5, 4, 3)
    flaky = Breaking(problem.oracle, after=100)
    counting = Counting(flaky)
    metered = rl.Metered(counting, ledger=rl.Ledger(path))
    with pytest.raises(rl.OracleFailedError):
        metered(rows(150), gradients=True)
    assert metered.spent.queries == counting.queries == 64
    flaky._left = 1000
    answer = metered(rows(150), gradients=True)
    assert np.allclose(answer.values, problem.predict(rows(150)))
    assert metered.spent.queries == counting.queries == 150
    assert counting.repeated == 0


def test_the_same_question_asked_twice_is_two_askings(path: Path) -> None:
    counting = Counting(Noisy(two_layer(5, 4, 3).oracle, 0.1))
    metered = rl.Metered(counting, ledger=rl.Ledger(path))
    twice = np.vstack([rows(1), rows(1)])
    first, second = metered(twice, gradients=True), metered(rows(1), gradients=True)
    assert counting.queries == 3
    assert len({*first.values[:, 0], *second.values[:, 0]}) == 3


def test_random_answers_are_replayed_in_the_order_of_asking(path: Path) -> None:
    problem = two_layer(5, 4, 3)
    answers, _ = a_run(Noisy(problem.oracle, 0.1, rng=1), path)
    replayed, _ = a_run(Noisy(problem.oracle, 0.1, rng=2), path)
    assert same(answers, replayed)
    assert not np.array_equal(answers[1].values, answers[-1].values)  # the same rows, asked twice


def test_values_and_gradients_are_different_questions(path: Path) -> None:
    counting = Counting(two_layer(5, 4, 3).oracle)
    metered = rl.Metered(counting, ledger=rl.Ledger(path))
    metered(rows(3), gradients=False)
    assert metered(rows(3), gradients=True).gradients is not None
    assert (counting.value_queries, counting.gradient_queries) == (3, 3)


def test_an_answer_is_on_disk_before_it_is_returned(path: Path) -> None:
    metered = rl.Metered(two_layer(5, 4, 3).oracle, ledger=rl.Ledger(path))
    with metered.phase("search"):
        answer = metered(rows(2), gradients=True)
    with sqlite3.connect(path) as other:
        stored = other.execute("SELECT input, value, gradient, phase FROM answers ORDER BY id").fetchall()
    for i, (question, value, gradient, phase) in enumerate(stored):
        assert np.array_equal(np.frombuffer(question), rows(2)[i])
        assert np.array_equal(np.frombuffer(value), answer.values[i])
        assert np.array_equal(np.frombuffer(gradient), answer.jacobians[i].ravel())
        assert phase == "search"
    assert len(stored) == 2


def test_answers_are_taken_to_the_disk_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the file itself, without its log, was waited for: a power cut leaves it."""
    metered = rl.Metered(two_layer(5, 4, 3).oracle, ledger=rl.Ledger(path))
    monkeypatch.setattr("relumine.oracle.metering.ledger._SECONDS_BETWEEN_FLUSHES", 0.0)
    metered(rows(2), gradients=True)
    monkeypatch.undo()
    metered(rows(3, seed=1), gradients=True)
    (alone := path.with_name("alone.sqlite")).write_bytes(path.read_bytes())
    with sqlite3.connect(alone) as other:
        assert other.execute("SELECT COUNT(*) FROM answers").fetchone() == (2,)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT COUNT(*) FROM answers").fetchone() == (5,)


def test_a_ledger_that_nobody_holds_is_closed_and_can_be_opened_at_once(path: Path) -> None:
    problem = two_layer(5, 4, 3)
    for _ in range(20):
        counting = Counting(problem.oracle)
        rl.Metered(counting, ledger=rl.Ledger(path))(rows(50), gradients=True)
    assert counting.queries == 0
    log = path.with_name(path.name + "-wal")
    until = time.monotonic() + 10
    while log.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not log.exists()


def test_replayed_answers_may_be_written_to(path: Path) -> None:
    for _ in range(2):
        metered = rl.Metered(two_layer(5, 4, 3).oracle, ledger=rl.Ledger(path))
        answer = metered(rows(2), gradients=True)
        answer.values[:] = 0
        answer.jacobians[:] = 0


def test_the_budget_counts_what_an_earlier_run_paid(path: Path) -> None:
    problem = two_layer(5, 4, 3)
    a_run(problem.oracle, path)
    with pytest.raises(rl.BudgetError):
        a_run(problem.oracle, path, budget=348)


@pytest.mark.parametrize(
    "other", [two_layer(5, 4, 2), two_layer(5, 4, 3, gradients="top"), two_layer(5, 4, 3, dtype="float32")]
)
def test_the_ledger_of_another_offer_is_refused(path: Path, other: object) -> None:
    a_run(two_layer(5, 4, 3).oracle, path)
    with pytest.raises(rl.LedgerError, match="was written with offer"):
        rl.Metered(other.oracle, ledger=rl.Ledger(path))


def test_the_ledger_of_another_run_is_refused(path: Path) -> None:
    offer = two_layer(5, 4, 3).offer
    rl.Ledger(path).belongs_to(offer, seed="1", method="TwoLayer()")
    rl.Ledger(path).belongs_to(offer, seed="1")
    with pytest.raises(rl.LedgerError, match="seed = 1, this run has 2"):
        rl.Ledger(path).belongs_to(offer, seed="2")


@pytest.mark.parametrize("content", [b"this is not a database, " * 400, b"SQLite format 3\0" + bytes(range(256)) * 40])
def test_garbage_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(rl.LedgerError, match="cannot open the ledger"):
        rl.Ledger(path)
    assert path.read_bytes() == content


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "contacts.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE contacts (name TEXT)")
    with pytest.raises(rl.LedgerError, match="another program"):
        rl.Ledger(path)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("contacts",)]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "ledger.sqlite"):
        with pytest.raises(rl.LedgerError, match="cannot open the ledger"):
            rl.Ledger(place)


def test_damaged_pages_are_named(path: Path) -> None:
    problem = two_layer(5, 4, 3)
    a_run(problem.oracle, path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(rl.LedgerError):
        a_run(problem.oracle, path)


def test_answers_of_another_size_are_named(path: Path) -> None:
    problem = two_layer(5, 4, 3)
    a_run(problem.oracle, path)
    with sqlite3.connect(path) as vandal:
        vandal.execute("UPDATE answers SET value = x'00'")
    with pytest.raises(rl.LedgerError, match="is damaged"):
        a_run(problem.oracle, path)


def test_a_closed_ledger_says_so(path: Path) -> None:
    ledger = rl.Ledger(path)
    metered = rl.Metered(two_layer(5, 4, 3).oracle, ledger=ledger)
    ledger.close()
    with pytest.raises(rl.LedgerError, match="cannot read the ledger"):
        metered(rows(1), gradients=False)


_FILLS_THE_DISK = """
import resource, signal, sys
import numpy as np, relumine as rl
metered = rl.Metered(
    rl.FunctionOracle(lambda x, g: (x, None), rl.Offer((200,), 200, gradients="none")), ledger=rl.Ledger(sys.argv[1])
)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    for i in range(1000):
        metered(np.full((1, 200), i / 7), gradients=False)
except rl.LedgerError as error:
    print(i, error)
"""


def test_a_full_disk_loses_nothing_that_was_used(path: Path) -> None:
    command = [sys.executable, "-c", _FILLS_THE_DISK, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    used, message = run.stdout.split(" ", 1)
    assert "cannot write the ledger" in message
    assert 1 < int(used) < 999
    assert len(rl.Ledger(path)) == int(used)


SCRIPT = Path(__file__).with_name("asks_slowly.py")


def start(folder: Path) -> subprocess.Popen[str]:
    arguments = [str(folder / name) for name in ("ledger.sqlite", "receipts", "answers.npz")]
    return subprocess.Popen([sys.executable, str(SCRIPT), *arguments], stdout=subprocess.PIPE, text=True)


def test_kill_9_at_random_moments_then_resume(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    reference = start(whole)
    rng = np.random.default_rng()
    kills = 0
    for _ in range(6):
        process = start(killed)
        assert process.stdout is not None
        process.stdout.readline()  # it is asking now
        time.sleep(rng.uniform(0, 0.15))
        process.kill()
        kills += process.wait() == -signal.SIGKILL  # it may have finished before the blow
        process.stdout.close()
    assert kills > 0
    for process in (reference, start(killed)):
        _, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    expected, got = np.load(whole / "answers.npz"), np.load(killed / "answers.npz")
    for name in ("values", "gradients", "spent"):
        assert np.array_equal(expected[name], got[name])
    with sqlite3.connect(killed / "ledger.sqlite") as ledger:
        (questions, distinct) = ledger.execute("SELECT COUNT(*), COUNT(DISTINCT question) FROM answers").fetchone()
    assert questions == distinct == expected["spent"].sum() == 240
    # A row may have been asked and not yet written when the blow fell: one batch, of at most three rows, per kill.
    receipts = Counter((killed / "receipts").read_text().split())
    assert len(receipts) == 240
    assert sum(receipts.values()) - len(receipts) <= 3 * kills
