"""Metered: an oracle that counts, keeps a ledger, and stops at a budget before it asks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from relumine.errors import BudgetError, MisuseError, OracleFailedError, RelumineError
from relumine.oracle.base import Answer, Array, Offer, Oracle, checked_answer, checked_inputs
from relumine.oracle.ledger import Asked, Ledger, Question

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

    def since(self, earlier: "Spent") -> "Spent":
        """What was spent after ``earlier``."""
        return Spent.of({name: tally - earlier.phases.get(name, Tally()) for name, tally in self.phases.items()})


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever watches it."""

    phase: str
    units: int | None
    spent: Tally


class Metered:
    """An oracle in front of an oracle: the only place that counts.

    Every answer is checked against the offer. With a ledger each answer is on disk before it is returned, and
    questions already answered there are not asked again. ``budget`` limits the rows sent, of both kinds.
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
        self._oracle = oracle
        self._ledger = ledger
        self._budget = budget
        self._watch = watch
        self._asked = Asked()
        self._unused: set[Question] = set()  # on file and counted, but their asking was interrupted
        self._phases: dict[str, Tally] = {}
        self._phase = "asking"
        self._units: int | None = None
        if ledger is not None:
            ledger.belongs_to(oracle.offer)

    @property
    def offer(self) -> Offer:
        """The offer of the oracle inside."""
        return self._oracle.offer

    @property
    def spent(self) -> Spent:
        """Everything asked so far; answers found in the ledger were paid for, so they count."""
        return Spent.of(self._phases)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book what is asked inside under this name."""
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = before

    def found(self, units: int) -> None:
        """Tell whoever watches how many units are known."""
        self._units = units
        self._tell()

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        self._check_budget(len(rows))
        answer = self._ask(rows, gradients) if self._ledger is None else self._ask_once(self._ledger, rows, gradients)
        self._tell()
        return answer

    def _check_budget(self, rows: int) -> None:
        spent = sum(tally.queries for tally in self._phases.values())
        if self._budget is not None and spent + rows > self._budget:
            raise BudgetError(f"the budget of {self._budget} queries is spent: {spent} asked, {rows} more needed")

    def _ask(self, rows: Array, gradients: bool) -> Answer:
        try:
            answer = self._oracle(rows, gradients=gradients)
        except RelumineError:
            raise
        except Exception as error:
            raise OracleFailedError(
                f"the oracle raised {type(error).__name__}: {error} (asked {len(rows)} rows of {rows.shape[1]} numbers)"
            ) from error
        # A bad answer has been paid for too.
        self._book(len(rows), gradients)
        return checked_answer(self.offer, len(rows), answer, gradients=gradients)

    def _book(self, rows: int, gradients: bool) -> None:
        per_row = self.offer.outputs + (self.offer.gradient_rows * self.offer.dimension if gradients else 0)
        tally = Tally(0 if gradients else rows, rows if gradients else 0, rows * per_row)
        self._phases[self._phase] = self._phases.get(self._phase, Tally()) + tally

    def _ask_once(self, ledger: Ledger, rows: Array, gradients: bool) -> Answer:
        """Ask chunk by chunk; chunks are the same on every run, so a resumed run computes the same numbers."""
        questions = self._asked.questions(rows, gradients=gradients)
        chunks: list[Answer] = []
        try:
            for i in range(0, len(rows), _ROWS_PER_COMMIT):
                chunk = slice(i, i + _ROWS_PER_COMMIT)
                chunks.append(self._chunk(ledger, questions[chunk], rows[chunk], gradients))
        except BaseException:
            # Whoever asks this again is to get the answers on file, and they have been counted.
            self._asked.forget(questions)
            self._unused.update(questions[: len(chunks) * _ROWS_PER_COMMIT])
            raise
        return _joined(chunks) if chunks else self._ask(rows, gradients)

    def _chunk(self, ledger: Ledger, questions: list[Question], rows: Array, gradients: bool) -> Answer:
        known = ledger.find(questions, self.offer)
        missing = [i for i, answer in enumerate(known) if answer is None]
        if missing:
            fresh = self._ask(rows[missing], gradients)
            ledger.append([questions[i] for i in missing], rows[missing], fresh, self._phase)
            for i, position in enumerate(missing):
                known[position] = Answer(
                    fresh.values[i : i + 1], None if fresh.gradients is None else fresh.gradients[i : i + 1]
                )
        replayed = {question for i, question in enumerate(questions) if i not in missing}
        self._book(len(replayed - self._unused), gradients)
        self._unused -= replayed
        return _joined([answer for answer in known if answer is not None])

    def _tell(self) -> None:
        if self._watch is not None:
            self._watch(Progress(self._phase, self._units, self.spent))


def _joined(answers: list[Answer]) -> Answer:
    values = np.concatenate([answer.values for answer in answers])
    if answers[0].gradients is None:
        return Answer(values)
    return Answer(values, np.concatenate([answer.jacobians for answer in answers]))


def metered(oracle: Oracle) -> Metered:
    """The oracle itself if it is metered already, else a meter around it."""
    return oracle if isinstance(oracle, Metered) else Metered(oracle)
