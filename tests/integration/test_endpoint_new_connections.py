"""A new connection is served alike whether its first request is answered at once or by the event loop (ADR 43)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.endpoint.acceptor import Acceptor
from tests.support.service import Running, Vm, eventually, running
from tests.support.spans import GUARD_S
from tests.support.ways import ACCEPTOR, LOOPS, both_ways
from tests.support.wire import CLOSING, LATEST, Wire, approval, get, post

pytestmark = both_ways

PER_VM_MAX = 3


@pytest.fixture(scope="module", params=LOOPS)
def service(way: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with little room for each VM, on each of the event loops."""
    folder = tmp_path_factory.mktemp("service")
    with running(folder, new_loop=request.param, connections_per_vm_max=PER_VM_MAX) as started:
        yield started


def is_ended_in_order(wire: Wire) -> bool:
    """Return whether the server closes the connection without a reset."""
    return wire.sock.recv(1) == b""


def test_the_services_of_a_module_accept_in_the_way_and_on_the_loop_that_were_chosen(
    service: Running, known: Vm, way: str, request: pytest.FixtureRequest
) -> None:
    """What is answered by the acceptor has no transport until the client sends more."""
    with service.wire(known) as wire:
        assert wire.ask(get()).status == 200
        assert (service.connection_count(), len(service.connections())) == (1, 0 if way == ACCEPTOR else 1)
        assert wire.ask(get()).status == 200
        assert (service.connection_count(), len(service.connections())) == (1, 1)
    assert isinstance(service.loop, asyncio.SelectorEventLoop) == ("asyncio" in request.node.callspec.id)


@pytest.mark.parametrize("request_", [CLOSING, get()], ids=["closing", "kept"])
def test_a_known_request_gets_the_answer_of_the_app_and_is_counted_and_recorded(
    service: Running, known: Vm, request_: bytes
) -> None:
    """R28, R69, W3, W8."""
    service.event(known)
    service.forget()
    answers = []
    before = service.fast()
    for _ in range(2):
        service.channel(known).last_polled_at = None
        with service.wire(known) as wire:
            answers.append(wire.ask(request_))
            assert answers[-1].closes is (request_ == CLOSING)
            if answers[-1].closes:
                assert is_ended_in_order(wire)
        assert service.channel(known).last_polled_at is not None
    assert answers[0].lasting == answers[1].lasting
    assert service.fast() == before + 1
    first, second = service.service.journal.list_exchanges(vm=known.name)[-2:]
    assert (first.headers, first.answer, first.source_address) == (
        second.headers,
        second.answer,
        second.source_address,
    )


def test_a_connection_goes_on_after_its_first_answer(service: Running, known: Vm) -> None:
    """W3: with a known request, with one that is not known, and with an approval."""
    event_id = service.event(known)
    with service.wire(known) as wire:
        assert [wire.ask(get()).status for _ in range(3)] == [200] * 3
    with service.wire(known) as wire:
        assert [wire.ask(each).status for each in (get(), get(LATEST, "X: y"), get())] == [200] * 3
    with service.wire(known) as wire:
        assert wire.ask(get()).status == 200
        assert wire.ask(post(approval(event_id))).status == 200
        assert (service.connection_count(), service.counted(known)) == (1, 1)
        assert wire.ask(CLOSING).closes
        assert is_ended_in_order(wire)
    assert service.is_approved(event_id)
    assert eventually(lambda: (service.connection_count(), service.counted(known)) == (0, 0))


def test_a_client_that_leaves_after_its_answer_is_not_counted_any_more(service: Running, known: Vm) -> None:
    for leave in (Wire.close, Wire.reset):
        wire = service.wire(known)
        assert wire.ask(get()).status == 200
        assert eventually(lambda: (service.connection_count(), service.counted(known)) == (1, 1))
        leave(wire)
        assert eventually(lambda: (service.connection_count(), service.counted(known)) == (0, 0))


@pytest.mark.parametrize("request_", [CLOSING, get()], ids=["closing", "kept"])
def test_a_client_that_ends_its_side_with_the_request_gets_the_answer(
    service: Running, known: Vm, request_: bytes
) -> None:
    """W3."""
    with service.wire(known) as wire:
        wire.send(request_)
        wire.end()
        assert wire.read().status == 200
        assert is_ended_in_order(wire)
    assert eventually(lambda: service.counted(known) == 0)


@pytest.mark.parametrize("cut", [1, 40, len(CLOSING) - 1])
def test_a_known_request_in_two_pieces_is_answered_once(service: Running, known: Vm, cut: int) -> None:
    with service.wire(known) as wire:
        wire.send(CLOSING[:cut])
        assert eventually(lambda: service.connection_count() == 1)
        wire.send(CLOSING[cut:])
        assert wire.read().status == 200
        assert wire.is_ended


def test_pieces_that_follow_at_once_keep_their_order(service: Running, known: Vm) -> None:
    """The first of them may be received before there is a transport, and the next ones by the transport."""
    event_id = service.event(known)
    request = post(approval(event_id))
    for _ in range(30):
        with service.wire(known) as wire:
            for start in range(0, len(request), 50):
                wire.send(request[start : start + 50])
            assert wire.ask(CLOSING).status == 200
            answer = wire.read()
            assert (answer.status, answer.closes) == (200, True)


def test_requests_that_come_together_are_answered_in_order(service: Running, known: Vm) -> None:
    """W3: and what follows a request that closes is not answered."""
    with service.wire(known) as wire:
        wire.send(get() + get(LATEST, "X: y") + CLOSING)
        answers = [wire.read() for _ in range(3)]
        assert [(each.status, each.closes) for each in answers] == [(200, False), (200, False), (200, True)]
        assert wire.is_ended
    with service.wire(known) as wire:
        assert wire.ask(CLOSING + b"more").closes
        assert wire.is_ended


def test_a_long_first_request_is_read_to_its_end(service: Running, known: Vm) -> None:
    """More than is received at once before there is a transport, and than the kernel hands over in one piece."""
    with service.wire(known) as wire:
        assert wire.ask(post(b'{"StartRequests":[]}' + b" " * 200_000)).status == 200
        assert wire.ask(get(LATEST, "X: " + "x" * 9000)).status == 200


# Limits


@pytest.mark.parametrize("request_", [CLOSING, get()], ids=["closing", "kept"])
def test_the_limit_of_a_vm_holds_for_connections_that_are_answered_at_once(
    service: Running, known: Vm, request_: bytes
) -> None:
    traffic = service.service.traffic
    refused, over = traffic.connections_refused, traffic.over_limit["connections_per_vm_max"]
    wires = [service.wire(known) for _ in range(PER_VM_MAX)]
    try:
        assert [wire.ask(get()).status for wire in wires] == [200] * PER_VM_MAX
        with service.wire(known) as wire:
            answer = wire.ask(request_)
            assert (answer.status, answer.closes) == (503, True)
        assert (traffic.connections_refused, traffic.over_limit["connections_per_vm_max"]) == (refused + 1, over + 1)
        entry = service.service.journal.list_exchanges(vm=known.name)[-1]
        assert (entry.source_address, entry.method, entry.status) == (known.address, "", 503)
        assert [wire.ask(get()).status for wire in wires] == [200] * PER_VM_MAX, "what has a place keeps it"
        wires.pop().close()
        assert eventually(lambda: service.counted(known) == PER_VM_MAX - 1)
        with service.wire(known) as wire:
            assert wire.ask(request_).status == 200
    finally:
        for wire in wires:
            wire.close()


def test_the_limit_of_all_counts_connections_that_are_answered_at_once(tmp_path: Path) -> None:
    with running(tmp_path, connections_max=2) as service:
        vms = [service.vm() for _ in range(3)]
        for vm in vms:
            service.enable(vm)
        assert eventually(lambda: service.connection_count() == 0)
        with service.wire(vms[0]) as first, service.wire(vms[1]) as second:
            assert [first.ask(get()).status, second.ask(get()).status] == [200, 200]
            with service.wire(vms[2]) as wire:
                assert wire.ask(get()).status == 503
            assert service.service.traffic.over_limit == {"connections_max": 1}
            first.close()
            assert eventually(lambda: service.connection_count() == 1)
            with service.wire(vms[2]) as wire:
                assert wire.ask(get()).status == 200


def test_a_connection_that_is_idle_after_its_first_answer_is_closed(tmp_path: Path) -> None:
    with running(tmp_path, idle_timeout=1) as service:
        vm = service.vm()
        service.enable(vm)
        assert eventually(lambda: service.connection_count() == 0)
        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200
            assert is_ended_in_order(wire)
        assert eventually(lambda: (service.connection_count(), service.counted(vm)) == (0, 0))


# Ends


def test_the_connections_of_a_socket_end_with_it_and_others_stay(service: Running, known: Vm) -> None:
    listening, address = service.listen_for(known)
    with Wire(address, "127.0.0.1") as answered, Wire(address, "127.0.0.1") as used_twice, service.wire(known) as other:
        assert [wire.ask(get()).status for wire in (answered, used_twice, used_twice, other)] == [200] * 4
        service.do(listening.close)
        service.do(listening.close)
        assert [answered.is_ended, used_twice.is_ended] == [True, True]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=GUARD_S)
        assert service.counted(known) == 1
        assert other.ask(get()).status == 200


def test_a_connection_whose_socket_closes_before_it_has_a_transport_is_ended(service: Running, known: Vm) -> None:
    """The interface may belong to another VM by now."""
    listening, address = service.listen_for(known)
    with Wire(address, "127.0.0.1") as new, Wire(address, "127.0.0.1") as answered:
        assert answered.ask(get()).status == 200

        def accept_and_close() -> None:
            for wire in (new, answered):
                wire.send(get(LATEST, "X: not in the memo"))
            for each in listening.servers:
                if isinstance(each, Acceptor):
                    each._accept_connections()
                    each._answered._receive_more()
            listening.close()

        service.do(accept_and_close)
        assert [new.rest(), answered.rest()] == [b"", b""]
    assert eventually(lambda: (service.connection_count(), service.counted(known)) == (0, 0))


def test_a_stop_ends_connections_that_were_answered(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        vm = service.vm()
        service.enable(vm)
        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200
            service.run(service.service.endpoint.stop())
            assert is_ended_in_order(wire)
        assert service.connection_count() == 0
