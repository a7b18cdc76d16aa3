"""`forewarn audit-log`: approvals and everything else that happened, with times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from forewarn.cli import audit_log_verification
from forewarn.cli.command import default_command, make_group
from forewarn.cli.completers import maintenance_ids
from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_format import parse_list_format
from forewarn.cli.list_options import Csv, HistoryFilter
from forewarn.cli.list_output import print_csv, print_items
from forewarn.cli.output import Output, format_moment
from forewarn.cli.short_ids import resolve_id
from forewarn.cli.times import check_known, split_names
from forewarn.core.model import EntryKind

__all__ = ["app", "format_entry"]

_LAST = 50
_KIND_WIDTH = max(len(kind) for kind in EntryKind)

app = make_group("audit-log", "Show every announcement, approval, start and end, with its actor.", "Operate")


@default_command(
    app,
    "forewarn audit-log",
    "forewarn audit-log --follow",
    "forewarn audit-log --maintenance k3v9xq2mab --json",
    "forewarn audit-log --since 30d --vm db",
    "forewarn audit-log --since 2030-01-01T00:00Z --until 2030-02-01T00:00Z --kind approved --csv > january.csv",
    "forewarn audit-log --all --json > audit-log.json",
)
def audit_log(
    ctx: typer.Context,
    connection: ControlConnection,
    output: Output,
    choice: HistoryFilter,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Continue with new entries until Ctrl-C; with --json, one JSON object per line."
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Show this number of the newest entries. (default: 50; all with --since, --all or --csv)",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every retained entry, not only the newest.")] = False,
    maintenance: Annotated[
        str | None, typer.Option(metavar="ID", help="Only entries of this maintenance.", autocompletion=maintenance_ids)
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only entries of this kind; repeatable or comma-separated."),
    ] = None,
    as_csv: Csv = False,
) -> None:
    """Show every announcement, approval, start and end, with its actor."""
    if ctx.invoked_subcommand is not None:
        _refuse_options_before_subcommand(ctx)
        return
    parse_list_format(None, is_json=output.is_json, is_csv=as_csv)
    if as_csv and follow:
        raise typer.BadParameter("cannot be combined with --follow", param_hint="--csv")
    wanted = split_names(kinds)
    maintenance = None if maintenance is None else resolve_id(connection, "maintenance", maintenance)
    chosen = choice.to_query_params(connection) | {"kind": wanted}
    for kind in wanted:
        check_known(kind, list(EntryKind), "kind of entry", "--kind")
    is_whole = limit is None and (every or as_csv or choice.since is not None)
    entries: Iterable[dict[str, Any]]
    count, is_more = limit or _LAST, False
    if is_whole:
        entries = connection.iterate_items("/v1/audit-log", None, maintenance=maintenance, **chosen)
    else:
        # One more than is shown, to know if there are more.
        newest = connection.fetch_newest("/v1/audit-log", count + 1, maintenance=maintenance, **chosen)
        entries, is_more = newest[-count:], len(newest) > count
    if follow:
        _follow_entries(connection, output, entries, maintenance, chosen)
    elif as_csv:
        print_csv(entries, "audit-log", output)
    elif output.is_json:
        print_items(entries, output)
    else:
        _print_entries(output, entries, is_all=not (choice.has_options or kinds or maintenance))
    if is_more and not follow:
        output.print_notice(f"there are earlier entries: use --limit {count * 10}")


app.add_typer(audit_log_verification.app)


def _refuse_options_before_subcommand(ctx: typer.Context) -> None:
    """Refuse options that the subcommand would not see: ignored, they might even select another service."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"write it after '{ctx.invoked_subcommand}'", param_hint=param.opts[0])


def _follow_entries(
    connection: ControlConnection,
    output: Output,
    entries: Iterable[dict[str, Any]],
    maintenance: str | None,
    chosen: dict[str, object],
) -> None:
    """Print the existing entries, then new ones. Entries filtered out may be newer than the last one printed."""
    position = 0
    for entry in entries:
        position = entry["sequence"]
        _print_entry(output, entry)
    if not position:
        # With a filter that matches nothing, following from entry 0 would read the whole audit log through the stream.
        newest = connection.get("/v1/audit-log", limit=1, newest="true")["items"] if any(chosen.values()) else []
        position = int(newest[-1]["sequence"]) if newest else 0
    for entry in connection.watch_entries(position, output.print_notice, **chosen):
        if maintenance in {None, entry["maintenance_id"]}:
            _print_entry(output, entry)


def _print_entries(output: Output, entries: Iterable[dict[str, Any]], *, is_all: bool) -> None:
    is_empty = True
    for entry in entries:
        output.print_line(format_entry(entry))
        is_empty = False
    if is_empty:
        output.print_notice("the audit log is empty" if is_all else "no matching entries")


def _print_entry(output: Output, entry: dict[str, Any]) -> None:
    if output.is_json:
        output.print_json_line(entry)
    else:
        output.print_line(format_entry(entry))


def format_entry(entry: dict[str, Any]) -> str:
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
