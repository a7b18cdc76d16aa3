"""A world that checks, at every commit, what must never be otherwise.

The checks read the plain facts (states, claims, times, what was told) and share no rule with the core: what counts as
routine, who has a vote and when the incarnation moves is said here once more, in other words.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES, MINIMUM_NOTICE
from forewarn.core.maintenance.decision import ChangeSet, Draft
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import (
    EntryKind,
    EventSource,
    EventStatus,
    EventType,
    Maintenance,
    MaintenanceState,
    PowerState,
)
from forewarn.core.policy import Policy
from tests.support.quiet import is_quiet
from tests.support.world import Line, World

__all__ = ["WatchedWorld"]

S = MaintenanceState
ROUTINE = {"live-migration", "host-maintenance", "platform-redeploy", "os-upgrade"}
FINAL = {S.COMPLETED, S.CANCELED, S.FAILED}
NEXT = {
    None: {S.QUEUED, S.SCHEDULED, S.STARTED, S.CANCELED},
    S.QUEUED: {S.SCHEDULED, S.STARTED, S.CANCELED},
    S.SCHEDULED: {S.STARTED, S.CANCELED},
    S.STARTED: {S.COMPLETED, S.FAILED},
}
"""What may be seen after what, from one commit to the next; one commit may take two arrows."""


class WatchedWorld(World):
    """Checks each commit against the state before."""

    request: MaintenanceRequest | None = None
    """What is being planned."""

    def plan(self, request: MaintenanceRequest) -> list[Maintenance]:
        self.request = request
        try:
            return super().plan(request)
        finally:
            self.request = None

    def commit(self, draft: Draft) -> ChangeSet:
        before = Snapshot(self)
        changes = super().commit(draft)
        check_incarnations(before, self)
        check_documents(self)
        check_lives(before, self)
        check_events(before, self)
        check_starts(before, self)
        check_notice(before, self)
        check_times_given(before, self)
        check_shown_late(before, self)
        check_quiet(before, self)
        check_moves(before, self)
        check_exclusion(self)
        check_deadlines(self)
        check_settled(self)
        return changes


class Snapshot:
    """What there was before a commit."""

    def __init__(self, world: World) -> None:
        self.vms = dict(world.vms)
        self.audiences = dict(world.audiences)
        self.maintenances = dict(world.maintenances)
        self.events = dict(world.events)
        self.documents = dict(world.documents)
        self.arrays = arrays(world)
        self.told = {key: world.lines(key) for key in world.documents}


def check_settled(world: World) -> None:
    """R61, R82: nothing more happens at once if everything is checked again, not only what has changed."""
    assert world.draft().finish().is_empty


def arrays(world: World) -> dict[str, tuple[Line, ...]]:
    """What each audience should see, from the truth and not from what was told."""
    found: dict[str, list[Line]] = defaultdict(list)
    for event in sorted(world.events.values(), key=lambda event: event.sequence):
        if event.is_listed:
            found[event.audience].append(Line.of(event, world.maintenances[event.maintenance_id]))
    return {key: tuple(found[key]) for key in world.audiences}


def check_incarnations(before: Snapshot, world: World) -> None:
    """R42, R43, R45, R46, invariant 6: by exactly one when the array changed, otherwise not at all, and never back."""
    after = arrays(world)
    started = {each.id for each in world.changes.maintenances.values() if each.state is S.STARTED}
    started_now = {event.id for event in world.events.values() if event.maintenance_id in started}
    for key, audience in world.audiences.items():
        was = before.audiences[key]
        if audience.enabled_at is None:
            assert after[key] == (), f"{key} is disabled and has events"
        elif audience.epoch != was.epoch:
            assert audience.epoch == was.epoch + 1
            assert audience.incarnation == world.rules.initial_incarnation
            assert all(line.status is EventStatus.SCHEDULED or line.event_id in started_now for line in after[key])
        else:
            moved = audience.incarnation - was.incarnation
            assert moved == int(before.arrays[key] != after[key]), f"{key} moved by {moved}"


def check_documents(world: World) -> None:
    """R27, R29, R44, R83, R84: what audiences were told is the truth, for all tenants of a maintenance alike."""
    truth = arrays(world)
    statuses: dict[str, set[EventStatus]] = defaultdict(set)
    for key, document in world.documents.items():
        assert document.audience == world.audiences[key]
        assert world.lines(key) == truth[key]
        for event, maintenance in document.items:
            assert event.audience == key
            statuses[maintenance.id].update(line.status for line in world.lines(key) if line.event_id == event.id)
    assert all(len(seen) == 1 for seen in statuses.values()), "tenants were told different things"
    assert all(key in world.documents for key, lines in truth.items() if lines)


def check_lives(before: Snapshot, world: World) -> None:
    """R75 to R79: no arrow back, nothing leaves an end."""
    for id_, maintenance in world.maintenances.items():
        was = before.maintenances.get(id_)
        if was is None or was.state is not maintenance.state:
            assert was is None or was.state not in FINAL
            assert maintenance.state in NEXT[was.state if was else None]
        if maintenance.state is S.CANCELED:
            assert maintenance.started_at is None
            assert maintenance.impacted_at is None


def check_events(before: Snapshot, world: World) -> None:
    """R27, R30, R33, R34, R35, R40, R55, R68, R70."""
    assert before.events.keys() <= world.events.keys()
    places = [(e.maintenance_id, e.audience, e.update_domain) for e in world.events.values()]
    assert len(places) == len(set(places)), "two events of a maintenance for one update domain"
    for event in world.events.values():
        assert event.resources
        assert len(set(event.resources)) == len(event.resources)
        assert {world.key_of(name) for name in event.resources} == {event.audience}
        assert {world.vms[name].update_domain for name in event.resources} == {event.update_domain}
        was = before.events.get(event.id)
        if was is None:
            enabled_at = world.audiences[event.audience].enabled_at
            assert enabled_at is not None
            is_late = event.maintenance_id in before.maintenances and enabled_at == world.now  # R70b
            starts_at = world.maintenances[event.maintenance_id].not_before or world.now
            assert is_late or enabled_at + world.rules.announce_delay <= max(world.now, starts_at)  # R68
            assert {before.vms[name].power_state for name in event.resources} == {PowerState.RUNNING}
            continue
        if was.approved_at is None and event.approved_at is not None:
            assert was.is_listed
            assert before.maintenances[event.maintenance_id].state is S.SCHEDULED
        is_anew = before.audiences[event.audience].enabled_at is None
        assert was.is_listed or not event.is_listed or is_anew, "an event came back"
        is_taken_over = was.approved_by == "policy" and event.approved_by not in {"policy", None}
        assert was.approved_at in {None, event.approved_at} or is_taken_over
        assert (was.resources, was.audience, was.sequence) == (event.resources, event.audience, event.sequence)
    moved = {e.maintenance_id for e in world.changes.entries if e.kind in {EntryKind.DEFERRED, EntryKind.EXTENDED}}
    for key in world.documents:
        old = {line.event_id: line for line in before.told.get(key, ())}
        for line in world.lines(key):
            check_line(old.get(line.event_id), line, is_moved=world.events[line.event_id].maintenance_id in moved)


def check_line(was: Line | None, line: Line, *, is_moved: bool) -> None:
    assert line.status in {EventStatus.SCHEDULED, EventStatus.STARTED}
    assert (line.not_before is None) == (line.status is EventStatus.STARTED)
    if was is None:
        return
    assert not (was.status is EventStatus.STARTED and line.status is EventStatus.SCHEDULED)
    if line.status is EventStatus.SCHEDULED and is_moved:
        assert was.not_before is not None
        assert line.not_before is not None
        assert line.not_before > was.not_before
        assert line == replace(was, not_before=line.not_before)
    elif line.status is EventStatus.SCHEDULED:
        assert line == was
    fixed = [(x.resources, x.type, x.source, x.description, x.duration_s) for x in (was, line)]
    assert fixed[0] == fixed[1]


def check_starts(before: Snapshot, world: World) -> None:
    """R76, R78, invariant 4: not before NotBefore unless approved by all, forced by an operator, or broken already."""
    forced = {e.maintenance_id for e in world.changes.entries if e.kind is EntryKind.STARTED and e.reason}
    for maintenance in world.changes.maintenances.values():
        was = before.maintenances.get(maintenance.id)
        if maintenance.state is not S.STARTED or (was is not None and was.state is S.STARTED):
            continue
        assert maintenance.started_at == world.now
        assert maintenance.not_before is not None
        votes = [e for e in world.events_of(maintenance) if e.is_listed]
        agreed_at = agreed(world, maintenance)
        is_unanimous = agreed_at is not None and agreed_at + world.rules.start_delay <= world.now
        is_failure = maintenance.cause == "hardware-failure"
        passes = {"user-restart", "user-redeploy"}
        by_policy = {e.approved_by for e in votes} == {"policy"} and maintenance.cause in passes
        is_free = is_unanimous or is_failure or by_policy
        assert maintenance.not_before <= world.now or is_free or maintenance.id in forced
        shown_from_nothing = votes and (was is None or was.state is S.QUEUED)
        assert not shown_from_nothing or is_failure or by_policy or maintenance.force_reason is not None
        if maintenance.not_before > world.now and not (by_policy or is_failure or maintenance.id in forced):
            for event in votes:
                if event.approved_by == "policy":
                    assert event.approved_at is not None
                    assert event.approved_at + world.rules.policy_delay <= world.now
                    policy = policy_of(world, event.resources[0])
                    is_forced = maintenance.force_reason is not None
                    assert is_forced or not any(is_quiet(each, world.now) for each in policy.quiet_hours)


def agreed(world: World, maintenance: Maintenance) -> datetime | None:
    """When the last vote came in; None while one is missing, or nobody has any."""
    votes = [event.approved_at for event in world.events_of(maintenance) if event.is_listed]
    given = [moment for moment in votes if moment is not None]
    return max(given) if given and len(given) == len(votes) else None


def check_notice(before: Snapshot, world: World) -> None:
    """R71: who is told is told in time, in whole seconds."""
    for maintenance in world.changes.maintenances.values():
        was = before.maintenances.get(maintenance.id)
        is_new = maintenance.state is S.SCHEDULED and (was is None or was.state is S.QUEUED)
        if not (is_new and world.events_of(maintenance)) or maintenance.force_reason is not None:
            continue
        assert maintenance.not_before is not None
        assert maintenance.not_before.microsecond == 0
        assert maintenance.not_before - world.now >= MINIMUM_NOTICE[maintenance.type]


def check_times_given(before: Snapshot, world: World) -> None:
    """R70a: a time that was given holds for everybody; without one the platform gives the least notice of its type."""
    if not isinstance(world, WatchedWorld) or world.request is None:
        return
    request, cause = world.request, CAUSES[world.request.cause]
    for maintenance in world.changes.maintenances.values():
        is_new = maintenance.id not in before.maintenances
        if not is_new or cause.name == "hardware-failure" or maintenance.state is S.QUEUED:
            continue
        assert maintenance.not_before is not None
        if request.notice is not None:
            assert maintenance.not_before >= world.now + request.notice
        elif request.not_before is not None:
            assert maintenance.not_before >= request.not_before
        elif request.source is None and cause.source is EventSource.PLATFORM and cause.name != "spot-eviction":
            is_due = cause.profile is None and maintenance.vms and not request.is_now
            least = MINIMUM_NOTICE[maintenance.type] if is_due else timedelta(0)
            assert maintenance.not_before >= world.now + least
        by_policy = {e.approved_by for e in world.events_of(maintenance) if e.is_listed} == {"policy"}
        assert maintenance.state is not S.STARTED or maintenance.not_before <= world.now or by_policy


def check_shown_late(before: Snapshot, world: World) -> None:
    """R70b: who is enabled is shown, at once, what waits for its VMs."""
    enabled = {key for key, each in world.audiences.items() if each.enabled_at and not before.audiences[key].enabled_at}
    for was in before.maintenances.values():
        maintenance = world.maintenances[was.id]
        if not enabled or was.state is not S.SCHEDULED or CAUSES[was.cause].profile is not None:
            continue
        shown = {name for e in world.events_of(maintenance) if e.is_listed for name in e.resources}
        there = {name for name in maintenance.vms if world.vms[name].power_state is PowerState.RUNNING}
        assert {name for name in there if world.key_of(name) in enabled} <= shown
        assert maintenance.not_before == was.not_before


def policy_of(world: World, name: str) -> Policy:
    """Of a VM's scope, or its own where it has none."""
    vm = world.vms[name]
    return vm.policy if vm.scope is None else world.scopes[vm.scope].policy


def check_quiet(before: Snapshot, world: World) -> None:
    """Whatever the platform plans or puts off is announced for a moment that is quiet for none of those it hits."""
    for maintenance in world.changes.maintenances.values():
        was = before.maintenances.get(maintenance.id)
        is_free = CAUSES[maintenance.cause].is_fixed or maintenance.source is EventSource.USER
        is_same = was is not None and was.not_before == maintenance.not_before
        if maintenance.state is not S.SCHEDULED or is_free or is_same or maintenance.force_reason is not None:
            continue
        assert maintenance.not_before is not None
        quiet = {each for name in maintenance.vms for each in policy_of(world, name).quiet_hours}
        assert not any(is_quiet(each, maintenance.not_before) for each in quiet)


def check_moves(before: Snapshot, world: World) -> None:
    """R74: NotBefore moves on request only, within its bounds, and never of what is fixed."""
    asked = {e.maintenance_id for e in world.changes.entries if e.kind in {EntryKind.DEFERRED, EntryKind.EXTENDED}}
    for maintenance in world.changes.maintenances.values():
        was = before.maintenances.get(maintenance.id)
        if was is None or was.state is not S.SCHEDULED:
            continue
        assert (was.not_before != maintenance.not_before) == (maintenance.id in asked)
        if maintenance.id not in asked:
            continue
        assert was.not_before is not None
        assert maintenance.not_before is not None
        assert maintenance.not_before > was.not_before > world.now
        assert not CAUSES[maintenance.cause].is_fixed
        assert maintenance.latest_start is None or maintenance.not_before <= maintenance.latest_start
        given = maintenance.extended - was.extended
        if maintenance.deferrals == was.deferrals:
            assert given == maintenance.not_before - was.not_before
            granted = [e for name in maintenance.vms if (e := policy_of(world, name).extension) is not None]
            assert maintenance.extended <= max(each.max for each in granted)
            assert maintenance.extensions <= max(each.times for each in granted)
        else:
            assert not given
            assert maintenance.latest_start is not None


def is_routine(maintenance: Maintenance) -> bool:
    return maintenance.cause in ROUTINE and maintenance.source is EventSource.PLATFORM


def check_exclusion(world: World) -> None:
    """R61: one fault domain of a scope at a time, in routine maintenance; one thing at a time on a VM, but failures."""
    domains: dict[str, set[int]] = defaultdict(set)
    holders: dict[str, list[str]] = defaultdict(list)
    for maintenance in world.maintenances.values():
        if maintenance.state is not S.STARTED:
            continue
        for claim in maintenance.claims:
            holders[claim.vm].append(maintenance.cause)
            if is_routine(maintenance) and claim.scope is not None:
                domains[claim.scope].add(claim.fault_domain)
    assert all(len(seen) == 1 for seen in domains.values()), f"fault domains together: {dict(domains)}"
    for vm, causes in holders.items():
        others = [cause for cause in causes if cause != "hardware-failure"]
        assert len(others) <= 1, f"{vm} is in {causes} at once"
        assert causes.count("hardware-failure") <= 1


def check_deadlines(world: World) -> None:
    """R76, R83, R86: what waits has a deadline to come, or something goes on at its VMs; what has ended has none."""
    started = {vm for m in world.maintenances.values() if m.state is S.STARTED for vm in m.vms}
    for maintenance in world.maintenances.values():
        if maintenance.state is S.SCHEDULED and maintenance.due_at is None:
            assert started & set(maintenance.vms), f"{maintenance.id} waits for nothing"
        elif maintenance.state is S.SCHEDULED:
            assert maintenance.due_at is not None
            assert maintenance.due_at > world.now
            assert maintenance.not_before is not None
            assert maintenance.due_at <= maintenance.not_before
            agreed_at = agreed(world, maintenance)
            if agreed_at is not None and maintenance.type is not EventType.TERMINATE:
                votes = [e for e in world.events_of(maintenance) if e.is_listed]
                by_policy = [e for e in votes if e.approved_by == "policy"]
                delay = max(world.rules.start_delay, world.rules.policy_delay if by_policy else world.rules.start_delay)
                waits = any(policy_of(world, e.resources[0]).quiet_hours for e in by_policy)
                assert waits or maintenance.due_at <= agreed_at + delay
        elif maintenance.state is not S.STARTED:
            assert maintenance.due_at is None
