"""`forewarn subscription`: receivers of notifications, and failed deliveries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.list_options import ListOptions, WatchListOptions
from forewarn.cli.list_output import print_page
from forewarn.cli.output import Column, Output, format_moment, show_moment
from forewarn.cli.times import check_known, split_names
from forewarn.core.subscription import DeliveryState, NotificationKind
from forewarn.errors import OtherSideError

__all__ = ["app"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of the subscription.")]

app = make_group("subscription", "Post notifications to URLs, as signed CloudEvents.", "Operate")


@command(
    app,
    "create",
    "forewarn subscription create chat https://hooks.example/forewarn",
    "forewarn subscription create web-team https://web.example/hook --scope web --kind scheduled,canceled",
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name for the subscription.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="URL to post notifications to.")],
    connection: ControlConnection,
    output: Output,
    scopes: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="NAME", help="Only notifications about this scope; repeatable."),
    ] = None,
    vms: Annotated[
        list[str] | None,
        typer.Option("--vm", metavar="NAME", help="Only notifications about this standalone VM; repeatable."),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help=f"Only notifications of this kind; repeatable or comma-separated: {', '.join(NotificationKind)}.",
        ),
    ] = None,
) -> None:
    """Create a subscription, and print its signing secret, which is shown only once."""
    wanted = split_names(kinds)
    for kind in wanted:
        check_known(kind, list(NotificationKind), "kind", "--kind")
    body = {"name": name, "url": url, "scopes": split_names(scopes), "vms": split_names(vms), "kinds": wanted}
    made = connection.send_change("POST", "/v1/subscriptions", body)
    if not output.print_if_json(made):
        output.print_line(made["secret"])
        output.print_notice(f"test it: forewarn subscription test {made['name']}")


@command(app, "list", "forewarn subscription list")
def list_subscriptions(connection: ControlConnection, output: Output, options: WatchListOptions) -> None:
    """List subscriptions, the oldest first."""
    print_page(
        connection,
        output,
        "/v1/subscriptions",
        [
            Column("name"),
            Column("state", _describe_state),
            Column("waiting"),
            Column("dead"),
            Column("url", is_whole=False),
            Column("scopes", is_whole=False, is_wide=True),
            Column("vms", is_whole=False, is_wide=True),
            Column("kinds", is_whole=False, is_wide=True),
            Column("failing since", show_moment("failing_since"), is_wide=True),
            Column("id", is_wide=True),
        ],
        options=options,
        list_name="subscriptions",
        params={},
        empty="no subscriptions: see 'forewarn subscription create --help'",
        noun="subscriptions",
    )


@command(app, "show", "forewarn subscription show chat")
def show(name: _Name, connection: ControlConnection, output: Output) -> None:
    """Show one subscription."""
    found = connection.get(_build_path(name))
    output.print_record(
        found,
        [
            ("name", found["name"]),
            ("id", found["id"]),
            ("url", found["url"]),
            ("state", _describe_state(found)),
            ("reason", found["reason"]),
            ("scopes", found["scopes"]),
            ("vms", found["vms"]),
            ("kinds", found["kinds"]),
            ("sent up to", found["cursor"]),
            ("waiting", found["waiting"]),
            ("dead", found["dead"]),
            ("failing since", format_moment(found["failing_since"])),
            ("former secret until", format_moment(found["former_secret_until"])),
            ("created", f"{format_moment(found['created_at'])} by {found['created_by']}"),
        ],
    )


@command(app, "delete", "forewarn subscription delete chat", "forewarn subscription delete chat --yes")
def delete(name: _Name, connection: ControlConnection, output: Output, yes: Yes = False) -> None:
    """Delete a subscription and its pending deliveries. Without --yes, the command asks for confirmation."""

    def describe() -> str:
        url = connection.get(_build_path(name))["url"]
        return f"Subscription {name} is deleted, with its secret and all pending deliveries to {url}."

    confirm(output, describe, yes=yes)
    gone = connection.send_change("DELETE", _build_path(name), None)
    output.print_result(gone, f"subscription {gone['name']} is deleted")


@command(app, "pause", 'forewarn subscription pause chat --reason "the receiver moves"')
def pause(
    name: _Name,
    connection: ControlConnection,
    output: Output,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Reason for the pause.")] = None,
) -> None:
    """Pause deliveries until you resume them; no notification is lost meanwhile."""
    paused = connection.send_change("POST", _build_path(name, "pause"), {"reason": reason})
    output.print_result(paused, f"subscription {paused['name']} is paused")


@command(app, "resume", "forewarn subscription resume chat", "forewarn subscription resume chat --skip")
def resume(
    name: _Name,
    connection: ControlConnection,
    output: Output,
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip the notifications of everything that has happened until now.")
    ] = False,
) -> None:
    """Resume deliveries, beginning with the notifications that waited during the pause."""
    resumed = connection.send_change("POST", _build_path(name, "resume"), {"skip": skip})
    output.print_result(resumed, f"subscription {resumed['name']} is active")


@command(
    app,
    "rotate-secret",
    "forewarn subscription rotate-secret chat",
    "forewarn subscription rotate-secret chat --at-once",
)
def rotate(
    name: _Name,
    connection: ControlConnection,
    output: Output,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Stop signing with the old secret now, for example after a leak.")
    ] = False,
) -> None:
    """Print a new signing secret, which is shown only once.

    For a day (setting notify_secret_overlap), Forewarn signs with the old secret too.
    """
    rotated = connection.send_change("POST", _build_path(name, "rotate-secret"), {"at_once": at_once})
    if not output.print_if_json(rotated):
        output.print_line(rotated["secret"])
        until = rotated["former_secret_until"]
        output.print_notice(
            "the old secret no longer signs"
            if until is None
            else f"the old secret also signs until {format_moment(until)}"
        )


@command(app, "test", "forewarn subscription test chat")
def test(name: _Name, connection: ControlConnection, output: Output) -> None:
    """Send a ping to the receiver now, and show its answer."""
    answer = connection.send_change("POST", _build_path(name, "test"), None)
    # JSON is printed for a failed ping too: it contains the receiver's answer.
    output.print_if_json(answer)
    if not answer["delivered"]:
        raise OtherSideError(f"the receiver of {name} did not accept the ping: {answer['error']}")
    if not output.is_json:
        output.print_line(f"the receiver of {name} answered {answer['status']} in {answer['took_s'] * 1000:.0f} ms")


@command(app, "deliveries", "forewarn subscription deliveries chat", "forewarn subscription deliveries chat --waiting")
def deliveries(
    name: _Name,
    connection: ControlConnection,
    output: Output,
    options: ListOptions,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Instead of dead letters, list notifications that wait for a retry.")
    ] = False,
) -> None:
    """List notifications that Forewarn has given up on (dead letters), oldest first."""
    state = DeliveryState.WAITING if waiting else DeliveryState.DEAD
    print_page(
        connection,
        output,
        _build_path(name, "deliveries"),
        [
            Column("id"),
            Column("kind"),
            Column("happened", show_moment("at")),
            Column("tries", "attempts"),
            Column("next try", show_moment("next_at")),
            Column("last error", is_whole=False),
            Column("subject", is_wide=True),
        ],
        options=options,
        list_name="deliveries",
        params={"state": state.value},
        empty=f"no {state.value} deliveries",
        noun="deliveries",
    )


@command(
    app,
    "redeliver",
    "forewarn subscription redeliver chat 1204-602D9444-D2CD-49C7-8624-8643E7171297",
    "forewarn subscription redeliver chat --all",
)
def redeliver(
    name: _Name,
    connection: ControlConnection,
    output: Output,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of notifications.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Retry up to 1,000 dead letters. Repeat the command for more.")
    ] = False,
) -> None:
    """Retry notifications that Forewarn has given up on (dead letters).

    If a delivery fails again and the reported change is older than notify_age_max (by default, a day), the
    notification becomes a dead letter again at once.
    """
    if bool(ids) == every:
        raise typer.BadParameter("give ids of notifications, or --all")
    body = {"ids": None if every else split_names(ids)}
    count = connection.send_change("POST", _build_path(name, "deliveries", "redeliver"), body)["count"]
    output.print_result({"count": count}, f"{count} deliver{'y' if count == 1 else 'ies'} to be retried")


def _build_path(name: str, *rest: str) -> str:
    return "/".join(["/v1/subscriptions", quote_segment(name), *rest])


def _describe_state(found: dict[str, Any]) -> str:
    if found["given_up"]:
        return "given up"
    return "failing" if found["state"] == "active" and found["failing_since"] else str(found["state"])
