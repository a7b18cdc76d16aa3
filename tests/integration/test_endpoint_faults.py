"""Faults on purpose, as a VM meets them (R66), and the journal of what it asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn.core.fault import FAULTS, InjectedFault
from forewarn.core.model import MaintenanceState
from tests.support.control import entries
from tests.support.service import Running, Vm, eventually, running
from tests.support.spans import lasts
from tests.support.ways import both_ways
from tests.support.wire import LATEST, Wire, approval, get, post

pytestmark = both_ways


@pytest.fixture(scope="module")
def service(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that injects faults."""
    with running(tmp_path_factory.mktemp("service"), fault_injection=True) as started:
        yield started


@pytest.fixture(autouse=True)
def _well_again(service: Running) -> Iterator[None]:
    yield
    service.do(service.service.faults.clear)


def inject(service: Running, vm: Vm, kind: str, **how: Any) -> InjectedFault:  # noqa: ANN401 - of a fault
    return service.run(service.service.engine.faults.inject(kind, actor="operator:test", vms=[vm.name], **how))


def ask(service: Running, vm: Vm, request: bytes | None = None) -> Any:  # noqa: ANN401 - an answer
    with service.wire(vm) as wire:
        return wire.ask(request or get())


def all_of(wire: Wire) -> tuple[bytes, bool]:
    """Everything until the end of the connection, and whether that was a reset."""
    received = bytearray()
    try:
        while piece := wire.sock.recv(65536):
            received += piece
    except ConnectionResetError:
        return bytes(received), True
    return bytes(received), False


def reaches(service: Running, vm: Vm) -> bool:
    """Whether there is an answer."""
    try:
        ask(service, vm)
    except (OSError, EOFError):
        return False
    return True


# Status


@pytest.mark.parametrize("kind", ["404", "410", "429", "500", "503"])
def test_a_status_instead_of_the_document(service: Running, vm: Vm, kind: str) -> None:
    """R66."""
    inject(service, vm, kind, count=2)
    with service.wire(vm) as wire:
        first, second, third = (wire.ask(get()) for _ in range(3))
    assert (first.status, second.status, third.status) == (int(kind), int(kind), 200)
    assert isinstance(first.json["error"], str)
    assert ("retry-after" in first.headers) == (kind in {"429", "503"})


def test_an_approval_that_was_refused_by_a_fault_is_none(service: Running, vm: Vm) -> None:
    event_id = service.event(vm)
    inject(service, vm, "503", method="POST", count=1)
    assert ask(service, vm, get()).status == 200
    assert ask(service, vm, post(approval(event_id))).status == 503
    assert not service.is_approved(event_id)
    assert ask(service, vm, post(approval(event_id))).status == 200


# Connections


def test_refused_connections_are_reset_new_or_open(service: Running, vm: Vm) -> None:
    with service.wire(vm) as old:
        assert old.ask(get()).status == 200
        inject(service, vm, "refused")
        old.send(get())
        assert all_of(old) == (b"", True)
    assert not reaches(service, vm)


# Time


def test_a_late_answer_is_the_right_one_and_others_are_not_kept_waiting(service: Running, vm: Vm) -> None:
    inject(service, vm, "late", delay=timedelta(seconds=0.5), count=1)
    with lasts(0.5):
        assert ask(service, vm).json["Events"] == []
    inject(service, vm, "late", delay=timedelta(hours=1), count=1)
    with service.wire(vm) as wire:
        wire.send(get())
        assert ask(service, service.vm()).status == 200
        assert not wire.has_more


def test_no_answer_until_the_client_gives_up(service: Running, vm: Vm) -> None:
    inject(service, vm, "time-out", count=1)
    with service.wire(vm) as wire:
        wire.sock.settimeout(0.3)
        wire.send(get())
        with pytest.raises(TimeoutError):
            wire.read()
    assert ask(service, vm).status == 200


def test_no_answer_and_then_the_end(service: Running, vm: Vm) -> None:
    inject(service, vm, "time-out", delay=timedelta(seconds=0.2), count=1)
    with service.wire(vm) as wire:
        wire.send(get())
        assert wire.sock.recv(1) == b""


# Documents


def distorted(service: Running, vm: Vm, kind: str) -> Any:  # noqa: ANN401 - an answer
    service.event(vm)
    inject(service, vm, kind, count=1)
    return ask(service, vm)


def test_an_empty_body(service: Running, vm: Vm) -> None:
    """R66, R105."""
    answer = distorted(service, vm, "empty")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


def test_half_a_document(service: Running, vm: Vm) -> None:
    answer = distorted(service, vm, "truncated")
    assert int(answer.headers["content-length"]) == len(answer.body)
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.body)


def test_a_document_without_the_member_events(service: Running, vm: Vm) -> None:
    assert set(distorted(service, vm, "no-events").json) == {"DocumentIncarnation"}


def test_a_document_by_another_name(service: Running, vm: Vm) -> None:
    answer = distorted(service, vm, "text-plain")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.json == ask(service, vm).json


def test_members_that_nobody_knows(service: Running, vm: Vm) -> None:
    answer = distorted(service, vm, "unknown-members")
    [strange], [known] = answer.json["Events"], ask(service, vm).json["Events"]
    assert known.items() < strange.items()


def test_a_type_that_nobody_knows(service: Running, vm: Vm) -> None:
    [strange], [known] = distorted(service, vm, "unknown-type").json["Events"], ask(service, vm).json["Events"]
    assert {name for name in known if strange[name] != known[name]} == {"EventType"}


def test_an_event_twice(service: Running, vm: Vm) -> None:
    first, second = distorted(service, vm, "repeated-event").json["Events"]
    assert first == second


def test_the_document_before(service: Running, vm: Vm) -> None:
    before = ask(service, vm)
    answer = distorted(service, vm, "stale")
    assert (answer.json, answer.headers["etag"]) == (before.json, before.headers["etag"])


def test_an_incarnation_that_starts_over(service: Running, vm: Vm) -> None:
    """R46, R101."""
    service.event(vm)
    before = ask(service, vm).json
    inject(service, vm, "incarnation-reset")
    after = ask(service, vm).json
    assert (after["DocumentIncarnation"], after["Events"]) == (1, before["Events"])
    assert before["DocumentIncarnation"] == 2
    assert service.service.faults.all == ()


# Bytes


def test_a_reset_in_the_middle_of_the_body_of_a_document(service: Running, vm: Vm) -> None:
    service.event(vm)
    whole = ask(service, vm)
    inject(service, vm, "reset", count=1)
    with service.wire(vm) as wire:
        wire.send(get())
        received, is_reset = all_of(wire)
    assert is_reset
    assert len(received) < len(whole.head) + len(whole.body)


def test_an_approval_whose_answer_is_lost_was_carried_out(service: Running, vm: Vm) -> None:
    event_id = service.event(vm)
    inject(service, vm, "reset", method="POST", count=1)
    with service.wire(vm) as wire:
        wire.send(post(approval(event_id)))
        _, is_reset = all_of(wire)
    assert is_reset
    assert service.is_approved(event_id)


@pytest.mark.parametrize("kind", ["slow-headers", "slow-body"])
def test_byte_by_byte(service: Running, vm: Vm, kind: str) -> None:
    inject(service, vm, kind, delay=timedelta(seconds=0.5), count=1)
    with lasts(0.4):
        answer = ask(service, vm)
    assert (answer.json["Events"], answer.closes) == ([], True)


def test_an_answer_twice(service: Running, vm: Vm) -> None:
    inject(service, vm, "answered-twice", count=1)
    with service.wire(vm) as wire:
        first = wire.ask(get())
        assert wire.read() == first
        assert wire.sock.recv(1) == b""


# What is announced


@pytest.mark.parametrize(("kind", "notice_s"), [("short-notice", 30), ("no-notice", 0)])
def test_less_notice_than_promised(service: Running, vm: Vm, kind: str, notice_s: int) -> None:
    """R90, A21."""
    inject(service, vm, kind, count=1)
    made = service.schedule(vm)
    assert made.not_before is not None
    assert timedelta(0) <= made.not_before - made.created_at - timedelta(seconds=notice_s) <= timedelta(seconds=1)
    assert made.force_reason == f"fault {kind}"
    assert (made.state is MaintenanceState.STARTED) == (notice_s == 0)
    other = service.vm()
    service.enable(other)
    assert service.schedule(other).notice == timedelta(minutes=15)


# Requests that are held


def poll() -> bytes:
    """A long poll of a client that knows the document, for longer than the test waits."""
    return get(LATEST, 'If-None-Match: "1"', "Prefer: wait=300")


def hold(service: Running, vm: Vm, wire: Wire) -> None:
    """Send a long poll, and wait until it is held."""
    service.enable(vm)
    wire.send(poll())
    assert eventually(lambda: service.held(vm) == 1)


@pytest.mark.parametrize("kind", ["503", "truncated", "refused", "late"])
def test_a_fault_wakes_what_is_held(service: Running, vm: Vm, kind: str) -> None:
    """R66, X1: told that nothing has changed, the client meets the fault with its next request."""
    with service.wire(vm) as wire:
        hold(service, vm, wire)
        inject(service, vm, kind, count=1)
        answer = wire.read()
        assert (answer.status, answer.headers["preference-applied"]) == (304, "wait")
        [fault] = service.service.faults.all
        assert fault.struck == 0


def test_a_long_poll_that_a_fault_strikes_is_not_held(service: Running, vm: Vm) -> None:
    """R66, X1: it shows the fault at once, and in a whole document, for 304 has no body that could be damaged."""
    whole = ask(service, vm).body
    for kind in ("empty", "truncated", "text-plain", "no-events", "unknown-members"):
        inject(service, vm, kind, count=1)
        answer = ask(service, vm, poll())
        assert (answer.status, "preference-applied" in answer.headers) == (200, False)
        assert (answer.body, answer.headers["content-type"]) != (whole, "application/json; charset=utf-8")


def test_a_long_poll_is_cut_or_told_late_at_once(service: Running, vm: Vm) -> None:
    """R66, X1: a fault of time or of bytes does not begin when the wait is over."""
    whole = ask(service, vm)
    inject(service, vm, "reset", count=1)
    with service.wire(vm) as wire:
        wire.send(poll())
        received, is_reset = all_of(wire)
    assert is_reset
    assert received.endswith(whole.body[: len(whole.body) // 2])
    for kind in ("late", "slow-body", "slow-headers"):
        inject(service, vm, kind, delay=timedelta(seconds=0.1), count=1)
        assert ask(service, vm, poll()).body == whole.body
    inject(service, vm, "time-out", delay=timedelta(seconds=0.1), count=1)
    with service.wire(vm) as wire:
        wire.send(poll())
        assert wire.sock.recv(1) == b""


def test_a_fault_wakes_only_whom_it_strikes(service: Running, vm: Vm) -> None:
    """R66, X1: neither another VM, nor anybody where only approvals or later announcements meet it."""
    other = service.vm()
    with service.wire(vm) as wire:
        hold(service, vm, wire)
        inject(service, other, "503")
        inject(service, vm, "503", method="POST")
        inject(service, vm, "short-notice")
        assert service.held(vm) == 1
        assert not wire.has_more


def test_a_fault_for_everybody_wakes_everybody(service: Running) -> None:
    """R66, X1."""
    first, second = service.vm(), service.vm()
    with service.wire(first) as one, service.wire(second) as another:
        hold(service, first, one)
        hold(service, second, another)
        service.run(service.service.engine.faults.inject("503", actor="operator:test"))
        assert [one.read().status, another.read().status] == [304, 304]


# For whom, how often, how long


def test_a_fault_is_for_those_who_are_named(service: Running, vm: Vm) -> None:
    inject(service, vm, "500")
    assert ask(service, service.vm()).status == 200
    assert ask(service, vm).status == 500
    service.run(service.service.engine.faults.clear(actor="operator:test"))
    assert ask(service, vm).status == 200


def test_a_fault_strikes_a_part_of_the_requests(service: Running, vm: Vm) -> None:
    inject(service, vm, "500", rate=0.5)
    with service.wire(vm) as wire:
        statuses = [wire.ask(get()).status for _ in range(200)]
    assert 60 < statuses.count(500) < 140


def test_a_fault_ends_by_itself(tmp_path: Path) -> None:
    with running(tmp_path, fault_injection=True, clock="virtual") as service:
        vm = service.vm()
        inject(service, vm, "500", lasts=timedelta(seconds=30))
        for by_s, status in ((0, 500), (29, 500), (1, 200)):
            service.run(service.service.scheduler.advance_clock(timedelta(seconds=by_s)))
            assert ask(service, vm).status == status


def test_every_kind_of_fault_leaves_a_service_that_goes_on(service: Running, vm: Vm) -> None:
    for kind in FAULTS.values():
        delay = timedelta(seconds=0.1) if kind.delay is not None else None
        inject(service, vm, kind.name, count=1, delay=delay)
        reaches(service, vm)
        service.do(service.service.faults.clear)
    assert ask(service, vm).status == 200


# The control API


def test_an_operator_injects_lists_and_clears(service: Running, api: httpx.Client, vm: Vm) -> None:
    made = api.post("/v1/faults", json={"kind": "late", "vms": [vm.name], "count": 3, "delay_s": 60}).json()
    assert made["delay_s"] == 60
    [listed] = api.get("/v1/faults").json()["items"]
    assert listed == made
    assert api.delete(f"/v1/faults/{made['id']}").json() == {"count": 1}
    assert api.delete(f"/v1/faults/{made['id']}").status_code == 404
    assert api.delete("/v1/faults").json() == {"count": 0}
    kinds = [entry["kind"] for entry in entries(api)[-2:]]
    assert kinds == ["fault-injected", "fault-cleared"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"kind": "sloth"}, 400, "unknown fault 'sloth'"),
        ({"kind": "500", "vms": ["nobody"]}, 404, "vm 'nobody' does not exist"),
        ({"kind": "500", "delay_s": 3}, 400, "fault 500 has no delay"),
        ({"kind": "500", "rate": 0}, 422, "body.rate"),
        ({"kind": "500", "count": 0}, 422, "body.count"),
        ({"kind": "500", "method": "PUT"}, 422, "body.method"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(
    api: httpx.Client, body: dict[str, Any], status: int, words: str
) -> None:
    answer = api.post("/v1/faults", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_too_many_faults_are_refused(api: httpx.Client, vm: Vm) -> None:
    for _ in range(100):
        assert api.post("/v1/faults", json={"kind": "stale", "vms": [vm.name]}).status_code == 201
    answer = api.post("/v1/faults", json={"kind": "stale"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "limit_exceeded")


# The journal


def journal(api: httpx.Client, vm: Vm, after: int = 0) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = api.get("/v1/requests", params={"vm": vm.name, "after": after}).json()["items"]
    return items


def test_requests_are_written_down_whichever_way_they_were_answered(service: Running, api: httpx.Client) -> None:
    vm = service.vm()
    with service.wire(vm) as wire:
        answers = [wire.ask(get()) for _ in range(3)]
        wire.ask(post(approval("00000000-0000-0000-0000-000000000000")))
    found = journal(api, vm)
    assert [(e["method"], e["status"]) for e in found] == [("GET", 200)] * 3 + [("POST", 400)]
    assert [e["answer"] for e in found[:3]] == [answer.body.decode() for answer in answers]
    assert found[0]["target"] == found[2]["target"]
    assert found[0]["headers"] == found[2]["headers"]
    assert (found[0]["vm"], found[0]["source_address"]) == (vm.name, vm.address)
    assert "StartRequests" in found[3]["body"]
    assert [w["code"] for w in found[3]["warnings"]] == ["event-unknown"]
    assert journal(api, vm, after=found[2]["number"]) == found[3:]


def test_a_fault_and_a_reset_stand_in_the_journal(service: Running, api: httpx.Client, vm: Vm) -> None:
    inject(service, vm, "500", count=1)
    ask(service, vm)
    inject(service, vm, "refused", count=1)
    assert not reaches(service, vm)
    assert [(e["fault"], e["status"]) for e in journal(api, vm)][-2:] == [("500", 500), ("refused", 0)]


def test_what_is_no_http_stands_in_the_journal(service: Running, api: httpx.Client, vm: Vm) -> None:
    with service.wire(vm) as wire:
        wire.send(b"hello\r\n\r\n")
        assert wire.read().status == 400
    last = journal(api, vm)[-1]
    assert (last["method"], last["status"], last["warnings"][0]["code"]) == ("", 400, "unreadable")


def test_a_service_that_was_not_started_for_it_injects_nothing(tmp_path: Any) -> None:  # noqa: ANN401 - a path
    with running(tmp_path) as plain, plain.operator() as operator:
        answer = operator.post("/v1/faults", json={"kind": "500"})
        assert answer.status_code == 403
        assert "--fault-injection" in answer.json()["error"]["message"]


def test_a_service_may_keep_no_journal(tmp_path: Any) -> None:  # noqa: ANN401 - a path
    with running(tmp_path, journal_requests_max=0) as plain, plain.operator() as operator:
        vm = plain.vm()
        plain.enable(vm)
        assert operator.get("/v1/requests").json()["items"] == []
