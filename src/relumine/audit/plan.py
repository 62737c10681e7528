"""The plan: which curves are drawn, with which attacks and budgets, and when a curve's answer is clear."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from relumine.audit.attacks import attacks_for
from relumine.audit.curves import REACHED, agrees
from relumine.audit.gate import allowed, parse_condition
from relumine.audit.knowledge import leaves_values, maps_of
from relumine.audit.levels import Level, Setting, levels_of
from relumine.audit.result import AttackKey, Case, CurveKey, Record
from relumine.audit.settings import AuditSettings
from relumine.defend import parse
from relumine.errors import MisuseError
from relumine.oracle.base import Oracle

# Agreement with every seed from which more queries to a student would say nothing new.
CLEAR = 0.99

# What the main milestone takes is narrowed down in this many bisections, from a factor of 10 to one of 1.8.
BISECTIONS = 2
_CLOSE = 1.5
_REACHED = int(REACHED) / 100

# Where defences are compared if no levels are named: at the first of these at which a defence has something to change.
_DEFENDED_AT = ("gradients", "top-gradient", "probabilities", "logits", "values", "label")

# Outcomes that a larger budget does not change.
_FINAL = ("NOT_THIS_CLASS", "NOT_PIECEWISE_LINEAR", "SATURATED")


@dataclass(frozen=True)
class CurvePlan:
    """A curve to be: a level, a defence in front of it ("" for none), and who attacks there."""

    level: Level
    defence: str
    exact: tuple[AttackKey, ...]
    learned: tuple[AttackKey, ...]

    @property
    def key(self) -> CurveKey:
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


def _without_twins(lines: Sequence[CurvePlan]) -> tuple[CurvePlan, ...]:
    """Without the attacks that ask for no explanation where the level that shows none is attacked too.

    Curves count what was reached there: an attacker who ignores explanations sees what that level shows, also behind
    a defence that leaves values as they are.
    """
    plain = {line.level.name: line for line in lines if not line.defence}
    return tuple(_without_twin(line, plain.get(line.level.baseline)) for line in lines)


def _without_twin(line: CurvePlan, base: CurvePlan | None) -> CurvePlan:
    if base is None or (line.defence and not leaves_values(line.defence)):
        return line
    exact, learned = (
        tuple(attack for attack in attacks if attack.of == "explanations" or attack not in base.attacks)
        for attacks in (line.exact, line.learned)
    )
    return replace(line, exact=exact, learned=learned)


def budgets_of(settings: AuditSettings) -> tuple[int, ...]:
    """1, 10, 100, … and the largest; and where a gate's threshold lies, the most queries that it allows."""
    largest = settings.budget
    powers = {10**power for power in range(len(str(largest)))} | {largest}
    wanted = {allowed(parse_condition(condition)) for condition in settings.fail_on}
    # What one more query would show decides nothing that the gate asks.
    asked = {budget for budget in wanted if 1 <= budget <= largest}
    return tuple(sorted(asked | {budget for budget in powers if budget <= largest and budget - 1 not in asked}))


def exact_until(level: str, settings: AuditSettings) -> int:
    """The largest budget that a gate about exactness at this level needs; 0 without such a gate."""
    conditions = [parse_condition(condition) for condition in settings.fail_on]
    return max((allowed(one) for one in conditions if one.milestone == "exact" and one.level in ("", level)), default=0)


def lines_of(oracle: Oracle, settings: AuditSettings, setting: Setting) -> tuple[CurvePlan, ...]:
    """A line for each level, and for each defence where it has something to change."""
    offered = levels_of(oracle, local=not settings.remote, backbone=settings.backbone is not None)
    chosen = [level for level in offered if not settings.levels or level.name in settings.levels]
    if not chosen:
        raise MisuseError(
            f"levels: {', '.join(settings.levels) or 'all'} were asked for, this target can give "
            f"{', '.join(level.name for level in offered) or 'none'} (values: {oracle.offer.values}, "
            f"gradients: {oracle.offer.gradients})"
        )
    missing = set(settings.exposed) - {level.name for level in chosen}
    if missing:
        raise MisuseError(f"exposed: this target cannot give {', '.join(sorted(missing))}")
    if settings.defences and settings.remote:
        raise MisuseError("defences: expected a model that is loaded here; a server defends itself")
    lines = [_line(level, "", oracle, setting) for level in chosen]
    for words in settings.defences:
        lines += _defended(words, offered, settings, oracle, setting)
    return _without_twins([line for line in lines if line is not None])


def _defended(
    words: str, offered: Sequence[Level], settings: AuditSettings, oracle: Oracle, setting: Setting
) -> list[CurvePlan]:
    names = settings.levels or _DEFENDED_AT
    levels = [level for name in names for level in offered if level.name == name]
    fitting = [line for level in levels if (line := _line(level, words, oracle, setting)) is not None]
    if not fitting:
        raise MisuseError(f"defence {words!r}: it has nothing to change at {', '.join(names)} of this target")
    return fitting if settings.levels else fitting[:1]


def _line(level: Level, defence: str, oracle: Oracle, setting: Setting) -> CurvePlan | None:
    """None where the defence has nothing to change at this level."""
    shown = level.of(oracle, setting)
    assert shown is not None
    chain = parse(defence) if defence else None
    try:
        offer = (shown if chain is None else chain(shown)).offer
    except MisuseError:
        return None
    attacks = attacks_for(level.name, offer, chain, setting.deviation, maps_of(oracle))
    exact = tuple(attack.key for attack in attacks if attack.key.kind == "exact")
    learned = tuple(attack.key for attack in attacks if attack.key.kind == "student")
    return CurvePlan(level, defence, exact, learned)


@dataclass(frozen=True)
class Standing:
    """What a line's records say about going on: which attacks, or why none ("" while there are some)."""

    exact: tuple[AttackKey, ...]
    learned: tuple[AttackKey, ...]
    stopped: str


def standing(line: CurvePlan, records: Sequence[Record], seeds: int, *, exact_matters: bool = False) -> Standing:
    """Whether the answer is clear, and if not, for whom a larger budget may change something.

    records:       of the line's level, and of those that are part of it
    exact_matters: a gate asks whether larger budgets recover the target, so agreement makes nothing clear
    """
    if _in_every_seed(records, seeds, lambda record: record.exact):
        return Standing((), (), "recovered exactly with every seed")
    own = [record for record in records if record.case.level == line.level.name]
    exact = tuple(attack for attack in line.exact if not _hopeless(attack, own))
    if not exact_matters and _in_every_seed(records, seeds, agrees(CLEAR)):
        return Standing(exact, (), "" if exact else f"{CLEAR:.0%} agreement with every seed")
    return Standing(exact, line.learned, "")


def _last(records: Sequence[Record]) -> list[Record]:
    largest = max(record.case.budget for record in records)
    return [record for record in records if record.case.budget == largest]


def _in_every_seed(records: Sequence[Record], seeds: int, holds: Callable[[Record], bool]) -> bool:
    return {record.case.seed for record in records if holds(record)} >= set(range(seeds))


def _hopeless(attack: AttackKey, records: Sequence[Record]) -> bool:
    """Whether with every seed this attack said of the target that it is none of its class."""
    own = [record for record in records if record.case.attack == attack.name]
    return bool(own) and all(record.outcome in _FINAL for record in _last(own))


def between(line: CurvePlan, records: Sequence[Record]) -> list[Case]:
    """The cases that halve, by ratio, what is open about the queries to the main milestone; none if little is.

    One for each attack that reached it with the smallest budget, and of any seed: the best at a large budget need not
    be the best at a small one.
    """
    reached = [record for record in records if agrees(_REACHED)(record)]
    if not reached:
        return []
    first = min((record.case for record in reached), key=lambda case: case.budget)
    missed = max((record.case.budget for record in records if record.case.budget < first.budget), default=0)
    middle = round((missed * first.budget) ** 0.5)
    if first.level != line.level.name or not missed < middle < first.budget or first.budget < _CLOSE * missed:
        return []
    attacks = {one.case.attack for one in reached if one.case.budget == first.budget and one.case.level == first.level}
    return [replace(first, attack=attack, budget=middle) for attack in sorted(attacks)]
