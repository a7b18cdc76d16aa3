"""`--watch` of lists: a list, then a line for each change of an item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from forewarn.cli.change_hints import ChangeHints, Deadline
from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_format import FormatKind, ListFormat
from forewarn.cli.output import Column, Output

__all__ = ["RowWriter", "find_changes", "watch_list"]

Items = list[dict[str, Any]]
Read = Callable[[], tuple[Items, bool]]
"""Type of a callback that reads a list: its items, and whether it has more than these."""

_FORMATS = {FormatKind.TABLE, FormatKind.WIDE, FormatKind.COLUMNS, FormatKind.JSON}


def watch_list(
    connection: ControlConnection,
    output: Output,
    read: Read,
    choose: Callable[[Items], Sequence[Column]],
    wanted: ListFormat,
    span_s: float | None,
) -> None:
    """Print a list, then a line for each item that is added, changed or removed, until the time is over.

    Args:
        connection: Connection to the service.
        output: Output of the command.
        read: Callback that reads the list.
        choose: Callback that returns the columns for the items.
        wanted: Format of the lines.
        span_s: Time after which to end; None for never.

    Raises:
        typer.BadParameter: Lines of changes cannot have this format.
    """
    if wanted.kind not in _FORMATS:
        raise typer.BadParameter(f"cannot be combined with the format {wanted.kind}", param_hint="--watch")
    deadline = Deadline(span_s)
    with ChangeHints(connection, output) as hints:
        items, _ = read()
        writer = RowWriter(output)
        changes = [("listed", item) for item in items]
        while True:
            if wanted.kind is FormatKind.JSON:
                _print_lines(output, changes)
            elif changes:
                writer.print_rows(choose(items), changes)
            if deadline.is_over:
                return
            hints.wait(deadline)
            before = items
            items, is_more = read()
            changes = find_changes(before, items, is_more=is_more)


def find_changes(before: Items, after: Items, *, is_more: bool) -> list[tuple[str, dict[str, Any]]]:
    """Return each item that was added, changed or removed, with the word for it; in the order of the list.

    Args:
        before: Items as they were read before.
        after: Items as they are read now.
        is_more: True if the list has more items than these. Then an item that is missing may only be further down.
    """
    old = {_identify(item): item for item in before}
    new = {_identify(item): item for item in after}
    removed = [] if is_more else [("removed", item) for key, item in old.items() if key not in new]
    changed = [
        ("changed" if key in old else "added", item) for key, item in new.items() if key not in old or old[key] != item
    ]
    return removed + changed


def _identify(item: dict[str, Any]) -> object:
    return item["id"] if "id" in item else item["name"]


def _print_lines(output: Output, changes: Sequence[tuple[str, dict[str, Any]]]) -> None:
    for word, item in changes:
        output.print_json_line({"change": word, "item": item})


class RowWriter:
    """Prints rows of a table as they come, below those that were printed before; the first column is the change.

    Args:
        output: Output of the command.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._widths: list[int] = []

    def print_rows(self, columns: Sequence[Column], changes: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Print a row for each change, below a header if they are the first. Columns grow when a cell needs it."""
        rows = [[word, *(column.format_cell(item) or "-" for column in columns)] for word, item in changes]
        if not self._widths:
            rows.insert(0, ["CHANGE", *(column.title.upper() for column in columns)])
            self._widths = [0] * len(rows[0])
        self._widths = [max(width, *(len(row[i]) for row in rows)) for i, width in enumerate(self._widths)]
        for row in rows:
            padded = [cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)]
            self._output.print_line("  ".join(padded).rstrip())
