"""What only the acceptor does (ADR 43): the event loop's server accepts in its own way, and answers nothing before."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from forewarn.endpoint import acceptor
from tests.support.service import Running, Vm, eventually, running
from tests.support.spans import GUARD_S
from tests.support.wire import LATEST, Wire, approval, get, post


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
    listening, address = service.listen_for(vm, sock)
    with Wire(address, "127.0.0.1") as wire:
        assert wire.ask(get()).status == 200
    assert sock.left == 0
    service.do(listening.close)


def test_an_acceptor_that_pauses_can_be_closed(service: Running, vm: Vm, monkeypatch: pytest.MonkeyPatch) -> None:
    sock = Exhausted()
    monkeypatch.setattr(acceptor, "_PAUSE_S", 10 * GUARD_S)
    listening, address = service.listen_for(vm, sock)
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
    assert eventually(lambda: service.counted(vm) == 0)


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


def test_requests_received_before_there_is_a_transport_are_answered_when_the_service_stops(tmp_path: Path) -> None:
    """W3: on a new connection, and on one whose first request was answered; then both are closed."""
    with running(tmp_path) as service:
        vm = service.vm()
        event_id = service.event(vm)
        endpoint = service.service.endpoint
        with service.wire(vm) as answered:
            assert answered.ask(get()).status == 200
            [accepting] = [each for each in endpoint._servers if isinstance(each, acceptor.Acceptor)]

            def accept_and_stop() -> tuple[Wire, asyncio.Task[None]]:
                new = service.wire(vm)
                new.send(get(LATEST, 'If-None-Match: "999"'))
                answered.send(post(approval(event_id)))
                accepting._accept_connections()
                accepting._answered._receive_more()
                return new, asyncio.get_running_loop().create_task(endpoint.stop(GUARD_S))

            new, stopping = service.do(accept_and_stop)
            with new:
                for wire in (new, answered):
                    answer = wire.read()
                    assert (answer.status, answer.closes) == (200, True)
                    assert wire.is_ended
            assert eventually(stopping.done)
        assert service.is_approved(event_id)


def test_a_connection_without_a_request_is_closed_when_the_service_stops(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        endpoint = service.service.endpoint
        [accepting] = [each for each in endpoint._servers if isinstance(each, acceptor.Acceptor)]

        def accept_and_stop() -> tuple[Wire, asyncio.Task[None]]:
            new = service.wire(service.vm())
            new.send(get()[:-1])
            accepting._accept_connections()
            return new, asyncio.get_running_loop().create_task(endpoint.stop(GUARD_S))

        new, stopping = service.do(accept_and_stop)
        with new:
            assert new.rest() == b""
        assert eventually(stopping.done)
        assert service.connection_count() == 0
