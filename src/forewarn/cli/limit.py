"""`forewarn limit`: usage of the control API by caller, and the limits that callers have reached."""

from __future__ import annotations

from forewarn.cli.command import command, make_group
from forewarn.cli.connection import ControlConnection
from forewarn.cli.output import Column, Output, format_moment

__all__ = ["app"]

app = make_group("limit", "Show usage of the control API by caller, and limits reached.", "Operate")


@command(app, "list", "forewarn limit list", "forewarn limit list --json")
def list_limits(connection: ControlConnection, output: Output) -> None:
    """List callers with their usage and the limits they have reached; the latest to reach a limit come first.

    Callers with a token are listed from their first call on. VMs and unknown addresses are listed only after they
    have reached a limit at the metadata endpoint. Each replica counts separately. Callers that reach a limit at a
    'forewarn endpoint' on a host are not listed: such an endpoint counts only totals, in its own metrics.
    """
    found = connection.get("/v1/limits", limit=1000)["items"]
    if output.print_if_json(found):
        return
    output.print_table(
        [Column(head) for head in ("caller", "role", "requests", "watches", "live pages", "connections", "changes")]
        + [Column("limits reached"), Column("last")],
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
        empty="no calls yet",
    )
