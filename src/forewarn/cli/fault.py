"""`forewarn fault`: inject faults on purpose, to test handlers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.clock import server_now
from forewarn.cli.command import command, group
from forewarn.cli.connection import Connection
from forewarn.cli.names import fault_names, vm_names
from forewarn.cli.output import Column, Output, format_relative
from forewarn.cli.times import as_span_s, split_names
from forewarn.core.fault import FAULTS

__all__ = ["add_fault"]


def add_fault(app: typer.Typer) -> None:
    """Add the commands of `fault`."""
    noun = group(app, "fault", "Have things go wrong on purpose, to test a handler.", "Test")

    @command(noun, "kinds", "forewarn fault kinds")
    def kinds(output: Output) -> None:
        """List the kinds of faults, and how a good client reacts to each."""
        rows = [
            {"name": k.name, "what": k.what, "advice": k.advice, "delay_s": k.delay and k.delay.total_seconds()}
            for k in FAULTS.values()
        ]
        if output.show(rows):
            return
        for row in rows:
            output.heading(str(row["name"]))
            output.line(f"  {row['what']}")
            output.line(f"  A good client: {row['advice']}")

    @command(noun, "list", "forewarn fault list")
    def list_faults(connection: Connection, output: Output) -> None:
        """List the active faults."""
        found = list(connection.pages("/v1/faults"))
        if not output.show(found):
            now = server_now(connection) if found else None
            columns = [
                Column("id"),
                Column("fault"),
                Column("for"),
                Column("requests"),
                Column("struck"),
                Column("ends"),
            ]
            rows = [_row(fault, None if now is None else format_relative(fault["until"], now)) for fault in found]
            output.table(columns, rows, empty="no fault is in force: see 'forewarn fault inject --help'")

    @command(
        noun,
        "inject",
        "forewarn fault inject 503 --for 30s",
        "forewarn fault inject late --vm vm-1 --count 1",
        "forewarn fault inject reset --method POST --rate 0.5",
    )
    def inject(
        kind: Annotated[
            str,
            typer.Argument(
                metavar="FAULT", help="What goes wrong: see 'forewarn fault kinds'.", autocompletion=fault_names
            ),
        ],
        connection: Connection,
        output: Output,
        vms: Annotated[
            list[str] | None,
            typer.Option(
                "--vm",
                metavar="NAME",
                help="Whose requests; several with commas. (default: everybody's)",
                autocompletion=vm_names,
            ),
        ] = None,
        method: Annotated[str | None, typer.Option(metavar="GET|POST", help="Only these requests.")] = None,
        count: Annotated[int | None, typer.Option(min=1, metavar="COUNT", help="For so many requests.")] = None,
        rate: Annotated[float, typer.Option(metavar="PART", help="Which part of the requests, up to 1.")] = 1.0,
        lasts: Annotated[str | None, typer.Option("--for", metavar="SPAN", help="For so long.")] = None,
        delay: Annotated[
            str | None, typer.Option(metavar="SPAN", help="How long it takes, where it takes time.")
        ] = None,
    ) -> None:
        """Inject a fault; without --count and --for it stays until it is cleared."""
        body = {
            "kind": kind,
            "vms": split_names(vms),
            "method": method.upper() if method else None,
            "count": count,
            "rate": rate,
            "lasts_s": as_span_s(lasts, "--for"),
            "delay_s": as_span_s(delay, "--delay"),
        }
        fault = connection.change("POST", "/v1/faults", body)
        if not output.show(fault):
            output.line(f"fault {fault['id']}: {fault['kind']}, {FAULTS[fault['kind']].what}")

    @command(noun, "clear", "forewarn fault clear", "forewarn fault clear 3")
    def clear(
        connection: Connection,
        output: Output,
        fault_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Its number. (default: all)")] = None,
    ) -> None:
        """Clear one fault, or all."""
        path = "/v1/faults" if fault_id is None else f"/v1/faults/{fault_id}"
        cleared = connection.change("DELETE", path)
        if not output.show(cleared):
            output.line(f"{cleared['count']} faults ended" if cleared["count"] != 1 else "1 fault ended")


def _row(fault: dict[str, Any], ends: str | None) -> tuple[object, ...]:
    which = fault["method"] or "all"
    if fault["rate"] < 1:
        which = f"{fault['rate']:.0%} of {which}"
    if fault["count"] is not None:
        which = f"{which}, {fault['count']} more"
    return (
        fault["id"],
        fault["kind"],
        ", ".join(fault["vms"]) or "all VMs",
        which,
        fault["struck"],
        ends or "when cleared",
    )
