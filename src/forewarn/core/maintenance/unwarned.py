"""VMs affected by a maintenance without a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forewarn.core.model import Event, Maintenance, MaintenanceState

__all__ = ["find_unwarned_vms"]


def find_unwarned_vms(
    maintenance: Maintenance, events: Iterable[Event], would_warn: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """Return the names of the VMs that no event warns, in the order of the maintenance.

    `would_warn` returns True if a VM would get an event now, the best guess for a queued maintenance; if it is None,
    every VM of a queued one counts as warned.

    Spec: R70c
    """
    match maintenance.state:
        case MaintenanceState.CANCELED:
            return ()
        case MaintenanceState.QUEUED:
            return () if would_warn is None else tuple(name for name in maintenance.vms if not would_warn(name))
        case _:
            # The events of an ended maintenance are no longer listed, but they did warn.
            shown = (event for event in events if event.is_listed or not maintenance.is_active)
            warned = {name for event in shown for name in event.resources}
            return tuple(name for name in maintenance.vms if name not in warned)
