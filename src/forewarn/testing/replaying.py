"""Replay: serve a transcript on a real socket, at any speed.

A client gets the endpoint's answer from that time of the recording, failures included. Approvals are accepted and
reported, but have no effect, since the recording has decided what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from forewarn.clock import Clock, SpedClock
from forewarn.core.announcement import ceil_to_second
from forewarn.endpoint.request_check import (
    Refused,
    check_events_request,
    encode_error_response,
    encode_json_response,
    payload_refusal,
    size_refusal,
)
from forewarn.errors import ConfigError, ServerError
from forewarn.testing.transcript import Entry, Failure, Transcript
from forewarn.wire import imds
from forewarn.wire.document import Document, decode_moment

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["Approved", "Replay", "Tape"]

_EVENTS = "/metadata/scheduledevents"
_VERSIONS = {version.name: version for version in imds.VERSIONS}
_PREVIEW = "2017-03-01"
_NOT_BEFORE = re.compile(rb'("NotBefore"\s*:\s*")([^"\\]*)(")')
_START_REQUESTS_MAX = 1000
_BODY_SIZE_BYTES_MAX = 256 << 10
_CONNECTIONS_MAX = 1000
_ROUND_MIN_S = 1.0
_GRACE_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """An approval that a client sent.

    Attributes:
        at_s: Time of the approval, in seconds since the beginning of the recording.
        is_shown: True if the last document before it has the event.
    """

    event_id: str
    at_s: float
    is_shown: bool


class Tape:
    """A transcript that runs on a clock.

    Args:
        transcript: The recording; has at least one answer.
        clock: Clock of the recording: at a speed of 60 it runs 60 times as fast as the machine's.
        is_loop: True to begin again at the end.

    Raises:
        ConfigError: There is nothing to replay.
    """

    def __init__(self, transcript: Transcript, clock: Clock, *, is_loop: bool = False) -> None:
        if not transcript.entries:
            msg = "the transcript has no answers: there is nothing to be replayed"
            raise ConfigError(msg)
        self.transcript = transcript
        self.clock = clock
        self._is_loop = is_loop
        self._starts = [entry.at_s for entry in transcript.entries]
        self._began = clock.now()

    def rewind(self) -> None:
        """Restart the recording from its beginning, now."""
        self._began = self.clock.now()

    @property
    def at_s(self) -> float:
        """Position in seconds since the beginning of the recording; without a loop it stays at the end."""
        end_s = self.transcript.end_s
        return self._elapsed_s % end_s if self._is_loop else min(self._elapsed_s, end_s)

    @property
    def round(self) -> int:
        """Number of times that it has reached its end and begun again."""
        return int(self._elapsed_s // self.transcript.end_s) if self._is_loop else 0

    @property
    def _elapsed_s(self) -> float:
        return (self.clock.now() - self._began).total_seconds()

    @property
    def current(self) -> Entry:
        """Answer current at this position; before the first one, the first."""
        return self.transcript.entries[self._index]

    @property
    def document(self) -> Document | None:
        """Last document up to this position; None if there was none yet."""
        until = self.transcript.entries[self._index :: -1]
        found = (entry.document(self.transcript.api_version) for entry in until)
        return next((document for document in found if document is not None), None)

    @property
    def _index(self) -> int:
        return max(bisect_right(self._starts, self.at_s) - 1, 0)

    async def wait_for_change(self) -> None:
        """Wait until another answer is the current one; never return after the last. May be cancelled."""
        at_s, index = self.at_s, self._index
        if index + 1 < len(self._starts):
            left_s = self._starts[index + 1] - at_s
        elif self._is_loop:
            left_s = self.transcript.end_s - at_s
        else:
            await asyncio.Event().wait()
            return
        await self.clock.wait_until(self.clock.now() + timedelta(seconds=left_s))

    async def wait_for_end(self, rounds: int = 1) -> None:
        """Wait until it has reached its end so many times. May be cancelled."""
        await self.clock.wait_until(self._began + rounds * timedelta(seconds=self.transcript.end_s))


class Replay:
    """Serves a transcript.

    Args:
        transcript: The recording.
        speed: Factor by which the replay is faster than the recording.
        is_loop: True to begin again at the end.
        clock: Clock of the recording; None for one that runs at that speed.
        now: Returns the current time, to which every NotBefore is moved so that the notice stays as recorded; None to
            leave them as they are.
        on_approval: Called for each approval.
        on_end: Called each time the end is reached.

    Raises:
        ConfigError: There is nothing to replay, or the transcript is too short to loop.
    """

    def __init__(  # noqa: PLR0913 - all but the first have defaults
        self,
        transcript: Transcript,
        *,
        speed: float = 1.0,
        is_loop: bool = False,
        clock: Clock | None = None,
        now: Callable[[], datetime] | None = None,
        on_approval: Callable[[Approved], None] = lambda _approved: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        if is_loop and transcript.end_s / speed < _ROUND_MIN_S:
            msg = (
                f"the transcript is over after {transcript.end_s / speed:.3g} s at a speed of {speed:g}: "
                f"to loop, it has to last {_ROUND_MIN_S:g} s; choose a lower speed"
            )
            raise ConfigError(msg)
        self.tape = Tape(transcript, clock or SpedClock(speed), is_loop=is_loop)
        self._is_loop = is_loop
        self._speed = speed
        self._now = now
        self._anchor: datetime | None = None
        self._on_approval = on_approval
        self._on_end = on_end
        self._server = _QuietServer(_config(self))

    @asynccontextmanager
    async def answering(self, sock: socket.socket) -> AsyncIterator[Replay]:
        """Serve on that socket until the block ends; the recording's time begins once the server answers.

        Raises:
            ServerError: The server did not start.
        """
        serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for this
            await asyncio.sleep(0.005)
        if serving.done():
            await serving
            msg = "the replay did not start"
            raise ServerError(msg)
        self.tape.rewind()
        self._anchor = self._now() if self._now is not None else None
        watching = asyncio.create_task(self._watch_for_ends())
        try:
            yield self
        finally:
            watching.cancel()
            self._server.should_exit = True
            await asyncio.gather(serving, watching, return_exceptions=True)

    async def _watch_for_ends(self) -> None:
        rounds = 1
        while True:
            await self.tape.wait_for_end(rounds)
            self._on_end()
            if not self._is_loop:
                return
            rounds += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect):
            try:
                response = await self._answer(request)
            except Refused as refused:
                response = refused.response
            if response is not None:
                await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer; None if the connection was ended without one.

        Raises:
            Refused: The request is refused; with the response.
        """
        entry = self.tape.current
        is_about_events = request.scope["path"].lower().removesuffix("/") == _EVENTS
        if is_about_events and request.method == "GET" and entry.failure is not None:
            await self._fail(request, entry.failure)
            return None
        self._check(request, is_about_events=is_about_events)
        if request.method == "POST":
            return await self._approve(request)
        headers = {name: value for name, value in entry.headers.items() if name != "date"}
        return Response(self._moved(entry), entry.status, headers)

    def _moved(self, entry: Entry) -> bytes:
        """Return the body, with each NotBefore converted from the recording's time to the replay's."""
        began, anchor = self.tape.transcript.began_there, self._anchor
        if anchor is None:
            return entry.body
        anchor += timedelta(seconds=self.tape.round * self.tape.transcript.end_s / self._speed)
        is_iso = self.tape.transcript.api_version == _PREVIEW

        def move(match: re.Match[bytes]) -> bytes:
            moment = decode_moment(match[2].decode("latin-1"))
            try:
                moved = None if moment is None else ceil_to_second(anchor + (moment - began) / self._speed)
            except OverflowError:
                moved = None
            if moved is None:
                return match[0]
            text = f"{moved:%Y-%m-%dT%H:%M:%SZ}" if is_iso else format_datetime(moved, usegmt=True)
            return match[1] + text.encode() + match[3]

        return _NOT_BEFORE.sub(move, entry.body)

    def _check(self, request: Request, *, is_about_events: bool) -> None:
        """Refuse requests that every endpoint refuses (R62), and GETs in api-versions other than the recorded one.

        Raises:
            Refused: The request is refused; with the response.
        """
        if not is_about_events:
            raise Refused(encode_error_response(HTTPStatus.NOT_FOUND, "Not found"))
        recorded = self.tape.transcript.api_version
        taken = _VERSIONS if request.method == "POST" else {recorded: _VERSIONS[recorded]}
        check_events_request(request, taken)

    async def _approve(self, request: Request) -> Response:
        body = bytearray()
        size_bytes = 0
        async for piece in request.stream():
            size_bytes += len(piece)
            if size_bytes <= _BODY_SIZE_BYTES_MAX:
                body += piece
        # Read the whole body before refusing it: a client that is still sending would not see the answer.
        if size_bytes > _BODY_SIZE_BYTES_MAX:
            raise Refused(size_refusal(_BODY_SIZE_BYTES_MAX))
        try:
            approval = imds.decode_approval(bytes(body), _START_REQUESTS_MAX)
        except imds.BadPayload as error:
            raise Refused(payload_refusal(error)) from error
        document = self.tape.document
        for event_id in dict.fromkeys(approval.event_ids):
            is_shown = document is not None and document.get(event_id) is not None
            self._on_approval(Approved(event_id=event_id, at_s=self.tape.at_s, is_shown=is_shown))
        return encode_json_response(HTTPStatus.OK, b"")

    # Failures

    async def _fail(self, request: Request, failure: Failure) -> None:
        """End the connection without an answer: at once, or for a time-out at the next change of the recording."""
        gone = asyncio.ensure_future(_wait_until_gone(request))
        try:
            if failure is Failure.TIME_OUT:
                going_on = asyncio.ensure_future(self.tape.wait_for_change())
                await asyncio.wait({gone, going_on}, return_when=asyncio.FIRST_COMPLETED)
                going_on.cancel()
            if not gone.done():
                self._reset(request)
            await gone
        finally:
            gone.cancel()

    def _reset(self, request: Request) -> None:
        """End the connection so that the client sees a reset."""
        for connection in self._server.server_state.connections:
            if isinstance(connection, HttpToolsProtocol) and connection.client == request.scope["client"]:
                sock = connection.transport.get_extra_info("socket")
                # With a linger time of 0, closing the socket sends a reset.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.transport.abort()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def _config(app: Replay) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_CONNECTIONS_MAX,
    )
