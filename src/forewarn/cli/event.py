"""`forewarn event`: show the events of VMs, and approve them for the VMs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.clock import show_relative
from forewarn.cli.command import command, make_group
from forewarn.cli.completers import event_ids
from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_options import CsvListOptions, HistoryFilter
from forewarn.cli.list_output import print_page
from forewarn.cli.output import Column, Output
from forewarn.cli.short_ids import resolve_id
from forewarn.cli.times import split_names
from forewarn.core.model import EventStatus
from forewarn.errors import Conflict, NotFound

__all__ = ["app", "make_event_columns"]

_UNKNOWN = 404
_REFUSED = 409

app = make_group("event", "Show the events that VMs see; approve them on behalf of VMs.", "Operate")


@command(
    app,
    "list",
    "forewarn event list",
    "forewarn event list --all --json",
    "forewarn event list --host host-1 -o name | xargs forewarn event approve",
    "forewarn event list --since 30d --scope web --status completed --csv > web.csv",
)
def list_events(
    connection: ControlConnection,
    output: Output,
    choice: HistoryFilter,
    options: CsvListOptions,
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
        bool, typer.Option("--all", help="Include ended events. --status, --since and --until also include them.")
    ] = False,
) -> None:
    """List events, those of the newest maintenance first."""
    params = choice.to_query_params(connection) | {"all": "true" if every else None, "status": statuses}
    print_page(
        connection,
        output,
        "/v1/events",
        lambda: make_event_columns(connection),
        options=options,
        list_name="events",
        params=params,
        empty="no events",
        noun="events",
    )


@command(app, "approve", "forewarn event approve 602D9444-D2CD-49C7-8624-8643E7171297")
def approve(
    event_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Ids of the events, or their beginnings.", autocompletion=event_ids),
    ],
    connection: ControlConnection,
    output: Output,
) -> None:
    """Approve events on behalf of their VMs; a maintenance starts as soon as all its events are approved."""
    body = {"event_ids": [resolve_id(connection, "event", each) for each in split_names(event_ids)]}
    # The answer lists the outcome of each event even if some are refused, so an error status is read like a
    # success.
    items = connection.send_change("POST", "/v1/events/approve", body, accepted_statuses=(_UNKNOWN, _REFUSED))["items"]
    done = [item for item in items if item["outcome"] in _OUTCOMES]
    output.print_result(items, *(f"event {item['event_id']} {_OUTCOMES[item['outcome']]}" for item in done))
    _check_approved(items)


_OUTCOMES = {"approved": "is approved", "unchanged": "no longer needs approval"}


def _check_approved(items: list[dict[str, Any]]) -> None:
    """Report events that could not be approved.

    Raises:
        NotFound: Some do not exist.
        Conflict: A policy reserves some for other approvers.
    """
    unknown, refused = ([i["event_id"] for i in items if i["status"] == s] for s in (_UNKNOWN, _REFUSED))
    if unknown:
        raise NotFound(f"no event with the id {', '.join(unknown)}: see 'forewarn event list'")
    if refused:
        raise Conflict(f"a policy reserves approval for others: {', '.join(refused)}; see 'forewarn inventory show'")


def make_event_columns(connection: ControlConnection) -> list[Column]:
    """Return the columns of a table of events, with complete ids that can be copied."""
    show = show_relative(connection, "not_before")
    return [
        Column("id"),
        Column("type"),
        Column("state", _get_state, is_state=True),
        # NotBefore of an event that has started or ended says nothing about when that was.
        Column("not before", lambda e: show(e) if e["status"] == EventStatus.SCHEDULED else None, is_whole=False),
        Column("maintenance", "maintenance_id", is_wide=True),
        Column("scope", is_wide=True),
        Column("ud", "update_domain", is_wide=True),
        Column("approved by", is_whole=False, is_wide=True),
        Column("resources", is_whole=False),
    ]


def _get_state(event: dict[str, Any]) -> str:
    is_approved = event["status"] == "Scheduled" and event["approved_at"] is not None
    return "Approved" if is_approved else str(event["status"])
