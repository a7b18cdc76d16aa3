"""The connection of a stream: chunks, back-pressure, clients that do not read, and what is released in the end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from forewarn.control.stream_connection import StreamConnection
from forewarn.core.access import Role
from forewarn.core.usage_limits import UsageAccount, UsageLimits, UseKind
from forewarn.net.pool import Pool, PoolLimits, Slot

TAKE_S = 10.0


class Transport:
    """A transport that records what is done to it."""

    def __init__(self) -> None:
        self.written = b""
        self.waiting_bytes = 0
        self.done: list[str] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def pause_reading(self) -> None:
        self.done.append("pause reading")


class Source:
    """A source that counts what it is asked for."""

    def __init__(self) -> None:
        self.resumes = self.closes = 0

    def resume(self) -> None:
        self.resumes += 1

    def close(self) -> None:
        self.closes += 1


class Place:
    """A stream on a connection that is charged to an account."""

    def __init__(self, *, is_paused: bool = False) -> None:
        self.pool = Pool(PoolLimits())
        slot = self.pool.admit("192.0.2.1")
        assert isinstance(slot, Slot)
        slot.make_known()
        budget = UsageLimits(**dict.fromkeys(UsageLimits.__slots__, 9))
        self.account = UsageAccount(name="host:h", role=Role.HOST, budget=budget)
        self.account.acquire(UseKind.CONNECTIONS, 0.0)
        self.connections: set[asyncio.Protocol] = set()
        self.transport = Transport()
        self.source = Source()
        self.stream = StreamConnection(
            cast("Any", self.transport),
            self.source,
            slot=slot,
            account=self.account,
            connections=self.connections,
            is_paused=is_paused,
            take_timeout_s=TAKE_S,
        )
        self.connections.add(self.stream)


def test_lines_are_chunks_and_the_end_closes() -> None:
    place = Place()
    place.stream.write(b"x" * 26 + b"\n")
    place.stream.finish()
    place.stream.shutdown()  # it has ended already
    assert place.transport.written == b"1b\r\n" + b"x" * 26 + b"\n\r\n" + b"0\r\n\r\n"
    assert place.transport.done == ["close"]
    assert not place.stream.is_writable


def test_a_client_that_does_not_read_is_not_written_to_until_it_reads() -> None:
    place = Place(is_paused=True)
    assert not place.stream.is_writable
    place.stream.resume_writing()
    assert (place.stream.is_writable, place.source.resumes) == (True, 1)
    place.stream.pause_writing()
    assert not place.stream.is_writable


def test_a_client_that_takes_too_little_is_dropped() -> None:
    place = Place()
    place.transport.waiting_bytes = 5000
    place.stream.close_if_overdue(0.0)
    place.transport.waiting_bytes = 4999  # a byte now and then is no progress
    place.stream.close_if_overdue(TAKE_S)
    assert place.transport.done == []
    place.stream.close_if_overdue(TAKE_S + 1)
    assert place.transport.done == ["abort"]


def test_a_client_that_takes_what_is_written_is_kept() -> None:
    place = Place()
    for number in range(5):
        place.transport.waiting_bytes = 50_000 - 5000 * number
        place.stream.close_if_overdue(TAKE_S * number)
    place.transport.waiting_bytes = 0
    place.stream.close_if_overdue(TAKE_S * 9)
    place.transport.waiting_bytes = 50_000
    place.stream.close_if_overdue(TAKE_S * 10)
    place.stream.resume_writing()
    place.stream.close_if_overdue(TAKE_S * 10 + TAKE_S * 2)
    assert place.transport.done == []


def test_what_a_client_sends_after_its_request_is_not_read() -> None:
    place = Place()
    place.stream.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert place.transport.done == ["pause reading"]
    assert place.stream.is_writable


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
def test_a_lost_connection_releases_all_that_it_holds(error: Exception | None) -> None:
    place = Place()
    place.stream.connection_lost(error)
    assert (len(place.pool), place.account.used[UseKind.CONNECTIONS]) == (0, 0)
    assert place.connections == set()
    assert place.source.closes == 1
