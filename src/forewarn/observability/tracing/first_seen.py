"""Spans for the first time that the VMs of an audience saw an event.

A GET is answered from prepared bytes and is not traced. But the time of an audience's last request is recorded anyway,
to the second (R69): once it is later than an event's publication, a VM of the audience has seen the event. This is
checked once a second, separately from requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from forewarn.clock import Clock
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.observability.tracing import Tracing
from forewarn.observability.tracing.maintenance_spans import MaintenanceSpan

__all__ = ["FirstSeenDetector"]

_LOOK_S = 1.0
_TOLD_MAX = 500
"""Number of events seen for the first time after which a check stops; the rest is left to the next check."""


@dataclass(frozen=True, slots=True)
class _UnseenEvent:
    maintenance_id: str
    shown_at: datetime


class FirstSeenDetector:
    """Detector of the first request that is shown each event.

    Args:
        last_polled_at: Returns the time of an audience's last request in this process; None if there was none.
        waiting_max: Maximum number of events to wait for; further events get no span `seen`.

    Attributes:
        is_begun: True once documents count as new. Events published earlier may already have been seen.
    """

    def __init__(
        self, tracing: Tracing, clock: Clock, last_polled_at: Callable[[str], datetime | None], waiting_max: int
    ) -> None:
        self._tracing = tracing
        self._clock = clock
        self._last_polled_at = last_polled_at
        self._waiting_max = waiting_max
        self._shown: dict[str, frozenset[str]] = {}
        self._unseen: dict[str, dict[str, _UnseenEvent]] = {}
        self._waiting = 0
        self.is_begun = False

    def note_document(self, document: AudienceDocument) -> None:
        """Record a published document."""
        key = document.audience.key
        before = self._shown.get(key, frozenset())
        now = frozenset(event.id for event, _ in document.items)
        if now == before:
            return
        if now:
            self._shown[key] = now
        else:
            self._shown.pop(key, None)
        self._forget_events(key, before - now)
        if not self.is_begun:
            return
        for event, maintenance in document.items:
            # At the limit further events are left out: tracing must not use memory without bound.
            if event.id not in before and self._waiting < self._waiting_max:
                unseen = _UnseenEvent(maintenance.id, self._clock.now())
                self._unseen.setdefault(key, {})[event.id] = unseen
                self._waiting += 1

    def _forget_events(self, key: str, event_ids: frozenset[str]) -> None:
        unseen = self._unseen.get(key, {})
        for event_id in event_ids & unseen.keys():
            del unseen[event_id]
            self._waiting -= 1
        if not unseen:
            self._unseen.pop(key, None)

    def export_seen(self) -> None:
        """Export the events seen since the last check."""
        left = _TOLD_MAX
        for key, unseen in list(self._unseen.items()):
            asked_at = self._last_polled_at(key)
            if asked_at is None or left <= 0:
                continue
            # `last_polled_at` is never later than the request itself, so a later one proves a request after
            # publication.
            seen = {event_id: each for event_id, each in unseen.items() if each.shown_at < asked_at}
            left -= len(seen)
            self._tracing.export_spans(
                _make_seen_span(key, event_id, each, asked_at) for event_id, each in seen.items()
            )
            self._forget_events(key, frozenset(seen))

    async def run(self) -> None:
        """Check every second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.export_seen()


def _make_seen_span(audience: str, event_id: str, unseen: _UnseenEvent, asked_at: datetime) -> MaintenanceSpan:
    kind, _, name = audience.partition(":")
    whose = {"forewarn.vm": name} if kind == "vm" else {}
    about = {"forewarn.maintenance.id": unseen.maintenance_id, "forewarn.event.id": event_id}
    return MaintenanceSpan(
        maintenance_id=unseen.maintenance_id,
        name="seen",
        began_at=unseen.shown_at,
        ended_at=asked_at,
        attributes={**about, "forewarn.audience": audience, **whose},
    )
