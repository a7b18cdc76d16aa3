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

from forewarn.clock import Clock, ScaledClock
from forewarn.core.maintenance.announcement import ceil_to_second
from forewarn.endpoint.request_check import RequestRefused, check_events_request
from forewarn.endpoint.responses import (
    build_payload_refusal,
    build_size_refusal,
    encode_error_response,
    encode_json_response,
)
from forewarn.errors import ConfigError, ServerError
from forewarn.testing.transcript.transcript import RequestFailure, Transcript, TranscriptEntry
from forewarn.wire import imds
from forewarn.wire.document import Document, decode_moment

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["ReplayServer", "ReplayedApproval", "TranscriptPlayback"]

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
class ReplayedApproval:
    """An approval that a client sent.

    Attributes:
        at_s: Time of the approval, in seconds since the beginning of the recording.
        is_shown: True if the last document before it has the event.
    """

    event_id: str
    at_s: float
    is_shown: bool


class TranscriptPlayback:
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
            raise ConfigError("the transcript has no answers to replay")
        self.transcript = transcript
        self.clock = clock
        self._is_loop = is_loop
        self._starts = [entry.at_s for entry in transcript.entries]
        self._began = clock.now()

    def rewind(self) -> None:
        """Restart the recording from its beginning, now."""
        self._began = self.clock.now()

    @property
    def position_s(self) -> float:
        """Position in seconds since the beginning of the recording; without a loop it stays at the end."""
        end_s = self.transcript.end_s
        return self._elapsed_s % end_s if self._is_loop else min(self._elapsed_s, end_s)

    @property
    def round_number(self) -> int:
        """Number of times that it has reached its end and begun again."""
        return int(self._elapsed_s // self.transcript.end_s) if self._is_loop else 0

    @property
    def _elapsed_s(self) -> float:
        return (self.clock.now() - self._began).total_seconds()

    @property
    def current_entry(self) -> TranscriptEntry:
        """Answer current at this position; before the first one, the first."""
        return self.transcript.entries[self._current_index]

    @property
    def document(self) -> Document | None:
        """Last document up to this position; None if there was none yet."""
        until = self.transcript.entries[self._current_index :: -1]
        found = (entry.parse_document(self.transcript.api_version) for entry in until)
        return next((document for document in found if document is not None), None)

    @property
    def _current_index(self) -> int:
        return max(bisect_right(self._starts, self.position_s) - 1, 0)

    async def wait_for_change(self) -> None:
        """Wait until another answer is the current one; never return after the last. May be cancelled."""
        at_s, index = self.position_s, self._current_index
        # The clock may run fast or stand still, so wait on it rather than for a time of the event loop.
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


class ReplayServer:
    """Serves a transcript.

    Args:
        transcript: The recording.
        speed: Factor by which the replay is faster than the recording.
        is_loop: True to begin again at the end.
        clock: Clock of the recording; None for one that runs at that speed.
        get_time: Returns the current time, to which every NotBefore is moved so that the notice stays as recorded;
            None to leave them as they are.
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
        get_time: Callable[[], datetime] | None = None,
        on_approval: Callable[[ReplayedApproval], None] = lambda _approved: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        if is_loop and transcript.end_s / speed < _ROUND_MIN_S:
            msg = (
                f"the transcript lasts {transcript.end_s / speed:.3g} s at a speed of {speed:g}, too short to loop: "
                f"choose a lower speed, at which it lasts at least {_ROUND_MIN_S:g} s"
            )
            raise ConfigError(msg)
        self.playback = TranscriptPlayback(transcript, clock or ScaledClock(speed), is_loop=is_loop)
        self._is_loop = is_loop
        self._speed = speed
        self._get_time = get_time
        self._start_time: datetime | None = None
        self._on_approval = on_approval
        self._on_end = on_end
        self._server = _QuietServer(_build_config(self))

    @asynccontextmanager
    async def serving(self, sock: socket.socket) -> AsyncIterator[ReplayServer]:
        """Serve on that socket until the block ends; the recording's time begins once the server answers.

        Raises:
            ServerError: The server did not start.
        """
        serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for this
            await asyncio.sleep(0.005)
        if serving.done():
            await serving
            raise ServerError("the replay did not start")
        self.playback.rewind()
        self._start_time = self._get_time() if self._get_time is not None else None
        watching = asyncio.create_task(self._report_ends())
        try:
            yield self
        finally:
            watching.cancel()
            self._server.should_exit = True
            await asyncio.gather(serving, watching, return_exceptions=True)

    async def _report_ends(self) -> None:
        rounds = 1
        while True:
            await self.playback.wait_for_end(rounds)
            self._on_end()
            if not self._is_loop:
                return
            rounds += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect):
            try:
                response = await self._answer_request(request)
            except RequestRefused as refused:
                response = refused.response
            if response is not None:
                await response(scope, receive, send)

    async def _answer_request(self, request: Request) -> Response | None:
        """Return the answer; None if the connection was ended without one.

        Raises:
            RequestRefused: The request is refused; with the response.
        """
        entry = self.playback.current_entry
        is_about_events = request.scope["path"].lower().removesuffix("/") == _EVENTS
        # Before any check of the request: when it was recorded, the endpoint did not even refuse a wrong one.
        if is_about_events and request.method == "GET" and entry.failure is not None:
            await self._fail_request(request, entry.failure)
            return None
        self._check_request(request, is_about_events=is_about_events)
        if request.method == "POST":
            return await self._accept_approval(request)
        # The server adds the current date; the recorded one would look like a clock that is wrong.
        headers = {name: value for name, value in entry.headers.items() if name != "date"}
        return Response(self._move_not_before(entry), entry.status, headers)

    def _move_not_before(self, entry: TranscriptEntry) -> bytes:
        """Return the body, with each NotBefore converted from the recording's time to the replay's."""
        began, anchor = self.playback.transcript.began_on_endpoint_clock, self._start_time
        if anchor is None:
            return entry.body
        # Each round replays the same events later, so their NotBefore moves on with it.
        anchor += timedelta(seconds=self.playback.round_number * self.playback.transcript.end_s / self._speed)
        is_iso = self.playback.transcript.api_version == _PREVIEW

        def move(match: re.Match[bytes]) -> bytes:
            moment = decode_moment(match[2].decode("latin-1"))
            try:
                moved = None if moment is None else ceil_to_second(anchor + (moment - began) / self._speed)
            # At the edge of the calendar there is no later time; the text is served as recorded.
            except OverflowError:
                moved = None
            if moved is None:
                return match[0]
            text = f"{moved:%Y-%m-%dT%H:%M:%SZ}" if is_iso else format_datetime(moved, usegmt=True)
            return match[1] + text.encode() + match[3]

        return _NOT_BEFORE.sub(move, entry.body)

    def _check_request(self, request: Request, *, is_about_events: bool) -> None:
        """Refuse requests that every endpoint refuses (R62), and GETs in api-versions other than the recorded one.

        Raises:
            RequestRefused: The request is refused; with the response.
        """
        if not is_about_events:
            raise RequestRefused(encode_error_response(HTTPStatus.NOT_FOUND, "Not found"))
        recorded = self.playback.transcript.api_version
        # Documents exist only in the recorded api-version, but a client may approve in any other (R23).
        taken = _VERSIONS if request.method == "POST" else {recorded: _VERSIONS[recorded]}
        check_events_request(request, taken)

    async def _accept_approval(self, request: Request) -> Response:
        body = bytearray()
        size_bytes = 0
        async for piece in request.stream():
            size_bytes += len(piece)
            if size_bytes <= _BODY_SIZE_BYTES_MAX:
                body += piece
        # Read the whole body before refusing it: a client that is still sending would not see the answer.
        if size_bytes > _BODY_SIZE_BYTES_MAX:
            raise RequestRefused(build_size_refusal(_BODY_SIZE_BYTES_MAX))
        try:
            event_ids = imds.decode_approval(bytes(body), _START_REQUESTS_MAX)
        except imds.BadPayload as error:
            raise RequestRefused(build_payload_refusal(error)) from error
        document = self.playback.document
        for event_id in dict.fromkeys(event_ids):
            is_shown = document is not None and document.get(event_id) is not None
            self._on_approval(ReplayedApproval(event_id=event_id, at_s=self.playback.position_s, is_shown=is_shown))
        return encode_json_response(HTTPStatus.OK, b"")

    # Failures

    async def _fail_request(self, request: Request, failure: RequestFailure) -> None:
        """End the connection without an answer: at once, or for a time-out at the next change of the recording."""
        gone = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            if failure is RequestFailure.TIME_OUT:
                going_on = asyncio.ensure_future(self.playback.wait_for_change())
                # The client may give up first; then there is no connection left to reset.
                await asyncio.wait({gone, going_on}, return_when=asyncio.FIRST_COMPLETED)
                going_on.cancel()
            if not gone.done():
                self._reset_connection(request)
            await gone
        finally:
            gone.cancel()

    def _reset_connection(self, request: Request) -> None:
        """End the connection so that the client sees a reset."""
        for connection in self._server.server_state.connections:
            # ASGI does not expose the connection, so it is found by the address of its client.
            if isinstance(connection, HttpToolsProtocol) and connection.client == request.scope["client"]:
                sock = connection.transport.get_extra_info("socket")
                # With a linger time of 0, closing the socket sends a reset.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.transport.abort()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def _build_config(app: ReplayServer) -> uvicorn.Config:
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
