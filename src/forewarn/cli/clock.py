"""`forewarn clock`: the clock of the service."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, group
from forewarn.cli.connection import Connection
from forewarn.cli.output import Output, format_moment, format_seconds, parse_moment
from forewarn.cli.times import as_span_s

__all__ = ["add_clock", "server_now"]


def add_clock(app: typer.Typer) -> None:
    """Add the commands of `clock`."""
    noun = group(app, "clock", "Look at the time of the service; move it where it is virtual.", "Operate")

    @command(noun, "show", "forewarn clock show")
    def show(connection: Connection, output: Output) -> None:
        """Show the time of the service, and whether it is real or virtual."""
        _print(output, connection.get("/v1/clock"))

    @command(noun, "confirm", "forewarn clock confirm", "forewarn clock confirm --reason 'NTP was off'")
    def confirm(
        connection: Connection,
        output: Output,
        reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the audit log.")] = "",
    ) -> None:
        """Trust a clock that has jumped.

        After a jump of its clock, the service starts nothing that is due. Check the time with 'forewarn clock show'
        first:
        everything due at that time starts immediately.
        """
        _print(output, connection.change("POST", "/v1/clock/confirm", {"reason": reason or None}))

    @command(noun, "advance", "forewarn clock advance 15m", "forewarn clock advance 7d")
    def advance(
        by: Annotated[str, typer.Argument(metavar="SPAN", help="How far, for example 90s, 15m or 7d.")],
        connection: Connection,
        output: Output,
    ) -> None:
        """Move a virtual clock forward; everything due on the way happens, in order."""
        body = {"by_s": as_span_s(by, "SPAN")}
        # The service ignores the key here: a second try could move the clock twice.
        _print(output, connection.change("POST", "/v1/clock/advance", body, is_repeatable=False))


def _print(output: Output, clock: dict[str, Any]) -> None:
    if not output.show(clock):
        output.line(f"{format_moment(clock['now'])} ({clock['clock']})")
        if clock.get("jump_s") is not None:
            way = "ahead" if clock["jump_s"] > 0 else "back"
            span = format_seconds(abs(clock["jump_s"]))
            words = "nothing that is due starts until 'forewarn clock confirm'"
            output.notice(f"the clock jumped {span} {way}: {words}")


def server_now(connection: Connection) -> datetime:
    """Return the current time of the service."""
    return parse_moment(connection.get("/v1/clock")["now"])
