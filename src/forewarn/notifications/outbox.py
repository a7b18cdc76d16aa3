"""What there is to tell a subscriber: read from the ledger, which is the outbox, and from what is tried again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from forewarn.core.model import Entry, Event, Maintenance
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.store.contract import Reader
from forewarn.wire.rollout import decode_rollout

if TYPE_CHECKING:
    from forewarn.wire.notification import Notification

__all__ = ["Measure", "Outbox", "first_of_each", "read_outbox"]

_WINDOW = 200
"""Ledger entries that are read at a time."""

_VMS_MAX = 2000
"""Most VMs in the maintenances that are told of at a time, unless a single one has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How much is read.

    Attributes:
        after: Ledger entries after that sequence, if the subscription is not further by now.
        waiting_max: Deliveries that may wait for another try; with more nothing new is read.
        is_open: Whether the receiver seems to take nothing: a little will do to see whether that is so.
        allows_request: Whether it may be told anything now.
    """

    after: int
    waiting_max: int
    is_open: bool
    allows_request: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """What there is for one subscription.

    Attributes:
        waiting: Deliveries that wait for another try, the oldest ones.
        due: Subjects of those whose turn it is.
        unknown: Keys of those whose turn it is, and of which the ledger knows nothing any more.
        entries: What was read of the ledger, in order.
        has_more: Whether more could be read.
        notifications: Those that wait and are due, then those that are new.
    """

    subscription: Subscription
    waiting: list[Delivery]
    due: frozenset[str]
    unknown: frozenset[tuple[int, str]]
    entries: list[Entry]
    has_more: bool
    notifications: list[Notification]


def read_outbox(reader: Reader, subscription_id: str, measure: Measure, now: datetime) -> Outbox | None:
    """What there is to tell now; None: there is no such subscription any more."""
    subscription = reader.subscription(subscription_id)
    if subscription is None:
        return None
    waiting = reader.deliveries(subscription_id, DeliveryState.WAITING, limit=measure.waiting_max + _WINDOW)
    firsts = first_of_each(waiting).values() if measure.allows_request else ()
    due = frozenset(d.subject for d in firsts if d.next_at is None or d.next_at <= now)
    turn = [delivery for delivery in waiting if delivery.subject in due]
    wanted = {delivery.key for delivery in turn}
    ours = _Told(reader, subscription)
    old = {n.key: n for n in ours.of(_entries_of(reader, turn)) if n.key in wanted}
    entries: list[Entry] = []
    has_more = False
    if measure.allows_request and len(waiting) < measure.waiting_max:
        after = max(measure.after, subscription.cursor)
        page = reader.entries(after=after, limit=1 if measure.is_open else _WINDOW)
        entries = ours.bounded(page.items)
        has_more = page.next is not None or len(entries) < len(page.items)
    kept = {delivery.key for delivery in waiting}
    new = [n for n in ours.of(entries) if n.key not in kept]
    return Outbox(
        subscription=subscription,
        waiting=waiting,
        due=due,
        unknown=frozenset(wanted - old.keys()),
        entries=entries,
        has_more=has_more,
        notifications=[*(old[d.key] for d in turn if d.key in old), *new],
    )


def first_of_each(deliveries: Iterable[Delivery]) -> dict[str, Delivery]:
    """The first delivery of each subject: when that is tried again, those behind it have their turn too."""
    return {d.subject: d for d in sorted(deliveries, key=lambda d: d.key, reverse=True)}


def _entries_of(reader: Reader, deliveries: Iterable[Delivery]) -> list[Entry]:
    found: list[Entry] = []
    for sequence in sorted({delivery.sequence for delivery in deliveries}):
        items = reader.entries(after=sequence - 1, limit=1).items
        found += [entry for entry in items if entry.sequence == sequence]
    return found


class _Told:
    """What a subscription is told of ledger entries. It never sees more than a tenant that owns the same."""

    def __init__(self, reader: Reader, subscription: Subscription) -> None:
        self._reader = reader
        self._kinds = frozenset(subscription.kinds)
        self._principal = subscription.principal
        self._maintenances: dict[str, Maintenance] = {}
        self._events: dict[str, list[Event]] = {}

    def bounded(self, entries: Sequence[Entry]) -> list[Entry]:
        """As many of them as are not about too many VMs at a time; one at least."""
        found = self._reader.maintenances_by_id({e.maintenance_id for e in entries if e.maintenance_id is not None})
        taken: list[Entry] = []
        vms = 0
        for entry in entries:
            maintenance = found.get(entry.maintenance_id or "")
            vms += 1 if maintenance is None or entry.event_id is not None else len(maintenance.claims)
            if taken and vms > _VMS_MAX:
                break
            taken.append(entry)
        return taken

    def of(self, entries: Sequence[Entry]) -> Iterator[Notification]:
        """Notifications of those entries that it wants and may see, in order."""
        from forewarn.wire.notification import notifications_of, rollout_of  # noqa: PLC0415 - most notify nobody

        self._load({entry.maintenance_id for entry in entries if entry.maintenance_id is not None})
        for entry in entries:
            rollout_id = rollout_of(entry)
            stored = None if rollout_id is None else self._reader.rollout(rollout_id)
            rollout = None if stored is None else decode_rollout(stored.content)
            id = entry.maintenance_id or ""
            maintenance, events = self._maintenances.get(id), self._events.get(id, [])
            for notification in notifications_of(entry, maintenance, events, rollout, self._principal):
                if not self._kinds or notification.kind.value in self._kinds:
                    yield notification

    def _load(self, ids: set[str]) -> None:
        missing = ids - self._maintenances.keys()
        events = self._reader.events_of(missing)
        for id, maintenance in self._reader.maintenances_by_id(missing).items():
            self._maintenances[id] = self._principal.shown(maintenance)
            self._events[id] = self._principal.shown_events(maintenance, events.get(id, ()))
