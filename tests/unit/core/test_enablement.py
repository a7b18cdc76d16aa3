from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, EventStatus, MaintenanceState
from forewarn.core.policy import Policy
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, vm

S = MaintenanceState
RESTART = MaintenanceRequest(cause="user-restart", vms=("a",))


def test_the_first_request_enables_with_incarnation_one_and_no_events() -> None:
    """R25, R45, R67, W9."""
    world = World(vm("a"), is_enabled=False)
    enabled = world.enable("vm:a")
    assert (enabled.enabled_at, enabled.active_until, enabled.epoch, enabled.incarnation) == (NOW, NOW, 1, 1)
    assert world.lines("vm:a") == ()
    assert [(entry.kind, entry.audience) for entry in world.changes.entries] == [(EntryKind.ENABLED, "vm:a")]


def test_the_first_incarnation_is_a_setting() -> None:
    """R45 (A6)."""
    assert World(vm("a"), rules=DecisionRules(initial_incarnation=0)).incarnation("vm:a") == 0


def test_enabling_again_changes_nothing() -> None:
    """R67."""
    world = World(vm("a"))
    world.now += minutes(1)
    assert world.enable("vm:a").enabled_at == NOW
    assert world.changes.is_empty


def test_enabling_shows_nothing_that_has_started() -> None:
    """R45, R68, R75."""
    world = World(vm("a"), is_enabled=False)
    made = world.plan_one(RESTART)
    world.enable("vm:a")
    assert world.lines("vm:a") == ()
    assert world.state_of(made) is S.STARTED


@pytest.mark.parametrize("announce_delay", [minutes(0), minutes(5)])
def test_a_scope_that_becomes_enabled_is_shown_what_waits_with_the_not_before_that_stands(
    announce_delay: timedelta,
) -> None:
    """R67, R68, R70b: also where new events take some minutes to arrive."""
    fleet = (vm("web-0", scope="web"), vm("web-1", scope="web", update_domain=1), vm("db"))
    world = World(
        *fleet, scopes=(availability_set(),), rules=DecisionRules(announce_delay=announce_delay), is_enabled=False
    )
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",), notice=timedelta(hours=4)))
    world.advance(minutes(90))
    world.enable("scope:web")
    assert {line.resources for line in world.lines("scope:web")} == {("web-0",), ("web-1",)}
    assert {line.not_before for line in world.lines("scope:web")} == {NOW + timedelta(hours=4)}
    assert world.incarnation("scope:web") == 1
    assert world.lines("vm:db") == ()
    assert [entry.kind for entry in world.changes.entries] == [
        EntryKind.ENABLED,
        EntryKind.ANNOUNCED,
        EntryKind.ANNOUNCED,
    ]
    world.advance(minutes(150))
    assert world.state_of(made) is S.STARTED


def test_a_policy_that_approves_agrees_to_what_it_is_shown_late() -> None:
    """R70b, X5."""
    world = World(replace(vm("a"), policy=Policy(approves_freezes_up_to=timedelta(seconds=9))), is_enabled=False)
    made = world.plan_one(MaintenanceRequest(cause="live-migration", vms=("a",), notice=timedelta(hours=4)))
    world.enable("vm:a")
    assert world.event_of(made).approved_by == "policy"
    world.advance(timedelta(seconds=5))
    assert world.state_of(made) is S.STARTED


def test_silence_disables_after_a_day_by_default() -> None:
    """R69."""
    assert DecisionRules().disable_after == timedelta(hours=24)


def test_disabling_drops_the_events_and_the_operation_still_runs_at_its_not_before() -> None:
    """R70."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    event = world.event_of(made)
    disabled = world.disable("vm:a")
    assert (disabled.enabled_at, disabled.active_until) == (None, None)
    assert world.lines("vm:a") == ()
    assert [(entry.kind, entry.event_id) for entry in world.changes.entries] == [
        (EntryKind.WITHDRAWN, event.id),
        (EntryKind.DISABLED, None),
    ]
    world.advance(minutes(15) - timedelta(seconds=1))
    assert world.state_of(made) is S.SCHEDULED
    world.advance(timedelta(seconds=1))
    assert world.state_of(made) is S.STARTED


def test_disabling_one_tenant_leaves_the_others_alone() -> None:
    """R70, R85."""
    world = World(vm("web-0", scope="web"), vm("db"), scopes=(availability_set(),))
    world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    before = world.line("vm:db")
    world.disable("scope:web")
    assert (world.line("vm:db"), world.incarnation("vm:db")) == (before, 2)


def test_a_started_operation_goes_on_unseen_when_its_audience_is_disabled() -> None:
    """R70."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    world.advance(minutes(15))
    assert world.line("vm:a").status is EventStatus.STARTED
    world.disable("vm:a")
    assert (world.lines("vm:a"), world.state_of(made)) == ((), S.STARTED)


def test_while_disabled_a_users_operation_makes_no_event_and_runs_at_once() -> None:
    """R70, R70a."""
    world = World(vm("a"))
    world.disable("vm:a")
    made = world.plan_one(RESTART)
    assert (made.state, world.events_of(made)) == (S.STARTED, [])


def test_after_enabling_anew_the_incarnation_begins_again_and_what_waits_comes_back() -> None:
    """R46: in a new epoch; R70b: under the same id, with the NotBefore that stands."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    shown = world.line("vm:a")
    world.disable("vm:a")
    assert world.lines("vm:a") == ()
    world.enable("vm:a")
    assert (world.incarnation("vm:a"), world.audiences["vm:a"].epoch, world.line("vm:a")) == (1, 2, shown)
    world.complete(world.force_start(made))
    assert (world.incarnation("vm:a"), world.lines("vm:a")) == (3, ())


def test_an_event_of_a_vm_that_is_gone_does_not_come_back() -> None:
    """R70b, R90."""
    world = World(vm("spot", priority="Spot"), vm("db"))
    shared = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.complete(world.force_start(world.plan_one(MaintenanceRequest(cause="spot-eviction", vms=("spot",)))))
    world.disable("vm:spot")
    world.enable("vm:spot")
    assert world.lines("vm:spot") == ()
    assert world.state_of(shared) is S.SCHEDULED


def test_after_enabling_anew_new_operations_are_announced() -> None:
    """R67, R70."""
    world = World(vm("a"))
    world.disable("vm:a")
    world.enable("vm:a")
    assert world.plan_one(RESTART).state is S.SCHEDULED
    assert world.incarnation("vm:a") == 2
