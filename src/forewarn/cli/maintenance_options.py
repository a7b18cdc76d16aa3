"""Options that schedule a maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from forewarn.cli.command import OptionGroup
from forewarn.cli.completers import cause_names, host_names, vm_names
from forewarn.core.model import EventSource, EventType

__all__ = ["ForceOption", "ForceReasonOption", "ReasonOption", "ScheduleOptions", "build_notice_option"]

_WHO = "Targets"
_WHEN = "Time"
_WHAT = "Kind"
_RULES = "Override"


def build_notice_option(default: str) -> object:
    """Return the annotation of an option `--notice` with this default in its help."""
    help_text = (
        "Time from announcement to NotBefore. The maintenance starts no earlier than NotBefore, unless all its events "
        f"are approved. (default: {default})"
    )
    return Annotated[str | None, typer.Option(metavar="SPAN", help=help_text, rich_help_panel=_WHEN)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions(OptionGroup):
    """Options of `forewarn maintenance schedule`."""

    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Every running VM of this host; repeatable or comma-separated.",
            autocompletion=host_names,
            rich_help_panel=_WHO,
        ),
    ] = None
    vms: Annotated[
        list[str] | None,
        typer.Option(
            "--vm",
            metavar="NAME",
            help="This VM; repeatable or comma-separated.",
            autocompletion=vm_names,
            rich_help_panel=_WHO,
        ),
    ] = None
    event_type: Annotated[
        EventType | None,
        typer.Option(
            "--type",
            case_sensitive=False,
            metavar="TYPE",
            help=f"Event type: {', '.join(EventType)}.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    cause: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Cause, such as live-migration or os-upgrade; sets type, duration and description.",
            autocompletion=cause_names,
            rich_help_panel=_WHAT,
        ),
    ] = None
    description: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Description shown to VMs. (default: the cause's description)",
            rich_help_panel=_WHAT,
        ),
    ] = None
    source: Annotated[
        EventSource | None,
        typer.Option(
            case_sensitive=False, metavar="Platform|User", help="Source of the maintenance.", rich_help_panel=_WHAT
        ),
    ] = None
    impact: Annotated[
        EventType | None,
        typer.Option(
            case_sensitive=False,
            metavar="Freeze",
            help="Announce a Reboot, but only freeze the VMs when the maintenance starts. The value must be Freeze.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    notice: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="Time from announcement to NotBefore. The maintenance starts no earlier than NotBefore, unless all "
            "its events are approved. (default: 15m for Freeze and Reboot, 10m for Redeploy, 5m for Terminate, 30s for "
            "Preempt; if the cause or the scale set of a VM has a longer notice, that notice)",
            rich_help_panel=_WHEN,
        ),
    ] = None
    not_before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="NotBefore: RFC 3339, or a span from now.", rich_help_panel=_WHEN),
    ] = None
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="Duration of the impact, or 'unknown'. (default: the cause's duration)",
            rich_help_panel=_WHEN,
        ),
    ] = None
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Start immediately, without notice. This needs --force if an affected VM would otherwise get an event "
            "with notice, or has quiet hours now.",
            rich_help_panel=_WHEN,
        ),
    ] = False
    latest_start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Latest NotBefore that 'maintenance defer' can set: RFC 3339, or a span from now. "
            "(default: the maintenance cannot be deferred)",
            rich_help_panel=_WHEN,
        ),
    ] = None
    force: ForceOption = False
    reason: ForceReasonOption = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the times, and which VMs would be warned, but schedule nothing.")
    ] = False
