"""Mutants of the package: how they are made, and that the tests of a folder find one."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.mutation.__main__ import find_failing_stage, find_stage
from tests.mutation.mutants import SOURCE, Mutant, make_mutants

FILE = SOURCE / "core" / "access.py"


def test_a_mutant_has_one_change() -> None:
    source = FILE.read_text().splitlines()
    mutants = list(make_mutants([FILE], Random(1)))
    assert len(mutants) > 10
    for mutant in mutants:
        assert mutant.file == "core/access.py"
        assert mutant.source.splitlines() != source
        assert mutant.was != mutant.now
    inverted = next(mutant for mutant in mutants if " in " in mutant.was and " not in " in mutant.now)
    assert source[inverted.line - 1].strip() == inverted.was
    assert str(inverted).startswith(f"core/access.py:{inverted.line}\n")


def test_words_of_messages_are_left_alone() -> None:
    for mutant in make_mutants([SOURCE / "errors.py"], Random(1)):
        assert "XX" not in mutant.now or " " not in mutant.now.partition("XX")[2].partition("XX")[0], mutant


@pytest.mark.slow
def test_a_mutant_is_found_by_the_tests_of_its_folder(tmp_path: Path) -> None:
    package = tmp_path / SOURCE.name
    shutil.copytree(SOURCE, package)
    source = FILE.read_text()
    changed = source.replace("return is_alone and vm.name in", "return is_alone and vm.name not in")
    mutant = Mutant(file="core/access.py", source=changed, line=1, was="", now="")
    assert find_stage(mutant, package) == "tests/unit/core"
    assert (package / "core/access.py").read_text() == source


@pytest.mark.slow
def test_a_stage_that_fails_without_a_mutant_is_found_first(tmp_path: Path) -> None:
    package = tmp_path / SOURCE.name
    shutil.copytree(SOURCE, package)
    (package / "core/access.py").write_text("raise RuntimeError")
    mutant = next(make_mutants([FILE], Random(1)))
    assert find_failing_stage([mutant], package) == "tests/unit/core"
