"""Decisions of a rollout: `observe` records what has happened, `next_steps` returns what to do.

Both are pure. The driver of a rollout does this, in one transaction if possible, whenever something has happened to a
maintenance or `Wait.until` has come::

    rollout = observe(rollout, facts, now)
    for step in next_steps(rollout, inventory, facts, now):
        match step:
            case Schedule():  # request it, then
                rollout = scheduled(rollout, step.host, ids, now)  # or refused(rollout, step.host, why, now)
            case Cancel() | CheckHealth() | Wait():  # changes nothing of the rollout
                ...
            case _:
                rollout = carry_out(rollout, step, now)

and again until the last step is a `Wait`, or there is none because the rollout has not begun or is over. After a
refusal the remaining steps are not carried out: they were decided without that failure. A `Cancel` that was carried out
is something that has happened to a maintenance. The same facts give the same steps; so it may be called too often, and
a restart loses nothing.

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

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from forewarn.core.inventory import Inventory
from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.core.request import Request
from forewarn.core.rollout import HostState, Rollout, RolloutHost, RolloutState
from forewarn.core.rollout_domains import Occupied, Survey, blocks
from forewarn.core.rollout_lifecycle import HostTrigger, RolloutTrigger, step, step_host
from forewarn.core.rollout_plan import pause_after
from forewarn.core.rollout_step import Cancel, CheckHealth, Facts, Finish, OwnStep, Pause, Schedule, Skip, Step, Wait
from forewarn.core.value import replace
from forewarn.util.duration import format_span

__all__ = ["carry_out", "next_steps", "observe", "refused", "scheduled"]

_HAS_FAILED = "it has failed, and was not said to have recovered"
_NOT_STARTED = frozenset({MaintenanceState.QUEUED, MaintenanceState.SCHEDULED})


# Recording what has happened


def observe(rollout: Rollout, facts: Facts, now: datetime) -> Rollout:
    """Update the open hosts from their maintenances, and record the result of the requested health check."""
    if rollout.is_ended:
        return rollout
    seen = {host.name: _look(rollout, host, facts, now) for host in rollout.open_hosts}
    if any(seen[host.name] is not host for host in rollout.open_hosts):
        rollout = replace(rollout, hosts=tuple(seen.get(host.name, host) for host in rollout.hosts))
    health = facts.health
    # Only the result of the next check counts; that of an earlier one may be reported again.
    if health is not None and health.number == rollout.checks + 1:
        rollout = replace(rollout, checks=health.number, health=health)
    return rollout


def _look(rollout: Rollout, host: RolloutHost, facts: Facts, now: datetime) -> RolloutHost:
    known = [facts.maintenances[i] for i in host.maintenance_ids if i in facts.maintenances]
    found = [m for m in known if m is not None]
    # A maintenance that the facts leave out counts as unchanged, so the host stays open.
    is_open = len(known) < len(host.maintenance_ids) or any(m.is_active for m in found)
    if host.state is HostState.FAILED:
        return host if is_open else replace(host, is_open=False)
    reason = _why_failed(host, facts)
    if reason is not None:
        return step_host(host, HostTrigger.FAIL, now, is_open=is_open, reason=reason)
    if not is_open:
        return _over(host, found, now)
    deadline_at = _deadline_at(rollout, host, facts)
    if rollout.spec.deadline is not None and deadline_at is not None and deadline_at <= now:
        words = f"it was not over within {format_span(rollout.spec.deadline)}"
        return step_host(host, HostTrigger.FAIL, now, is_open=True, reason=words)
    if host.state is HostState.WAITING and any(m.started_at is not None for m in found):
        return step_host(host, HostTrigger.START, now, is_open=True)
    return host


def _deadline_at(rollout: Rollout, host: RolloutHost, facts: Facts) -> datetime | None:
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


def _why_failed(host: RolloutHost, facts: Facts) -> str | None:
    for maintenance_id in host.maintenance_ids:
        if maintenance_id not in facts.maintenances:
            continue
        maintenance = facts.maintenances[maintenance_id]
        if maintenance is None:
            return f"maintenance {maintenance_id} is not known any more"
        if maintenance.state is MaintenanceState.FAILED:
            return f"maintenance {maintenance_id} failed"
    return None


def _over(host: RolloutHost, found: list[Maintenance], now: datetime) -> RolloutHost:
    ended_at = max((m.ended_at for m in found if m.ended_at is not None), default=now)
    canceled = next((m for m in found if m.state is MaintenanceState.CANCELED), None)
    if canceled is not None:
        return step_host(host, HostTrigger.SKIP, ended_at, reason=f"maintenance {canceled.id} was canceled")
    return step_host(host, HostTrigger.FINISH, ended_at)


# Deciding what to do


def next_steps(rollout: Rollout, inventory: Inventory, facts: Facts, now: datetime) -> list[Step]:
    """Return the steps to take now, in order.

    Returns:
        No steps while the rollout is planned or when it has ended. Otherwise the last one is a `Wait` exactly when no
        step changes the rollout.
    """
    rollout = observe(rollout, facts, now)
    if rollout.state is RolloutState.PLANNED or rollout.is_ended:
        return []
    steps: list[Step] = list(_cancels(rollout, facts))
    if rollout.batch is None and not rollout.open_hosts:
        return [*steps, Finish(trigger=_end(rollout))]
    if rollout.state is not RolloutState.RUNNING:
        return [*steps, _wait(rollout, facts, rollout.reason or f"it is {rollout.state}")]
    reason = _why_pause(rollout)
    if reason is not None and rollout.batch is not None:
        return [*steps, Pause(reason=reason)]
    return [*steps, *_proceed(rollout, inventory, facts, now)]


def _cancels(rollout: Rollout, facts: Facts) -> Iterator[Cancel]:
    """Yield cancellations of what has not started, for failed hosts and aborted rollouts."""
    is_aborting = rollout.state is RolloutState.ABORTING
    for host in rollout.open_hosts:
        if not (is_aborting or host.state is HostState.FAILED):
            continue
        reason = host.reason or rollout.reason or "the rollout was aborted"
        for maintenance_id in host.maintenance_ids:
            maintenance = facts.maintenances.get(maintenance_id)
            if maintenance is not None and maintenance.state in _NOT_STARTED:
                yield Cancel(host=host.name, maintenance_id=maintenance_id, reason=reason)


def _end(rollout: Rollout) -> RolloutTrigger:
    if rollout.state is RolloutState.ABORTING:
        return RolloutTrigger.END
    return RolloutTrigger.FAIL if rollout.failures else RolloutTrigger.COMPLETE


def _why_pause(rollout: Rollout) -> str | None:
    """Return the reason to pause: a failed canary, too many failures, an unhealthy fleet; None if there is none."""
    count = rollout.failures - rollout.failures_accepted
    ordinary = [host for host in rollout.hosts if host.batch >= rollout.canaries]
    if count > 0 and all(host.state is HostState.PENDING for host in ordinary):
        failed = [host for host in rollout.hosts if host.state is HostState.FAILED]
        return f"canary {failed[-1].name} failed: {failed[-1].reason}"
    if count >= rollout.spec.failures_max:
        names = [host.name for host in rollout.hosts if host.state is HostState.FAILED]
        words = f"{count} hosts" if count > 1 else "1 host"
        return f"{words} failed, of late {names[-1]} (failures_max is {rollout.spec.failures_max})"
    health = rollout.health
    if health is not None and not health.is_healthy:
        return f"the health check after batch {health.batch + 1} failed: {health.detail or 'it said nothing'}"
    return None


def _proceed(rollout: Rollout, inventory: Inventory, facts: Facts, now: datetime) -> list[Step]:
    pending = [host.name for host in rollout.hosts if host.batch == rollout.batch and host.state is HostState.PENDING]
    gate = _gate(rollout, facts, now) if pending else None
    if gate is not None:
        return gate
    free = _free(rollout)
    if not pending or free <= 0:
        return [_wait(rollout, facts, _flight_words(rollout, facts))]
    seen, occupied = _occupied(rollout, inventory, facts, pending)
    failed = {host.name for host in inventory.hosts if host.failed_at is not None}
    begun: list[Step] = []
    blocked = ""
    for host in pending:
        if free == 0:
            break
        reason = _HAS_FAILED if host in failed else _why_skip(host, seen)
        obstacle = occupied.obstacle(host) if reason is None else None
        if reason is not None:
            begun.append(Skip(host=host, reason=reason))
        elif obstacle is not None:
            blocked = blocked or f"host {host} waits: {obstacle}"
        else:
            begun.append(_schedule(rollout, host))
            occupied.add_host(host)
            free -= 1
    return begun or [_wait(rollout, facts, blocked)]


def _flight_words(rollout: Rollout, facts: Facts) -> str:
    """Describe the hosts in flight, and those delayed by quiet hours."""
    count = len(rollout.open_hosts)
    words = [f"{count} hosts are in flight" if count > 1 else "1 host is in flight"]
    for host in rollout.open_hosts:
        for maintenance in (facts.maintenances.get(i) for i in host.maintenance_ids):
            is_waiting = maintenance is not None and maintenance.state in _NOT_STARTED
            if (
                maintenance is None
                or not is_waiting
                or maintenance.moved_from is None
                or maintenance.not_before is None
            ):
                continue
            whose = ", ".join(maintenance.moved_by[:_NAMES_SHOWN])
            at = maintenance.not_before.replace(microsecond=0).isoformat().replace("+00:00", "Z")
            words.append(f"{host.name} was moved to {at} by quiet hours of {whose}")
    return "; ".join(words[: 1 + _NAMES_SHOWN])


_NAMES_SHOWN = 5


def _gate(rollout: Rollout, facts: Facts, now: datetime) -> list[Step] | None:
    """Return the steps required before the current batch may begin; None if it may."""
    batch = rollout.batch
    if batch is None or batch == 0:
        return None
    before = [host for host in rollout.hosts if host.batch == batch - 1]
    ended_at = max(host.ended_at for host in before if host.ended_at is not None)
    begins_at = ended_at + pause_after(rollout.spec, batch - 1)
    if now < begins_at:
        return [_wait(rollout, facts, f"pause after batch {batch} of {rollout.batches}", until=begins_at)]
    check = rollout.spec.health
    if check is None or (rollout.health is not None and rollout.health.batch == batch - 1):
        return None
    number = rollout.checks + 1
    return [
        CheckHealth(number=number, batch=batch - 1, command=check.command, timeout=check.timeout),
        _wait(rollout, facts, f"health check after batch {batch} of {rollout.batches}"),
    ]


def _free(rollout: Rollout) -> int:
    """Return how many more hosts may be begun. A canary is alone."""
    in_flight = rollout.open_hosts
    if any(host.batch < rollout.canaries for host in in_flight):
        return 0
    is_canary = rollout.batch is not None and rollout.batch < rollout.canaries
    return (1 if is_canary else rollout.spec.hosts_at_once) - len(in_flight)


def _occupied(rollout: Rollout, inventory: Inventory, facts: Facts, pending: list[str]) -> tuple[Survey, Occupied]:
    """Return what is in flight, by the hosts on which VMs run now."""
    in_flight = [host.name for host in rollout.open_hosts]
    own = [m for i in rollout.watched if (m := facts.maintenances.get(i)) is not None and m.is_active]
    active = [*own, *(m for m in facts.others if blocks(m))]
    vms = {vm for maintenance in active for vm in maintenance.vms}
    seen = Survey(inventory, rollout.spec, [*in_flight, *pending], vms)
    occupied = Occupied(seen)
    for host in in_flight:
        occupied.add_host(host)
    for maintenance in active:
        occupied.add_maintenance(maintenance)
    return seen, occupied


def _why_skip(host: str, seen: Survey) -> str | None:
    """Return the reason to skip a host, because the inventory has changed since the plan; None if there is none."""
    if host not in seen.hosts:
        return "it is not in the inventory any more"
    split = seen.footprint(host).split()
    if split is None:
        return None
    kind, scope, domains = split
    return f"it holds {kind}s {' and '.join(str(domain) for domain in domains)} of scope {scope} now"


def _schedule(rollout: Rollout, host: str) -> Schedule:
    spec = rollout.spec
    request = Request(
        cause=spec.cause,
        type=spec.type,
        description=spec.description,
        duration_s=spec.duration_s,
        notice=spec.notice,
        hosts=(host,),
    )
    return Schedule(host=host, request=request, key=f"rollout:{rollout.id}:{host}")


def _wait(rollout: Rollout, facts: Facts, reason: str, *, until: datetime | None = None) -> Wait:
    """Wait until that time, or until the first host in flight is overdue."""
    moments = [until] if until is not None else []
    deadlines = (_deadline_at(rollout, host, facts) for host in rollout.open_hosts if not host.is_over)
    moments += [moment for moment in deadlines if moment is not None]
    return Wait(until=min(moments, default=None), reason=reason)


# Recording what was done


def scheduled(rollout: Rollout, host: str, maintenance_ids: tuple[str, ...], now: datetime) -> Rollout:
    """Record that a host's maintenance was requested, with its ids."""

    def wait(found: RolloutHost) -> RolloutHost:
        waiting = step_host(found, HostTrigger.SCHEDULE, now, is_open=True)
        return replace(waiting, maintenance_ids=maintenance_ids)

    return _with_host(rollout, host, wait)


def refused(rollout: Rollout, host: str, reason: str, now: datetime) -> Rollout:
    """Record that a host's maintenance was refused: the host has failed."""
    return _with_host(rollout, host, lambda found: step_host(found, HostTrigger.FAIL, now, reason=reason))


def carry_out(rollout: Rollout, own: OwnStep, now: datetime) -> Rollout:
    """Carry out a step that changes the rollout and nothing else."""
    if isinstance(own, Skip):
        reason = own.reason
        return _with_host(rollout, own.host, lambda found: step_host(found, HostTrigger.SKIP, now, reason=reason))
    if isinstance(own, Pause):
        return step(rollout, RolloutTrigger.PAUSE, now, reason=own.reason)
    return step(rollout, own.trigger, now)


def _with_host(rollout: Rollout, name: str, change: Callable[[RolloutHost], RolloutHost]) -> Rollout:
    hosts = rollout.hosts
    place = next(number for number, host in enumerate(hosts) if host.name == name)
    return replace(rollout, hosts=(*hosts[:place], change(hosts[place]), *hosts[place + 1 :]))
