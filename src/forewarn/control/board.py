"""The board: an immutable snapshot of all active and recently ended maintenances, shared by all viewers.

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
from typing import TYPE_CHECKING

from forewarn.clock import uptime_s
from forewarn.core.access import Ownership, Principal
from forewarn.core.maintenance import forecast as outlooks
from forewarn.core.maintenance.alert_schedule import AlertThresholds
from forewarn.core.maintenance.forecast import Forecast, MaintenanceProblem, forecast_maintenance
from forewarn.core.maintenance.tenancy import get_unavailable_max
from forewarn.core.model import EntryKind, Event, Maintenance, MaintenanceState, Scope
from forewarn.core.selection import ACTIVE
from forewarn.store.contract import Reader

if TYPE_CHECKING:
    from forewarn.control.context import Context

__all__ = [
    "Board",
    "BoardCache",
    "BoardItem",
    "filter_board",
    "make_last_poll_lookup",
    "read_board",
    "read_item",
    "update_board",
]

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
class BoardItem:
    """A maintenance with its events, its forecast, and the known maintenances that have to be over first.

    Attributes:
        is_redacted: True if it is shown to a tenant, without what tenants must not see, such as reasons of failures.
    """

    maintenance: Maintenance
    events: tuple[Event, ...]
    forecast: Forecast
    blocked_by: tuple[Maintenance, ...] = ()
    is_redacted: bool = False

    @property
    def worst_problem(self) -> MaintenanceProblem | None:
        """The worst problem; None if there is none."""
        return self.forecast.problems[0] if self.forecast.problems else None

    @property
    def sort_time(self) -> datetime:
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
        alert_thresholds: Thresholds that its forecasts use.
    """

    number: int
    at: datetime
    position: int
    items: tuple[BoardItem, ...]
    ended: tuple[BoardItem, ...]
    is_complete: bool
    alert_thresholds: AlertThresholds

    @property
    def all_items(self) -> tuple[BoardItem, ...]:
        """Active items, then ended ones."""
        return (*self.items, *self.ended)

    @property
    def items_needing_attention(self) -> list[BoardItem]:
        """Items that need attention, worst first, then by time."""
        order = list(MaintenanceProblem)
        found = [item for item in self.all_items if item.worst_problem is not None]
        return sorted(found, key=lambda item: (order.index(item.forecast.problems[0]), item.sort_time))


def read_board(  # noqa: PLR0913 - what to read, and how to judge it
    reader: Reader,
    get_last_poll: AskedAt,
    now: datetime,
    alert_thresholds: AlertThresholds,
    number: int = 0,
    owned: Ownership | None = None,
) -> Board:
    """Read a whole board in one view of the store; with `owned`, only the maintenances that affect that tenant."""
    page = reader.list_maintenances(limit=_ACTIVE_MAX, selection=ACTIVE, owned=owned)
    found = [*page.items, *reader.list_ended_since(now - _ENDED_FOR, _ENDED_MAX, owned)]
    events = reader.find_events_of(m.id for m in found)
    return _make_board(
        reader, found, events, get_last_poll, now, alert_thresholds, number, is_complete=page.next is None
    )


def update_board(reader: Reader, previous: Board, get_last_poll: AskedAt, now: datetime, number: int) -> Board:
    """Return the same board as `read_board`, but read again only what has changed since the board before."""
    thresholds = previous.alert_thresholds
    news = reader.list_entries(after=previous.position, limit=_NEWS_MAX)
    is_forgetful = reader.get_position() < previous.position  # the database was restored from a backup
    # One `pruned` entry covers any number of deleted maintenances, so the board cannot be updated from it.
    is_much = news.next is not None or any(entry.kind is EntryKind.PRUNED for entry in news.items)
    if is_forgetful or is_much or not previous.is_complete:
        return read_board(reader, get_last_poll, now, thresholds, number)
    changed = {entry.maintenance_id for entry in news.items if entry.maintenance_id is not None}
    # An actuator's success after failed attempts writes no audit log entry, so these are always read again.
    changed |= {item.maintenance.id for item in previous.items if item.maintenance.attempts}
    known = {item.maintenance.id: item for item in previous.all_items}
    fresh = reader.find_maintenances(changed)
    found = {i: item.maintenance for i, item in known.items() if i not in changed} | fresh
    active = [m for m in found.values() if m.is_active]
    if len(active) > _ACTIVE_MAX:
        return read_board(reader, get_last_poll, now, thresholds, number)
    over = [(m.ended_at, m.sequence, m) for m in found.values() if m.ended_at and m.ended_at >= now - _ENDED_FOR]
    ended = [m for _, _, m in sorted(over, key=itemgetter(0, 1), reverse=True)]
    events: dict[str, Iterable[Event]] = {i: item.events for i, item in known.items()}
    events |= reader.find_events_of(fresh)
    return _make_board(reader, [*active, *ended[:_ENDED_MAX]], events, get_last_poll, now, thresholds, number)


def _make_board(  # noqa: PLR0913 - the parts of a board
    reader: Reader,
    maintenances: Sequence[Maintenance],
    events: Mapping[str, Iterable[Event]],
    get_last_poll: AskedAt,
    now: datetime,
    alert_thresholds: AlertThresholds,
    number: int,
    *,
    is_complete: bool = True,
) -> Board:
    near = _NeighbourIndex(m for m in maintenances if m.is_active)
    get_last_poll = make_last_poll_lookup(
        reader, (event for m in maintenances for event in events.get(m.id, ())), get_last_poll
    )
    scopes = _read_scopes(reader, maintenances)
    items = [
        _make_item(
            m, tuple(events.get(m.id, ())), near.find_neighbours(m), get_last_poll, now, alert_thresholds, scopes
        )
        for m in maintenances
    ]
    items.sort(key=_sort_key)
    return Board(
        number=number,
        at=now,
        position=reader.get_position(),
        items=tuple(item for item in items if item.maintenance.is_active),
        ended=tuple(item for item in reversed(items) if not item.maintenance.is_active),
        is_complete=is_complete,
        alert_thresholds=alert_thresholds,
    )


def _sort_key(item: BoardItem) -> tuple[bool, datetime, int]:
    """Return the sort key: time of the next step; queued maintenances come last since theirs is unknown."""
    m = item.maintenance
    return m.state is MaintenanceState.QUEUED, item.sort_time, m.sequence


def filter_board(caller: Principal, reader: Reader, board: Board, get_last_poll: AskedAt) -> Board:
    """Return the board as a caller may see it: for a tenant, only maintenances that affect its VMs."""
    owned = caller.ownership
    if owned is None:
        return board
    if not board.is_complete:  # the board is truncated, and the tenant's maintenances may be among those left out
        board = read_board(reader, get_last_poll, board.at, board.alert_thresholds, board.number, owned)
    # Maintenances that a tenant waits for are shown only if they affect the tenant, too.
    known = {item.maintenance.id for item in board.items if owned.select_claims(item.maintenance)}
    return replace(
        board,
        items=tuple(_filter_item(caller, item, known) for item in board.items if item.maintenance.id in known),
        ended=tuple(_filter_item(caller, item, known) for item in board.ended if owned.select_claims(item.maintenance)),
    )


def _filter_item(caller: Principal, item: BoardItem, known: set[str]) -> BoardItem:
    events = tuple(caller.redact_events(item.maintenance, item.events))
    forecast = outlooks.restrict_forecast(item.forecast, {event.id for event in events}, known)
    behind = tuple(caller.redact_maintenance(other) for other in item.blocked_by if other.id in known)
    return BoardItem(caller.redact_maintenance(item.maintenance), events, forecast, behind, is_redacted=True)


def read_item(  # noqa: PLR0913 - the subject and the viewer
    reader: Reader,
    board: Board,
    maintenance: Maintenance,
    get_last_poll: AskedAt,
    now: datetime,
    caller: Principal,
) -> BoardItem:
    """Return a freshly read maintenance as a caller may see it; its neighbours are taken from the board."""
    events = tuple(reader.find_events_of([maintenance.id]).get(maintenance.id, ()))
    get_last_poll = make_last_poll_lookup(reader, events, get_last_poll)
    near = _NeighbourIndex(item.maintenance for item in board.items)
    neighbours = near.find_neighbours(maintenance)
    scopes = _read_scopes(reader, [maintenance])
    item = _make_item(maintenance, events, neighbours, get_last_poll, now, board.alert_thresholds, scopes)
    if caller.ownership is None:
        return item
    owned = caller.ownership
    return _filter_item(
        caller, item, {each.maintenance.id for each in board.items if owned.select_claims(each.maintenance)}
    )


def _read_scopes(reader: Reader, maintenances: Iterable[Maintenance]) -> dict[str, Scope]:
    """Return the scopes of the queued maintenances, by name: their policies decide who leaves the queue."""
    queued = (m for m in maintenances if m.state is MaintenanceState.QUEUED)
    return reader.find_scopes({claim.scope for m in queued for claim in m.claims if claim.scope is not None})


def _make_item(  # noqa: PLR0913 - as forecast_maintenance
    maintenance: Maintenance,
    events: tuple[Event, ...],
    neighbours: Sequence[Maintenance],
    get_last_poll: AskedAt,
    now: datetime,
    alert_thresholds: AlertThresholds,
    scopes: Mapping[str, Scope],
) -> BoardItem:
    limits = get_unavailable_max(maintenance, scopes)
    found = forecast_maintenance(maintenance, events, neighbours, get_last_poll, now, alert_thresholds, limits)
    known = {other.id: other for other in neighbours}
    return BoardItem(maintenance, events, found, tuple(known[each] for each in found.blocked_by))


def make_last_poll_lookup(reader: Reader, events: Iterable[Event], get_last_poll: AskedAt) -> AskedAt:
    """Return a function for the last request of the audiences of these events, from memory or the store.

    The store is needed because a service that has just started has seen no requests.
    """
    audiences = reader.find_audiences({event.audience for event in events})
    written = {key: audience.active_until for key, audience in audiences.items() if audience.active_until is not None}

    def last(key: str) -> datetime | None:
        # The store is written now and then, the memory is empty after a start: the later one is right.
        moments = [at for at in (get_last_poll(key), written.get(key)) if at is not None]
        return max(moments, default=None)

    return last


class _NeighbourIndex:
    """Index of maintenances by VM and scope, to find those that share one."""

    def __init__(self, maintenances: Iterable[Maintenance]) -> None:
        self._holders: dict[tuple[str, str], dict[str, Maintenance]] = {}
        for maintenance in maintenances:
            for key in maintenance.claim_keys:
                self._holders.setdefault(key, {})[maintenance.id] = maintenance

    def find_neighbours(self, maintenance: Maintenance) -> list[Maintenance]:
        found: dict[str, Maintenance] = {}
        for key in maintenance.claim_keys:
            found |= self._holders.get(key, {})
        found.pop(maintenance.id, None)
        return list(found.values())


class BoardCache:
    """Holds the current board."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._numbers = count(1)
        self._lock = asyncio.Lock()
        self._board: Board | None = None
        self._last_hint: asyncio.Event | None = None
        self._read_s = 0.0

    async def get_current(self) -> Board:
        """Return a board at most `_FRESH_S` old; if nothing has changed, at most `_STANDS_S` old."""
        async with self._lock:
            age_s = uptime_s() - self._read_s
            has_changed = self._context.changed is not self._last_hint
            if self._board is None or (age_s >= _FRESH_S and has_changed) or age_s >= _STANDS_S:
                # Before the read: a change during the read must make this board outdated.
                self._last_hint = self._context.changed
                self._board = await self._context.engine.read(self._make_board_reader(self._board))
                self._read_s = uptime_s()
            return self._board

    @property
    def is_current(self) -> bool:
        """True if nothing has changed since the board was read."""
        return self._context.changed is self._last_hint

    def _make_board_reader(self, previous: Board | None) -> Callable[[Reader], Board]:
        asked_at, now, number = self._context.engine.feed.last_polled_at, self._context.clock.now(), next(self._numbers)
        if previous is None:
            alert_thresholds = self._context.engine.committer.rules.alert_thresholds
            return lambda reader: read_board(reader, asked_at, now, alert_thresholds, number)
        return lambda reader: update_board(reader, previous, asked_at, now, number)
