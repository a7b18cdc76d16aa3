"""`forewarn limit`: usage of the control API by caller, and the limits that callers have reached."""

from __future__ import annotations

import typer

from forewarn.cli.command import command, group
from forewarn.cli.connection import Connection
from forewarn.cli.output import Column, Output, format_moment

__all__ = ["add_limit"]


def add_limit(app: typer.Typer) -> None:
    """Add the commands of `limit`."""
    noun = group(app, "limit", "See who uses how much of the control API, and who met a limit.", "Operate")

    @command(noun, "list", "forewarn limit list", "forewarn limit list --json")
    def list_limits(connection: Connection, output: Output) -> None:
        """List callers with their usage and the limits they have reached, the latest first.

        VMs, and addresses of no VM, are listed once they reach a limit at the metadata endpoint. Each replica counts
        separately. An endpoint on a host reports only totals, at its own address for metrics.
        """
        found = connection.get("/v1/limits", limit=1000)["items"]
        if output.show(found):
            return
        output.table(
            [Column(head) for head in ("caller", "role", "requests", "watches", "live pages", "connections", "changes")]
            + [Column("limits met"), Column("last")],
            [
                (
                    each["name"],
                    each["role"],
                    *(
                        f"{each['used'][use]}/{each['most'][use]}" if use in each["most"] else None
                        for use in ("requests", "watches", "live-pages", "connections", "changes")
                    ),
                    ", ".join(f"{use} {count}" for use, count in sorted(each["limited"].items())),
                    format_moment(each["limited_at"]),
                )
                for each in found
            ],
            empty="nobody has called yet",
        )
