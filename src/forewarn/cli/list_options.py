"""Options that all list commands share: which part of the history to select, how to print a list."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from forewarn.cli.command import OptionGroup
from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_format import FormatKind
from forewarn.cli.output import parse_moment
from forewarn.cli.times import as_moment_or_span
from forewarn.core.model import EventSource, EventType

__all__ = ["PLAIN_LIMIT", "Csv", "CsvListOptions", "HistoryFilter", "ListOptions", "SelectorOption", "WatchListOptions"]

PLAIN_LIMIT = 100
"""Number of rows of a list unless `--limit` is given."""

SORTED_MAX = 10_000
"""Maximum number of items that `--sort` reads, to bound the memory of the command and the load of the service."""

SelectorOption = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        metavar="SELECTOR",
        help="Only items with these labels, such as 'rack=r1,model!=x', 'team in (db,web)', 'gpu' or '!gpu'.",
    ),
]
"""`--selector` of a list of objects that have labels."""

Csv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header line. Without --limit, print every row.")]


def _make_option(help_: str, metavar: str, *names: str, **more: Any) -> Any:  # noqa: ANN401 - what Typer takes
    return typer.Option(*names, metavar=metavar, help=help_, rich_help_panel="Filters", **more)


_TIME_FORMS = (
    "RFC 3339, or how long ago, such as 30d. In audit-log, this is the time when the entry was written; in event list "
    "and maintenance list, the time when the maintenance was created."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions(OptionGroup):
    """Options that say how to print a list."""

    output_format: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FORMAT",
            help="Output format: table (default), wide (a table with more columns), json, yaml, csv, name (the first "
            "column, one a line), or columns=MEMBER,... (a table of members of the JSON, such as "
            "columns=name,labels.rack).",
            autocompletion=lambda: [*(kind for kind in FormatKind if kind is not FormatKind.COLUMNS), "columns="],
        ),
    ] = None
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="MEMBER",
            help="Sort by a member of the JSON, such as name or labels.rack; -MEMBER for descending order. This reads "
            f"all items that the other options select, at most {SORTED_MAX:,}, before --limit applies.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help=f"Maximum number of rows. (default: {PLAIN_LIMIT}; all with the formats csv and name)",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchListOptions(ListOptions):
    """Options of a list that can be watched."""

    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Print the list, then a line for each item that is added, changed or removed, until Ctrl-C; with "
            "--json, one JSON object per line.",
        ),
    ] = False
    timeout: Annotated[str | None, typer.Option(metavar="SPAN", help="With --watch: end after this time.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvListOptions(WatchListOptions):
    """Options of a list that can be watched and has `--csv`, the short form of `--output csv`."""

    as_csv: Csv = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter(OptionGroup):
    """Options that select a part of the history."""

    since: Annotated[str | None, _make_option(f"Only items of this time or later: {_TIME_FORMS}", "TIME")] = None
    until: Annotated[str | None, _make_option(f"Only items before this time: {_TIME_FORMS}", "TIME")] = None
    vm: Annotated[str | None, _make_option("Only items about this VM, even if the VM was removed.", "NAME")] = None
    scope: Annotated[str | None, _make_option("Only items about this scope.", "NAME")] = None
    host: Annotated[
        str | None,
        _make_option(
            "Only items about maintenance of a VM that was on this host when the maintenance was created.", "NAME"
        ),
    ] = None
    event_type: Annotated[
        EventType | None,
        _make_option(
            f"Only items about maintenance of this type: {', '.join(EventType)}.",
            "TYPE",
            "--type",
            case_sensitive=False,
        ),
    ] = None
    source: Annotated[
        EventSource | None,
        _make_option("Only items about maintenance from this source.", "Platform|User", case_sensitive=False),
    ] = None
    actor: Annotated[
        str | None,
        _make_option(
            "In audit-log: only entries of this actor, such as operator:ann or vm:db. In maintenance list and event "
            "list: only maintenances for which the audit log has an entry of this actor, or the events of such "
            "maintenances.",
            "ACTOR",
        ),
    ] = None
    text: Annotated[
        str | None, _make_option("Only items with this text in a reason or description; case-insensitive.", "TEXT")
    ] = None

    @property
    def has_options(self) -> bool:
        """True if any option was given."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    def to_query_params(self, connection: ControlConnection) -> dict[str, object]:
        """Return the query parameters of the API. Spans count from the time of the service, which may be virtual.

        Raises:
            typer.BadParameter: A time is invalid, or a text is empty.
        """
        for name in ("vm", "scope", "host", "actor", "text"):
            if getattr(self, name) == "":
                raise typer.BadParameter("must not be empty: give a value, or omit the option", param_hint=f"--{name}")
        given = {"since": self.since, "until": self.until}
        moments = {name: as_moment_or_span(text, f"--{name}") for name, text in given.items() if text is not None}
        # The clock is requested only if a span needs it: most calls give absolute times or none.
        is_asked = any(isinstance(moment, float) for moment in moments.values())
        now = parse_moment(connection.get("/v1/clock")["now"]) if is_asked else None
        return {name: _format_query_time(moment, now, name) for name, moment in moments.items()} | {
            "vm": self.vm,
            "scope": self.scope,
            "host": self.host,
            "type": self.event_type,
            "source": self.source,
            "actor": self.actor,
            "text": self.text,
        }


def _format_query_time(value: datetime | float, now: datetime | None, name: str) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    assert now is not None  # noqa: S101 - asked for above
    try:
        return (now - timedelta(seconds=value)).isoformat()
    except OverflowError:
        raise typer.BadParameter("is too far in the past", param_hint=f"--{name}") from None
