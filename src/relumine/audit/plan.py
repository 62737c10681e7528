"""The plan: which curves are drawn, with which attacks and budgets, and when a curve's answer is clear."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from relumine.audit.gate import Condition, parse_condition
from relumine.audit.levels import Level, Setting, levels_of
from relumine.audit.result import AttackKey, Case, Record
from relumine.audit.served import attacks_at, explanation_of
from relumine.audit.settings import AuditSettings
from relumine.defend import parse
from relumine.errors import MisuseError
from relumine.oracle.base import Oracle

# Agreement with every seed from which more queries to a student would say nothing new.
CLEAR = 0.99

# Where defences are compared if no levels are named: at the first of these at which a defence has something to change.
_DEFENDED_AT = ("gradients", "top-gradient", "probabilities", "logits", "values", "label")

# Outcomes that a larger budget does not change.
_FINAL = ("NOT_THIS_CLASS", "NOT_PIECEWISE_LINEAR", "SATURATED")


@dataclass(frozen=True)
class Line:
    """A curve to be: a level, a defence in front of it ("" for none), and who attacks there."""

    level: Level
    defence: str
    exact: tuple[AttackKey, ...]
    learned: tuple[AttackKey, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What curves are known by."""
        return self.level.name, self.defence

    @property
    def attacks(self) -> tuple[AttackKey, ...]:
        """All of them."""
        return self.exact + self.learned

    def cases(self, attacks: Iterable[AttackKey], budget: int, seeds: int) -> Iterator[Case]:
        """One for each attack and seed."""
        seeded = ((attack.name, seed) for attack in attacks for seed in range(seeds))
        return (Case(self.level.name, self.defence, name, budget, seed) for name, seed in seeded)


def twins_of(lines: Sequence[Line]) -> dict[tuple[str, str], str]:
    """(level, attack) of undefended cases that ask for no explanation, and the level without any.

    An attacker who ignores explanations sees what that level shows, so the case is run there only.
    """
    plain = {line.level.name: line for line in lines if not line.defence}
    return {
        (line.level.name, attack.name): base.level.name
        for line in plain.values()
        if (base := plain.get(line.level.baseline)) is not None
        for attack in line.attacks
        if attack.of != "explanations" and attack in base.attacks
    }


def budgets_of(settings: AuditSettings) -> tuple[int, ...]:
    """1, 10, 100, … and the largest; and where a gate's threshold lies, the most queries that it allows."""
    largest = settings.budget
    powers = {10**power for power in range(len(str(largest)))} | {largest}
    allowed = {_allowed(parse_condition(condition)) for condition in settings.fail_on}
    # What one more query would show decides nothing that the gate asks.
    asked = {budget for budget in allowed if 1 <= budget <= largest}
    return tuple(sorted(asked | {budget for budget in powers if budget <= largest and budget - 1 not in asked}))


def _allowed(condition: Condition) -> int:
    """The most queries with which the condition is not to hold."""
    if condition.milestone is None:
        return condition.at
    return int(condition.threshold) - (0 if condition.inclusive else 1)


def lines_of(oracle: Oracle, settings: AuditSettings, setting: Setting) -> tuple[Line, ...]:
    """A line for each level, and for each defence where it has something to change."""
    offered = levels_of(oracle, local=not settings.remote)
    chosen = [level for level in offered if not settings.levels or level.name in settings.levels]
    if not chosen:
        raise MisuseError(
            f"levels: {', '.join(settings.levels) or 'all'} were asked for, this target can give "
            f"{', '.join(level.name for level in offered) or 'none'} (values: {oracle.offer.values}, "
            f"gradients: {oracle.offer.gradients})"
        )
    if settings.defences and settings.remote:
        raise MisuseError("defences: expected a model that is loaded here; a server defends itself")
    lines = [_line(level, "", oracle, setting, settings.student) for level in chosen]
    for words in settings.defences:
        lines += _defended(words, offered, settings, oracle, setting)
    return tuple(line for line in lines if line is not None)


def _defended(
    words: str, offered: Sequence[Level], settings: AuditSettings, oracle: Oracle, setting: Setting
) -> list[Line]:
    names = settings.levels or _DEFENDED_AT
    levels = [level for name in names for level in offered if level.name == name]
    fitting = [line for level in levels if (line := _line(level, words, oracle, setting, settings.student)) is not None]
    if not fitting:
        raise MisuseError(f"defence {words!r}: it has nothing to change at {', '.join(names)} of this target")
    return fitting if settings.levels else fitting[:1]


def _line(level: Level, defence: str, oracle: Oracle, setting: Setting, student: str | None) -> Line | None:
    """None where the defence has nothing to change at this level."""
    shown = level.of(oracle, setting)
    assert shown is not None
    chain = parse(defence) if defence else None
    try:
        offer = (shown if chain is None else chain(shown)).offer
    except MisuseError:
        return None
    attacks = attacks_at(level.name, offer, chain, setting.deviation, explanation_of(oracle))
    exact = tuple(attack.key for attack in attacks if attack.key.kind == "exact")
    learned = tuple(attack.key for attack in attacks if attack.key.kind == "student")
    # Of the kind of student that was asked for; all where none is of that kind, or nothing was said.
    return Line(level, defence, exact, tuple(key for key in learned if key.student == student) or learned)


@dataclass(frozen=True)
class Standing:
    """What a line's records say about going on: which attacks, or why none ("" while there are some)."""

    exact: tuple[AttackKey, ...]
    learned: tuple[AttackKey, ...]
    stopped: str


def standing(line: Line, records: Sequence[Record], seeds: int) -> Standing:
    """Whether the answer is clear, and if not, for whom a larger budget may change something."""
    if _in_every_seed(records, seeds, lambda record: record.exact):
        return Standing((), (), "recovered exactly with every seed")
    exact = tuple(attack for attack in line.exact if not _hopeless(attack, records))
    if _in_every_seed(records, seeds, _agrees):
        return Standing(exact, (), "" if exact else f"{CLEAR:.0%} agreement with every seed")
    return Standing(exact, line.learned, "")


def _last(records: Sequence[Record]) -> list[Record]:
    largest = max(record.case.budget for record in records)
    return [record for record in records if record.case.budget == largest]


def _agrees(record: Record) -> bool:
    return record.measures is not None and record.measures.agreement >= CLEAR


def _in_every_seed(records: Sequence[Record], seeds: int, holds: Callable[[Record], bool]) -> bool:
    return {record.case.seed for record in records if holds(record)} >= set(range(seeds))


def _hopeless(attack: AttackKey, records: Sequence[Record]) -> bool:
    """Whether with every seed this attack said of the target that it is none of its class."""
    own = [record for record in records if record.case.attack == attack.name]
    return bool(own) and all(record.outcome in _FINAL for record in _last(own))
