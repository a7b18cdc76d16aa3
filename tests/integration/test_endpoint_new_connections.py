"""A new connection is served alike whether its first request is answered at once or by the event loop (ADR 43).

Most tests run over both: the acceptor that Linux has, and the event loop's server, which other systems use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.endpoint import acceptor, server
from forewarn.endpoint.server import ListeningSockets
from tests.support.service import Running, Vm, eventually, running
from tests.support.spans import GUARD_S
from tests.support.wire import LATEST, Wire, approval, get, post

CLOSING = get(LATEST, "Connection: close")
PER_VM_MAX = 3


@pytest.fixture(scope="module", params=["acceptor", "event loop"])
def way_and_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Running]]:
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            choose_way(request.param, patch)
            folder = tmp_path_factory.mktemp("either")
            service = stack.enter_context(running(folder, connections_per_vm_max=PER_VM_MAX))
        yield request.param, service


def choose_way(way: str, patch: pytest.MonkeyPatch) -> None:
    if way == "event loop":
        patch.setattr(server, "defer_accepting", lambda _sock: False)


@pytest.fixture
def either(way_and_service: tuple[str, Running], monkeypatch: pytest.MonkeyPatch) -> Running:
    """A service that accepts in one of the two ways, with little room for each VM."""
    way, service = way_and_service
    choose_way(way, monkeypatch)
    return service


@pytest.fixture
def known(either: Running) -> Vm:
    """A VM whose requests are in the memo."""
    vm = either.vm()
    for request in (get(), CLOSING):
        with either.wire(vm) as wire:
            assert wire.ask(request).status == 200
    assert {get(), CLOSING} <= either.service.traffic.memo.keys()
    assert eventually(lambda: count(either) == 0)
    return vm


def count(service: Running) -> int:
    """Number of open connections, with and without a transport."""
    return service.do(lambda: service.service.endpoint.connection_count)


def used(service: Running, vm: Vm) -> int:
    """Number of connections counted for the VM."""
    caller = service.service.identity.resolve_caller(vm.address, "")
    assert caller is not None
    return caller.usage.connections


def is_ended_in_order(wire: Wire) -> bool:
    """Return whether the server closes the connection without a reset."""
    return wire.sock.recv(1) == b""


@pytest.mark.parametrize("request_", [CLOSING, get()], ids=["closing", "kept"])
def test_a_known_request_gets_the_answer_of_the_app_and_is_counted_and_recorded(
    either: Running, known: Vm, request_: bytes
) -> None:
    """R28, R69, W3, W8."""
    either.event(known)
    either.forget()
    answers = []
    before = either.fast()
    for _ in range(2):
        either.channel(known).last_polled_at = None
        with either.wire(known) as wire:
            answers.append(wire.ask(request_))
            assert answers[-1].closes is (request_ == CLOSING)
            if answers[-1].closes:
                assert is_ended_in_order(wire)
        assert either.channel(known).last_polled_at is not None
    assert answers[0].lasting == answers[1].lasting
    assert either.fast() == before + 1
    first, second = either.service.journal.list_exchanges(vm=known.name)[-2:]
    assert (first.headers, first.answer, first.source_address) == (
        second.headers,
        second.answer,
        second.source_address,
    )


def test_a_connection_goes_on_after_its_first_answer(either: Running, known: Vm) -> None:
    """W3: with a known request, with one that is not known, and with an approval."""
    event_id = either.event(known)
    with either.wire(known) as wire:
        assert [wire.ask(get()).status for _ in range(3)] == [200] * 3
    with either.wire(known) as wire:
        assert [wire.ask(each).status for each in (get(), get(LATEST, "X: y"), get())] == [200] * 3
    with either.wire(known) as wire:
        assert wire.ask(get()).status == 200
        assert wire.ask(post(approval(event_id))).status == 200
        assert (count(either), used(either, known)) == (1, 1)
        assert wire.ask(CLOSING).closes
        assert is_ended_in_order(wire)
    assert either.is_approved(event_id)
    assert eventually(lambda: (count(either), used(either, known)) == (0, 0))


def test_a_client_that_leaves_after_its_answer_is_not_counted_any_more(either: Running, known: Vm) -> None:
    for leave in (Wire.close, Wire.reset):
        wire = either.wire(known)
        assert wire.ask(get()).status == 200
        assert eventually(lambda: (count(either), used(either, known)) == (1, 1))
        leave(wire)
        assert eventually(lambda: (count(either), used(either, known)) == (0, 0))


@pytest.mark.parametrize("request_", [CLOSING, get()], ids=["closing", "kept"])
def test_a_client_that_ends_its_side_with_the_request_gets_the_answer(
    either: Running, known: Vm, request_: bytes
) -> None:
    """W3."""
    with either.wire(known) as wire:
        wire.send(request_)
        wire.end()
        assert wire.read().status == 200
        assert is_ended_in_order(wire)
    assert eventually(lambda: used(either, known) == 0)


@pytest.mark.parametrize("cut", [1, 40, len(CLOSING) - 1])
def test_a_known_request_in_two_pieces_is_answered_once(either: Running, known: Vm, cut: int) -> None:
    with either.wire(known) as wire:
        wire.send(CLOSING[:cut])
        assert eventually(lambda: count(either) == 1)
        wire.send(CLOSING[cut:])
        assert wire.read().status == 200
        assert wire.is_ended


def test_pieces_that_follow_at_once_keep_their_order(either: Running, known: Vm) -> None:
    """The first of them may be received before there is a transport, and the next ones by the transport."""
    event_id = either.event(known)
    request = post(approval(event_id))
    for _ in range(30):
        with either.wire(known) as wire:
            for start in range(0, len(request), 50):
                wire.send(request[start : start + 50])
            assert wire.ask(CLOSING).status == 200
            answer = wire.read()
            assert (answer.status, answer.closes) == (200, True)


def test_requests_that_come_together_are_answered_in_order(either: Running, known: Vm) -> None:
    """W3: and what follows a request that closes is not answered."""
    with either.wire(known) as wire:
        wire.send(get() + get(LATEST, "X: y") + CLOSING)
        answers = [wire.read() for _ in range(3)]
        assert [(each.status, each.closes) for each in answers] == [(200, False), (200, False), (200, True)]
        assert wire.is_ended
    with either.wire(known) as wire:
        assert wire.ask(CLOSING + b"more").closes
        assert wire.is_ended


def test_a_long_first_request_is_read_to_its_end(either: Running, known: Vm) -> None:
    """More than is received at once before there is a transport, and than the kernel hands over in one piece."""
    with either.wire(known) as wire:
        assert wire.ask(post(b'{"StartRequests":[]}' + b" " * 200_000)).status == 200
        assert wire.ask(get(LATEST, "X: " + "x" * 9000)).status == 200


# Limits


@pytest.mark.parametrize("request_", [CLOSING, get()], ids=["closing", "kept"])
def test_the_limit_of_a_vm_holds_for_connections_that_are_answered_at_once(
    either: Running, known: Vm, request_: bytes
) -> None:
    refused = either.service.traffic.connections_refused
    wires = [either.wire(known) for _ in range(PER_VM_MAX)]
    try:
        assert [wire.ask(get()).status for wire in wires] == [200] * PER_VM_MAX
        with either.wire(known) as wire:
            answer = wire.ask(request_)
            assert (answer.status, answer.closes) == (503, True)
        assert either.service.traffic.connections_refused == refused + 1
        assert [wire.ask(get()).status for wire in wires] == [200] * PER_VM_MAX, "what has a place keeps it"
        wires.pop().close()
        assert eventually(lambda: used(either, known) == PER_VM_MAX - 1)
        with either.wire(known) as wire:
            assert wire.ask(request_).status == 200
    finally:
        for wire in wires:
            wire.close()


def test_the_limit_of_all_counts_connections_that_are_answered_at_once(tmp_path: Path) -> None:
    with running(tmp_path, connections_max=2) as service:
        vms = [service.vm() for _ in range(3)]
        for vm in vms:
            service.enable(vm)
        assert eventually(lambda: count(service) == 0)
        with service.wire(vms[0]) as first, service.wire(vms[1]) as second:
            assert [first.ask(get()).status, second.ask(get()).status] == [200, 200]
            with service.wire(vms[2]) as wire:
                assert wire.ask(get()).status == 503


def test_a_connection_that_is_idle_after_its_first_answer_is_closed(tmp_path: Path) -> None:
    with running(tmp_path, idle_timeout=1) as service:
        vm = service.vm()
        service.enable(vm)
        assert eventually(lambda: count(service) == 0)
        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200
            assert is_ended_in_order(wire)
        assert (count(service), used(service, vm)) == (0, 0)


# Faults


@pytest.mark.parametrize("request_", [CLOSING, get()], ids=["closing", "kept"])
def test_a_fault_strikes_known_requests_on_new_connections(tmp_path: Path, request_: bytes) -> None:
    with running(tmp_path, fault_injection=True) as service:
        vm = service.vm()
        for _ in range(2):
            with service.wire(vm) as wire:
                assert wire.ask(request_).status == 200
        with service.wire(vm) as kept:
            assert kept.ask(get()).status == 200
            service.do(lambda: service.service.traffic.faults.inject("refused", count=2))
            for wire in (service.wire(vm), kept):
                with wire:
                    wire.send(request_)
                    with pytest.raises(ConnectionResetError):
                        wire.sock.recv(1)
        with service.wire(vm) as wire:
            assert wire.ask(request_).status == 200


# Ends


def open_for(service: Running, vm: Vm, sock: socket.socket | None = None) -> tuple[ListeningSockets, tuple[str, int]]:
    """Listen on another socket, whose connections are all of one VM."""
    sock = sock or socket.socket()
    sock.bind(("127.0.0.1", 0))
    listening = service.run(service.service.endpoint.listen([sock], vm.name))
    return listening, sock.getsockname()


def test_the_connections_of_a_socket_end_with_it_and_others_stay(either: Running, known: Vm) -> None:
    listening, address = open_for(either, known)
    with Wire(address, "127.0.0.1") as answered, Wire(address, "127.0.0.1") as used_twice, either.wire(known) as other:
        assert [wire.ask(get()).status for wire in (answered, used_twice, used_twice, other)] == [200] * 4
        either.do(listening.close)
        either.do(listening.close)
        assert [answered.is_ended, used_twice.is_ended] == [True, True]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=GUARD_S)
        assert used(either, known) == 1
        assert other.ask(get()).status == 200


def test_a_connection_whose_socket_closes_before_it_has_a_transport_is_ended(either: Running, known: Vm) -> None:
    """The interface may belong to another VM by now."""
    listening, address = open_for(either, known)
    with Wire(address, "127.0.0.1") as new, Wire(address, "127.0.0.1") as answered:
        assert answered.ask(get()).status == 200

        def accept_and_close() -> None:
            for wire in (new, answered):
                wire.send(get(LATEST, "X: not in the memo"))
            for each in listening.servers:
                if isinstance(each, acceptor.Acceptor):
                    each._accept_connections()
                    each._answered._receive_more()
            listening.close()

        either.do(accept_and_close)
        assert [new.rest(), answered.rest()] == [b"", b""]
    assert eventually(lambda: (count(either), used(either, known)) == (0, 0))


def test_a_stop_ends_connections_that_were_answered(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        vm = service.vm()
        service.enable(vm)
        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200
            service.run(service.service.endpoint.stop())
            assert is_ended_in_order(wire)
        assert count(service) == 0


# The acceptor


class Exhausted(socket.socket):
    """A socket that twice finds no file descriptor for a connection."""

    left = 2

    def _accept(self) -> tuple[int, object]:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        accepted: tuple[int, object] = super()._accept()  # type: ignore[misc]
        return accepted


def test_a_lack_of_descriptors_delays_a_connection_and_loses_none(service: Running, vm: Vm) -> None:
    sock = Exhausted()
    listening, address = open_for(service, vm, sock)
    with Wire(address, "127.0.0.1") as wire:
        assert wire.ask(get()).status == 200
    assert sock.left == 0
    service.do(listening.close)


def test_an_acceptor_that_pauses_can_be_closed(service: Running, vm: Vm, monkeypatch: pytest.MonkeyPatch) -> None:
    sock = Exhausted()
    monkeypatch.setattr(acceptor, "_PAUSE_S", 10 * GUARD_S)
    listening, address = open_for(service, vm, sock)
    with Wire(address, "127.0.0.1") as wire:
        wire.send(get())
        assert eventually(lambda: sock.left < 2)
        service.do(listening.close)
        assert wire.is_ended


def test_a_response_that_cannot_be_sent_whole_is_cut_off_by_a_reset(
    service: Running, vm: Vm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_has_sent", lambda _sock, _response, _flags: False)
    with service.wire(vm) as wire:
        wire.send(get())
        with pytest.raises(ConnectionResetError):
            wire.sock.recv(1)
    assert eventually(lambda: used(service, vm) == 0)


def test_a_response_that_may_not_fit_into_the_send_buffer_gets_a_transport(
    service: Running, vm: Vm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_RESPONSE_BYTES_MAX", 10)
    fast = service.fast()
    with service.wire(vm) as wire:
        assert wire.ask(get()).status == 200
        assert [connection.peer for connection in service.connections()].count(vm.address) == 1
    assert service.fast() == fast + 1


def test_only_a_tcp_socket_can_defer_accepting() -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        assert acceptor.defer_accepting(tcp)
        assert not acceptor.defer_accepting(unix)
    assert not acceptor.defer_accepting(object())
