"""Deferring and extending: bounded, in the audit log, the same for all tenants."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState
from forewarn.core.policy import ExtensionAllowance, Policy
from forewarn.errors import Conflict, InvalidRequest, QuietHoursConflict
from tests.support.quiet import quiet_hours, utc
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, vm

S = MaintenanceState
HOUR = timedelta(hours=1)
AFTERNOON = quiet_hours("sat", "12:00", "18:00", "UTC")
TEN = Policy(extension=ExtensionAllowance(max=minutes(10), times=2))


def two_tenants(policy: Policy = TEN, rules: DecisionRules | None = None) -> World:
    scope = replace(availability_set(), policy=policy)
    return World(
        vm("web-0", scope="web"), vm("web-1", scope="web", update_domain=1), vm("db"), scopes=(scope,), rules=rules
    )


def planned(world: World, *, hours: float | None = 24, **more: Any) -> Maintenance:  # noqa: ANN401 - fields of a request
    latest_start = None if hours is None else NOW + hours * HOUR
    return world.plan_one(
        MaintenanceRequest(cause="host-maintenance", hosts=("host-1",), latest_start=latest_start, **more)
    )


def approve_all_but(world: World, made: Maintenance, *names: str) -> None:
    for event in world.events_of(made):
        if not set(names) & set(event.resources):
            world.approve(event.resources[0], event.id)


def test_deferring_moves_notbefore_for_all_tenants_in_one_change_of_each_document() -> None:
    """R40, R42, R84."""
    world = two_tenants()
    made = planned(world)
    before = {key: world.lines(key) for key in ("scope:web", "vm:db")}
    moved = world.defer(made, by=2 * HOUR)
    assert moved.not_before == moved.due_at == NOW + minutes(15) + 2 * HOUR
    for key, lines in before.items():
        assert world.incarnation(key) == 3
        assert world.lines(key) == tuple(replace(line, not_before=moved.not_before) for line in lines)
    entry = world.entries[-1]
    assert (entry.kind, entry.actor, entry.maintenance_id) == (EntryKind.DEFERRED, "operator:ann", made.id)
    assert entry.reason == "NotBefore changed from 2026-11-21T10:15:00Z to 2026-11-21T12:15:00Z: not now"


def test_a_deferred_maintenance_starts_at_its_new_moment_and_not_before() -> None:
    """R76."""
    world = two_tenants()
    made = planned(world)
    world.defer(made, not_before=NOW + 3 * HOUR)
    world.advance(3 * HOUR - timedelta(seconds=1))
    assert world.state_of(made) is S.SCHEDULED
    world.advance(timedelta(seconds=1))
    assert world.state_of(made) is S.STARTED


def test_approvals_stand_when_it_is_deferred() -> None:
    """R49, invariant 5 of the design: whoever was told 200 is not asked again."""
    world = two_tenants()
    made = planned(world)
    approve_all_but(world, made, "db")
    world.defer(made, by=HOUR)
    approved = [event.is_approved for event in world.events_of(made)]
    assert sorted(approved) == [False, True, True]
    (last,) = [event for event in world.events_of(made) if not event.is_approved]
    world.approve("db", last.id)
    assert world.state_of(made) is S.STARTED


@pytest.mark.parametrize("what", ["defer", "extend"])
def test_when_all_have_approved_it_is_too_late(what: str) -> None:
    world = two_tenants(rules=DecisionRules(start_delay=minutes(5)))
    made = planned(world)
    approve_all_but(world, made)
    with pytest.raises(Conflict, match="all its events are approved"):
        world.defer(made, by=HOUR) if what == "defer" else world.extend(made, minutes(1), "web")
    assert world.get(made).not_before == made.not_before


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"by": 24 * HOUR}, Conflict, "2026-11-22T10:15:00Z is after the latest start, 2026-11-22T10:00:00Z"),
        ({"not_before": NOW + 25 * HOUR}, Conflict, "is after the latest start"),
        ({"not_before": NOW + minutes(15)}, InvalidRequest, "is not later than the current NotBefore"),
        ({"by": -HOUR}, InvalidRequest, "is not later than the current NotBefore"),
        ({"by": timedelta(0)}, InvalidRequest, "is not later than the current NotBefore"),
        ({}, InvalidRequest, "not both"),
        ({"by": HOUR, "not_before": NOW + HOUR}, InvalidRequest, "not both"),
    ],
)
def test_it_is_deferred_to_a_later_moment_up_to_the_latest_start(
    how: dict[str, Any], error: type[Exception], words: str
) -> None:
    world = two_tenants()
    made = planned(world)
    with pytest.raises(error, match=words):
        world.defer(made, **how)
    assert world.get(made) == made


def test_without_a_latest_start_it_cannot_be_deferred() -> None:
    world = two_tenants()
    with pytest.raises(Conflict, match="scheduled without a latest start"):
        world.defer(planned(world, hours=None), by=HOUR)


def test_it_may_be_deferred_a_number_of_times() -> None:
    world = two_tenants(rules=DecisionRules(deferrals_max=2))
    made = planned(world)
    for _ in range(2):
        world.defer(made, by=minutes(1))
    with pytest.raises(Conflict, match=r"deferred 2 times.*deferrals_max"):
        world.defer(made, by=minutes(1))


@pytest.mark.parametrize("state", ["queued", "started", "canceled"])
@pytest.mark.parametrize("what", ["defer", "extend"])
def test_only_a_scheduled_one_can_be_put_off(state: str, what: str) -> None:
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), scopes=(availability_set(),))
    first, queued = world.plan(
        MaintenanceRequest(cause="host-maintenance", vms=("web-0", "web-1"), latest_start=NOW + HOUR)
    )
    if state == "started":
        world.force_start(first)
    elif state == "canceled":
        world.cancel(first)
    chosen = queued if state == "queued" else first
    with pytest.raises(Conflict, match=f"is {state}: only a scheduled one can be {what}"):
        world.defer(chosen, by=minutes(1)) if what == "defer" else world.extend(chosen, minutes(1))


@pytest.mark.parametrize("cause", ["spot-eviction", "predicted-failure"])
def test_what_has_a_fixed_notice_can_be_neither_deferred_nor_extended(cause: str) -> None:
    """R72, R90; R74 for a Terminate."""
    world = World(replace(vm("db"), policy=TEN))
    with pytest.raises(InvalidRequest, match="leave out the latest start"):
        world.plan(MaintenanceRequest(cause=cause, vms=("db",), latest_start=NOW + 1000 * HOUR))
    made = world.plan_one(MaintenanceRequest(cause=cause, vms=("db",)))
    with pytest.raises(Conflict, match="its NotBefore is fixed"):
        world.extend(made, minutes(1))
    with pytest.raises(Conflict, match="its NotBefore is fixed"):
        world.defer(made, by=minutes(1))


def test_a_terminate_cannot_be_extended() -> None:
    """R74."""
    world = World(replace(vm("db", terminate_timeout=minutes(5)), policy=TEN))
    made = world.plan_one(MaintenanceRequest(cause="scale-set-delete", vms=("db",)))
    assert world.events_of(made)
    with pytest.raises(Conflict, match="its NotBefore is fixed"):
        world.extend(made, minutes(1))


def test_once_its_notbefore_has_come_nothing_is_put_off() -> None:
    """It waits at the gate for what goes on at its VM."""
    world = World(replace(vm("db"), policy=TEN))
    world.force_start(world.plan_one(MaintenanceRequest(cause="user-restart", vms=("db",))))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("db",), latest_start=NOW + HOUR))
    world.advance(minutes(20))
    assert world.state_of(made) is S.SCHEDULED
    with pytest.raises(Conflict, match="its NotBefore has passed"):
        world.defer(made, by=minutes(1))


@pytest.mark.parametrize(
    ("latest_start", "words"),
    [
        (NOW + minutes(14), "is before NotBefore"),
        (NOW - HOUR, "is before NotBefore"),
        (NOW + timedelta(days=91), "more than 90 days away"),
    ],
)
def test_a_latest_start_that_makes_no_sense_is_refused(latest_start: datetime, words: str) -> None:
    world = two_tenants()
    with pytest.raises(InvalidRequest, match=words):
        world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",), latest_start=latest_start))


def test_a_deferred_maintenance_is_kept_out_of_quiet_hours() -> None:
    evening = quiet_hours("sat", "11:00", "20:00", "UTC")
    world = two_tenants(Policy(quiet_hours=(evening,)))
    made = planned(world, hours=12)
    assert made.not_before == NOW + minutes(15)
    assert world.defer(made, by=HOUR).not_before == utc("2026-11-21 20:00")
    short = two_tenants(Policy(quiet_hours=(evening,)))
    with pytest.raises(QuietHoursConflict, match="quiet hours of web: NotBefore is unchanged"):
        short.defer(planned(short, hours=4), by=HOUR)


# Extending


def test_more_time_is_given_as_often_and_as_much_as_the_policy_says() -> None:
    world = two_tenants()
    made = planned(world, hours=None)
    assert world.extend(made, minutes(4), "web").not_before == NOW + minutes(19)
    with pytest.raises(Conflict, match="7m is more than the 6m that the policy of web still grants"):
        world.extend(made, minutes(7), "web")
    last = world.extend(made, minutes(6), "web")
    assert (last.not_before, last.extensions, last.extended) == (NOW + minutes(25), 2, minutes(10))
    with pytest.raises(Conflict, match="extended 2 times"):
        world.extend(made, timedelta(seconds=1), "web")
    assert [entry.kind for entry in world.entries].count(EntryKind.EXTENDED) == 2
    assert world.incarnation("vm:db") == 4


@pytest.mark.parametrize(
    ("tenant", "by", "error", "words"),
    [
        (None, minutes(1), InvalidRequest, "name a scope or standalone VM"),
        ("db", minutes(1), Conflict, "the policy of db grants no extension"),
        ("bank", minutes(1), InvalidRequest, "'bank' has no event of maintenance .*: name a scope"),
        ("web", timedelta(0), InvalidRequest, "expected a positive duration"),
        ("web", -minutes(1), InvalidRequest, "expected a positive duration"),
    ],
)
def test_who_asks_has_to_be_known_and_granted_it(
    tenant: str | None, by: timedelta, error: type[Exception], words: str
) -> None:
    world = two_tenants()
    made = planned(world)
    with pytest.raises(error, match=words):
        world.extend(made, by, tenant)
    assert world.get(made) == made


def test_the_only_one_whom_it_hits_need_not_be_named() -> None:
    world = World(replace(vm("db"), policy=TEN))
    made = planned(world, hours=None)
    assert world.extend(made, minutes(5)).not_before == NOW + minutes(20)


def test_who_has_approved_needs_no_more_time() -> None:
    world = two_tenants()
    made = planned(world)
    approve_all_but(world, made, "db")
    with pytest.raises(Conflict, match="web has already approved"):
        world.extend(made, minutes(1), "web")


def test_who_is_not_told_prepares_nothing() -> None:
    world = World(replace(vm("db"), policy=TEN), is_enabled=False)
    made = planned(world, not_before=NOW + HOUR)
    with pytest.raises(Conflict, match="has no events to prepare for"):
        world.extend(made, minutes(1))


def test_more_time_ends_at_the_latest_start() -> None:
    world = two_tenants()
    made = planned(world, hours=1 / 3)
    with pytest.raises(Conflict, match="after the latest start"):
        world.extend(made, minutes(6), "web")
    assert world.extend(made, minutes(5), "web").not_before == NOW + minutes(20)


def test_more_time_that_ends_in_quiet_hours_needs_to_reach_over_them() -> None:
    lunch = quiet_hours("sat", "10:16", "10:20", "UTC")
    world = two_tenants(replace(TEN, quiet_hours=(lunch,)))
    assert world.extend(planned(world), minutes(2), "web").extended == minutes(5)
    long_lunch = quiet_hours("sat", "10:16", "11:20", "UTC")
    world = two_tenants(replace(TEN, quiet_hours=(long_lunch,)))
    with pytest.raises(Conflict, match="quiet hours would move it to"):
        world.extend(planned(world), minutes(2), "web")


def test_a_latest_start_before_the_earliest_start_is_refused_in_the_queue_too() -> None:
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), scopes=(availability_set(),))
    early = NOW + timedelta(minutes=1)
    with pytest.raises(InvalidRequest, match=r"the latest start, .* is before NotBefore"):
        world.plan(MaintenanceRequest(cause="host-maintenance", vms=("web-0",), latest_start=early))
    world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("web-0",)))
    with pytest.raises(InvalidRequest, match=r"the latest start, .* is before NotBefore"):
        world.plan(MaintenanceRequest(cause="host-maintenance", vms=("web-1",), latest_start=early))


def a_scope_and_a_vm_called_web() -> World:
    """They belong to two tenants."""
    scope = replace(availability_set(), policy=TEN)
    return World(vm("web-0", scope="web"), replace(vm("web"), policy=Policy(quiet_hours=(AFTERNOON,))), scopes=(scope,))


def test_a_scope_and_a_vm_of_the_same_name_are_two_tenants() -> None:
    world = a_scope_and_a_vm_called_web()
    made = planned(world)
    with pytest.raises(InvalidRequest, match="name scope:web or vm:web"):
        world.extend(made, minutes(4), "web")
    with pytest.raises(Conflict, match="the policy of web grants no extension"):
        world.extend(made, minutes(4), "vm:web")
    assert world.extend(made, minutes(4), "scope:web").not_before == NOW + minutes(19)


def test_the_quiet_hours_of_a_vm_hold_beside_a_scope_of_its_name() -> None:
    world = a_scope_and_a_vm_called_web()
    made = planned(world)
    moved = world.defer(made, by=2 * HOUR)
    assert (moved.not_before, moved.moved_by) == (utc("2026-11-21 18:00"), ("web",))
