"""`forewarn audit-log verify` and `forewarn audit-log head`: detection of tampering with the audit log."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command, server_extra
from forewarn.cli.connection import Connection
from forewarn.cli.output import Column, Output
from forewarn.cli.times import split_names
from forewarn.errors import OtherSideError

__all__ = ["add_verification"]

_TAMPERED = 1


def add_verification(app: typer.Typer) -> None:
    """Add the commands `audit-log verify` and `audit-log head`."""

    @command(
        app,
        "audit-log verify",
        "forewarn audit-log verify",
        "forewarn audit-log verify --head audit:4711:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "forewarn audit-log verify --database-url sqlite:///forewarn.db --json",
        panel="Operate",
    )
    def verify(
        connection: Connection,
        output: Output,
        heads: Annotated[
            list[str] | None,
            typer.Option(
                "--head", metavar="HEAD", help="A head noted earlier, to compare with; repeatable, or with commas."
            ),
        ] = None,
        database_url: Annotated[
            str | None,
            typer.Option("--database-url", metavar="URL", help="Read this database instead of asking the service."),
        ] = None,
    ) -> None:
        """Check the hash chains of the audit log for changed, removed and inserted entries; status 1 if any."""
        noted = split_names(heads)
        try:
            found = _read(database_url, output, noted) if database_url else _asked(connection, output, noted)
        finally:
            output.passing()
        if not output.show(found):
            _print(output, found)
        if found["findings_total"]:
            raise typer.Exit(_TAMPERED)

    @command(app, "audit-log head", "forewarn audit-log head", "forewarn audit-log head --json", panel="Operate")
    def head(connection: Connection, output: Output) -> None:
        """Print the heads of the audit log's hash chains, to be kept elsewhere and compared later."""
        found = connection.get("/v1/audit-log/head")
        if not output.show(found):
            for each in found["heads"]:
                output.line(each)


def _asked(connection: Connection, output: Output, noted: list[str]) -> dict[str, Any]:
    for line in connection.lines("/v1/audit-log/verify", head=noted):
        if "result" in line:
            found: dict[str, Any] = line["result"]
            return found
        output.passing(f"verified up to entry {line['progress']:,}")
    msg = "the service stopped before the audit log was verified: try again"
    raise OtherSideError(msg)


def _read(database_url: str, output: Output, noted: list[str]) -> dict[str, Any]:
    with server_extra():
        from forewarn.store.verifying import verify_database
        from forewarn.wire.verification import VerificationOut, parse_noted
    verifier = verify_database(
        database_url, parse_noted(noted), lambda number: output.passing(f"verified up to entry {number:,}")
    )
    return VerificationOut.of(verifier).model_dump(mode="json")


def _print(output: Output, found: dict[str, Any]) -> None:
    columns = [Column("chain"), Column("entries"), Column("gaps"), Column("head")]
    rows = [(each["chain"], f"{each['entries']:,}", f"{each['gaps']:,}", each["head"]) for each in found["chains"]]
    output.table(columns, rows)
    output.line()
    for finding in found["findings"]:
        output.line(finding["message"])
    left_out = found["findings_total"] - len(found["findings"])
    if left_out:
        output.line(f"and {left_out:,} more")
    if not found["findings_total"]:
        output.line("no entry was changed, removed or inserted")
