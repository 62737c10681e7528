"""The run store of an audit: what was finished is there again, and nobody else's."""

from dataclasses import replace

import pytest

import relumine as rl
from relumine.audit.result import AttackKey, Case, CloneMeasures, Picture, Record, UnitPair
from relumine.audit.store import AuditStore, Finished, read_result
from relumine.study import RunStore

CASE = Case("logits", "round:2", "learned", 10, 0)
MEASURES = CloneMeasures(0.5, 0.4, None, 0.9, 0.1, None, 0.0)


def finished(outcome: str = "FITTED", error: str | None = None) -> Finished:
    record = Record(CASE, outcome, "a remark", error, {"value_queries": 3}, None if error else MEASURES, 1.5)
    picture = Picture((0.0, 1.0), (1.0, 0.5), (0.2, 0.1), (1, 2), "cat", "dog")
    return Finished(record, (picture,), (UnitPair((1.0,), (0.5,), 0.1),))


def test_what_was_kept_is_found_again(tmp_path):
    with AuditStore.in_folder(tmp_path) as store:
        store.keep(finished())
    with AuditStore.in_folder(tmp_path) as store:
        assert store.finished_cases() == {CASE: finished()}


@pytest.mark.parametrize(
    ("level", "written", "today"),
    [
        ("gradients", "membership", AttackKey("student", "values")),
        ("label", "membership, averaged", AttackKey("student", "values", averaged=True)),
        ("logits", "membership, labels", AttackKey("student", "labels")),
        ("logits", "membership, convolutional", AttackKey("student", "values", student="conv")),
        ("logits", "exact", AttackKey("exact", "values")),
        ("gradients", "exact", AttackKey("exact")),
        ("gradients", "exact, adapted", AttackKey("exact", adapted=True)),
        ("gradients", "learned, averaged", AttackKey("student", averaged=True)),
    ],
)
def test_attacks_that_an_older_store_names_are_known(tmp_path, level, written, today):
    old = replace(CASE, level=level, attack=written)
    with AuditStore.in_folder(tmp_path) as store:
        store.keep(replace(finished(), record=replace(finished().record, case=old)))
        assert [case.attack for case in store.finished_cases()] == [today.name]


def test_what_failed_is_done_again(tmp_path):
    with AuditStore.in_folder(tmp_path) as store:
        store.keep(finished("FAILED", "it broke"))
        assert store.finished_cases() == {}
        store.keep(finished())
        assert [*store.finished_cases()] == [CASE]


def test_a_store_belongs_to_one_target(tmp_path):
    with AuditStore.in_folder(tmp_path) as store:
        store.belongs_to("this")
        store.belongs_to("this")
        with pytest.raises(rl.StoreError, match="another target"):
            store.belongs_to("that")


def test_a_study_s_store_is_no_audit_s(tmp_path):
    RunStore(tmp_path / "audit.sqlite").close()
    with pytest.raises(rl.StoreError, match="another program"):
        AuditStore.in_folder(tmp_path)


def test_a_report_needs_an_audit_that_ended(tmp_path):
    with pytest.raises(rl.StoreError, match="expected the run folder of an audit"):
        read_result(tmp_path)
    AuditStore.in_folder(tmp_path).close()
    with pytest.raises(rl.StoreError, match="has not ended"):
        read_result(tmp_path)
