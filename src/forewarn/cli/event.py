"""`forewarn event`: show the events of VMs, and approve them for the VMs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.choosing import Choice, Csv, check_csv, print_csv
from forewarn.cli.clock import server_now
from forewarn.cli.command import command, group
from forewarn.cli.connection import Connection
from forewarn.cli.names import event_ids
from forewarn.cli.output import Column, Output, format_relative
from forewarn.cli.times import split_names
from forewarn.core.model import EventStatus
from forewarn.errors import Conflict, NotFound

__all__ = ["add_event", "events_table"]

_UNKNOWN = 404
_REFUSED = 409


def add_event(app: typer.Typer) -> None:
    """Add the commands of `event`."""
    noun = group(app, "event", "Look at the events that VMs see; approve them for the VMs.", "Operate")

    @command(
        noun,
        "list",
        "forewarn event list",
        "forewarn event list --all --json",
        "forewarn event list --since 30d --scope web --status completed --csv > web.csv",
    )
    def list_events(
        connection: Connection,
        output: Output,
        choice: Choice,
        statuses: Annotated[
            list[EventStatus] | None,
            typer.Option(
                "--status",
                case_sensitive=False,
                metavar="STATUS",
                help=f"Only this status ({', '.join(EventStatus).lower()}); repeatable.",
            ),
        ] = None,
        every: Annotated[
            bool, typer.Option("--all", help="Those that are over, too; so do --since and --until.")
        ] = False,
        limit: Annotated[
            int | None, typer.Option(min=1, metavar="COUNT", help="At most so many. (default: 100; all with --csv)")
        ] = None,
        as_csv: Csv = False,
    ) -> None:
        """List events, those of the newest maintenance first."""
        params = choice.params(connection) | {"all": "true" if every else None, "status": statuses}
        if as_csv:
            check_csv(output)
            print_csv(connection.pages("/v1/events", limit, **params), "events", output)
            return
        most = limit or 100
        found = list(connection.pages("/v1/events", most + 1, **params))
        if not output.show(found[:most]):
            events_table(output, connection, found[:most])
        if len(found) > most:
            output.notice(f"there are more: --limit {most * 10}")

    @command(
        noun,
        "approve",
        "forewarn event approve 602D9444-D2CD-49C7-8624-8643E7171297",
    )
    def approve(
        event_ids: Annotated[
            list[str], typer.Argument(metavar="ID...", help="Ids of the events.", autocompletion=event_ids)
        ],
        connection: Connection,
        output: Output,
    ) -> None:
        """Approve events on behalf of their VMs; once all are approved, the maintenance starts."""
        body = {"event_ids": split_names(event_ids)}
        items = connection.change("POST", "/v1/events/approve", body, also=(_UNKNOWN, _REFUSED))["items"]
        if not output.show(items):
            for item in items:
                if item["outcome"] in _OUTCOMES:
                    output.line(f"event {item['event_id']} {_OUTCOMES[item['outcome']]}")
        _check_approved(items)


_OUTCOMES = {"approved": "is approved", "unchanged": "needs no approval any more"}


def _check_approved(items: list[dict[str, Any]]) -> None:
    """Report events that could not be approved.

    Raises:
        NotFound: Some do not exist.
        Conflict: A policy reserves some for other approvers.
    """
    unknown, refused = ([i["event_id"] for i in items if i["status"] == s] for s in (_UNKNOWN, _REFUSED))
    if unknown:
        msg = f"no event has the id {', '.join(unknown)}: see 'forewarn event list'"
        raise NotFound(msg)
    if refused:
        msg = f"a policy leaves it to other approvers: {', '.join(refused)}; see 'forewarn inventory show'"
        raise Conflict(msg)


def events_table(output: Output, connection: Connection, events: list[dict[str, Any]]) -> None:
    """Print events, with complete ids that can be copied."""
    now = server_now(connection) if events else None
    columns = [Column("id"), Column("type"), Column("state", is_state=True), Column("not before", is_whole=False)]
    rows = [
        (
            event["id"],
            event["type"],
            event["status"] if event["approved_at"] is None or event["status"] != "Scheduled" else "Approved",
            None if now is None else format_relative(event["not_before"], now),
            ", ".join(event["resources"]),
        )
        for event in events
    ]
    output.table([*columns, Column("resources", is_whole=False)], rows, empty="no events")
