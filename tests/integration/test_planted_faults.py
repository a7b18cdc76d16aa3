"""`forewarn try` finds every planted fault in every language, and passes what is correct: see tests/handlers."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.testing.scenario.scenario_loader import load_scenario, shipped_scenarios
from forewarn.testing.trial.report import TrialReport
from tests.handlers.planted import CORRECT, planted_faults
from tests.handlers.playing import Play, missing_tool, play_all

# One test waits for all handlers, a few of them for minutes; they run in networks of their own.
pytestmark = [pytest.mark.slow, pytest.mark.namespaces, pytest.mark.begins_first(400), pytest.mark.timeout(3600)]

PATIENCE_S = 10.0
SCENARIOS = [name for name in shipped_scenarios() if load_scenario(name).only is None]
PLANTED = [Play(language, fault.scenario, fault) for fault in planted_faults() for language in fault.edits]
CORRECT_PLAYS = [Play(language, scenario) for scenario in SCENARIOS for language in CORRECT]
ALONE = {
    "unprepared",
    "unprepared-at-start",
    "returned-early",
    "prepared-for-another",
    "unrecovered",
    "time-out-short",
    "proxy",
    "asks-too-rarely",
}
"""Codes of which some fault has no other; those that are not here come with a step that fails, and say why."""
FAULTY, HARMLESS = ([p for p in PLANTED if p.fault and p.fault.is_harmless is wanted] for wanted in (False, True))


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Play, TrialReport]:
    """The report of each play that is asked for; they are tried beside each other, the longest first."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = {item.callspec.params.get("play") for item in items if hasattr(item, "callspec")}
    if any(item.function is test_each_check_alone_fails_a_handler for item in items):
        wanted |= set(FAULTY)
    plays = [
        play for play in (*FAULTY, *HARMLESS, *CORRECT_PLAYS) if play in wanted and not missing_tool(play.language)
    ]
    plays.sort(key=lambda play: play.scenario not in {"slow-endpoint", "a-bad-day", "trouble-under-way"})
    return asyncio.run(play_all(plays, tmp_path_factory.mktemp("handlers"), patience_s=PATIENCE_S))


def report_of(reports: dict[Play, TrialReport], play: Play) -> TrialReport:
    if tool := missing_tool(play.language):
        pytest.skip(f"{tool} is not installed: handlers in {play.language} need it")
    report = reports[play]
    assert report.has_own_network
    return report


@pytest.mark.parametrize("play", FAULTY, ids=str)
def test_a_planted_fault_is_found(reports: dict[Play, TrialReport], play: Play) -> None:
    report = report_of(reports, play)
    assert not report.has_passed
    assert play.fault is not None
    found = [(f.code, f.text) for f in report.findings if f.is_failure]
    failed = [(o.text, o.failure) for o in report.outcomes if o.failure]
    if play.fault.finding:
        assert [text for code, text in found if code == play.fault.finding and play.fault.says in text], (found, failed)
    else:
        says, step = play.fault.says, play.fault.step
        assert [1 for text, fault in failed if says in text and step in fault], (found, failed)


def test_each_check_alone_fails_a_handler(reports: dict[Play, TrialReport]) -> None:
    """Without the check, `forewarn try` would pass a handler with a fault: nothing else about it is wrong."""
    alone = set()
    for report in reports.values():
        codes = [finding.code for finding in report.findings if finding.is_failure]
        if len(codes) == 1 and not any(outcome.failure for outcome in report.outcomes):
            alone |= set(codes)
    assert alone >= ALONE


@pytest.mark.parametrize("play", HARMLESS, ids=str)
def test_a_harmless_difference_passes(reports: dict[Play, TrialReport], play: Play) -> None:
    report = report_of(reports, play)
    assert [(o.text, o.failure) for o in report.outcomes if o.failure] == []
    assert [f for f in report.findings if f.is_failure] == []


@pytest.mark.parametrize("play", CORRECT_PLAYS, ids=str)
def test_a_correct_handler_passes(reports: dict[Play, TrialReport], play: Play) -> None:
    report = report_of(reports, play)
    assert [(o.text, o.failure) for o in report.outcomes if o.failure] == []
    assert report.findings == []
