"""What a person sees of an audit while it runs and when it has ended."""

import time
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from audit_examples import constant, full, many_defences, nothing
from audits import record
from relumine.audit.result import Case, Gate, Record
from relumine.audit.run import AuditProgress, longest
from relumine.audit.screen import AuditWatch, show_result

CASE = Case("gradients", "round:2", "learned", 1000, 2)


def console(*, terminal: bool = False) -> Console:
    return Console(file=StringIO(), width=150, force_terminal=terminal, color_system=None)


def written(screen: Console) -> str:
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_says_what_runs_what_was_asked_and_how_long_it_may_take(terminal):
    screen = console(terminal=terminal)
    with AuditWatch(screen) as watch:
        watch(AuditProgress((CASE, CASE), None, 3, 17, 4321, 95.0))
    text = " ".join(written(screen).split())
    assert "gradients behind round:2: learned, 1,000 queries, seed 2 (+1)" in text
    assert "4,321 queries asked, at most 1 min 35 s left;" in text


def test_failures_are_always_said():
    screen = console()
    with AuditWatch(screen) as watch:
        for _ in range(2):
            record = Record(CASE, "FAILED", "", "the line [red]is dead", {}, None, 1.0)
            watch(AuditProgress((), record, 3, 17, 4321, None))
    assert written(screen).count("the line [red]is dead") == 2


def test_the_end_has_verdict_table_and_gates():
    result = replace(full(), gates=(Gate("queries-to-95 < 10", "undecided", "too few"),), warnings=("[b]mind",))
    screen = console()
    show_result(screen, result)
    text = written(screen)
    assert result.verdict in " ".join(text.split())
    assert text.index("[b]mind") < text.index(result.verdict[:20])
    assert "UNDECIDED  queries-to-95 < 10: too few" in text
    for curve in result.curves:
        assert curve.name.split(",")[0] in text


@pytest.mark.parametrize("result", [nothing(), constant(), many_defences()], ids=["nothing", "constant", "many"])
def test_every_result_can_be_shown(result):
    screen = console()
    show_result(screen, result)
    assert result.verdict[:20] in written(screen)


def test_where_nothing_new_happens_a_line_says_so(monkeypatch):
    monkeypatch.setattr("relumine.console._SECONDS_BETWEEN_LINES", 0.2)
    screen = console()
    with AuditWatch(screen) as watch:
        time.sleep(0.8)
        assert "s: loading the target" in written(screen)
        watch(AuditProgress((CASE,), None, 3, 17, 4321, 95.0))
        time.sleep(0.8)
    assert "s: 3 of at most 20: 4,321 queries asked" in written(screen)
    said = written(screen)
    time.sleep(0.8)
    assert written(screen) == said


def test_verbose_tells_what_each_attack_came_to():
    screen = console()
    with AuditWatch(screen, verbose=True) as watch:
        watch(AuditProgress((), record(0.973, budget=100), 3, 17, 4321, 95.0))
    assert "gradients: learned, 100 queries, seed 0: fitted, 97.3 % agreement, 1.0 s" in written(screen)


@pytest.mark.parametrize("growth", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("budget", [1, 10, 100])
def test_the_time_left_errs_on_the_long_side(growth, budget):
    cases = [Case("gradients", "", attack, 10**power, 0) for attack in ("exact", "learned") for power in range(4)]
    slow = {"exact": 0.9, "learned": 0.3}
    times = {case: min(slow[case.attack] * case.budget**growth, 600) for case in cases}  # then the clock stops them
    done = [(case, times[case]) for case in cases if case.budget <= budget and (case.attack, budget) != ("learned", 1)]
    left = [case for case in cases if case.budget > budget]
    # Two budgets on, time may have grown a hundredfold; one budget on, the estimate holds.
    following = [case for case in left if case.budget == 10 * budget]
    assert longest(following, done, 600) >= sum(times[case] for case in following)
    assert longest(left, done, 600) <= 600 * len(left)
