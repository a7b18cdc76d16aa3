"""Postponing an announced maintenance at the request of an affected tenant.

There are two ways, each with its limits:

- **Defer**: to another moment, up to the latest start set by the operator. Without one, it cannot be deferred.
- **Extend**: a little more time to prepare, as granted by the asking tenant's policy, in total for the maintenance.

Only NotBefore moves, for all tenants alike, and with it each document (R40, R42). Approvals remain valid: an approval
that was accepted is never asked for again (invariant 5 of the design). So, once every vote is in, nothing is left to
postpone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES
from forewarn.core.fast_replace import replace
from forewarn.core.maintenance.announcement import ceil_to_second
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.settlement import is_approved_by_all
from forewarn.core.maintenance.tenancy import (
    AllowedStart,
    describe_move,
    get_tenant,
    get_tenant_name,
    get_tenant_policies,
    require_allowed_start,
)
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState
from forewarn.core.policy import ExtensionAllowance
from forewarn.errors import Conflict, InvalidRequest
from forewarn.util.duration import format_duration

__all__ = ["RemainingExtension", "defer_maintenance", "extend_maintenance", "get_remaining_extension"]

_ADVICE = "NotBefore is unchanged"


def defer_maintenance(
    draft: Draft,
    maintenance: Maintenance,
    *,
    not_before: datetime | None = None,
    by: timedelta | None = None,
    reason: str | None = None,
) -> Maintenance:
    """Move NotBefore to a given later time, or by a delay, and past any quiet hours that contain it.

    Raises:
        InvalidRequest: Both or none was named, or the time is not later than before.
        Conflict: It cannot be deferred: its state, its kind, no latest start, or too many deferrals; every tenant has
            approved; or the time is after the latest start.
        QuietHoursConflict: Every moment up to the latest start is in a tenant's quiet hours.

    Spec: R40, R42, R74
    """
    before = _check_movable(draft, maintenance, "deferred")
    if (not_before is None) == (by is None):
        raise InvalidRequest("give either the new NotBefore or a delay, not both")
    if maintenance.latest_start is None:
        msg = f"maintenance {maintenance.id} cannot be deferred: it was scheduled without a latest start"
        raise Conflict(msg, id=maintenance.id)
    if maintenance.deferrals >= draft.rules.deferrals_max:
        msg = f"maintenance {maintenance.id} was deferred {maintenance.deferrals} times, the maximum (deferrals_max)"
        raise Conflict(msg, id=maintenance.id)
    wanted = ceil_to_second(not_before if not_before is not None else before + (by or timedelta(0)))
    if wanted <= before:
        msg = f"{_format_time(wanted)} is not later than the current NotBefore, {_format_time(before)}"
        raise InvalidRequest(msg, id=maintenance.id)
    _refuse_after_latest_start(maintenance, wanted)
    moved = replace(maintenance, deferrals=maintenance.deferrals + 1)
    return _move_not_before(
        draft, moved, require_allowed_start(draft, maintenance, wanted, _ADVICE), EntryKind.DEFERRED, reason
    )


def extend_maintenance(
    draft: Draft, maintenance: Maintenance, *, by: timedelta, tenant: str | None = None, reason: str | None = None
) -> Maintenance:
    """Give a tenant a little more time to prepare, as its policy grants.

    `tenant` is the name of the scope or standalone VM that asks; None if the maintenance affects only one.

    Raises:
        InvalidRequest: The time is not positive, or it is not clear which tenant asks.
        Conflict: It cannot be moved, as with `defer_maintenance`; the tenant has approved, or its policy grants no
            more.
        QuietHoursConflict: Every moment that is left is in a tenant's quiet hours.

    Spec: R40, R42, R74
    """
    before = _check_movable(draft, maintenance, "extended")
    if by <= timedelta(0):
        msg = f"cannot extend by {format_duration(by)}: expected a positive duration, such as 5m"
        raise InvalidRequest(msg, id=maintenance.id)
    key = _find_asking_tenant(draft, maintenance, tenant)
    name = get_tenant_name(key)
    left = _get_remaining_extension(draft, maintenance, key)
    if by > left:
        msg = f"{format_duration(by)} is more than the {format_duration(left)} that the policy of {name} still grants"
        raise Conflict(msg, id=maintenance.id)
    wanted = ceil_to_second(before + by)
    _refuse_after_latest_start(maintenance, wanted)
    moment = require_allowed_start(draft, maintenance, wanted, _ADVICE)
    # Quiet hours may add to the requested time, and all of it counts against what the policy grants.
    given = moment.at - before
    if given > left:
        msg = f"quiet hours would move it to {_format_time(moment.at)}, and {name} grants only {format_duration(left)}"
        raise Conflict(msg, id=maintenance.id)
    moved = replace(maintenance, extensions=maintenance.extensions + 1, extended=maintenance.extended + given)
    return _move_not_before(draft, moved, moment, EntryKind.EXTENDED, reason)


def _check_movable(draft: Draft, maintenance: Maintenance, action: str) -> datetime:
    """Return the current NotBefore, after checking that the maintenance may be moved at all."""
    if maintenance.state is not MaintenanceState.SCHEDULED or maintenance.not_before is None:
        msg = f"maintenance {maintenance.id} is {maintenance.state}: only a scheduled one can be {action}"
        raise Conflict(msg, id=maintenance.id, state=maintenance.state.value)
    if CAUSES[maintenance.cause].is_fixed:
        msg = f"maintenance {maintenance.id} is a {maintenance.cause}: its NotBefore is fixed"
        raise Conflict(msg, id=maintenance.id)
    # It may still be Scheduled, held up by another maintenance on the same VM.
    if maintenance.not_before <= draft.now:
        msg = f"maintenance {maintenance.id} can no longer be {action}: its NotBefore has passed"
        raise Conflict(msg, id=maintenance.id)
    if is_approved_by_all(draft.get_events(maintenance.id)):
        msg = f"maintenance {maintenance.id} cannot be {action}: all its events are approved, and it is about to start"
        raise Conflict(msg, id=maintenance.id)
    return maintenance.not_before


def _refuse_after_latest_start(maintenance: Maintenance, moment: datetime) -> None:
    if maintenance.latest_start is not None and moment > maintenance.latest_start:
        msg = f"{_format_time(moment)} is after the latest start, {_format_time(maintenance.latest_start)}"
        raise Conflict(msg, id=maintenance.id, latest_start=_format_time(maintenance.latest_start))


def _find_asking_tenant(draft: Draft, maintenance: Maintenance, tenant: str | None) -> str:
    """Return the key of the asking tenant: one that has an event and has not approved it."""
    open_events: dict[str, bool] = {}
    for event in draft.get_events(maintenance.id):
        if event.is_listed:
            key, _ = get_tenant(draft, event, maintenance)
            # A tenant has one event for each update domain, and a single missing approval is enough.
            open_events[key] = open_events.get(key, False) or not event.is_approved
    if tenant is None and len(open_events) > 1:
        msg = f"maintenance {maintenance.id} affects several tenants: name a scope or standalone VM"
        raise InvalidRequest(msg, id=maintenance.id)
    if not open_events:
        msg = f"maintenance {maintenance.id} cannot be extended: it has no events to prepare for"
        raise Conflict(msg, id=maintenance.id)
    keys = [key for key in open_events if tenant is None or tenant in {key, get_tenant_name(key)}]
    if not keys:
        msg = f"{tenant!r} has no event of maintenance {maintenance.id}: name a scope or standalone VM that has"
        raise InvalidRequest(msg, id=maintenance.id)
    if len(keys) > 1:
        msg = f"{tenant!r} is the name of a scope and of a VM: name {' or '.join(sorted(keys))}"
        raise InvalidRequest(msg, id=maintenance.id)
    if not open_events[keys[0]]:
        msg = f"{get_tenant_name(keys[0])} has already approved maintenance {maintenance.id}"
        raise Conflict(msg, id=maintenance.id)
    return keys[0]


def _get_remaining_extension(draft: Draft, maintenance: Maintenance, key: str) -> timedelta:
    """Return how much more time the policy of the tenant with that key grants."""
    name = get_tenant_name(key)
    extension = get_tenant_policies(draft, maintenance)[key].extension
    if extension is None:
        raise Conflict(f"the policy of {name} grants no extension", id=maintenance.id)
    left = get_remaining_extension(extension, maintenance)
    if left.times == 0:
        msg = f"maintenance {maintenance.id} was extended {maintenance.extensions} times, the maximum for {name}"
        raise Conflict(msg, id=maintenance.id)
    return left.time


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingExtension:
    """What a policy still grants for one maintenance.

    Attributes:
        times: Number of further extensions.
        time: Maximum total of further time; without meaning if there are no further extensions.
    """

    times: int
    time: timedelta


def get_remaining_extension(allowance: ExtensionAllowance, maintenance: Maintenance) -> RemainingExtension:
    """Return what is left of an allowance for a maintenance."""
    # Counted for the maintenance, because tenants could otherwise take turns in delaying it.
    return RemainingExtension(
        times=max(allowance.times - maintenance.extensions, 0),
        time=max(allowance.max - maintenance.extended, timedelta(0)),
    )


def _move_not_before(
    draft: Draft, maintenance: Maintenance, target: AllowedStart, kind: EntryKind, reason: str | None
) -> Maintenance:
    before = maintenance.not_before
    moved = replace(
        maintenance, not_before=target.at, due_at=target.at, moved_from=target.moved_from, moved_by=target.moved_by
    )
    draft.put(moved)
    details = f"NotBefore changed from {'' if before is None else _format_time(before)} to {_format_time(target.at)}"
    if target.moved_from is not None:
        details = f"{details}; {describe_move(target.moved_from, target.moved_by)}"
    draft.record(kind, maintenance_id=moved.id, reason=details if reason is None else f"{details}: {reason}")
    return moved


def _format_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
