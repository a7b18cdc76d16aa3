"""Choice of the notice that a maintenance gives.

Spec: R70a, R71, R72, R74, R91
"""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.core.causes import MINIMUM_NOTICE, TERMINATE_NOTICE_MAX, Cause, OptInProfile
from forewarn.core.maintenance.announcement import makes_event
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventSource, EventType, VirtualMachine
from forewarn.errors import BelowMinimumNotice, InvalidRequest

__all__ = ["choose_notice", "get_minimum_notice", "is_at_once_unwarned"]


def get_minimum_notice(cause: Cause, event_type: EventType, vms: list[VirtualMachine]) -> timedelta:
    """Return the minimum notice for that operation on those VMs (R71, R91)."""
    if cause.profile == OptInProfile.TERMINATE:
        # With several VMs, the longest of their notices satisfies all of them.
        timeouts = [vm.terminate_notification.not_before_timeout for vm in vms if vm.terminate_notification.enable]
        return max(timeouts, default=MINIMUM_NOTICE[event_type])
    return MINIMUM_NOTICE[event_type]


def choose_notice(
    draft: Draft, request: MaintenanceRequest, cause: Cause, event_type: EventType, vms: list[VirtualMachine]
) -> timedelta:
    """Return the notice to give, checked against the promised minimum and the allowed maximum.

    Raises:
        InvalidRequest: Both a notice and a NotBefore were named, or one too far ahead.
        BelowMinimumNotice: Less than promised, and not forced.

    Spec: R70a, R71
    """
    least = get_minimum_notice(cause, event_type, vms)
    asked = _get_requested_notice(request, draft.now)
    # Unforced, the notice is kept: a VM that asks before a queued operation has its turn gets all of it (ADR 23).
    if request.is_now and request.force_reason is not None:
        return timedelta(0)
    if asked is None:
        return max(least, cause.notice or least)
    # The minimum is promised to VMs that get an event; without any, the operator is free to choose.
    is_announced = any(makes_event(cause.name, vm, draft.scopes.get(vm.scope or "")) for vm in vms)
    _refuse_too_long(asked, cause, draft.rules.notice_max, is_announced=is_announced)
    is_forced = request.force_reason is not None
    if asked < least and is_announced and not is_forced:
        given = (
            f"NotBefore is {_format_notice(-asked)} in the past"
            if asked < timedelta(0)
            else f"notice of {_format_notice(asked)}"
        )
        msg = (
            f"{given}: a {event_type} needs at least {_format_notice(least)}; to give less, force it and give a reason"
        )
        raise BelowMinimumNotice(msg, minimum_s=int(least.total_seconds()))
    if request.not_before is not None:
        # The announcement keeps the moment itself. If it is past when the queue lets it go, only the minimum remains.
        asked = min(asked, least)
    return max(asked, least if is_announced and not is_forced else timedelta(0))


def is_at_once_unwarned(draft: Draft, request: MaintenanceRequest, cause: Cause, vms: list[VirtualMachine]) -> bool:
    """Return True if it starts at once when none of its VMs can be warned.

    A time in the request always holds. Without one, three kinds start at once: user operations, Spot evictions, and
    operations that make no event on any of their VMs, opted in or not.

    Spec: R70a
    """
    if request.is_now:
        return True
    if request.has_time:
        return False
    is_free = cause.is_at_once_unwarned or (request.source or cause.source) is EventSource.USER
    return is_free or not any(makes_event(cause.name, vm, draft.scopes.get(vm.scope or "")) for vm in vms)


def _get_requested_notice(request: MaintenanceRequest, now: datetime) -> timedelta | None:
    if request.is_now and request.has_time:
        raise InvalidRequest("an immediate start cannot be combined with a notice or a NotBefore")
    if request.notice is not None and request.not_before is not None:
        raise InvalidRequest("give either a notice or a NotBefore, not both")
    if request.not_before is not None:
        return request.not_before - now
    return request.notice


def _refuse_too_long(notice: timedelta, cause: Cause, notice_max: timedelta, *, is_announced: bool) -> None:
    if notice > notice_max:
        msg = f"notice of {_format_notice(notice)} is more than the limit of {_format_notice(notice_max)} (notice_max)"
        raise InvalidRequest(msg)
    if cause.profile == OptInProfile.TERMINATE and is_announced and notice > TERMINATE_NOTICE_MAX:
        most = _format_notice(TERMINATE_NOTICE_MAX)
        raise InvalidRequest(f"notice of {_format_notice(notice)} exceeds the maximum of {most} for a Terminate")


def _format_notice(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
