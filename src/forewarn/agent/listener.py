"""A small HTTP server for a few callers: h11 parses, asyncio does the I/O, everything has a limit.

The agent must stay light, so it does without the server's libraries. Its answers are small and seldom requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

import h11

from forewarn.errors import ConfigError
from forewarn.net.listen_address import parse_listen
from forewarn.util.tasks import cancel_tasks

__all__ = ["Answering", "Listener", "ListenerReply", "ListenerRequest"]

_log = logging.getLogger("forewarn.agent")

_BODY_SIZE_BYTES_MAX = 256 << 10
_HEADER_SIZE_BYTES_MAX = 16 << 10
_CONNECTIONS_MAX = 64
_REQUEST_S = 10.0
_IDLE_S = 60.0
_CHUNK_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRequest:
    """A request.

    Attributes:
        headers: Headers, with names in lower case.
        query: Last value of each parameter.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerReply:
    """A response."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Answering: TypeAlias = Callable[[ListenerRequest], Awaitable[ListenerReply]]
"""Answers a request; an exception becomes a 500."""


class Listener:
    """HTTP server on one address.

    Args:
        address: Address, for example ``127.0.0.1:9469``.
        handle_request: Function that answers each request.

    Raises:
        ConfigError: The address is invalid.
    """

    def __init__(self, address: str, handle_request: Answering) -> None:
        self._host, self._port = parse_listen(address)
        self._handle_request = handle_request
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """URL at which it answers, once open."""
        assert self._server is not None  # noqa: S101 - open() was called
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def open(self) -> None:
        """Begin to answer.

        Raises:
            ConfigError: The address cannot be used.
        """
        try:
            self._server = await asyncio.start_server(
                self._accept_connection, self._host, self._port, limit=_CHUNK_BYTES
            )
        except OSError as error:
            reason = error.strerror or error
            msg = f"cannot listen on {self._host}:{self._port}: {reason}; if another agent runs here, change `listen`"
            raise ConfigError(msg) from error

    async def close(self) -> None:
        """Stop answering, and end all connections."""
        if self._server is None:
            return
        self._server.close()
        await cancel_tasks(*self._connections)
        self._server = None

    async def _accept_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this as a task
        if len(self._connections) >= _CONNECTIONS_MAX:
            # Reset the connection: an answer would cost the resources that the limit protects.
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._serve_connection(reader, writer)
        except (OSError, h11.ProtocolError):
            pass  # The client has gone, is too slow, or does not speak HTTP.
        except asyncio.CancelledError:
            pass  # close() cancels this task, and only close() awaits it.
        finally:
            self._connections.discard(task)
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_SIZE_BYTES_MAX)
        while True:
            try:
                incoming = await _receive_request(connection, reader, writer)
            except h11.RemoteProtocolError as error:
                await self._refuse_request(connection, writer, error.error_status_hint)
                return
            if incoming is None:
                return
            await _send_reply(connection, writer, incoming.method, await self._answer_request(incoming))
            # One side is about to close the connection, or the request was not read to its end.
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer_request(self, request: ListenerRequest) -> ListenerReply:
        try:
            return await self._handle_request(request)
        except Exception:  # noqa: BLE001 - one broken answer must not end the others
            _log.exception("%s %s failed unexpectedly", request.method, request.path)
            return ListenerReply(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=b"internal error\n")

    async def _refuse_request(self, connection: h11.Connection, writer: asyncio.StreamWriter, status: int) -> None:
        # Once a response has begun, no other can be sent.
        if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            reply = ListenerReply(status=status, body=b"bad request\n", headers={"connection": "close"})
            with contextlib.suppress(h11.LocalProtocolError):
                await _send_reply(connection, writer, "GET", reply)


async def _receive_request(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> ListenerRequest | None:
    """Return the next request; None if the client has closed the connection."""
    # A client may wait between requests, but a request that has begun must arrive soon: connections are few.
    async with asyncio.timeout(_IDLE_S):
        head = await _receive_event(connection, reader, writer)
    if not isinstance(head, h11.Request):
        return None
    body = bytearray()
    async with asyncio.timeout(_REQUEST_S):
        while not isinstance(event := await _receive_event(connection, reader, writer), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return None
            body += event.data
            if len(body) > _BODY_SIZE_BYTES_MAX:
                msg = "body is too large"
                raise h11.RemoteProtocolError(msg, error_status_hint=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    try:
        parts = urlsplit(head.target.decode("latin-1"))
    except ValueError as error:
        raise h11.RemoteProtocolError("not a path") from error
    return ListenerRequest(
        method=head.method.decode("latin-1"),
        path=parts.path,
        query=dict(parse_qsl(parts.query)),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers},
        body=bytes(body),
    )


async def _receive_event(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        # Some clients, such as curl, wait for this before they send a larger body.
        if connection.they_are_waiting_for_100_continue:
            writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        connection.receive_data(await reader.read(_CHUNK_BYTES))


async def _send_reply(
    connection: h11.Connection, writer: asyncio.StreamWriter, method: str, reply: ListenerReply
) -> None:
    headers = {
        "content-type": reply.content_type,
        "content-length": str(len(reply.body)),
        "cache-control": "no-store",
        **reply.headers,
    }
    parts = [connection.send(h11.Response(status_code=reply.status, headers=list(headers.items())))]
    if method != "HEAD":
        parts.append(connection.send(h11.Data(data=reply.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    writer.write(b"".join(part for part in parts if part))
    async with asyncio.timeout(_REQUEST_S):
        await writer.drain()
