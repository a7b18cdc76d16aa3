"""`forewarn status`: health of the service, and what needs attention, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import typer

from forewarn.cli.command import command
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import (
    Column,
    Output,
    format_count,
    format_moment,
    format_names,
    format_relative,
    format_seconds,
    parse_moment,
)

__all__ = ["app"]

_UNWELL = 1
_NAMES_MAX = 3
_SHOWN_MAX = 15

app = typer.Typer()


@command(app, "status", "forewarn status", "forewarn status --json", panel="Operate")
def status(connection: ControlConnection, output: Output) -> None:
    """Show the health of the service, and the maintenances and hosts that need attention.

    Exit status: 0 if all is well, 1 if the service has a problem or anything needs attention, 3 if the service cannot
    be reached.
    """
    found = connection.get("/v1/status")
    if not output.print_if_json(found):
        _print_status(output, connection, found)
    if not found["is_well"]:
        raise typer.Exit(_UNWELL)


def _print_status(output: Output, connection: ControlConnection, found: dict[str, Any]) -> None:
    now = parse_moment(found["now"])
    output.print_fields(
        [
            ("service", f"{connection.url}, version {found['version']}"),
            ("replicas", _describe_replicas(found["replicas"])),
            ("clock", _describe_clock(found)),
            ("database", _describe_database(found["database"])),
            ("endpoints", _describe_endpoints(found["endpoints"])),
            ("inventory", ", ".join(_count_inventory(found["inventory"]))),
            ("maintenance", _format_counts(found["maintenances"])),
            ("rollouts", _format_counts(found["rollouts"])),
        ]
    )
    if found["problems"]:
        output.print_heading("Problems")
        output.print_fields([(problem["name"], problem["text"]) for problem in found["problems"]])
    if not found["attention"]:
        if found["is_well"]:
            output.print_line()
            output.print_line("all is well: nothing needs attention")
        return
    count = found["attention_count"]
    output.print_heading(f"Needs attention: {count}")
    output.print_table(found["attention"][:_SHOWN_MAX], _make_attention_columns(now))
    if count > _SHOWN_MAX:
        output.print_line(f"and {count - _SHOWN_MAX} more: see the dashboard, or use --json")


def _make_attention_columns(now: datetime) -> list[Column]:
    return [
        Column("problem"),
        Column("what", _describe_subject),
        Column("id"),
        Column("time", lambda each: format_relative(each["at"], now)),
        Column("explanation", "text", is_whole=False),
    ]


def _describe_subject(each: dict[str, Any]) -> str:
    if each["kind"] == "host":
        return "host"
    return f"{each['type']} of {format_names(each['hosts'] or each['vms'], _NAMES_MAX)}"


def _describe_replicas(replicas: dict[str, Any]) -> str:
    up = f"up {format_seconds(replicas['up_s'])}"
    if replicas["role"] == "single":
        return f"single, {up}"
    count = "" if replicas["count"] is None else f"{format_count(replicas['count'], 'replica')}; "
    leader = replicas["leader"] or "none is known"
    return f"{count}answered by {replicas['name']} ({replicas['role']}, {up}); leader: {leader}"


def _describe_clock(found: dict[str, Any]) -> str:
    clock = found["clock"]
    skew = f", {abs(found['skew_s']):.1f} s {'ahead of' if found['skew_s'] > 0 else 'behind'} the database's"
    return f"{clock['clock']}, {format_moment(clock['now'])}{skew if abs(found['skew_s']) >= _SKEW_SHOWN_S else ''}"


_SKEW_SHOWN_S = 0.1


def _describe_database(database: dict[str, Any]) -> str:
    return f"{database['kind']}, {'takes changes' if database['is_writable'] else 'takes no changes'}"


def _describe_endpoints(endpoints: dict[str, Any]) -> str:
    count = endpoints["connected"]
    if not count:
        return "no host endpoint is connected to this replica"
    oldest, newest = (format_seconds(endpoints[each]) for each in ("oldest_s", "newest_s"))
    age = f"for {oldest}" if count == 1 else f"the first for {oldest}, the last for {newest}"
    return f"{format_count(count, 'host endpoint')} connected to this replica, {age}"


def _count_inventory(inventory: dict[str, int]) -> Iterator[str]:
    for member, noun in (("hosts", "host"), ("scopes", "scope"), ("vms", "VM")):
        yield format_count(inventory[member], noun)


def _format_counts(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "not known: the database cannot be read"
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none active"
