"""Which VMs a maintenance hits without a warning.

Spec: R70c
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forewarn.core.model import Event, Maintenance, MaintenanceState

__all__ = ["unwarned_vms"]


def unwarned_vms(
    maintenance: Maintenance, events: Iterable[Event], would_warn: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """Names of the VMs that no event warns, in the order of the maintenance.

    Args:
        maintenance: The one.
        events: Its own.
        would_warn: Whether a VM would be shown an event now: of a queued maintenance nobody can know more. None: not
            known, and every VM of a queued one is taken to be warned.

    Spec: R70c
    """
    match maintenance.state:
        case MaintenanceState.CANCELED:
            return ()
        case MaintenanceState.QUEUED:
            return () if would_warn is None else tuple(name for name in maintenance.vms if not would_warn(name))
        case _:
            shown = (event for event in events if event.is_listed or not maintenance.is_active)
            warned = {name for event in shown for name in event.resources}
            return tuple(name for name in maintenance.vms if name not in warned)
