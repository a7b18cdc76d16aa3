"""Values of the core with everything filled in that a test does not care about."""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.core.model import (
    Claim,
    Event,
    EventSource,
    EventType,
    Maintenance,
    MaintenanceState,
    NotificationProfile,
    PowerState,
    Scope,
    ScopeKind,
    VirtualMachine,
)
from forewarn.core.policy import Policy
from tests.support.world import NOW

__all__ = ["an_event", "availability_set", "maintenance", "scale_set", "vm"]


def vm(
    name: str,
    *,
    host: str = "host-1",
    scope: str | None = None,
    fault_domain: int = 0,
    update_domain: int = 0,
    size: str = "Standard_D2s_v3",
    zone: str = "",
    priority: str = "",
    terminate_timeout: timedelta | None = None,
    power_state: PowerState = PowerState.RUNNING,
    addresses: tuple[str, ...] = (),
) -> VirtualMachine:
    profile = NotificationProfile()
    if terminate_timeout is not None:
        profile = NotificationProfile(enable=True, not_before_timeout=terminate_timeout)
    return VirtualMachine(
        name=name,
        host=host,
        scope=scope,
        fault_domain=fault_domain,
        update_domain=update_domain,
        size=size,
        addresses=addresses,
        zone=zone,
        priority=priority,
        terminate_notification=profile,
        power_state=power_state,
    )


def availability_set(
    name: str = "web", *, approves_user_operations: bool = False, couples_deletes: bool = False
) -> Scope:
    return Scope(
        name=name,
        kind=ScopeKind.AVAILABILITY_SET,
        policy=Policy(approves_user_operations=approves_user_operations),
        couples_deletes=couples_deletes,
    )


def scale_set(
    name: str = "fleet",
    *,
    fault_domain_count: int | None = None,
    notifies_of_os_image: bool = False,
    couples_deletes: bool = False,
) -> Scope:
    return Scope(
        name=name,
        kind=ScopeKind.SCALE_SET,
        fault_domain_count=fault_domain_count,
        os_image_notification=NotificationProfile(
            enable=notifies_of_os_image, not_before_timeout=timedelta(minutes=15)
        ),
        couples_deletes=couples_deletes,
    )


def maintenance(
    *vms: VirtualMachine,
    id: str = "maintenance-a",
    sequence: int = 1,
    cause: str = "host-maintenance",
    type: EventType = EventType.FREEZE,
    source: EventSource = EventSource.PLATFORM,
    state: MaintenanceState = MaintenanceState.SCHEDULED,
    not_before: datetime | None = None,
    started_at: datetime | None = None,
    ended_at: datetime | None = None,
) -> Maintenance:
    return Maintenance(
        id=id,
        sequence=sequence,
        request_id=id,
        cause=cause,
        type=type,
        impact=type,
        source=source,
        description="",
        duration_s=9,
        state=state,
        created_at=NOW,
        notice=timedelta(minutes=15),
        not_before=not_before,
        started_at=started_at,
        ended_at=ended_at,
        claims=tuple(Claim(vm=v.name, host=v.host, scope=v.scope, fault_domain=v.fault_domain) for v in vms),
    )


def an_event(
    *resources: str,
    id: str = "00000000-0000-4000-8000-00000000000A",
    sequence: int = 1,
    maintenance_id: str = "maintenance-a",
    audience: str = "scope:web",
    is_listed: bool = True,
    approved_at: datetime | None = None,
) -> Event:
    return Event(
        id=id,
        sequence=sequence,
        maintenance_id=maintenance_id,
        audience=audience,
        update_domain=0,
        resources=resources or ("web-0",),
        is_listed=is_listed,
        approved_at=approved_at,
        approved_by=None if approved_at is None else "vm:web-0",
    )
