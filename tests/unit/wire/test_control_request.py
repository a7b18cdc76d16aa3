"""Requests to the control API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from forewarn.core.causes import CAUSES, DEFAULT_CAUSE
from forewarn.core.model import EventSource, EventType
from forewarn.wire import control_request
from tests.support.world import minutes

PLAIN: dict[str, Any] = {"vms": ["db"], "type": "Freeze"}


def faults(model: type[BaseModel], content: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(content)
    return str(caught.value)


def test_type_and_source_name_a_cause() -> None:
    """1.12: what is left out comes from the cause."""
    for (kind, source), cause in DEFAULT_CAUSE.items():
        request = control_request.MaintenanceIn(vms=["db"], type=kind, source=source).to_request()
        assert (request.cause, request.type, request.source) == (cause, kind, source)
    assert control_request.MaintenanceIn(hosts=["h"], type=EventType.REBOOT).to_request().cause == "host-maintenance"


def test_a_cause_may_be_named_and_then_nothing_else_is_said() -> None:
    request = control_request.MaintenanceIn.model_validate(
        {"hosts": ["h", "i", "h"], "cause": "live-migration"}
    ).to_request()
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
    request = control_request.MaintenanceIn.model_validate(content).to_request()
    assert (request.type, request.source, request.impact) == (EventType.REBOOT, EventSource.USER, EventType.FREEZE)
    assert (request.description, request.duration_s) == ("", -1)
    assert request.notice == timedelta(seconds=0.5)
    assert request.not_before == datetime(2026, 11, 21, 10, 15, tzinfo=UTC)
    assert request.force_reason == "drill"


def test_a_reason_without_force_forces_nothing() -> None:
    assert control_request.MaintenanceIn.model_validate(PLAIN | {"reason": "because"}).to_request().force_reason is None


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
    assert expected in faults(control_request.MaintenanceIn, PLAIN | change)


@pytest.mark.parametrize(
    ("model", "content"),
    [
        (control_request.ForcedStartIn, {}),
        (control_request.ForcedStartIn, {"reason": ""}),
        (control_request.ImpactIn, {"duration_s": -1}),
        (control_request.ImpactIn, {"duration_s": 1.5}),
        (control_request.ApprovalIn, {"event_ids": []}),
        (control_request.ApprovalIn, {"event_ids": [""]}),
        (control_request.ApprovalIn, {"event_ids": ["x"] * 1001}),
        (control_request.ClockAdvanceIn, {"by_s": -1}),
        (control_request.ClockAdvanceIn, {"by_s": float("inf")}),
        (control_request.OperationIn, {"force": True}),
        (control_request.FailurePredictionIn, {"type": "Nap"}),
        (control_request.HostFailureIn, {"notice_s": 1}),
        (control_request.ReasonIn, {"reason": "", "more": 1}),
    ],
)
def test_every_body_has_its_limits(model: type[BaseModel], content: dict[str, Any]) -> None:
    faults(model, content)


def test_an_operation_is_one_on_one_vm() -> None:
    body = control_request.OperationIn.model_validate(
        {"notice_s": 60, "source": "Platform", "force": True, "reason": "drill"}
    )
    request = body.to_request("scale-set-delete", "fleet_0")
    assert (request.cause, request.vms, request.hosts) == ("scale-set-delete", ("fleet_0",), ())
    assert (request.notice, request.source, request.force_reason) == (minutes(1), EventSource.PLATFORM, "drill")
    assert request.cause in CAUSES
