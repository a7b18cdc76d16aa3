"""Ports that tests reserve: a server that is started by number always gets its own."""

from __future__ import annotations

import socket

import pytest

from tests.support.ports import reserve_port


def test_a_reserved_port_is_for_a_server_that_is_started_by_number_again_and_again() -> None:
    port = reserve_port()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
            taken, _ = server.accept()
            taken.close()


def test_a_reserved_port_is_bound_so_that_the_kernel_hands_it_to_nobody() -> None:
    port = reserve_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
