"""Requests that are answered later: long polls (X1), the first answer (R67), the first events (R68), silence (R69)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.service import Running, Vm, eventually, running
from tests.support.spans import lasts
from tests.support.ways import both_ways
from tests.support.wire import LATEST, Answer, Wire, approval, get, post

pytestmark = both_ways

LOOKED_AT_S = 0.3
"""The service looks for idle connections every 0.05 s; where it is slower, a test finds less, and does not fail."""


def poll(incarnation: int, prefer: str = "wait=60") -> bytes:
    return get(LATEST, f'If-None-Match: "{incarnation}"', f"Prefer: {prefer}")


def hold(service: Running, vm: Vm, wire: Wire, incarnation: int = 1, prefer: str = "wait=60") -> None:
    """Send a long poll, and wait until it is held."""
    held = service.held(vm)
    wire.send(poll(incarnation, prefer))
    assert eventually(lambda: service.held(vm) == held + 1)


def ask(service: Running, vm: Vm, request: bytes) -> Answer:
    with service.wire(vm) as wire:
        return wire.ask(request)


@pytest.fixture
def vm(service: Running) -> Vm:
    """A VM that has asked."""
    vm = service.vm()
    service.enable(vm)
    return vm


# Long polls


def test_a_long_poll_is_answered_when_the_document_changes(service: Running, vm: Vm) -> None:
    """X1."""
    with service.wire(vm) as wire:
        hold(service, vm, wire)
        assert not wire.has_more
        service.schedule(vm)
        answer = wire.read()
        assert (answer.status, answer.headers["preference-applied"], answer.headers["etag"]) == (200, "wait", '"2"')
        (event,) = answer.json["Events"]
        hold(service, vm, wire, incarnation=2)
        with service.wire(vm) as other:
            assert other.ask(post(approval(event["EventId"]))).status == 200
        assert wire.read().json["Events"][0]["EventStatus"] == "Started"
    assert service.held(vm) == 0


def test_every_poll_of_every_vm_of_the_scope_is_woken(service: Running) -> None:
    """X1, R44."""
    service.enable(service.web[0])
    with (
        service.wire(service.web[0]) as first,
        service.wire(service.web[0]) as again,
        service.wire(service.web[1]) as other,
    ):
        incarnation = first.ask(get()).json["DocumentIncarnation"]
        for wire in (first, again, other):
            hold(service, service.web[0], wire, incarnation)
        service.schedule(service.web[2])
        answers = [wire.read() for wire in (first, again, other)]
    assert len({answer.lasting for answer in answers}) == 1
    assert answers[0].json["Events"][0]["Resources"] == ["Web_2"]


def test_a_change_for_somebody_else_wakes_nobody(service: Running, vm: Vm) -> None:
    """X1, R85."""
    other = service.vm()
    service.enable(other)
    with service.wire(vm) as wire:
        hold(service, vm, wire)
        service.schedule(other)
        assert service.held(vm) == 1
        assert not wire.has_more


@pytest.mark.parametrize(
    "prefer",
    [
        "wait=1",
        "WAIT=1",
        "wait = 1",
        'wait="1"',
        "respond-async, wait=1",
        "wait=1, respond-async",
        "handling=lenient;wait=1",
    ],
)
def test_a_long_poll_without_a_change_is_304_when_its_time_is_over(service: Running, vm: Vm, prefer: str) -> None:
    """X1: also where the preference stands in a list."""
    with service.wire(vm) as wire:
        hold(service, vm, wire, prefer=prefer)
        answer = wire.read()
        assert (answer.status, answer.headers["etag"], answer.headers["preference-applied"]) == (304, '"1"', "wait")
        assert wire.ask(get()).status == 200
    assert service.held(vm) == 0


@pytest.mark.parametrize("prefer", ["wait=0", "wait", "wait=", "wait=x", "wait=-1", "await=9", "respond-async", ""])
def test_a_preference_that_asks_for_no_wait_is_answered_at_once(service: Running, vm: Vm, prefer: str) -> None:
    """X1."""
    answer = ask(service, vm, poll(1, prefer))
    assert (answer.status, "preference-applied" in answer.headers) == (304, False)


def test_a_poll_that_does_not_know_the_present_incarnation_is_answered_at_once(service: Running, vm: Vm) -> None:
    """X1: and so is one that names none; nothing is preferred on an approval."""
    for request in (poll(7), get(LATEST, "Prefer: wait=60"), post(b'{"StartRequests":[]}', LATEST, "Prefer: wait=60")):
        answer = ask(service, vm, request)
        assert (answer.status, "preference-applied" in answer.headers) == (200, False)


@pytest.mark.parametrize("end", ["close", "shutdown", "reset"])
def test_a_poll_whose_client_has_gone_is_held_no_longer(service: Running, vm: Vm, end: str) -> None:
    """X1: nothing is left behind, neither a waiter nor a connection."""
    with service.wire(vm) as wire:
        hold(service, vm, wire)
        if end == "close":
            wire.close()
        elif end == "shutdown":
            wire.end()
            assert wire.read().status == 304
        else:
            wire.reset()
        assert eventually(lambda: service.held(vm) == 0)
        assert eventually(lambda: not service.is_connected(vm))


def test_requests_behind_a_held_one_are_answered_after_it(service: Running, vm: Vm) -> None:
    """X1."""
    with service.wire(vm) as wire:
        hold(service, vm, wire)
        wire.send(get() + get("x"))
        assert not wire.has_more
        service.schedule(vm)
        assert [wire.read().status for _ in range(3)] == [200, 200, 400]


# A service with other settings


def test_a_wait_over_the_limit_is_cut_down_to_it(tmp_path: Path) -> None:
    """X1."""
    with running(tmp_path, wait_max="300ms") as service:
        vm = service.vm()
        service.enable(vm)
        for prefer in ("wait=3600", "wait=999999999", "wait=9999999999999999999999"):
            with lasts(0.2):
                answer = ask(service, vm, poll(1, prefer))
            assert (answer.status, answer.headers["preference-applied"]) == (304, "wait")


def test_a_connection_is_not_idle_while_a_poll_is_held_nor_just_after(tmp_path: Path) -> None:
    """X1, W3: the answer does not fall into the moment in which the connection is closed."""
    with running(tmp_path, idle_timeout=60, request_timeout=60) as service:
        vm = service.vm()
        service.enable(vm)
        assert eventually(lambda: service.connection_count() == 0)
        with service.wire(vm) as wire:
            hold(service, vm, wire)
            (connection,) = service.connections()
            connection.active_s -= 1000  # as if it had been held for so long
            time.sleep(LOOKED_AT_S)
            assert not wire.has_more
            service.schedule(vm)
            assert wire.read().status == 200
            time.sleep(LOOKED_AT_S)
            assert wire.ask(get()).status == 200


def test_a_stop_of_the_service_releases_every_poll_at_once(tmp_path: Path) -> None:
    """X1, W3: with an answer that says that the connection ends."""
    with running(tmp_path, first_answer_delay=120) as service:
        vm, late = service.vm(), service.vm()
        with service.wire(late) as first:
            first.send(get())
            assert eventually(lambda: service.held(late) == 1)
            with service.wire(vm) as wire:
                wire.send(get())
                assert eventually(lambda: service.held(vm) == 1)
                service.run(service.service.endpoint.stop())
                for each in (first, wire):
                    answer = each.read()
                    assert (answer.status, answer.closes) == (200, True)
                    assert each.is_ended


def test_a_stop_of_the_service_answers_a_long_poll_with_304(service: Running, tmp_path: Path) -> None:
    """X1, W3."""
    with running(tmp_path) as stopping:
        vm = stopping.vm()
        stopping.enable(vm)
        with stopping.wire(vm) as wire:
            hold(stopping, vm, wire)
            stopping.run(stopping.service.endpoint.stop())
            answer = wire.read()
            assert (answer.status, answer.closes) == (304, True)
            assert wire.is_ended


# The first answer


def test_the_first_answer_is_held_as_long_as_the_setting_says(tmp_path: Path) -> None:
    """R67: that only the request that enables is held is tested on virtual time."""
    with running(tmp_path, first_answer_delay="400ms") as service, lasts(0.4):
        assert ask(service, service.vm(), get()).status == 200


def test_a_client_that_leaves_before_its_first_answer_has_enabled_all_the_same(tmp_path: Path) -> None:
    """R67."""
    with running(tmp_path, first_answer_delay=120) as service:
        vm = service.vm()
        with service.wire(vm) as wire:
            wire.send(get())
            assert eventually(lambda: service.held(vm) == 1)
        assert eventually(lambda: service.held(vm) == 0 and service.connection_count() == 0)
        assert ask(service, vm, get()).status == 200


# Virtual time


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[Running]:
    """A service whose time stands still."""
    with running(tmp_path, clock="virtual", first_answer_delay=90, announce_delay=240, disable_after=3600) as started:
        yield started


def advance(service: Running, by_s: float) -> None:
    service.run(service.service.scheduler.advance_clock(timedelta(seconds=by_s)))


def first_answer(service: Running, vm: Vm) -> Answer:
    with service.wire(vm) as wire:
        wire.send(get())
        assert eventually(lambda: service.held(vm) == 1)
        advance(service, 89)
        assert not wire.has_more
        advance(service, 1)
        return wire.read()


def test_on_virtual_time_holds_end_when_virtual_time_has_passed(virtual: Running) -> None:
    """X1, R67: only the request that enables has its answer held."""
    vm = virtual.vm()
    assert first_answer(virtual, vm).status == 200
    with virtual.wire(vm) as wire:
        assert wire.ask(get()).status == 200
        hold(virtual, vm, wire, prefer="wait=120")
        advance(virtual, 119)
        assert not wire.has_more
        advance(virtual, 1)
        assert wire.read().status == 304
        assert virtual.held(vm) == 0


def test_a_held_answer_carries_the_date_at_which_it_is_sent(virtual: Running) -> None:
    """X1, R8: a client may set its clock by it."""
    vm = virtual.vm()
    first_answer(virtual, vm)
    with virtual.wire(vm) as wire:
        hold(virtual, vm, wire, prefer="wait=120")
        advance(virtual, 120)
        answer = wire.read()
        assert (answer.status, answer.headers["preference-applied"]) == (304, "wait")
        assert answer.headers["date"] == wire.ask(get()).headers["date"] == "Tue, 01 Jan 2030 00:03:30 GMT"


def test_events_begin_to_arrive_when_the_delay_after_enabling_is_over(virtual: Running) -> None:
    """R68, R70b: what begins before is neither announced nor delayed, and what waits for longer is announced."""
    vm = virtual.vm()
    first_answer(virtual, vm)
    advance(virtual, 149)
    early = virtual.schedule(vm, None, "user-restart")
    assert early.state == "started"
    advance(virtual, 3000)
    with virtual.wire(vm) as wire:
        assert wire.ask(get()).json == {"DocumentIncarnation": 1, "Events": []}
        virtual.schedule(vm)
        assert wire.ask(get()).json["DocumentIncarnation"] == 2
    other = virtual.vm()
    first_answer(virtual, other)
    assert virtual.schedule(other).state == "scheduled"
    with virtual.wire(other) as wire:
        assert [event["EventStatus"] for event in wire.ask(get()).json["Events"]] == ["Scheduled"]


@pytest.mark.parametrize("kind", ["memory", "app", "approval", "poll"])
def test_every_accepted_request_keeps_the_service_enabled(virtual: Running, kind: str) -> None:
    """R69, X1: a poll counts while it is held."""
    vm = virtual.vm()
    first_answer(virtual, vm)
    request = {"memory": get(), "app": get(LATEST, 'If-None-Match: "1"'), "approval": post(b'{"StartRequests":[]}')}
    with virtual.wire(vm) as wire:
        wire.ask(get())
        advance(virtual, 3500)
        if kind == "poll":
            hold(virtual, vm, wire, prefer="wait=300")
        else:
            assert wire.ask(request[kind]).status in {200, 304}
        advance(virtual, 3500)
        assert virtual.channel(vm).is_enabled
        if kind != "poll":
            advance(virtual, 200)
            assert not virtual.channel(vm).is_enabled


@pytest.mark.parametrize(
    "rejected", [get("x"), get(metadata=None), post(b"{"), get(path="/metadata/versions", version=None)]
)
def test_a_rejected_request_does_not_keep_the_service_enabled(virtual: Running, rejected: bytes) -> None:
    """R69, R70, R46: the next GET enables anew, from the first incarnation."""
    vm = virtual.vm()
    first_answer(virtual, vm)
    advance(virtual, 300)
    virtual.schedule(vm)
    with virtual.wire(vm) as wire:
        assert wire.ask(get()).json["DocumentIncarnation"] == 2
        advance(virtual, 3500)
        wire.ask(rejected)
        advance(virtual, 101)
        assert not virtual.channel(vm).is_enabled
    assert first_answer(virtual, vm).json == {"DocumentIncarnation": 1, "Events": []}
