"""A run of several parts of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import measure
from bench.process import BenchError
from bench.result import QUICK, Effort, Result, Row


def _succeed(effort: Effort, folder: Path, _log: Path) -> Result:
    assert folder.is_dir()
    return Result(title="good", rows=[Row(what="watches", value=effort.watches, unit="")])


def _fail(_effort: Effort, _folder: Path, _log: Path) -> Result:
    raise BenchError("the server does not answer")


def _break(_effort: Effort, _folder: Path, _log: Path) -> Result:
    raise KeyError("no such row")


def test_a_part_that_fails_does_not_lose_the_results_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure({"first": _succeed, "second": _fail, "broken": _break, "third": _succeed}, QUICK)
    assert list(found) == ["first", "third"]
    assert found["third"]["rows"][0]["value"] == QUICK.watches
    said = capsys.readouterr().err
    assert "bench: second: the server does not answer" in said
    assert "bench: broken:\nTraceback" in said
    assert "KeyError: 'no such row'" in said
