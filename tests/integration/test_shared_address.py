"""Several sockets on one address, between which the kernel chooses by the address of the caller."""

from __future__ import annotations

import socket
from collections import Counter, defaultdict

import pytest

from forewarn.errors import ConfigError
from forewarn.net.listen_address import bind_listener
from forewarn.net.shared_address import bind_shared_listeners
from tests.support.spans import GUARD_S


def chosen(sockets: list[socket.socket], source: str) -> int:
    """Return which socket a connection from this address reaches."""
    with socket.create_connection(sockets[0].getsockname()[:2], GUARD_S, source_address=(source, 0)):
        for at, sock in enumerate(sockets):
            try:
                connection, _ = sock.accept()
            except BlockingIOError:
                continue
            connection.close()
            return at
    raise AssertionError("none")


@pytest.mark.parametrize("count", [2, 3, 8])
def test_one_address_always_reaches_the_same_socket_and_many_reach_all(count: int) -> None:
    # Every other address, as where odd ones belong to another network: the last bits must not decide alone.
    sources = [f"127.0.10.{number}" for number in range(2, 202, 2)]
    found: dict[str, set[int]] = defaultdict(set)
    with bind_shared_listeners("127.0.0.1", 0, count) as sockets:
        for source in sources * 3:
            found[source].add(chosen(sockets, source))
    assert {len(reached) for reached in found.values()} == {1}
    spread = Counter(next(iter(reached)) for reached in found.values())
    assert set(spread) == set(range(count))
    assert max(spread.values()) <= 2 * len(sources) // count


def test_ipv6_callers_have_a_socket_of_their_own_too() -> None:
    with bind_shared_listeners("::1", 0, 4) as sockets:
        assert len({chosen(sockets, "::1") for _ in range(8)}) == 1


def test_the_choice_stays_when_a_process_listens_on_its_socket_again() -> None:
    with bind_shared_listeners("127.0.0.1", 0, 2) as sockets:
        before = [chosen(sockets, f"127.0.10.{number}") for number in range(1, 40)]
        for sock in reversed(sockets):
            sock.listen(100)
        with sockets[0].dup(), sockets[1].dup():
            assert [chosen(sockets, f"127.0.10.{number}") for number in range(1, 40)] == before


def test_an_address_in_use_is_refused_whether_it_is_shared_or_not() -> None:
    with bind_shared_listeners("127.0.0.1", 0, 2) as sockets:
        host, port = sockets[0].getsockname()
        with pytest.raises(ConfigError, match="Address already in use"), bind_shared_listeners(host, port, 2):
            pass
        with pytest.raises(ConfigError, match="Address already in use"), bind_listener(host, port):
            pass
    with bind_listener(host, port), pytest.raises(ConfigError, match="in use"), bind_shared_listeners(host, port, 2):
        pass
