"""What one VM sends takes its own share, and no more: others' approvals and polls are served meanwhile.

The order is looked at, not the time: the database's writer is held until everything has been sent.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Running, Vm, eventually, running
from tests.support.spans import GUARD_S
from tests.support.ways import both_ways
from tests.support.wire import LATEST, Wire, approval, get, post

pytestmark = both_ways

UNKNOWN = b'{ "error": "Bad request: . EventId is not known" }'


def strange_ids(count: int) -> list[str]:
    return [str(uuid.uuid4()).upper() for _ in range(count)]


@contextlib.contextmanager
def held_writer(service: Running) -> Iterator[Callable[[], None]]:
    """Nothing is committed until the block ends, or what it is given is called."""
    may = threading.Event()
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        may.wait(60)

    service.service._writer.submit(wait)
    assert begun.wait(GUARD_S)
    try:
        yield may.set
    finally:
        may.set()


@pytest.fixture
def batches(service: Running, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The VMs whose approvals go into one transaction each; at most four in one."""
    batcher = service.service.engine.authority._approvals
    carry = batcher._carry_out
    seen: list[list[str]] = []

    async def watched(wishes: Sequence[Any]) -> list[Any]:
        seen.append([approver.vm for _, approver, _ in wishes])
        return await carry(wishes)

    monkeypatch.setattr(batcher, "_carry_out", watched)
    monkeypatch.setattr(batcher, "_requests_max", 4)
    return seen


def waiting(service: Running) -> int:
    return service.do(lambda: len(service.service.engine.authority._approvals._waiting))


def is_working(service: Running) -> bool:
    """Whether a batch of approvals is being carried out."""
    working = service.service.engine.authority._approvals._working
    return working is not None and not working.done()


def crowd(service: Running, vm: Vm, count: int, stack: contextlib.ExitStack) -> list[Wire]:
    return [stack.enter_context(service.wire(vm)) for _ in range(count)]


def test_the_approval_of_a_vm_does_not_wait_for_the_backlog_of_another(
    service: Running, batches: list[list[str]]
) -> None:
    greedy, others = service.vm(), [service.vm() for _ in range(3)]
    greedy_event = service.event(greedy)
    events = [service.event(vm) for vm in others]
    with contextlib.ExitStack() as stack:
        wires = crowd(service, greedy, 12, stack)
        late = [stack.enter_context(service.wire(vm)) for vm in others]
        with held_writer(service):
            wires[0].send(post(approval(greedy_event)))
            assert eventually(lambda: len(batches) == 1)
            for wire in wires[1:]:
                wire.send(post(approval(greedy_event)))
            assert eventually(lambda: waiting(service) == 11)
            for wire, event_id in zip(late, events, strict=True):
                wire.send(post(approval(event_id)))
            assert eventually(lambda: waiting(service) == 14)
        assert [wire.read().status for wire in wires + late] == [200] * 15
    assert batches[0] == [greedy.name]
    assert sorted(batches[1]) == sorted([greedy.name, *(vm.name for vm in others)])


def test_approvals_that_hosts_pass_on_are_served_by_the_vm_that_they_are_for(
    service: Running, batches: list[list[str]]
) -> None:
    greedy, others = service.vm(), [service.vm() for _ in range(3)]
    events = {vm.name: service.event(vm) for vm in (greedy, *others)}

    def pass_on(vm: Vm) -> int:
        with service.operator() as operator:
            body = {"vm": vm.name, "event_ids": [events[vm.name]]}
            return operator.post(f"/v1/hosts/host-{vm.name}/approvals", json=body).status_code

    with ThreadPoolExecutor(16) as pool, held_writer(service):
        answers: list[Future[int]] = [pool.submit(pass_on, greedy)]
        assert eventually(lambda: len(batches) == 1)
        answers += [pool.submit(pass_on, greedy) for _ in range(10)]
        assert eventually(lambda: waiting(service) == 10)
        answers += [pool.submit(pass_on, vm) for vm in others]
        assert eventually(lambda: waiting(service) == 13)
    assert [answer.result() for answer in answers] == [200] * 14
    assert sorted(batches[1]) == sorted([greedy.name, *(vm.name for vm in others)])


def test_ids_that_are_not_the_vms_are_refused_without_the_writer(service: Running) -> None:
    """R55, R85: unknown ids, and those of others; one finished or shown among them changes nothing of that."""
    vm, other = service.vm(), service.vm()
    foreign = service.event(other)
    shown = service.event(vm)
    with held_writer(service), service.wire(vm) as wire:
        for ids in ([foreign], strange_ids(1), [shown, *strange_ids(1)], [shown, foreign], strange_ids(1000)):
            for _ in range(2):
                answer = wire.ask(post(approval(*ids)))
                assert (answer.status, answer.body) == (400, UNKNOWN)
        assert wire.ask(post(b'{"StartRequests":[]}')).status == 200
    assert not service.is_approved(shown)
    assert not service.is_approved(foreign)


def test_a_finished_event_is_still_known_and_an_unknown_one_stays_unknown(service: Running) -> None:
    """R49, R55."""
    vm = service.vm()
    [stranger] = strange_ids(1)
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(post(approval(event_id))).status == 200
        assert wire.ask(post(approval(event_id, stranger))).status == 400
        service.complete(vm)
        assert wire.ask(get()).json["Events"] == []
        for _ in range(2):
            assert wire.ask(post(approval(event_id))).status == 200
            assert wire.ask(post(approval(event_id, stranger))).status == 400
            assert wire.ask(post(approval(stranger))).status == 400


def test_an_approval_that_changes_nothing_any_more_is_answered_without_the_writer(service: Running) -> None:
    """W5: approved again with each poll, also while Started."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(post(approval(event_id))).status == 200
        assert eventually(lambda: event_id in service.channel(vm).settled)
        with held_writer(service):
            for version in ("2017-08-01", LATEST):
                assert wire.ask(post(approval(event_id), version)).status == 200


# Limits of one VM


def refused(service: Running, limit: str) -> int:
    return service.do(lambda: service.service.traffic.over_limit[limit])


def test_approvals_at_work_over_the_limit_are_429_and_another_vm_is_served(service: Running) -> None:
    """R65: with Retry-After; and what was at work is approved all the same."""
    greedy, other = service.vm(), service.vm()
    greedy_event, other_event = service.event(greedy), service.event(other)
    before = refused(service, "approvals_at_work_per_vm_max")
    with contextlib.ExitStack() as stack:
        wires = crowd(service, greedy, 40, stack)
        with held_writer(service):
            for wire in wires:
                wire.send(post(approval(greedy_event)))
            assert eventually(lambda: refused(service, "approvals_at_work_per_vm_max") == before + 8)
            honest = stack.enter_context(service.wire(other))
            honest.send(post(approval(other_event)))
            assert stack.enter_context(service.wire(other)).ask(get()).status == 200
        answers = [wire.read() for wire in wires]
        assert honest.read().status == 200
        late = [answer for answer in answers if answer.status == 429]
        assert [answer.status for answer in answers].count(200) == 32
        assert {(answer.body, answer.headers["retry-after"]) for answer in late} == {
            (b'{ "error": "Too many requests" }', "1")
        }
        assert wires[-1].ask(post(approval(greedy_event))).status == 200
    assert service.is_approved(greedy_event)


def test_a_minute_of_approvals_is_limited_for_each_vm(tmp_path: Path) -> None:
    with running(tmp_path, approval_bytes_per_vm_minute_max=2560) as service:
        greedy, other = service.vm(), service.vm()
        event_id = service.event(greedy)
        with service.wire(greedy) as wire:
            assert [wire.ask(post(approval(*strange_ids(1)))).status for _ in range(10)] == [400] * 10
            answer = wire.ask(post(approval(event_id)))
            assert answer.status == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert wire.ask(get()).status == 200
        assert not service.is_approved(event_id)
        with service.wire(other) as wire:
            assert wire.ask(post(approval(*strange_ids(1)))).status == 400
        assert refused(service, "approval_bytes_per_vm_minute_max") == 1


def test_approvals_that_the_database_has_no_room_for_are_counted_with_the_vm(tmp_path: Path) -> None:
    with running(tmp_path, commands_max=2) as service, contextlib.ExitStack() as stack:
        vms = [service.vm() for _ in range(4)]
        events = [service.event(vm) for vm in vms]
        *before, late = [stack.enter_context(service.wire(vm)) for vm in vms]
        with held_writer(service):
            for number, wire in enumerate(before):
                wire.send(post(approval(events[number])))
                # The first one is on its way to the database; those after it wait.
                assert eventually(lambda n=number: is_working(service) and waiting(service) == n)  # type: ignore[misc]
            answer = late.ask(post(approval(events[-1])))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert refused(service, "commands_max") == 1
        assert [wire.read().status for wire in before] == [200] * 3
        with service.operator() as operator:
            item = operator.get("/v1/limits").json()["items"][0]
        assert (item["name"], item["role"], item["limited"]) == (vms[-1].name, "vm", {"commands_max": 1})


@pytest.mark.parametrize(
    ("limit", "status"), [("body_bytes_per_vm_max", 429), ("body_bytes_max", 503)], ids=["of one vm", "of all"]
)
def test_bodies_that_have_not_ended_are_limited(tmp_path: Path, limit: str, status: int) -> None:
    """Whoever sends the body of an approval slowly has the others wait for nothing."""
    limits: dict[str, Any] = {limit: 1000}
    with running(tmp_path, **limits) as service:
        vm = service.vm()
        event_id = service.event(vm)
        body = approval(event_id) + b" " * 800
        with service.wire(vm) as slow, service.wire(vm) as wire:
            slow.send(post(body)[:-1])
            assert eventually(lambda: service.do(lambda: service.service.traffic.quotas._body_bytes) > 800)
            answer = wire.ask(post(body))
            assert (answer.status, answer.headers["retry-after"]) == (status, "1")
            slow.send(post(body)[-1:])
            assert slow.read().status == 200
            assert wire.ask(post(body)).status == 200
        assert service.do(lambda: service.service.traffic.quotas._body_bytes) == 0


def test_a_refusal_over_a_limit_leaves_the_connection_in_step(tmp_path: Path) -> None:
    """W3: with a body in pieces, with Expect, and with the next request behind it."""
    with running(tmp_path, approval_bytes_per_vm_minute_max=1024) as service:
        vm = service.vm()
        with service.wire(vm) as wire:
            for _ in range(4):
                assert wire.ask(post(b'{"StartRequests":[]}')).status == 200
            wire.send(post(b" " * 100_000)[:50_000])
            wire.send(post(b" " * 100_000)[50_000:] + get())
            assert [wire.read().status for _ in range(2)] == [429, 200]
            chunked = get(LATEST, "Transfer-Encoding: chunked", method="POST") + b"2\r\n{}\r\n0\r\n\r\n"
            wire.send(chunked + get())
            assert [wire.read().status for _ in range(2)] == [429, 200]
        with service.wire(vm) as wire:
            answer = wire.ask(get(LATEST, "Content-Length: 2", "Expect: 100-continue", method="POST"))
            assert (answer.status, answer.closes) == (429, True)
            assert wire.is_ended


def test_strangers_share_the_room_of_one_vm_and_one_address_has_a_part_of_it(service: Running) -> None:
    before = refused(service, "connections_per_unknown_address_max")
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(service.wire(service.stranger)) for _ in range(17)]
        # The kernel keeps silent ones back for a second, and then they may be accepted in any order.
        for wire in wires:
            wire.send(b"G")
        answer = wires[-1].read()
        assert (answer.status, answer.closes, answer.headers["retry-after"]) == (503, True, "1")
        assert refused(service, "connections_per_unknown_address_max") == before + 1
        with service.operator() as operator:
            items = operator.get("/v1/limits").json()["items"]
        assert (service.stranger, "address") in [(item["name"], item["role"]) for item in items]
        assert stack.enter_context(service.wire("127.0.8.9")).ask(get()).status == 404
        assert stack.enter_context(service.wire(service.vm())).ask(get()).status == 200
    assert eventually(lambda: not service.do(lambda: service.service.traffic.unknown_connections))


def test_greedy_vms_together_leave_connections_to_others(tmp_path: Path) -> None:
    """Products of limits count: what one VM may have shrinks with what is free."""
    with running(tmp_path, connections_max=200, connections_per_vm_max=100) as service, contextlib.ExitStack() as stack:
        for number in range(10):
            wires = crowd(service, service.vm(), 20, stack)
            # The kernel keeps silent ones back for a second. Half of the VMs have connections that were answered.
            for wire in wires:
                wire.send(get() if number % 2 else b"G")
            if number % 2:
                assert Counter(wire.read().status for wire in wires) == {200: 16, 503: 4}
            else:
                assert eventually(lambda wires=wires: sum(wire.has_more for wire in wires) == 4)  # type: ignore[misc]
        with service.wire(service.vm()) as wire:
            assert wire.ask(get()).status == 200


def test_an_audience_is_enabled_once_however_many_ask_at_once(service: Running) -> None:
    """R67."""
    vm = service.vm()
    with contextlib.ExitStack() as stack:
        wires = crowd(service, vm, 20, stack)
        with held_writer(service):
            for wire in wires:
                wire.send(get())
            assert eventually(lambda: service.do(lambda: len(service.service.backend.app._enabling)) == 1)
            # Beside it at most one of the service's own commands, such as a probe, waits for the writer.
            assert service.do(lambda: len(service.service.engine.committer._commands)) <= 2
        assert [wire.read().status for wire in wires] == [200] * 20
    assert service.do(lambda: service.service.backend.app._enabling) == {}


# What is honest


def test_honest_clients_meet_no_limit(service: Running) -> None:
    """W5: one that approves each of many events in a request of its own, again with each poll, in PowerShell's form."""
    vm = service.vm()
    event_id = service.event(vm)
    indented = json.dumps({"StartRequests": [{"EventId": event_id}] * 1000}, indent=26).replace("\n", "\r\n").encode()
    assert len(indented) > 128 << 10
    before = service.do(service.service.traffic.over_limit.total)
    with service.wire(vm) as wire:
        assert wire.ask(post(b"\xef\xbb\xbf" + indented)).status == 200
        for _ in range(1000):
            wire.send(post(approval(event_id)))
            assert wire.read().status == 200
    assert service.do(service.service.traffic.over_limit.total) == before


def test_two_hundred_vms_that_approve_at_once_are_all_served(service: Running) -> None:
    vms = [service.vm() for _ in range(200)]
    events = [service.event(vm) for vm in vms]
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(service.wire(vm)) for vm in vms]
        with held_writer(service):
            for wire, event_id in zip(wires, events, strict=True):
                wire.send(post(approval(event_id)))
            assert eventually(lambda: service.do(lambda: len(service.service.traffic.quotas._pending)) == 200)
        assert {wire.read().status for wire in wires} == {200}
