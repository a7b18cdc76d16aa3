"""Recording: poll an endpoint, and write every answer with new content to a transcript.

Only GETs are sent. Nothing is approved, and no request is conditional or held, so every answer is complete.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from http import HTTPStatus

import httpcore

from forewarn.client.exchange import HttpAnswer, HttpRequest
from forewarn.client.pace import Pace
from forewarn.client.transport import AsyncTransport
from forewarn.errors import EndpointUnreachable, LimitExceeded
from forewarn.testing.transcript.transcript import (
    BODY_SIZE_BYTES_MAX,
    HEADERS,
    EndReason,
    RequestFailure,
    TranscriptEntry,
    TranscriptWriter,
)
from forewarn.util.tasks import cancel_tasks

__all__ = ["Recorder"]

_PATH = "/metadata/scheduledevents"
_METADATA = {"Metadata": "true"}
_HEADER_LENGTH_MAX = 1000
_STATUSES = range(200, 600)


class Recorder:
    """Polls one endpoint, and records its answers.

    Args:
        pace: Poll interval, timeouts, and pauses after failures.
        on_entry: Called for each answer, with True if it was new.

    Attributes:
        request_count: Number of requests made.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        writer: TranscriptWriter,
        api_version: str,
        *,
        pace: Pace | None = None,
        on_entry: Callable[[TranscriptEntry, bool], None] = lambda _entry, _is_new: None,
    ) -> None:
        self._transport = transport
        self._writer = writer
        self._pace = pace or Pace()
        self._on_entry = on_entry
        self._path = f"{_PATH}?api-version={api_version}"
        self._has_answered = False
        self._timeouts_in_row = 0
        self._failures_in_row = 0
        self._began_s = 0.0
        self.request_count = 0

    async def record(self, stop: asyncio.Event, for_s: float | None = None) -> EndReason:
        """Poll until `stop` is set, or for so many seconds; then write the last line.

        Raises:
            LimitExceeded: The transcript is full; its last line was written.
            OSError: It cannot be written.
        """
        self._began_s = asyncio.get_running_loop().time()
        # A request may be held for minutes, so the stop signal and the time limit must end it, not wait for it.
        asking = asyncio.ensure_future(self._poll_endpoint())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({asking, stopping}, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()  # raise the error that ended it
        except LimitExceeded:
            self._write_end(EndReason.SIZE)
            raise
        finally:
            await cancel_tasks(asking, stopping)
        reason = EndReason.SIGNAL if stop.is_set() else EndReason.TIME
        self._write_end(reason)
        return reason

    def _write_end(self, reason: EndReason) -> None:
        self._writer.write_end(self._elapsed_s(), reason, self.request_count)

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    async def _poll_endpoint(self) -> None:
        while True:
            at_s = self._elapsed_s()
            entry = await self._send_request(at_s)
            self._on_entry(entry, self._writer.add_entry(entry))
            await asyncio.sleep(self._get_pause_s(entry))

    async def _send_request(self, at_s: float) -> TranscriptEntry:
        pace = self._pace
        # Until the first 200 the endpoint may hold each answer for two minutes while it enables the service (R67).
        timeout_s = pace.timeout_after(self._timeouts_in_row) if self._has_answered else pace.first_timeout_s
        self.request_count += 1
        try:
            answer = await self._transport.send(
                HttpRequest(method="GET", path=self._path, headers=_METADATA, timeout_s=timeout_s)
            )
        except EndpointUnreachable as error:
            self._timeouts_in_row += 1
            return TranscriptEntry(at_s=at_s, took_s=self._elapsed_s() - at_s, failure=_classify_failure(error))
        self._timeouts_in_row = 0
        self._has_answered |= answer.status == HTTPStatus.OK
        return _build_entry(answer, at_s, self._elapsed_s() - at_s)

    def _get_pause_s(self, entry: TranscriptEntry) -> float:
        if entry.status == HTTPStatus.OK:
            self._failures_in_row = 0
            # The interval counts from request to request, however long the endpoint takes to answer.
            return max(self._pace.poll_interval_s - entry.took_s, 0.0)
        self._failures_in_row += 1
        return self._pace.retry_after(self._failures_in_row, entry.headers, random.random())  # noqa: S311 - jitter


def _build_entry(answer: HttpAnswer, at_s: float, took_s: float) -> TranscriptEntry:
    # The format holds only such answers, so any other one is recorded like an answer that is not HTTP.
    if answer.status not in _STATUSES or len(answer.body) > BODY_SIZE_BYTES_MAX:
        return TranscriptEntry(at_s=at_s, took_s=took_s, failure=RequestFailure.BROKEN)
    found = {name: answer.headers.get(name, "")[:_HEADER_LENGTH_MAX] for name in HEADERS}
    # Headers are replayed as they are; a control character could end the header and forge another one.
    headers = {name: value for name, value in found.items() if value and value.isprintable()}
    return TranscriptEntry(at_s=at_s, took_s=took_s, status=answer.status, headers=headers, body=answer.body)


def _classify_failure(error: EndpointUnreachable) -> RequestFailure:
    if error.details.get("timed_out"):
        return RequestFailure.TIME_OUT
    return RequestFailure.NO_CONNECTION if isinstance(error.__cause__, httpcore.ConnectError) else RequestFailure.BROKEN
