"""Responses of the control API."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

from forewarn.core.inventory import InventoryChange
from forewarn.core.model import AuditEntry, EntryKind, MaintenanceState, PowerState
from forewarn.wire import control_response
from tests.support.world import NOW
from tests.unit.core.builders import an_event, availability_set, maintenance, vm


def test_a_maintenance_is_shown_with_its_events_and_its_moments_in_utc() -> None:
    shown = control_response.MaintenanceOut.from_model(
        replace(
            maintenance(vm("web-0", scope="web"), not_before=NOW + timedelta(microseconds=1)),
            hosts=("host-1",),
            force_reason="drill",
        ),
        [an_event("web-0", approved_at=NOW.astimezone(timezone(timedelta(hours=5))))],
    ).model_dump(mode="json")
    assert shown["not_before"] == "2026-11-21T10:00:00.000001Z"
    assert shown["created_at"] == "2026-11-21T10:00:00Z"
    assert (shown["started_at"], shown["ended_at"], shown["force_reason"]) == (None, None, "drill")
    assert (shown["hosts"], shown["vms"], shown["notice_s"]) == (["host-1"], ["web-0"], 900.0)
    (event,) = shown["events"]
    assert (event["scope"], event["status"], event["resources"]) == ("web", "Scheduled", ["web-0"])
    assert (event["approved_at"], event["approved_by"]) == ("2026-11-21T10:00:00Z", "vm:web-0")


def test_events_show_what_became_of_them_outside_the_metadata_endpoint_too() -> None:
    """X4, R70."""
    ended = maintenance(state=MaintenanceState.CANCELED, ended_at=NOW)
    assert control_response.EventOut.from_model(an_event(is_listed=False), ended).status == "Canceled"
    pending = maintenance(not_before=NOW)
    assert control_response.EventOut.from_model(an_event(is_listed=False), pending).status == "Withdrawn"
    assert control_response.EventOut.from_model(an_event(audience="vm:a:b"), pending).scope == "a:b"


def test_a_vm_is_shown_with_its_scope_and_whether_it_asks() -> None:
    web = replace(vm("web-0", scope="web", power_state=PowerState.DELETED), addresses=("10.0.0.1",))
    shown = control_response.VmOut.from_model(web, availability_set("web"), 7)
    assert (shown.scope, shown.scope_kind, shown.enabled, shown.incarnation) == ("web", "availability-set", True, 7)
    assert (shown.power_state, shown.addresses) == (PowerState.DELETED, ["10.0.0.1"])
    lone = control_response.VmOut.from_model(vm("db"), None, None)
    assert (lone.scope, lone.scope_kind, lone.enabled, lone.incarnation) == (None, "standalone", False, None)


def test_an_audit_log_entry_names_the_scope_without_its_kind() -> None:
    entry = AuditEntry(kind=EntryKind.APPROVED, at=NOW, actor="vm:web-0", audience="scope:web", sequence=9)
    shown = control_response.AuditEntryOut.from_model(entry).model_dump(mode="json")
    assert (shown["sequence"], shown["kind"], shown["scope"], shown["at"]) == (
        9,
        "approved",
        "web",
        "2026-11-21T10:00:00Z",
    )
    assert control_response.AuditEntryOut.from_model(replace(entry, audience=None)).scope is None


def test_a_change_of_inventory_is_four_numbers() -> None:
    change = InventoryChange(added=1, changed=2, removed=3, unchanged=4)
    assert control_response.InventoryChangeOut.from_model(change).model_dump() == {
        "added": 1,
        "changed": 2,
        "removed": 3,
        "unchanged": 4,
    }


def test_an_error_has_one_shape() -> None:
    body = control_response.ErrorOut(
        error=control_response.ErrorBody(code="not_found", message="vm 'x' does not exist")
    )
    assert body.model_dump() == {"error": {"code": "not_found", "message": "vm 'x' does not exist", "details": {}}}
