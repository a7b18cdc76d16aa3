"""The JSON of the control API."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from forewarn.core.causes import CAUSES, DEFAULT_CAUSE
from forewarn.core.inventory import InventoryChange
from forewarn.core.model import AuditEntry, EntryKind, EventSource, EventType, MaintenanceState, PowerState
from forewarn.wire import control
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, availability_set, maintenance, vm

PLAIN: dict[str, Any] = {"vms": ["db"], "type": "Freeze"}


def faults(model: type[BaseModel], content: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(content)
    return str(caught.value)


# What it takes


def test_type_and_source_name_a_cause() -> None:
    """1.12: what is left out comes from the cause."""
    for (kind, source), cause in DEFAULT_CAUSE.items():
        request = control.MaintenanceIn(vms=["db"], type=kind, source=source).to_request()
        assert (request.cause, request.type, request.source) == (cause, kind, source)
    assert control.MaintenanceIn(hosts=["h"], type=EventType.REBOOT).to_request().cause == "host-maintenance"


def test_a_cause_may_be_named_and_then_nothing_else_is_said() -> None:
    request = control.MaintenanceIn.model_validate({"hosts": ["h", "i", "h"], "cause": "live-migration"}).to_request()
    assert (request.cause, request.hosts, request.vms) == ("live-migration", ("h", "i"), ())
    assert (request.type, request.source, request.description, request.duration_s) == (None, None, None, None)
    assert (request.notice, request.not_before, request.force_reason) == (None, None, None)


def test_everything_may_be_said() -> None:
    content = PLAIN | {
        "type": "Reboot",
        "source": "User",
        "description": "",
        "duration_s": -1,
        "impact": "Freeze",
        "notice_s": 0.5,
        "not_before": "2026-11-21T11:15:00+01:00",
        "force": True,
        "reason": "drill",
    }
    request = control.MaintenanceIn.model_validate(content).to_request()
    assert (request.type, request.source, request.impact) == (EventType.REBOOT, EventSource.USER, EventType.FREEZE)
    assert (request.description, request.duration_s) == ("", -1)
    assert request.notice == timedelta(seconds=0.5)
    assert request.not_before == datetime(2026, 11, 21, 10, 15, tzinfo=UTC)
    assert request.force_reason == "drill"


def test_a_reason_without_force_forces_nothing() -> None:
    assert control.MaintenanceIn.model_validate(PLAIN | {"reason": "because"}).to_request().force_reason is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"force": True}, "force requires a reason"),
        ({"force": True, "reason": ""}, "at least 1 character"),
        ({"reason": "x" * 1001}, "at most 1000 characters"),
        ({"type": None}, "name a type or a cause"),
        ({"type": "freeze"}, "'Freeze', 'Reboot'"),
        ({"vms": [""]}, "at least 1 character"),
        ({"vms": "db"}, "valid list"),
        ({"duration_s": -2}, "greater than or equal to -1"),
        ({"duration_s": 10**10}, "less than or equal to"),
        ({"notice_s": -1}, "greater than or equal to 0"),
        ({"notice_s": 1e12}, "less than or equal to"),
        ({"notice_s": float("nan")}, "finite number"),
        ({"not_before": "2026-11-21T10:15:00"}, "timezone"),
        ({"not_before": "soon"}, "datetime"),
        ({"not_before": "0001-01-01T00:00:00+14:00"}, "expected a time between the years 1 and 9999 in UTC"),
        ({"not_before": "9999-12-31T23:59:59-14:00"}, "expected a time between the years 1 and 9999 in UTC"),
        ({"notbefore": "2026-11-21T10:15:00Z"}, "Extra inputs"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_was_expected(change: dict[str, Any], expected: str) -> None:
    assert expected in faults(control.MaintenanceIn, PLAIN | change)


@pytest.mark.parametrize(
    ("model", "content"),
    [
        (control.ForcedStartIn, {}),
        (control.ForcedStartIn, {"reason": ""}),
        (control.ImpactIn, {"duration_s": -1}),
        (control.ImpactIn, {"duration_s": 1.5}),
        (control.ApprovalIn, {"event_ids": []}),
        (control.ApprovalIn, {"event_ids": [""]}),
        (control.ApprovalIn, {"event_ids": ["x"] * 1001}),
        (control.ClockAdvanceIn, {"by_s": -1}),
        (control.ClockAdvanceIn, {"by_s": float("inf")}),
        (control.OperationIn, {"force": True}),
        (control.FailurePredictionIn, {"type": "Nap"}),
        (control.HostFailureIn, {"notice_s": 1}),
        (control.ReasonIn, {"reason": "", "more": 1}),
    ],
)
def test_every_body_has_its_limits(model: type[BaseModel], content: dict[str, Any]) -> None:
    faults(model, content)


def test_an_operation_is_one_on_one_vm() -> None:
    body = control.OperationIn.model_validate({"notice_s": 60, "source": "Platform", "force": True, "reason": "drill"})
    request = body.to_request("scale-set-delete", "fleet_0")
    assert (request.cause, request.vms, request.hosts) == ("scale-set-delete", ("fleet_0",), ())
    assert (request.notice, request.source, request.force_reason) == (minutes(1), EventSource.PLATFORM, "drill")
    assert request.cause in CAUSES


# What it shows


def test_a_maintenance_is_shown_with_its_events_and_its_moments_in_utc() -> None:
    shown = control.MaintenanceOut.from_model(
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
    assert control.EventOut.from_model(an_event(is_listed=False), ended).status == "Canceled"
    pending = maintenance(not_before=NOW)
    assert control.EventOut.from_model(an_event(is_listed=False), pending).status == "Withdrawn"
    assert control.EventOut.from_model(an_event(audience="vm:a:b"), pending).scope == "a:b"


def test_a_vm_is_shown_with_its_scope_and_whether_it_asks() -> None:
    web = replace(vm("web-0", scope="web", power_state=PowerState.DELETED), addresses=("10.0.0.1",))
    shown = control.VmOut.from_model(web, availability_set("web"), 7)
    assert (shown.scope, shown.scope_kind, shown.enabled, shown.incarnation) == ("web", "availability-set", True, 7)
    assert (shown.power_state, shown.addresses) == (PowerState.DELETED, ["10.0.0.1"])
    lone = control.VmOut.from_model(vm("db"), None, None)
    assert (lone.scope, lone.scope_kind, lone.enabled, lone.incarnation) == (None, "standalone", False, None)


def test_an_audit_log_entry_names_the_scope_without_its_kind() -> None:
    entry = AuditEntry(kind=EntryKind.APPROVED, at=NOW, actor="vm:web-0", audience="scope:web", sequence=9)
    shown = control.AuditEntryOut.from_model(entry).model_dump(mode="json")
    assert (shown["sequence"], shown["kind"], shown["scope"], shown["at"]) == (
        9,
        "approved",
        "web",
        "2026-11-21T10:00:00Z",
    )
    assert control.AuditEntryOut.from_model(replace(entry, audience=None)).scope is None


def test_a_change_of_inventory_is_four_numbers() -> None:
    change = InventoryChange(added=1, changed=2, removed=3, unchanged=4)
    assert control.InventoryChangeOut.from_model(change).model_dump() == {
        "added": 1,
        "changed": 2,
        "removed": 3,
        "unchanged": 4,
    }


def test_an_error_has_one_shape() -> None:
    body = control.ErrorOut(error=control.ErrorBody(code="not_found", message="vm 'x' does not exist"))
    assert body.model_dump() == {"error": {"code": "not_found", "message": "vm 'x' does not exist", "details": {}}}
