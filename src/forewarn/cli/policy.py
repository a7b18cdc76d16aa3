"""`forewarn policy`: the policy that applies to a VM or a scope, and the starts that it allows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.completers import scope_names, vm_names
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.output import (
    Column,
    Output,
    format_count,
    format_moment,
    format_relative,
    format_seconds,
    parse_moment,
)
from forewarn.cli.times import as_duration_s, as_span_s
from forewarn.core.model import EventType

__all__ = ["app"]

app = make_group("policy", "Show the policies that apply to VMs and scopes.", "Declare")


@command(
    app,
    "show",
    "forewarn policy show WestNO_0",
    "forewarn policy show --scope web",
    "forewarn policy show WestNO_0 --type Reboot --notice 30m",
    "forewarn policy show --scope web --type Freeze --duration 10s --json",
)
def show(
    connection: ControlConnection,
    output: Output,
    vm: Annotated[
        str | None, typer.Argument(metavar="VM", help="Name of the VM.", autocompletion=vm_names, show_default=False)
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show the policy of this scope instead.", autocompletion=scope_names),
    ] = None,
    event_type: Annotated[
        EventType | None,
        typer.Option(
            "--type",
            case_sensitive=False,
            metavar="TYPE",
            help=f"Also show the earliest start of a maintenance of this type: {', '.join(EventType)}.",
        ),
    ] = None,
    notice: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Notice of this maintenance. (default: the minimum of the type)")
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="Duration of this maintenance, or 'unknown'. (default: the duration of its cause)"
        ),
    ] = None,
) -> None:
    """Show the policy that applies to a VM or a scope, why it is this one, and its next quiet hours.

    With --type, also show when a maintenance by the platform that is announced now could start, and why. Other
    maintenance of the same VMs is left out of account: 'forewarn maintenance schedule --dry-run' includes it.
    """
    if (vm is None) == (scope is None):
        raise typer.BadParameter("name either a VM or a scope", param_hint="--scope")
    if event_type is None and (notice is not None or duration is not None):
        raise typer.BadParameter("is needed with --notice and --duration", param_hint="--type")
    place = f"vms/{quote_segment(vm)}" if vm is not None else f"scopes/{quote_segment(scope or '')}"
    params = {
        "type": event_type,
        "notice_s": as_span_s(notice, "--notice"),
        "duration_s": as_duration_s(duration, "--duration"),
    }
    found = connection.get(f"/v1/{place}/policy", **params)
    if output.print_if_json(found):
        return
    output.print_fields(
        [
            ("vm", found["vm"]),
            ("scope", found["scope"]),
            ("policy", _ORIGINS[found["origin"]]),
            ("why", found["reason"]),
        ]
    )
    output.print_heading("Rules")
    output.print_fields([(rule["name"], rule["text"]) for rule in found["rules"]])
    if found["next_quiet_hours"]:
        output.print_heading("Next quiet hours")
        output.print_table(found["next_quiet_hours"], _PERIOD_COLUMNS)
    if found["extensions"]:
        output.print_heading("Extensions left")
        output.print_table(found["extensions"], _EXTENSION_COLUMNS)
    if found["start"] is not None:
        now = parse_moment(connection.get("/v1/clock")["now"])
        output.print_heading(f"Earliest start of a {found['start']['type']} announced now")
        output.print_fields(_list_start_fields(found["start"], now))


_ORIGINS = {"scope": "that of the scope", "vm": "the VM's own", "default": "none is declared: the default"}


def _format_local(text: str) -> str:
    return f"{datetime.fromisoformat(text):%a %Y-%m-%d %H:%M}"


def _format_extension(left: dict[str, Any]) -> str:
    if not left["times_left"]:
        return "none"
    return f"{format_seconds(left['time_left_s'])} in {format_count(left['times_left'], 'extension')}"


_PERIOD_COLUMNS = [
    Column("from", lambda each: _format_local(each["local_begin"])),
    Column("to", lambda each: _format_local(each["local_end"])),
    Column("time zone", "timezone"),
    Column("from in utc", lambda each: format_moment(each["begin"])),
    Column("to in utc", lambda each: format_moment(each["end"])),
]

_EXTENSION_COLUMNS = [
    Column("maintenance", "maintenance_id"),
    Column("type"),
    Column("not before", lambda each: format_moment(each["not_before"])),
    Column("left", _format_extension),
]


def _list_start_fields(start: dict[str, Any], now: datetime) -> list[tuple[str, object]]:
    def show_time(member: str) -> str | None:
        text = start[member]
        return None if text is None else f"{format_moment(text)} ({format_relative(text, now)})"

    times = [("refused", "yes")] if start["is_refused"] else []
    times += [
        (title, text)
        for title, member in (
            ("not before", "not_before"),
            ("starts", "starts_at"),
            ("if approved now", "approved_starts_at"),
        )
        if (text := show_time(member)) is not None
    ]
    return [*times, *(("why" if number == 0 else "", reason) for number, reason in enumerate(start["reasons"]))]
