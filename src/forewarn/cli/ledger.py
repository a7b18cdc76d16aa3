"""`forewarn ledger`: who approved what, and what happened when."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command
from forewarn.cli.connection import Connection
from forewarn.cli.output import Output, format_moment
from forewarn.core.model import EntryKind

__all__ = ["add_ledger", "entry_line"]

_KIND_WIDTH = max(len(kind) for kind in EntryKind)


def add_ledger(app: typer.Typer) -> None:
    """Add the command `ledger`."""

    @command(
        app,
        "ledger",
        "forewarn ledger",
        "forewarn ledger --follow",
        "forewarn ledger --maintenance k3v9xq2m --json",
        "forewarn ledger --all --json > ledger.json",
        panel="Operate",
    )
    def ledger(
        connection: Connection,
        output: Output,
        follow: Annotated[
            bool, typer.Option("--follow", "-f", help="Go on with new entries until Ctrl-C; with --json one on a line.")
        ] = False,
        limit: Annotated[int, typer.Option(min=1, max=1000, metavar="COUNT", help="The last so many entries.")] = 50,
        every: Annotated[bool, typer.Option("--all", help="Every entry that is kept, not only the last ones.")] = False,
        maintenance: Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this maintenance.")] = None,
    ) -> None:
        """Show what happened: every announcement, approval, start and end, with who did it."""
        if every:
            entries = list(connection.pages("/v1/ledger", maintenance=maintenance))
        else:
            entries = connection.get("/v1/ledger", maintenance=maintenance, limit=limit, newest="true")["items"]
        if not follow:
            if not output.show(entries):
                _print(output, entries)
            return
        position = _position(connection, entries, maintenance)
        for entry in entries:
            _print_one(output, entry)
        for entry in connection.watch(position, output.notice):
            if maintenance in {None, entry["maintenance_id"]}:
                _print_one(output, entry)


def _position(connection: Connection, entries: list[dict[str, Any]], maintenance: str | None) -> int:
    """Where to go on. Entries of other maintenances may come later than the last one shown; they are left out again."""
    if entries:
        return int(entries[-1]["sequence"])
    if maintenance is None:
        return 0
    newest = connection.get("/v1/ledger", limit=1, newest="true")["items"]
    return int(newest[-1]["sequence"]) if newest else 0


def _print(output: Output, entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        output.line(entry_line(entry))
    if not entries:
        output.notice("nothing has happened yet")


def _print_one(output: Output, entry: dict[str, Any]) -> None:
    if output.is_json:
        output.json_line(entry)
    else:
        output.line(entry_line(entry))


def entry_line(entry: dict[str, Any]) -> str:
    """An entry on one line: number, time, what, who, and what else is known."""
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
