"""The agent's own HTTP server: what it answers, and what strangers cannot do to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from forewarn.agent.listener import Listener, ListenerReply, ListenerRequest
from forewarn.errors import ConfigError
from tests.support.actuated import until
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def echo(incoming: ListenerRequest) -> ListenerReply:
    if incoming.path == "/break":
        raise RuntimeError
    text = f"{incoming.method} {incoming.path} {dict(incoming.query)} {len(incoming.body)}"
    return ListenerReply(body=text.encode(), headers={"x-seen": incoming.headers.get("x-sent", "")})


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener("127.0.0.1:0", echo)
    await listener.open()
    try:
        yield listener
    finally:
        await listener.close()


async def speak(url: str, data: bytes) -> bytes:
    """What comes back to these bytes, until the server closes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    try:
        async with asyncio.timeout(GUARD_S):
            return await reader.read()
    finally:
        writer.close()


async def test_requests_are_answered_one_after_the_other_on_one_connection() -> None:
    async with (
        listening() as listener,
        httpx.AsyncClient(base_url=listener.url, trust_env=False, timeout=GUARD_S) as client,
    ):
        first = await client.get("/a?x=1&y=2", headers={"X-Sent": "here"})
        second = await client.post("/b", content=b"12345")
    assert (first.status_code, first.text, first.headers["x-seen"]) == (200, "GET /a {'x': '1', 'y': '2'} 0", "here")
    assert (second.status_code, second.text) == (200, "POST /b {} 5")


async def test_head_is_answered_without_a_body() -> None:
    async with listening() as listener:
        answer = await speak(listener.url, b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: 12" in head
    assert body == b""


async def test_what_breaks_is_a_500_and_logged_and_the_next_request_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        listening() as listener,
        httpx.AsyncClient(base_url=listener.url, trust_env=False, timeout=GUARD_S) as client,
    ):
        assert (await client.get("/break")).status_code == 500
        assert (await client.get("/a")).status_code == 200
    [record] = [each for each in caplog.records if each.exc_info]
    assert (record.name, record.getMessage()) == ("forewarn.agent", "GET /break failed unexpectedly")
    caplog.clear()


async def test_who_asks_whether_to_go_on_is_told_to() -> None:
    request = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    )
    async with listening() as listener:
        answer = await speak(listener.url, request)
    assert answer.endswith(b"POST /a {} 3")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"z" * 300_000, b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", b"400"),
    ],
    ids=["nonsense", "no host", "no path", "long header", "long body", "broken chunk"],
)
async def test_what_is_malformed_or_too_long_is_refused_and_the_connection_closed(
    request_: bytes, status: bytes
) -> None:
    async with listening() as listener:
        try:
            answer = await speak(listener.url, request_)
        except ConnectionError:
            return  # it was closed while we were still sending
        assert answer == b"" or answer.startswith(b"HTTP/1.1 " + status)
        assert (await speak(listener.url, b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )


async def test_there_is_a_limit_of_connections_and_others_are_served_again_afterwards() -> None:
    async with listening() as listener:
        host, port = listener.url.removeprefix("http://").split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(64)]
        await until(lambda: len(listener._connections) == len(silent))
        with pytest.raises(httpx.TransportError):
            await _get(listener.url)
        for _, writer in silent:
            writer.close()
        await until(lambda: not listener._connections)
        assert (await _get(listener.url)).status_code == 200


async def _get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=GUARD_S) as client:
        return await client.get(url)


async def test_closing_ends_what_is_open() -> None:
    async with listening() as listener:
        host, port = listener.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.sleep(0.01)
    async with asyncio.timeout(GUARD_S):
        assert await reader.read() == b""
    writer.close()


async def test_an_address_in_use_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener(f"127.0.0.1:{taken.getsockname()[1]}", echo)
        with pytest.raises(ConfigError, match=r"cannot listen on 127.0.0.1:\d+: .*another agent"):
            await listener.open()


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot listen on 'nowhere'"):
        Listener("nowhere", echo)
