"""Metered: an oracle that counts, keeps a ledger, and stops at a budget before it asks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from relumine.errors import BadAnswerError, BudgetError, ChangedError, MisuseError, OracleFailedError, translated
from relumine.oracle.base import (
    Answer,
    Array,
    Offer,
    Oracle,
    Part,
    RemoteOracle,
    checked_answer,
    checked_inputs,
    joined,
)
from relumine.oracle.metering.canary import Canary
from relumine.oracle.metering.ledger import Asked, Ledger, Question

# With a ledger on disk an interrupted call loses at most this many answers.
_ROWS_PER_COMMIT = 64


@dataclass(frozen=True)
class Tally:
    """Rows asked without gradients, rows asked with them, and numbers returned."""

    value_queries: int = 0
    gradient_queries: int = 0
    floats: int = 0

    @property
    def queries(self) -> int:
        """All rows sent."""
        return self.value_queries + self.gradient_queries

    @property
    def counts(self) -> dict[str, int]:
        """By name, as records have them."""
        return {name: getattr(self, name) for name in ("value_queries", "gradient_queries", "floats")}

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.value_queries + other.value_queries,
            self.gradient_queries + other.gradient_queries,
            self.floats + other.floats,
        )

    def __sub__(self, other: "Tally") -> "Tally":
        return self + Tally(-other.value_queries, -other.gradient_queries, -other.floats)


@dataclass(frozen=True)
class Spent(Tally):
    """What a run cost, verification included, in total and per phase."""

    phases: Mapping[str, Tally] = field(default_factory=dict)

    @classmethod
    def of(cls, phases: Mapping[str, Tally]) -> "Spent":
        """The sum of these phases, leaving out those in which nothing was asked."""
        asked = {name: tally for name, tally in phases.items() if tally.queries}
        total = sum(asked.values(), Tally())
        return cls(total.value_queries, total.gradient_queries, total.floats, asked)

    def then(self, later: "Spent") -> "Spent":
        """This and what was spent later, phase by phase."""
        names = {**self.phases, **later.phases}
        return Spent.of({name: self.phases.get(name, Tally()) + later.phases.get(name, Tally()) for name in names})

    def since(self, earlier: "Spent") -> "Spent":
        """What was spent after ``earlier``."""
        return Spent.of({name: tally - earlier.phases.get(name, Tally()) for name, tally in self.phases.items()})


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    phase: str
    units: int | None
    spent: Tally


class Metered:
    """An oracle in front of an oracle: the only place that counts.

    Every answer is checked against the offer. With a ledger each answer is on disk before it is returned, and
    questions already answered there are not asked again. ``budget`` limits the rows sent, of both kinds.

    Of a remote oracle every answer is kept on disk, in the folder of its run if no ledger is given, and a canary is
    asked now and then: its queries count, under a phase of their own.
    """

    def __init__(
        self,
        oracle: Oracle,
        *,
        ledger: Ledger | None = None,
        budget: int | None = None,
        watch: Callable[[Progress], None] | None = None,
    ) -> None:
        if budget is not None and budget < 1:
            raise MisuseError(f"budget: expected at least 1 query, got {budget}")
        self._oracle, self._budget, self._watch = oracle, budget, watch
        self._remote = oracle if isinstance(oracle, RemoteOracle) else None
        self._asked = Asked()
        self._unused: set[Question] = set()  # on file and counted, but their asking was interrupted
        self._phases: dict[str, Tally] = {}
        self._phase = "asking"
        self._confirming = 0
        self._units: int | None = None
        if ledger is None and self._remote is not None:
            ledger = Ledger(self._remote.run / "ledger.sqlite")
        self._ledger = ledger
        self._canary = Canary(oracle.offer) if self._remote is not None and not oracle.offer.random else None
        self._on_file = ledger is not None and len(ledger) > 0  # answers of an earlier run, or of an asking cut short
        self._resumed = self._on_file
        if ledger is not None:
            ledger.belongs_to(oracle.offer, **({} if self._remote is None else self._remote.facts))

    @property
    def offer(self) -> Offer:
        return self._oracle.offer

    @property
    def spent(self) -> Spent:
        """Everything asked so far; answers found in the ledger were paid for, so they count."""
        return Spent.of(self._phases)

    @property
    def confirming(self) -> int:
        """Rows asked in a phase "verify" after the last row of any other: they changed nothing any more."""
        return self._confirming

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book what is asked inside under this name."""
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = before

    def found(self, units: int) -> None:
        """Report how many units are known."""
        self._units = units
        self._tell()

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        if self._ledger is None:
            self._check_budget(len(rows))
            answer = self._answered(rows, gradients)
        elif self._canary is not None and len(rows):
            answer = self._with_canary(self._canary, self._ledger, rows, gradients)
        else:
            answer = self._ask_once(self._ledger, rows, gradients)
        self._tell()
        return answer

    def _check_budget(self, rows: int) -> None:
        spent = sum(tally.queries for tally in self._phases.values())
        if self._budget is not None and spent + rows > self._budget:
            raise BudgetError(f"the budget of {self._budget} queries is spent: {spent} asked, {rows} more needed")

    def _answered(self, rows: Array, gradients: bool) -> Answer:
        asked = f" (asked {len(rows)} rows of {rows.shape[1]} numbers)"
        with translated(OracleFailedError, "the oracle raised ", asked):
            return self._counted(len(rows), self._oracle(rows, gradients=gradients), gradients)

    def _counted(self, rows: int, answer: Answer, gradients: bool) -> Answer:
        """The answer, checked once it is counted: a bad one has been paid for too."""
        self._book(rows, gradients)
        return checked_answer(self.offer, rows, answer, gradients=gradients)

    def _book(self, rows: int, gradients: bool) -> None:
        per_row = self.offer.outputs + (self.offer.gradient_rows * self.offer.dimension if gradients else 0)
        tally = Tally(0 if gradients else rows, rows if gradients else 0, rows * per_row)
        self._phases[self._phase] = self._phases.get(self._phase, Tally()) + tally
        if rows:
            self._confirming = self._confirming + rows if self._phase == "verify" else 0

    def _ask_once(self, ledger: Ledger, rows: Array, gradients: bool) -> Answer:
        """Ask what is not on file, part by part, and put each part on file before anything else is done with it.

        Parts are the same on every run, so a resumed run computes the same numbers.
        """
        self._check_budget(len(rows))
        questions = self._asked.questions(rows, gradients=gradients)
        known = ledger.find(questions, self.offer) if self._on_file else ledger.nothing_of(questions)
        missing = [i for i, answer in enumerate(known) if answer is None]
        replayed = {questions[i] for i in set(range(len(rows))) - set(missing)}
        whole: Answer | None = None
        asked = rows if len(missing) == len(rows) else rows[missing]
        try:
            for part in self._parts(asked, gradients) if missing else ():
                chosen = slice(part.positions.start, part.positions.stop)
                at = missing[chosen]
                ledger.append([questions[i] for i in at], asked[chosen], part.answer, self._phase)
                whole = part.answer if len(at) == len(rows) else None
                for i, position in enumerate(at):
                    known[position] = _row(part.answer, i)
        except BaseException:
            # Asked again, this gets the answers on file, and the new ones have been counted.
            self._asked.forget(questions)
            self._on_file = True
            self._unused.update(questions[i] for i in missing if known[i] is not None)
            raise
        self._book(len(replayed - self._unused), gradients)
        self._unused -= replayed
        # Mostly all comes in one part: there is nothing to put together, and copies of large answers take time.
        return whole or joined(self.offer, [answer for answer in known if answer is not None], gradients=gradients)

    def _parts(self, rows: Array, gradients: bool) -> Iterator[Part]:
        """Ask, and hand on each part of the answer, counted and checked, as it comes."""
        if self._remote is not None:
            for part in self._remote.parts(rows, gradients=gradients):
                yield Part(part.positions, self._counted(len(part.positions), part.answer, gradients))
            return
        for i in range(0, len(rows), _ROWS_PER_COMMIT):
            chunk = rows[i : i + _ROWS_PER_COMMIT]
            yield Part(range(i, i + len(chunk)), self._answered(chunk, gradients))

    def _with_canary(self, canary: Canary, ledger: Ledger, rows: Array, gradients: bool) -> Answer:
        """Answers to the rows, among which now and then a known question is hidden."""
        if not canary.knows(gradients):
            self._introduce(canary, ledger, gradients)
        if self._resumed and self._has_new(ledger, rows, gradients):
            self._resumed = False
            self._require_known(canary, ledger, self._asked_anew(canary, ledger, gradients), gradients, batch=False)
        place = canary.place(len(rows), self._phase)
        asked = rows if place is None else np.insert(rows, place, canary.rows[0], axis=0)
        answer = self._ask_once(ledger, asked, gradients)
        canary.answered(len(rows), self._phase)
        if place is None:
            return answer
        self._book(-1, gradients)  # counted in this phase, it belongs to the canary's
        with self.phase("canary"):
            self._book(1, gradients)
        self._require_known(canary, ledger, _row(answer, place), gradients, batch=True)
        jacobians = None if answer.gradients is None else np.delete(answer.gradients, place, axis=0)
        return Answer(np.delete(answer.values, place, axis=0), jacobians)

    def _introduce(self, canary: Canary, ledger: Ledger, gradients: bool) -> None:
        """Ask the canary alone, then behind another row: is the answer the same, and in its place?"""
        phase = self._phase
        with self.phase("canary"):
            alone = self._ask_once(ledger, canary.rows[:1], gradients)
            behind = self._ask_once(ledger, canary.rows[::-1], gradients)
        canary.learn(alone, gradients, phase)
        self._require_known(canary, ledger, _row(behind, 1), gradients, batch=True)

    def _has_new(self, ledger: Ledger, rows: Array, gradients: bool) -> bool:
        """Whether something of this is not on file."""
        questions = self._asked.questions(rows, gradients=gradients)
        self._asked.forget(questions)
        return None in ledger.find(questions, self.offer)

    def _asked_anew(self, canary: Canary, ledger: Ledger, gradients: bool) -> Answer:
        """The canary's answer of now, which comes behind all that are on file."""
        row = canary.rows[:1]
        while not self._has_new(ledger, row, gradients):
            self._asked.questions(row, gradients=gradients)
        with self.phase("canary"):
            return self._ask_once(ledger, row, gradients)

    def _require_known(self, canary: Canary, ledger: Ledger, answer: Answer, gradients: bool, *, batch: bool) -> None:
        """Nothing, if the canary's answer is what it was; else find out what is wrong, and say it."""
        if canary.is_known(answer, gradients):
            return
        first, second = (self._asked_anew(canary, ledger, gradients) for _ in range(2))
        if not canary.agree(first, second):
            raise BadAnswerError(
                "the same question got different answers: expected a target that always answers the same; offer it "
                "with random=True (and choose a method for that). Everything paid for is kept"
            )
        if batch and canary.is_known(first, gradients):
            raise BadAnswerError(
                "a known question got another row's answer within a batch: expected answers in the order of the "
                "questions; say batch = 1, and use an empty run folder. Everything paid for is kept"
            )
        raise ChangedError(
            "a known question gets another answer than before: expected one model from beginning to end, got another; "
            "bring the first one back, or start again in an empty run folder. Everything paid for is kept"
        )

    def _tell(self) -> None:
        if self._watch is not None:
            self._watch(Progress(self._phase, self._units, self.spent))


class Forwarding(Metered):
    """Base of meters in front of a meter, which alone counts."""

    def __init__(self, meter: Metered) -> None:
        self._meter = meter
        self.phase = meter.phase  # type: ignore[method-assign]
        self.found = meter.found  # type: ignore[method-assign]

    @property
    def offer(self) -> Offer:
        return self._meter.offer

    @property
    def spent(self) -> Spent:
        return self._meter.spent

    @property
    def confirming(self) -> int:
        return self._meter.confirming


class Recorder(Forwarding):
    """A meter that keeps what was answered and does not ask it again."""

    def __init__(self, meter: Metered) -> None:
        super().__init__(meter)
        self._points: list[Array] = []
        self._answers: list[Answer] = []
        self._rows: dict[bytes, int] = {}
        self._values: dict[bytes, Array] = {}

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        if self.offer.random:
            return self._meter(inputs, gradients=gradients)
        keys = [np.ascontiguousarray(row).tobytes() for row in inputs]
        if not gradients:
            new = [i for i, key in enumerate(keys) if key not in self._values]
            answer = self._meter(inputs[new], gradients=False)
            self._values |= {keys[i]: row for i, row in zip(new, answer.values, strict=True)}
            return Answer(np.array([self._values[key] for key in keys]).reshape(-1, self.offer.outputs))
        new = [i for i, key in enumerate(keys) if key not in self._rows]
        if new or not keys:
            answer = self._meter(inputs[new], gradients=True)
            for i, position in enumerate(new):
                self._rows[keys[position]] = len(self._points)
                self._points.append(inputs[position])
                self._answers.append(Answer(answer.values[i], answer.jacobians[i]))
        return self._joined([self._rows[key] for key in keys]) if keys else answer

    def _joined(self, rows: list[int]) -> Answer:
        values = np.array([self._answers[i].values for i in rows])
        return Answer(values, np.array([self._answers[i].jacobians for i in rows]))

    def kept(self) -> tuple[Array, Answer] | None:
        """All points asked with gradients so far, and their answers."""
        count = len(self._points)
        return (np.array(self._points), self._joined(list(range(count)))) if count else None


def _row(answer: Answer, i: int) -> Answer:
    return Answer(answer.values[i : i + 1], None if answer.gradients is None else answer.gradients[i : i + 1])


def metered(oracle: Oracle) -> Metered:
    """The oracle itself if it is metered already, else a meter around it."""
    return oracle if isinstance(oracle, Metered) else Metered(oracle)
