"""Messages between two processes, one of which may have been taken over."""

from __future__ import annotations

import socket

import pytest

from forewarn.endpoint.pipe import Pipe


@pytest.mark.anyio
async def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    one, other = await Pipe.from_socket(ours), await Pipe.from_socket(theirs)
    sent = [b"", b"a", b"b" * (3 << 20), b"c"]
    for message in sent:
        one.send(message)
    received: list[bytes] = []
    while len(received) < len(sent):
        received += await other.receive()
    assert received == sent
    one.close()
    assert await other.receive() == []


@pytest.mark.anyio
async def test_a_message_that_is_too_large_ends_the_connection_before_it_fills_memory() -> None:
    ours, theirs = socket.socketpair()
    pipe = await Pipe.from_socket(ours)
    with theirs:
        theirs.sendall((1 << 31).to_bytes(4, "big") + b"the first of many bytes")
        with pytest.raises(ConnectionError, match="2147483648 bytes"):
            await pipe.receive()
        assert pipe.is_closed
        assert not pipe._buffer
