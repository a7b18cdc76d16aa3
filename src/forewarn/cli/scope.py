"""`forewarn scope`: groups of VMs, with their policies and whether their VMs get events."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.completers import scope_names
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.list_options import CsvListOptions, SelectorOption
from forewarn.cli.list_output import format_labels, print_page, show_labels
from forewarn.cli.output import Column, Output, format_moment, show_moment

__all__ = ["app", "format_enabled"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the scope.", autocompletion=scope_names)]

app = make_group("scope", "Show scopes (groups of VMs) and their policies.", "Declare")


@command(
    app,
    "list",
    "forewarn scope list",
    "forewarn scope list --prefix web- --json",
    "forewarn scope list --selector team=shop",
    "forewarn scope list --csv > scopes.csv",
)
def list_scopes(
    connection: ControlConnection,
    output: Output,
    options: CsvListOptions,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only scopes whose names begin with this text.")
    ] = None,
    selector: SelectorOption = None,
) -> None:
    """List scopes by name: their VMs, when one of these last polled, and the rules that their policies declare."""
    print_page(
        connection,
        output,
        "/v1/scopes",
        [
            Column("name"),
            Column("kind"),
            Column("vms", "vm_count"),
            Column("enabled", format_enabled),
            Column("last polled", show_moment("last_polled_at")),
            Column("policy", _name_declared_rules, is_whole=False),
            Column("fault domains", "fault_domain_count", is_wide=True),
            Column("labels", show_labels, is_whole=False),
        ],
        options=options,
        list_name="scopes",
        params={"prefix": prefix, "selector": selector},
        empty="no such scopes"
        if prefix or selector
        else "no scopes are declared: see 'forewarn inventory apply --help'",
        noun="scopes",
    )


@command(app, "show", "forewarn scope show web", "forewarn scope show web --json")
def show(name: _Name, connection: ControlConnection, output: Output) -> None:
    """Show one scope, with its policy in words."""
    scope = connection.get(f"/v1/scopes/{quote_segment(name)}")
    if output.print_if_json(scope):
        return
    output.print_fields(
        [
            ("name", scope["name"]),
            ("kind", scope["kind"]),
            ("fault domains", scope["fault_domain_count"]),
            ("vms", scope["vm_count"]),
            ("enabled", format_enabled(scope)),
            ("last polled", format_moment(scope["last_polled_at"]) or "not known"),
            ("labels", format_labels(scope["labels"]) or "none"),
        ]
    )
    output.print_heading("Policy" if scope["policy"] is not None else "Policy (none is declared: the default)")
    output.print_fields([(rule["name"], rule["text"]) for rule in scope["rules"]])


def format_enabled(scope: dict[str, Any]) -> str:
    """Format whether events are enabled: for all VMs, for some, or for none."""
    enabled, count = scope["enabled_vm_count"], scope["vm_count"]
    if enabled in {0, count}:
        return "yes" if enabled else "no"
    return f"{enabled} of {count} VMs"


def _name_declared_rules(scope: dict[str, Any]) -> list[str]:
    return [rule["name"] for rule in scope["rules"] if rule["is_declared"]]
