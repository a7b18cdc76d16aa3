"""`forewarn vm`: show VMs, and operations of users and the platform on a single one."""

from __future__ import annotations

from typing import Annotated

import typer

from forewarn.cli.choosing import Choice
from forewarn.cli.command import command, group
from forewarn.cli.confirming import Yes, confirm
from forewarn.cli.connection import Connection, segment
from forewarn.cli.event import events_table
from forewarn.cli.history import story
from forewarn.cli.maintenance import Force, Notice, Reason, forced, show_made
from forewarn.cli.names import vm_names
from forewarn.cli.output import Column, Output
from forewarn.cli.times import as_span_s

__all__ = ["add_vm"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the VM.", autocompletion=vm_names)]
_OPERATIONS = "What happens to one VM"


def add_vm(app: typer.Typer) -> None:
    """Add the commands of `vm`."""
    noun = group(app, "vm", "Look at VMs; restart, redeploy, evict, delete one.", "Declare")

    @command(noun, "list", "forewarn vm list", "forewarn vm list --json")
    def list_vms(connection: Connection, output: Output) -> None:
        """List every VM, and whether it asks for events."""
        vms = list(connection.pages("/v1/vms"))
        if output.show(vms):
            return
        columns = [Column(head) for head in ("name", "host", "scope", "fd", "ud", "power", "asks")]
        output.table(
            [*columns, Column("addresses", is_whole=False)],
            [
                (
                    vm["name"],
                    vm["host"],
                    vm["scope"],
                    vm["fault_domain"],
                    vm["update_domain"],
                    vm["power_state"],
                    "yes" if vm["enabled"] else "no",
                    ", ".join(vm["addresses"]),
                )
                for vm in vms
            ],
            empty="no VMs are declared: see 'forewarn inventory apply --help'",
        )

    @command(noun, "show", "forewarn vm show WestNO_0")
    def show(name: _Name, connection: Connection, output: Output) -> None:
        """Show one VM, and the events that name it."""
        vm = connection.get(f"/v1/vms/{segment(name)}")
        if output.show(vm):
            return
        output.fields(
            [
                ("name", vm["name"]),
                ("host", vm["host"]),
                ("scope", f"{vm['scope']} ({vm['scope_kind']})" if vm["scope"] else vm["scope_kind"]),
                ("domains", f"fault {vm['fault_domain']}, update {vm['update_domain']}"),
                ("addresses", ", ".join(vm["addresses"])),
                ("power", vm["power_state"]),
                ("priority", vm["priority"]),
                ("size", vm["size"]),
                (
                    "asks",
                    f"yes, incarnation {vm['incarnation']}" if vm["enabled"] else "no: its scope has not asked yet",
                ),
            ]
        )
        events = [event for event in connection.pages("/v1/events") if vm["name"] in event["resources"]]
        if events:
            output.heading("Events")
            events_table(output, connection, events)

    _add_history(noun)
    _add_operation(noun, "restart", "Restart the VM, as its user: a Reboot event.", "restart WestNO_0")
    _add_operation(
        noun, "redeploy", "Move the VM to other hardware, as its user: a Redeploy event.", "redeploy WestNO_0"
    )
    _add_final_operation(
        noun,
        "reimage",
        "Reimage the VM: a Reboot event where its scale set opted in.",
        "reimage web_0",
        "gets a new image and loses what is on its system disk",
    )
    _add_final_operation(
        noun, "evict", "Take a Spot VM back: a Preempt event.", "evict spot_3", "is stopped and its capacity taken back"
    )
    _add_final_operation(
        noun,
        "delete",
        "Delete the VM: a Terminate event where its scale set opted in.",
        "delete web_0",
        "is deleted",
    )

    @command(noun, "update-model", "forewarn vm update-model web_0")
    def update_model(name: _Name, connection: Connection, output: Output) -> None:
        """Update the VM to the latest model of its scale set, and so to its delete notification."""
        vm = connection.change("POST", f"/v1/vms/{segment(name)}/update-model")
        if not output.show(vm):
            output.line(f"vm {vm['name']} follows the latest model of {vm['scope'] or 'its scope'}")


def _add_history(noun: typer.Typer) -> None:
    @command(
        noun,
        "history",
        "forewarn vm history WestNO_0",
        "forewarn vm history WestNO_0 --since 7d",
        "forewarn vm history WestNO_0 --since 2030-01-01T00:00:00Z --until 2030-01-02T00:00:00Z --json",
    )
    def history(
        name: _Name,
        connection: Connection,
        output: Output,
        since: Annotated[
            str | None, typer.Option(metavar="TIME", help="What was not over then: a span ago like 30d, or RFC 3339.")
        ] = None,
        until: Annotated[
            str | None, typer.Option(metavar="TIME", help="What was made before: a span ago like 30d, or RFC 3339.")
        ] = None,
        limit: Annotated[int, typer.Option(min=1, metavar="COUNT", help="The newest so many.")] = 20,
    ) -> None:
        """Show the history of a VM: causes, approvals, notice periods, and times away.

        The VM may no longer be declared.
        """
        params = Choice(since=since, until=until).params(connection)
        found = list(connection.pages(f"/v1/vms/{segment(name)}/history", limit + 1, **params))
        if output.show(found[:limit]):
            return
        for number, told in enumerate(found[:limit]):
            if number:
                output.line()
            for line in story(told):
                output.line(line)
        if not found:
            output.notice(f"nothing has happened to vm {name}" + (" in that time" if since or until else ""))
        if len(found) > limit:
            output.notice(f"there is more: --limit {limit * 10}")


def _add_final_operation(noun: typer.Typer, verb: str, summary: str, example: str, effect: str) -> None:
    """Add an irreversible operation, which asks for confirmation."""

    def operate(
        name: _Name,
        connection: Connection,
        output: Output,
        notice: Notice = None,
        force: Force = False,
        reason: Reason = None,
        yes: Yes = False,
    ) -> None:
        body = {"notice_s": as_span_s(notice, "--notice")} | forced(force=force, reason=reason)
        path = f"/v1/vms/{segment(name)}"

        def describe() -> str:
            vm = connection.get(path)
            whose = f" of scope {vm['scope']}" if vm["scope"] else ""
            where = f" on {vm['host']}" if vm["host"] else ""
            return f"VM {vm['name']}{whose}{where} {effect}. This cannot be taken back once it has started."

        confirm(output, describe, yes=yes)
        if verb == "delete":
            made = connection.change("DELETE", path, body)
        else:
            made = connection.change("POST", f"{path}/{verb}", body)
        show_made(output, connection, made["items"])

    operate.__doc__ = f"{summary} Asks first; --yes confirms."
    command(
        noun,
        verb,
        f"forewarn vm {example}",
        f"forewarn vm {example} --yes",
        f'forewarn vm {example} --notice 1m --force --reason "asked for by its owner" --yes',
        panel=_OPERATIONS,
    )(operate)


def _add_operation(noun: typer.Typer, verb: str, summary: str, example: str) -> None:
    def operate(
        name: _Name,
        connection: Connection,
        output: Output,
        notice: Notice = None,
        force: Force = False,
        reason: Reason = None,
    ) -> None:
        body = {"notice_s": as_span_s(notice, "--notice")} | forced(force=force, reason=reason)
        made = connection.change("POST", f"/v1/vms/{segment(name)}/{verb}", body)
        show_made(output, connection, made["items"])

    operate.__doc__ = summary
    command(
        noun,
        verb,
        f"forewarn vm {example}",
        f'forewarn vm {example} --notice 1m --force --reason "asked for by its owner"',
        panel=_OPERATIONS,
    )(operate)
