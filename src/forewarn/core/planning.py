"""From a request to maintenances and their events.

One request makes one maintenance, or several where VMs must not be hit together: one for each fault domain of a scope, the later
ones queued (R61), and one for each VM where the operation concerns a single VM.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.announcement import announce, makes_event
from forewarn.core.causes import CAUSES, MINIMUM_NOTICE, TERMINATE_NOTICE_MAX, Cause, Profile
from forewarn.core.conflicts import duplicate_of, must_queue
from forewarn.core.decision import Draft
from forewarn.core.lifecycle import Trigger
from forewarn.core.model import (
    Claim,
    EventType,
    Maintenance,
    MaintenanceState,
    PowerState,
    Source,
    VirtualMachine,
)
from forewarn.errors import BelowMinimumNotice, Conflict, InvalidRequest, LimitExceeded, NotFound

__all__ = ["Request", "minimum_notice", "plan", "split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks for. None means the default of the cause (1.12).

    Attributes:
        cause: Name of a row of `CAUSES`.
        notice: From announcement to NotBefore; not together with `not_before`.
        not_before: A moment for NotBefore.
        impact: What will really happen, where a Reboot turns out as a Freeze (R81).
        hosts: Every running VM of these hosts is meant.
        vms: These VMs are meant.
        force_reason: Why the minimum notice may be undercut.
    """

    cause: str
    type: EventType | None = None
    source: Source | None = None
    description: str | None = None
    duration_s: int | None = None
    impact: EventType | None = None
    notice: timedelta | None = None
    not_before: datetime | None = None
    hosts: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    force_reason: str | None = None


def plan(draft: Draft, request: Request) -> list[Maintenance]:
    """Carry out a request: make the maintenances, announce the first of them, queue what must wait.

    Raises:
        NotFound: A host or VM does not exist.
        InvalidRequest: The request contradicts itself or a rule of its type.
        BelowMinimumNotice: Too little notice, and not forced.
        Conflict: A VM is gone, or the same operation is pending for it.
        LimitExceeded: Too many user operations are pending (R88).
    """
    cause = CAUSES.get(request.cause)
    if cause is None:
        msg = f"unknown cause {request.cause!r}: expected one of {', '.join(CAUSES)}"
        raise InvalidRequest(msg, cause=request.cause)
    affected = _affected(draft, request)
    event_type = _check_type(request, cause)
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
        draft.focus.add(maintenance.id)
        made.append(_enter(draft, maintenance))
    return made


def split(
    vms: list[VirtualMachine], cause: Cause, source: Source, *, by_host: bool
) -> list[list[VirtualMachine]]:
    """Divide VMs into the groups that each start together.

    A host's VMs stay together, unless they lie in different fault domains of one scope. Groups are filled in the order given.

    Spec: R61
    """
    if not vms or not (cause.is_per_vm or cause.is_routine):
        return [vms]
    if cause.is_per_vm:
        return [[vm] for vm in vms]
    if source is not Source.PLATFORM:
        return [vms]
    units: dict[object, list[VirtualMachine]] = {}
    for vm in vms:
        units.setdefault(vm.host if by_host else vm.name, []).append(vm)
    waves: list[list[VirtualMachine]] = []
    for unit in units.values():
        pieces = [unit] if _is_together(unit) else _by_fault_domain(unit)
        for piece in pieces:
            home = next((wave for wave in waves if _is_together([*wave, *piece])), None)
            if home is None:
                waves.append(list(piece))
            else:
                home.extend(piece)
    return waves


def minimum_notice(cause: Cause, event_type: EventType, vms: list[VirtualMachine]) -> timedelta:
    """The least notice for that operation on those VMs (R71, R91)."""
    if cause.profile == Profile.TERMINATE:
        timeouts = [vm.terminate_notification.not_before_timeout for vm in vms if vm.terminate_notification.enable]
        return max(timeouts, default=MINIMUM_NOTICE[event_type])
    return MINIMUM_NOTICE[event_type]


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
        return [draft.vms[name] for name in dict.fromkeys(request.vms)]
    on_hosts = [vm for vm in draft.vms.values() if vm.host in request.hosts and vm.power_state is PowerState.RUNNING]
    return sorted(on_hosts, key=lambda vm: (request.hosts.index(vm.host), vm.name))


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
    return event_type


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
        notice=_notice(draft, request, cause, event_type, vms),
        requested_not_before=request.not_before,
        force_reason=request.force_reason,
        hosts=tuple(hosts),
        claims=tuple(
            Claim(vm=vm.name, host=vm.host, scope=vm.scope, fault_domain=vm.fault_domain) for vm in vms
        ),
    )


def _notice(
    draft: Draft, request: Request, cause: Cause, event_type: EventType, vms: list[VirtualMachine]
) -> timedelta:
    """The notice to give, checked against what is promised and what is allowed."""
    least = minimum_notice(cause, event_type, vms)
    if request.notice is not None and request.not_before is not None:
        msg = "give a notice or a NotBefore, and not both"
        raise InvalidRequest(msg)
    if request.notice is not None:
        notice = request.notice
    elif request.not_before is not None:
        notice = request.not_before - draft.now
    else:
        return max(least, cause.notice or least)
    if notice > draft.rules.notice_max:
        msg = f"notice of {_words(notice)} is more than the limit of {_words(draft.rules.notice_max)} (notice_max)"
        raise InvalidRequest(msg)
    if cause.profile == Profile.TERMINATE and notice > TERMINATE_NOTICE_MAX:
        msg = f"notice of {_words(notice)} is more than the {_words(TERMINATE_NOTICE_MAX)} that a Terminate may have"
        raise InvalidRequest(msg)
    is_announced = any(makes_event(cause.name, vm, draft.scopes.get(vm.scope or "")) for vm in vms)
    if notice < least and is_announced and request.force_reason is None:
        given = f"NotBefore is {_words(-notice)} in the past" if notice < timedelta(0) else f"notice of {_words(notice)}"
        msg = f"{given}: a {event_type} needs at least {_words(least)}; to undercut it, force it and give a reason"
        raise BelowMinimumNotice(msg, minimum_s=int(least.total_seconds()))
    if request.not_before is not None:
        # The announcement keeps the moment itself. Whoever had to queue past it gets no more than the least notice.
        notice = min(notice, least)
    return max(notice, least if request.force_reason is None else timedelta(0))


def _enter(draft: Draft, maintenance: Maintenance) -> Maintenance:
    if must_queue(maintenance, draft.neighbours(maintenance)):
        return draft.step(maintenance, Trigger.ENQUEUE, is_new=True)
    return announce(draft, maintenance, is_new=True)


def _refuse_duplicate(draft: Draft, maintenance: Maintenance) -> None:
    other = duplicate_of(maintenance, draft.neighbours(maintenance))
    if other is not None:
        msg = f"maintenance {other.id} ({other.cause}, {other.state}) is pending for vm {', '.join(maintenance.vms)}"
        raise Conflict(msg, id=other.id)


def _refuse_over_limit(draft: Draft, maintenance: Maintenance) -> None:
    """Spec: R88."""
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


def _is_together(vms: list[VirtualMachine]) -> bool:
    """Whether no two of them lie in different fault domains of one scope."""
    domain_of: dict[str, int] = {}
    return all(vm.scope is None or domain_of.setdefault(vm.scope, vm.fault_domain) == vm.fault_domain for vm in vms)


def _by_fault_domain(vms: list[VirtualMachine]) -> list[list[VirtualMachine]]:
    pieces: dict[int, list[VirtualMachine]] = {}
    for vm in vms:
        pieces.setdefault(vm.fault_domain if vm.scope is not None else 0, []).append(vm)
    return [pieces[domain] for domain in sorted(pieces)]


def _words(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
