"""Options that schedule a maintenance."""

from __future__ import annotations

from typing import Annotated

import typer

from forewarn.cli.completers import cause_names, host_names, vm_names
from forewarn.core.model import EventSource, EventType

__all__ = [
    "CauseOption",
    "DescriptionOption",
    "DryRunOption",
    "DurationOption",
    "ForceOption",
    "ForceReasonOption",
    "HostsOption",
    "LatestStartOption",
    "NotBeforeOption",
    "NoticeOption",
    "NowOption",
    "ReasonOption",
    "SourceOption",
    "TurnsOutAsOption",
    "TypeOption",
    "VmsOption",
]

_WHO = "Targets"
_WHEN = "Time"
_WHAT = "Kind"
_RULES = "Override"

NoticeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        help="Time from announcement to NotBefore. (default: that of the cause, at least the minimum)",
        rich_help_panel=_WHEN,
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Override the minimum notice and quiet hours; requires --reason.", rich_help_panel=_RULES
    ),
]
ForceReasonOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Reason, recorded in the audit log.", rich_help_panel=_RULES)
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Reason, recorded in the audit log.")
]

HostsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="Every running VM of this host; repeatable or comma-separated.",
        autocompletion=host_names,
        rich_help_panel=_WHO,
    ),
]
VmsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--vm",
        metavar="NAME",
        help="This VM; repeatable or comma-separated.",
        autocompletion=vm_names,
        rich_help_panel=_WHO,
    ),
]
TypeOption = Annotated[
    EventType | None,
    typer.Option(
        "--type",
        case_sensitive=False,
        metavar="TYPE",
        help=f"Event type: {', '.join(EventType)}.",
        rich_help_panel=_WHAT,
    ),
]
CauseOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Cause, such as live-migration or os-upgrade; sets type, duration and description.",
        autocompletion=cause_names,
        rich_help_panel=_WHAT,
    ),
]
DescriptionOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Description shown to VMs. (default: from the cause)", rich_help_panel=_WHAT),
]
SourceOption = Annotated[
    EventSource | None,
    typer.Option(
        case_sensitive=False, metavar="Platform|User", help="Source of the maintenance.", rich_help_panel=_WHAT
    ),
]
TurnsOutAsOption = Annotated[
    EventType | None,
    typer.Option(
        case_sensitive=False,
        metavar="Freeze",
        help="Announce a Reboot that turns out as a Freeze: no VM restarts. The value must be Freeze.",
        rich_help_panel=_WHAT,
    ),
]
NotBeforeOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="NotBefore: RFC 3339, or a span from now.", rich_help_panel=_WHEN),
]
DurationOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        help="Duration of the impact, or 'unknown'. (default: from the cause)",
        rich_help_panel=_WHEN,
    ),
]
NowOption = Annotated[
    bool,
    typer.Option(
        "--now",
        help="Start immediately; refused without --force if a VM asked for events.",
        rich_help_panel=_WHEN,
    ),
]
LatestStartOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Latest NotBefore that a deferral may set: RFC 3339, or a span from now. (default: cannot be deferred)",
        rich_help_panel=_WHEN,
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the times, and which VMs would be warned, but schedule nothing.")
]
