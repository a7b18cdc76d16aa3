"""The testing kit as those who write handlers use it: the fixture, its async twin, unittest, clients of all kinds."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import unittest
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from forewarn.client import Client
from forewarn.errors import CallerError, NotFound
from forewarn.testing import AsyncScheduledEvents, ScheduledEvent, ScheduledEvents
from tests.support.spans import GUARD_S

PATH = "/metadata/scheduledevents?api-version=2020-07-01"
HEADERS = {"Metadata": "true"}


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
OPENER.addheaders = list(HEADERS.items())


def poll(url: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    with OPENER.open(url + PATH, timeout=GUARD_S) as answer:
        return json.load(answer)


def approve(url: str, event_id: str) -> int:
    body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
    with OPENER.open(url + PATH, data=body, timeout=GUARD_S) as answer:
        return int(answer.status)


# The life of an event


def test_an_event_lives_as_fast_as_the_test_wants(scheduled_events: ScheduledEvents) -> None:
    """R42, R75, R76, R79."""
    event = scheduled_events.schedule("Reboot")
    assert (event.status, event.is_approved, event.resources) == ("Scheduled", False, ("vm-1",))
    assert poll(scheduled_events.url)["Events"][0]["EventId"] == event.id
    scheduled_events.advance("15m")
    assert event.status == "Started"
    scheduled_events.advance("10m")
    assert event.status == "Completed"
    assert [(d.incarnation, [e.status for e in d.events]) for d in scheduled_events.documents] == [
        (1, []),
        (2, ["Scheduled"]),
        (3, ["Started"]),
        (4, []),
    ]


def test_an_approval_starts_it_at_once(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.schedule("Freeze", duration_s=5)
    assert approve(scheduled_events.url, event.id) == 200
    assert (event.status, event.approved_by, event.approved_at) == ("Started", "vm:vm-1", scheduled_events.now)
    assert scheduled_events.document.events[0].is_started


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda e: e.restart(), ("Reboot", "User", 15)),
        (lambda e: e.redeploy(), ("Redeploy", "User", 10)),
        (lambda e: e.evict(), ("Preempt", "Platform", 0.5)),
        (lambda e: e.delete(), ("Terminate", "User", 5)),
        (lambda e: e.schedule("Freeze", notice="30s"), ("Freeze", "Platform", 0.5)),
        (lambda e: e.schedule("Redeploy", notice="7d"), ("Redeploy", "Platform", 7 * 24 * 60)),
        (lambda e: e.maintain("host-1", "Redeploy")[0], ("Redeploy", "Platform", 10)),
        (lambda e: e.predict_failure("host-1", "2d")[0], ("Redeploy", "Platform", 2 * 24 * 60)),
    ],
)
def test_everything_that_can_be_announced(
    scheduled_events: ScheduledEvents,
    make: Callable[[ScheduledEvents], ScheduledEvent],
    expected: tuple[str, str, float],
) -> None:
    made = make(scheduled_events)
    [shown] = scheduled_events.document.events
    assert (shown.id, shown.status) == (made.id, "Scheduled")
    assert shown.not_before is not None
    notice_min = (shown.not_before - scheduled_events.now) / timedelta(minutes=1)
    assert (shown.type, shown.source, notice_min) == expected


def test_a_host_fails_without_notice(scheduled_events: ScheduledEvents) -> None:
    """R73."""
    [event] = scheduled_events.fail_host("host-1")
    assert (event.status, event.type, event.not_before) == ("Started", "Reboot", None)
    scheduled_events.complete(event)
    assert event.status == "Completed"


def test_what_was_announced_is_taken_back_or_started_or_hits_again(scheduled_events: ScheduledEvents) -> None:
    first = scheduled_events.schedule("Reboot", impact="Freeze")
    scheduled_events.cancel(first)
    assert (first.status, scheduled_events.document.events) == ("Canceled", ())
    second = scheduled_events.schedule("Freeze")
    scheduled_events.start(second)
    scheduled_events.impact(second, 2)
    assert second.status == "Started"
    with pytest.raises(CallerError):
        scheduled_events.cancel(second)


def test_an_operator_approves_in_the_place_of_a_vm(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.schedule()
    scheduled_events.approve(event)
    assert (event.status, event.approved_by) == ("Started", "operator:test")
    with pytest.raises(NotFound):
        scheduled_events.approve("00000000-0000-0000-0000-000000000000")


# What can be set


@pytest.mark.scheduled_events(["web-0", "web-1"])
def test_each_vm_has_a_url_of_its_own(scheduled_events: ScheduledEvents) -> None:
    """R2, R58."""
    event = scheduled_events.schedule("Freeze", "web-1")
    assert poll(scheduled_events.url_of("web-0"))["Events"] == []
    assert poll(scheduled_events.url_of("web-1"))["Events"][0]["Resources"] == ["web-1"]
    with pytest.raises(urllib.error.HTTPError):
        approve(scheduled_events.url_of("web-0"), event.id)
    assert [e.vm for e in scheduled_events.requests] == ["web-0", "web-1", "web-0"]
    assert len(scheduled_events.requests_of("web-1")) == 1
    with pytest.raises(NotFound):
        scheduled_events.url_of("web-2")


@pytest.mark.scheduled_events(
    {
        "hosts": [{"name": "h"}],
        "scopes": [{"name": "web", "kind": "availability-set"}],
        "vms": [
            {"name": f"web-{n}", "host": "h", "scope": "web", "fault_domain": 0, "update_domain": n} for n in (0, 1)
        ],
    },
    start=datetime(2026, 3, 1, tzinfo=UTC),
    post_body="document",
)
def test_an_inventory_a_beginning_and_settings(scheduled_events: ScheduledEvents) -> None:
    """R44, R51, A13."""
    event = scheduled_events.schedule("Reboot", "web-1")
    assert event.not_before == datetime(2026, 3, 1, 0, 15, tzinfo=UTC)
    answer = requests.post(
        scheduled_events.url_of("web-0") + PATH,
        json={"StartRequests": [{"EventId": event.id}]},
        headers=HEADERS,
        timeout=GUARD_S,
    )
    assert answer.json()["Events"][0]["EventStatus"] == "Started"


@pytest.mark.scheduled_events(enabled=False)
def test_before_the_first_question_nothing_is_announced(scheduled_events: ScheduledEvents) -> None:
    """R67, R70a: a user's operation does not wait; what the platform announces keeps its time."""
    event = scheduled_events.restart()
    assert (event.id, event.status, event.not_before) == ("", "Started", None)
    assert scheduled_events.document.incarnation == 0
    assert poll(scheduled_events.url) == {"DocumentIncarnation": 1, "Events": []}


@pytest.mark.scheduled_events(enabled=False)
def test_the_first_question_shows_what_waits(scheduled_events: ScheduledEvents) -> None:
    """R70a, R70b."""
    event = scheduled_events.schedule("Reboot", notice="20m")
    assert (event.id, event.status) == ("", "Scheduled")
    scheduled_events.advance("10m")
    (shown,) = poll(scheduled_events.url)["Events"]
    assert (shown["EventStatus"], shown["Resources"]) == ("Scheduled", ["vm-1"])
    assert (event.status, event.is_approved) == ("Scheduled", False)
    scheduled_events.advance("10m")
    assert event.status == "Started"


# Clients of all kinds


def test_requests(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.schedule("Redeploy")
    session = requests.Session()
    session.trust_env = False
    document = session.get(scheduled_events.url + PATH, headers=HEADERS, timeout=GUARD_S).json()
    assert document["Events"][0]["EventId"] == event.id


def test_httpx(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.schedule("Redeploy")
    with httpx.Client(base_url=scheduled_events.url, headers=HEADERS, trust_env=False, timeout=GUARD_S) as client:
        assert client.get(PATH).json()["Events"][0]["EventId"] == event.id


async def _with_aiohttp(events: AsyncScheduledEvents) -> None:
    event = await events.schedule("Freeze")
    async with aiohttp.ClientSession(events.url, headers=HEADERS) as session:
        async with session.get(PATH) as answer:
            assert (await answer.json())["Events"][0]["EventId"] == event.id
        async with session.post(PATH, json={"StartRequests": [{"EventId": event.id}]}) as answer:
            assert answer.status == 200
    assert event.status == "Started"
    await events.advance("10m")
    assert event.status == "Completed"


@pytest.mark.anyio
async def test_aiohttp(async_scheduled_events: AsyncScheduledEvents) -> None:
    await _with_aiohttp(async_scheduled_events)
    assert len(async_scheduled_events.requests) == 2
    assert async_scheduled_events.documents[-1].events == async_scheduled_events.document.events == ()
    assert async_scheduled_events.warnings == []


def test_an_async_context_manager() -> None:
    async def use() -> None:
        async with AsyncScheduledEvents("db") as events:
            await _with_aiohttp(events)
            assert events.now.year == 2030

    asyncio.run(use())


def test_a_handler_in_a_process_of_its_own(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.schedule("Preempt")
    handler = (
        "import json, os, sys, urllib.request as u\n"
        "r = u.Request(os.environ['ENDPOINT'] + sys.argv[1], headers={'Metadata': 'true'})\n"
        "print(json.load(u.build_opener(u.ProxyHandler({})).open(r))['Events'][0]['EventType'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", handler, PATH],
        env={"ENDPOINT": scheduled_events.url},
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=True,
    )
    assert ran.stdout == "Preempt\n"
    assert event.status == "Scheduled"


def test_our_own_client(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.schedule("Freeze")
    with Client(scheduled_events.url) as client:
        assert client.fetch().events[0].id == event.id
        client.approve(event.id)
    assert event.status == "Started"


class TestWithUnittest(unittest.TestCase):
    """unittest knows context managers."""

    def test_it(self) -> None:
        events = self.enterContext(ScheduledEvents(["db"]))
        self.assertEqual(poll(events.url)["Events"], [])  # noqa: PT009 - that is what unittest is
        events.schedule("Terminate", "db")
        self.assertEqual(poll(events.url)["Events"][0]["EventType"], "Terminate")  # noqa: PT009 - as above


# What goes wrong


def test_faults_strike_and_end(scheduled_events: ScheduledEvents) -> None:
    """R66."""
    scheduled_events.inject("503", count=1)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        poll(scheduled_events.url)
    assert poll(scheduled_events.url)["Events"] == []
    scheduled_events.inject("empty", lasts="1m")
    with pytest.raises(json.JSONDecodeError):
        poll(scheduled_events.url)
    scheduled_events.advance("1m")
    assert poll(scheduled_events.url)["Events"] == []
    scheduled_events.inject("404", vm="vm-1")
    assert scheduled_events.clear_faults() == 1
    assert [e.fault for e in scheduled_events.requests] == ["503", "", "empty", ""]
    with pytest.raises(CallerError, match="unknown fault"):
        scheduled_events.inject("sloth")  # type: ignore[arg-type] # there is none


@pytest.mark.scheduled_events(first_answer_delay="2m", enabled=False)
def test_two_minutes_pass_when_the_test_says_so(scheduled_events: ScheduledEvents) -> None:
    """R67."""

    async def both() -> tuple[Any, int]:
        asked = asyncio.ensure_future(asyncio.to_thread(poll, scheduled_events.url))
        steps = 0
        while not asked.done():
            await asyncio.to_thread(scheduled_events.advance, "30s")
            steps += 1
            await asyncio.sleep(0.02)
        return asked.result(), steps

    document, steps = asyncio.run(both())
    assert document == {"DocumentIncarnation": 1, "Events": []}
    assert steps >= 4


def test_a_client_is_told_what_it_relies_on(scheduled_events: ScheduledEvents) -> None:
    url = f"{scheduled_events.url}/metadata/scheduledevents"
    session = requests.Session()
    session.trust_env = False
    session.get(f"{url}?api-version=2017-03-01", timeout=GUARD_S)
    session.get(f"{url}?api-version=2021-02-01", headers=HEADERS, timeout=GUARD_S)
    session.get(url, headers=HEADERS, timeout=GUARD_S)
    codes = [advice.code for _, advice in scheduled_events.warnings]
    assert codes == ["metadata-missing", "version-preview", "version-unknown", "version-missing"]


def test_a_test_can_demand_that_there_is_nothing_to_warn_of(scheduled_events: ScheduledEvents) -> None:
    """And is told which requests are at fault, and why."""
    poll(scheduled_events.url)
    scheduled_events.assert_no_warnings()
    with requests.Session() as session:
        session.trust_env = False
        session.get(f"{scheduled_events.url}/metadata/scheduledevents?api-version=2017-03-01", timeout=GUARD_S)
    with pytest.raises(AssertionError) as raised:
        scheduled_events.assert_no_warnings()
    first, *others = str(raised.value).splitlines()
    assert first == "2 warnings about client requests:"
    assert all(line.startswith("  vm-1: GET /metadata/scheduledevents?api-version=2017-03-01: it ") for line in others)
    assert [line.rpartition(" ")[2] for line in others] == ["[metadata-missing]", "[version-preview]"]


@pytest.mark.anyio
async def test_an_async_test_can_demand_it_too(async_scheduled_events: AsyncScheduledEvents) -> None:
    async with aiohttp.ClientSession(async_scheduled_events.url) as session, session.get(PATH) as answer:
        assert answer.status == 400
    with pytest.raises(AssertionError, match=r"\[metadata-missing\]"):
        async_scheduled_events.assert_no_warnings()


# What is shown


def test_an_event_shows_where_it_stands() -> None:
    """In the report of a test that fails; also when the service has ended, which nobody can ask any more."""
    with ScheduledEvents("web-0") as events:
        event = events.schedule("Reboot")
        shown = [repr(event)]
        events.approve(event)
        shown.append(repr(event))
        events.advance("1h")
        shown.append(repr(event))
    shown.append(repr(event))
    assert [
        text.removeprefix("<ScheduledEvent Reboot of web-0, ").removesuffix(f", {event.id}>") for text in shown
    ] == [
        "Scheduled for 2030-01-01 00:15:00Z",
        "Started, approved by operator:test",
        "Completed, approved by operator:test",
        "status unknown (NotFound)",
    ]


@pytest.mark.scheduled_events(enabled=False)
def test_what_was_announced_to_nobody_shows_that_it_has_no_id(scheduled_events: ScheduledEvents) -> None:
    """R67."""
    assert repr(scheduled_events.restart()) == "<ScheduledEvent Reboot of vm-1, Started, without an id>"


# Bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.schedule("Melt"), "unknown type 'Melt': expected one of Freeze, Reboot"),
        (lambda e: e.schedule(source="Nobody"), "unknown source 'Nobody': expected one of"),
        (lambda e: e.schedule(vm="nobody"), "vm 'nobody' does not exist"),
        (lambda e: e.schedule(notice="soon"), "'soon' is not a span of time"),
        (lambda e: e.schedule("Freeze", impact="Reboot"), "cannot have the impact"),
        (lambda e: e.advance(-5), "cannot be advanced by a negative span"),
        (lambda e: e.fail_host("nowhere"), "host 'nowhere' does not exist"),
        (lambda e: e.inject(503), r"fault 503 must be text, not a number: write inject\('503'\)"),
        (lambda e: e.inject(HTTPStatus.GONE), r"fault 410 must be text, not a number: write inject\('410'\)"),
        (lambda e: e.inject(418), "unknown fault 418: expected one of 404, 410"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(scheduled_events: ScheduledEvents, call: Any, words: str) -> None:  # noqa: ANN401 - a call
    with pytest.raises(CallerError, match=words):
        call(scheduled_events)
    assert scheduled_events.document.events == ()


def test_the_environment_does_not_change_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_CLOUD", "china")
    monkeypatch.setenv("FOREWARN_CLOCK", "real")
    with ScheduledEvents() as events:
        events.evict()
        assert poll(events.url)["Events"][0]["EventType"] == "Preempt"


def test_nothing_of_one_test_is_left_for_the_next() -> None:
    seen = []
    for _ in range(20):
        with ScheduledEvents() as events:
            event = events.schedule("Freeze")
            seen.append((event.id, poll(events.url)["DocumentIncarnation"], len(events.requests)))
    assert len(set(seen)) == 1
