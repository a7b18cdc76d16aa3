"""What one VM sends takes its own share, and no more: others' approvals and polls are served meanwhile.

The order is looked at, not the time: the database's writer is held until everything has been sent.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.service import Running, Vm, eventually
from tests.support.wire import LATEST, Wire, approval, get, post

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
    assert begun.wait(10)
    try:
        yield may.set
    finally:
        may.set()


@pytest.fixture
def batches(service: Running, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The VMs whose approvals go into one transaction each; at most four in one."""
    batcher = service.service.engine._approvals
    carry = batcher._carry
    seen: list[list[str]] = []

    async def watched(wishes: Sequence[Any]) -> list[Any]:
        seen.append([approver.vm for _, approver, _ in wishes])
        return await carry(wishes)

    monkeypatch.setattr(batcher, "_carry", watched)
    monkeypatch.setattr(batcher, "_wishes_max", 4)
    return seen


def waiting(service: Running) -> int:
    return service.do(lambda: len(service.service.engine._approvals._waiting))


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
