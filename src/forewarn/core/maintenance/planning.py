"""Planning: from a request to maintenances and their events.

One request makes one maintenance, or several if VMs must not be hit together: one for each fault domain of a scope, the
later ones queued (R61), more if a scope limits how many of its VMs may be unavailable, and one for each VM if the
operation concerns a single VM.
"""

from __future__ import annotations

from forewarn.core.causes import CAUSES, HARDWARE_FAILURE, Cause
from forewarn.core.fast_replace import replace
from forewarn.core.hints import SEE_HOSTS, SEE_VMS
from forewarn.core.maintenance import host_failure
from forewarn.core.maintenance.announcement import announce_maintenance, is_warned
from forewarn.core.maintenance.conflicts import find_duplicate, must_queue
from forewarn.core.maintenance.decision import Draft
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.notice import choose_notice, get_minimum_notice, is_at_once_unwarned
from forewarn.core.maintenance.start_groups import split_into_groups
from forewarn.core.maintenance.tenancy import (
    describe_move,
    get_tenant_key,
    get_tenant_name,
    get_tenant_policies,
    get_unavailable_max,
    require_allowed_start,
)
from forewarn.core.model import (
    Claim,
    EventSource,
    EventType,
    Maintenance,
    MaintenanceState,
    PowerState,
    ScopeKind,
    VirtualMachine,
)
from forewarn.errors import BelowMinimumNotice, Conflict, InvalidRequest, LimitExceeded, NotFound, QuietHoursConflict
from forewarn.util.duration import format_duration

__all__ = ["plan_maintenance"]


def plan_maintenance(draft: Draft, request: MaintenanceRequest) -> list[Maintenance]:
    """Carry out a request: make the maintenances, announce the first of them, queue those that must wait.

    Raises:
        NotFound: A host or VM does not exist.
        InvalidRequest: The request contradicts itself or a rule of its type, or evicts VMs that are not Spot VMs.
        BelowMinimumNotice: Too little notice, or none for a VM that would be warned, and not forced.
        Conflict: A VM is gone, the same operation is pending for it, or a policy allows no more user operations.
        QuietHoursConflict: Every moment within its limits is in a tenant's quiet hours, and it is not forced.
        LimitExceeded: Too many user operations are pending (R88).
    """
    cause = CAUSES.get(request.cause)
    if cause is None:
        msg = f"unknown cause {request.cause!r}: expected one of {', '.join(CAUSES)}"
        raise InvalidRequest(msg, cause=request.cause)
    affected = _find_affected_vms(draft, request)
    event_type = _check_type(request, cause)
    _refuse_eviction(draft, event_type, affected)
    _refuse_now_for_warned(draft, request, cause, event_type, affected)
    _check_latest_start(draft, request, cause)
    if cause.name == HARDWARE_FAILURE:
        for name in request.hosts:
            # Hosts without running VMs are marked as well, so this does not depend on the maintenances made below.
            host_failure.mark_host_failed(draft, name, request.force_reason)
    request_id = draft.new_id("maintenance")
    made: list[Maintenance] = []
    named = list(dict.fromkeys(request.hosts))
    empty_hosts = set(named) - {vm.host for vm in affected}
    limits = {name: most for name, scope in draft.scopes.items() if (most := scope.policy.unavailable_max) is not None}
    source = request.source or cause.source
    for vms in split_into_groups(affected, cause, source, by_host=bool(request.hosts), unavailable_max=limits):
        # The first maintenance shares the id of the request, so that a caller needs only one id in the usual case.
        maintenance_id = request_id if not made else draft.new_id("maintenance")
        # A host without running VMs still needs its maintenance, so the first one covers it.
        used = {vm.host for vm in vms} | (empty_hosts if not made else set())
        hosts = [host for host in named if host in used]
        maintenance = _make_maintenance(draft, request, cause, event_type, vms, hosts, (maintenance_id, request_id))
        _refuse_duplicate(draft, maintenance)
        _refuse_over_limit(draft, maintenance)
        _refuse_over_policy(draft, maintenance)
        # Settling may then start it in the same decision, if it need not wait.
        draft.add_to_focus(maintenance)
        _refuse_now_in_quiet_hours(draft, request, maintenance)
        made.append(_announce_or_queue(draft, maintenance, request.recorded_reason))
        # NotBefore is known only now. On an error the caller discards the draft, so nothing remains of it.
        _refuse_early_latest_start(draft, made[-1])
    return made


def _find_affected_vms(draft: Draft, request: MaintenanceRequest) -> list[VirtualMachine]:
    if bool(request.hosts) == bool(request.vms):
        raise InvalidRequest("name either hosts or VMs, not both")
    for host in request.hosts:
        if host not in draft.hosts:
            raise NotFound(f"host {host!r} does not exist", hint=SEE_HOSTS, host=host)
    for name in request.vms:
        if name not in draft.vms:
            raise NotFound(f"vm {name!r} does not exist", hint=SEE_VMS, vm=name)
        if draft.vms[name].power_state is not PowerState.RUNNING:
            raise Conflict(f"vm {name!r} is {draft.vms[name].power_state}: only a running VM can be affected", vm=name)
    if request.vms:
        affected = [draft.vms[name] for name in dict.fromkeys(request.vms)]
    else:
        # Reversed, so that a host named twice keeps its first position.
        order = {host: number for number, host in reversed(list(enumerate(request.hosts)))}
        running = [vm for vm in draft.vms.values() if vm.host in order and vm.power_state is PowerState.RUNNING]
        affected = sorted(running, key=lambda vm: (order[vm.host], vm.name))
    # The VMs of a standalone scope see nothing of each other, so no rule about scopes may apply to them.
    return [replace(vm, scope=None) if _is_standalone(draft, vm) else vm for vm in affected]


def _is_standalone(draft: Draft, vm: VirtualMachine) -> bool:
    """Return True if the scope of the VM is standalone, which means that it has none."""
    return vm.scope is not None and draft.scopes[vm.scope].kind is ScopeKind.STANDALONE


def _check_type(request: MaintenanceRequest, cause: Cause) -> EventType:
    event_type = request.type or cause.type
    if event_type is not cause.type and event_type not in cause.types:
        msg = f"cause {cause.name} means {cause.type}, not {event_type}"
        raise InvalidRequest(msg, cause=cause.name, type=event_type.value)
    impact = request.impact or event_type
    if impact is not event_type and (event_type, impact) != (EventType.REBOOT, EventType.FREEZE):
        msg = f"a {event_type} cannot have the impact {impact}: only a Reboot can have another one, Freeze"
        raise InvalidRequest(msg, type=event_type.value, impact=impact.value)
    if request.duration_s is not None and request.duration_s < -1:
        msg = f"invalid duration of {request.duration_s} s: expected 0 or more, or -1 if unknown"
        raise InvalidRequest(msg, duration_s=request.duration_s)
    if cause.is_immediate and request.has_time:
        msg = f"a {cause.name} has already happened: it can have neither a notice nor a NotBefore"
        raise InvalidRequest(msg, cause=cause.name)
    return event_type


def _refuse_eviction(draft: Draft, event_type: EventType, vms: list[VirtualMachine]) -> None:
    """Refuse to evict VMs that are not Spot VMs (R90)."""
    if event_type is not EventType.PREEMPT:
        return
    others = [vm for vm in vms if not vm.is_spot and (vm.priority or not draft.rules.assumes_spot)]
    if others:
        names = _list_names(others)
        msg = (
            f"only a Spot VM can be evicted, and {names} {'are' if len(others) > 1 else 'is'} not declared with "
            "'priority: Spot' in the inventory"
        )
        raise InvalidRequest(msg, vms=[vm.name for vm in others[:_DETAILS_MAX]])


def _list_names(vms: list[VirtualMachine]) -> str:
    return ", ".join(vm.name for vm in vms[:_NAMES_SHOWN]) + (" and more" if vms[_NAMES_SHOWN:] else "")


def _refuse_now_for_warned(
    draft: Draft, request: MaintenanceRequest, cause: Cause, event_type: EventType, vms: list[VirtualMachine]
) -> None:
    """Refuse an immediate start if a VM can be warned: only VMs that cannot be warned may lose their notice (R70a)."""
    if not request.is_now or cause.is_immediate or request.force_reason is not None:
        return
    warned = [vm for vm in vms if is_warned(draft, cause.name, vm)]
    if warned:
        least = get_minimum_notice(cause, event_type, warned)
        msg = (
            f"cannot start now: {_list_names(warned)} must be warned, and a {event_type} needs at least "
            f"{format_duration(least)}; leave out 'now', or force it and give a reason"
        )
        raise BelowMinimumNotice(
            msg, minimum_s=int(least.total_seconds()), vms=[vm.name for vm in warned[:_DETAILS_MAX]]
        )


def _refuse_now_in_quiet_hours(draft: Draft, request: MaintenanceRequest, maintenance: Maintenance) -> None:
    if not request.is_now or request.has_time:
        return
    found = require_allowed_start(draft, maintenance, draft.now)
    if found.moved_from is not None:
        moved = describe_move(found.moved_from, found.moved_by)
        msg = f"cannot start before {found.at.isoformat()}: {moved}; leave out 'now', or force it and give a reason"
        raise QuietHoursConflict(msg, scopes=list(found.moved_by))


def _make_maintenance(  # noqa: PLR0913 - the parts of one new value
    draft: Draft,
    request: MaintenanceRequest,
    cause: Cause,
    event_type: EventType,
    vms: list[VirtualMachine],
    hosts: list[str],
    ids: tuple[str, str],
) -> Maintenance:
    # The default belongs to the cause's own type; for any other type the duration is unknown.
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


def _announce_or_queue(draft: Draft, maintenance: Maintenance, reason: str | None) -> Maintenance:
    limits = get_unavailable_max(maintenance, draft.scopes)
    if must_queue(maintenance, draft.iter_neighbours(maintenance), limits):
        # An unsatisfiable window is reported now, rather than when its turn comes.
        require_allowed_start(draft, maintenance, draft.now + maintenance.notice)
        return draft.apply_trigger(maintenance, Trigger.ENQUEUE, is_new=True, reason=reason)
    return announce_maintenance(draft, maintenance, is_new=True, reason=reason)


def _refuse_duplicate(draft: Draft, maintenance: Maintenance) -> None:
    other = find_duplicate(maintenance, draft.find_on_same_vms(maintenance))
    if other is not None:
        msg = f"maintenance {other.id} ({other.cause}, {other.state}) is active for vm {', '.join(maintenance.vms)}"
        raise Conflict(msg, id=other.id)


def _refuse_over_limit(draft: Draft, maintenance: Maintenance) -> None:
    """Refuse a user operation over the limit of pending ones. Spec: R88."""
    limit = draft.rules.user_operations_max
    if limit is None or maintenance.source is not EventSource.USER:
        return
    # R88 limits the operations that are scheduled at once, so one that has started no longer counts.
    pending = [
        m
        for m in draft.find_neighbours(maintenance)
        if m.source is EventSource.USER and m.state in {MaintenanceState.QUEUED, MaintenanceState.SCHEDULED}
    ]
    if len(pending) >= limit:
        msg = f"{len(pending)} user operations are pending in this scope: the limit is {limit} (user_operations_max)"
        raise LimitExceeded(msg, limit=limit)


def _refuse_over_policy(draft: Draft, maintenance: Maintenance) -> None:
    """Refuse a user operation if a tenant's policy allows no more at once."""
    if maintenance.source is not EventSource.USER:
        return
    for key, policy in get_tenant_policies(draft, maintenance).items():
        if policy.user_operations_max is None:
            continue
        active = [
            other
            for other in draft.find_neighbours(maintenance)
            if other.source is EventSource.USER
            and any(get_tenant_key(claim.vm, claim.scope) == key for claim in other.claims)
        ]
        if len(active) >= policy.user_operations_max:
            listed = ", ".join(
                f"{m.id} ({m.cause} of {', '.join(m.vms[:_NAMES_SHOWN])})" for m in active[:_NAMES_SHOWN]
            )
            name = get_tenant_name(key)
            msg = f"{name} allows {policy.user_operations_max} user operations at a time; active: {listed}"
            raise Conflict(msg, limit=policy.user_operations_max, ids=[m.id for m in active])


_NAMES_SHOWN = 10
_DETAILS_MAX = 1000


def _check_latest_start(draft: Draft, request: MaintenanceRequest, cause: Cause) -> None:
    if request.latest_start is None:
        return
    if cause.is_fixed:
        raise InvalidRequest(f"a {cause.name} cannot be postponed: leave out the latest start", cause=cause.name)
    if request.latest_start - draft.now > draft.rules.notice_max:
        raise InvalidRequest(f"the latest start is more than {draft.rules.notice_max.days} days away (notice_max)")


def _refuse_early_latest_start(draft: Draft, maintenance: Maintenance) -> None:
    latest_start = maintenance.latest_start
    not_before = maintenance.not_before or draft.now + maintenance.notice  # in the queue: a lower bound
    if latest_start is not None and latest_start < not_before:
        msg = f"the latest start, {latest_start.isoformat()}, is before NotBefore, {not_before.isoformat()}"
        raise InvalidRequest(msg)
