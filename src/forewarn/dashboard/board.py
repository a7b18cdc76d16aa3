"""The board: an immutable snapshot of all active and recently ended maintenances, shared by all dashboards.

1,000 dashboards must not cause 1,000 queries. So one `Board` is read in one view of the store, and is replaced when
something has changed, but not more often than every `_FRESH_S`. It is also replaced after `_STANDS_S` without a change,
since a maintenance becomes late by the passing of time alone. The next board is derived from the last one and the
audit log entries since, so that only what has changed is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from operator import itemgetter

from forewarn.clock import Clock, uptime_s
from forewarn.control.context import Context
from forewarn.core import outlook as outlooks
from forewarn.core.access import Owned, Principal
from forewarn.core.model import ACTIVE_STATES, EntryKind, Event, Maintenance, MaintenanceState
from forewarn.core.outlook import Outlook, Trouble, outlook
from forewarn.store.contract import Reader

__all__ = ["Board", "Boards", "Item", "follow", "item_of", "remembered", "seen_by", "take"]

AskedAt = Callable[[str], datetime | None]
"""Function that returns the time of an audience's last request; None if unknown."""

_ACTIVE_MAX = 5000
_NEWS_MAX = 500
"""Maximum number of new audit log entries to follow; with more, the whole board is read again."""

_ENDED_MAX = 40
_ENDED_FOR = timedelta(days=1)
_FRESH_S = 0.5
_STANDS_S = 5.0


@dataclass(frozen=True, slots=True)
class Item:
    """A maintenance with its events and outlook.

    Attributes:
        maintenance: The maintenance.
        events: Its events.
        outlook: Its next step and its troubles.
        behind: Known maintenances that have to be over first.
    """

    maintenance: Maintenance
    events: tuple[Event, ...]
    outlook: Outlook
    behind: tuple[Maintenance, ...] = ()

    @property
    def approved(self) -> int:
        """Number of listed events that are approved."""
        return sum(event.is_approved for event in self.events if event.is_listed)

    @property
    def votes(self) -> int:
        """Number of listed events."""
        return sum(event.is_listed for event in self.events)

    @property
    def worst(self) -> Trouble | None:
        """The worst trouble; None if there is none."""
        return self.outlook.troubles[0] if self.outlook.troubles else None

    @property
    def moment(self) -> datetime:
        """Time to sort by: end, start, NotBefore or creation, the first of these that is set."""
        m = self.maintenance
        return m.ended_at or m.started_at or m.not_before or m.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Snapshot of the active and recently ended maintenances.

    Attributes:
        number: Number of the board; increases with each board of this process.
        at: Time of the snapshot.
        position: Sequence number of the last change that it takes into account.
        items: Active maintenances, by the time of their next step; queued ones last.
        ended: Recently ended maintenances, newest first.
        is_complete: True if `items` holds all active maintenances.
    """

    number: int
    at: datetime
    position: int
    items: tuple[Item, ...]
    ended: tuple[Item, ...]
    is_complete: bool

    @property
    def troubled(self) -> list[Item]:
        """Items that need attention, worst first, then by time."""
        order = list(Trouble)
        found = [item for item in (*self.items, *self.ended) if item.worst is not None]
        return sorted(found, key=lambda item: (order.index(item.outlook.troubles[0]), item.moment))


def take(reader: Reader, asked_at: AskedAt, now: datetime, number: int = 0, owned: Owned | None = None) -> Board:
    """Read a whole board in one view of the store; with `owned`, only the maintenances that affect that tenant."""
    page = reader.maintenances(states=sorted(ACTIVE_STATES), limit=_ACTIVE_MAX, owned=owned)
    found = [*page.items, *reader.ended_since(now - _ENDED_FOR, _ENDED_MAX, owned)]
    events = reader.events_of(m.id for m in found)
    return _laid_out(reader, found, events, asked_at, now, number, is_complete=page.next is None)


def follow(reader: Reader, before: Board, asked_at: AskedAt, now: datetime, number: int) -> Board:
    """Return the same board as `take`, but read again only what has changed since the board before."""
    news = reader.entries(after=before.position, limit=_NEWS_MAX)
    is_forgetful = reader.position() < before.position  # the database was restored from a backup
    is_much = news.next is not None or any(entry.kind is EntryKind.PRUNED for entry in news.items)
    if is_forgetful or is_much or not before.is_complete:
        return take(reader, asked_at, now, number)
    changed = {entry.maintenance_id for entry in news.items if entry.maintenance_id is not None}
    # An actuator's success after failed attempts writes no audit log entry, so these are always read again.
    changed |= {item.maintenance.id for item in before.items if item.maintenance.attempts}
    known = {item.maintenance.id: item for item in (*before.items, *before.ended)}
    fresh = reader.maintenances_by_id(changed)
    found = {i: item.maintenance for i, item in known.items() if i not in changed} | fresh
    active = [m for m in found.values() if m.is_active]
    if len(active) > _ACTIVE_MAX:
        return take(reader, asked_at, now, number)
    over = [(m.ended_at, m.sequence, m) for m in found.values() if m.ended_at and m.ended_at >= now - _ENDED_FOR]
    ended = [m for _, _, m in sorted(over, key=itemgetter(0, 1), reverse=True)]
    events: dict[str, Iterable[Event]] = {i: item.events for i, item in known.items()}
    events |= reader.events_of(fresh)
    return _laid_out(reader, [*active, *ended[:_ENDED_MAX]], events, asked_at, now, number)


def _laid_out(  # noqa: PLR0913 - the parts of a board
    reader: Reader,
    maintenances: Sequence[Maintenance],
    events: Mapping[str, Iterable[Event]],
    asked_at: AskedAt,
    now: datetime,
    number: int,
    *,
    is_complete: bool = True,
) -> Board:
    near = _Neighbours(m for m in maintenances if m.is_active)
    asked_at = remembered(reader, (event for m in maintenances for event in events.get(m.id, ())), asked_at)
    items = [_item(m, tuple(events.get(m.id, ())), near.of(m), asked_at, now) for m in maintenances]
    items.sort(key=_order)
    return Board(
        number=number,
        at=now,
        position=reader.position(),
        items=tuple(item for item in items if item.maintenance.is_active),
        ended=tuple(item for item in reversed(items) if not item.maintenance.is_active),
        is_complete=is_complete,
    )


def _order(item: Item) -> tuple[bool, datetime, int]:
    """Return the sort key: time of the next step; queued maintenances come last since theirs is unknown."""
    m = item.maintenance
    return m.state is MaintenanceState.QUEUED, item.moment, m.sequence


def seen_by(caller: Principal, reader: Reader, board: Board, asked_at: AskedAt) -> Board:
    """Return the board as a caller may see it: for a tenant, only maintenances that affect its VMs."""
    owned = caller.owned
    if owned is None:
        return board
    if not board.is_complete:  # the board is truncated, and the tenant's maintenances may be among those left out
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


def item_of(  # noqa: PLR0913 - the subject and the viewer
    reader: Reader,
    board: Board,
    maintenance: Maintenance,
    asked_at: AskedAt,
    now: datetime,
    caller: Principal,
) -> Item:
    """Return a freshly read maintenance as a caller may see it; its neighbours are taken from the board."""
    events = tuple(reader.events_of([maintenance.id]).get(maintenance.id, ()))
    asked_at = remembered(reader, events, asked_at)
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
    asked_at: AskedAt,
    now: datetime,
) -> Item:
    found = outlook(maintenance, events, neighbours, asked_at, now)
    known = {other.id: other for other in neighbours}
    return Item(maintenance, events, found, tuple(known[each] for each in found.behind))


def remembered(reader: Reader, events: Iterable[Event], asked_at: AskedAt) -> AskedAt:
    """Return a function for the last request of the audiences of these events, from memory or the store.

    The store is needed because a service that has just started has seen no requests.
    """
    audiences = reader.audiences({event.audience for event in events})
    written = {key: audience.active_until for key, audience in audiences.items() if audience.active_until is not None}

    def last(key: str) -> datetime | None:
        moments = [at for at in (asked_at(key), written.get(key)) if at is not None]
        return max(moments, default=None)

    return last


class _Neighbours:
    """Index of maintenances by VM and scope, to find those that share one."""

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
    """Holds the current board.

    Args:
        context: Parts of the service.
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
        """Return a board at most `_FRESH_S` old; if nothing has changed, at most `_STANDS_S` old."""
        async with self._lock:
            age_s = uptime_s() - self._taken_s
            has_changed = self._context.changed is not self._seen
            if self._board is None or (age_s >= _FRESH_S and has_changed) or age_s >= _STANDS_S:
                self._seen = self._context.changed
                self._board = await self._context.engine.read(self._next(self._board))
                self._taken_s = uptime_s()
            return self._board

    @property
    def is_current(self) -> bool:
        """True if nothing has changed since the board was read."""
        return self._context.changed is self._seen

    def _next(self, before: Board | None) -> Callable[[Reader], Board]:
        asked_at, now, number = self._context.engine.feed.asked_at, self._clock.now(), next(self._numbers)
        if before is None:
            return lambda reader: take(reader, asked_at, now, number)
        return lambda reader: follow(reader, before, asked_at, now, number)
