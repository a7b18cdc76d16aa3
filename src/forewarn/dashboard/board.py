"""The board: everything that is under way, taken down once and looked at by all who watch.

A thousand dashboards must not mean a thousand queries. So one `Board` is taken in one view of the store, is never
changed, and stands until something has changed, but for a while at least, and not for ever: being late is a matter of
time alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count

from forewarn.clock import Clock, uptime_s
from forewarn.control.context import Context
from forewarn.core.model import ACTIVE_STATES, Event, Maintenance, MaintenanceState
from forewarn.core.outlook import Outlook, Trouble, outlook
from forewarn.store.contract import Reader

__all__ = ["Board", "Boards", "Item", "item_of", "remembered", "take"]

_ACTIVE_MAX = 5000
_ENDED_MAX = 40
_ENDED_FOR = timedelta(days=1)
_FRESH_S = 0.5
_STANDS_S = 5.0


@dataclass(frozen=True, slots=True)
class Item:
    """A maintenance with what there is to say about it."""

    maintenance: Maintenance
    events: tuple[Event, ...]
    outlook: Outlook

    @property
    def approved(self) -> int:
        """How many of its listed events are approved."""
        return sum(event.is_approved for event in self.events if event.is_listed)

    @property
    def votes(self) -> int:
        """How many of its events are listed."""
        return sum(event.is_listed for event in self.events)

    @property
    def worst(self) -> Trouble | None:
        """What is wrong, if anything."""
        return self.outlook.troubles[0] if self.outlook.troubles else None

    @property
    def moment(self) -> datetime:
        """What it is sorted by: when something happens next, or has happened last."""
        m = self.maintenance
        return m.ended_at or m.started_at or m.not_before or m.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Everything that is under way.

    Attributes:
        number: Grows with each board of this process.
        at: When it was taken.
        items: The active ones, by what happens next.
        ended: Those that ended lately, newest first.
        counts: How many maintenances there are in each state, of all that are remembered.
        is_complete: Whether `items` holds all that are active.
    """

    number: int
    at: datetime
    items: tuple[Item, ...]
    ended: tuple[Item, ...]
    counts: Mapping[MaintenanceState, int]
    is_complete: bool

    @property
    def troubled(self) -> list[Item]:
        """What somebody should look at, worst first, then what happens soonest."""
        order = list(Trouble)
        found = [item for item in (*self.items, *self.ended) if item.worst is not None]
        return sorted(found, key=lambda item: (order.index(item.outlook.troubles[0]), item.moment))


def take(reader: Reader, asked_at: Callable[[str], datetime | None], now: datetime, number: int = 0) -> Board:
    """Take everything down, in one view of the store."""
    page = reader.maintenances(states=sorted(ACTIVE_STATES), limit=_ACTIVE_MAX)
    over = reader.maintenances(states=sorted(set(MaintenanceState) - ACTIVE_STATES), limit=_ENDED_MAX)
    ended = [m for m in over.items if m.ended_at is not None and now - m.ended_at < _ENDED_FOR]
    events = reader.events_of(m.id for m in (*page.items, *ended))
    near, asked_at = _Neighbours(page.items), remembered(reader, events, asked_at)

    def item(maintenance: Maintenance) -> Item:
        mine = tuple(events.get(maintenance.id, ()))
        return Item(maintenance, mine, outlook(maintenance, mine, near.of(maintenance), asked_at, now))

    return Board(
        number=number,
        at=now,
        items=tuple(sorted((item(m) for m in page.items), key=lambda each: each.moment)),
        ended=tuple(sorted((item(m) for m in ended), key=lambda each: each.moment, reverse=True)),
        counts=reader.counts(),
        is_complete=page.next is None,
    )


def item_of(
    reader: Reader, board: Board, maintenance: Maintenance, asked_at: Callable[[str], datetime | None], now: datetime
) -> Item:
    """One maintenance, read just now, with the others as the board has them."""
    found = reader.events_of([maintenance.id])
    events, asked_at = tuple(found.get(maintenance.id, ())), remembered(reader, found, asked_at)
    near = _Neighbours(item.maintenance for item in board.items)
    return Item(maintenance, events, outlook(maintenance, events, near.of(maintenance), asked_at, now))


def remembered(
    reader: Reader, events: Mapping[str, Iterable[Event]], asked_at: Callable[[str], datetime | None]
) -> Callable[[str], datetime | None]:
    """When an audience of these events asked last, as this process has seen it or as it was written down.

    A service that has just started has seen nobody yet.
    """
    audiences = reader.audiences({event.audience for each in events.values() for event in each})
    written = {key: audience.active_until for key, audience in audiences.items() if audience.active_until is not None}

    def last(key: str) -> datetime | None:
        moments = [at for at in (asked_at(key), written.get(key)) if at is not None]
        return max(moments, default=None)

    return last


class _Neighbours:
    """Who shares a VM or a scope with whom."""

    def __init__(self, maintenances: Iterable[Maintenance]) -> None:
        self._holders: dict[tuple[str, str], dict[str, Maintenance]] = {}
        for maintenance in maintenances:
            for key in _keys(maintenance):
                self._holders.setdefault(key, {})[maintenance.id] = maintenance

    def of(self, maintenance: Maintenance) -> list[Maintenance]:
        found: dict[str, Maintenance] = {}
        for key in _keys(maintenance):
            found |= self._holders.get(key, {})
        found.pop(maintenance.id, None)
        return list(found.values())


def _keys(maintenance: Maintenance) -> set[tuple[str, str]]:
    vms = {("vm", claim.vm) for claim in maintenance.claims}
    return vms | {("scope", claim.scope) for claim in maintenance.claims if claim.scope is not None}


class Boards:
    """Hands out the board of the moment.

    Args:
        context: The service.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock: Clock = context.clock
        self._numbers = count(1)
        self._lock = asyncio.Lock()
        self._board: Board | None = None
        self._seen: asyncio.Event | None = None
        self._taken_s = 0.0

    async def current(self) -> Board:
        """One that is half a second old at most, or older while nothing has changed."""
        async with self._lock:
            age_s = uptime_s() - self._taken_s
            has_changed = self._context.changed is not self._seen
            if self._board is None or (age_s >= _FRESH_S and has_changed) or age_s >= _STANDS_S:
                self._seen = self._context.changed
                asked_at, now, number = self._context.engine.feed.asked_at, self._clock.now(), next(self._numbers)
                self._board = await self._context.engine.read(lambda reader: take(reader, asked_at, now, number))
                self._taken_s = uptime_s()
            return self._board
