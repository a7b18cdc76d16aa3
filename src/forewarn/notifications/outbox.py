"""Outbox of a subscription: new notifications from the audit log, and deliveries to retry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from forewarn.core.model import AuditEntry, Event, Maintenance
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.store.contract import Reader
from forewarn.wire.rollout import decode_rollout

if TYPE_CHECKING:
    from forewarn.wire.notification import Notification

__all__ = ["Outbox", "find_first_of_each", "read_outbox"]

_WINDOW = 200
"""Number of audit log entries read at a time."""

_VMS_MAX = 2000
"""Maximum number of VMs in the maintenances of one read, unless a single maintenance has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Pending work of one subscription.

    Attributes:
        waiting: Deliveries that wait for a retry, the oldest ones.
        due: Subjects of waiting deliveries that are due.
        unknown: Keys of due deliveries that the audit log no longer contains.
        entries: Audit log entries that were read, in order.
        has_more: True if more could be read.
        notifications: Notifications to send: waiting ones that are due, then new ones.
    """

    subscription: Subscription
    waiting: list[Delivery]
    due: frozenset[str]
    unknown: frozenset[tuple[int, str]]
    entries: list[AuditEntry]
    has_more: bool
    notifications: list[Notification]


def read_outbox(  # noqa: PLR0913 - the limits of one read
    reader: Reader,
    subscription_id: str,
    now: datetime,
    *,
    after: int,
    waiting_max: int,
    is_open: bool,
    allows_request: bool,
) -> Outbox | None:
    """Return the pending work now; None if the subscription no longer exists.

    Args:
        reader: View of the store.
        subscription_id: Id of the subscription.
        now: Present time.
        after: Sequence after which audit log entries are read, or the subscription's cursor if that is further.
        waiting_max: Number of deliveries waiting for a retry from which on nothing new is read.
        is_open: True if the circuit breaker is open: a single new entry is enough for a probe.
        allows_request: True if the receiver may be sent anything now.
    """
    subscription = reader.get_subscription(subscription_id)
    if subscription is None:
        return None
    # A round that reads below `waiting_max` can add a whole window of deliveries that wait.
    waiting = reader.list_deliveries(subscription_id, DeliveryState.WAITING, limit=waiting_max + _WINDOW)
    firsts = find_first_of_each(waiting).values() if allows_request else ()
    due = frozenset(d.subject for d in firsts if d.next_at is None or d.next_at <= now)
    turn = [delivery for delivery in waiting if delivery.subject in due]
    wanted = {delivery.key for delivery in turn}
    ours = _NotificationBuilder(reader, subscription)
    # Built from the audit log again, with what the subscription may see now.
    old = {n.key: n for n in ours.build_notifications(_read_entries(reader, turn)) if n.key in wanted}
    entries: list[AuditEntry] = []
    has_more = False
    # Otherwise nothing new is read: the cursor stops, and the audit log keeps the rest (ADR 18).
    if allows_request and len(waiting) < waiting_max:
        page = reader.list_entries(after=max(after, subscription.cursor), limit=1 if is_open else _WINDOW)
        entries = ours.limit_entries(page.items)
        has_more = page.next is not None or len(entries) < len(page.items)
    # The cursor may be before entries whose deliveries are stored, if an earlier entry is not settled.
    kept = {delivery.key for delivery in waiting}
    new = [n for n in ours.build_notifications(entries) if n.key not in kept]
    return Outbox(
        subscription=subscription,
        waiting=waiting,
        due=due,
        unknown=frozenset(wanted - old.keys()),
        entries=entries,
        has_more=has_more,
        notifications=[*(old[d.key] for d in turn if d.key in old), *new],
    )


def find_first_of_each(deliveries: Iterable[Delivery]) -> dict[str, Delivery]:
    """Return the first delivery of each subject; those behind it are retried with it."""
    # Descending, so that the first delivery of each subject is the last one written, and remains.
    return {d.subject: d for d in sorted(deliveries, key=lambda d: d.key, reverse=True)}


def _read_entries(reader: Reader, deliveries: Iterable[Delivery]) -> list[AuditEntry]:
    found: list[AuditEntry] = []
    for sequence in sorted({delivery.sequence for delivery in deliveries}):
        items = reader.list_entries(after=sequence - 1, limit=1).items
        # Retention may have deleted this entry; then the store returns a later one.
        found += [entry for entry in items if entry.sequence == sequence]
    return found


class _NotificationBuilder:
    """Notifications from audit log entries for one subscription; it never sees more than a tenant with the same VMs."""

    def __init__(self, reader: Reader, subscription: Subscription) -> None:
        self._reader = reader
        self._kinds = frozenset(subscription.kinds)
        self._principal = subscription.principal
        self._maintenances: dict[str, Maintenance] = {}
        self._events: dict[str, list[Event]] = {}

    def limit_entries(self, entries: Sequence[AuditEntry]) -> list[AuditEntry]:
        """Return the first entries, at least one, that together stay within the limit on VMs."""
        found = self._reader.find_maintenances({e.maintenance_id for e in entries if e.maintenance_id is not None})
        taken: list[AuditEntry] = []
        vms = 0
        for entry in entries:
            maintenance = found.get(entry.maintenance_id or "")
            # A notification about a whole maintenance lists its VMs, one about an event does not.
            vms += 1 if maintenance is None or entry.event_id is not None else len(maintenance.claims)
            if taken and vms > _VMS_MAX:
                break
            taken.append(entry)
        return taken

    def build_notifications(self, entries: Sequence[AuditEntry]) -> Iterator[Notification]:
        """Yield the notifications of these entries that the subscription wants and may see, in order."""
        from forewarn.wire.notification import build_notifications, get_rollout_id  # noqa: PLC0415 - unused by most services

        self._load_maintenances({entry.maintenance_id for entry in entries if entry.maintenance_id is not None})
        for entry in entries:
            rollout_id = get_rollout_id(entry)
            stored = None if rollout_id is None else self._reader.get_rollout(rollout_id)
            rollout = None if stored is None else decode_rollout(stored.content)
            id = entry.maintenance_id or ""
            maintenance, events = self._maintenances.get(id), self._events.get(id, [])
            for notification in build_notifications(entry, maintenance, events, rollout, self._principal):
                if not self._kinds or notification.kind.value in self._kinds:
                    yield notification

    def _load_maintenances(self, ids: set[str]) -> None:
        missing = ids - self._maintenances.keys()
        events = self._reader.find_events_of(missing)
        for id, maintenance in self._reader.find_maintenances(missing).items():
            self._maintenances[id] = self._principal.redact_maintenance(maintenance)
            self._events[id] = self._principal.redact_events(maintenance, events.get(id, ()))
