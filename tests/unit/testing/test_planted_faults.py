"""What is planted in handlers covers every check of `forewarn try`, and its page is up to date.

That the faults are found is seen by tests/integration/test_planted_faults.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.testing.trial import handler_coordinator, preparation, trial
from forewarn.wire.advice import ADVICE
from tests.handlers.page import PAGE, planted_faults_page
from tests.handlers.planted import CORRECT, PlantedFault, correct_source, planted_faults

ALL = planted_faults()
FAULTS = [fault for fault in ALL if not fault.is_harmless]
LINES_MAX = 100
CODE_LINES_MAX = 80  # without blank lines and comments

# Checks that a fault in a correct handler would not need: what shows them.
ELSEWHERE = {
    "always-prepared": "test_a_marker_of_an_earlier_run_hides_nothing",
    "ignored-sigterm": "test_a_handler_that_misbehaves_is_reported_and_nothing_is_left",
    "left-behind": "test_a_handler_that_misbehaves_is_reported_and_nothing_is_left",
    "never-asked": "test_a_handler_that_misbehaves_is_reported_and_nothing_is_left",
    "output": "test_a_handler_that_misbehaves_is_reported_and_nothing_is_left",
}


def codes_of_the_grader() -> Iterator[str]:
    """Every code with which a trial makes a finding of its own."""
    for module in (handler_coordinator, preparation, trial):
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "Finding" or (name == "add" and isinstance(node.args[0].value, str)):
                yield str(node.args[0].value)


def test_each_check_of_the_grader_is_needed_by_a_planted_fault() -> None:
    codes = set(codes_of_the_grader()) - {"rate"}  # advice, which fails no trial
    assert "unprepared" in codes
    assert codes - {fault.finding for fault in FAULTS} == set(ELSEWHERE)


@pytest.mark.parametrize(("code", "name"), ELSEWHERE.items())
def test_the_other_checks_have_a_test(code: str, name: str) -> None:
    source = (Path(__file__).parents[2] / "integration" / "test_trial.py").read_text(encoding="utf-8")
    assert f"def {name}(" in source
    assert f'"{code}"' in source


def test_a_fault_names_a_finding_that_there_is() -> None:
    known = {*codes_of_the_grader(), *(row.code for row in ADVICE)}
    assert {fault.finding for fault in FAULTS if fault.finding} <= known


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: str(fault.name))
def test_a_fault_can_be_planted(fault: PlantedFault) -> None:
    for language in fault.edits:
        assert fault.source(language) != correct_source(language)


@pytest.mark.parametrize("language", ["python", "bash", "node"])
def test_every_fault_is_planted_in_this_language(language: str) -> None:
    assert [fault.name for fault in FAULTS if language not in fault.edits] == []


@pytest.mark.parametrize("language", CORRECT)
def test_a_correct_handler_is_short_enough_to_be_copied(language: str) -> None:
    lines = [line.strip() for line in correct_source(language).splitlines()]
    assert len(lines) < LINES_MAX
    assert len([line for line in lines if line and not line.startswith(("#", "//"))]) < CODE_LINES_MAX


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == planted_faults_page(), "write it anew: python -m tests.handlers"
