"""The planted bugs can be planted, and the simulation finds those that it should find at once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from forewarn.testing.simulation.properties import PROPERTIES
from tests.simulation.bugs.__main__ import find_bug
from tests.simulation.bugs.bugs import BUGS, SOURCE, Bug
from tests.support.documents import ROOT

PAGE = ROOT / "docs/explanation/testing.md"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_changes_code_that_still_compiles(bug: Bug, tmp_path: Path) -> None:
    """So that nobody moves the code away from under it."""
    copy = tmp_path / bug.file
    copy.parent.mkdir(parents=True)
    shutil.copy(SOURCE / bug.file, copy)
    bug.apply(tmp_path)
    assert copy.read_text() != (SOURCE / bug.file).read_text()
    compile(copy.read_text(), str(copy), "exec")


def test_there_are_at_least_twenty() -> None:
    names = {bug.name for bug in BUGS}
    assert len(names) == len(BUGS) >= 20


def test_the_page_has_each_bug() -> None:
    row = r"^\| `([a-z-]+)`: (.+) \| (?:\d+ \| `([a-z_]+)`|not found by [\d,]+ \|) \|$"
    rows = re.findall(row, PAGE.read_text(), re.MULTILINE)
    assert [(name, what) for name, what, _ in rows] == [(bug.name, bug.what) for bug in BUGS]
    assert {name for *_, name in rows if name} <= {each.__name__ for each in PROPERTIES} | {"the_run_ends"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one-approval-for-all", "start-before-notice"])
def test_a_planted_bug_is_found(name: str) -> None:
    [bug] = [bug for bug in BUGS if bug.name == name]
    assert find_bug(bug, seeds=20, jobs=1) is not None
