"""`forewarn subscription`: receivers of notifications, and failed deliveries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command, group
from forewarn.cli.confirming import Yes, confirm
from forewarn.cli.connection import Connection, segment
from forewarn.cli.output import Column, Output, format_moment
from forewarn.cli.times import split_names
from forewarn.core.subscription import DeliveryState, NotificationKind
from forewarn.errors import OtherSideError

__all__ = ["add_subscription"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of the subscription.")]


def add_subscription(app: typer.Typer) -> None:
    """Add the commands of `subscription`."""
    noun = group(app, "subscription", "Have what happens posted to a URL, signed, as CloudEvents.", "Operate")
    _add_create(noun)
    _add_looking(noun)
    _add_changing(noun)
    _add_trying(noun)
    _add_deliveries(noun)


def _path(name: str, *rest: str) -> str:
    return "/".join(["/v1/subscriptions", segment(name), *rest])


def _add_create(noun: typer.Typer) -> None:
    @command(
        noun,
        "create",
        "forewarn subscription create chat https://hooks.example/forewarn",
        "forewarn subscription create web-team https://web.example/hook --scope web --kind scheduled,canceled",
    )
    def create(
        name: Annotated[str, typer.Argument(metavar="NAME", help="Of your choice.")],
        url: Annotated[str, typer.Argument(metavar="URL", help="Where notifications are posted to.")],
        connection: Connection,
        output: Output,
        scopes: Annotated[
            list[str] | None, typer.Option("--scope", metavar="NAME", help="Only of this scope; repeatable.")
        ] = None,
        vms: Annotated[
            list[str] | None,
            typer.Option("--vm", metavar="NAME", help="Only of this VM, which stands alone; repeatable."),
        ] = None,
        kinds: Annotated[
            list[str] | None,
            typer.Option(
                "--kind", metavar="KIND", help=f"Only of this kind; repeatable: {', '.join(NotificationKind)}."
            ),
        ] = None,
    ) -> None:
        """Post notifications to a URL, from now on. Prints the secret that signs them; it is shown only once."""
        body = {
            "name": name,
            "url": url,
            "scopes": split_names(scopes or []),
            "vms": split_names(vms or []),
            "kinds": _kinds(kinds or []),
        }
        made = connection.change("POST", "/v1/subscriptions", body)
        if not output.show(made):
            output.line(made["secret"])
            output.notice(f"try it: forewarn subscription test {made['name']}")


def _kinds(given: list[str]) -> list[str]:
    kinds = split_names(given)
    for kind in kinds:
        if kind not in list(NotificationKind):
            msg = f"{kind!r} is none of {', '.join(NotificationKind)}"
            raise typer.BadParameter(msg, param_hint="--kind")
    return kinds


def _add_looking(noun: typer.Typer) -> None:
    @command(noun, "list", "forewarn subscription list")
    def list_subscriptions(connection: Connection, output: Output) -> None:
        """List every subscription."""
        found = connection.get("/v1/subscriptions")["items"]
        if not output.show(found):
            columns = [
                Column("name"),
                Column("state"),
                Column("waiting"),
                Column("dead"),
                Column("url", is_whole=False),
            ]
            output.table(
                columns,
                [(each["name"], _state(each), each["waiting"], each["dead"], each["url"]) for each in found],
                empty="there are none: see 'forewarn subscription create --help'",
            )

    @command(noun, "show", "forewarn subscription show chat")
    def show(name: _Name, connection: Connection, output: Output) -> None:
        """Show one subscription."""
        found = connection.get(_path(name))
        if not output.show(found):
            _print(output, found)


def _state(found: dict[str, Any]) -> str:
    if found["given_up"]:
        return "given up"
    return "failing" if found["state"] == "active" and found["failing_since"] else str(found["state"])


def _print(output: Output, found: dict[str, Any]) -> None:
    output.fields(
        [
            ("name", found["name"]),
            ("id", found["id"]),
            ("url", found["url"]),
            ("state", _state(found)),
            ("reason", found["reason"]),
            ("scopes", ", ".join(found["scopes"])),
            ("vms", ", ".join(found["vms"])),
            ("kinds", ", ".join(found["kinds"])),
            ("told up to", found["cursor"]),
            ("waiting", found["waiting"]),
            ("dead", found["dead"]),
            ("failing since", format_moment(found["failing_since"])),
            ("former secret until", format_moment(found["former_secret_until"])),
            ("created", f"{format_moment(found['created_at'])} by {found['created_by']}"),
        ]
    )


def _add_changing(noun: typer.Typer) -> None:
    @command(noun, "delete", "forewarn subscription delete chat", "forewarn subscription delete chat --yes")
    def delete(name: _Name, connection: Connection, output: Output, yes: Yes = False) -> None:
        """Delete a subscription and its pending deliveries. Asks first; --yes confirms."""

        def describe() -> str:
            url = connection.get(_path(name))["url"]
            return f"Subscription {name} is deleted with its secret and all that waits to be delivered to {url}."

        confirm(output, describe, yes=yes)
        gone = connection.change("DELETE", _path(name), None)
        if not output.show(gone):
            output.line(f"subscription {gone['name']} is deleted")

    @command(noun, "pause", 'forewarn subscription pause chat --reason "the receiver moves"')
    def pause(
        name: _Name,
        connection: Connection,
        output: Output,
        reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why.")] = None,
    ) -> None:
        """Pause deliveries until resumed; nothing is lost meanwhile."""
        paused = connection.change("POST", _path(name, "pause"), {"reason": reason})
        if not output.show(paused):
            output.line(f"subscription {paused['name']} is paused")

    @command(noun, "resume", "forewarn subscription resume chat", "forewarn subscription resume chat --skip")
    def resume(
        name: _Name,
        connection: Connection,
        output: Output,
        skip: Annotated[bool, typer.Option("--skip", help="Leave out what has happened until now.")] = False,
    ) -> None:
        """Resume deliveries where they were paused."""
        resumed = connection.change("POST", _path(name, "resume"), {"skip": skip})
        if not output.show(resumed):
            output.line(f"subscription {resumed['name']} is active")


def _add_trying(noun: typer.Typer) -> None:
    @command(
        noun,
        "rotate-secret",
        "forewarn subscription rotate-secret chat",
        "forewarn subscription rotate-secret chat --at-once",
    )
    def rotate(
        name: _Name,
        connection: Connection,
        output: Output,
        at_once: Annotated[
            bool, typer.Option("--at-once", help="Sign with the new one alone: somebody else knows the one before.")
        ] = False,
    ) -> None:
        """Print a new secret; it is shown only once. The former one also signs for a while."""
        rotated = connection.change("POST", _path(name, "rotate-secret"), {"at_once": at_once})
        if not output.show(rotated):
            output.line(rotated["secret"])
            until = rotated["former_secret_until"]
            output.notice(
                "the one before does not sign any more"
                if until is None
                else f"the one before signs too until {format_moment(until)}"
            )

    @command(noun, "test", "forewarn subscription test chat")
    def test(name: _Name, connection: Connection, output: Output) -> None:
        """Send a ping now, and show the receiver's answer."""
        answer = connection.change("POST", _path(name, "test"), None)
        output.show(answer)
        if not answer["delivered"]:
            msg = f"the receiver of {name} did not take the ping: {answer['error']}"
            raise OtherSideError(msg)
        if not output.is_json:
            output.line(f"the receiver of {name} answered {answer['status']} in {answer['took_s'] * 1000:.0f} ms")


def _add_deliveries(noun: typer.Typer) -> None:
    @command(
        noun, "deliveries", "forewarn subscription deliveries chat", "forewarn subscription deliveries chat --waiting"
    )
    def deliveries(
        name: _Name,
        connection: Connection,
        output: Output,
        waiting: Annotated[bool, typer.Option("--waiting", help="Those that are tried again, instead.")] = False,
        limit: Annotated[int, typer.Option(min=1, metavar="COUNT", help="At most so many.")] = 100,
    ) -> None:
        """List deliveries that were given up, oldest first."""
        state = DeliveryState.WAITING if waiting else DeliveryState.DEAD
        found = list(connection.pages(_path(name, "deliveries"), limit + 1, state=state.value))
        if not output.show(found[:limit]):
            columns = [Column("id"), Column("kind"), Column("happened"), Column("tries"), Column("next try")]
            rows = [
                (
                    d["id"],
                    d["kind"],
                    format_moment(d["at"]),
                    d["attempts"],
                    format_moment(d["next_at"]),
                    d["last_error"],
                )
                for d in found[:limit]
            ]
            output.table([*columns, Column("last error", is_whole=False)], rows, empty=f"none is {state.value}")
        if len(found) > limit:
            output.notice(f"there are more: --limit {limit * 10}")

    @command(
        noun,
        "redeliver",
        "forewarn subscription redeliver chat 1204-602D9444-D2CD-49C7-8624-8643E7171297",
        "forewarn subscription redeliver chat --all",
    )
    def redeliver(
        name: _Name,
        connection: Connection,
        output: Output,
        ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of deliveries.")] = None,
        every: Annotated[bool, typer.Option("--all", help="All that were given up, 1,000 at a time.")] = False,
    ) -> None:
        """Retry deliveries that were given up: once, or repeatedly while their notification is not too old."""
        if bool(ids) == every:
            msg = "name deliveries, or say --all"
            raise typer.BadParameter(msg)
        body = {"ids": None if every else split_names(ids or [])}
        count = connection.change("POST", _path(name, "deliveries", "redeliver"), body)["count"]
        if not output.show({"count": count}):
            output.line(f"{count} deliver{'y is' if count == 1 else 'ies are'} tried again")
