"""The audit: plans, runs the cases on an engine, keeps every record, and says what came out."""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from relumine.audit.curves import curves_of, seen_at
from relumine.audit.gate import judge, parse_condition
from relumine.audit.knowledge import unknown_maps
from relumine.audit.levels import contained_in
from relumine.audit.measures import Reference, reference_of
from relumine.audit.plan import BISECTIONS, CurvePlan, between, budgets_of, exact_until, lines_of, standing
from relumine.audit.result import About, AuditResult, Case, CurveKey, Record, Usefulness
from relumine.audit.settings import AuditSettings
from relumine.audit.store import AuditStore, Finished
from relumine.audit.trial import AuditedTarget, Subject, failed, run_case, usefulness_of
from relumine.audit.verdict import controls_of, limits_of, verdict_of, warnings_of
from relumine.errors import StoreError
from relumine.jobs.engines import Engine, Lost, ThisProcess, engine_named
from relumine.jobs.provenance import provenance

# The file of a run folder that holds every answer that a server was asked for.
LEDGER = "ledger.sqlite"

# A target is the same model as before if its answers to this many inputs are, up to this share of the largest answer.
_COMPARED = 8
_SAME = 1e-3

# Budgets are powers of ten. From 100 to 1,000 queries the time of the demonstration's attacks grew sixfold in sum (the
# slowest of each, on two busy cores; a few grew 16-fold, most hardly), from smaller budgets less.
_GROWTH = 10

# A server that fails in this many cases in a row is asked no more.
_PATIENCE = 3


@dataclass(frozen=True)
class AuditProgress:
    """Where an audit stands, for progress displays.

    running:      cases under way
    ended:        the record that just came in, if it is one
    done, left:   cases; those left are the most that there can be, since clear answers end a curve early
    queries:      that attacks asked so far
    seconds_left: at most, judging by the cases so far
    """

    running: tuple[Case, ...]
    ended: Record | None
    done: int
    left: int
    queries: int
    seconds_left: float | None


Watch = Callable[[AuditProgress], None]


def run_audit(
    settings: AuditSettings,
    folder: Path,
    *,
    command: str = "",
    watch: Watch | None = None,
    engine: Engine | None = None,
    subject: Subject | None = None,
) -> AuditResult:
    """Run what the store in ``folder`` has no record of, and return the result, which is kept there too.

    ``subject`` is what is audited, where that is not what the settings name.

    What can be known to fail is refused before anything starts: a target that cannot be loaded, data of another shape.
    What fails later is a record, is tried again by the next call, and never looks like a verdict.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    with AuditStore.in_folder(folder) as store:
        store.belongs_to(settings.fingerprint())
        target = AuditedTarget(settings, folder / LEDGER, subject)
        subject = target.subject
        _require_same_model(store, settings, subject)
        lines = lines_of(subject.oracle, settings, subject.setting())
        run = _AuditRun(target, lines, store, engine or _engine(settings), watch)
        stopped, useful = run.run()
        about = _about(target, subject, command, started, run.seconds_before + time.monotonic() - clock)
        about = replace(about, exposed=settings.exposed or (_answered(lines) if settings.remote else ()))
        result = _result(about, settings, lines, run.finished, stopped, useful)
        if warning := unknown_maps(subject.oracle):
            result = replace(result, warnings=(warning, *result.warnings))
        store.note("result", result.to_json())
    return result


def _answered(lines: tuple[CurvePlan, ...]) -> tuple[str, ...]:
    """What a server exposes: the levels that are no part of another."""
    parts = {name for line in lines for name in contained_in(line.level)}
    return tuple(line.level.name for line in lines if line.level.name not in parts)


def _require_same_model(store: AuditStore, settings: AuditSettings, subject: Subject) -> None:
    """Refuse to go on with another model of the same name. Of servers the ledger sees to that."""
    if settings.remote or subject.oracle.offer.random:
        return
    try:
        answers = subject.oracle(subject.test.rows[:_COMPARED], gradients=False).values
    except Exception:  # an oracle may raise anything; its records will say so
        return
    before = json.loads(store.noted("answers") or "null")
    if before is None:
        store.note("answers", json.dumps(answers.tolist()))
    elif not np.allclose(before, answers, rtol=0, atol=_SAME * float(np.abs(answers).max())):
        raise StoreError(
            f"{store.path}: the target answers otherwise than when this audit was started; bring that model back, or "
            "start again in another folder with --run"
        )


def _engine(settings: AuditSettings) -> Engine:
    """A server is asked from here, a case at a time: its rate is a limit for all, and Ctrl-C waits for what is paid."""
    if settings.remote:
        return ThisProcess()
    return engine_named(settings.engine, settings.workers, settings.address)


class _AuditRun:
    """The state of one call of ``run_audit``."""

    def __init__(
        self,
        target: AuditedTarget,
        lines: tuple[CurvePlan, ...],
        store: AuditStore,
        engine: Engine,
        watch: Watch | None,
    ) -> None:
        self._target, self._lines, self._store, self._engine, self._watch = target, lines, store, engine, watch
        self._settings = target.settings
        self._kept = store.finished_cases()
        self.finished: dict[Case, Finished] = {}
        self._running: list[Case] = []
        self._started: list[Case] = []  # the round that is carried out
        self._budget = 0
        self._rounds = BISECTIONS  # of bisecting, still to come
        self._failures = 0
        self._stopped: dict[CurveKey, str] = {}
        self.seconds_before = float(store.noted("seconds") or 0)

    def run(self) -> tuple[dict[CurveKey, str], dict[CurveKey, Usefulness | None]]:
        """Budget after budget, until curves are clear: why each ended, and what its explanations are worth."""
        clock = time.monotonic()
        with self._engine:
            for budget in budgets_of(self._settings):
                self._budget = budget
                self._give_up()
                for kind in ("exact", "learned"):
                    self._round(kind)
                self._store.note("seconds", str(self.seconds_before + time.monotonic() - clock))
            self._bisect()
            useful = self._usefulness()
        for line in self._open():
            last = standing(line, self._of(line), self._settings.seeds)
            self._stopped[line.key] = last.stopped or f"{self._settings.budget:,} queries were the most to be tried"
        return self._stopped, useful

    def _open(self) -> list[CurvePlan]:
        return [line for line in self._lines if line.key not in self._stopped]

    def _of(self, line: CurvePlan) -> list[Record]:
        return seen_at(line.level, line.defence, [one.record for one in self.finished.values()])

    def _give_up(self) -> None:
        """End the curves whose cases all ended with an error: asking more would not help."""
        for line in self._open():
            own = [one.record for case, one in self.finished.items() if (case.level, case.defence) == line.key]
            largest = max((record.case.budget for record in own), default=0)
            last = [record for record in own if record.case.budget == largest]
            if last and all(record.failed for record in last):
                self._stopped[line.key] = f"everything tried with {largest:,} queries ended with an error"

    def _round(self, kind: str) -> None:
        cases: list[Case] = []
        for line in self._open():
            exact_matters = self._budget <= exact_until(line.level.name, self._settings)
            now = standing(line, self._of(line), self._settings.seeds, exact_matters=exact_matters)
            if now.stopped:
                self._stopped[line.key] = now.stopped
            else:
                cases += line.cases(getattr(now, kind), self._budget, self._settings.seeds)
        self._carry_out(cases)

    def _bisect(self) -> None:
        """Narrow down between two budgets what the main milestone takes, by the attacks that reached it."""
        while self._rounds:
            self._rounds -= 1
            open_ones = chain.from_iterable(between(line, self._of(line)) for line in self._bisected())
            gaps = {(one.level, one.attack, one.budget) for one in open_ones}
            seeds = range(self._settings.seeds)
            self._carry_out(
                [Case(level, "", name, budget, seed) for level, name, budget in sorted(gaps) for seed in seeds]
            )

    def _carry_out(self, cases: list[Case]) -> None:
        """Run those that the store has no record of."""
        self.finished |= {case: self._kept[case] for case in cases if case in self._kept}
        todo = self._started = [case for case in cases if case not in self._kept]
        for case, finished in self._engine.run(partial(run_case, self._target), self._starting(todo)):
            self._running.remove(case)
            self._keep(failed(case, finished.reason) if isinstance(finished, Lost) else finished)
        for case in todo:
            if case not in self.finished:
                self._keep(failed(case, "not tried, because the server does not answer any more"))

    def _starting(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases, each reported to ``watch`` as a worker takes it."""
        for case in cases:
            if self._gone:
                return
            self._running.append(case)
            self._tell(None)
            yield case

    def _keep(self, finished: Finished) -> None:
        self._store.keep(finished)
        case = finished.record.case
        self.finished[case] = finished
        if finished.record.failed:
            self._failures += 1
        elif finished.record.queries:
            self._failures = 0
        self._tell(finished.record)

    @property
    def _gone(self) -> bool:
        """Whether a server failed so often in a row that nothing more is sent to it."""
        return self._settings.remote and self._failures >= _PATIENCE

    def _tell(self, ended: Record | None) -> None:
        if self._watch is not None:
            queries = sum(one.record.queries for one in self.finished.values())
            left, done = self._left(), len(self.finished)
            self._watch(AuditProgress(tuple(self._running), ended, done, len(left), queries, self._seconds(left)))

    def _left(self) -> list[Case]:
        """The most cases that there can be still."""
        budgets = [budget for budget in budgets_of(self._settings) if budget >= self._budget and not self._bisecting]
        rounds = [(line, budget) for line in self._open() for budget in budgets]
        # Of a bisection it is not known yet what it asks, and any attack may take part.
        rounds += [(line, self._settings.budget - 1 - i) for line in self._bisected() for i in range(self._rounds)]
        planned = [case for line, budget in rounds for case in line.cases(line.attacks, budget, self._settings.seeds)]
        return [case for case in dict.fromkeys([*planned, *self._started]) if case not in self.finished]

    @property
    def _bisecting(self) -> bool:
        return self._rounds < BISECTIONS

    def _bisected(self) -> list[CurvePlan]:
        return [line for line in self._lines if not line.defence]

    def _seconds(self, left: list[Case]) -> float | None:
        """The most that the cases left may take, if these go on as those so far."""
        done = [(case, one.record.seconds) for case, one in self.finished.items()]
        return longest(left, done, self._settings.time_limit) / self._engine.workers if done else None

    def _usefulness(self) -> dict[CurveKey, Usefulness | None]:
        """Of every explanation that is shown; nothing of a server's, whose answers cost."""
        if self._settings.remote:
            return {}
        keys = [line.key for line in self._lines if line.level.baseline]
        done = self._engine.run(partial(usefulness_of, self._target), keys)
        return {key: None if isinstance(useful, Lost) else useful for key, useful in done}


def longest(left: Collection[Case], done: Collection[tuple[Case, float]], limit: float) -> float:
    """Seconds that cases may take, by the slowest of the same attack at its largest budget so far, at the same level if
    it was tried there.

    Times grow at most in proportion to queries, and tenfold from one budget to the next; at small ones they hardly grow
    at all, so the estimate errs on the long side.
    """
    slowest: dict[tuple[str, ...], tuple[int, float]] = {}
    for case, seconds in done:
        for key in ((case.attack, case.level), (case.attack,), ()):
            slowest[key] = max(slowest.get(key, (0, 0.0)), (case.budget, seconds))
    slowest[()] = slowest[()][0], max(seconds for _, seconds in slowest.values())

    def seconds_of(case: Case) -> float:
        keys = (case.attack, case.level), (case.attack,), ()
        most, seconds = next(slowest[key] for key in keys if key in slowest)
        return min(seconds * min(max(case.budget / most, 1), _GROWTH), limit)

    return sum(map(seconds_of, left))


def _about(target: AuditedTarget, subject: Subject, command: str, started: datetime, seconds: float) -> About:
    settings, offer = target.settings, subject.oracle.offer
    here = provenance(seconds)
    reference = _reference(target, subject)
    return About(
        target=settings.name,
        fingerprint=settings.fingerprint(),
        input_shape=offer.inputs,
        outputs=offer.outputs,
        values=offer.values,
        gradients=str(offer.gradients),
        dtype=offer.dtype,
        data=subject.test.name,
        labels=subject.test.labels is not None,
        class_names=subject.test.class_names,
        authorized_by=settings.endpoint.authorized_by,
        seeds=settings.seeds,
        budget=settings.budget,
        price=settings.price,
        command=command,
        started=started.isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        versions=here.versions,
        commit=here.commit,
        test_inputs=0 if reference is None else reference.test_inputs,
        pool=len(subject.pool) if subject.pool.given else None,
        majority=None if reference is None else reference.majority,
        target_accuracy=None if reference is None else reference.target_accuracy,
    )


def _reference(target: AuditedTarget, subject: Subject) -> Reference | None:
    """What the target says to the test inputs; None of a target that answers no more, as its records say."""
    try:
        with target.asked(subject.oracle) as oracle:
            return reference_of(oracle, subject.test)
    except Exception:  # an oracle may raise anything
        return None


def _result(
    about: About,
    settings: AuditSettings,
    lines: tuple[CurvePlan, ...],
    finished: dict[Case, Finished],
    stopped: dict[CurveKey, str],
    useful: dict[CurveKey, Usefulness | None],
) -> AuditResult:
    records = tuple(one.record for one in finished.values())
    levels = list({line.level.name: line.level for line in lines}.values())
    curves = curves_of(records, levels, stopped=stopped, usefulness=useful)
    shown = _best(finished.values())
    return AuditResult(
        about=about,
        verdict=verdict_of(curves, about, records),
        warnings=warnings_of(curves, about, records),
        curves=curves,
        controls=controls_of(curves, about),
        gates=tuple(judge(parse_condition(condition), curves, about) for condition in settings.fail_on),
        limits=limits_of(curves, about),
        gallery=shown.gallery if shown else (),
        units=shown.units if shown else (),
        records=records,
    )


def _best(finished: Iterable[Finished]) -> Finished | None:
    """The clone to show: an exact one if there is any, else the one that agrees most."""
    with_pictures = [one for one in finished if one.record.measures is not None and (one.gallery or one.units)]

    def merit(one: Finished) -> tuple[bool, bool, float]:
        assert one.record.measures is not None
        return one.record.exact, bool(one.units), one.record.measures.agreement

    return max(with_pictures, key=merit, default=None)
