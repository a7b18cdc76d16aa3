"""The board: everything that is under way, taken down once and looked at by all who watch.

A thousand dashboards must not mean a thousand queries. So one `Board` is taken in one view of the store, is never
changed, and stands until something has changed, but for a while at least, and not for ever: being late is a matter of
time alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count

from forewarn.clock import Clock, uptime_s
from forewarn.control.context import Context
from forewarn.core import outlook as outlooks
from forewarn.core.access import Owned, Principal
from forewarn.core.model import ACTIVE_STATES, Event, Maintenance, MaintenanceState
from forewarn.core.outlook import Outlook, Trouble, outlook
from forewarn.store.contract import Reader

__all__ = ["Board", "Boards", "Item", "item_of", "remembered", "seen_by", "take"]

_ACTIVE_MAX = 5000
_ENDED_MAX = 40
_ENDED_FOR = timedelta(days=1)
_FRESH_S = 0.5
_STANDS_S = 5.0


@dataclass(frozen=True, slots=True)
class Item:
    """A maintenance with what there is to say about it.

    Attributes:
        behind: Those that have to be over first, as far as they are known.
    """

    maintenance: Maintenance
    events: tuple[Event, ...]
    outlook: Outlook
    behind: tuple[Maintenance, ...] = ()

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
        is_complete: Whether `items` holds all that are active.
    """

    number: int
    at: datetime
    items: tuple[Item, ...]
    ended: tuple[Item, ...]
    is_complete: bool

    @property
    def troubled(self) -> list[Item]:
        """What somebody should look at, worst first, then what happens soonest."""
        order = list(Trouble)
        found = [item for item in (*self.items, *self.ended) if item.worst is not None]
        return sorted(found, key=lambda item: (order.index(item.outlook.troubles[0]), item.moment))


def take(
    reader: Reader,
    asked_at: Callable[[str], datetime | None],
    now: datetime,
    number: int = 0,
    owned: Owned | None = None,
) -> Board:
    """Take everything down, in one view of the store; or what belongs to a tenant, with all that is said of it."""
    page = reader.maintenances(states=sorted(ACTIVE_STATES), limit=_ACTIVE_MAX, owned=owned)
    over = reader.maintenances(states=sorted(set(MaintenanceState) - ACTIVE_STATES), limit=_ENDED_MAX, owned=owned)
    ended = [m for m in over.items if m.ended_at is not None and now - m.ended_at < _ENDED_FOR]
    events = reader.events_of(m.id for m in (*page.items, *ended))
    near, asked_at = _Neighbours(page.items), remembered(reader, events, asked_at)

    def item(maintenance: Maintenance) -> Item:
        mine = tuple(events.get(maintenance.id, ()))
        return _item(maintenance, mine, near.of(maintenance), asked_at, now)

    return Board(
        number=number,
        at=now,
        items=tuple(sorted((item(m) for m in page.items), key=lambda each: each.moment)),
        ended=tuple(sorted((item(m) for m in ended), key=lambda each: each.moment, reverse=True)),
        is_complete=page.next is None,
    )


def seen_by(caller: Principal, reader: Reader, board: Board, asked_at: Callable[[str], datetime | None]) -> Board:
    """The board as somebody may see it: for a tenant, what concerns its own VMs."""
    owned = caller.owned
    if owned is None:
        return board
    if not board.is_complete:  # there is too much for one board: its own may be among what was left out
        board = take(reader, asked_at, board.at, board.number, owned)
    known = {item.maintenance.id for item in board.items if owned.claims(item.maintenance)}
    return replace(
        board,
        items=tuple(_shown(caller, item, known) for item in board.items if item.maintenance.id in known),
        ended=tuple(_shown(caller, item, known) for item in board.ended if owned.claims(item.maintenance)),
    )


def _shown(caller: Principal, item: Item, known: set[str]) -> Item:
    events = tuple(caller.shown_events(item.maintenance, item.events))
    told = outlooks.seen_by(item.outlook, {event.id for event in events}, known)
    behind = tuple(caller.shown(other) for other in item.behind if other.id in known)
    return Item(caller.shown(item.maintenance), events, told, behind)


def item_of(  # noqa: PLR0913 - what is looked at, and who looks
    reader: Reader,
    board: Board,
    maintenance: Maintenance,
    asked_at: Callable[[str], datetime | None],
    now: datetime,
    caller: Principal,
) -> Item:
    """One maintenance, read just now, with the others as the board has them, as somebody may see it."""
    found = reader.events_of([maintenance.id])
    events, asked_at = tuple(found.get(maintenance.id, ())), remembered(reader, found, asked_at)
    near = _Neighbours(item.maintenance for item in board.items)
    item = _item(maintenance, events, near.of(maintenance), asked_at, now)
    if caller.owned is None:
        return item
    owned = caller.owned
    return _shown(caller, item, {each.maintenance.id for each in board.items if owned.claims(each.maintenance)})


def _item(
    maintenance: Maintenance,
    events: tuple[Event, ...],
    neighbours: Sequence[Maintenance],
    asked_at: Callable[[str], datetime | None],
    now: datetime,
) -> Item:
    found = outlook(maintenance, events, neighbours, asked_at, now)
    behind = set(found.behind)
    return Item(maintenance, events, found, tuple(other for other in neighbours if other.id in behind))


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
