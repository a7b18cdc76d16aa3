"""`forewarn database`: show the database of the service, and copy it to another one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.command import command, make_group, require_extra
from forewarn.cli.output import Column, Output, format_moment
from forewarn.errors import ConfigError

if TYPE_CHECKING:
    from forewarn.store.copying import CopyProgress, CopyResult
    from forewarn.store.describing import DatabaseDescription
    from forewarn.store.lease import Lease

__all__ = ["app", "encode_copied", "encode_description", "format_progress"]

_MEBIBYTE = 1 << 20
_FILE, _SERVER = "sqlite:///forewarn.db", "postgresql://forewarn@db.example/forewarn"

app = make_group("database", "Show the database of the service, or copy it to another database.", "Run")


@command(app, "copy", f"forewarn database copy {_FILE} {_SERVER}", f"forewarn database copy {_SERVER} {_FILE} --json")
def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM", help="URL of the source, the database to copy. First stop every service that uses it."
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="TO", help="URL of the target, an empty database. A missing SQLite file is created."),
    ],
    output: Output,
    upgrade_source: Annotated[
        bool,
        typer.Option(
            "--upgrade-source", help="If the schema of the source is old, first upgrade it. This cannot be undone."
        ),
    ] = False,
) -> None:
    """Copy everything from one database to another, from SQLite to PostgreSQL or back.

    First stop every 'forewarn serve' that uses the source. The copy is compared with the source; if anything fails,
    the target is left unchanged. After the copy, run 'forewarn serve' only with the target: if you ran it with
    both, maintenance could be carried out twice.
    """
    with require_extra("server"):
        from forewarn.store.copying import copy_database
    _check_url(source, "FROM")
    _check_url(target, "TO")
    try:
        copied = copy_database(
            source,
            target,
            upgrade_source=upgrade_source,
            on_progress=lambda p: output.show_progress(format_progress(p)),
        )
    finally:
        output.show_progress()
    if not output.print_if_json(encode_copied(copied)):
        _print_copied(output, copied)


@command(app, "show", f"forewarn database show {_FILE}", f"forewarn database show {_SERVER} --json")
def show(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="URL of the database. You need not stop services that use this database."),
    ],
    output: Output,
) -> None:
    """Summarize a database: schema, size, number of rows in each table, and holder of each lease."""
    with require_extra("server"):
        from forewarn.store.describing import describe_database
    _check_url(url, "URL")
    description = describe_database(url)
    if not output.print_if_json(encode_description(description)):
        _print_description(output, description)


def _check_url(url: str, hint: str) -> None:
    """Report an unreadable URL as a usage error, unlike a database that cannot be used."""
    from forewarn.store.whole_database import parse_database_url

    try:
        parse_database_url(url)
    except ConfigError as error:
        raise typer.BadParameter(error.message, param_hint=hint) from error


def format_progress(progress: CopyProgress) -> str:
    """Describe the progress of a copy."""
    verb = "comparing" if progress.is_comparing else "copying"
    return f"{verb} {progress.table}: {progress.rows_done:,} of {progress.rows:,} rows"


# The copy


def encode_copied(copied: CopyResult) -> dict[str, Any]:
    """Return the result of a copy, for programs."""
    return {
        "from": copied.source,
        "to": copied.target,
        "schema": copied.schema,
        "rows": copied.rows,
        "tables": [asdict(table) for table in copied.tables],
    }


def _print_copied(output: Output, copied: CopyResult) -> None:
    rows = [{"table": table.name, "rows": f"{table.rows:,}", "checksum": table.checksum} for table in copied.tables]
    output.print_table(rows, [Column("table"), Column("rows"), Column("checksum")])
    output.print_line()
    count = f"{copied.rows:,} row{'' if copied.rows == 1 else 's'}"
    output.print_line(f"copied {count} from {copied.source} to {copied.target}")
    output.print_line("row counts and checksums match for every table")
    output.print_line("serve only the new database from now on: two services would carry out each maintenance twice")


# The description


def encode_description(description: DatabaseDescription) -> dict[str, Any]:
    """Return the description of a database, for programs."""
    from forewarn.store.migrate import HEAD

    return {
        "url": description.url,
        "schema": description.schema,
        "newest_schema": HEAD,
        "clock": description.clock,
        "counter": description.counter,
        "size_bytes": description.size_bytes,
        "leases": [
            {
                "name": name,
                "holder": lease.holder,
                "term": lease.term,
                "expires_at": _format_rfc3339(lease.expires_at),
                "is_over": lease.is_over,
            }
            for name, lease in description.leases.items()
        ],
        "rows": description.rows,
    }


def _print_description(output: Output, description: DatabaseDescription) -> None:
    from forewarn.store.migrate import HEAD

    newest = "the newest" if description.schema == HEAD else f"the newest here is {HEAD}"
    output.print_fields(
        [
            ("database", description.url),
            ("schema", f"{description.schema} ({newest})"),
            ("clock", description.clock or "not served yet"),
            ("counter", f"{description.counter:,}"),
            ("size", f"{description.size_bytes / _MEBIBYTE:,.1f} MiB"),
            *(
                [(f"lease {name}", _describe_lease(lease)) for name, lease in description.leases.items()]
                or [("lease", "none")]
            ),
        ]
    )
    output.print_line()
    rows = [{"table": name, "rows": f"{count:,}"} for name, count in description.rows.items()]
    output.print_table(rows, [Column("table"), Column("rows")])


def _describe_lease(lease: Lease) -> str:
    if lease.is_over:
        return f"expired; last held by {lease.holder}"
    return f"{lease.holder} until {format_moment(_format_rfc3339(lease.expires_at))}"


def _format_rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
