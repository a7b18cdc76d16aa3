"""`forewarn database`: show the database of the service, and copy it to another one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.command import command, group, server_extra
from forewarn.cli.output import Column, Output, format_moment
from forewarn.errors import ConfigError

if TYPE_CHECKING:
    from forewarn.store.copying import Copied, Progress
    from forewarn.store.describing import Description
    from forewarn.store.ends import Holding

__all__ = ["add_database", "copied_json", "description_json", "progress_line"]

_MEBIBYTE = 1 << 20
_FILE, _SERVER = "sqlite:///forewarn.db", "postgresql://forewarn@db.example/forewarn"


def add_database(app: typer.Typer) -> None:
    """Add the commands of `database`."""
    noun = group(app, "database", "Look at the database of the service, or move it.", "Run")

    @command(
        noun,
        "copy",
        f"forewarn database copy {_FILE} {_SERVER}",
        f"forewarn database copy {_SERVER} {_FILE} --json",
    )
    def copy(
        source: Annotated[
            str, typer.Argument(metavar="FROM", help="URL of the database to copy; nobody may serve it.")
        ],
        target: Annotated[str, typer.Argument(metavar="TO", help="URL of an empty database; a file may be missing.")],
        output: Output,
        upgrade_source: Annotated[
            bool,
            typer.Option(
                "--upgrade-source", help="Bring an older FROM to the newest schema first; there is no way back for it."
            ),
        ] = False,
    ) -> None:
        """Copy everything from one database to another, from SQLite to PostgreSQL or back.

        Either everything is copied and compared, or TO is left unchanged. Stop every 'forewarn serve' on FROM before,
        and serve only TO afterwards: two services would carry out each maintenance twice.
        """
        with server_extra():
            from forewarn.store.copying import copy_database
        _check(source, "FROM")
        _check(target, "TO")
        try:
            copied = copy_database(
                source, target, upgrade_source=upgrade_source, tell=lambda p: output.passing(progress_line(p))
            )
        finally:
            output.passing()
        if not output.show(copied_json(copied)):
            _print_copied(output, copied)

    @command(noun, "show", f"forewarn database show {_FILE}", f"forewarn database show {_SERVER} --json")
    def show(
        url: Annotated[str, typer.Argument(metavar="URL", help="URL of the database; it may be served meanwhile.")],
        output: Output,
    ) -> None:
        """Show the contents of a database: its schema, its size, the rows of each table, and its lease holders."""
        with server_extra():
            from forewarn.store.describing import describe_database
        _check(url, "URL")
        description = describe_database(url)
        if not output.show(description_json(description)):
            _print_description(output, description)


def _check(url: str, hint: str) -> None:
    """Report an unreadable URL as a usage error, unlike a database that cannot be used."""
    from forewarn.store.ends import database_url

    try:
        database_url(url)
    except ConfigError as error:
        raise typer.BadParameter(error.message, param_hint=hint) from error


def progress_line(progress: Progress) -> str:
    """Describe the progress of a copy."""
    verb = "comparing" if progress.is_comparing else "copying"
    return f"{verb} {progress.table}: {progress.rows_done:,} of {progress.rows:,} rows"


# The copy


def copied_json(copied: Copied) -> dict[str, Any]:
    """Return the result of a copy, for programs."""
    return {
        "from": copied.source,
        "to": copied.target,
        "schema": copied.schema,
        "rows": copied.rows,
        "tables": [asdict(table) for table in copied.tables],
    }


def _print_copied(output: Output, copied: Copied) -> None:
    columns = [Column("table"), Column("rows"), Column("checksum")]
    output.table(columns, [(table.name, f"{table.rows:,}", table.checksum) for table in copied.tables])
    output.line()
    rows = f"{copied.rows:,} row{'' if copied.rows == 1 else 's'}"
    output.line(f"copied {rows} from {copied.source} to {copied.target}")
    output.line("counts and checksums of every table are the same in both")
    output.line("serve only the new one from now on: two services would carry out each maintenance twice")


# The description


def description_json(description: Description) -> dict[str, Any]:
    """Return the description of a database, for programs."""
    from forewarn.store.migrate import HEAD

    return {
        "url": description.url,
        "schema": description.schema,
        "newest_schema": HEAD,
        "clock": description.clock,
        "counter": description.counter,
        "size_bytes": description.size_bytes,
        "leases": [asdict(lease) | {"expires_at": _rfc3339(lease.expires_at)} for lease in description.leases],
        "rows": description.rows,
    }


def _print_description(output: Output, description: Description) -> None:
    from forewarn.store.migrate import HEAD

    newest = "the newest" if description.schema == HEAD else f"the newest here is {HEAD}"
    output.fields(
        [
            ("database", description.url),
            ("schema", f"{description.schema} ({newest})"),
            ("clock", description.clock or "not served yet"),
            ("counter", f"{description.counter:,}"),
            ("size", f"{description.size_bytes / _MEBIBYTE:,.1f} MiB"),
            *([(f"lease {lease.name}", _held(lease)) for lease in description.leases] or [("lease", "nobody")]),
        ]
    )
    output.line()
    output.table([Column("table"), Column("rows")], [(name, f"{count:,}") for name, count in description.rows.items()])


def _held(lease: Holding) -> str:
    if lease.is_over:
        return f"nobody; {lease.holder} was the last"
    return f"{lease.holder} until {format_moment(_rfc3339(lease.expires_at))}"


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
