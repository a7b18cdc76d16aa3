"""The next step for a VM: a pure function of its record, its observed state and the time.

The caller writes `before` onto the VM, does `act`, writes `after`, observes again and asks again. So an interruption at
any point resumes at the same place, and no act is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from forewarn.actuators.libvirt_record import Entry, Step, Way
from forewarn.core.model import EventType

__all__ = ["Act", "Decision", "Power", "Sight", "Terms", "decide", "decide_abort", "way_of"]


class Power(StrEnum):
    """Run state of a VM."""

    RUNNING = "running"
    PAUSED = "paused"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """State of a VM as libvirt shows it.

    Attributes:
        instance: libvirt's number of the running VM; -1 if it is off.
        is_moved: True if it is at the destination, and no longer at home.
        has_job: True if libvirt is busy with it, for example migrating it.
    """

    power: Power
    instance: int = -1
    is_moved: bool = False
    has_job: bool = False


class Act(StrEnum):
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
class Decision:
    """An act, and the records to write before and after it.

    Attributes:
        before: Record to write first; None to keep the current one.
        after: Record to write once the act is done.
        until: Time of the next check, if there is nothing to do but wait.
    """

    act: Act
    before: Entry | None = None
    after: Entry | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Durations and time limits.

    Attributes:
        freeze: Time for which a VM is suspended; 0 for not at all.
        shutdown_timeout: Time limit for a guest's shutdown; then its power is cut.
        migration_timeout: Time limit for a migration; then it is aborted.
        migrations_max: Maximum number of migrations tried.
        look_every: Interval between checks while waiting.
    """

    freeze: timedelta = timedelta(seconds=5)
    shutdown_timeout: timedelta = timedelta(minutes=2)
    migration_timeout: timedelta = timedelta(minutes=30)
    migrations_max: int = 3
    look_every: timedelta = timedelta(seconds=1)


def way_of(impact: EventType, *, has_destination: bool) -> Way:
    """Return the method for an impact."""
    return _WAYS[impact][has_destination]


_WAYS = {
    EventType.FREEZE: (Way.SUSPEND, Way.MIGRATE),
    EventType.REBOOT: (Way.CYCLE, Way.CYCLE),
    EventType.REDEPLOY: (Way.CYCLE, Way.MOVE),
    EventType.PREEMPT: (Way.STOP, Way.STOP),
    EventType.TERMINATE: (Way.STOP, Way.STOP),
}


def decide(  # noqa: PLR0913 - all inputs of the decision
    id: str, way: Way, entry: Entry | None, sight: Sight, now: datetime, terms: Terms
) -> Decision:
    """Return the next step.

    Args:
        id: Id of the maintenance.
        way: Method for the VM, if nothing was begun.
        entry: Record of what was begun; None if nothing was.
        sight: Observed state of the VM.
        now: Current time.
        terms: Durations and time limits.
    """
    if entry is None:
        entry = Entry(id=id, way=way, step=Step.INTERRUPTED, since=now, instance=sight.instance)
        return _begin(entry, sight, terms)
    if entry.step.is_over:
        return Decision(act=Act.NOTHING)
    return _NEXT[entry.way](entry, sight, now, terms)


def _begin(entry: Entry, sight: Sight, terms: Terms) -> Decision:
    """Return the first step, whose record marks the maintenance as begun."""
    is_off = sight.power is Power.OFF
    is_spared = {
        Way.SUSPEND: sight.power is not Power.RUNNING or not terms.freeze,
        Way.MIGRATE: is_off or sight.is_moved,
        Way.MOVE: is_off and sight.is_moved,
    }
    if is_spared.get(entry.way, is_off):
        return _done(entry, 0.0)
    match entry.way:
        case Way.SUSPEND:
            entry = replace(entry, step=Step.SUSPENDING)
            return Decision(act=Act.SUSPEND, before=entry, after=replace(entry, step=Step.SUSPENDED))
        case Way.MIGRATE:
            return Decision(act=Act.MIGRATE, before=replace(entry, step=Step.MIGRATING, tries=entry.tries + 1))
        case Way.MOVE if is_off:
            return Decision(act=Act.MOVE, before=replace(entry, step=Step.MOVING))
        case Way.MOVE if sight.is_moved:
            return _ask(replace(entry, way=Way.CYCLE))
        case _:
            return _ask(entry)


def _ask(entry: Entry) -> Decision:
    """Return the step that asks the guest to shut down."""
    entry = replace(entry, step=Step.ASKING)
    return Decision(act=Act.SHUT_DOWN, before=entry, after=replace(entry, step=Step.STOPPING))


def _done(entry: Entry, paused_s: float | None) -> Decision:
    return Decision(act=Act.NOTHING, before=replace(entry, step=Step.DONE, paused_s=paused_s))


def _next_of_suspended(entry: Entry, sight: Sight, now: datetime, terms: Terms) -> Decision:
    is_same = sight.instance == entry.instance
    took_s = (now - entry.since).total_seconds()
    match entry.step:
        case Step.SUSPENDING if sight.power is Power.RUNNING and is_same:
            return Decision(act=Act.SUSPEND, after=replace(entry, step=Step.SUSPENDED))
        case _ if sight.power is not Power.PAUSED or not is_same:
            # If it was not our resume, something else resumed or stopped it at an unknown time.
            is_known = entry.step is Step.RESUMING
            return _done(entry, took_s if is_known else min(took_s, terms.freeze.total_seconds()))
        case Step.SUSPENDING:
            # The VM was suspended, but that was not recorded; the freeze counts from the recorded beginning.
            return Decision(act=Act.WAIT, before=replace(entry, step=Step.SUSPENDED), until=entry.since + terms.freeze)
        case Step.SUSPENDED if now < entry.since + terms.freeze:
            return Decision(act=Act.WAIT, until=entry.since + terms.freeze)
        case _:
            return Decision(act=Act.RESUME, before=replace(entry, step=Step.RESUMING))


def _next_of_migrated(entry: Entry, sight: Sight, now: datetime, terms: Terms) -> Decision:
    if sight.is_moved or sight.power is Power.OFF:
        return _done(entry, None)
    if entry.step is Step.INTERRUPTED and entry.tries >= terms.migrations_max:
        return Decision(act=Act.FAIL)
    if entry.step is Step.INTERRUPTED:
        return _begin(replace(entry, since=now, instance=sight.instance), sight, terms)
    if not sight.has_job:
        return Decision(act=Act.FAIL, before=replace(entry, step=Step.INTERRUPTED))
    if now < entry.since + terms.migration_timeout:
        return Decision(act=Act.WAIT, until=now + terms.look_every)
    return Decision(act=Act.GIVE_UP, after=replace(entry, step=Step.INTERRUPTED))


def _next_of_stopped(entry: Entry, sight: Sight, now: datetime, terms: Terms) -> Decision:
    """Return the next step of the methods that begin with a shutdown."""
    took_s = (now - entry.since).total_seconds()
    if sight.power is Power.OFF:
        return _next_of_off(entry, sight)
    is_new = sight.instance != entry.instance or entry.step is Step.STARTING
    if is_new and (entry.way is Way.CYCLE or sight.is_moved):
        return _done(entry, took_s)
    if is_new and entry.way is Way.MOVE:
        return _ask(replace(entry, since=now, instance=sight.instance))  # it was started at home again
    if is_new or now >= entry.since + terms.shutdown_timeout:
        return Decision(act=Act.DESTROY)
    if entry.step is Step.ASKING:
        return _ask(entry)
    return Decision(act=Act.WAIT, until=min(now + terms.look_every, entry.since + terms.shutdown_timeout))


def _next_of_off(entry: Entry, sight: Sight) -> Decision:
    if entry.way is Way.STOP or (entry.way is Way.MOVE and sight.is_moved and entry.instance < 0):
        return _done(entry, None)
    if entry.way is Way.MOVE and not sight.is_moved:
        return Decision(act=Act.MOVE, before=replace(entry, step=Step.MOVING))
    return Decision(act=Act.CREATE, before=replace(entry, step=Step.STARTING))


_NEXT: dict[Way, Callable[[Entry, Sight, datetime, Terms], Decision]] = {
    Way.SUSPEND: _next_of_suspended,
    Way.MIGRATE: _next_of_migrated,
    Way.CYCLE: _next_of_stopped,
    Way.MOVE: _next_of_stopped,
    Way.STOP: _next_of_stopped,
}


def decide_abort(entry: Entry | None, sight: Sight) -> Decision:
    """Return the step that reverts what was begun, as far as possible: a VM that would stay away comes back.

    A shutdown request to a guest cannot be revoked.
    """
    if entry is None or entry.step.is_over:
        return Decision(act=Act.NOTHING)
    aborted = replace(entry, step=Step.ABORTED)
    is_ours = entry.instance >= 0 and entry.step is not Step.INTERRUPTED
    if entry.way is Way.SUSPEND and sight.power is Power.PAUSED and sight.instance == entry.instance:
        return Decision(act=Act.RESUME, after=aborted)
    if entry.way is Way.MIGRATE and sight.has_job:
        return Decision(act=Act.GIVE_UP, after=aborted)
    if entry.way in {Way.CYCLE, Way.MOVE} and sight.power is Power.OFF and is_ours:
        return Decision(act=Act.CREATE, after=aborted)
    return Decision(act=Act.NOTHING, before=aborted)
