"""`forewarn vm`: show VMs, and operations of users and the platform on a single one."""

from __future__ import annotations

from typing import Annotated

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.completers import host_names, vm_names
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.list_options import CsvListOptions, HistoryFilter, SelectorOption
from forewarn.cli.list_output import format_labels, print_page, show_labels
from forewarn.cli.maintenance_options import ForceOption, ReasonOption, build_force_body, build_notice_option
from forewarn.cli.maintenance_text import print_created
from forewarn.cli.output import Column, Output
from forewarn.cli.times import as_span_s
from forewarn.cli.vm_history import format_episode

__all__ = ["app"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the VM.", autocompletion=vm_names)]
_OPERATIONS = "Operations on one VM"

app = make_group("vm", "Show VMs; restart, redeploy, evict or delete a VM.", "Declare")


@command(
    app,
    "list",
    "forewarn vm list",
    "forewarn vm list --host host-1 --json",
    "forewarn vm list --scope web --prefix web-1 --limit 500",
    "forewarn vm list --selector rack=r1,team=db",
    "forewarn vm list -o columns=name,host,size --sort host",
    "forewarn vm list --csv > vms.csv",
)
def list_vms(
    connection: ControlConnection,
    output: Output,
    options: CsvListOptions,
    host: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only VMs on this host.", autocompletion=host_names)
    ] = None,
    scope: Annotated[str | None, typer.Option(metavar="NAME", help="Only VMs of this scope.")] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only VMs whose names begin with this text.")
    ] = None,
    selector: SelectorOption = None,
) -> None:
    """List VMs by name, and whether scheduled events are enabled for them."""
    params = {"host": host, "scope": scope, "prefix": prefix, "selector": selector}
    is_filtered = any(params.values())
    print_page(
        connection,
        output,
        "/v1/vms",
        [
            Column("name"),
            Column("host"),
            Column("scope"),
            Column("fd", "fault_domain"),
            Column("ud", "update_domain"),
            Column("power", "power_state"),
            Column("enabled", lambda vm: "yes" if vm["enabled"] else "no"),
            Column("kind", "scope_kind", is_wide=True),
            Column("priority", is_wide=True),
            Column("size", is_wide=True),
            Column("incarnation", is_wide=True),
            Column("addresses", is_whole=False),
            Column("labels", show_labels, is_whole=False, is_wide=True),
        ],
        options=options,
        list_name="vms",
        params=params,
        empty="no such VMs" if is_filtered else "no VMs are declared: see 'forewarn inventory apply --help'",
        noun="VMs",
    )


@command(app, "show", "forewarn vm show WestNO_0")
def show(name: _Name, connection: ControlConnection, output: Output) -> None:
    """Show one VM, and the events that name it."""
    vm = connection.get(f"/v1/vms/{quote_segment(name)}")
    if output.print_if_json(vm):
        return
    output.print_fields(
        [
            ("name", vm["name"]),
            ("host", vm["host"]),
            ("scope", f"{vm['scope']} ({vm['scope_kind']})" if vm["scope"] else vm["scope_kind"]),
            ("domains", f"fault {vm['fault_domain']}, update {vm['update_domain']}"),
            ("addresses", vm["addresses"]),
            ("power", vm["power_state"]),
            ("priority", vm["priority"]),
            ("size", vm["size"]),
            ("labels", format_labels(vm.get("labels")) or "none"),
            (
                "enabled",
                f"yes, incarnation {vm['incarnation']}" if vm["enabled"] else "no: its scope has not asked for events",
            ),
        ]
    )
    events = list(connection.iterate_items("/v1/events", vm=vm["name"]))
    if events:
        from forewarn.cli.event import make_event_columns

        output.print_heading("Events")
        output.print_table(events, make_event_columns(connection))


@command(
    app,
    "history",
    "forewarn vm history WestNO_0",
    "forewarn vm history WestNO_0 --since 7d",
    "forewarn vm history WestNO_0 --since 2030-01-01T00:00:00Z --until 2030-01-02T00:00:00Z --json",
)
def history(
    name: _Name,
    connection: ControlConnection,
    output: Output,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Omit maintenance that ended before this time: RFC 3339, or how long ago, such as 30d."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Omit maintenance created at this time or later: RFC 3339, or how long ago, such as 30d.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Maximum number of maintenances; the newest are shown.")
    ] = 20,
) -> None:
    """Show the history of a VM: the cause, notice, approval and impact of each maintenance.

    This also works for a VM that was removed from the inventory.
    """
    params = HistoryFilter(since=since, until=until).to_query_params(connection)
    found = list(connection.iterate_items(f"/v1/vms/{quote_segment(name)}/history", limit + 1, **params))
    if output.print_if_json(found[:limit]):
        return
    for number, episode in enumerate(found[:limit]):
        if number:
            output.print_line()
        output.print_lines(format_episode(episode))
    if not found:
        output.print_notice(f"nothing has happened to vm {name}" + (" in that time" if since or until else ""))
    if len(found) > limit:
        output.print_notice(f"there is more: use --limit {limit * 10}")


def _add_final_operation(verb: str, vm: str, summary: str, default_notice: str, effect: str) -> None:
    """Add an irreversible operation, which asks for confirmation."""

    def operate(
        name: _Name,
        connection: ControlConnection,
        output: Output,
        notice: str | None = None,
        force: ForceOption = False,
        reason: ReasonOption = None,
        yes: Yes = False,
    ) -> None:
        body = {"notice_s": as_span_s(notice, "--notice")} | build_force_body(force=force, reason=reason)
        path = f"/v1/vms/{quote_segment(name)}"

        def describe() -> str:
            found = connection.get(path)
            whose = f" of scope {found['scope']}" if found["scope"] else ""
            where = f" on {found['host']}" if found["host"] else ""
            return f"VM {found['name']}{whose}{where} {effect}. This cannot be undone once it has started."

        confirm(output, describe, yes=yes)
        if verb == "delete":
            made = connection.send_change("DELETE", path, body)
        else:
            made = connection.send_change("POST", f"{path}/{verb}", body)
        print_created(output, connection, made["items"])

    operate.__doc__ = f"{summary} Without --yes, the command asks for confirmation."
    operate.__annotations__["notice"] = build_notice_option(default_notice)
    command(
        app,
        verb,
        f"forewarn vm {verb} {vm}",
        f"forewarn vm {verb} {vm} --yes",
        f'forewarn vm {verb} {vm} --notice 10s --force --reason "asked for by its owner" --yes',
        panel=_OPERATIONS,
    )(operate)


def _add_operation(verb: str, vm: str, summary: str, default_notice: str) -> None:
    def operate(
        name: _Name,
        connection: ControlConnection,
        output: Output,
        notice: str | None = None,
        force: ForceOption = False,
        reason: ReasonOption = None,
    ) -> None:
        body = {"notice_s": as_span_s(notice, "--notice")} | build_force_body(force=force, reason=reason)
        made = connection.send_change("POST", f"/v1/vms/{quote_segment(name)}/{verb}", body)
        print_created(output, connection, made["items"])

    operate.__doc__ = summary
    operate.__annotations__["notice"] = build_notice_option(default_notice)
    command(
        app,
        verb,
        f"forewarn vm {verb} {vm}",
        f'forewarn vm {verb} {vm} --notice 1m --force --reason "asked for by its owner"',
        panel=_OPERATIONS,
    )(operate)


_add_operation("restart", "WestNO_0", "Restart the VM on behalf of its owner, with a Reboot event.", "15m")
_add_operation(
    "redeploy", "WestNO_0", "Move the VM to other hardware on behalf of its owner, with a Redeploy event.", "10m"
)
_add_final_operation(
    "reimage",
    "web_0",
    "Reimage the VM. If its scale set enables os_image_notification, the VM gets a Reboot event first; otherwise, "
    "the VM gets no warning.",
    "15m",
    "gets a new image and loses the data on its system disk",
)
_add_final_operation(
    "evict", "spot_3", "Evict a Spot VM, with a Preempt event.", "30s", "is stopped and its capacity reclaimed"
)
_add_final_operation(
    "delete",
    "web_0",
    "Delete the VM. If its scale set enables terminate_notification, the VM gets a Terminate event first; "
    "otherwise, the VM gets no warning.",
    "not_before_timeout of the scale set's terminate_notification, or 5m if that is not set",
    "is deleted",
)


@command(app, "update-model", "forewarn vm update-model web_0")
def update_model(name: _Name, connection: ControlConnection, output: Output) -> None:
    """Update the VM to the latest model of its scale set, including the setting for terminate notifications."""
    vm = connection.send_change("POST", f"/v1/vms/{quote_segment(name)}/update-model")
    output.print_result(vm, f"vm {vm['name']} follows the latest model of {vm['scope'] or 'its scope'}")
