"""What is told of an audit log entry, to whom, and in which words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event

from forewarn.core.model import AuditEntry, Claim, EntryKind, Event, EventType, Maintenance, MaintenanceState
from forewarn.core.subscription import NotificationKind, Subscription
from forewarn.wire.notification import CONTENT_TYPE, Notification, build_notifications, encode_notification
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, maintenance

K = EntryKind
OVER: Maintenance = replace(
    maintenance(id="m-1", type=EventType.FREEZE, state=MaintenanceState.COMPLETED),
    not_before=NOW + minutes(15),
    started_at=NOW + minutes(15),
    impacted_at=NOW + minutes(16),
    ended_at=NOW + minutes(25),
    hosts=("host-1",),
    claims=(
        Claim(vm="web-0", host="host-1", scope="web", fault_domain=0),
        Claim(vm="db", host="host-1", scope=None, fault_domain=0),
    ),
)
WEB = replace(
    an_event(id="E-WEB", maintenance_id="m-1", audience="scope:web"),
    resources=("web-0",),
    is_listed=False,
    approved_at=NOW + minutes(3),
    approved_by="vm:web-0",
)
DB = replace(an_event(id="E-DB", maintenance_id="m-1", audience="vm:db"), resources=("db",), is_listed=False)
ALL = Subscription(id="s", name="all", url="", secret="", created_at=NOW, created_by="operator:ann")


def an_entry(kind: EntryKind, at: float = 0, **about: Any) -> AuditEntry:  # noqa: ANN401 - fields of an entry
    known: dict[str, Any] = {"maintenance_id": "m-1", "actor": "operator:ann", "sequence": 7}
    return AuditEntry(kind=kind, at=NOW + minutes(at), **(known | about))


def told(
    entry: AuditEntry, subscription: Subscription = ALL, events: tuple[Event, ...] = (WEB, DB)
) -> list[dict[str, Any]]:
    made = notified(entry, subscription, events)
    return [json.loads(encode_notification(n, "/cloud")) for n in made]


def notified(entry: AuditEntry, subscription: Subscription, events: tuple[Event, ...]) -> list[Notification]:
    """As the outbox makes them: of what the subscription may see."""
    who = subscription.principal
    return build_notifications(entry, who.redact_maintenance(OVER), who.redact_events(OVER, events), None, who)


def test_each_event_of_a_maintenance_is_told_of_by_itself() -> None:
    """X4: what the metadata endpoint never shows is told here."""
    one, other = told(an_entry(K.COMPLETED, 25))
    assert (one["id"], one["subject"], one["type"]) == ("7-E-WEB", "E-WEB", "dev.forewarn.event.completed.v1")
    assert (other["id"], other["subject"]) == ("7-E-DB", "E-DB")
    assert (one["source"], one["time"], one["dataschema"]) == (
        "/cloud",
        "2026-11-21T10:25:00Z",
        "urn:forewarn:event:v1",
    )
    assert one["data"]["event"]["status"] == "Completed"
    assert one["data"]["event"]["resources"] == ["web-0"]


@pytest.mark.parametrize(
    ("kind", "at", "status", "state", "started", "ended"),
    [
        (K.SCHEDULED, 0, "Scheduled", "scheduled", False, False),
        (K.UNSEEN, 9, "Scheduled", "scheduled", False, False),
        (K.LATE, 16, "Started", "started", True, False),
        (K.STARTED, 15, "Started", "started", True, False),
        (K.COMPLETED, 25, "Completed", "completed", True, True),
        (K.FAILED, 25, "Failed", "failed", True, True),
    ],
)
def test_what_is_told_late_is_what_was_so_then(  # a row for each
    kind: EntryKind, at: float, status: str, state: str, *, started: bool, ended: bool
) -> None:
    data = told(an_entry(kind, at))[0]["data"]
    assert (data["event"]["status"], data["maintenance"]["state"]) == (status, state)
    assert (data["maintenance"]["started_at"] is not None, data["maintenance"]["ended_at"] is not None) == (
        started,
        ended,
    )
    assert (data["event"]["approved_by"] is not None) == (at >= 3)


def test_an_approval_is_told_of_its_event_alone_also_where_it_started_all() -> None:
    entry = an_entry(K.APPROVED, 15, event_id="E-WEB", actor="vm:web-0")
    (one,) = told(entry)
    assert (one["subject"], one["data"]["event"]["status"]) == ("E-WEB", "Scheduled")
    assert one["data"]["event"]["approved_by"] == "vm:web-0"


def test_a_tenant_is_told_nothing_of_others() -> None:
    entry = an_entry(K.FAILED, 25, reason="domain db on host-1 does not answer")
    for subscription, subject, other in (
        (replace(ALL, scopes=("web",)), "E-WEB", "db"),
        (replace(ALL, vms=("db",)), "E-DB", "web"),
    ):
        (one,) = told(entry, subscription)
        text = json.dumps(one)
        assert one["subject"] == subject
        assert other not in text.lower()
        assert "host-1" not in text
        assert "ann" not in text
        assert (one["data"]["actor"], one["data"]["reason"]) == ("operator", None)
    # A VM of a scope does not stand alone: who owns the scope owns it.
    assert told(entry, replace(ALL, vms=("web-0",))) == []
    assert told(entry, replace(ALL, scopes=("other",), vms=("vm-9",))) == []
    assert [each["data"]["reason"] for each in told(entry)] == ["domain db on host-1 does not answer"] * 2


def test_a_tenant_is_told_in_our_words_what_is_late() -> None:
    (one,) = told(an_entry(K.LATE, 20, reason="started 300 s ago"), replace(ALL, scopes=("web",)))
    assert one["data"]["reason"] == "started 300 s ago"


def test_a_vm_that_sees_its_own_document_belongs_to_its_scope_all_the_same() -> None:
    """R58: the exception for GPU VMs decides what a VM sees, and not whose it is."""
    alone = replace(WEB, audience="vm:web-0")
    (one,) = notified(an_entry(K.STARTED, 15), replace(ALL, scopes=("web",)), (alone,))
    assert one.event is not None
    assert one.event.audience == "vm:web-0"


@pytest.mark.parametrize("kind", [K.DEFERRED, K.EXTENDED])
def test_a_later_not_before_is_told(kind: EntryKind) -> None:
    words = "NotBefore changed from 2026-11-21T10:05:00Z to 2026-11-21T10:15:00Z: the import runs"
    (all_of_it, _) = told(an_entry(kind, 2, reason=words))
    assert all_of_it["type"] == f"dev.forewarn.event.{kind}.v1"
    assert (all_of_it["data"]["event"]["status"], all_of_it["data"]["reason"]) == ("Scheduled", words)
    (ours,) = told(an_entry(kind, 2, reason=words), replace(ALL, scopes=("web",)))
    assert (ours["data"]["event"]["not_before"], ours["data"]["reason"]) == ("2026-11-21T10:15:00Z", None)


def test_a_tenant_is_told_who_of_its_own_has_approved_and_of_nobody_else_by_name() -> None:
    web = replace(ALL, scopes=("web",))
    (one,) = told(an_entry(K.APPROVED, 15, event_id="E-WEB", actor="vm:web-0"), web)
    assert (one["data"]["actor"], one["data"]["event"]["approved_by"]) == ("vm:web-0", "vm:web-0")
    assert told(an_entry(K.APPROVED, 15, event_id="E-DB", actor="vm:db"), web) == []
    other = replace(WEB, approved_by="tenant:rival")
    (two,) = told(an_entry(K.APPROVED, 15, event_id="E-WEB", actor="tenant:rival"), web, (other,))
    assert "rival" not in json.dumps(two)


def test_a_maintenance_without_events_is_told_of_to_those_who_hear_everything() -> None:
    entry = an_entry(K.FAILED, 25, reason="no power")
    (one,) = told(entry, events=())
    assert (one["type"], one["subject"], one["data"]["vms"]) == (
        "dev.forewarn.maintenance.failed.v1",
        "m-1",
        ["web-0", "db"],
    )
    assert told(entry, replace(ALL, vms=("db",)), events=()) == []


@pytest.mark.parametrize(
    "kind", [K.QUEUED, K.IMPACTED, K.ATTEMPT_FAILED, K.INVENTORY_APPLIED, K.SUBSCRIPTION, K.ENABLED]
)
def test_the_rest_of_the_audit_log_is_told_to_nobody(kind: EntryKind) -> None:
    assert told(an_entry(kind)) == []


def test_what_is_forgotten_is_not_told() -> None:
    assert build_notifications(an_entry(K.STARTED), None, (), None, ALL.principal) == []


def test_the_library_reads_what_is_sent() -> None:
    (notification, _) = notified(an_entry(K.SCHEDULED), ALL, (WEB, DB))
    body = encode_notification(notification, "/cloud")
    event = from_structured_event(HTTPMessage(headers={"content-type": CONTENT_TYPE}, body=body))
    assert event.get_id() == notification.id
    assert event.get_time() == NOW
    assert notification.kind is NotificationKind.SCHEDULED
