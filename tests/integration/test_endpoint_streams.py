"""Requests as TCP brings them: in pieces, in heaps, by clients that do not read; and a changed inventory (W3, W8)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Running, Vm, eventually, inventory, running
from tests.support.spans import GUARD_S
from tests.support.ways import both_ways
from tests.support.wire import LATEST, Wire, approval, get, post

pytestmark = both_ways

NOTHING = b'{"StartRequests":[]}'
REQUEST_TIMEOUT_S = 0.5
PIPELINE_MAX = 64


@pytest.fixture(scope="module")
def impatient(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that does not wait long."""
    folder = tmp_path_factory.mktemp("impatient")
    with running(folder, request_timeout=REQUEST_TIMEOUT_S) as started:
        yield started


# Pieces and heaps


@pytest.mark.parametrize(
    "request_", [get(), post(NOTHING), get(LATEST, "Connection: close")], ids=["get", "post", "close"]
)
def test_a_request_cut_anywhere_is_answered_as_if_it_had_come_whole(service: Running, request_: bytes) -> None:
    """W8: on a connection of the hot path, and on one that has seen the parser."""
    vm = service.vm()
    with service.wire(vm) as wire:
        assert wire.ask(get()).status == 200
        whole = wire.ask(request_)
    for cut in range(1, len(request_)):
        with service.wire(vm) as wire:
            if cut % 2:
                wire.ask(get())
            wire.send(request_[:cut])
            # What follows makes sure that the first piece has been read by itself.
            service.do(lambda: None)
            assert wire.ask(request_[cut:]).lasting == whole.lasting
            assert whole.closes or wire.ask(get()).status == 200


def test_a_request_that_comes_byte_by_byte_is_answered(service: Running) -> None:
    """R6."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        for byte in post(approval(event_id)):
            wire.send(bytes([byte]))
        assert wire.read().status == 200
    assert service.is_approved(event_id)


@pytest.mark.parametrize("count", [2, 3, 50])
def test_pipelined_requests_are_answered_in_order(service: Running, count: int) -> None:
    """R6."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        for _ in range(2):
            wire.send(get() * count + post(approval(event_id)) + get("x") + get("2017-08-01"))
            answers = [wire.read() for _ in range(count + 3)]
            assert [answer.status for answer in answers] == [200] * (count + 1) + [400, 200]
            assert answers[0].json["Events"][0]["EventId"] == event_id
            assert answers[-1].json["Events"][0]["EventStatus"] == "Started"
        assert not wire.has_more


def test_more_pipelined_requests_than_are_taken_end_with_a_closing_answer(service: Running) -> None:
    """W3: a heap of requests cannot fill the memory."""
    vm = service.vm()
    service.enable(vm)
    with service.wire(vm) as wire:
        wire.send(get() * 1000)
        answers = [wire.read()]
        while not answers[-1].closes:
            answers.append(wire.read())
        assert PIPELINE_MAX <= len(answers) <= PIPELINE_MAX + 2
        assert {answer.status for answer in answers} == {200}


def test_old_http_is_answered_and_closed(service: Running) -> None:
    """R6, W3."""
    with service.wire(service.vm()) as wire:
        answer = wire.ask(
            f"GET /metadata/scheduledevents?api-version={LATEST} HTTP/1.0\r\nMetadata: true\r\n\r\n".encode()
        )
        assert (answer.status, answer.closes) == (200, True)
        assert wire.is_ended


def test_a_connection_asked_to_close_after_an_approval_says_so_and_does(service: Running) -> None:
    """W3, R6."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        answer = wire.ask(post(approval(event_id), LATEST, "Connection: close"))
        assert (answer.status, answer.closes) == (200, True)
        assert wire.is_ended


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_client_that_ends_its_side_after_the_request_gets_its_answer(
    service: Running, method: str, is_first: bool
) -> None:
    """R6: on a first request and a later one."""
    vm = service.vm()
    with service.wire(vm) as wire:
        if not is_first:
            wire.ask(get())
        wire.send(get() if method == "GET" else post(NOTHING))
        wire.end()
        assert wire.read().status == 200
        assert wire.is_ended


def test_a_client_that_ends_its_side_teaches_nobody_to_close(service: Running) -> None:
    """W3: the next client with the same bytes keeps its connection."""
    vm = service.vm()
    service.enable(vm)
    for _ in range(5):
        service.forget()
        with service.wire(vm) as wire:
            wire.send(get())
            wire.end()
            wire.read()
        with service.wire(vm) as wire:
            assert not any(wire.ask(get()).closes for _ in range(3))


# Clients that do not read


@contextmanager
def watched(service: Running, vm: Vm) -> Iterator[list[tuple[int, int]]]:
    """What waits in the VM's connections, looked at all the time: bytes to be written, and requests to be answered."""
    seen: list[tuple[int, int]] = []

    async def watch() -> None:
        while True:
            for connection in service.service.endpoint.open_connections:
                if connection.peer == vm.address and not connection._transport.is_closing():
                    waiting = 0 if connection._inner is None else len(connection._inner.pipeline)
                    seen.append((connection._transport.get_write_buffer_size(), waiting))
            await asyncio.sleep(0.001)

    watching = asyncio.run_coroutine_threadsafe(watch(), service.loop)
    try:
        yield seen
    finally:
        watching.cancel()


def numb(service: Running, vm: Vm) -> Wire:
    """A connection whose client has hardly any room for answers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind((vm.address, 0))
    sock.connect(service.address)
    sock.settimeout(GUARD_S)
    return Wire.over(sock)


@pytest.mark.parametrize("heap", [1, 40, 3000])
def test_nothing_piles_up_for_a_client_that_sends_and_does_not_read(impatient: Running, heap: int) -> None:
    """W3: on neither path, however the requests come; in the end it is dropped."""
    vm = impatient.wide[heap % 7]
    document = impatient.fill()
    with watched(impatient, vm) as seen, numb(impatient, vm) as wire:
        wire.ask(get())
        with pytest.raises(ConnectionError):  # noqa: PT012 - it is not known which turn is the last
            while True:
                wire.sock.sendall(get() * heap)
        assert max(size for size, _ in seen) < (1 << 16) + 2 * len(document)
        assert max(waiting for _, waiting in seen) <= PIPELINE_MAX
    assert eventually(lambda: impatient.connection_count() == 0)


@pytest.mark.parametrize("count", [1, 60])
def test_a_client_that_does_not_take_its_answers_is_dropped_after_the_time_out(impatient: Running, count: int) -> None:
    """W8: whether it asked for one after the other or for all at once; others are served meanwhile."""
    vm, other = impatient.wide[8 + count % 7], impatient.vm()
    impatient.fill()
    with numb(impatient, vm) as wire:
        wire.ask(get())
        for _ in range(60 // count):
            wire.sock.sendall(get() * count)
        with impatient.wire(other) as quick:
            assert quick.ask(get()).status == 200
        assert eventually(lambda: not impatient.is_connected(vm))


def test_an_idle_client_that_has_not_taken_all_is_dropped_too(tmp_path: Path) -> None:
    """W8: closing must not wait for it for ever."""
    with running(tmp_path, request_timeout=REQUEST_TIMEOUT_S, idle_timeout=1) as service:
        document = service.fill()
        with numb(service, service.wide[0]) as wire:
            wire.ask(get())
            for _ in range((330 << 10) // len(document)):
                wire.send(get())
            assert eventually(lambda: service.connection_count() == 0)


def test_another_request_has_its_own_time_to_arrive(service: Running) -> None:
    """W8: the sweeps of a busy connection may always meet a request that is only half there."""
    vm = service.vm()
    first, second = post(NOTHING), post(NOTHING)
    half = len(first) // 2
    with service.wire(vm) as wire:
        wire.ask(get())
        (connection,) = [each for each in service.connections() if each.peer == vm.address]

        def sweep_twice() -> None:
            connection.data_received(first[:half])
            connection.close_if_overdue(0.0)
            connection.data_received(first[half:] + second[:half])
            connection.close_if_overdue(3600.0)
            connection.data_received(second[half:])

        service.do(sweep_twice)
        statuses = [wire.read().status for _ in range(2)]
    assert 408 not in statuses
    assert len(set(statuses)) == 1


def test_a_client_that_is_slow_to_read_gets_every_answer(service: Running) -> None:
    """W8: with the requests one after the other, and all at once."""
    document = service.fill()
    for count in (1, 30):
        with numb(service, service.wide[0]) as wire:
            for _ in range(60 // count):
                wire.send(get() * count)
            for _ in range(60):
                assert wire.read().body == document
            assert wire.ask(get()).body == document


# Another inventory


def moved(**names: str) -> bytes:
    """The inventory, with addresses handed to other VMs; "" leaves a VM without one."""
    content: dict[str, Any] = inventory()
    for vm in content["vms"]:
        if vm["name"].replace("-", "_") in names:
            address = names[vm["name"].replace("-", "_")]
            vm["addresses"] = [address] if address else []
    return json.dumps(content).encode()


def test_after_a_change_of_the_inventory_a_kept_connection_is_answered_as_who_calls_now(tmp_path: Path) -> None:
    """R2, invariant 8: from the next request on, also from memory; the VM that is gone gets 404."""
    with running(tmp_path) as service, service.operator() as operator:
        one, other = service.vm(), service.vm()
        service.event(one)
        event_id = service.event(other)
        with (
            service.wire(one) as kept,
            service.wire(other) as left,
            service.wire(one) as silent,
            service.wire(one) as asked_once,
            service.wire(other) as left_early,
        ):
            times = [(kept, one, 2), (left, other, 2), (silent, one, 2), (asked_once, one, 1), (left_early, other, 1)]
            for wire, vm, count in times:
                for _ in range(count):
                    assert wire.ask(get()).json["Events"][0]["Resources"] == [vm.name]
            swapped = moved(vm_0="", vm_1=one.address)
            assert operator.put("/v1/inventory?remove_missing=true", content=swapped).status_code == 200
            for _ in range(3):
                for wire in (kept, asked_once):
                    assert wire.ask(get()).json["Events"][0]["Resources"] == [other.name]
                for wire in (left, left_early):
                    assert wire.ask(get()).status == 404
            name = get("2021-02-01&format=text", path="/metadata/instance/compute/name")
            assert silent.ask(name).body == other.name.encode()
            assert kept.ask(post(approval(event_id))).status == 200
            assert operator.put("/v1/inventory?remove_missing=true", content=moved()).status_code == 200
            assert kept.ask(get()).json["Events"][0]["Resources"] == [one.name]
            assert left.ask(get()).json["Events"][0]["EventStatus"] == "Started"
        assert service.is_approved(event_id)
        assert eventually(lambda: service.connection_count() == 0)
        callers = service.service.identity._callers.values()
        assert {caller.usage.connections for caller in callers} == {0}
        assert service.service.traffic.unknown_connections.total() == 0


def test_a_body_that_was_on_its_way_when_the_inventory_changed_counts_for_who_calls_now(tmp_path: Path) -> None:
    """R49, invariant 8."""
    with running(tmp_path) as service, service.operator() as operator:
        vm = service.vm()
        event_id = service.event(vm)
        request = post(approval(event_id))
        with service.wire(vm) as wire:
            wire.send(request[:-5])
            assert eventually(lambda: any(c._inner is not None for c in service.connections()))
            assert operator.put("/v1/inventory?remove_missing=true", content=moved()).status_code == 200
            assert wire.ask(request[-5:]).status == 200
        assert service.is_approved(event_id)
