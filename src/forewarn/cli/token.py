"""`forewarn token`: tokens of people and programs, and the identity of the current one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.list_options import WatchListOptions
from forewarn.cli.list_output import print_page
from forewarn.cli.output import Column, Output, format_moment, show_moment
from forewarn.cli.short_ids import resolve_id
from forewarn.cli.times import as_span_s
from forewarn.core.access import Role

__all__ = ["app"]

_ROLES = [role.value for role in Role if role is not Role.HOST]

app = make_group("token", "Create, list and revoke access tokens.", "Declare")


@command(
    app,
    "create",
    "forewarn token create alice --role operator > alice.token",
    "forewarn token create shop --role tenant --scope web --vm db > shop.token",
    "forewarn token create wallboard --role read-only --expires-in 365d > wallboard.token",
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the holder, recorded in the audit log.")],
    connection: ControlConnection,
    output: Output,
    role: Annotated[Role, typer.Option(metavar="|".join(_ROLES), help="Role of the holder.")],
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="NAME",
            help="With --role tenant: scope that the tenant owns, with all its VMs; repeatable.",
        ),
    ] = None,
    vms: Annotated[
        list[str] | None,
        typer.Option(
            "--vm", metavar="NAME", help="With --role tenant: standalone VM that the tenant owns; repeatable."
        ),
    ] = None,
    expires_in: Annotated[str | None, typer.Option(metavar="SPAN", help="Token lifetime. (default: 90d)")] = None,
) -> None:
    """Create and print a token, which is shown only once."""
    if role is Role.HOST:
        raise typer.BadParameter("cannot create the token of a host: use 'forewarn host create-token'")
    body = {
        "name": name,
        "role": role.value,
        "scopes": scopes or [],
        "vms": vms or [],
        "expires_in_s": as_span_s(expires_in, "--expires-in"),
    }
    made = connection.send_change("POST", "/v1/tokens", body, is_repeatable=False)
    if not output.print_if_json(made):
        output.print_line(made["token"])
        output.print_notice(f"token {made['id']} for {name} expires {format_moment(made['expires_at'])}")


@command(app, "list", "forewarn token list", "forewarn token list --all")
def list_tokens(
    connection: ControlConnection,
    output: Output,
    options: WatchListOptions,
    with_all: Annotated[bool, typer.Option("--all", help="Include expired and revoked tokens.")] = False,
) -> None:
    """List the tokens of people and programs; 'forewarn host tokens' lists the tokens of hosts."""
    print_page(
        connection,
        output,
        "/v1/tokens",
        [
            Column("id"),
            Column("name"),
            Column("role"),
            Column("expires", show_moment("expires_at")),
            Column("revoked", show_moment("revoked_at")),
            Column("created by"),
            Column("created", show_moment("created_at"), is_wide=True),
            Column("owns", _list_owned, is_whole=False),
        ],
        options=options,
        list_name="tokens",
        params={"valid": None if with_all else "true"},
        empty="no tokens: see 'forewarn token create --help'",
        noun="tokens",
    )


@command(app, "revoke", "forewarn token revoke k3v9xq2mab", "forewarn token revoke k3v9xq2mab --yes")
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, or its beginning.")],
    connection: ControlConnection,
    output: Output,
    yes: Yes = False,
) -> None:
    """Revoke a token, and close streams that were opened with it, such as 'audit-log --follow'.

    Without --yes, the command asks for confirmation.
    """
    token = resolve_id(connection, "token", token)

    def describe() -> str:
        found = next((each for each in connection.iterate_items("/v1/tokens") if each["id"] == token), None)
        whose = "" if found is None else f" of {found['name']} ({found['role']})"
        return f"Token {token}{whose} is refused from now on, and its streams end."

    confirm(output, describe, yes=yes)
    revoked = connection.send_change("DELETE", f"/v1/tokens/{quote_segment(token)}", None)
    output.print_result(revoked, f"token {revoked['id']} of {revoked['name']} is revoked")


@command(app, "whoami", "forewarn token whoami", "forewarn token whoami --token-file alice.token")
def whoami(connection: ControlConnection, output: Output) -> None:
    """Show the name, permissions and expiry of the current token."""
    found = connection.get("/v1/whoami")
    output.print_record(
        found,
        [
            ("actor", found["actor"]),
            ("role", found["role"]),
            ("owns", _list_owned(found)),
            ("host", found["host"]),
            ("token", found["token_id"]),
            ("expires", format_moment(found["expires_at"])),
        ],
    )


def _list_owned(shown: dict[str, Any]) -> list[str]:
    return [*(f"scope {name}" for name in shown["scopes"]), *(f"vm {name}" for name in shown["vms"])]
