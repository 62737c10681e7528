"""The run store of an audit: every record as it comes, the pictures that belong to it, and the result."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from relumine.audit.result import AuditResult, Case, Picture, Record, UnitPair, name_today
from relumine.errors import StoreError
from relumine.jobs.store import Store, read

FILE = "audit.sqlite"


@dataclass(frozen=True)
class Finished:
    """A case's record, and what a report may show of its clone."""

    record: Record
    gallery: tuple[Picture, ...] = ()
    units: tuple[UnitPair, ...] = ()


class AuditStore(Store):
    """The records of one audit, in a file of its run folder."""

    application = 0x72656C61  # "rela" in ASCII

    @classmethod
    def in_folder(cls, folder: Path) -> "AuditStore":
        """The store of a run folder; a new one where there is none."""
        return cls(folder / FILE)

    def belongs_to(self, fingerprint: str) -> None:
        """Bind the store to a target and its data, or refuse it as another's."""
        mine = self.noted("fingerprint")
        if mine is not None and mine != fingerprint:
            raise StoreError(
                f"{self.path} holds the audit of another target, or of the same with other data or options; "
                "go on with what it was started with, or choose another folder with --run"
            )
        self.note("fingerprint", fingerprint)

    def keep(self, finished: Finished) -> None:
        """Write a record and what comes with it."""
        case = finished.record.case
        self.put(case.key, json.dumps(asdict(finished), ensure_ascii=False), failed=finished.record.failed)

    def finished_cases(self) -> dict[Case, Finished]:
        """Everything that came out so far and did not fail."""
        done = self.finished()
        found = (_finished(text) for key, text in self.texts().items() if key in done)
        return {one.record.case: one for one in found}


def _finished(text: str) -> Finished:
    plain = json.loads(text)
    name_today(plain["record"]["case"], plain["record"]["case"]["level"])
    return read(Finished, plain)


def read_result(folder: Path) -> AuditResult:
    """The result of the audit in a run folder."""
    if not (folder / FILE).is_file():
        raise StoreError(f"{folder}: expected the run folder of an audit, got none; 'relumine audit' makes them")
    with AuditStore.in_folder(folder) as store:
        text = store.noted("result")
    if text is None:
        raise StoreError(f"{folder}: the audit has not ended; 'relumine audit … --run {folder} --resume' goes on")
    return AuditResult.from_json(text)
