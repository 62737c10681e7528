"""The run store of a study: one row per experiment."""

from collections.abc import Iterable

from relumine.jobs.store import Store
from relumine.study.experiment import Experiment, Row


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
