"""`forewarn host`: hosts, their failures, and predicted failures."""

from __future__ import annotations

from typing import Annotated

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.completers import host_names
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.list_options import CsvListOptions, SelectorOption, WatchListOptions
from forewarn.cli.list_output import format_labels, print_page, show_labels
from forewarn.cli.maintenance_options import ForceOption, ReasonOption, build_force_body
from forewarn.cli.maintenance_text import print_created
from forewarn.cli.output import Column, Output, format_moment, format_names, show_moment
from forewarn.cli.short_ids import resolve_id
from forewarn.cli.times import as_span_s
from forewarn.core.model import EventType

__all__ = ["app"]

_VMS_SHOWN = 10
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the host.", autocompletion=host_names)]

app = make_group("host", "Show hosts; report actual and predicted failures.", "Declare")


@command(
    app,
    "list",
    "forewarn host list",
    "forewarn host list --prefix rack-7- --json",
    "forewarn host list --selector rack=r1",
    "forewarn host list -o columns=name,vms,labels.rack",
    "forewarn host list --sort -failed_at --limit 10",
    "forewarn host list --csv > hosts.csv",
)
def list_hosts(
    connection: ControlConnection,
    output: Output,
    options: CsvListOptions,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only hosts whose names begin with this text.")
    ] = None,
    selector: SelectorOption = None,
) -> None:
    """List hosts by name, with their VMs."""
    params = {"prefix": prefix, "selector": selector}
    print_page(
        connection,
        output,
        "/v1/hosts",
        [
            Column("name"),
            Column("failed", show_moment("failed_at")),
            Column("vms", lambda host: len(host["vms"])),
            Column("names", "vms", is_whole=False),
            Column("reason", "failure_reason", is_whole=False, is_wide=True),
            Column("labels", show_labels, is_whole=False, is_wide=True),
        ],
        options=options,
        list_name="hosts",
        params=params,
        empty="no such hosts" if prefix or selector else "no hosts are declared: see 'forewarn inventory apply --help'",
        noun="hosts",
    )


@command(app, "show", "forewarn host show host-1")
def show(name: _Name, connection: ControlConnection, output: Output) -> None:
    """Show one host, and whether it has failed."""
    host = connection.get(f"/v1/hosts/{quote_segment(name)}")
    output.print_record(
        host,
        [
            ("name", host["name"]),
            ("failed", format_moment(host["failed_at"])),
            ("reason", host["failure_reason"]),
            ("vms", host["vms"] or "none"),
            ("labels", format_labels(host.get("labels")) or "none"),
        ],
    )


@command(app, "fail", "forewarn host fail host-1", 'forewarn host fail host-1 --reason "power supply burnt" --yes')
def fail(
    name: _Name, connection: ControlConnection, output: Output, reason: ReasonOption = None, yes: Yes = False
) -> None:
    """Report that a host has failed: its VMs see a Reboot event that has already started, without notice.

    The host is marked as failed, and rollouts skip it, until 'forewarn host recover'. Without --yes, the
    command asks for confirmation.
    """

    def describe() -> str:
        vms = connection.get(f"/v1/hosts/{quote_segment(name)}")["vms"]
        effect = f"Its {len(vms)} VMs ({format_names(vms, _VMS_SHOWN)}) see" if vms else "It has no VMs to see"
        return f"Host {name} is reported as failed. {effect} a Reboot that has started, without notice."

    confirm(output, describe, yes=yes)
    made = connection.send_change("POST", f"/v1/hosts/{quote_segment(name)}/fail", {"reason": reason})
    print_created(output, connection, made["items"])


@command(app, "recover", "forewarn host recover host-1", 'forewarn host recover host-1 --reason "new power supply"')
def recover(name: _Name, connection: ControlConnection, output: Output, reason: ReasonOption = None) -> None:
    """Report that a failed host works again."""
    host = connection.send_change(
        "POST", f"/v1/hosts/{quote_segment(name)}/recover", {"reason": reason}, is_repeatable=False
    )
    output.print_result(host, f"host {host['name']} has recovered")


@command(app, "create-token", "forewarn host create-token host-1 > host-1.token")
def create_token(name: _Name, connection: ControlConnection, output: Output) -> None:
    """Create and print a token for a host: for its endpoint, and for 'forewarn inventory follow-libvirt'.

    The token is shown only once.
    """
    made = connection.send_change("POST", f"/v1/hosts/{quote_segment(name)}/tokens", None)
    output.print_result(made, made["token"])


@command(app, "tokens", "forewarn host tokens host-1")
def tokens(name: _Name, connection: ControlConnection, output: Output, options: WatchListOptions) -> None:
    """List the tokens of a host, the oldest first."""
    print_page(
        connection,
        output,
        f"/v1/hosts/{quote_segment(name)}/tokens",
        [Column("id"), Column("created", show_moment("created_at")), Column("revoked", show_moment("revoked_at"))],
        options=options,
        list_name="host-tokens",
        params={},
        empty=f"no tokens for {name}: see 'forewarn host create-token --help'",
        noun="tokens",
    )


@command(app, "revoke-token", "forewarn host revoke-token host-1 k3v9xq2mab --yes")
def revoke_token(
    name: _Name,
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, or its beginning.")],
    connection: ControlConnection,
    output: Output,
    yes: Yes = False,
) -> None:
    """Revoke a token of a host. Without --yes, the command asks for confirmation."""
    token = resolve_id(connection, "token", token)
    words = f"The endpoint on {name} that uses token {token} gets no more changes until it has a new token."
    confirm(output, lambda: words, yes=yes)
    revoked = connection.send_change("DELETE", f"/v1/hosts/{quote_segment(name)}/tokens/{quote_segment(token)}", None)
    output.print_result(revoked, f"token {revoked['id']} of {name} is revoked")


@command(
    app,
    "predict-failure",
    "forewarn host predict-failure host-1 --in 7d",
    "forewarn host predict-failure host-1 --type Freeze",
)
def predict_failure(
    name: _Name,
    connection: ControlConnection,
    output: Output,
    within: Annotated[
        str | None,
        typer.Option(
            "--in",
            metavar="SPAN",
            help="Time from announcement to NotBefore. The maintenance starts no earlier than NotBefore, unless "
            "all its events are approved. (default: 7d)",
        ),
    ] = None,
    event_type: Annotated[
        EventType | None,
        typer.Option(
            "--type",
            case_sensitive=False,
            metavar="Redeploy|Freeze",
            help="Type of the events. Use Freeze if the VMs will be migrated live. (default: Redeploy)",
        ),
    ] = None,
    force: ForceOption = False,
    reason: ReasonOption = None,
) -> None:
    """Report that a host will probably fail. Each VM of the host is moved after the time that --in sets.

    A VM that has asked for events is warned by an event. If the event is approved, the VM is moved earlier.
    """
    body = {"notice_s": as_span_s(within, "--in"), "type": event_type} | build_force_body(force=force, reason=reason)
    made = connection.send_change("POST", f"/v1/hosts/{quote_segment(name)}/predict-failure", body)
    print_created(output, connection, made["items"])
