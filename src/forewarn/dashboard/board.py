"""The board: everything that is under way, taken down once and looked at by all who watch.

A thousand dashboards must not mean a thousand queries. So one `Board` is taken in one view of the store, is never
changed, and stands until something has changed, but for a while at least, and not for ever: being late is a matter of
time alone. The next one follows from it and from what the ledger has told since, so that only what has changed is read.
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
"""When an audience asked last, as far as known."""

_ACTIVE_MAX = 5000
_NEWS_MAX = 500
"""With more entries of the ledger than that, all is taken down anew."""

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
        position: The last change that it knows of.
        items: The active ones, by what happens next; queued ones last.
        ended: Those that ended lately, newest first.
        is_complete: Whether `items` holds all that are active.
    """

    number: int
    at: datetime
    position: int
    items: tuple[Item, ...]
    ended: tuple[Item, ...]
    is_complete: bool

    @property
    def troubled(self) -> list[Item]:
        """What somebody should look at, worst first, then what happens soonest."""
        order = list(Trouble)
        found = [item for item in (*self.items, *self.ended) if item.worst is not None]
        return sorted(found, key=lambda item: (order.index(item.outlook.troubles[0]), item.moment))


def take(reader: Reader, asked_at: AskedAt, now: datetime, number: int = 0, owned: Owned | None = None) -> Board:
    """Take everything down, in one view of the store; or what belongs to a tenant, with all that is said of it."""
    page = reader.maintenances(states=sorted(ACTIVE_STATES), limit=_ACTIVE_MAX, owned=owned)
    found = [*page.items, *reader.ended_since(now - _ENDED_FOR, _ENDED_MAX, owned)]
    events = reader.events_of(m.id for m in found)
    return _laid_out(reader, found, events, asked_at, now, number, is_complete=page.next is None)


def follow(reader: Reader, before: Board, asked_at: AskedAt, now: datetime, number: int) -> Board:
    """What `take` would hand back; but of what is on the board before, only what has changed is read again."""
    news = reader.entries(after=before.position, limit=_NEWS_MAX)
    is_forgetful = reader.position() < before.position  # a database that was put back
    is_much = news.next is not None or any(entry.kind is EntryKind.PRUNED for entry in news.items)
    if is_forgetful or is_much or not before.is_complete:
        return take(reader, asked_at, now, number)
    changed = {entry.maintenance_id for entry in news.items if entry.maintenance_id is not None}
    # That an actuator has got through again is the one thing shown here that no entry tells.
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


def _laid_out(  # noqa: PLR0913 - what a board is made of
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
    """By what happens next; nobody knows when a queued one has its turn."""
    m = item.maintenance
    return m.state is MaintenanceState.QUEUED, item.moment, m.sequence


def seen_by(caller: Principal, reader: Reader, board: Board, asked_at: AskedAt) -> Board:
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
    asked_at: AskedAt,
    now: datetime,
    caller: Principal,
) -> Item:
    """One maintenance, read just now, with the others as the board has them, as somebody may see it."""
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
    """When an audience of these events asked last, as this process has seen it or as it was written down.

    A service that has just started has seen nobody yet.
    """
    audiences = reader.audiences({event.audience for event in events})
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
                self._board = await self._context.engine.read(self._next(self._board))
                self._taken_s = uptime_s()
            return self._board

    @property
    def is_current(self) -> bool:
        """Whether nothing has changed since the board was taken."""
        return self._context.changed is self._seen

    def _next(self, before: Board | None) -> Callable[[Reader], Board]:
        asked_at, now, number = self._context.engine.feed.asked_at, self._clock.now(), next(self._numbers)
        if before is None:
            return lambda reader: take(reader, asked_at, now, number)
        return lambda reader: follow(reader, before, asked_at, now, number)
