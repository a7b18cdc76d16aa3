"""List of what needs attention: maintenances with a problem, and hosts that have failed.

The overview of the dashboard and the status of the service show the same list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.control.board import Board, BoardItem
from forewarn.core.maintenance.forecast import MaintenanceProblem
from forewarn.core.model import Host
from forewarn.store.contract import Reader

__all__ = ["TROUBLES", "Attention", "read_attention"]

_FAILED_MAX = 1000

TROUBLES: Mapping[MaintenanceProblem, tuple[str, str]] = {
    MaintenanceProblem.FAILED: ("Failed", "The actuator gave up."),
    MaintenanceProblem.FAILING: ("Failing", "The actuator has failed and will be retried."),
    MaintenanceProblem.LATE: ("Late", "Its start is due, but it has not started."),
    MaintenanceProblem.OVERRUN: ("Overrun", "It is taking longer than expected."),
    MaintenanceProblem.UNSEEN: (
        "Not seen",
        "A tenant has not polled since the announcement: no handler there knows of it.",
    ),
    MaintenanceProblem.UNAPPROVED: ("Not approved", "A tenant has not approved, and most of the notice has passed."),
}
"""Label and sentence for each problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What needs attention.

    Attributes:
        items: Maintenances with a problem, worst first, then by time.
        failed_hosts: Hosts that have failed and not recovered, the last to fail first; at most 1,000.
    """

    items: tuple[BoardItem, ...]
    failed_hosts: tuple[Host, ...]

    @property
    def count(self) -> int:
        """Number of maintenances and hosts."""
        return len(self.items) + len(self.failed_hosts)


def read_attention(reader: Reader, board: Board, *, has_hosts: bool) -> Attention:
    """Return what needs attention; without failed hosts if the viewer may not see hosts."""
    return Attention(
        items=tuple(board.items_needing_attention),
        failed_hosts=tuple(reader.list_failed_hosts(_FAILED_MAX)) if has_hosts else (),
    )
