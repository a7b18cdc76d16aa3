"""Mutants of the package: how they are made, and that the tests of a folder find one."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import cast

import pytest
from coverage import CoverageData

import tests.mutation.__main__
from tests.mutation.__main__ import _measure, check_types, find_test
from tests.mutation.line_coverage import LineCoverage
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


LINES = """\
import os

LIMIT = 3


def one(
    value=LIMIT,
):
    if (
        value
    ):
        return 1
    return 2


def other():
    return one()
"""


class Contexts:
    """Lines that the tests `a`, which has imported most of them, and `b[1]` have run."""

    def contexts_by_lineno(self, _file: str) -> dict[int, list[str]]:
        a, b = "tests/test_x.py::a|run", "tests/test_x.py::b[1]|run"
        return {1: [a], 3: [a], 6: [a], 7: [""], 9: ["", a, b], 10: [a, b], 12: [a], 13: [b], 16: [""], 17: []}


@pytest.mark.parametrize(
    ("line", "tests"),
    [
        (3, None),
        (6, ["tests/test_x.py::a", "tests/test_x.py::b"]),
        (7, ["tests/test_x.py::a", "tests/test_x.py::b"]),
        (10, ["tests/test_x.py::a", "tests/test_x.py::b"]),
        (11, ["tests/test_x.py::a", "tests/test_x.py::b"]),
        (12, ["tests/test_x.py::a"]),
        (13, ["tests/test_x.py::b"]),
        (17, []),
    ],
)
def test_a_mutant_meets_the_tests_that_run_its_line(tmp_path: Path, line: int, tests: list[str] | None) -> None:
    file = tmp_path / "lines.py"
    file.write_text(LINES)
    coverage = LineCoverage(tmp_path / "coverage")
    coverage._data = cast("CoverageData", Contexts())
    assert coverage.find_tests(file, line) == tests


class Folder(LineCoverage):
    """All lines are run by the tests of the core."""

    def find_tests(self, _file: Path, _line: int) -> list[str]:
        return ["tests/unit/core/test_access.py"]


@pytest.mark.slow
def test_a_mutant_is_found_by_a_test_that_runs_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / SOURCE.name
    shutil.copytree(SOURCE, package)
    monkeypatch.setattr(tests.mutation.__main__, "check_types", lambda _package: "")  # takes a minute for all of it
    source = FILE.read_text()
    changed = source.replace("return is_alone and vm.name in", "return is_alone and vm.name not in")
    mutant = Mutant(file="core/access.py", source=changed, line=1, was="", now="")
    assert find_test(mutant, package, Folder(tmp_path / "coverage")) == "tests/unit/core/test_access.py"
    assert (package / "core/access.py").read_text() == source


@pytest.mark.slow
def test_a_mutant_with_wrong_types_is_found_by_the_type_checker(tmp_path: Path) -> None:
    """Also where only another module, which was checked before, uses it wrongly."""
    package = tmp_path / SOURCE.name
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "user.py").write_text("from forewarn.names import NAME\n\nshown: str = NAME\n")
    for text in ("a", "b"):
        (package / "names.py").write_text(f"NAME = {text!r}\n")
        assert check_types(package) == ""
    mutant = Mutant(file="names.py", source="NAME = None\n", line=1, was="", now="")
    assert find_test(mutant, package, Folder(tmp_path / "coverage")) == "type checker"


@pytest.mark.slow
@pytest.mark.parametrize("passes", [True, False])
def test_tests_that_fail_without_a_mutant_are_reported_before_any_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    test, data = tmp_path / "test_one.py", tmp_path / "coverage"
    test.write_text(f"import forewarn.core.access\n\ndef test_one():\n    assert {passes}\n")
    monkeypatch.setattr(tests.mutation.__main__, "_CLUSTER_COMMAND", ("true",))
    monkeypatch.setattr(tests.mutation.__main__, "_FOLDERS", (str(test),))
    monkeypatch.setenv("COVERAGE_FILE", "")  # set by it
    failing = _measure(data, 1)
    assert ("test_one.py::test_one" in failing) is not passes
    assert data.exists() is passes, "the next run would take it for whole"
