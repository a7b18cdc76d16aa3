"""`forewarn audit-log`: approvals and everything else that happened, with times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from forewarn.cli.choosing import Choice, Csv, check_csv, print_csv, print_items
from forewarn.cli.command import command
from forewarn.cli.connection import Connection
from forewarn.cli.names import maintenance_ids
from forewarn.cli.output import Output, format_moment
from forewarn.cli.times import split_names
from forewarn.cli.verification import add_verification
from forewarn.core.model import EntryKind

__all__ = ["add_audit_log", "entry_line"]

_LAST = 50
_KIND_WIDTH = max(len(kind) for kind in EntryKind)


def add_audit_log(app: typer.Typer) -> None:
    """Add the command `audit-log`, and those below it."""

    @command(
        app,
        "audit-log",
        "forewarn audit-log",
        "forewarn audit-log --follow",
        "forewarn audit-log --maintenance k3v9xq2m --json",
        "forewarn audit-log --since 30d --vm db",
        "forewarn audit-log --since 2030-01-01T00:00Z --until 2030-02-01T00:00Z --kind approved --csv > january.csv",
        "forewarn audit-log --all --json > audit-log.json",
        panel="Operate",
    )
    def audit_log(
        connection: Connection,
        output: Output,
        choice: Choice,
        follow: Annotated[
            bool, typer.Option("--follow", "-f", help="Go on with new entries until Ctrl-C; with --json one on a line.")
        ] = False,
        limit: Annotated[
            int | None,
            typer.Option(
                min=1, metavar="COUNT", help="The last so many. (default: 50; all with --since, --all or --csv)"
            ),
        ] = None,
        every: Annotated[bool, typer.Option("--all", help="Every entry that is kept, not only the last ones.")] = False,
        maintenance: Annotated[
            str | None,
            typer.Option(metavar="ID", help="Only entries of this maintenance.", autocompletion=maintenance_ids),
        ] = None,
        kinds: Annotated[
            list[str] | None,
            typer.Option("--kind", metavar="KIND", help="Only this kind; repeatable, or several with commas."),
        ] = None,
        as_csv: Csv = False,
    ) -> None:
        """Show what happened: every announcement, approval, start and end, with its actor."""
        if as_csv:
            check_csv(output)
        if as_csv and follow:
            msg = "goes not with --follow: a file of CSV has an end"
            raise typer.BadParameter(msg, param_hint="--csv")
        chosen = choice.params(connection) | {"kind": _kinds(kinds)}
        is_whole = limit is None and (every or as_csv or choice.since is not None)
        entries: Iterable[dict[str, Any]]
        if is_whole:
            entries = connection.pages("/v1/audit-log", None, maintenance=maintenance, **chosen)
        else:
            entries = connection.last("/v1/audit-log", limit or _LAST, maintenance=maintenance, **chosen)
        if follow:
            _follow(connection, output, entries, maintenance, chosen)
        elif as_csv:
            print_csv(entries, "audit-log", output)
        elif output.is_json:
            print_items(entries, output)
        else:
            _print(output, entries, is_all=not (choice.is_said or kinds or maintenance))

    add_verification(app)


def _kinds(given: list[str] | None) -> list[str]:
    names = split_names(given)
    unknown = [name for name in names if name not in set(EntryKind)]
    if unknown:
        msg = f"{unknown[0]!r} is no kind of entry: expected one of {', '.join(EntryKind)}"
        raise typer.BadParameter(msg, param_hint="--kind")
    return names


def _follow(
    connection: Connection,
    output: Output,
    entries: Iterable[dict[str, Any]],
    maintenance: str | None,
    chosen: dict[str, object],
) -> None:
    """Print the existing entries, then new ones. Entries filtered out may be newer than the last one printed."""
    position = 0
    for entry in entries:
        position = entry["sequence"]
        _print_one(output, entry)
    if not position:
        newest = connection.get("/v1/audit-log", limit=1, newest="true")["items"] if any(chosen.values()) else []
        position = int(newest[-1]["sequence"]) if newest else 0
    for entry in connection.watch(position, output.notice, **chosen):
        if maintenance in {None, entry["maintenance_id"]}:
            _print_one(output, entry)


def _print(output: Output, entries: Iterable[dict[str, Any]], *, is_all: bool) -> None:
    is_empty = True
    for entry in entries:
        output.line(entry_line(entry))
        is_empty = False
    if is_empty:
        output.notice("nothing has happened yet" if is_all else "no such entry is kept")


def _print_one(output: Output, entry: dict[str, Any]) -> None:
    if output.is_json:
        output.json_line(entry)
    else:
        output.line(entry_line(entry))


def entry_line(entry: dict[str, Any]) -> str:
    """Format an entry as one line: number, time, kind, actor, and the other known members."""
    names = {
        "maintenance_id": "maintenance",
        "event_id": "event",
        "scope": "scope",
        "vm": "vm",
        "source_address": "from",
    }
    known = [f"{word}={entry[name]}" for name, word in names.items() if entry[name] is not None]
    reason = [f'"{entry["reason"]}"'] if entry["reason"] else []
    head = f"{entry['sequence']:>5}  {format_moment(entry['at'])}  {entry['kind']:<{_KIND_WIDTH}}  {entry['actor']}"
    return "  ".join([head, *known, *reason])
