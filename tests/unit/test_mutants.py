"""The mutants of ``tests/mutants.py`` can still be made: what they change is where it was."""

from pathlib import Path

import pytest

import relumine
from mutants import MUTANTS, ROOT, Mutant

PACKAGE = Path(relumine.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_and_its_tests_are_there(mutant: Mutant):
    assert (PACKAGE / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert all((ROOT / name).is_file() for name in mutant.tests.split())


def test_there_are_twenty():
    assert len({mutant.name for mutant in MUTANTS}) >= 20
