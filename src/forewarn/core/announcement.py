"""Making the events of a maintenance: one for each audience and update domain (R34, R83).

An audience gets an event when it is enabled (R67, R68, R70) and the cause makes events for the VM at all (R91, R93).
With no event to show there is nobody to wait for, and the maintenance runs at once, unless a moment was named for it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES, OS_IMAGE_SERIES_EXCLUDED, Profile
from forewarn.core.decision import Draft
from forewarn.core.lifecycle import Trigger
from forewarn.core.model import (
    POLICY,
    Audience,
    EntryKind,
    Event,
    Maintenance,
    PowerState,
    Scope,
    ScopeKind,
    VirtualMachine,
    audience_key,
)
from forewarn.core.tenancy import approves, must_be_calm, policy_of
from forewarn.core.value import replace

__all__ = ["announce", "ceil_to_second", "is_announcing", "makes_event"]


def ceil_to_second(moment: datetime) -> datetime:
    """The whole second at or after `moment`: notice is rounded up, never down (R71)."""
    return moment if moment.microsecond == 0 else moment.replace(microsecond=0) + timedelta(seconds=1)


def is_announcing(audience: Audience | None, now: datetime, announce_delay: timedelta) -> bool:
    """Whether new events are shown to that audience now (R67, R68, R70)."""
    return audience is not None and audience.enabled_at is not None and audience.enabled_at + announce_delay <= now


def makes_event(cause: str, vm: VirtualMachine, scope: Scope | None) -> bool:
    """Whether an operation of that cause on that VM makes an event at all.

    Spec: R91 (deletes), R93 (OS image)
    """
    profile = CAUSES[cause].profile
    if profile == Profile.TERMINATE:
        return vm.terminate_notification.enable and not vm.is_spot
    if profile == Profile.OS_IMAGE:
        is_excluded = vm.size_series.startswith(OS_IMAGE_SERIES_EXCLUDED)
        return scope is not None and scope.os_image_notification.enable and not is_excluded
    return True


def announce(draft: Draft, maintenance: Maintenance, *, is_new: bool) -> Maintenance:
    """Make the events of a new or queued maintenance and let its notice begin.

    Returns:
        The maintenance: scheduled, or started when its cause is immediate (R73).

    Raises:
        QuietHoursConflict: No moment within the limits of its notice is outside of all quiet hours; nothing was made.
    """
    cause = CAUSES[maintenance.cause]
    events = _make_events(draft, maintenance)
    not_before = draft.now if cause.is_immediate else _not_before(draft, maintenance, has_events=bool(events))
    for event in events:
        draft.put(event)
    maintenance = replace(maintenance, announced_at=draft.now)
    if cause.is_immediate:
        announced = draft.step(maintenance, Trigger.STRIKE, is_new=is_new, reason=maintenance.force_reason)
    else:
        announced = replace(maintenance, not_before=not_before, due_at=not_before)
        announced = draft.step(announced, Trigger.ANNOUNCE, is_new=is_new, reason=maintenance.force_reason)
    for event in events:
        if event.is_approved:
            about = {"maintenance_id": maintenance.id, "event_id": event.id, "audience": event.audience}
            draft.note(EntryKind.APPROVED, actor=POLICY, **about)
    return announced


def _not_before(draft: Draft, maintenance: Maintenance, *, has_events: bool) -> datetime:
    named = maintenance.requested_not_before
    if not has_events:
        return must_be_calm(draft, maintenance, max(named, draft.now) if named is not None else draft.now)
    # Without any notice it begins now, and not at the end of this second: there is no NotBefore to be read.
    earliest = ceil_to_second(draft.now + maintenance.notice) if maintenance.notice else draft.now
    return must_be_calm(draft, maintenance, max(earliest, ceil_to_second(named)) if named is not None else earliest)


def _make_events(draft: Draft, maintenance: Maintenance) -> list[Event]:
    groups: dict[tuple[str, int], list[VirtualMachine]] = {}
    for name in maintenance.vms:
        vm = draft.vms[name]
        scope = draft.scopes[vm.scope] if vm.scope is not None else None
        key = audience_key(vm, scope)
        # One may have been preempted or deleted while the maintenance was in the queue.
        is_there = vm.power_state is PowerState.RUNNING
        is_shown = is_announcing(draft.audiences.get(key), draft.now, draft.rules.announce_delay)
        if is_there and is_shown and makes_event(maintenance.cause, vm, scope):
            groups.setdefault((key, vm.update_domain), []).append(vm)
    return [_make_event(draft, maintenance, key, domain, vms) for (key, domain), vms in groups.items()]


def _make_event(
    draft: Draft, maintenance: Maintenance, key: str, update_domain: int, vms: list[VirtualMachine]
) -> Event:
    scope = draft.scopes[vms[0].scope] if vms[0].scope is not None else None
    is_approved = approves(policy_of(vms[0], scope), maintenance)
    return Event(
        id=draft.new_id("event"),
        sequence=draft.new_sequence(),
        maintenance_id=maintenance.id,
        audience=key,
        update_domain=update_domain,
        resources=tuple(vm.name for vm in vms),
        is_iaas=scope is None or scope.kind is not ScopeKind.CLOUD_SERVICE,
        approved_at=draft.now if is_approved else None,
        approved_by=POLICY if is_approved else None,
    )
