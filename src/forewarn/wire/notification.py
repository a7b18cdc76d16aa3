"""Notifications of audit log entries, as CloudEvents 1.0 in structured JSON.

An entry about a maintenance makes a notification for each of its events, each of which one scope sees; so a tenant is
notified only of its events. A notification shows states as they were when the entry was written, however late it is
sent. Only NotBefore is the one at the time of sending: it may have been deferred since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from cloudevents.core.bindings.http import to_structured_event
from cloudevents.core.v1.event import CloudEvent
from pydantic import Field

from forewarn.core.access import Principal
from forewarn.core.model import AuditEntry, EntryKind, Event, EventSource, EventType, Maintenance, MaintenanceState
from forewarn.core.rollout.rollout import Rollout
from forewarn.core.subscription import NotificationKind, Subscription, make_delivery_id
from forewarn.wire.control_response import EventOut
from forewarn.wire.json_types import Moment, ResponseModel

__all__ = [
    "CONTENT_TYPE",
    "PREFIX",
    "EventData",
    "MaintenanceData",
    "Notification",
    "PingData",
    "RolloutData",
    "build_notifications",
    "encode_notification",
    "encode_ping",
    "get_rollout_id",
]

CONTENT_TYPE = "application/cloudevents+json"
PREFIX = "dev.forewarn"
"""Prefix of every type."""

_S = MaintenanceState
_ROLLOUT_WORDS = {"paused": NotificationKind.ROLLOUT_PAUSED, "failed": NotificationKind.ROLLOUT_FAILED}
# Most kinds are named like the audit log entry that they report.
_KINDS = {EntryKind(kind.value): kind for kind in NotificationKind if kind not in _ROLLOUT_WORDS.values()}
_KINDS[EntryKind.ANNOUNCED] = NotificationKind.SCHEDULED
_STATES = {
    NotificationKind.SCHEDULED: _S.SCHEDULED,
    NotificationKind.DEFERRED: _S.SCHEDULED,
    NotificationKind.EXTENDED: _S.SCHEDULED,
    NotificationKind.APPROVED: _S.SCHEDULED,
    NotificationKind.UNSEEN: _S.SCHEDULED,
    NotificationKind.STARTED: _S.STARTED,
    NotificationKind.COMPLETED: _S.COMPLETED,
    NotificationKind.CANCELED: _S.CANCELED,
    NotificationKind.FAILED: _S.FAILED,
}
"""State of a maintenance at each kind of notification; the other kinds may occur in several states."""


class MaintenanceFacts(ResponseModel):
    """The part of a maintenance that every tenant may know."""

    id: str
    state: MaintenanceState
    cause: str
    type: EventType
    source: EventSource
    description: str
    duration_s: int = Field(description="Expected impact in seconds. 0: no interruption; -1: unknown.")
    not_before: Moment | None
    created_at: Moment
    started_at: Moment | None
    impacted_at: Moment | None
    ended_at: Moment | None
    hosts: list[str] = Field(
        description="Hosts for which the maintenance was requested. Empty if the subscription is limited to some "
        "scopes or VMs."
    )


class EventData(ResponseModel):
    """``dev.forewarn.event.*.v1``: a change of an event. The member ``event`` is like an item of ``GET /v1/events``."""

    event: EventOut
    maintenance: MaintenanceFacts
    actor: str = Field(
        description="Caller who made the change. If the subscription is limited to some scopes or VMs, callers outside "
        "these appear by role only."
    )
    reason: str | None = Field(
        description="Reason in words. If the subscription is limited to some scopes or VMs, reasons that callers gave "
        "are left out."
    )


class MaintenanceData(ResponseModel):
    """``dev.forewarn.maintenance.*.v1``: a change of a maintenance that has no events."""

    maintenance: MaintenanceFacts
    vms: list[str]
    actor: str
    reason: str | None


class RolloutData(ResponseModel):
    """``dev.forewarn.rollout.*.v1``: a rollout was paused or has failed."""

    id: str
    name: str
    state: Literal["paused", "failed"]
    actor: str
    reason: str | None


class PingData(ResponseModel):
    """``dev.forewarn.ping.v1``: a test of the delivery of notifications."""

    subscription: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One notification to send.

    Attributes:
        entry: The audit log entry.
        kind: Kind of the notification.
        subject: Id of an event, a maintenance or a rollout.
        maintenance: The maintenance as it was then; None for a rollout.
        event: The event as it was then; None if no VM sees any.
        rollout: Id and name of the rollout; None if it is about none.
        reason: Reason in words; None if there is none.
    """

    entry: AuditEntry
    kind: NotificationKind
    subject: str
    maintenance: Maintenance | None = None
    event: Event | None = None
    rollout: tuple[str, str] | None = None
    reason: str | None = None

    @property
    def key(self) -> tuple[int, str]:
        """Unique key of the notification."""
        return (self.entry.sequence, self.subject)

    @property
    def id(self) -> str:
        """Id that is the same at every attempt, on every replica."""
        return make_delivery_id(*self.key)


def build_notifications(
    entry: AuditEntry,
    maintenance: Maintenance | None,
    events: Sequence[Event],
    rollout: Rollout | None,
    principal: Principal,
) -> list[Notification]:
    """Return the notifications of an entry for one recipient.

    Args:
        entry: The audit log entry.
        maintenance: The maintenance of the entry, as shown to the recipient; None if there is none any more.
        events: Events of the maintenance that the recipient may see, in order.
        rollout: The rollout of the entry; None if there is none.
        principal: The recipient. A tenant is notified of its events only.
    """
    if entry.kind is EntryKind.ROLLOUT:
        if rollout is None or principal.ownership is not None:
            return []
        return _build_rollout_notifications(entry, rollout)
    kind = _KINDS.get(entry.kind)
    if kind is None or maintenance is None or (principal.ownership is not None and not events):
        return []
    entry = principal.redact_entry(entry)
    then = _restore_maintenance(entry, kind, maintenance)
    if entry.event_id is not None:
        events = [event for event in events if event.id == entry.event_id]
    elif not events:
        return [Notification(entry=entry, kind=kind, subject=then.id, maintenance=then, reason=entry.reason)]
    return [
        Notification(
            entry=entry,
            kind=kind,
            subject=event.id,
            maintenance=then,
            event=_restore_event(entry, kind, event),
            reason=entry.reason,
        )
        for event in events
    ]


def get_rollout_id(entry: AuditEntry) -> str | None:
    """Return the id of the rollout that an entry is about; None if there is none."""
    words = (entry.reason or "").split(" ", 2)
    return words[1] if entry.kind is EntryKind.ROLLOUT and len(words) > 1 else None


def _build_rollout_notifications(entry: AuditEntry, rollout: Rollout) -> list[Notification]:
    # The audit log has only text: `engine.rollouts` writes "rollout ID 'NAME' WORD: REASON".
    said = (entry.reason or "").removeprefix(f"rollout {rollout.id} {rollout.spec.name!r} ")
    word, _, reason = said.partition(": ")
    kind = _ROLLOUT_WORDS.get(word)
    if kind is None:
        return []
    about = (rollout.id, rollout.spec.name)
    return [Notification(entry=entry, kind=kind, subject=rollout.id, rollout=about, reason=reason or None)]


def _restore_maintenance(entry: AuditEntry, kind: NotificationKind, maintenance: Maintenance) -> Maintenance:
    """Return the maintenance as it was at that time, without later changes."""
    m = maintenance
    state = _STATES.get(kind)
    if state is None:
        state = _S.STARTED if _drop_if_later(m.started_at, entry.at) else _S.SCHEDULED
    has_begun = state in {_S.STARTED, _S.COMPLETED, _S.FAILED}
    return replace(
        m,
        state=state,
        started_at=_drop_if_later(m.started_at, entry.at) if has_begun else None,
        impacted_at=_drop_if_later(m.impacted_at, entry.at) if has_begun and state is not _S.STARTED else None,
        ended_at=_drop_if_later(m.ended_at, entry.at) if state in {_S.COMPLETED, _S.FAILED, _S.CANCELED} else None,
    )


def _restore_event(entry: AuditEntry, kind: NotificationKind, event: Event) -> Event:
    # An approval that came after the entry must not appear in it.
    is_known = _drop_if_later(event.approved_at, entry.at) is not None
    return replace(
        event,
        is_listed=kind is not NotificationKind.WITHDRAWN,
        approved_at=event.approved_at if is_known else None,
        approved_by=event.approved_by if is_known else None,
    )


def _drop_if_later(moment: datetime | None, now: datetime) -> datetime | None:
    return moment if moment is not None and moment <= now else None


def encode_notification(notification: Notification, source: str) -> bytes:
    """Encode the body to post."""
    noun, data = _build_data(notification)
    word = notification.kind.value.removeprefix("rollout-")
    kind = f"{PREFIX}.{noun}.{word}.v1"
    at = notification.entry.at
    return _encode_event(noun, source, data, id=notification.id, type=kind, subject=notification.subject, time=at)


def encode_ping(message_id: str, subscription: Subscription, source: str, now: datetime) -> bytes:
    """Encode a ping for that subscription."""
    name, kind = subscription.name, f"{PREFIX}.ping.v1"
    return _encode_event("ping", source, PingData(subscription=name), id=message_id, type=kind, subject=name, time=now)


def _encode_event(noun: str, source: str, data: ResponseModel, **about: str | datetime) -> bytes:
    attributes = {
        **about,
        "source": source,
        "datacontenttype": "application/json",
        "dataschema": f"urn:forewarn:{noun}:v1",
    }
    return to_structured_event(CloudEvent(attributes, data.model_dump(mode="json"))).body


def _build_data(notification: Notification) -> tuple[str, ResponseModel]:
    entry, maintenance, reason = notification.entry, notification.maintenance, notification.reason
    if notification.rollout is not None:
        id, name = notification.rollout
        state: Literal["paused", "failed"] = (
            "paused" if notification.kind is NotificationKind.ROLLOUT_PAUSED else "failed"
        )
        return "rollout", RolloutData(id=id, name=name, state=state, actor=entry.actor, reason=reason)
    assert maintenance is not None  # noqa: S101 - what is not about a rollout is about one
    facts = MaintenanceFacts.copy_from(maintenance)
    if notification.event is None:
        vms = list(maintenance.vms)
        return "maintenance", MaintenanceData(maintenance=facts, vms=vms, actor=entry.actor, reason=reason)
    shown = EventOut.from_model(notification.event, maintenance)
    return "event", EventData(event=shown, maintenance=facts, actor=entry.actor, reason=reason)
