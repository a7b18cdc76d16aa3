"""Maintenance in words, as the commands print it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from forewarn.cli.clock import get_service_time
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import (
    Output,
    format_count,
    format_moment,
    format_names,
    format_relative,
    format_seconds,
    parse_moment,
)
from forewarn.core.causes import CAUSES
from forewarn.core.model import MaintenanceState

__all__ = [
    "describe_created",
    "describe_planned",
    "describe_postponements",
    "describe_quiet_hours_move",
    "describe_start",
    "describe_unwarned",
    "format_time",
    "format_timeline",
    "print_created",
]

_NAMES_MAX = 50


def format_time(text: str | None, now: datetime | None) -> str | None:
    """Format a time; with its distance from `now`, unless that is None."""
    if text is None or now is None:
        return format_moment(text)
    return f"{format_moment(text)} ({format_relative(text, now)})"


def describe_start(m: dict[str, Any], now: datetime) -> str | None:
    """Return when a maintenance starts at the latest, or has started, relative to `now`; None if it does not start."""
    if m["state"] == MaintenanceState.SCHEDULED:
        # After NotBefore it waits for nothing but another maintenance, or the service itself.
        is_due = parse_moment(m["not_before"]) <= now
        return f"{'due ' if is_due else ''}{format_relative(m['not_before'], now)}"
    return format_relative(m["started_at"], now)


def format_timeline(entries: list[dict[str, Any]]) -> list[str]:
    """Return a line for each entry, with the time since the first."""
    lines = []
    for entry in entries:
        since_s = (datetime.fromisoformat(entry["at"]) - datetime.fromisoformat(entries[0]["at"])).total_seconds()
        who = entry["actor"] if entry["source_address"] is None else f"{entry['actor']} from {entry['source_address']}"
        parts = [
            f"{format_moment(entry['at'])}",
            f"{'+' + format_seconds(since_s) if since_s else '':>8}",
            f"{entry['kind']:<10}",
            f"by {who}",
            f"for {entry['scope']}" if entry["scope"] is not None else "",
            f"({entry['reason']})" if entry["reason"] else "",
        ]
        lines.append("  ".join(part for part in parts if part))
    return lines


def describe_postponements(m: dict[str, Any]) -> str | None:
    """Describe deferrals and extensions; None if there were none."""
    counts = ((m["deferrals"], "deferred"), (m["extensions"], "extended"))
    parts = [f"{word} {format_count(count, 'time')}" for count, word in counts if count]
    return ", ".join(parts) + (f" by {format_seconds(m['extended_s'])} in total" if m["extensions"] else "") or None


def print_created(output: Output, connection: ControlConnection, created: list[dict[str, Any]]) -> None:
    """Print the maintenances that a request created."""
    if not output.print_if_json(created):
        output.print_lines(describe_created(created, get_service_time(connection)))


def describe_created(created: list[dict[str, Any]], now: datetime) -> list[str]:
    """Describe created maintenances: times, events, and VMs without a warning."""
    lines = []
    for m in created:
        is_waiting = m["state"] == MaintenanceState.SCHEDULED
        when = f", not before {format_time(m['not_before'], now)}" if is_waiting else ""
        lines.append(f"maintenance {m['id']} is {m['state']}: {m['type']} of {_list_hit_vms(m)}{when}")
        events = [f"event {e['id']} for {', '.join(e['resources'])} ({e['scope']})" for e in m["events"]]
        lines += _format_details(m, events)
    return lines


_WOULD = {
    MaintenanceState.QUEUED: "would be queued behind other maintenance",
    MaintenanceState.SCHEDULED: "would be scheduled",
    MaintenanceState.STARTED: "would start immediately",
}


def describe_planned(planned: list[dict[str, Any]], now: datetime) -> list[str]:
    """Describe the result of a dry run, in words that cannot be mistaken for something done."""
    lines = ["dry run: nothing is announced"]
    for m in planned:
        has_time = m["not_before"] is not None and m["would_be"] == MaintenanceState.SCHEDULED
        when = f", not before {format_time(m['not_before'], now)}" if has_time else ""
        lines.append(f"{_WOULD[MaintenanceState(m['would_be'])]}: {m['type']} of {_list_hit_vms(m)}{when}")
        lines += _format_details(m, [f"would warn {', '.join(e['resources'])} ({e['scope']})" for e in m["events"]])
    return lines


def _list_hit_vms(m: dict[str, Any]) -> str:
    return ", ".join(m["vms"]) or "no VM"


def _format_details(m: dict[str, Any], events: list[str]) -> list[str]:
    moved = describe_quiet_hours_move(m)
    found = [*([] if moved is None else [f"moved {moved}"]), *events]
    return [f"  {line}" for line in (*found, *([describe_unwarned(m)] if m["unwarned_vms"] else []))]


def describe_quiet_hours_move(m: dict[str, Any]) -> str | None:
    """Describe a move by quiet hours: the former time, and the owners of the quiet hours; None if there was none."""
    if m["moved_from"] is None:
        return None
    whose = f" of {', '.join(m['moved_by'])}" if m["moved_by"] else " of another tenant"
    return f"from {format_moment(m['moved_from'])} by quiet hours{whose}"


def describe_unwarned(m: dict[str, Any], *, is_past: bool = False) -> str:
    """Name the VMs that are hit, or if `is_past` were hit, without a warning, and the reason."""
    names = m["unwarned_vms"]
    why = f"{'had' if is_past else 'have' if len(names) > 1 else 'has'} not asked for events"
    if m["cause"] in CAUSES and CAUSES[m["cause"]].profile is not None:
        why += ", or not opted in to events of this kind"
    return f"not warned: {format_names(names, _NAMES_MAX)} ({why})"
