"""`forewarn limit`: usage of the control API by caller, and the limits that callers have reached."""

from __future__ import annotations

from functools import partial
from typing import Any

from forewarn.cli.command import command, make_group
from forewarn.cli.connection import ControlConnection
from forewarn.cli.list_options import ListOptions
from forewarn.cli.list_output import print_page
from forewarn.cli.output import Column, Output, show_moment

__all__ = ["app"]

app = make_group(
    "limit", "Show usage of the control API by caller, and the limits that callers and VMs have reached.", "Operate"
)


@command(app, "list", "forewarn limit list", "forewarn limit list --json")
def list_limits(connection: ControlConnection, output: Output, options: ListOptions) -> None:
    """List callers with their usage and the limits they have reached; the latest to reach a limit come first.

    Callers with a token are listed from their first call on. VMs and unknown addresses are listed only after they
    have reached a limit at the metadata endpoint. Each replica counts separately. Callers that reach a limit at a
    'forewarn endpoint' on a host are not listed: such an endpoint has its own metrics and log.
    """
    uses = ("requests", "watches", "live-pages", "connections", "changes")
    print_page(
        connection,
        output,
        "/v1/limits",
        [
            Column("caller", "name"),
            Column("role"),
            *(Column(use.replace("-", " "), partial(_show_usage, use)) for use in uses),
            Column("limits reached", lambda each: [f"{use} {count}" for use, count in sorted(each["limited"].items())]),
            Column("last", show_moment("limited_at")),
        ],
        options=options,
        list_name="limits",
        params={},
        empty="no calls yet",
        noun="callers",
    )


def _show_usage(use: str, caller: dict[str, Any]) -> str | None:
    return f"{caller['used'][use]}/{caller['most'][use]}" if use in caller["most"] else None
