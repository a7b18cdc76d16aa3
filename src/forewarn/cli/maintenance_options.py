"""Options that schedule a maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from forewarn.cli.command import OptionGroup
from forewarn.cli.completers import cause_names, host_names, vm_names
from forewarn.core.model import EventSource, EventType

__all__ = [
    "ForceOption",
    "ReasonOption",
    "ScheduleOptions",
    "build_force_body",
    "build_notice_option",
]

_target_option = partial(typer.Option, rich_help_panel="Targets")
_time_option = partial(typer.Option, rich_help_panel="Time")
_kind_option = partial(typer.Option, rich_help_panel="Kind")
_override_option = partial(typer.Option, rich_help_panel="Override")


def build_notice_option(default: str) -> object:
    """Return the annotation of an option `--notice` with this default in its help."""
    help_text = (
        "Time from announcement to NotBefore. The maintenance starts no earlier than NotBefore, unless all its events "
        f"are approved. (default: {default})"
    )
    return Annotated[str | None, _time_option(metavar="SPAN", help=help_text)]


ForceOption = Annotated[
    bool, _override_option("--force", help="Override the minimum notice and quiet hours; requires --reason.")
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Reason, recorded in the audit log.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions(OptionGroup):
    """Options of `forewarn maintenance schedule`."""

    hosts: Annotated[
        list[str] | None,
        _target_option(
            "--host",
            metavar="NAME",
            help="Every running VM of this host; repeatable or comma-separated.",
            autocompletion=host_names,
        ),
    ] = None
    vms: Annotated[
        list[str] | None,
        _target_option("--vm", metavar="NAME", help="This VM; repeatable or comma-separated.", autocompletion=vm_names),
    ] = None
    selector: Annotated[
        str | None,
        _target_option(
            "--selector",
            "-l",
            metavar="SELECTOR",
            help="Every running VM of each host with these labels, such as 'rack=r1,model!=x'. Try it with --dry-run.",
        ),
    ] = None
    event_type: Annotated[
        EventType | None,
        _kind_option("--type", case_sensitive=False, metavar="TYPE", help=f"Event type: {', '.join(EventType)}."),
    ] = None
    cause: Annotated[
        str | None,
        _kind_option(
            metavar="NAME",
            help="Cause, such as live-migration or os-upgrade; sets type, duration and description.",
            autocompletion=cause_names,
        ),
    ] = None
    description: Annotated[
        str | None, _kind_option(metavar="TEXT", help="Description shown to VMs. (default: the cause's description)")
    ] = None
    source: Annotated[
        EventSource | None,
        _kind_option(case_sensitive=False, metavar="Platform|User", help="Source of the maintenance."),
    ] = None
    impact: Annotated[
        EventType | None,
        _kind_option(
            case_sensitive=False,
            metavar="Freeze",
            help="Announce a Reboot, but freeze the VMs instead of rebooting them. The value must be Freeze.",
        ),
    ] = None
    notice: Annotated[
        str | None,
        _time_option(
            metavar="SPAN",
            help="Time from announcement to NotBefore. The maintenance starts no earlier than NotBefore, unless all "
            "its events are approved. (default: 15m for Freeze and Reboot, 10m for Redeploy, 5m for Terminate, 30s for "
            "Preempt; if the cause or the scale set of a VM has a longer notice, that notice)",
        ),
    ] = None
    not_before: Annotated[str | None, _time_option(metavar="TIME", help="NotBefore: RFC 3339, or a span from now.")] = (
        None
    )
    duration: Annotated[
        str | None,
        _time_option(metavar="SPAN", help="Duration of the impact, or 'unknown'. (default: the cause's duration)"),
    ] = None
    now: Annotated[
        bool,
        _time_option(
            "--now",
            help="Start immediately, without notice. This needs --force if an affected VM gets scheduled events (so it "
            "would lose its warning), or is in quiet hours.",
        ),
    ] = False
    latest_start: Annotated[
        str | None,
        _time_option(
            metavar="TIME",
            help="Latest NotBefore that 'maintenance defer' can set: RFC 3339, or a span from now. "
            "(default: the maintenance cannot be deferred)",
        ),
    ] = None
    force: ForceOption = False
    reason: ReasonOption = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the times, and which VMs would be warned, but schedule nothing.")
    ] = False


def build_force_body(*, force: bool, reason: str | None) -> dict[str, Any]:
    """Return `--force` and `--reason` as the API takes them.

    Raises:
        typer.BadParameter: `--force` is given without `--reason`.
    """
    if force and reason is None:
        raise typer.BadParameter("requires --reason, which is recorded in the audit log", param_hint="--force")
    return ({"force": True} if force else {}) | ({} if reason is None else {"reason": reason})
