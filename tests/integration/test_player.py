"""What the player reports of each step: that it was done, what was found instead, or why nothing can follow."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from forewarn.core.fault import FAULTS, FaultPoint
from forewarn.testing.trial.player import ScenarioPlayer, StepOutcome, create_lab
from tests.support.documents import ROOT
from tests.support.parsed_scenario import parse_scenario

pytestmark = pytest.mark.anyio

HEAD = """\
title: A test
inventory:
  hosts: [{name: host-1}, {name: host-2}]
  scopes: [{name: web, kind: availability-set}]
  vms:
    - {name: web-0, host: host-1, scope: web, fault_domain: 0, update_domain: 0}
    - {name: web-1, host: host-1, scope: web, fault_domain: 0, update_domain: 1}
    - {name: db-0, host: host-2}
timeline:
  - poll: [web-0, db-0]
"""
LINES = HEAD.count("\n")
DELAY = ", delay: 20ms"


async def played(timeline: str, *, settings: str = "") -> list[StepOutcome]:
    """The outcomes of a timeline, after a poll of each scope."""
    scenario = parse_scenario(f"{settings}{HEAD}{timeline}".encode(), "a-test")
    async with create_lab(scenario).running() as lab:
        return await ScenarioPlayer(scenario, lab).play()


def only_fault(outcomes: list[StepOutcome]) -> StepOutcome:
    failed = [outcome for outcome in outcomes if outcome.failure]
    assert len(failed) == 1, failed
    return failed[0]


RESTART = "  - restart: web-0\n"


@pytest.mark.parametrize(
    ("expect", "expected"),
    [
        pytest.param(
            "event: restart, status: Started", "status of restart is Scheduled, expected Started", id="status"
        ),
        pytest.param("event: restart, status: gone", "status of restart is Scheduled, expected gone", id="gone"),
        pytest.param("event: restart, status: absent", "status of restart is Scheduled, expected absent", id="absent"),
        pytest.param(
            "event: restart, vm: db-0, status: Scheduled",
            "status of restart is absent, expected Scheduled",
            id="another VM",
        ),
        pytest.param("event: restart, type: Freeze", "type of restart is Reboot, expected Freeze", id="type"),
        pytest.param("event: restart, vm: db-0, type: Reboot", "restart is absent", id="type of nothing"),
        pytest.param("event: restart, description: ''", "description of restart is Virtual machine is", id="words"),
        pytest.param("event: restart, duration: 5", "duration of restart is -1, expected 5", id="duration"),
        pytest.param("event: restart, approved: true", "approved of restart is False, expected True", id="approved"),
        pytest.param(
            "event: restart, notice_at_least: 16m",
            "restart has 0:15:00 of notice, expected at least 0:16:00",
            id="notice",
        ),
        pytest.param("incarnation: 3", "incarnation is 2, expected 3", id="incarnation"),
        pytest.param("events: 0", "events is 1, expected 0", id="events"),
        pytest.param("enabled: false", "enabled is True, expected False", id="enabled"),
        pytest.param(
            "vm: db-0, document: '{}'",
            'the document is {"DocumentIncarnation":1,"Events":[]}, expected {}',
            id="document",
        ),
        pytest.param("document: '', version: 2001-01-01", "there is no api-version '2001-01-01'", id="version"),
    ],
)
async def test_an_expectation_that_fails_tells_its_line_and_what_was_found(expect: str, expected: str) -> None:
    failed = only_fault(await played(f"{RESTART}  - expect: {{{expect}}}\n"))
    assert failed.failure.startswith(expected)
    assert (failed.line, failed.number, failed.verb, failed.is_expectation) == (LINES + 2, 3, "expect", True)


async def test_after_an_expectation_that_fails_the_scenario_goes_on() -> None:
    outcomes = await played(f"{RESTART}  - expect: {{events: 7}}\n  - expect: {{events: 1}}\n  - cancel: restart\n")
    assert [bool(outcome.failure) for outcome in outcomes] == [False, False, True, False, False]


async def test_each_step_is_told_as_soon_as_it_is_done() -> None:
    scenario = parse_scenario(f"{HEAD}{RESTART}  - {{note: A day off, at: 1d, expect: {{events: 0}}}}\n".encode(), "x")
    told: list[StepOutcome] = []
    async with create_lab(scenario).running() as lab:
        outcomes = await ScenarioPlayer(scenario, lab, told.append).play()
    assert told == outcomes
    assert [(o.at, o.text) for o in told] == [
        (timedelta(0), "web-0, db-0 poll"),
        (timedelta(0), "restart web-0"),
        (timedelta(days=1), "A day off"),
    ]


# Operations that are refused


@pytest.mark.parametrize(
    ("timeline", "expected"),
    [
        pytest.param("  - restart: {vm: web-0, as: again}\n", "is active for vm web-0", id="the same twice"),
        pytest.param("  - complete: restart\n", "is scheduled", id="not started"),
        pytest.param(
            "  - impact: {operation: restart}\n", "is scheduled: only a started one can have an impact", id="impact"
        ),
        pytest.param("  - at: +16m\n    cancel: restart\n", "started", id="cancelled too late"),
        pytest.param(
            "  - schedule: {as: melt, vms: web-0, cause: meltdown}\n", "unknown cause 'meltdown'", id="unknown cause"
        ),
        pytest.param(
            "  - approve: {operation: restart, by: db-0}\n",
            "db-0 sees no event of restart to approve",
            id="approval of what is not shown",
        ),
    ],
)
async def test_an_operation_that_is_refused_ends_the_scenario(timeline: str, expected: str) -> None:
    outcomes = await played(f"{RESTART}{timeline}  - expect: {{events: 1}}\n")
    failed = only_fault(outcomes)
    assert expected in failed.failure
    assert (failed.number, failed.is_expectation) == (3, False)
    assert outcomes[-1] == failed


# Time


@pytest.mark.parametrize(
    ("after", "within", "at_s"),
    [
        pytest.param("approved", "1m", 60, id="approved"),
        pytest.param("started", "14m", 14 * 60, id="started"),
        pytest.param("completed", "20m", 20 * 60, id="completed"),
        pytest.param("canceled", "2h", 2 * 60 * 60, id="canceled"),
    ],
)
async def test_what_does_not_happen_within_its_time_ends_the_scenario(after: str, within: str, at_s: int) -> None:
    outcomes = await played(
        f"{RESTART}  - {{after: {after} restart, within: {within}, poll: web-0}}\n  - poll: web-0\n"
    )
    failed = only_fault(outcomes)
    assert failed.failure == f"restart was not {after} within {timedelta(seconds=at_s)}"
    assert failed.at == timedelta(seconds=at_s)
    assert outcomes[-1] == failed


async def test_a_step_begins_at_the_moment_at_which_something_has_happened() -> None:
    """R71, R98: fifteen minutes of notice, ten until it is over."""
    outcomes = await played(
        f"{RESTART}"
        "  - {after: scheduled restart, poll: web-0}\n"
        "  - {after: started restart, poll: web-0}\n"
        "  - {after: completed restart, poll: web-0}\n"
        "  - {at: +30s, poll: web-0}\n"
        "  - {at: 1h, poll: web-0}\n"
    )
    assert [outcome.at.total_seconds() for outcome in outcomes] == [0, 0, 0, 900, 1500, 1530, 3600]


@pytest.mark.parametrize(
    ("expect", "at_s", "fault"),
    [
        pytest.param("status: Started, within: 20m", 900, "", id="within: as soon as it is so"),
        pytest.param("status: Started, within: 10m", 600, "status of restart is Scheduled", id="within: too late"),
        pytest.param("status: Scheduled, within: 14m, always: true", 840, "", id="always: to the end"),
        pytest.param(
            "status: Scheduled, within: 20m, always: true", 900, "status of restart is Started", id="always: broken"
        ),
        pytest.param("status: gone, within: 1h, always: true", 0, "status of restart is Scheduled", id="always: never"),
    ],
)
async def test_an_expectation_takes_the_time_that_it_needs(expect: str, at_s: int, fault: str) -> None:
    last = (await played(f"{RESTART}  - expect: {{event: restart, {expect}}}\n"))[-1]
    assert last.at == timedelta(seconds=at_s)
    assert last.failure.startswith(fault)
    assert bool(last.failure) == bool(fault)


# Endpoints that fail


@pytest.mark.parametrize("kind", [kind.name for kind in FAULTS.values() if kind.place is not FaultPoint.NOTICE])
async def test_a_poll_under_a_fault_is_no_failure_of_the_scenario(kind: str) -> None:
    delay = DELAY if FAULTS[kind].delay is not None else ""
    outcomes = await played(
        f"{RESTART}"
        f"  - fault: {{kind: {kind}, vms: web-0, count: 1{delay}}}\n"
        "  - poll: web-0\n"
        "  - clear_faults: true\n"
        "  - poll: web-0\n"
        "  - expect: {event: restart, status: Scheduled, events: 1}\n"
    )
    assert [outcome.failure for outcome in outcomes] == [""] * 7


async def test_a_poll_asks_once_so_a_fault_that_strikes_once_is_met() -> None:
    """R67: a request that is refused enables nothing."""
    scenario = parse_scenario(
        HEAD.replace("poll: [web-0, db-0]", "fault: {kind: 503, vms: web-0, count: 1}").encode()
        + b"  - poll: web-0\n  - expect: {enabled: false}\n  - poll: web-0\n  - expect: {enabled: true}\n",
        "a-test",
    )
    async with create_lab(scenario).running() as lab:
        outcomes = await ScenarioPlayer(scenario, lab).play()
        statuses = [exchange.status for exchange in lab.list_requests("web-0")]
    assert [outcome.failure for outcome in outcomes] == [""] * 5
    assert statuses == [503, 200]


async def test_a_poll_is_waited_for_where_the_machine_is_slow() -> None:
    """Nothing withholds the answer, so time goes on only when it is there."""
    scenario = parse_scenario(f"{HEAD}  - expect: {{vm: db-0, enabled: true}}\n".encode(), "a-test")

    async def answer_late(vm: str, method: str) -> None:
        if (vm, method) == ("db-0", "GET"):
            await asyncio.sleep(1.2)

    async with create_lab(scenario).running() as lab:
        lab.backend.app.before_answer = answer_late
        outcomes = await ScenarioPlayer(scenario, lab).play()
    assert [outcome.failure for outcome in outcomes] == ["", ""]


@pytest.mark.parametrize("kind", ["503", "410", "refused"])
async def test_an_approval_that_is_not_taken_ends_the_scenario(kind: str) -> None:
    outcomes = await played(
        f"{RESTART}"
        f"  - fault: {{kind: {kind}, vms: web-0, method: POST}}\n"
        "  - approve: {operation: restart, by: web-0}\n"
        "  - expect: {events: 1}\n"
    )
    failed = only_fault(outcomes)
    assert failed.failure.startswith("the approval was not accepted: ")
    assert failed.line == LINES + 3
    assert outcomes[-1] == failed


async def test_short_notice_is_what_vms_are_shown() -> None:
    """A21."""
    outcomes = await played(
        "  - fault: {kind: short-notice, delay: 2m}\n"
        f"{RESTART}"
        "  - expect: {event: restart, notice_at_least: 3m}\n"
        "  - expect: {event: restart, status: Started, within: 2m}\n"
    )
    assert only_fault(outcomes).failure == "restart has 0:02:00 of notice, expected at least 0:03:00"


# Operations with several events


async def test_a_vm_approves_the_event_that_names_it() -> None:
    """R34: an operation over two update domains has two events, and begins when both are approved."""
    outcomes = await played(
        "  - schedule: {as: patch, hosts: host-1, type: Freeze}\n"
        "  - expect: {event: patch, status: Scheduled, events: 2}\n"
        "  - approve: {operation: patch, by: web-1}\n"
        "  - expect: {event: patch, vm: web-1, status: Scheduled, approved: true}\n"
        "  - expect: {event: patch, vm: web-0, status: Scheduled, approved: false}\n"
        "  - approve: {operation: patch, by: web-0}\n"
        "  - expect: {event: patch, vm: web-1, status: Started}\n"
    )
    assert [outcome.failure for outcome in outcomes] == [""] * 8


async def test_settings_and_ids_are_those_of_the_scenario() -> None:
    """A14, R30."""
    content = (ROOT / "src/forewarn/testing/scenarios/live-migration.yaml").read_bytes()
    other = content.replace(b"timeline:", b"settings: {initial_incarnation: 7}\ntimeline:")
    scenario = parse_scenario(other, "live-migration")
    async with create_lab(scenario).running() as lab:
        outcomes = await ScenarioPlayer(scenario, lab).play()
        ids = {event.id for document in lab.list_documents() for event in document.events}
    assert ids == set(scenario.event_ids)
    assert outcomes[1].failure.startswith('the document is {"DocumentIncarnation":7,"Events":[]}')
