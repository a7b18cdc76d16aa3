"""Causes of maintenance, as data: one row for each cause, with its defaults.

Spec: 1.11 (notice), 1.12 (description, source, duration), 1.15 (what makes events)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from forewarn.core.model import EventSource, EventType

HARDWARE_FAILURE = "hardware-failure"
"""Cause of maintenance for a failed host."""

__all__ = [
    "CAUSES",
    "DEFAULT_CAUSE",
    "HARDWARE_FAILURE",
    "MINIMUM_NOTICE",
    "OS_IMAGE_NOTICE",
    "OS_IMAGE_SERIES_EXCLUDED",
    "TERMINATE_NOTICE_MAX",
    "TERMINATE_NOTICE_MIN",
    "Cause",
    "OptInProfile",
]

MINIMUM_NOTICE = {
    EventType.FREEZE: timedelta(minutes=15),
    EventType.REBOOT: timedelta(minutes=15),
    EventType.REDEPLOY: timedelta(minutes=10),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(minutes=5),
}
"""Minimum time between announcement and NotBefore (R71)."""

TERMINATE_NOTICE_MIN = timedelta(minutes=5)
TERMINATE_NOTICE_MAX = timedelta(minutes=15)
OS_IMAGE_NOTICE = timedelta(minutes=15)
OS_IMAGE_SERIES_EXCLUDED = ("G", "M", "N", "H")
"""Size families for which OS image changes make no events (R93)."""


class OptInProfile:
    """Names of the opt-in profiles that a cause may need before it makes events."""

    TERMINATE = "terminate"
    OS_IMAGE = "os-image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row of the table.

    Attributes:
        is_routine: Planned by the platform, so it is serialised over fault domains and queues for its turn (R61).
        is_immediate: Goes straight to Started, without notice (R73).
        is_per_vm: Each VM's operation is separate: it neither waits for other tenants nor starts with them.
        types: Other types that an operator may give it; its own is always allowed.
        profile: Opt-in required before it makes events; None if it always makes one.
        notice: Default notice, if longer than the minimum of the type.
        is_fixed: NotBefore is final: neither a caller nor a policy can postpone it (R72, R74, R90).
        is_at_once_unwarned: Starts at once if no VM can be warned and no time was given, like user operations (R70a).
    """

    name: str
    type: EventType
    source: EventSource
    duration_s: int = -1
    description: str = ""
    is_routine: bool = False
    is_immediate: bool = False
    is_per_vm: bool = False
    types: frozenset[EventType] = frozenset()
    profile: str | None = None
    notice: timedelta | None = None
    is_fixed: bool = False
    is_at_once_unwarned: bool = False


_ROWS = (
    Cause(
        name="live-migration",
        type=EventType.FREEZE,
        source=EventSource.PLATFORM,
        duration_s=5,
        description="Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        is_routine=True,
    ),
    Cause(
        name="host-maintenance",
        type=EventType.FREEZE,
        source=EventSource.PLATFORM,
        # Captures show 6, 9 and 30 seconds (1.12).
        duration_s=9,
        description="Host server is undergoing maintenance.",
        is_routine=True,
        types=frozenset({EventType.REBOOT, EventType.REDEPLOY}),
    ),
    Cause(
        name="platform-redeploy",
        type=EventType.REDEPLOY,
        source=EventSource.PLATFORM,
        description="Virtual machine has encountered a failure.",
        is_routine=True,
    ),
    Cause(
        name="predicted-failure",
        type=EventType.REDEPLOY,
        source=EventSource.PLATFORM,
        description="Virtual machine has encountered a failure.",
        # If a user redeploys one VM early, only the event of that VM goes away (R72).
        is_per_vm=True,
        # A Freeze where the VMs are migrated live (A15).
        types=frozenset({EventType.FREEZE}),
        notice=timedelta(days=7),
        is_fixed=True,
    ),
    Cause(
        name=HARDWARE_FAILURE,
        type=EventType.REBOOT,
        source=EventSource.PLATFORM,
        description="Host server is undergoing an emergency repair.",
        is_immediate=True,
        is_fixed=True,
    ),
    Cause(
        name="user-restart",
        type=EventType.REBOOT,
        source=EventSource.USER,
        description="Virtual machine is going to be restarted as requested by authorized user.",
        is_per_vm=True,
    ),
    Cause(
        name="user-redeploy",
        type=EventType.REDEPLOY,
        source=EventSource.USER,
        description="Virtual machine is going to be redeployed as requested by authorized user.",
        is_per_vm=True,
    ),
    Cause(
        name="spot-eviction",
        type=EventType.PREEMPT,
        source=EventSource.PLATFORM,
        is_per_vm=True,
        is_fixed=True,
        # Needed, because its source is the platform; for user operations, the source is enough (R70a).
        is_at_once_unwarned=True,
    ),
    Cause(
        name="scale-set-delete",
        type=EventType.TERMINATE,
        source=EventSource.USER,
        is_per_vm=True,
        profile=OptInProfile.TERMINATE,
        is_fixed=True,
    ),
    Cause(
        name="os-upgrade",
        # No source names the type; a notice of 15 minutes and the loss of state fit a Reboot (A18).
        type=EventType.REBOOT,
        source=EventSource.PLATFORM,
        is_routine=True,
        profile=OptInProfile.OS_IMAGE,
    ),
    Cause(
        name="reimage",
        type=EventType.REBOOT,
        source=EventSource.USER,
        is_per_vm=True,
        profile=OptInProfile.OS_IMAGE,
    ),
)

CAUSES = {row.name: row for row in _ROWS}
"""All causes by name."""

DEFAULT_CAUSE = {
    (EventType.FREEZE, EventSource.PLATFORM): "live-migration",
    (EventType.REBOOT, EventSource.PLATFORM): "host-maintenance",
    (EventType.REDEPLOY, EventSource.PLATFORM): "platform-redeploy",
    (EventType.PREEMPT, EventSource.PLATFORM): "spot-eviction",
    (EventType.TERMINATE, EventSource.PLATFORM): "scale-set-delete",
    (EventType.FREEZE, EventSource.USER): "host-maintenance",
    (EventType.REBOOT, EventSource.USER): "user-restart",
    (EventType.REDEPLOY, EventSource.USER): "user-redeploy",
    (EventType.PREEMPT, EventSource.USER): "spot-eviction",
    (EventType.TERMINATE, EventSource.USER): "scale-set-delete",
}
"""Cause assumed when an operator names only type and source."""
