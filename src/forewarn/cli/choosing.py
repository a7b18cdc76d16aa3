"""Options that select a part of the history, and the output of long lists; shared by all list commands."""

from __future__ import annotations

import csv
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from forewarn.cli.connection import Connection
from forewarn.cli.output import Output, as_json, parse_moment
from forewarn.cli.times import as_moment_or_span
from forewarn.core.model import EventType, Source
from forewarn.util.escape import escape_lines

__all__ = [
    "CSV_COLUMNS",
    "Choice",
    "Csv",
    "check_csv",
    "choice_options",
    "counted",
    "defused",
    "print_csv",
    "print_items",
]

CSV_COLUMNS = {
    "audit-log": "sequence at kind actor maintenance_id event_id scope vm source_address api_version reason",
    "events": "id maintenance_id scope resources update_domain status type not_before approved_at approved_by",
    "maintenances": "id request_id state cause type impact source description duration_s notice_s not_before "
    "moved_from moved_by created_at started_at impacted_at ended_at force_reason latest_start deferrals extensions "
    "extended_s hosts vms unwarned_vms",
}
"""Columns of the CSV output by list: members of the API's answers, in order. The schemas are slow to import."""

_PANEL = "Which part"
_STEP = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, with a line of names first; every row there is.")]


def _option(help_: str, metavar: str, **more: Any) -> Any:  # noqa: ANN401 - what Typer takes
    return typer.Option(metavar=metavar, help=help_, rich_help_panel=_PANEL, **more)


_Moment = "a span ago like 30d, or RFC 3339."


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Options that select a part of the history; a command requests them by annotating a parameter."""

    since: Annotated[str | None, _option(f"Not before: {_Moment}", "TIME")] = None
    until: Annotated[str | None, _option(f"Before: {_Moment}", "TIME")] = None
    vm: Annotated[str | None, _option("What has to do with this VM, also one that is gone.", "NAME")] = None
    scope: Annotated[str | None, _option("What has to do with this scope.", "NAME")] = None
    host: Annotated[str | None, _option("What has to do with VMs that were on this host then.", "NAME")] = None
    event_type: Annotated[
        EventType | None,
        typer.Option(
            "--type",
            case_sensitive=False,
            metavar="TYPE",
            rich_help_panel=_PANEL,
            help=f"Of maintenances of this type: {', '.join(EventType)}.",
        ),
    ] = None
    source: Annotated[
        Source | None, _option("Of maintenances that this one wanted.", "Platform|User", case_sensitive=False)
    ] = None
    actor: Annotated[str | None, _option("Who did it, such as operator:ann, vm:db or forewarn.", "WHO")] = None
    text: Annotated[str | None, _option("What stands in a reason or a description; any case.", "TEXT")] = None

    @property
    def is_said(self) -> bool:
        """True if any option was given."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    def params(self, connection: Connection) -> dict[str, object]:
        """Return the query parameters of the API. Spans count from the time of the service, which may be virtual.

        Raises:
            typer.BadParameter: A time is invalid, or a text is empty.
        """
        for name in ("vm", "scope", "host", "actor", "text"):
            if getattr(self, name) == "":
                msg = "is empty: leave it out, or name what to look for"
                raise typer.BadParameter(msg, param_hint=f"--{name}")
        said = {"since": self.since, "until": self.until}
        moments = {name: as_moment_or_span(text, f"--{name}") for name, text in said.items() if text is not None}
        is_asked = any(isinstance(moment, float) for moment in moments.values())
        now = parse_moment(connection.get("/v1/clock")["now"]) if is_asked else None
        return {name: _moment(moment, now, name) for name, moment in moments.items()} | {
            "vm": self.vm,
            "scope": self.scope,
            "host": self.host,
            "type": self.event_type,
            "source": self.source,
            "actor": self.actor,
            "text": self.text,
        }


def _moment(said: datetime | float, now: datetime | None, name: str) -> str:
    if isinstance(said, datetime):
        return said.isoformat()
    assert now is not None  # noqa: S101 - asked for above
    try:
        return (now - timedelta(seconds=said)).isoformat()
    except OverflowError:
        msg = "lies too far back"
        raise typer.BadParameter(msg, param_hint=f"--{name}") from None


def choice_options() -> list[inspect.Parameter]:
    """Return the options as parameters of a command."""
    kind = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(Choice, eval_str=True)
    return [p.replace(kind=kind) for p in signature.parameters.values()]


# Long lists


def check_csv(output: Output) -> None:
    """Check that only one output format is requested.

    Raises:
        typer.BadParameter: Both `--csv` and `--json` were given.
    """
    if output.is_json:
        msg = "goes not with --json: say one of them"
        raise typer.BadParameter(msg, param_hint="--csv")


def counted(items: Iterable[dict[str, Any]], output: Output) -> Iterator[dict[str, Any]]:
    """Yield the same items; count them on the terminal if the list itself goes elsewhere."""
    is_shown = sys.stderr.isatty() and not sys.stdout.isatty()
    count = 0
    for count, item in enumerate(items, 1):
        if is_shown and count % _STEP == 0:
            output.passing(f"{count} rows")
        yield item
    if is_shown and count >= _STEP:
        output.passing()


def print_items(items: Iterable[dict[str, Any]], output: Output) -> None:
    """Print a JSON array item by item, so that it may have any length; same format as `Output.json`."""
    is_indented = sys.stdout.isatty()
    count = 0
    for item in counted(items, output):
        text = as_json(item, is_indented=is_indented)
        between = "[" if count == 0 else ","
        if is_indented:
            text = "\n" + "\n".join(f"  {line}" for line in text.split("\n"))
        elif count:
            between = ", "
        sys.stdout.write(between + text)
        count += 1
    sys.stdout.write(("\n]\n" if is_indented else "]\n") if count else "[]\n")


def print_csv(items: Iterable[dict[str, Any]], of: str, output: Output) -> None:
    """Print rows as CSV (RFC 4180, lines ended by LF), with one page of the API in memory at a time.

    A list becomes one cell, separated by commas; null becomes an empty cell. See `defused` for cells that a spreadsheet
    would execute.
    """
    writer = csv.writer(sys.stdout, lineterminator="\n")
    columns = CSV_COLUMNS[of].split()
    writer.writerow(columns)
    for item in counted(items, output):
        writer.writerow([defused(item[name]) for name in columns])


def defused(value: object) -> object:
    """Return the value as a cell that no spreadsheet executes.

    Spreadsheets execute a text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return as a formula,
    and reasons, descriptions and names are written by others. Such a text gets a leading apostrophe, which spreadsheets
    take as the mark of a text. Numbers are left as they are. Control characters except line feeds and tabs are made
    visible.
    """
    if isinstance(value, list | tuple):
        value = ", ".join(str(each) for each in value)
    if not isinstance(value, str):
        return value
    text = escape_lines(value)
    return f"'{text}" if value.lstrip(" ").startswith(_FORMULA) else text
