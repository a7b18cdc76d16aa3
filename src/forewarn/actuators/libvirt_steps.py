"""The next step for a VM: a pure function of its record, its observed state and the time.

The caller writes `before` onto the VM, does `action`, writes `after`, observes again and asks again. So an interruption
at any point resumes at the same place, and no act is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.actuators.libvirt_record import DomainEntry, DomainStep, Procedure
from forewarn.core.model import EventType

__all__ = [
    "DomainAction",
    "DomainDecision",
    "DomainPower",
    "DomainState",
    "LibvirtTimings",
    "choose_procedure",
    "decide_abort",
    "decide_step",
]


class DomainPower(StrEnum):
    """Run state of a VM."""

    RUNNING = "running"
    PAUSED = "paused"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainState:
    """State of a VM as libvirt shows it.

    Attributes:
        instance: libvirt's number of the running VM; -1 if it is off.
        is_moved: True if it is at the destination, and no longer at home.
        has_job: True if libvirt is busy with it, for example migrating it.
    """

    power: DomainPower
    instance: int = -1
    is_moved: bool = False
    has_job: bool = False


class DomainAction(StrEnum):
    """Act to be done now."""

    WAIT = "wait"
    NOTHING = "nothing"
    """The maintenance of this VM is over."""
    SUSPEND = "suspend"
    RESUME = "resume"
    SHUT_DOWN = "shut down"
    DESTROY = "destroy"
    CREATE = "create"
    MOVE = "move"
    MIGRATE = "migrate"
    GIVE_UP = "give up the migration"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainDecision:
    """An act, and the records to write before and after it.

    Attributes:
        before: Record to write first; None to keep the current one.
        after: Record to write once the act is done.
        until: Time of the next check, if there is nothing to do but wait.
    """

    action: DomainAction
    before: DomainEntry | None = None
    after: DomainEntry | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LibvirtTimings:
    """Durations and time limits.

    Attributes:
        freeze: Time for which a VM is suspended; 0 for not at all.
        shutdown_timeout: Time limit for a guest's shutdown; then its power is cut.
        migration_timeout: Time limit for a migration; then it is aborted.
        migrations_max: Maximum number of migrations tried.
        check_every: Interval between checks while waiting.
    """

    freeze: timedelta = timedelta(seconds=5)
    shutdown_timeout: timedelta = timedelta(minutes=2)
    migration_timeout: timedelta = timedelta(minutes=30)
    migrations_max: int = 3
    check_every: timedelta = timedelta(seconds=1)


def choose_procedure(impact: EventType, *, has_destination: bool) -> Procedure:
    """Return the method for an impact."""
    return _WAYS[impact][has_destination]


_WAYS = {
    EventType.FREEZE: (Procedure.SUSPEND, Procedure.MIGRATE),
    EventType.REBOOT: (Procedure.CYCLE, Procedure.CYCLE),
    EventType.REDEPLOY: (Procedure.CYCLE, Procedure.MOVE),
    EventType.PREEMPT: (Procedure.STOP, Procedure.STOP),
    EventType.TERMINATE: (Procedure.STOP, Procedure.STOP),
}


def decide_step(  # noqa: PLR0913 - all inputs of the decision
    id: str,
    procedure: Procedure,
    entry: DomainEntry | None,
    observed: DomainState,
    now: datetime,
    timings: LibvirtTimings,
) -> DomainDecision:
    """Return the next step. If nothing was begun, `entry` is None and `procedure` is the method to begin."""
    if entry is None:
        # INTERRUPTED is a placeholder, which every path of `_begin_procedure` replaces.
        entry = DomainEntry(
            id=id, procedure=procedure, step=DomainStep.INTERRUPTED, since=now, instance=observed.instance
        )
        return _begin_procedure(entry, observed, timings)
    if entry.step.is_over:
        return DomainDecision(action=DomainAction.NOTHING)
    # The recorded procedure is finished, even if the settings would choose another one by now.
    return _NEXT[entry.procedure](entry, observed, now, timings)


def _begin_procedure(entry: DomainEntry, observed: DomainState, timings: LibvirtTimings) -> DomainDecision:
    """Return the first step, whose record marks the maintenance as begun."""
    is_off = observed.power is DomainPower.OFF
    # The VMs that the maintenance does not affect: their part is complete at once.
    is_spared = {
        Procedure.SUSPEND: observed.power is not DomainPower.RUNNING or not timings.freeze,
        Procedure.MIGRATE: is_off or observed.is_moved,
        Procedure.MOVE: is_off and observed.is_moved,
    }
    if is_spared.get(entry.procedure, is_off):
        return _finish_procedure(entry, 0.0)
    match entry.procedure:
        case Procedure.SUSPEND:
            entry = replace(entry, step=DomainStep.SUSPENDING)
            return DomainDecision(
                action=DomainAction.SUSPEND, before=entry, after=replace(entry, step=DomainStep.SUSPENDED)
            )
        case Procedure.MIGRATE:
            return DomainDecision(
                action=DomainAction.MIGRATE, before=replace(entry, step=DomainStep.MIGRATING, tries=entry.tries + 1)
            )
        case Procedure.MOVE if is_off:
            return DomainDecision(action=DomainAction.MOVE, before=replace(entry, step=DomainStep.MOVING))
        # It runs at the destination already, so only the restart is left.
        case Procedure.MOVE if observed.is_moved:
            return _request_shutdown(replace(entry, procedure=Procedure.CYCLE))
        case _:
            return _request_shutdown(entry)


def _request_shutdown(entry: DomainEntry) -> DomainDecision:
    """Return the step that asks the guest to shut down."""
    entry = replace(entry, step=DomainStep.ASKING)
    return DomainDecision(action=DomainAction.SHUT_DOWN, before=entry, after=replace(entry, step=DomainStep.STOPPING))


def _finish_procedure(entry: DomainEntry, paused_s: float | None) -> DomainDecision:
    return DomainDecision(action=DomainAction.NOTHING, before=replace(entry, step=DomainStep.DONE, paused_s=paused_s))


def _next_of_suspended(
    entry: DomainEntry, observed: DomainState, now: datetime, timings: LibvirtTimings
) -> DomainDecision:
    is_same = observed.instance == entry.instance
    took_s = (now - entry.since).total_seconds()
    match entry.step:
        case DomainStep.SUSPENDING if observed.power is DomainPower.RUNNING and is_same:
            return DomainDecision(action=DomainAction.SUSPEND, after=replace(entry, step=DomainStep.SUSPENDED))
        case _ if observed.power is not DomainPower.PAUSED or not is_same:
            # If it was not our resume, something else resumed or stopped it at an unknown time.
            is_known = entry.step is DomainStep.RESUMING
            return _finish_procedure(entry, took_s if is_known else min(took_s, timings.freeze.total_seconds()))
        case DomainStep.SUSPENDING:
            # The VM was suspended, but that was not recorded; the freeze counts from the recorded beginning.
            return DomainDecision(
                action=DomainAction.WAIT,
                before=replace(entry, step=DomainStep.SUSPENDED),
                until=entry.since + timings.freeze,
            )
        case DomainStep.SUSPENDED if now < entry.since + timings.freeze:
            return DomainDecision(action=DomainAction.WAIT, until=entry.since + timings.freeze)
        case _:
            return DomainDecision(action=DomainAction.RESUME, before=replace(entry, step=DomainStep.RESUMING))


def _next_of_migrated(
    entry: DomainEntry, observed: DomainState, now: datetime, timings: LibvirtTimings
) -> DomainDecision:
    # A VM that was stopped meanwhile has no memory left to migrate.
    if observed.is_moved or observed.power is DomainPower.OFF:
        return _finish_procedure(entry, None)
    if entry.step is DomainStep.INTERRUPTED and entry.tries >= timings.migrations_max:
        return DomainDecision(action=DomainAction.FAIL)
    if entry.step is DomainStep.INTERRUPTED:
        return _begin_procedure(replace(entry, since=now, instance=observed.instance), observed, timings)
    if not observed.has_job:
        return _check_ended_migration(entry, now, timings)
    if now < entry.since + timings.migration_timeout:
        return DomainDecision(action=DomainAction.WAIT, until=now + timings.check_every)
    return DomainDecision(action=DomainAction.GIVE_UP, after=replace(entry, step=DomainStep.INTERRUPTED))


def _check_ended_migration(entry: DomainEntry, now: datetime, timings: LibvirtTimings) -> DomainDecision:
    """Return the step for a VM that is still at home although no migration runs."""
    if entry.step is DomainStep.LANDING:
        return DomainDecision(action=DomainAction.FAIL, before=replace(entry, step=DomainStep.INTERRUPTED))
    # libvirt ends the job before it removes the VM from its home: one look cannot tell success from failure.
    entry = replace(entry, step=DomainStep.LANDING)
    return DomainDecision(action=DomainAction.WAIT, before=entry, until=now + timings.check_every)


def _next_of_stopped(
    entry: DomainEntry, observed: DomainState, now: datetime, timings: LibvirtTimings
) -> DomainDecision:
    """Return the next step of the methods that begin with a shutdown."""
    took_s = (now - entry.since).total_seconds()
    if observed.power is DomainPower.OFF:
        return _next_of_off(entry, observed)
    # libvirt numbers every start, so another number proves that the VM was off since the record was written.
    # After a move another libvirt counts, whose number may be the same by chance, so the step counts too.
    is_new = observed.instance != entry.instance or entry.step is DomainStep.STARTING
    if is_new and (entry.procedure is Procedure.CYCLE or observed.is_moved):
        return _finish_procedure(entry, took_s)
    if is_new and entry.procedure is Procedure.MOVE:
        return _request_shutdown(replace(entry, since=now, instance=observed.instance))  # it was started at home again
    # Here only STOP can be new: the VM was off and started again, so it is not asked a second time.
    if is_new or now >= entry.since + timings.shutdown_timeout:
        return DomainDecision(action=DomainAction.DESTROY)
    # The record does not show whether the request has reached the guest, so it is sent again.
    if entry.step is DomainStep.ASKING:
        return _request_shutdown(entry)
    return DomainDecision(
        action=DomainAction.WAIT, until=min(now + timings.check_every, entry.since + timings.shutdown_timeout)
    )


def _next_of_off(entry: DomainEntry, observed: DomainState) -> DomainDecision:
    if entry.procedure is Procedure.STOP or (
        # A VM that was off before its move stays off.
        entry.procedure is Procedure.MOVE and observed.is_moved and entry.instance < 0
    ):
        return _finish_procedure(entry, None)
    if entry.procedure is Procedure.MOVE and not observed.is_moved:
        return DomainDecision(action=DomainAction.MOVE, before=replace(entry, step=DomainStep.MOVING))
    return DomainDecision(action=DomainAction.CREATE, before=replace(entry, step=DomainStep.STARTING))


_NEXT: dict[Procedure, Callable[[DomainEntry, DomainState, datetime, LibvirtTimings], DomainDecision]] = {
    Procedure.SUSPEND: _next_of_suspended,
    Procedure.MIGRATE: _next_of_migrated,
    Procedure.CYCLE: _next_of_stopped,
    Procedure.MOVE: _next_of_stopped,
    Procedure.STOP: _next_of_stopped,
}


def decide_abort(entry: DomainEntry | None, observed: DomainState) -> DomainDecision:
    """Return the step that reverts what was begun, as far as possible: a VM that would stay away comes back.

    A shutdown request to a guest cannot be revoked.
    """
    if entry is None or entry.step.is_over:
        return DomainDecision(action=DomainAction.NOTHING)
    aborted = replace(entry, step=DomainStep.ABORTED)
    # A VM that was off at the beginning stays off.
    is_ours = entry.instance >= 0 and entry.step is not DomainStep.INTERRUPTED
    if (
        entry.procedure is Procedure.SUSPEND
        and observed.power is DomainPower.PAUSED
        and observed.instance == entry.instance
    ):
        return DomainDecision(action=DomainAction.RESUME, after=aborted)
    if entry.procedure is Procedure.MIGRATE and observed.has_job:
        return DomainDecision(action=DomainAction.GIVE_UP, after=aborted)
    if entry.procedure in {Procedure.CYCLE, Procedure.MOVE} and observed.power is DomainPower.OFF and is_ours:
        return DomainDecision(action=DomainAction.CREATE, after=aborted)
    return DomainDecision(action=DomainAction.NOTHING, before=aborted)
