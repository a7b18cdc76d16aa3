"""The pure parts of single commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import typer
import yaml

from forewarn.cli.audit_log import format_entry
from forewarn.cli.config import describe_settings
from forewarn.cli.connection import ControlConnection
from forewarn.cli.inventory_document import drop_defaults, format_yaml
from forewarn.cli.maintenance import build_schedule_body
from forewarn.cli.maintenance_options import ScheduleOptions, build_force_body
from forewarn.cli.maintenance_text import (
    describe_created,
    describe_planned,
    describe_quiet_hours_move,
    format_timeline,
)
from forewarn.cli.openapi import openapi_document
from forewarn.cli.output import as_yaml
from forewarn.cli.serve import format_ready_line, parse_assignments
from forewarn.config.description import mask_secrets
from forewarn.config.loading import load_settings
from forewarn.config.settings import Settings
from forewarn.core.model import EventType
from forewarn.wire.control_response import AuditEntryOut

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def entry(**members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of any kind
    nothing = dict.fromkeys(AuditEntryOut.model_fields)
    return nothing | {"sequence": 7, "at": "2030-01-01T00:00:00Z", "kind": "started", "actor": "forewarn"} | members


def body(**said: Any) -> dict[str, Any]:  # noqa: ANN401 - members of any kind
    least: dict[str, Any] = {"vms": ["db"], "event_type": EventType.FREEZE}
    return build_schedule_body(ScheduleOptions(**(least | said)), ControlConnection())


# maintenance


def test_a_moment_is_sent_as_a_moment_and_a_span_as_notice() -> None:
    assert body(not_before="2030-01-01T01:00:00+01:00")["not_before"] == "2030-01-01T00:00:00+00:00"
    assert body(not_before="1h") == body(notice="1h")
    assert body(notice="1h")["notice_s"] == 3600


def test_notice_and_moment_together_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="not both"):
        body(notice="1h", not_before="2030-01-01T01:00:00Z")


def test_a_cause_alone_says_enough() -> None:
    assert body(event_type=None, cause="live-migration")["cause"] == "live-migration"


def test_force_comes_with_its_reason() -> None:
    assert build_force_body(force=True, reason="urgent") == {"force": True, "reason": "urgent"}
    assert build_force_body(force=False, reason=None) == {}


def made(**members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of any kind
    plain: dict[str, Any] = {
        "id": "k3",
        "state": "scheduled",
        "type": "Freeze",
        "vms": ["db"],
        "not_before": "2030-01-01T00:15:00Z",
    }
    plain |= {"cause": "live-migration", "moved_from": None, "moved_by": [], "unwarned_vms": []}
    return plain | {"events": [{"id": "E1", "resources": ["db"], "scope": "db"}]} | members


def test_what_was_made_is_told_with_its_events() -> None:
    assert describe_created([made()], NOW) == [
        "maintenance k3 is scheduled: Freeze of db, not before 2030-01-01 00:15:00Z (in 15m)",
        "  event E1 for db (db)",
    ]


def test_who_is_hit_without_a_warning_is_said() -> None:
    """R70c."""
    lines = describe_created([made(unwarned_vms=["a", "b"])], NOW)
    assert lines[-1] == "  not warned: a, b (have not asked for events)"
    lines = describe_created([made(cause="os-upgrade", events=[], unwarned_vms=["db"])], NOW)
    assert lines[-1] == "  not warned: db (has not asked for events, or not opted in to events of this kind)"
    many = describe_created([made(unwarned_vms=[f"vm-{number}" for number in range(60)])], NOW)[-1]
    assert "vm-49 and 10 more (have" in many


def test_that_quiet_hours_have_moved_it_is_said() -> None:
    moved = made(moved_from="2030-01-01T00:10:00Z", moved_by=["web", "db"])
    assert describe_created([moved], NOW)[1] == "  moved from 2030-01-01 00:10:00Z by quiet hours of web, db"
    assert (
        describe_quiet_hours_move(moved | {"moved_by": []})
        == "from 2030-01-01 00:10:00Z by quiet hours of another tenant"
    )


def planned(**members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of any kind
    found = made(state="planned", would_be="scheduled", events=[{"resources": ["db"], "scope": "db"}], **members)
    return {name: value for name, value in found.items() if name != "id"}


def test_a_dry_run_says_what_would_be_and_nothing_that_is() -> None:
    """R70c."""
    lines = describe_planned([planned(unwarned_vms=["a"])], NOW)
    assert lines == [
        "dry run: nothing is announced",
        "would be scheduled: Freeze of db, not before 2030-01-01 00:15:00Z (in 15m)",
        "  would warn db (db)",
        "  not warned: a (has not asked for events)",
    ]
    assert describe_planned([planned() | {"would_be": "started"}], NOW)[1] == "would start immediately: Freeze of db"
    queued = planned() | {"would_be": "queued", "not_before": None, "events": []}
    assert describe_planned([queued], NOW)[1:] == ["would be queued behind other maintenance: Freeze of db"]


def test_now_and_a_time_are_refused_together() -> None:
    """R70a."""
    assert body(now=True)["now"] is True
    assert body()["now"] is None
    with pytest.raises(typer.BadParameter, match="not both"):
        body(now=True, notice="1h")
    with pytest.raises(typer.BadParameter, match="not both"):
        body(now=True, not_before="1h")


def test_a_queued_maintenance_has_no_moment_yet() -> None:
    lines = describe_created([made(state="queued", not_before=None, events=[])], NOW)
    assert lines == ["maintenance k3 is queued: Freeze of db"]


def test_the_timeline_counts_from_the_first_entry_and_tells_who_from_where() -> None:
    lines = format_timeline(
        [
            entry(kind="scheduled", actor="operator:local"),
            entry(kind="approved", at="2030-01-01T00:02:03Z", actor="vm:db", source_address="10.9.0.13", scope="db"),
            entry(at="2030-01-01T00:02:03Z", reason="all agree"),
        ]
    )
    assert lines[0].split() == ["2030-01-01", "00:00:00Z", "scheduled", "by", "operator:local"]
    assert "+2m 3s  approved    by vm:db from 10.9.0.13  for db" in lines[1]
    assert lines[2].endswith("(all agree)")


# audit log


def test_an_audit_log_line_names_all_that_is_known() -> None:
    line = format_entry(
        entry(maintenance_id="k3", event_id="E1", scope="web", source_address="10.9.0.11", reason="now")
    )
    assert line.split() == [
        "7", "2030-01-01", "00:00:00Z", "started", "forewarn", "maintenance=k3", "event=E1", "scope=web",
        "from=10.9.0.11", '"now"',
    ]  # fmt: skip


# inventory


def test_an_inventory_is_shown_without_what_says_nothing_but_with_zeros_and_flags() -> None:
    vm: dict[str, Any] = {
        "name": "db",
        "scope": None,
        "addresses": [],
        "tags": {},
        "location": "",
        "fault_domain": 0,
        "enable": False,
    }
    assert drop_defaults(vm) == {"name": "db", "fault_domain": 0, "enable": False}


def test_of_a_policy_it_shows_what_was_said() -> None:
    policy = {
        "approve_user_operations": False,
        "approve_freezes_up_to": None,
        "quiet_hours": [],
        "approvers": ["vm", "operator", "tenant"],
        "user_operations_max": 2,
    }
    scope = {"name": "web", "policy": policy}
    assert drop_defaults(scope) == {"name": "web", "policy": {"user_operations_max": 2}}


def test_an_inventory_is_printed_item_by_item_as_it_would_be_as_a_whole() -> None:
    vms = [
        {"name": "db", "host": "host-1", "size": "x" * 200 + " y" * 60, "tags": {"yes": "no", "é": "1"}},
        {"name": "007", "host": "host-1", "addresses": ["10.0.0.1", "fd00::1"]},
    ]
    declared: dict[str, Any] = {"hosts": [{"name": "host-1"}], "scopes": [], "vms": vms}
    text = "".join(format_yaml(declared.items()))
    assert text == as_yaml({noun: [drop_defaults(item) for item in items] for noun, items in declared.items()})
    assert yaml.safe_load(text) == declared


# config


def test_every_setting_is_described_with_value_default_and_variable() -> None:
    settings = {setting["name"]: setting for setting in describe_settings()}
    assert set(settings) == set(Settings.model_fields)
    assert all(setting["description"] for setting in settings.values())
    assert settings["notice_max"]["default"] == "90d"
    assert settings["notice_max"]["unit"] == "s, m, h or d"
    assert settings["body_size_bytes_max"]["unit"] == "bytes"
    assert settings["clock"]["variable"] == "FOREWARN_CLOCK"


def test_what_the_environment_says_differs_from_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_NOTICE_MAX", "7d")
    setting = next(setting for setting in describe_settings() if setting["name"] == "notice_max")
    assert (setting["value"], setting["default"], setting["source"]) == ("7d", "90d", "environment")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:pass@db/forewarn", "postgresql://ann:***@db/forewarn"),
        ("postgresql://ann:p@ss@db/forewarn", "postgresql://ann:***@db/forewarn"),
        ("postgresql://ann@db/forewarn", "postgresql://ann@db/forewarn"),
        ("sqlite:///forewarn.db", "sqlite:///forewarn.db"),
        ("postgresql:///forewarn?password=abc&host=db", "postgresql:///forewarn?password=***&host=db"),
        ("https://hooks.example/T1?api_key=abc", "https://hooks.example/T1?api_key=***"),
        (5, 5),
    ],
)
def test_a_password_is_not_shown(url: object, shown: object) -> None:
    assert mask_secrets(url) == shown


def test_digits_name_a_status_and_none_unsets_a_setting() -> None:
    settings = load_settings(unknown_event="404", simulate_complete_after="none", rate_limit_per_s="none")
    assert settings.unknown_event == 404
    assert settings.simulate_complete_after is None
    assert settings.rate_limit_per_s is None
    assert load_settings(require_metadata_2017_03_01="none").require_metadata_2017_03_01 == "none"


# openapi


def test_the_openapi_document_describes_every_resource() -> None:
    paths = openapi_document()["paths"]
    assert {"/v1/maintenance", "/v1/events/approve", "/v1/watch", "/healthz"} <= set(paths)


# serve


def test_assignments_take_names_with_dashes_and_values_with_equals_signs() -> None:
    assert parse_assignments(["notice-max=7d", "database_url=sqlite:///a=b"], Settings) == {
        "notice_max": "7d",
        "database_url": "sqlite:///a=b",
    }


def test_the_ready_line_tells_where_and_how_much() -> None:
    urls = ["http://127.0.0.1:8169", "http://127.0.0.2:80"]
    assert format_ready_line(urls, "http://127.0.0.1:8170", 3, 2) == (
        "forewarn is ready: metadata http://127.0.0.1:8169, http://127.0.0.2:80, control http://127.0.0.1:8170 "
        "(3 VMs on 2 hosts)"
    )
    assert format_ready_line(urls, "http://127.0.0.1:8170", 1, 1).endswith("(1 VM on 1 host)")
