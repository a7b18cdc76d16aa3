"""Announcing a maintenance: one event for each audience and update domain (R34, R83).

An audience gets an event if it is enabled (R67, R68, R70) and the cause makes events for the VM at all (R91, R93).
The time of a maintenance does not depend on whether any audience gets an event, except for operations that may start at
once when no VM can be warned (R70a). An audience that is enabled while a maintenance waits gets its event then (R70b).
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES, MINIMUM_NOTICE, OS_IMAGE_SERIES_EXCLUDED, OptInProfile
from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.maintenance.tenancy import (
    AllowedStart,
    describe_move,
    policy_approves,
    policy_of,
    require_allowed_start,
)
from forewarn.core.model import (
    POLICY,
    Audience,
    EntryKind,
    Event,
    Maintenance,
    MaintenanceState,
    PowerState,
    Scope,
    ScopeKind,
    VirtualMachine,
    audience_key,
)

__all__ = [
    "announce_maintenance",
    "announce_to_new_audience",
    "ceil_to_second",
    "is_announcing",
    "is_warned",
    "makes_event",
]


def ceil_to_second(moment: datetime) -> datetime:
    """Return the whole second at or after `moment`: notice is rounded up, never down (R71)."""
    return moment if moment.microsecond == 0 else moment.replace(microsecond=0) + timedelta(seconds=1)


def is_announcing(audience: Audience | None, now: datetime, announce_delay: timedelta) -> bool:
    """Return True if the audience gets new events now (R67, R68, R70)."""
    return audience is not None and audience.enabled_at is not None and audience.enabled_at + announce_delay <= now


def makes_event(cause: str, vm: VirtualMachine, scope: Scope | None) -> bool:
    """Return True if an operation of that cause on that VM makes an event at all.

    Spec: R91 (deletes), R93 (OS image)
    """
    profile = CAUSES[cause].profile
    if profile == OptInProfile.TERMINATE:
        return vm.terminate_notification.enable and not vm.is_spot
    if profile == OptInProfile.OS_IMAGE:
        is_excluded = vm.size_series.startswith(OS_IMAGE_SERIES_EXCLUDED)
        return scope is not None and scope.os_image_notification.enable and not is_excluded
    return True


def announce_maintenance(
    draft: Draft, maintenance: Maintenance, *, is_new: bool, reason: str | None = None
) -> Maintenance:
    """Make the events of a new or queued maintenance and start its notice.

    Args:
        draft: The decision.
        maintenance: The maintenance.
        is_new: True if it was not queued before.
        reason: Reason of the caller, for the audit log; None for the reason for which it was forced, if it was.

    Returns:
        The maintenance: scheduled, or started if its cause is immediate (R73).

    Raises:
        QuietHoursConflict: No moment within the limits of its notice is outside of all quiet hours; nothing was made.
    """
    is_immediate = CAUSES[maintenance.cause].is_immediate
    reason = reason or maintenance.force_reason
    events = _make_events(draft, maintenance)
    # Found before anything is stored in the draft: it may raise, and then nothing may have been made.
    start = None if is_immediate else _choose_not_before(draft, maintenance, has_events=bool(events))
    for event in events:
        draft.put(event)
    maintenance = replace(maintenance, announced_at=draft.now)
    if start is None:
        announced = draft.apply_trigger(maintenance, Trigger.STRIKE, is_new=is_new, reason=reason)
    else:
        announced = replace(
            maintenance, not_before=start.at, due_at=start.at, moved_from=start.moved_from, moved_by=start.moved_by
        )
        moved = None if start.moved_from is None else describe_move(start.moved_from, start.moved_by)
        why = "; ".join(each for each in (reason, moved) if each) or None
        announced = draft.apply_trigger(announced, Trigger.ANNOUNCE, is_new=is_new, reason=why)
    # After the transition, so that the audit log shows the announcement before the approvals.
    _record_policy_approvals(draft, events)
    return announced


def announce_to_new_audience(draft: Draft, audience: Audience) -> None:
    """Give an audience that was just enabled the events of scheduled maintenances, NotBefore unchanged (R70b).

    Events that it had before it was disabled return under the same id, with their approvals.
    """
    for maintenance in list(draft.maintenances.values()):
        if maintenance.state is not MaintenanceState.SCHEDULED:
            continue
        events = [event for event in draft.get_events(maintenance.id) if event.audience == audience.key]
        # An event stays withdrawn if all its VMs are gone.
        back = [e for e in events if not e.is_listed and any(_is_running(draft, name) for name in e.resources)]
        # Events that stay withdrawn count as well; otherwise their VMs would get a second event.
        known = {name for event in events for name in event.resources}
        late = _make_events(draft, maintenance, only_audience=audience.key, excluded_vms=known)
        for event in (*(replace(each, is_listed=True) for each in back), *late):
            draft.put(event)
            draft.record_event(EntryKind.ANNOUNCED, event)
        _record_policy_approvals(draft, late)


def _is_running(draft: Draft, name: str) -> bool:
    return name in draft.vms and draft.vms[name].power_state is PowerState.RUNNING


def _record_policy_approvals(draft: Draft, events: list[Event]) -> None:
    for event in events:
        if event.is_approved:
            draft.record_event(EntryKind.APPROVED, event, actor=POLICY)


def _choose_not_before(draft: Draft, maintenance: Maintenance, *, has_events: bool) -> AllowedStart:
    """Return NotBefore, given the notice and the quiet hours (R70a, R71)."""
    notice = maintenance.notice
    if has_events and maintenance.force_reason is None:
        # An audience may have opted in while this was in the queue.
        notice = max(notice, MINIMUM_NOTICE[maintenance.type])
    elif not has_events and maintenance.is_at_once_unwarned:
        notice = timedelta(0)
    # Without notice it begins now, and not at the end of this second: there is no NotBefore that anyone could read.
    earliest = ceil_to_second(draft.now + notice) if notice else draft.now
    named = maintenance.requested_not_before
    return require_allowed_start(
        draft, maintenance, earliest if named is None else max(earliest, ceil_to_second(named))
    )


def is_warned(draft: Draft, cause: str, vm: VirtualMachine, start: datetime | None = None) -> bool:
    """Return True if an operation of that cause would give an event about that VM, if it starts then (None: now).

    An operation that begins before the delay after enabling is over is not announced (R68). A later one is, so that a
    scope that has just asked is warned of it (R70b).
    """
    scope = draft.scopes[vm.scope] if vm.scope is not None else None
    audience = draft.audiences.get(audience_key(vm, scope))
    return is_announcing(audience, start or draft.now, draft.rules.announce_delay) and makes_event(cause, vm, scope)


def _get_earliest_start(draft: Draft, maintenance: Maintenance) -> datetime:
    """Return the earliest start of a maintenance, before its VMs are considered."""
    # A lower bound is enough here: it only decides whether the delay after enabling will be over by then.
    if maintenance.is_at_once_unwarned or CAUSES[maintenance.cause].is_immediate:
        return draft.now
    return max(draft.now + maintenance.notice, maintenance.requested_not_before or draft.now)


def _make_events(
    draft: Draft, maintenance: Maintenance, *, only_audience: str | None = None, excluded_vms: Container[str] = ()
) -> list[Event]:
    """Make events for all audiences that get some now; or for audience `only_audience`, which was just enabled.

    VMs in `excluded_vms` already have one.
    """
    groups: dict[tuple[str, int], list[VirtualMachine]] = {}
    start = _get_earliest_start(draft, maintenance)
    for name in maintenance.vms:
        vm = draft.vms.get(name)
        # A VM may have been preempted or deleted while the maintenance was in the queue.
        if vm is None or vm.power_state is not PowerState.RUNNING or name in excluded_vms:
            continue
        scope = draft.scopes[vm.scope] if vm.scope is not None else None
        key = audience_key(vm, scope)
        is_shown = key == only_audience and makes_event(maintenance.cause, vm, scope)
        if is_shown or (only_audience is None and is_warned(draft, maintenance.cause, vm, start)):
            groups.setdefault((key, vm.update_domain), []).append(vm)
    return [_make_event(draft, maintenance, key, domain, vms) for (key, domain), vms in groups.items()]


def _make_event(
    draft: Draft, maintenance: Maintenance, key: str, update_domain: int, vms: list[VirtualMachine]
) -> Event:
    scope = draft.scopes[vms[0].scope] if vms[0].scope is not None else None
    # An audience has one owner, so the policy of any of its VMs is the policy of all.
    is_approved = policy_approves(policy_of(vms[0], scope), maintenance)
    return Event(
        id=draft.new_id("event"),
        sequence=draft.new_sequence(),
        maintenance_id=maintenance.id,
        audience=key,
        update_domain=update_domain,
        resources=tuple(vm.name for vm in vms),
        # Role instances of a cloud service have no underscore in 2017-03-01 (R20).
        is_iaas=scope is None or scope.kind is not ScopeKind.CLOUD_SERVICE,
        approved_at=draft.now if is_approved else None,
        approved_by=POLICY if is_approved else None,
    )
