"""`forewarn maintenance`: schedule, show, cancel, start, complete."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from forewarn.cli import maintenance_changes, maintenance_wait
from forewarn.cli.clock import get_service_time
from forewarn.cli.command import command, make_group
from forewarn.cli.completers import maintenance_ids
from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_options import CsvListOptions, HistoryFilter
from forewarn.cli.list_output import print_page
from forewarn.cli.maintenance_changes import build_maintenance_path
from forewarn.cli.maintenance_options import ReasonOption, ScheduleOptions, build_force_body
from forewarn.cli.maintenance_text import (
    describe_planned,
    describe_postponements,
    describe_quiet_hours_move,
    describe_start,
    describe_unwarned,
    format_time,
    format_timeline,
    print_created,
)
from forewarn.cli.output import Column, Output, format_moment, format_seconds, show_moment
from forewarn.cli.times import as_duration_s, as_moment_or_span, as_span_s, split_names
from forewarn.core.model import ACTIVE_STATES, MaintenanceState

__all__ = ["app", "build_schedule_body"]

_Id = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the maintenance, or its beginning.", autocompletion=maintenance_ids)
]

app = make_group("maintenance", "Schedule, show, start, postpone and cancel maintenance.", "Operate")


@command(
    app,
    "schedule",
    "forewarn maintenance schedule --host host-1 --type Freeze",
    "forewarn maintenance schedule --vm WestNO_0,WestNO_1 --type Reboot --notice 30m",
    "forewarn maintenance schedule --host host-1 --cause host-maintenance --not-before 2030-01-31T12:00:00Z",
    'forewarn maintenance schedule --vm db --type Freeze --notice 1m --force --reason "urgent repair"',
    "forewarn maintenance schedule --vm build-7 --type Reboot --now",
    "forewarn maintenance schedule --selector rack=r1 --type Reboot --dry-run",
)
def schedule(connection: ControlConnection, output: Output, wanted: ScheduleOptions) -> None:
    """Announce maintenance of hosts or VMs.

    VMs that must not be hit together are put into separate maintenances; the later ones are queued.

    If no affected VM has asked for events, Spot evictions and maintenance with source User start immediately,
    unless you give --notice or --not-before. Other maintenance normally waits for NotBefore, even if no affected VM
    has asked for events.
    """
    body = build_schedule_body(wanted, connection)
    content = {k: v for k, v in body.items() if v is not None}
    if wanted.dry_run:
        planned = connection.send_change("POST", "/v1/maintenance/plan", content)["items"]
        if not output.print_if_json(planned):
            output.print_lines(describe_planned(planned, get_service_time(connection)))
        return
    made = connection.send_change("POST", "/v1/maintenance", content)
    print_created(output, connection, made["items"])


@command(
    app,
    "list",
    "forewarn maintenance list",
    "forewarn maintenance list --active --sort not_before",
    "forewarn maintenance list --host host-1 --watch",
    "forewarn maintenance list --state failed --limit 500 --json",
    "forewarn maintenance list --since 30d --host host-1 --csv > host-1.csv",
)
def list_maintenances(
    connection: ControlConnection,
    output: Output,
    choice: HistoryFilter,
    options: CsvListOptions,
    states: Annotated[
        list[MaintenanceState] | None,
        typer.Option(
            "--state",
            case_sensitive=False,
            metavar="STATE",
            help=f"Only maintenance in this state ({', '.join(MaintenanceState)}); repeatable.",
        ),
    ] = None,
    active: Annotated[bool, typer.Option("--active", help="Only queued, scheduled and started maintenance.")] = False,
) -> None:
    """List maintenances, newest first; --since and --until refer to the time of creation."""
    wanted = [*(states or []), *(sorted(ACTIVE_STATES) if active else [])]
    params = choice.to_query_params(connection) | {"state": [str(state) for state in wanted]}
    print_page(
        connection,
        output,
        "/v1/maintenance",
        lambda: _make_columns(connection),
        options=options,
        list_name="maintenances",
        params=params,
        empty="no maintenance",
    )


@command(app, "show", "forewarn maintenance show k3v9xq2mab")
def show(maintenance_id: _Id, connection: ControlConnection, output: Output) -> None:
    """Show one maintenance: its events, their approvals, and its history."""
    m = connection.get(build_maintenance_path(connection, maintenance_id))
    if output.print_if_json(m):
        return
    now = get_service_time(connection)
    turns_out = "" if m["impact"] == m["type"] else f", actual impact {m['impact']}"
    output.print_fields(
        [
            ("id", m["id"]),
            ("state", m["state"]),
            ("type", f"{m['type']}{turns_out}"),
            ("cause", f"{m['cause']} ({m['source']})"),
            ("description", m["description"]),
            ("hosts", m["hosts"]),
            ("vms", m["vms"]),
            ("not before", format_time(m["not_before"], now if m["state"] == MaintenanceState.SCHEDULED else None)),
            ("moved", describe_quiet_hours_move(m)),
            ("started", format_time(m["started_at"], now if m["state"] == MaintenanceState.STARTED else None)),
            ("ended", format_moment(m["ended_at"])),
            ("latest start", format_moment(m["latest_start"])),
            ("postponed", describe_postponements(m)),
            ("duration", "unknown" if m["duration_s"] < 0 else format_seconds(m["duration_s"])),
            ("forced", m["force_reason"]),
        ]
    )
    if m["events"] or m["unwarned_vms"]:
        output.print_heading("Events")
        unwarned = {"status": "not warned", "resources": m["unwarned_vms"]}
        rows = [*m["events"], *([unwarned] if m["unwarned_vms"] else [])]
        output.print_table(
            rows,
            [
                Column("event", lambda e: e.get("id")),
                Column("status", is_state=True),
                Column("scope", lambda e: e.get("scope")),
                Column("resources", is_whole=False),
                Column("approved by", lambda e: e.get("approved_by"), is_whole=False),
            ],
        )
    if m["unwarned_vms"]:
        is_past = m["state"] not in {MaintenanceState.QUEUED, MaintenanceState.SCHEDULED}
        output.print_line(describe_unwarned(m, is_past=is_past))
    output.print_heading("History")
    output.print_lines(format_timeline(list(connection.iterate_items("/v1/audit-log", maintenance=m["id"]))))


@command(app, "complete", "forewarn maintenance complete k3v9xq2mab")
def complete(maintenance_id: _Id, connection: ControlConnection, output: Output) -> None:
    """Report that a started maintenance is over: its events disappear, and the VMs take up work again."""
    _send_change(connection, output, maintenance_id, "complete", None)


@command(app, "impact", "forewarn maintenance impact k3v9xq2mab --duration 2s")
def impact(
    maintenance_id: _Id,
    connection: ControlConnection,
    output: Output,
    duration: Annotated[str, typer.Option(metavar="SPAN", help="Duration of the impact.")],
) -> None:
    """Record another impact (interruption of the VMs) of a started maintenance. The VMs' events do not change."""
    body = {"duration_s": as_duration_s(duration, "--duration")}
    _send_change(connection, output, maintenance_id, "impact", body)


@command(
    app,
    "defer",
    "forewarn maintenance defer k3v9xq2mab --by 2h",
    'forewarn maintenance defer k3v9xq2mab --until 2030-01-31T20:00:00Z --reason "end of the month"',
)
def defer(
    maintenance_id: _Id,
    connection: ControlConnection,
    output: Output,
    by: Annotated[str | None, typer.Option(metavar="SPAN", help="Span to add to NotBefore.")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="New NotBefore: RFC 3339, or a span from now.")
    ] = None,
    reason: ReasonOption = None,
) -> None:
    """Defer a scheduled maintenance, at most to the --latest-start that was given to 'maintenance schedule'."""
    if (by is None) == (until is None):
        msg = "give one of them" if by is None else "give one of them, not both"
        raise typer.BadParameter(msg, param_hint="--by, --until")
    body = {
        "by_s": as_span_s(by, "--by"),
        "not_before": _parse_time(connection, until, "--until"),
        "reason": reason,
    }
    _send_move(connection, output, maintenance_id, "defer", body)


@command(
    app,
    "extend",
    "forewarn maintenance extend k3v9xq2mab --by 5m",
    'forewarn maintenance extend k3v9xq2mab --by 5m --scope web --reason "the backup is not done"',
)
def extend(
    maintenance_id: _Id,
    connection: ControlConnection,
    output: Output,
    by: Annotated[str, typer.Option(metavar="SPAN", help="Additional time to prepare.")],
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Scope or standalone VM that needs more time. Required if several scopes or standalone VMs have "
            "events of this maintenance. If a scope and a VM have the same name, write scope:NAME or vm:NAME.",
        ),
    ] = None,
    reason: ReasonOption = None,
) -> None:
    """Give VMs more time to prepare for a scheduled maintenance, as far as the policy of their scope allows."""
    _send_move(
        connection,
        output,
        maintenance_id,
        "extend",
        {"by_s": as_span_s(by, "--by"), "scope": scope, "reason": reason},
    )


app.add_typer(maintenance_changes.app)
app.add_typer(maintenance_wait.app)


def build_schedule_body(wanted: ScheduleOptions, connection: ControlConnection) -> dict[str, Any]:
    """Return the maintenance as the API takes it; None for what is not given.

    Raises:
        typer.BadParameter: Something is missing, or given twice.
    """
    hosts, vms = split_names(wanted.hosts), split_names(wanted.vms)
    targets = [bool(hosts), bool(vms), wanted.selector is not None]
    if sum(targets) != 1:
        msg = "name hosts or VMs, or select hosts by their labels" + (", not several of them" if any(targets) else "")
        raise typer.BadParameter(msg, param_hint="--host, --vm, --selector")
    if wanted.event_type is None and wanted.cause is None:
        raise typer.BadParameter("give a type, for example --type Freeze, or a --cause", param_hint="--type")
    if wanted.notice is not None and wanted.not_before is not None:
        raise typer.BadParameter("give one of them, not both", param_hint="--notice, --not-before")
    if wanted.now and (wanted.notice is not None or wanted.not_before is not None):
        raise typer.BadParameter("give --now or a time, not both", param_hint="--now")
    notice_s = as_span_s(wanted.notice, "--notice")
    moment: datetime | None = None
    if wanted.not_before is not None:
        # A span from now is sent as a notice, so that it counts from the clock of the service, which may be virtual.
        when = as_moment_or_span(wanted.not_before, "--not-before")
        if isinstance(when, datetime):
            moment = when
        else:
            notice_s = when
    return {
        "hosts": hosts,
        "vms": vms,
        "selector": wanted.selector,
        "type": wanted.event_type,
        "cause": wanted.cause,
        "notice_s": notice_s,
        "not_before": None if moment is None else moment.isoformat(),
        "now": wanted.now or None,
        "description": wanted.description,
        "source": wanted.source,
        "impact": wanted.impact,
        "duration_s": as_duration_s(wanted.duration, "--duration"),
        "latest_start": _parse_time(connection, wanted.latest_start, "--latest-start"),
    } | build_force_body(force=wanted.force, reason=wanted.reason)


def _make_columns(connection: ControlConnection) -> list[Column]:
    get_now = functools.cache(lambda: get_service_time(connection))
    return [
        Column("id"),
        Column("state", is_state=True),
        Column("type"),
        Column("start", lambda m: describe_start(m, get_now())),
        Column("approved", _count_approvals),
        Column("cause", is_wide=True),
        Column("source", is_wide=True),
        Column("created", show_moment("created_at"), is_wide=True),
        Column("hosts", is_whole=False, is_wide=True),
        Column("vms", is_whole=False),
        Column("description", is_whole=False, is_wide=True),
    ]


def _count_approvals(m: dict[str, Any]) -> str:
    events = m["events"]
    return f"{sum(e['approved_at'] is not None for e in events)}/{len(events)}" if events else "-"


def _parse_time(connection: ControlConnection, text: str | None, hint: str) -> str | None:
    """Return a time as the API takes it; a span counts from the service's clock."""
    if text is None:
        return None
    when = as_moment_or_span(text, hint)
    return (when if isinstance(when, datetime) else get_service_time(connection) + timedelta(seconds=when)).isoformat()


def _send_move(
    connection: ControlConnection, output: Output, maintenance_id: str, verb: str, body: dict[str, Any]
) -> None:
    sent = {name: value for name, value in body.items() if value is not None}
    changed = connection.send_change("POST", build_maintenance_path(connection, maintenance_id, verb), sent)
    if not output.print_if_json(changed):
        when = format_time(changed["not_before"], get_service_time(connection))
        output.print_line(f"maintenance {changed['id']} is {changed['state']}, not before {when}")
        moved = describe_quiet_hours_move(changed)
        if moved is not None:
            output.print_line(f"  moved {moved}")


def _send_change(connection: ControlConnection, output: Output, maintenance_id: str, verb: str, body: object) -> None:
    changed = connection.send_change("POST", build_maintenance_path(connection, maintenance_id, verb), body)
    output.print_result(changed, f"maintenance {changed['id']} is {changed['state']}")
