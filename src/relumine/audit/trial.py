"""One case, from its description to its record: what a worker does."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from relumine.audit.attacks import Attack, attacks_for
from relumine.audit.data import AuditData, Halves, gaussian_data
from relumine.audit.knowledge import maps_of
from relumine.audit.levels import LEVELS, Setting
from relumine.audit.measures import clone_measures
from relumine.audit.pictures import gallery_of, unit_pairs_of
from relumine.audit.result import Case, CurveKey, Record, Usefulness
from relumine.audit.settings import AuditSettings
from relumine.audit.store import Finished
from relumine.audit.texts import data_for
from relumine.audit.usefulness import usefulness
from relumine.defend import Chain, parse
from relumine.errors import MisuseError
from relumine.jobs.engines import TimeUp, limited
from relumine.oracle.base import Offer, Oracle
from relumine.oracle.metering.ledger import Ledger
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.result import Outcome, Reconstruction
from relumine.reconstruct.verification import tolerated
from relumine.targets import load_backbone

# Streams of randomness that are not the attack's.
_NOISE_OF_VIEW, _NOISE_OF_DEFENCE = 1, 2

# Data that relumine knows by name, besides files.
_OF_THE_ZOO = ("digits", "mnist", "cifar10")

# Clones are judged on at most this many inputs.
_TESTS = 2000

FAILED = "FAILED"

_ON_INPUTS = "recovered where it was compared, and wrong on the owner's inputs"


@dataclass(frozen=True)
class AuditedTarget:
    """What the cases of an audit ask.

    ledger: where the answers of a server are kept
    held:   a model in memory, where the settings name none
    """

    settings: AuditSettings
    ledger: Path
    held: "Subject | None" = None

    @property
    def subject(self) -> "Subject":
        """The target and its data."""
        return self.held or subject_of(self.settings)

    @contextmanager
    def asked(self, oracle: Oracle, case: Case | None = None) -> Iterator[Oracle]:
        """The target; a server's through the ledger of the run, so that nothing is paid for twice.

        Answers of a server that are random belong to their case alone, or one case's noise would be another's.
        """
        if not self.settings.remote:
            yield oracle
            return
        own = "" if case is None or not oracle.offer.random else f"-{case.key}"
        ledger = Ledger(self.ledger.with_stem(f"{self.ledger.stem}{own}"))
        try:
            yield Metered(oracle, ledger=ledger)
        finally:
            ledger.close()


@dataclass(frozen=True, eq=False)
class Subject:
    """What is audited: the target, the two halves of its data, and its backbone, if that is public."""

    oracle: Oracle
    pool: AuditData
    test: AuditData
    backbone: Oracle | None = None

    @property
    def deviation(self) -> float:
        """Of the data; 1 where they do not vary."""
        return self.pool.deviation or 1.0

    def setting(self, rng: np.random.Generator | None = None) -> Setting:
        """What a view of the target needs to know."""
        return Setting(self.deviation, rng)

    def attacker_pool(self) -> np.ndarray | None:
        """Inputs like those of users; none where the owner gave none."""
        return self.pool.inputs.astype(np.float64) if self.pool.given else None


@lru_cache(maxsize=1)
def subject_of(settings: AuditSettings) -> Subject:
    """The target and its data, loaded once per process."""
    oracle = settings.oracle()
    return _subject(oracle, _halves(settings, oracle), settings)


def subject_from(oracle: Oracle, data: AuditData | None, settings: AuditSettings | None = None) -> Subject:
    """A target and data that are in memory; None asks at Gaussian inputs."""
    return _subject(oracle, (data or gaussian_data(oracle.offer)).halves(), settings)


def _subject(oracle: Oracle, halves: Halves, settings: AuditSettings | None) -> Subject:
    pool, test = halves
    named = None if settings is None else settings.backbone
    backbone = None if named is None else load_backbone(named, oracle.offer)
    return Subject(oracle, pool, test.chosen(np.arange(min(len(test), _TESTS))), backbone)


def _halves(settings: AuditSettings, oracle: Oracle) -> Halves:
    data, offer = settings.data, oracle.offer
    if data is None:
        return gaussian_data(offer).halves()
    if data in _OF_THE_ZOO and not Path(data).exists():
        return _halves_of_the_zoo(data, offer)
    return data_for(oracle, data, label_column=settings.label_column).halves()


def _halves_of_the_zoo(name: str, offer: Offer) -> Halves:
    """What the zoo's targets were not trained on: the students' pool, and the test set."""
    from relumine import zoo

    split = zoo.dataset(name).split(seed=0)
    if np.prod(split.shape) != offer.dimension:
        raise MisuseError(f"data: the target takes inputs of shape {offer.inputs}, {name} has {split.shape}")
    pool, test = (part.reshape(-1, *offer.inputs) for part in (split.pool, split.test.inputs))
    return Halves(AuditData(pool, None, (), name), AuditData(test, split.test.labels, (), name))


def run_case(target: AuditedTarget, case: Case) -> Finished:
    """Attack, then judge. An error is a record too: it never looks like a verdict."""
    started = time.perf_counter()
    meter: Metered | None = None
    try:
        subject = target.subject
        with target.asked(subject.oracle, case) as oracle:
            chain = parse(case.defence) if case.defence else None
            shown = _shown(case, subject, oracle, chain)
            attack = _attack(case, shown.offer, chain, subject)
            meter = Metered(shown, budget=case.budget)
            with limited(target.settings.time_limit):
                result = attack(meter, case.budget, case.seed, subject.attacker_pool())
            return _finished(case, subject, oracle, result, meter, started)
    except (Exception, TimeUp) as error:
        spent = {} if meter is None else meter.spent.counts
        return failed(case, f"{type(error).__name__}: {error}", spent, time.perf_counter() - started)


def _shown(case: Case, subject: Subject, oracle: Oracle, chain: Chain | None) -> Oracle:
    """The target as it is seen in this case."""
    noise = [np.random.default_rng([case.seed, stream]) for stream in (_NOISE_OF_VIEW, _NOISE_OF_DEFENCE)]
    shown = LEVELS[case.level].of(oracle, subject.setting(noise[0]))
    if shown is None:
        raise MisuseError(f"level {case.level}: this target cannot give it")
    return shown if chain is None else chain(shown, noise[1])


def _attack(case: Case, offer: Offer, chain: Chain | None, subject: Subject) -> Attack:
    attacks = attacks_for(case.level, offer, chain, subject.deviation, maps_of(subject.oracle), subject.backbone)
    attack = next((attack for attack in attacks if attack.key.name == case.attack), None)
    if attack is None:
        raise MisuseError(f"attack {case.attack!r}: expected one of {', '.join(one.key.name for one in attacks)}")
    return attack


def _finished(
    case: Case, subject: Subject, oracle: Oracle, result: Reconstruction, meter: Metered, started: float
) -> Finished:
    clone = result.clone
    # What is tried out with adversarial examples of the clone's would be paid for at a server.
    judged = clone if oracle is subject.oracle else None
    measures = None if clone is None else clone_measures(result.predict, judged, oracle, subject.test)
    allowed = tolerated(meter.offer, result.evidence)
    if result.outcome is Outcome.RECOVERED and measures is not None and measures.worst_gap > allowed:
        result = replace(result, outcome=Outcome.NOT_VERIFIED, evidence=replace(result.evidence, remark=_ON_INPUTS))
    confirming = meter.confirming if result.outcome is Outcome.RECOVERED else 0
    record = Record(
        case=case,
        outcome=result.outcome.name,
        remark=result.evidence.remark,
        error=None,
        spent={**result.spent.counts, "confirming": confirming},
        measures=measures,
        seconds=round(time.perf_counter() - started, 2),
    )
    # A report shows one clone; that of some first seed without defence will do.
    if clone is None or case.seed or case.defence:
        return Finished(record)
    units = unit_pairs_of(clone, subject.oracle) if record.exact else ()
    return Finished(record, gallery_of(clone, oracle, subject.test), units)


def usefulness_of(target: AuditedTarget, key: CurveKey) -> Usefulness | None:
    """What the explanations of a curve are worth to an honest reader."""
    subject = target.subject
    chain = parse(key[1]) if key[1] else None
    case = Case(*key, attack="", budget=0, seed=0)
    shown = _shown(case, subject, subject.oracle, chain)
    return usefulness(subject.oracle, shown, subject.test.rows, rng=0)


def failed(case: Case, error: str, spent: Mapping[str, int] | None = None, seconds: float = 0.0) -> Finished:
    """The record of a case that ended by an error."""
    return Finished(Record(case, FAILED, "", error, spent or {}, None, round(seconds, 2)))
