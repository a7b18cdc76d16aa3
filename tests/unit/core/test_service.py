from __future__ import annotations

from datetime import timedelta

from forewarn.core.decision import Rules
from forewarn.core.model import Audience, EntryKind, EventStatus, MaintenanceState
from forewarn.core.request import Request
from forewarn.core.service import disable_at
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, vm

S = MaintenanceState
RESTART = Request(cause="user-restart", vms=("a",))


def test_the_first_request_enables_with_incarnation_one_and_no_events() -> None:
    """R25, R45, R67, W9."""
    world = World(vm("a"), is_enabled=False)
    enabled = world.enable("vm:a")
    assert (enabled.enabled_at, enabled.active_until, enabled.epoch, enabled.incarnation) == (NOW, NOW, 1, 1)
    assert world.lines("vm:a") == ()
    assert [(entry.kind, entry.audience) for entry in world.changes.entries] == [(EntryKind.ENABLED, "vm:a")]


def test_the_first_incarnation_is_a_setting() -> None:
    """R45 (A6)."""
    assert World(vm("a"), rules=Rules(initial_incarnation=0)).incarnation("vm:a") == 0


def test_enabling_again_changes_nothing() -> None:
    """R67."""
    world = World(vm("a"))
    world.now += minutes(1)
    assert world.enable("vm:a").enabled_at == NOW
    assert world.changes.is_empty


def test_enabling_shows_nothing_that_was_begun_before() -> None:
    """R45, R68."""
    world = World(vm("a"), is_enabled=False)
    made = world.plan_one(Request(cause="user-restart", vms=("a",), not_before=NOW + minutes(60)))
    world.enable("vm:a")
    assert world.lines("vm:a") == ()
    assert world.state_of(made) is S.SCHEDULED


def test_silence_disables_after_a_day() -> None:
    """R69."""
    audience = Audience(key="vm:a", enabled_at=NOW, active_until=NOW + minutes(7))
    assert disable_at(audience, Rules().disable_after) == NOW + minutes(7) + timedelta(hours=24)


def test_what_is_disabled_is_not_disabled_again() -> None:
    """R69."""
    assert disable_at(Audience(key="vm:a"), timedelta(hours=24)) is None


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
    world.plan(Request(cause="host-maintenance", hosts=("host-1",)))
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


def test_while_disabled_operations_make_no_event_and_run_at_once() -> None:
    """R70."""
    world = World(vm("a"))
    world.disable("vm:a")
    made = world.plan_one(RESTART)
    assert (made.state, world.events_of(made)) == (S.STARTED, [])


def test_after_enabling_anew_the_incarnation_begins_again_with_no_events() -> None:
    """R46: in a new epoch; R70: what was dropped does not come back."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    assert world.incarnation("vm:a") == 2
    world.disable("vm:a")
    world.enable("vm:a")
    assert (world.incarnation("vm:a"), world.audiences["vm:a"].epoch, world.lines("vm:a")) == (1, 2, ())
    world.complete(world.force_start(made))
    assert (world.incarnation("vm:a"), world.lines("vm:a")) == (1, ())


def test_after_enabling_anew_new_operations_are_announced() -> None:
    """R67, R70."""
    world = World(vm("a"))
    world.disable("vm:a")
    world.enable("vm:a")
    assert world.plan_one(RESTART).state is S.SCHEDULED
    assert world.incarnation("vm:a") == 2
