"""`forewarn limit`: who uses how much of the control API, and who has met a limit there or at the endpoint."""

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
        """List callers with what they use of their budgets, and the limits they met; the latest to meet one come first.

        VMs are listed once they meet a limit at the metadata endpoint, and so are addresses of no VM. Each replica
        counts for itself. An endpoint on a host reports only totals, at its own address for metrics.
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
