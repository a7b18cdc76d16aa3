"""`forewarn token`: tokens of people and programs, and the identity of the current one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command, group
from forewarn.cli.confirming import Yes, confirm
from forewarn.cli.connection import Connection, segment
from forewarn.cli.output import Column, Output, format_moment, parse_moment
from forewarn.cli.times import as_span_s
from forewarn.core.access import Role

__all__ = ["add_token"]

_ROLES = [role.value for role in Role if role is not Role.HOST]


def add_token(app: typer.Typer) -> None:
    """Add the commands of `token`."""
    noun = group(app, "token", "Let others in: who may see and do what.", "Declare")
    _add_create(noun)

    @command(noun, "list", "forewarn token list", "forewarn token list --all")
    def list_tokens(
        connection: Connection,
        output: Output,
        with_all: Annotated[bool, typer.Option("--all", help="Those that are not taken any more, too.")] = False,
    ) -> None:
        """List the tokens of people and programs; 'forewarn host tokens' lists those of hosts."""
        found = list(connection.pages("/v1/tokens"))
        if not with_all:
            now = parse_moment(connection.get("/v1/clock")["now"])
            found = [each for each in found if each["revoked_at"] is None and parse_moment(each["expires_at"]) > now]
        if not output.show(found):
            output.table(
                [Column(head) for head in ("id", "name", "role", "expires", "revoked", "made by")]
                + [Column("owns", is_whole=False)],
                [
                    (
                        each["id"],
                        each["name"],
                        each["role"],
                        format_moment(each["expires_at"]),
                        format_moment(each["revoked_at"]),
                        each["created_by"],
                        _owns(each),
                    )
                    for each in found
                ],
                empty="there are none: see 'forewarn token create --help'",
            )

    @command(noun, "revoke", "forewarn token revoke k3v9xq2mab", "forewarn token revoke k3v9xq2mab --yes")
    def revoke(
        token: Annotated[str, typer.Argument(metavar="ID", help="Of the list of tokens.")],
        connection: Connection,
        output: Output,
        yes: Yes = False,
    ) -> None:
        """Revoke a token, and end streams that use it. Asks first; --yes confirms."""

        def describe() -> str:
            found = next((each for each in connection.get("/v1/tokens")["items"] if each["id"] == token), None)
            whose = "" if found is None else f" of {found['name']} ({found['role']})"
            return f"Token {token}{whose} is refused from now on, and its streams end."

        confirm(output, describe, yes=yes)
        revoked = connection.change("DELETE", f"/v1/tokens/{segment(token)}", None)
        if not output.show(revoked):
            output.line(f"token {revoked['id']} of {revoked['name']} is not taken any more")

    @command(noun, "whoami", "forewarn token whoami", "forewarn token whoami --token-file alice.token")
    def whoami(connection: Connection, output: Output) -> None:
        """Show the name, permissions and expiry of the current token."""
        found = connection.get("/v1/whoami")
        if not output.show(found):
            output.fields(
                [
                    ("actor", found["actor"]),
                    ("role", found["role"]),
                    ("owns", _owns(found)),
                    ("host", found["host"]),
                    ("token", found["token_id"]),
                    ("expires", format_moment(found["expires_at"])),
                ]
            )


def _add_create(noun: typer.Typer) -> None:
    @command(
        noun,
        "create",
        "forewarn token create alice --role operator > alice.token",
        "forewarn token create shop --role tenant --scope web --vm db > shop.token",
        "forewarn token create wallboard --role read-only --expires-in 365d > wallboard.token",
    )
    def create(
        name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; the audit log says it.")],
        connection: Connection,
        output: Output,
        role: Annotated[Role, typer.Option(metavar="|".join(_ROLES), help="What it may do.")],
        scopes: Annotated[
            list[str] | None,
            typer.Option("--scope", metavar="NAME", help="A scope that the tenant owns, with all its VMs; repeatable."),
        ] = None,
        vms: Annotated[
            list[str] | None,
            typer.Option("--vm", metavar="NAME", help="A VM that stands alone and that it owns; repeatable."),
        ] = None,
        expires_in: Annotated[
            str | None, typer.Option(metavar="SPAN", help="How long it is taken. (default: 90d)")
        ] = None,
    ) -> None:
        """Print a new token; it is shown only once."""
        if role is Role.HOST:
            msg = "the endpoint on a host gets its token by 'forewarn host create-token'"
            raise typer.BadParameter(msg)
        body = {
            "name": name,
            "role": role.value,
            "scopes": scopes or [],
            "vms": vms or [],
            "expires_in_s": as_span_s(expires_in, "--expires-in"),
        }
        made = connection.change("POST", "/v1/tokens", body, is_repeatable=False)
        if not output.show(made):
            output.line(made["token"])
            output.notice(f"token {made['id']} for {name} expires {format_moment(made['expires_at'])}")


def _owns(shown: dict[str, Any]) -> str:
    return ", ".join([*(f"scope {name}" for name in shown["scopes"]), *(f"vm {name}" for name in shown["vms"])])
