"""Options that select a part of the history, and the output of long lists; shared by all list commands."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from forewarn.cli.command import OptionGroup
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Column, Output, as_json, parse_moment
from forewarn.cli.times import as_moment_or_span
from forewarn.core.model import EventSource, EventType
from forewarn.util.escape import escape_lines

__all__ = [
    "CSV_COLUMNS",
    "PLAIN_LIMIT",
    "Csv",
    "HistoryFilter",
    "Limit",
    "PlainLimit",
    "SelectorOption",
    "check_output_format",
    "escape_cell",
    "format_labels",
    "iterate_with_progress",
    "print_csv",
    "print_items",
    "print_page",
]

CSV_COLUMNS = {
    "audit-log": "sequence at kind actor maintenance_id event_id scope vm source_address api_version reason",
    "events": "id maintenance_id scope resources update_domain status type not_before approved_at approved_by",
    "maintenances": "id request_id state cause type impact source description duration_s notice_s not_before "
    "moved_from moved_by created_at started_at impacted_at ended_at force_reason latest_start deferrals extensions "
    "extended_s hosts vms unwarned_vms",
    "vms": "name host scope scope_kind fault_domain update_domain addresses power_state priority size enabled "
    "incarnation labels",
    "hosts": "name vms failed_at failure_reason labels",
    "scopes": "name kind vm_count enabled_vm_count last_polled_at fault_domain_count labels",
}
"""Columns of the CSV output by list: members of the API's answers, in order. The schemas are slow to import."""

_STEP = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

PLAIN_LIMIT = 100

Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="COUNT", help=f"Maximum number of rows. (default: {PLAIN_LIMIT}; all with --csv)"),
]

PlainLimit = Annotated[int, typer.Option(min=1, metavar="COUNT", help="Maximum number of rows.")]
"""`--limit` of a list that has no `--csv`; its default is `PLAIN_LIMIT`."""

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


# Long lists


def print_page(
    connection: ControlConnection,
    output: Output,
    path: str,
    columns: Sequence[Column],
    *,
    limit: int | None,
    params: Mapping[str, object],
    empty: str,
    noun: str = "rows",
    csv_list: str | None = None,
) -> None:
    """Print the first items of a list as a table or JSON, with a notice if there are more; or print CSV.

    Args:
        connection: Connection to the service.
        output: Output of the command.
        path: Path of the list in the control API.
        columns: Columns of the table.
        limit: Maximum number of items; None for 100, or all in CSV.
        params: Query parameters.
        empty: Notice if there is no item.
        noun: What the items are, in the plural.
        csv_list: Name of the list in `CSV_COLUMNS`, to print CSV; None to print a table or JSON.

    Raises:
        typer.BadParameter: Both CSV and JSON are requested.
    """
    if csv_list is not None:
        check_output_format(output)
        print_csv(connection.iterate_items(path, limit, **params), csv_list, output)
        return
    limit = limit or PLAIN_LIMIT
    # One more than is shown, to know if there are more.
    found = list(connection.iterate_items(path, limit + 1, **params))
    output.print_list(found[:limit], columns, empty=empty)
    if len(found) > limit:
        output.print_notice(f"there are more {noun}: use --limit {limit * 10}")


def check_output_format(output: Output) -> None:
    """Check that only one output format is requested.

    Raises:
        typer.BadParameter: Both `--csv` and `--json` were given.
    """
    if output.is_json:
        raise typer.BadParameter("cannot be combined with --json", param_hint="--csv")


def iterate_with_progress(items: Iterable[dict[str, Any]], output: Output) -> Iterator[dict[str, Any]]:
    """Yield the same items; count them on the terminal if the list itself goes elsewhere."""
    is_shown = sys.stderr.isatty() and not sys.stdout.isatty()
    count = 0
    for count, item in enumerate(items, 1):
        if is_shown and count % _STEP == 0:
            output.show_progress(f"{count} rows")
        yield item
    if is_shown and count >= _STEP:
        output.show_progress()


def print_items(items: Iterable[dict[str, Any]], output: Output) -> None:
    """Print a JSON array item by item, so that it may have any length; same format as `Output.json`."""
    is_indented = sys.stdout.isatty()
    count = 0
    for item in iterate_with_progress(items, output):
        text = as_json(item, is_indented=is_indented)
        # The same text as `json.dumps` of the whole list, so that a program sees no difference between short and long
        # lists.
        between = "[" if count == 0 else ","
        if is_indented:
            text = "\n" + "\n".join(f"  {line}" for line in text.split("\n"))
        elif count:
            between = ", "
        sys.stdout.write(between + text)
        count += 1
    sys.stdout.write(("\n]\n" if is_indented else "]\n") if count else "[]\n")


def print_csv(items: Iterable[dict[str, Any]], list_name: str, output: Output) -> None:
    """Print rows as CSV (RFC 4180, lines ended by LF), with one page of the API in memory at a time.

    A list becomes one cell, separated by commas; null becomes an empty cell. See `escape_cell` for cells that a
    spreadsheet would execute.
    """
    writer = csv.writer(sys.stdout, lineterminator="\n")
    columns = CSV_COLUMNS[list_name].split()
    writer.writerow(columns)
    for item in iterate_with_progress(items, output):
        writer.writerow([escape_cell(item[name]) for name in columns])


def format_labels(labels: Mapping[str, str] | None) -> str:
    """Return labels as ``rack=r1, row=2``; None, from a service of an earlier version, as no labels."""
    return ", ".join(f"{key}={value}" for key, value in (labels or {}).items())


def escape_cell(value: object) -> object:
    """Return the value as a cell that no spreadsheet executes; a mapping as labels.

    Spreadsheets execute a text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return as a formula,
    and reasons, descriptions and names are written by others. Such a text gets a leading apostrophe, which spreadsheets
    take as the mark of a text. Numbers are left as they are. Control characters except line feeds and tabs are made
    visible.
    """
    if isinstance(value, Mapping):
        value = format_labels(value)
    if isinstance(value, list | tuple):
        value = ", ".join(str(each) for each in value)
    if not isinstance(value, str):
        return value
    text = escape_lines(value)
    return f"'{text}" if value.lstrip(" ").startswith(_FORMULA) else text
