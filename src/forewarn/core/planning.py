"""Planning: from a request to maintenances and their events.

One request makes one maintenance, or several if VMs must not be hit together: one for each fault domain of a scope, the
later ones queued (R61), and one for each VM if the operation concerns a single VM.
"""

from __future__ import annotations

from forewarn.core import host_failure
from forewarn.core.announcement import announce, is_warned
from forewarn.core.causes import CAUSES, HARDWARE_FAILURE, Cause
from forewarn.core.conflicts import duplicate_of, must_queue
from forewarn.core.decision import Draft
from forewarn.core.lifecycle import Trigger
from forewarn.core.model import (
    Claim,
    EventType,
    Maintenance,
    MaintenanceState,
    PowerState,
    ScopeKind,
    Source,
    VirtualMachine,
)
from forewarn.core.notice import choose_notice, is_at_once_unwarned, minimum_notice
from forewarn.core.request import Request
from forewarn.core.tenancy import move_words, must_be_calm, tenants
from forewarn.core.value import replace
from forewarn.core.waves import split
from forewarn.errors import (
    BelowMinimumNotice,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    QuietHoursConflict,
)
from forewarn.util.duration import format_span

__all__ = ["plan"]


def plan(draft: Draft, request: Request) -> list[Maintenance]:
    """Carry out a request: make the maintenances, announce the first of them, queue those that must wait.

    Raises:
        NotFound: A host or VM does not exist.
        InvalidRequest: The request contradicts itself or a rule of its type.
        BelowMinimumNotice: Too little notice, or none for a VM that would be warned, and not forced.
        Conflict: A VM is gone, the same operation is pending for it, or a policy allows no more user operations.
        QuietHoursConflict: Every moment within its limits is in a tenant's quiet hours, and it is not forced.
        LimitExceeded: Too many user operations are pending (R88).
    """
    cause = CAUSES.get(request.cause)
    if cause is None:
        msg = f"unknown cause {request.cause!r}: expected one of {', '.join(CAUSES)}"
        raise InvalidRequest(msg, cause=request.cause)
    affected = _affected(draft, request)
    event_type = _check_type(request, cause)
    _refuse_now_for_warned(draft, request, cause, event_type, affected)
    _check_latest_start(draft, request, cause)
    if cause.name == HARDWARE_FAILURE:
        for name in request.hosts:
            host_failure.fail(draft, name, request.force_reason)
    request_id = draft.new_id("maintenance")
    made: list[Maintenance] = []
    named = list(dict.fromkeys(request.hosts))
    empty_hosts = [host for host in named if all(vm.host != host for vm in affected)]
    for vms in split(affected, cause, request.source or cause.source, by_host=bool(request.hosts)):
        maintenance_id = request_id if not made else draft.new_id("maintenance")
        hosts = [h for h in named if any(vm.host == h for vm in vms) or (not made and h in empty_hosts)]
        maintenance = _make(draft, request, cause, event_type, vms, hosts, (maintenance_id, request_id))
        _refuse_duplicate(draft, maintenance)
        _refuse_over_limit(draft, maintenance)
        _refuse_over_policy(draft, maintenance)
        draft.focus.add(maintenance.id)
        _refuse_now_in_quiet_hours(draft, request, maintenance)
        made.append(_enter(draft, maintenance))
        _refuse_early_latest_start(draft, made[-1])
    return made


def _affected(draft: Draft, request: Request) -> list[VirtualMachine]:
    if bool(request.hosts) == bool(request.vms):
        msg = "name hosts or VMs, and not both"
        raise InvalidRequest(msg)
    for host in request.hosts:
        if host not in draft.hosts:
            msg = f"host {host!r} does not exist: see 'forewarn host list'"
            raise NotFound(msg, host=host)
    for name in request.vms:
        if name not in draft.vms:
            msg = f"vm {name!r} does not exist: see 'forewarn vm list'"
            raise NotFound(msg, vm=name)
        if draft.vms[name].power_state is not PowerState.RUNNING:
            msg = f"vm {name!r} is {draft.vms[name].power_state}: nothing can happen to it"
            raise Conflict(msg, vm=name)
    if request.vms:
        affected = [draft.vms[name] for name in dict.fromkeys(request.vms)]
    else:
        order = {host: number for number, host in reversed(list(enumerate(request.hosts)))}
        there = [vm for vm in draft.vms.values() if vm.host in order and vm.power_state is PowerState.RUNNING]
        affected = sorted(there, key=lambda vm: (order[vm.host], vm.name))
    return [replace(vm, scope=None) if _is_alone(draft, vm) else vm for vm in affected]


def _is_alone(draft: Draft, vm: VirtualMachine) -> bool:
    """Return True if the scope of the VM is standalone, which means that it has none."""
    return vm.scope is not None and draft.scopes[vm.scope].kind is ScopeKind.STANDALONE


def _check_type(request: Request, cause: Cause) -> EventType:
    event_type = request.type or cause.type
    if event_type is not cause.type and event_type not in cause.types:
        msg = f"cause {cause.name} means {cause.type}, not {event_type}"
        raise InvalidRequest(msg, cause=cause.name, type=event_type.value)
    impact = request.impact or event_type
    if impact is not event_type and (event_type, impact) != (EventType.REBOOT, EventType.FREEZE):
        msg = f"a {event_type} cannot turn out as a {impact}: only a Reboot as a Freeze"
        raise InvalidRequest(msg, type=event_type.value, impact=impact.value)
    if request.duration_s is not None and request.duration_s < -1:
        msg = f"duration is {request.duration_s} s: expected seconds, 0 for no interruption, or -1 for unknown"
        raise InvalidRequest(msg, duration_s=request.duration_s)
    if cause.is_immediate and (request.notice is not None or request.not_before is not None):
        msg = f"a {cause.name} has happened already: it can have neither a notice nor a NotBefore"
        raise InvalidRequest(msg, cause=cause.name)
    return event_type


def _refuse_now_for_warned(
    draft: Draft, request: Request, cause: Cause, event_type: EventType, vms: list[VirtualMachine]
) -> None:
    """Refuse an immediate start if a VM can be warned: only VMs that cannot be warned may lose their notice (R70a)."""
    if not request.is_now or cause.is_immediate or request.force_reason is not None:
        return
    warned = [vm for vm in vms if is_warned(draft, cause.name, vm)]
    if warned:
        names = ", ".join(vm.name for vm in warned[:_NAMES_SHOWN]) + (" and more" if warned[_NAMES_SHOWN:] else "")
        least = minimum_notice(cause, event_type, warned)
        msg = (
            f"it cannot start now: {names} asked for events, and a {event_type} needs at least {format_span(least)}; "
            "leave out 'now', or force it and give a reason"
        )
        raise BelowMinimumNotice(msg, minimum_s=int(least.total_seconds()), vms=[vm.name for vm in warned[:1000]])


def _refuse_now_in_quiet_hours(draft: Draft, request: Request, maintenance: Maintenance) -> None:
    if not request.is_now or request.has_time:
        return
    found = must_be_calm(draft, maintenance, draft.now)
    if found.moved_from is not None:
        words = move_words(found.moved_from, found.moved_by)
        msg = f"it cannot start now: {words} to {found.at.isoformat()}; leave out 'now', or force it and give a reason"
        raise QuietHoursConflict(msg, scopes=list(found.moved_by))


def _make(  # noqa: PLR0913 - the parts of one new value
    draft: Draft,
    request: Request,
    cause: Cause,
    event_type: EventType,
    vms: list[VirtualMachine],
    hosts: list[str],
    ids: tuple[str, str],
) -> Maintenance:
    default_duration_s = cause.duration_s if event_type is cause.type else -1
    return Maintenance(
        id=ids[0],
        sequence=draft.new_sequence(),
        request_id=ids[1],
        cause=cause.name,
        type=event_type,
        impact=request.impact or event_type,
        source=request.source or cause.source,
        description=cause.description if request.description is None else request.description,
        duration_s=default_duration_s if request.duration_s is None else request.duration_s,
        state=MaintenanceState.QUEUED,
        created_at=draft.now,
        notice=choose_notice(draft, request, cause, event_type, vms),
        requested_not_before=request.not_before,
        force_reason=request.force_reason,
        latest_start=request.latest_start,
        is_at_once_unwarned=is_at_once_unwarned(draft, request, cause, vms),
        hosts=tuple(hosts),
        claims=tuple(Claim(vm=vm.name, host=vm.host, scope=vm.scope, fault_domain=vm.fault_domain) for vm in vms),
    )


def _enter(draft: Draft, maintenance: Maintenance) -> Maintenance:
    if must_queue(maintenance, draft.neighbours(maintenance)):
        # An unsatisfiable window is reported now, rather than when its turn comes.
        must_be_calm(draft, maintenance, draft.now + maintenance.notice)
        return draft.step(maintenance, Trigger.ENQUEUE, is_new=True)
    return announce(draft, maintenance, is_new=True)


def _refuse_duplicate(draft: Draft, maintenance: Maintenance) -> None:
    other = duplicate_of(maintenance, draft.neighbours(maintenance))
    if other is not None:
        msg = f"maintenance {other.id} ({other.cause}, {other.state}) is pending for vm {', '.join(maintenance.vms)}"
        raise Conflict(msg, id=other.id)


def _refuse_over_limit(draft: Draft, maintenance: Maintenance) -> None:
    """Refuse a user operation over the limit of pending ones. Spec: R88."""
    limit = draft.rules.user_operations_max
    if limit is None or maintenance.source is not Source.USER:
        return
    pending = [
        m
        for m in draft.neighbours(maintenance)
        if m.source is Source.USER and m.state in {MaintenanceState.QUEUED, MaintenanceState.SCHEDULED}
    ]
    if len(pending) >= limit:
        msg = f"{len(pending)} user operations are pending in this scope: the limit is {limit} (user_operations_max)"
        raise LimitExceeded(msg, limit=limit)


def _refuse_over_policy(draft: Draft, maintenance: Maintenance) -> None:
    """Refuse a user operation if a tenant's policy allows no more at once."""
    if maintenance.source is not Source.USER:
        return
    for name, policy in tenants(draft, maintenance).items():
        if policy.user_operations_max is None:
            continue
        there = [
            other
            for other in draft.neighbours(maintenance)
            if other.source is Source.USER and any(name in {claim.scope, claim.vm} for claim in other.claims)
        ]
        if len(there) >= policy.user_operations_max:
            going_on = ", ".join(
                f"{m.id} ({m.cause} of {', '.join(m.vms[:_NAMES_SHOWN])})" for m in there[:_NAMES_SHOWN]
            )
            msg = f"{name} allows {policy.user_operations_max} user operations at once; going on: {going_on}"
            raise Conflict(msg, limit=policy.user_operations_max, ids=[m.id for m in there])


_NAMES_SHOWN = 10


def _check_latest_start(draft: Draft, request: Request, cause: Cause) -> None:
    if request.latest_start is None:
        return
    if cause.is_fixed:
        msg = f"a {cause.name} cannot be put off: it takes no latest start"
        raise InvalidRequest(msg, cause=cause.name)
    if request.latest_start - draft.now > draft.rules.notice_max:
        msg = f"the latest start is further away than {draft.rules.notice_max.days} days (notice_max)"
        raise InvalidRequest(msg)


def _refuse_early_latest_start(draft: Draft, maintenance: Maintenance) -> None:
    latest_start = maintenance.latest_start
    not_before = maintenance.not_before or draft.now + maintenance.notice  # in the queue: a lower bound
    if latest_start is not None and latest_start < not_before:
        msg = f"the latest start, {latest_start.isoformat()}, is before NotBefore, which is {not_before.isoformat()}"
        raise InvalidRequest(msg)
