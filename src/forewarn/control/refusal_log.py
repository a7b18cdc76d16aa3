"""Records refused calls in the audit log in the background: a refusal does not wait for the database."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from http import HTTPStatus

import structlog
from fastapi import Request

from forewarn.auth.refusal_counter import RefusalCounter
from forewarn.clock import Clock, uptime_s
from forewarn.control.access import caller_of, source_address
from forewarn.core.model import AuditEntry, EntryKind
from forewarn.engine.engine import Engine
from forewarn.errors import ForewarnError

__all__ = ["REFUSED", "RefusalLog"]

REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""Statuses of refusals. `TooManyFailures` is a refusal too, but shares its status with other errors."""

_log = structlog.get_logger("forewarn.control")

_WAITING_MAX = 1000
_PATH_LENGTH_MAX = 200
_REASON_LENGTH_MAX = 500


class RefusalLog:
    """Queue of refused calls that are to be written into the audit log.

    `refusals` decides which calls get an entry and which are only counted.
    """

    def __init__(self, engine: Engine, refusals: RefusalCounter, clock: Clock) -> None:
        self._engine = engine
        self._refusals = refusals
        self._clock = clock
        # When it is full the oldest entry is dropped: a flood of refused calls must not fill the memory.
        self._waiting: deque[AuditEntry] = deque(maxlen=_WAITING_MAX)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    def record_refusal(self, request: Request, error: ForewarnError) -> None:
        """Queue a refused call for the audit log, or count it if there were too many."""
        caller = caller_of(request)
        path = _to_printable_ascii(request.url.path)[:_PATH_LENGTH_MAX]
        entry = AuditEntry(
            kind=EntryKind.REFUSED,
            at=self._clock.now(),
            actor="unknown" if caller is None else caller.actor,
            source_address=source_address(request) or None,
            reason=_to_printable_ascii(f"{request.method} {path}: {error.message}")[:_REASON_LENGTH_MAX],
        )
        kept = self._refusals.filter_entry(entry, uptime_s())
        if kept is not None:
            self._waiting.append(kept)
        self._wake.set()
        if (self._task is None or self._task.done()) and not self._is_stopping:
            # In an empty context: the task outlives the request that starts it, and is not part of its trace.
            self._task = asyncio.create_task(self._write_periodically(), context=Context())

    async def stop(self) -> None:
        """Write everything that is queued or counted, and stop."""
        self._is_stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        self._waiting.extend(self._refusals.collect_summaries(self._clock.now(), uptime_s(), is_end=True))
        await self._write_entries()

    async def _write_periodically(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            self._waiting.extend(self._refusals.collect_summaries(self._clock.now(), uptime_s()))
            await self._write_entries()
            due_s = self._refusals.next_summary_s()
            # No await until the task ends: a call refused after this check finds it done, and starts a new one.
            if due_s is None and not self._waiting:
                return
            timeout_s = None if due_s is None else max(0.0, due_s - uptime_s())
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _write_entries(self) -> None:
        entries = list(self._waiting)
        self._waiting.clear()
        if not entries:
            return
        try:
            await self._engine.tokens.record_refused_calls(entries)
        # Dropped, and only logged: during a database outage, refused calls must not pile up in memory.
        except ForewarnError as error:
            _log.warning("cannot record refused calls in the audit log", count=len(entries), error=error.message)


def _to_printable_ascii(text: str) -> str:
    """Return the text as printable ASCII: the path is untrusted, and a database may not accept every character."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
