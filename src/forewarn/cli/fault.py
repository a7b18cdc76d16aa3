"""`forewarn fault`: inject faults on purpose, to test handlers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.clock import show_relative
from forewarn.cli.command import command, make_group
from forewarn.cli.completers import fault_names, vm_names
from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_options import WatchListOptions
from forewarn.cli.list_output import print_page
from forewarn.cli.output import Column, Output
from forewarn.cli.times import as_span_s, split_names
from forewarn.core.fault import FAULTS

__all__ = ["app"]

app = make_group("fault", "Inject faults to test a handler.", "Test")


@command(app, "kinds", "forewarn fault kinds")
def kinds(output: Output) -> None:
    """List the kinds of faults, and how a good client reacts to each."""
    rows = [
        {"name": k.name, "what": k.what, "advice": k.advice, "delay_s": k.delay and k.delay.total_seconds()}
        for k in FAULTS.values()
    ]
    if output.print_if_json(rows):
        return
    for row in rows:
        output.print_heading(str(row["name"]))
        output.print_line(f"  {row['what']}")
        output.print_line(f"  A good client: {row['advice']}")


@command(app, "list", "forewarn fault list")
def list_faults(connection: ControlConnection, output: Output, options: WatchListOptions) -> None:
    """List active faults, the oldest first."""
    print_page(
        connection,
        output,
        "/v1/faults",
        lambda: _make_columns(connection),
        options=options,
        list_name="faults",
        params={},
        empty="no active faults: see 'forewarn fault inject --help'",
        noun="faults",
    )


@command(
    app,
    "inject",
    "forewarn fault inject 503 --for 30s",
    "forewarn fault inject late --vm vm-1 --count 1",
    "forewarn fault inject reset --method POST --rate 0.5",
)
def inject(
    kind: Annotated[
        str,
        typer.Argument(metavar="FAULT", help="Kind of fault: see 'forewarn fault kinds'.", autocompletion=fault_names),
    ],
    connection: ControlConnection,
    output: Output,
    vms: Annotated[
        list[str] | None,
        typer.Option(
            "--vm",
            metavar="NAME",
            help="Only requests of this VM; repeatable or comma-separated. (default: all)",
            autocompletion=vm_names,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="GET|POST", help="Only requests with this method.", autocompletion=lambda: ["GET", "POST"]
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="COUNT", help="Number of requests to affect.")] = None,
    rate: Annotated[float, typer.Option(metavar="FRACTION", help="Fraction of requests to affect, up to 1.")] = 1.0,
    lasts: Annotated[str | None, typer.Option("--for", metavar="SPAN", help="Duration of the fault.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Length of the delay, for kinds of faults with a delay.")
    ] = None,
) -> None:
    """Inject a fault. Without --count and --for, the fault stays active until you clear it."""
    body = {
        "kind": kind,
        "vms": split_names(vms),
        "method": method.upper() if method else None,
        "count": count,
        "rate": rate,
        "lasts_s": as_span_s(lasts, "--for"),
        "delay_s": as_span_s(delay, "--delay"),
    }
    fault = connection.send_change("POST", "/v1/faults", body)
    # A newer service may know more kinds than this command.
    known = FAULTS.get(fault["kind"])
    output.print_result(fault, f"fault {fault['id']}: {fault['kind']}{f', {known.what}' if known else ''}")


@command(app, "clear", "forewarn fault clear", "forewarn fault clear 3")
def clear(
    connection: ControlConnection,
    output: Output,
    fault_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Id of the fault. (default: all)")] = None,
) -> None:
    """Clear one fault, or all."""
    path = "/v1/faults" if fault_id is None else f"/v1/faults/{fault_id}"
    cleared = connection.send_change("DELETE", path)
    if not output.print_if_json(cleared):
        output.print_line(f"{cleared['count']} faults cleared" if cleared["count"] != 1 else "1 fault cleared")


def _make_columns(connection: ControlConnection) -> list[Column]:
    show_end = show_relative(connection, "until")
    return [
        Column("id"),
        Column("fault", "kind"),
        Column("for", lambda fault: fault["vms"] or "all VMs"),
        Column("requests", _describe_requests),
        Column("hits", "struck"),
        Column("ends", lambda fault: show_end(fault) or "when cleared"),
    ]


def _describe_requests(fault: dict[str, Any]) -> str:
    which = fault["method"] or "all"
    if fault["rate"] < 1:
        which = f"{fault['rate']:.0%} of {which}"
    if fault["count"] is not None:
        which = f"{which}, {fault['count']} more"
    return which
