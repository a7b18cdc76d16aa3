"""`forewarn audit-log verify` and `forewarn audit-log head`: detection of tampering with the audit log."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forewarn.cli.command import command, require_extra
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Column, Output
from forewarn.cli.times import split_names
from forewarn.errors import OtherSideError

__all__ = ["app"]

_TAMPERED = 1


app = typer.Typer()


@command(
    app,
    "verify",
    "forewarn audit-log verify",
    "forewarn audit-log verify --head audit:4711:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "forewarn audit-log verify --database-url sqlite:///forewarn.db --json",
)
def verify(
    connection: ControlConnection,
    output: Output,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            metavar="HEAD",
            help="Compare the log with this head, which 'forewarn audit-log head' printed earlier; repeatable or "
            "comma-separated.",
        ),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", metavar="URL", help="Read this database instead of asking the service."),
    ] = None,
) -> None:
    """Check the hash chains of the audit log for changed, removed and inserted entries.

    The exit status is 1 if there are such entries.
    """
    noted = split_names(heads)
    try:
        found = (
            _verify_database(database_url, output, noted)
            if database_url
            else _verify_service(connection, output, noted)
        )
    finally:
        output.show_progress()
    if not output.print_if_json(found):
        _print_verification(output, found)
    if found["findings_total"]:
        raise typer.Exit(_TAMPERED)


@command(app, "head", "forewarn audit-log head", "forewarn audit-log head --json")
def head(connection: ControlConnection, output: Output) -> None:
    """Print the head (newest entry) of each hash chain of the audit log, to store elsewhere and compare later."""
    found = connection.get("/v1/audit-log/head")
    output.print_result(found, *found["heads"])


def _verify_service(connection: ControlConnection, output: Output, noted: list[str]) -> dict[str, Any]:
    for line in connection.stream_lines("/v1/audit-log/verify", head=noted):
        if "result" in line:
            found: dict[str, Any] = line["result"]
            return found
        output.show_progress(f"verified up to entry {line['progress']:,}")
    raise OtherSideError("the service stopped before the audit log was verified: try again")


def _verify_database(database_url: str, output: Output, noted: list[str]) -> dict[str, Any]:
    with require_extra("server"):
        from forewarn.store.verifying import verify_database
        from forewarn.wire.verification import VerificationOut, parse_noted_heads
    verifier = verify_database(
        database_url, parse_noted_heads(noted), lambda number: output.show_progress(f"verified up to entry {number:,}")
    )
    return VerificationOut.from_verifier(verifier).model_dump(mode="json")


def _print_verification(output: Output, found: dict[str, Any]) -> None:
    rows = [each | {"entries": f"{each['entries']:,}", "gaps": f"{each['gaps']:,}"} for each in found["chains"]]
    output.print_table(rows, [Column("chain"), Column("entries"), Column("gaps"), Column("head")])
    output.print_line()
    output.print_lines(finding["message"] for finding in found["findings"])
    left_out = found["findings_total"] - len(found["findings"])
    if left_out:
        output.print_line(f"and {left_out:,} more")
    if not found["findings_total"]:
        output.print_line("no entry was changed, removed or inserted")
