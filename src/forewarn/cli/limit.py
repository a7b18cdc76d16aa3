"""`forewarn limit`: who uses how much of the control API, and who has met a limit."""

from __future__ import annotations

import typer

from forewarn.cli.command import command, group
from forewarn.cli.connection import Connection
from forewarn.cli.output import Column, Output, format_moment

__all__ = ["add_limit"]


def add_limit(app: typer.Typer) -> None:
    """Add the commands of `limit`."""
    noun = group(app, "limit", "See who uses how much of the control API.", "Operate")

    @command(noun, "list", "forewarn limit list", "forewarn limit list --json")
    def list_limits(connection: Connection, output: Output) -> None:
        """List callers with what they use of their budgets; those that met a limit last come first.

        Each replica counts for itself.
        """
        found = connection.get("/v1/limits", limit=1000)["items"]
        if output.show(found):
            return
        output.table(
            [Column(head) for head in ("caller", "requests", "watches", "live pages", "connections", "changes")]
            + [Column("limits met"), Column("last")],
            [
                (
                    each["name"],
                    *(
                        f"{each['used'][use]}/{each['most'][use]}"
                        for use in ("requests", "watches", "live-pages", "connections", "changes")
                    ),
                    ", ".join(f"{use} {count}" for use, count in sorted(each["limited"].items())),
                    format_moment(each["limited_at"]),
                )
                for each in found
            ],
            empty="nobody has called yet",
        )
