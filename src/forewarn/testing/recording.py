"""Recording: poll an endpoint, and write every answer with new content to a transcript.

Only GETs are sent. Nothing is approved, and no request is conditional or held, so every answer is complete.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from http import HTTPStatus

import httpcore

from forewarn.client.exchange import Answer, Request
from forewarn.client.pace import Pace
from forewarn.client.transport import AsyncTransport
from forewarn.errors import EndpointUnreachable, LimitExceeded
from forewarn.testing.transcript import BODY_SIZE_BYTES_MAX, HEADERS, EndReason, Entry, Failure, TranscriptWriter

__all__ = ["Recorder"]

_PATH = "/metadata/scheduledevents"
_METADATA = {"Metadata": "true"}
_HEADER_LENGTH_MAX = 1000
_STATUSES = range(200, 600)


class Recorder:
    """Polls one endpoint, and records its answers.

    Args:
        transport: Carries out requests.
        writer: Takes the new entries.
        api_version: The api-version to request.
        pace: Poll interval, timeouts, and pauses after failures.
        on_entry: Called for each answer, with True if it was new.
        chance: Returns numbers from 0 to 1, for jitter of retries.

    Attributes:
        asked: Number of requests made.
    """

    def __init__(  # noqa: PLR0913 - all but the first three have defaults
        self,
        transport: AsyncTransport,
        writer: TranscriptWriter,
        api_version: str,
        *,
        pace: Pace | None = None,
        on_entry: Callable[[Entry, bool], None] = lambda _entry, _is_new: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._writer = writer
        self._pace = pace or Pace()
        self._on_entry = on_entry
        self._chance = chance
        self._path = f"{_PATH}?api-version={api_version}"
        self._has_answered = False
        self._unanswered = 0
        self._failures = 0
        self._began_s = 0.0
        self.asked = 0

    async def record(self, stop: asyncio.Event, for_s: float | None = None) -> EndReason:
        """Poll until `stop` is set, or for so many seconds; then write the last line.

        Raises:
            LimitExceeded: The transcript is full; its last line was written.
            OSError: It cannot be written.
        """
        self._began_s = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(self._ask_for_ever())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({asking, stopping}, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()  # raise the error that ended it
        except LimitExceeded:
            self._end(EndReason.SIZE)
            raise
        finally:
            stopping.cancel()
            asking.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)
        reason = EndReason.SIGNAL if stop.is_set() else EndReason.TIME
        self._end(reason)
        return reason

    def _end(self, reason: EndReason) -> None:
        self._writer.end(self._now_s(), reason, self.asked)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    async def _ask_for_ever(self) -> None:
        while True:
            at_s = self._now_s()
            entry = await self._ask(at_s)
            self._on_entry(entry, self._writer.add(entry))
            await asyncio.sleep(self._pause_after(entry))

    async def _ask(self, at_s: float) -> Entry:
        pace = self._pace
        timeout_s = pace.timeout_after(self._unanswered) if self._has_answered else pace.first_timeout_s
        self.asked += 1
        try:
            answer = await self._transport.send(
                Request(method="GET", path=self._path, headers=_METADATA, timeout_s=timeout_s)
            )
        except EndpointUnreachable as error:
            self._unanswered += 1
            return Entry(at_s=at_s, took_s=self._now_s() - at_s, failure=_failure_of(error))
        self._unanswered = 0
        self._has_answered |= answer.status == HTTPStatus.OK
        return _entry_of(answer, at_s, self._now_s() - at_s)

    def _pause_after(self, entry: Entry) -> float:
        if entry.status == HTTPStatus.OK:
            self._failures = 0
            return max(self._pace.poll_interval_s - entry.took_s, 0.0)
        self._failures += 1
        return self._pace.retry_after(self._failures, entry.headers, self._chance())


def _entry_of(answer: Answer, at_s: float, took_s: float) -> Entry:
    if answer.status not in _STATUSES or len(answer.body) > BODY_SIZE_BYTES_MAX:
        return Entry(at_s=at_s, took_s=took_s, failure=Failure.BROKEN)
    found = {name: answer.headers.get(name, "")[:_HEADER_LENGTH_MAX] for name in HEADERS}
    headers = {name: value for name, value in found.items() if value and value.isprintable()}
    return Entry(at_s=at_s, took_s=took_s, status=answer.status, headers=headers, body=answer.body)


def _failure_of(error: EndpointUnreachable) -> Failure:
    if error.details.get("timed_out"):
        return Failure.TIME_OUT
    return Failure.NO_CONNECTION if isinstance(error.__cause__, httpcore.ConnectError) else Failure.BROKEN
