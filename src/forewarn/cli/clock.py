"""`forewarn clock`: the clock of the service."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Output, format_moment, format_relative, format_seconds, parse_moment
from forewarn.cli.times import as_span_s

__all__ = ["app", "get_service_time", "show_relative"]

app = make_group("clock", "Show the time of the service; advance a virtual clock.", "Operate")


@command(app, "show", "forewarn clock show")
def show(connection: ControlConnection, output: Output) -> None:
    """Show the time of the service, and whether it is real or virtual."""
    _print_clock(output, connection.get("/v1/clock"))


@command(app, "confirm", "forewarn clock confirm", "forewarn clock confirm --reason 'NTP was off'")
def confirm(
    connection: ControlConnection,
    output: Output,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded in the audit log.")] = "",
) -> None:
    """Confirm the time of the service after its clock has jumped.

    After a jump, due maintenance and all rollouts wait until you confirm the time. Check the time first, with
    'forewarn clock show': when you confirm, all due maintenance starts immediately, and rollouts continue.
    """
    _print_clock(output, connection.send_change("POST", "/v1/clock/confirm", {"reason": reason or None}))


@command(app, "advance", "forewarn clock advance 15m", "forewarn clock advance 7d")
def advance(
    by: Annotated[str, typer.Argument(metavar="SPAN", help="Span to advance by, for example 90s, 15m or 7d.")],
    connection: ControlConnection,
    output: Output,
) -> None:
    """Advance a virtual clock; everything that becomes due on the way happens, in order."""
    body = {"by_s": as_span_s(by, "SPAN")}
    # The service stores the key after it has advanced the clock: a retry in between would advance it twice.
    _print_clock(output, connection.send_change("POST", "/v1/clock/advance", body, is_repeatable=False))


def _print_clock(output: Output, clock: dict[str, Any]) -> None:
    if not output.print_if_json(clock):
        output.print_line(f"{format_moment(clock['now'])} ({clock['clock']})")
        if clock.get("jump_s") is not None:
            way = "ahead" if clock["jump_s"] > 0 else "back"
            span = format_seconds(abs(clock["jump_s"]))
            words = "nothing that is due starts until 'forewarn clock confirm'"
            output.print_notice(f"the clock jumped {span} {way}: {words}")


def get_service_time(connection: ControlConnection) -> datetime:
    """Return the current time of the service."""
    return parse_moment(connection.get("/v1/clock")["now"])


def show_relative(connection: ControlConnection, member: str) -> Callable[[dict[str, Any]], str | None]:
    """Return a function for a `Column` that formats the time in a member relative to the time of the service."""
    get_now = functools.cache(lambda: get_service_time(connection))
    return lambda item: format_relative(item[member], get_now())
