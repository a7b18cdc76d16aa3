"""Parts of the history on the command line: CSV, long JSON, the story of a VM."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer

from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_options import HistoryFilter
from forewarn.cli.list_output import CSV_COLUMNS, escape_cell, print_csv, print_items
from forewarn.cli.output import Output
from forewarn.cli.vm_history import format_episode
from forewarn.wire.control_response import AuditEntryOut, EventOut, HostOut, MaintenanceOut, VmOut
from forewarn.wire.history import EpisodeOut


def test_csv_has_every_member_that_is_no_table_itself() -> None:
    shown = {name: columns.split() for name, columns in CSV_COLUMNS.items()}
    assert shown["audit-log"] == list(AuditEntryOut.model_fields)
    assert shown["events"] == list(EventOut.model_fields)
    assert shown["vms"] == list(VmOut.model_fields)
    assert shown["hosts"] == list(HostOut.model_fields)
    assert shown["maintenances"] == [name for name in MaintenanceOut.model_fields if name != "events"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\\r=1"),
        (["=a", "b"], "'=a, b"),
        ("urgent = now", "urgent = now"),
        (-1, -1),
        (None, None),
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_is_text(value: object, cell: object) -> None:
    assert escape_cell(value) == cell


def test_csv_is_quoted_and_has_a_line_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(CSV_COLUMNS["audit-log"].split())
    print_csv([nothing | {"sequence": 7, "reason": 'a "b",\nc'}], "audit-log", Output())
    names, row = capsys.readouterr().out.split("\n", 1)
    assert names == CSV_COLUMNS["audit-log"].replace(" ", ",")
    assert row == '7,,,,,,,,,,"a ""b"",\nc"\n'


@pytest.mark.parametrize("items", [[], [{"a": "ä"}], [{"a": 1}, {"a": [2, {"b": None}]}]])
def test_a_long_list_is_printed_as_a_short_one(items: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    print_items(items, Output(is_json=True))
    printed = capsys.readouterr().out
    assert printed == json.dumps(items, ensure_ascii=False) + "\n"


def test_a_moment_is_sent_as_it_is_and_an_empty_name_is_refused() -> None:
    connection = ControlConnection()
    said = HistoryFilter(since="2030-01-01T01:00:00+01:00", vm="db").to_query_params(connection)
    assert (said["since"], said["vm"], said["scope"]) == ("2030-01-01T00:00:00+00:00", "db", None)
    with pytest.raises(typer.BadParameter, match="must not be empty"):
        HistoryFilter(scope="").to_query_params(connection)


def told(**members: Any) -> dict[str, Any]:  # noqa: ANN401 - members of any kind
    plain: dict[str, Any] = dict.fromkeys(EpisodeOut.model_fields)
    plain |= {"vm": "db", "maintenance_id": "k3", "state": "completed", "cause": "host-maintenance", "type": "Reboot"}
    plain |= {
        "impact": "Reboot",
        "source": "Platform",
        "description": "",
        "host": "host-1",
        "hosts": [],
        "vms_count": 1,
    }
    plain |= {"created_at": "2030-01-01T00:00:00Z", "others_pending": 0, "further_impacts": 0, "duration_s": -1}
    return plain | members


def test_a_whole_story() -> None:
    why = 'host-maintenance, by Platform: "Repair."; requested by operator:ann, with 2 other VMs on host-1'
    lines = format_episode(
        told(
            description="Repair.",
            hosts=["host-1"],
            vms_count=3,
            requested_by="operator:ann",
            announced_at="2030-01-01T00:05:00Z",
            not_before="2030-01-01T00:20:00Z",
            notice_s=900.0,
            event_id="E",
            event_status="Completed",
            seen_at="2030-01-01T00:05:01Z",
            seen_by="request",
            approved={
                "at": "2030-01-01T00:06:00Z",
                "by": "vm:db",
                "source_address": "10.0.0.1",
                "api_version": "2020-07-01",
            },
            started_at="2030-01-01T00:07:00Z",
            impacted_at="2030-01-01T00:07:05Z",
            impact_s=4.2,
            duration_s=9,
            ended_at="2030-01-01T00:09:00Z",
        )
    )
    assert lines == [
        "2030-01-01 00:00:00Z  Reboot, completed",
        f"  cause     {why} (maintenance k3)",
        "  announced 2030-01-01 00:05:00Z, not before 2030-01-01 00:20:00Z: 15m of notice, after 5m in the queue",
        "  seen      2030-01-01 00:05:01Z at the latest, from its request",
        "  approved  2030-01-01 00:06:00Z by vm:db from 10.0.0.1, api-version 2020-07-01, 1m after the announcement",
        "  started   2030-01-01 00:07:00Z, once all had approved",
        "  away      4s measured; announced 9s",
        "  ended     2030-01-01 00:09:00Z, completed, 2m after the start",
    ]


def test_what_struck_at_once_has_no_notice_and_no_approval() -> None:
    lines = format_episode(
        told(
            announced_at="2030-01-01T00:00:00Z",
            started_at="2030-01-01T00:00:00Z",
            event_id="E",
            state="started",
            event_status="Started",
        )
    )
    words = [line.split()[0] for line in lines[1:]]
    assert words == ["cause", "announced", "seen", "started", "away"]
    assert "without notice" in lines[2]
    assert "no impact reported yet; announced unknown" in lines[-1]


def test_what_waits_in_the_queue_has_not_been_announced() -> None:
    lines = format_episode(told(state="queued"))
    assert lines[0].endswith("Reboot, queued")
    assert lines[-1] == "  announced not yet: queued"
