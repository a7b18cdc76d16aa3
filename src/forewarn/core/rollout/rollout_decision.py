"""Decisions of a rollout: `observe_rollout` records what has happened, `decide_next_steps` returns what to do.

Both are pure. The driver of a rollout does this, in one transaction if possible, whenever something has happened to a
maintenance or `WaitForChange.until` has come::

    rollout = observe_rollout(rollout, facts, now)
    for step in decide_next_steps(rollout, inventory, facts, now):
        match step:
            case ScheduleHost():  # request it, then
                rollout = record_scheduled(rollout, step.host, ids, now)  # or record_refused(..., reason, now)
            case CancelMaintenance() | CheckHealth() | WaitForChange():  # changes nothing of the rollout
                ...
            case _:
                rollout = apply_own_step(rollout, step, now)

and again until the last step is a `WaitForChange`, or there is none because the rollout has not begun or is over. After
a refusal the remaining steps are not carried out: they were decided without that failure. A `CancelMaintenance` that
was carried out is something that has happened to a maintenance. The same facts give the same steps; so it may be called
too often, and a restart loses nothing.

Invariants, whatever happens outside:

- at most `hosts_at_once` hosts are begun to be in flight together;
- no host is begun while one in flight, or another maintenance, holds a VM of it, or another domain of one of its
  scopes, if the specification says so;
- a canary is begun when nothing is in flight, and nothing is begun beside it;
- a batch is begun when all hosts of those before it are over, the pause is over, and the health check after the last of
  them has passed;
- nothing is begun unless the rollout is running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta

from forewarn.core.fast_replace import replace
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.core.rollout.rollout import Rollout, RolloutHost, RolloutHostState, RolloutState
from forewarn.core.rollout.rollout_domains import InventorySurvey, Occupancy, blocks_hosts
from forewarn.core.rollout.rollout_lifecycle import (
    HostTrigger,
    RolloutTrigger,
    apply_host_trigger,
    apply_rollout_trigger,
)
from forewarn.core.rollout.rollout_plan import pause_after
from forewarn.core.rollout.rollout_step_types import (
    CancelMaintenance,
    CheckHealth,
    FinishRollout,
    OwnStep,
    PauseRollout,
    RolloutFacts,
    ScheduleHost,
    SkipHost,
    Step,
    WaitForChange,
)
from forewarn.util.duration import format_duration

__all__ = [
    "apply_own_step",
    "decide_next_steps",
    "list_candidates",
    "observe_rollout",
    "record_refused",
    "record_scheduled",
]

_HAS_FAILED = "it has failed and is not marked as recovered"
_NOT_STARTED = frozenset({MaintenanceState.QUEUED, MaintenanceState.SCHEDULED})


# Recording what has happened


def observe_rollout(rollout: Rollout, facts: RolloutFacts, now: datetime) -> Rollout:
    """Update the open hosts from their maintenances, and record the result of the requested health check."""
    if rollout.is_ended:
        return rollout
    updated = {host.name: _observe_host(rollout, host, facts, now) for host in rollout.open_hosts}
    # An unchanged host is the same object, so a rollout without changes is returned as it is.
    if any(updated[host.name] is not host for host in rollout.open_hosts):
        rollout = replace(rollout, hosts=tuple(updated.get(host.name, host) for host in rollout.hosts))
    health = facts.health
    # Only the result of the next check counts; that of an earlier one may be reported again.
    if health is not None and health.number == rollout.checks + 1:
        rollout = replace(rollout, checks=health.number, health=health)
    return rollout


def _observe_host(rollout: Rollout, host: RolloutHost, facts: RolloutFacts, now: datetime) -> RolloutHost:
    known = [facts.maintenances[i] for i in host.maintenance_ids if i in facts.maintenances]
    found = [m for m in known if m is not None]
    # A maintenance that the facts leave out counts as unchanged, so the host stays open.
    is_open = len(known) < len(host.maintenance_ids) or any(m.is_active for m in found)
    if host.state is RolloutHostState.FAILED:
        # A failed host stays failed, and only the end of its maintenances is still recorded.
        return host if is_open else replace(host, is_open=False)
    # Failure comes before the end, because other maintenances of the host may still be active.
    reason = _find_failure_reason(host, facts)
    if reason is not None:
        return apply_host_trigger(host, HostTrigger.FAIL, now, is_open=is_open, reason=reason)
    if not is_open:
        return _finish_host(host, found, now)
    deadline_at = _get_deadline(rollout, host, facts)
    if rollout.spec.deadline is not None and deadline_at is not None and deadline_at <= now:
        failure = f"deadline of {format_duration(rollout.spec.deadline)} exceeded"
        return apply_host_trigger(host, HostTrigger.FAIL, now, is_open=True, reason=failure)
    if host.state is RolloutHostState.WAITING and any(m.started_at is not None for m in found):
        return apply_host_trigger(host, HostTrigger.START, now, is_open=True)
    return host


def _get_deadline(rollout: Rollout, host: RolloutHost, facts: RolloutFacts) -> datetime | None:
    """Return the time at which a host that is not over has failed; None if never.

    A delay by quiet hours, or by an extension for a tenant, is not the host's fault: the deadline moves with it.
    """
    if rollout.spec.deadline is None or host.scheduled_at is None:
        return None
    found = (facts.maintenances.get(i) for i in host.maintenance_ids)
    put_off = [
        m.not_before - (m.announced_at + m.notice)
        for m in found
        if m is not None and m.not_before is not None and m.announced_at is not None
    ]
    return host.scheduled_at + rollout.spec.deadline + max([timedelta(0), *put_off])


def _find_failure_reason(host: RolloutHost, facts: RolloutFacts) -> str | None:
    for maintenance_id in host.maintenance_ids:
        if maintenance_id not in facts.maintenances:
            continue
        maintenance = facts.maintenances[maintenance_id]
        if maintenance is None:
            return f"maintenance {maintenance_id} no longer exists"
        if maintenance.state is MaintenanceState.FAILED:
            return f"maintenance {maintenance_id} failed"
    return None


def _finish_host(host: RolloutHost, maintenances: list[Maintenance], now: datetime) -> RolloutHost:
    ended_at = max((m.ended_at for m in maintenances if m.ended_at is not None), default=now)
    # A host with one canceled maintenance is only partly maintained, so it does not count as done.
    canceled = next((m for m in maintenances if m.state is MaintenanceState.CANCELED), None)
    if canceled is not None:
        return apply_host_trigger(host, HostTrigger.SKIP, ended_at, reason=f"maintenance {canceled.id} was canceled")
    return apply_host_trigger(host, HostTrigger.FINISH, ended_at)


# Deciding what to do


def decide_next_steps(
    rollout: Rollout,
    inventory: Inventory,
    facts: RolloutFacts,
    now: datetime,
    candidates: Collection[str] | None = None,
) -> list[Step]:
    """Return the steps to take now, in order.

    `inventory` is what the hosts are compared by, see `list_candidates`. `candidates` are those of its hosts that may
    begin, None for all; the others are left for another decision.

    Returns:
        No steps while the rollout is planned or when it has ended. Otherwise the last one is a `WaitForChange` exactly
        when no step changes the rollout.
    """
    # Repeating this is harmless, and a caller that has not recorded the facts yet gets the same steps.
    rollout = observe_rollout(rollout, facts, now)
    if rollout.state is RolloutState.PLANNED or rollout.is_ended:
        return []
    steps: list[Step] = list(_make_cancellations(rollout, facts))
    if rollout.current_batch is None and not rollout.open_hosts:
        return [*steps, FinishRollout(trigger=_choose_end_trigger(rollout))]
    if rollout.state is not RolloutState.RUNNING:
        return [*steps, _make_wait(rollout, facts, rollout.reason or f"the rollout is {rollout.state}")]
    reason = _find_pause_reason(rollout)
    # When every host is over, a pause would only keep the rollout from ending.
    if reason is not None and rollout.current_batch is not None:
        return [*steps, PauseRollout(reason=reason)]
    return [*steps, *_begin_hosts(rollout, inventory, facts, now, candidates)]


def list_candidates(rollout: Rollout, facts: RolloutFacts, now: datetime) -> list[str]:
    """Return the hosts of which `decide_next_steps` may begin some now, in order; empty if none may begin.

    A decision about some of them needs, of the inventory, these and the open hosts with their VMs and scopes, and the
    VMs of the maintenances that hold any of them; of `facts.others`, these maintenances. Nothing else matters.
    """
    rollout = observe_rollout(rollout, facts, now)
    if rollout.state is not RolloutState.RUNNING or _find_pause_reason(rollout) is not None:
        return []
    pending = _list_pending(rollout)
    if not pending or _count_free_slots(rollout) <= 0 or _check_batch_gate(rollout, facts, now) is not None:
        return []
    return pending


def _list_pending(rollout: Rollout) -> list[str]:
    """Return the hosts of the current batch that have not begun, in order."""
    return [
        host.name
        for host in rollout.hosts
        if host.batch == rollout.current_batch and host.state is RolloutHostState.PENDING
    ]


def _make_cancellations(rollout: Rollout, facts: RolloutFacts) -> Iterator[CancelMaintenance]:
    """Yield cancellations of what has not started, for failed hosts and aborted rollouts."""
    is_aborting = rollout.state is RolloutState.ABORTING
    for host in rollout.open_hosts:
        if not (is_aborting or host.state is RolloutHostState.FAILED):
            continue
        reason = host.reason or rollout.reason or "the rollout was aborted"
        for maintenance_id in host.maintenance_ids:
            maintenance = facts.maintenances.get(maintenance_id)
            # What has started runs to its end; canceling it would be refused.
            if maintenance is not None and maintenance.state in _NOT_STARTED:
                yield CancelMaintenance(host=host.name, maintenance_id=maintenance_id, reason=reason)


def _choose_end_trigger(rollout: Rollout) -> RolloutTrigger:
    if rollout.state is RolloutState.ABORTING:
        return RolloutTrigger.END
    return RolloutTrigger.FAIL if rollout.failure_count else RolloutTrigger.COMPLETE


def _find_pause_reason(rollout: Rollout) -> str | None:
    """Return the reason to pause: a failed canary, too many failures, an unhealthy fleet; None if there is none."""
    count = rollout.failure_count - rollout.failures_accepted
    ordinary = [host for host in rollout.hosts if host.batch >= rollout.canary_count]
    # A failed canary pauses the rollout whatever the limit is; after the canaries, only the limit counts.
    if count > 0 and all(host.state is RolloutHostState.PENDING for host in ordinary):
        failed = [host for host in rollout.hosts if host.state is RolloutHostState.FAILED]
        return f"canary {failed[-1].name} failed: {failed[-1].reason}"
    if count >= rollout.spec.failures_max:
        names = [host.name for host in rollout.hosts if host.state is RolloutHostState.FAILED]
        counted = f"{count} hosts" if count > 1 else "1 host"
        return f"{counted} failed, most recently {names[-1]} (failures_max is {rollout.spec.failures_max})"
    health = rollout.health
    if health is not None and not health.is_healthy:
        return f"the health check after batch {health.batch + 1} failed: {health.detail or 'no output'}"
    return None


def _begin_hosts(
    rollout: Rollout, inventory: Inventory, facts: RolloutFacts, now: datetime, candidates: Collection[str] | None
) -> list[Step]:
    pending = _list_pending(rollout)
    if candidates is not None:
        pending = [host for host in pending if host in candidates]
    gate = _check_batch_gate(rollout, facts, now) if pending else None
    if gate is not None:
        return gate
    free = _count_free_slots(rollout)
    if not pending or free <= 0:
        return [_make_wait(rollout, facts, _describe_in_flight(rollout, facts))]
    survey, occupied = _survey_in_flight(rollout, inventory, facts, pending)
    failed = {host.name for host in inventory.hosts if host.failed_at is not None}
    begun: list[Step] = []
    blocked = ""
    for host in pending:
        if free == 0:
            break
        reason = _HAS_FAILED if host in failed else _find_skip_reason(host, survey)
        obstacle = occupied.find_obstacle(host) if reason is None else None
        if reason is not None:
            begun.append(SkipHost(host=host, reason=reason))
        elif obstacle is not None:
            # A blocked host does not block those after it, and the first reason is reported if none can begin.
            blocked = blocked or f"host {host} waits: {obstacle}"
        else:
            begun.append(_make_schedule_step(rollout, host))
            occupied.add_host(host)
            free -= 1
    return begun or [_make_wait(rollout, facts, blocked)]


def _describe_in_flight(rollout: Rollout, facts: RolloutFacts) -> str:
    """Describe the hosts in flight, and those delayed by quiet hours."""
    count = len(rollout.open_hosts)
    parts = [f"{count} hosts are in flight" if count > 1 else "1 host is in flight"]
    for host in rollout.open_hosts:
        for m in (facts.maintenances.get(i) for i in host.maintenance_ids):
            if m is None or m.state not in _NOT_STARTED or m.moved_from is None or m.not_before is None:
                continue
            tenant_names = ", ".join(m.moved_by[:_NAMES_SHOWN])
            at = m.not_before.replace(microsecond=0).isoformat().replace("+00:00", "Z")
            parts.append(f"{host.name} was moved to {at} by quiet hours of {tenant_names}")
    return "; ".join(parts[: 1 + _NAMES_SHOWN])


_NAMES_SHOWN = 5


def _check_batch_gate(rollout: Rollout, facts: RolloutFacts, now: datetime) -> list[Step] | None:
    """Return the steps required before the current batch may begin; None if it may."""
    batch = rollout.current_batch
    if batch is None or batch == 0:
        return None
    before = [host for host in rollout.hosts if host.batch == batch - 1]
    # Never empty, because a batch becomes the current one when all hosts before it are over.
    ended_at = max(host.ended_at for host in before if host.ended_at is not None)
    begins_at = ended_at + pause_after(rollout.spec, batch - 1)
    # The pause comes before the health check, because damage may take a while to show.
    if now < begins_at:
        return [_make_wait(rollout, facts, f"pause after batch {batch} of {rollout.batch_count}", until=begins_at)]
    check = rollout.spec.health
    if check is None or (rollout.health is not None and rollout.health.batch == batch - 1):
        return None
    number = rollout.checks + 1
    return [
        CheckHealth(number=number, batch=batch - 1, command=check.command, timeout=check.timeout),
        _make_wait(rollout, facts, f"health check after batch {batch} of {rollout.batch_count}"),
    ]


def _count_free_slots(rollout: Rollout) -> int:
    """Return how many more hosts may be begun. A canary is alone."""
    in_flight = rollout.open_hosts
    if any(host.batch < rollout.canary_count for host in in_flight):
        return 0
    is_canary = rollout.current_batch is not None and rollout.current_batch < rollout.canary_count
    return (1 if is_canary else rollout.spec.hosts_at_once) - len(in_flight)


def _survey_in_flight(
    rollout: Rollout, inventory: Inventory, facts: RolloutFacts, pending: list[str]
) -> tuple[InventorySurvey, Occupancy]:
    """Return what is in flight, by the hosts on which VMs run now."""
    in_flight = [host.name for host in rollout.open_hosts]
    own = [m for i in rollout.watched_maintenance_ids if (m := facts.maintenances.get(i)) is not None and m.is_active]
    active = [*own, *(m for m in facts.others if blocks_hosts(m))]
    vms = {vm for maintenance in active for vm in maintenance.vms}
    survey = InventorySurvey(inventory, rollout.spec, [*in_flight, *pending], vms)
    occupied = Occupancy(survey)
    for host in in_flight:
        occupied.add_host(host)
    for maintenance in active:
        occupied.add_maintenance(maintenance)
    return survey, occupied


def _find_skip_reason(host: str, survey: InventorySurvey) -> str | None:
    """Return the reason to skip a host, because the inventory has changed since the plan; None if there is none."""
    if host not in survey.hosts:
        return "it is no longer in the inventory"
    split = survey.get_footprint(host).find_split_scope()
    if split is None:
        return None
    kind, scope, domains = split
    return f"it now has VMs in {kind}s {' and '.join(str(domain) for domain in domains)} of scope {scope}"


def _make_schedule_step(rollout: Rollout, host: str) -> ScheduleHost:
    spec = rollout.spec
    request = MaintenanceRequest(
        cause=spec.cause,
        type=spec.type,
        description=spec.description,
        duration_s=spec.duration_s,
        notice=spec.notice,
        hosts=(host,),
    )
    return ScheduleHost(host=host, request=request)


def _make_wait(rollout: Rollout, facts: RolloutFacts, reason: str, *, until: datetime | None = None) -> WaitForChange:
    """Wait until that time, or until the first host in flight is overdue."""
    moments = [until] if until is not None else []
    # Deadlines also count while the rollout is paused, because the hosts in flight go on.
    deadlines = (_get_deadline(rollout, host, facts) for host in rollout.open_hosts if not host.is_over)
    moments += [moment for moment in deadlines if moment is not None]
    return WaitForChange(until=min(moments, default=None), reason=reason)


# Recording what was done


def record_scheduled(rollout: Rollout, host: str, maintenance_ids: tuple[str, ...], now: datetime) -> Rollout:
    """Record that a host's maintenance was requested, with its ids."""

    def wait(found: RolloutHost) -> RolloutHost:
        waiting = apply_host_trigger(found, HostTrigger.SCHEDULE, now, is_open=True)
        return replace(waiting, maintenance_ids=maintenance_ids)

    return _replace_host(rollout, host, wait)


def record_refused(rollout: Rollout, host: str, reason: str, now: datetime) -> Rollout:
    """Record that a host's maintenance was refused: the host has failed."""
    return _replace_host(rollout, host, lambda found: apply_host_trigger(found, HostTrigger.FAIL, now, reason=reason))


def apply_own_step(rollout: Rollout, own_step: OwnStep, now: datetime) -> Rollout:
    """Carry out a step that changes the rollout and nothing else."""
    if isinstance(own_step, SkipHost):
        reason = own_step.reason
        return _replace_host(
            rollout, own_step.host, lambda found: apply_host_trigger(found, HostTrigger.SKIP, now, reason=reason)
        )
    if isinstance(own_step, PauseRollout):
        return apply_rollout_trigger(rollout, RolloutTrigger.PAUSE, now, reason=own_step.reason)
    return apply_rollout_trigger(rollout, own_step.trigger, now)


def _replace_host(rollout: Rollout, name: str, change: Callable[[RolloutHost], RolloutHost]) -> Rollout:
    hosts = rollout.hosts
    place = next(number for number, host in enumerate(hosts) if host.name == name)
    return replace(rollout, hosts=(*hosts[:place], change(hosts[place]), *hosts[place + 1 :]))
