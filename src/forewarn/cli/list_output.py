"""Output of long lists; shared by all list commands."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import typer

from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_format import (
    FormatKind,
    ListFormat,
    check_members,
    parse_list_format,
    read_member,
    sort_items,
)
from forewarn.cli.list_options import PLAIN_LIMIT, SORTED_MAX, CsvListOptions, ListOptions, WatchListOptions
from forewarn.cli.output import Column, Output, as_json, as_yaml
from forewarn.cli.times import as_span_s
from forewarn.util.escape import escape_lines

__all__ = [
    "CSV_COLUMNS",
    "choose_columns",
    "escape_cell",
    "format_labels",
    "iterate_with_progress",
    "print_csv",
    "print_items",
    "print_page",
    "show_labels",
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
    "host-tokens": "id host created_at revoked_at",
    "tokens": "id name role scopes vms host created_at created_by expires_at revoked_at",
    "subscriptions": "id name url scopes vms kinds state reason given_up cursor waiting dead failing_since "
    "former_secret_until created_at created_by",
    "deliveries": "id sequence subject kind at state attempts next_at last_error",
    "rollouts": "id name state reason created_at started_at ended_at batch batches counts in_flight waits_for "
    "waits_until",
    "faults": "id kind vms method count rate until delay_s struck",
    "limits": "name role used most limited limited_at",
}
"""Columns of the CSV output by list: members of the API's answers, in order. The schemas are slow to import."""

Columns = Sequence[Column] | Callable[[], Sequence[Column]]
"""Columns of a table, or a callback that makes them."""

_STEP = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def print_page(
    connection: ControlConnection,
    output: Output,
    path: str,
    columns: Columns,
    *,
    options: ListOptions,
    list_name: str,
    params: Mapping[str, object],
    empty: str,
    noun: str = "rows",
) -> None:
    """Print a list, or its first items with a notice that there are more, in the requested format and order.

    Args:
        connection: Connection to the service.
        output: Output of the command.
        path: Path of the list in the control API.
        columns: Columns of the table, and of the wide one; other commands take what the first one shows. A callback
            that makes them, if they show times relative to now.
        options: Options of the command.
        list_name: Name of the list in `CSV_COLUMNS`.
        params: Query parameters.
        empty: Notice if there is no item.
        noun: What the items are, in the plural.

    Raises:
        typer.BadParameter: The options contradict each other, name an unknown format or member, or `--sort` would have
            to read too many items.
    """
    is_csv = isinstance(options, CsvListOptions) and options.as_csv
    wanted = parse_list_format(options.output_format, is_json=output.is_json, is_csv=is_csv)
    if isinstance(options, WatchListOptions) and options.watch:

        def read() -> tuple[list[dict[str, Any]], bool]:
            found, is_more = _read_items(connection, path, wanted, options, params, noun)
            return list(found), is_more

        # Imports asyncio, for which no other list should wait.
        from forewarn.cli.list_watch import watch_list

        span_s = as_span_s(options.timeout, "--timeout")
        watch_list(connection, output, read, lambda found: choose_columns(columns, wanted, found), wanted, span_s)
        return
    if isinstance(options, WatchListOptions) and options.timeout is not None:
        raise typer.BadParameter("requires --watch", param_hint="--timeout")
    items, is_more = _read_items(connection, path, wanted, options, params, noun)
    if wanted.kind is FormatKind.CSV:
        print_csv(items, list_name, output)
    elif wanted.kind is FormatKind.NAME:
        first = _make_columns(columns)[0]
        for item in iterate_with_progress(items, output):
            output.print_line(first.format_cell(item))
    else:
        _print_rows(list(items), columns, wanted, output, empty)
    if is_more:
        output.print_notice(f"there are more {noun}: use --limit {(options.limit or PLAIN_LIMIT) * 10}")


def _read_items(
    connection: ControlConnection,
    path: str,
    wanted: ListFormat,
    options: ListOptions,
    params: Mapping[str, object],
    noun: str,
) -> tuple[Iterable[dict[str, Any]], bool]:
    """Return the items to print, in order, and whether there are more of them."""
    count = options.limit or (None if wanted.is_for_all_rows else PLAIN_LIMIT)
    if options.sort is None:
        if wanted.is_for_all_rows:
            return connection.iterate_items(path, count, **params), False
        # One more than is shown, to know if there are more.
        found = list(connection.iterate_items(path, (count or PLAIN_LIMIT) + 1, **params))
    else:
        found = list(connection.iterate_items(path, SORTED_MAX + 1, **params))
        if len(found) > SORTED_MAX:
            msg = f"there are more than {SORTED_MAX:,} {noun}, too many to sort: select fewer"
            raise typer.BadParameter(msg, param_hint="--sort")
        found = sort_items(found, options.sort)
    return found[:count], count is not None and len(found) > count


def _print_rows(
    items: Sequence[dict[str, Any]], columns: Columns, wanted: ListFormat, output: Output, empty: str
) -> None:
    if wanted.kind is FormatKind.JSON:
        output.print_json(items)
    elif wanted.kind is FormatKind.YAML:
        sys.stdout.write(as_yaml(items))
    else:
        output.print_table(items, choose_columns(columns, wanted, items), empty=empty)


def choose_columns(columns: Columns, wanted: ListFormat, items: Sequence[dict[str, Any]]) -> list[Column]:
    """Return the columns of a table.

    Raises:
        typer.BadParameter: A member is requested that the items do not have.
    """
    if wanted.kind is FormatKind.COLUMNS:
        check_members(items, wanted.members, "--output")
        return [Column(member, partial(_show_member, member)) for member in wanted.members]
    return [column for column in _make_columns(columns) if wanted.kind is FormatKind.WIDE or not column.is_wide]


def _make_columns(columns: Columns) -> Sequence[Column]:
    return columns() if callable(columns) else columns


def _show_member(member: str, item: Mapping[str, Any]) -> object:
    value = read_member(item, member)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return format_labels(value)
    if isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        return as_json(value)
    return value


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


def show_labels(item: Mapping[str, Any]) -> str:
    """Return the labels of an item, for a `Column`."""
    return format_labels(item.get("labels"))


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
