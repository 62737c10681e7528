"""The runner: experiments in, rows out, each in the store as soon as it is there."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from relumine.errors import MisuseError
from relumine.jobs.engines import Engine, Lost
from relumine.jobs.store import Store
from relumine.study.experiment import Experiment, Row, Target, key_of
from relumine.study.trial import asker, failed_row, material, run_experiment, train_target, training_settings


class RunStore(Store):
    """The rows of a study, one per experiment."""

    application = 0x72656C73  # "rels" in ASCII

    def keep(self, row: Row) -> None:
        """Write a row; it takes the place of an earlier one of the same experiment."""
        self.put(row.experiment.key, row.to_json(), failed=row.failed)

    def rows(self, experiments: Iterable[Experiment]) -> list[Row]:
        """The rows of those experiments that have one, in the order of the experiments."""
        known = self.texts()
        return [Row.from_json(known[e.key]) for e in experiments if e.key in known]


@dataclass(frozen=True)
class StudyProgress:
    """The progress of a study: what just ended, and how many of how many are done."""

    ended: Row | Target
    done: int
    total: int


def run_study(
    experiments: Sequence[Experiment],
    store: RunStore,
    engine: Engine,
    *,
    watch: Callable[[StudyProgress], None] | None = None,
    scratch: Path | None = None,
) -> list[Row]:
    """Run those experiments that the store has no finished row of, and return the rows of all.

    Everything that can be known to fail is refused before anything starts. What fails later is recorded with its
    error, does not stop the others, and is tried again by the next call.
    """
    study = list({experiment.key: experiment for experiment in experiments}.values())
    finished = store.finished()
    # Sorted by data, because a worker holds one dataset at a time.
    todo = sorted((e for e in study if e.key not in finished), key=lambda e: (e.target.data, e.target.standardise))
    if todo:
        check(todo)
        done = len(study) - len(todo)
        with engine:
            for ended in _conducted(todo, engine, scratch):
                if isinstance(ended, Row):
                    store.keep(ended)
                    done += 1
                if watch is not None:
                    watch(StudyProgress(ended, done, len(study)))
        if scratch is not None:
            with suppress(OSError):  # somebody else's files are in it
                scratch.rmdir()
    return store.rows(experiments)


def _conducted(todo: list[Experiment], engine: Engine, scratch: Path | None) -> Iterator[Row | Target]:
    """Each target once it is trained, before experiments would train it side by side; then each row."""
    targets = {key_of(experiment.target): experiment.target for experiment in todo}
    untrained: dict[str, str] = {}
    for target, accuracy in engine.run(train_target, targets.values()):
        if isinstance(accuracy, Lost):
            untrained[key_of(target)] = accuracy.reason
        yield target
    for experiment in todo:
        if reason := untrained.get(key_of(experiment.target)):
            yield failed_row(experiment, f"its target was not trained: {reason}")
    ready = [experiment for experiment in todo if key_of(experiment.target) not in untrained]
    for experiment, row in engine.run(partial(run_experiment, scratch=scratch), ready):
        yield failed_row(experiment, row.reason) if isinstance(row, Lost) else row


def check(experiments: Sequence[Experiment]) -> None:
    """Refuse, before hours are spent, what cannot work: missing data, unknown networks, budgets beyond the pool."""
    for experiment in experiments:
        try:
            _check(experiment)
        except MisuseError as error:
            raise MisuseError(f"experiment ({experiment}): {error}") from error
    material.cache_clear()  # this process has no further use for the data


def _check(experiment: Experiment) -> None:
    split = material(experiment.target.data, experiment.target.standardise).split
    for network in (experiment.target, experiment.student):
        _check_network(network.network, split.shape, split.classes, json.dumps(dict(network.options)))
    training_settings(experiment.target)
    asker(experiment)


@lru_cache(maxsize=64)
def _check_network(name: str, shape: tuple[int, ...], classes: int, options: str) -> None:
    from relumine import zoo

    zoo.network(name, shape, classes, **json.loads(options))
