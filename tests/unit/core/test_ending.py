from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, EventStatus, EventType, MaintenanceState, PowerState, Scope, ScopeKind
from forewarn.errors import Conflict, IllegalTransition, InvalidRequest
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import vm

S = MaintenanceState
RESTART = MaintenanceRequest(cause="user-restart", vms=("a",))
EVICTION = MaintenanceRequest(cause="spot-eviction", vms=("a",))


def test_a_cancel_removes_the_event_and_nothing_happens() -> None:
    """R77."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    canceled = world.cancel(made)
    assert (canceled.state, canceled.ended_at, canceled.started_at, canceled.due_at) == (S.CANCELED, NOW, None, None)
    assert (world.lines("vm:a"), world.incarnation("vm:a")) == ((), 3)
    world.advance(minutes(60))
    assert world.state_of(made) is S.CANCELED
    assert [(entry.kind, entry.reason) for entry in world.entries[-1:]] == [(EntryKind.CANCELED, "not needed")]


def test_a_queued_maintenance_can_be_canceled_unseen() -> None:
    """R61, R77."""
    world = World(
        vm("web-0", scope="web"),
        vm("web-1", scope="web", fault_domain=1),
        scopes=(Scope(name="web", kind=ScopeKind.AVAILABILITY_SET),),
    )
    _, second = world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert world.cancel(second).state is S.CANCELED
    assert world.incarnation("scope:web") == 2


def test_a_canceled_maintenance_cannot_be_started() -> None:
    """R75, R77."""
    world = World(vm("a"))
    made = world.cancel(world.plan_one(RESTART))
    with pytest.raises(Conflict, match="is canceled: only a scheduled one can be started"):
        world.force_start(made)


def test_a_started_maintenance_cannot_be_canceled() -> None:
    """R75, R77."""
    world = World(vm("a"))
    made = world.force_start(world.plan_one(RESTART))
    with pytest.raises(Conflict, match="only a queued or scheduled one can be canceled"):
        world.cancel(made)


def test_a_scheduled_maintenance_cannot_be_completed() -> None:
    """R79."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    with pytest.raises(Conflict, match="only a started one can be completed"):
        world.complete(made)


def test_completion_removes_the_event() -> None:
    """R27, R42, R79: 1 empty, 2 Scheduled, 3 Started, 4 empty."""
    world = World(vm("a"))
    seen = [(world.incarnation("vm:a"), None)]
    made = world.plan_one(RESTART)
    statuses: list[tuple[int, EventStatus | None]] = [*seen, (world.incarnation("vm:a"), world.line("vm:a").status)]
    world.approve("a", world.event_of(made).id)
    statuses.append((world.incarnation("vm:a"), world.line("vm:a").status))
    assert world.complete(made).state is S.COMPLETED
    assert world.lines("vm:a") == ()
    statuses.append((world.incarnation("vm:a"), None))
    assert statuses == [(1, None), (2, EventStatus.SCHEDULED), (3, EventStatus.STARTED), (4, None)]


def test_a_further_operation_has_a_new_event() -> None:
    """R30, R79."""
    world = World(vm("a"))
    first = world.force_start(world.plan_one(RESTART))
    world.complete(first)
    assert world.event_of(world.plan_one(RESTART)).id != world.event_of(first).id


def test_a_failed_maintenance_leaves_the_document_too() -> None:
    """R79."""
    world = World(vm("a"))
    made = world.fail(world.force_start(world.plan_one(RESTART)))
    assert (made.state, world.lines("vm:a"), world.incarnation("vm:a")) == (S.FAILED, (), 4)


def test_a_scheduled_maintenance_cannot_fail() -> None:
    """R75."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    with pytest.raises(IllegalTransition, match="fail is not possible"):
        world.fail(made)


def test_the_first_impact_is_noted_once_and_every_one_stands_in_the_audit_log() -> None:
    """R80, R82: no document changes."""
    world = World(vm("a"))
    made = world.force_start(world.plan_one(RESTART))
    before = world.line("vm:a")
    world.now += minutes(1)
    world.impact(made)
    world.now += minutes(1)
    world.impact(made)
    assert world.get(made).impacted_at == NOW + minutes(1)
    assert [entry.at for entry in world.entries if entry.kind is EntryKind.IMPACTED] == [
        NOW + minutes(1),
        NOW + minutes(2),
    ]
    assert (world.line("vm:a"), world.incarnation("vm:a")) == (before, 3)


@pytest.mark.parametrize(("announced_s", "duration_s"), [(9, 8), (9, 0), (-1, 3600), (1, 0)])
def test_a_further_impact_shorter_than_announced_changes_no_document(announced_s: int, duration_s: int) -> None:
    """R80."""
    world = World(vm("a"))
    made = world.force_start(world.plan_one(replace(RESTART, duration_s=announced_s)))
    world.extra_impact(made, duration_s)
    assert world.changes.documents == []
    assert [entry.reason for entry in world.changes.entries] == [f"further impact of {duration_s} s"]


@pytest.mark.parametrize(("announced_s", "duration_s"), [(9, 9), (9, 10), (0, 0), (9, -1), (-1, -1)])
def test_a_further_impact_as_long_as_announced_is_refused(announced_s: int, duration_s: int) -> None:
    """R80."""
    world = World(vm("a"))
    made = world.force_start(world.plan_one(replace(RESTART, duration_s=announced_s)))
    with pytest.raises(InvalidRequest, match=f"invalid impact of {duration_s} s: expected at least 0 and less than"):
        world.extra_impact(made, duration_s)


def test_there_is_no_impact_before_the_start_or_after_the_end() -> None:
    """R82."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    with pytest.raises(Conflict, match="is scheduled: only a started one can have an impact"):
        world.extra_impact(made, 1)
    world.cancel(made)
    with pytest.raises(Conflict, match="is canceled: only a started one can have an impact"):
        world.extra_impact(made, 1)


def test_a_preempted_vm_is_deallocated() -> None:
    """R90: at NotBefore, when nobody approved."""
    world = World(vm("a", priority="Spot"))
    made = world.plan_one(EVICTION)
    world.advance(minutes(0.5))
    assert world.state_of(made) is S.STARTED
    world.complete(made)
    assert world.vms["a"].power_state is PowerState.DEALLOCATED
    (entry,) = (entry for entry in world.changes.entries if entry.kind is EntryKind.VM_CHANGED)
    assert (entry.vm, entry.maintenance_id, entry.reason) == ("a", made.id, "deallocated")


def test_a_terminated_vm_is_deleted_at_the_time_out() -> None:
    """R74, R91."""
    world = World(vm("a", terminate_timeout=minutes(5)))
    made = world.plan_one(MaintenanceRequest(cause="scale-set-delete", vms=("a",)))
    world.advance(minutes(5))
    world.complete(made)
    assert (made.type, world.vms["a"].power_state) == (EventType.TERMINATE, PowerState.DELETED)


@pytest.mark.parametrize("cause", ["user-restart", "user-redeploy", "live-migration"])
def test_other_operations_leave_the_vm_running(cause: str) -> None:
    """R31."""
    world = World(vm("a"))
    world.complete(world.force_start(world.plan_one(MaintenanceRequest(cause=cause, vms=("a",)))))
    assert world.vms["a"].power_state is PowerState.RUNNING
    assert world.changes.vms == {}


def test_what_was_planned_for_a_vm_alone_goes_with_it() -> None:
    """R74, R77, R90."""
    world = World(vm("a"), vm("b"))
    alone = world.plan_one(RESTART)
    shared = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.complete(world.force_start(world.plan_one(EVICTION)))
    assert (world.state_of(alone), world.state_of(shared)) == (S.CANCELED, S.SCHEDULED)
    assert [e.reason for e in world.entries if e.kind is EntryKind.CANCELED] == ["the VM is deallocated"]
    # The operator ended the eviction only.
    assert [e.actor for e in world.entries if e.kind is EntryKind.CANCELED] == ["forewarn"]


@pytest.mark.parametrize("cause", ["user-redeploy", "platform-redeploy"])
def test_a_redeployment_makes_the_predicted_failure_go_away(cause: str) -> None:
    """R72: and nothing else."""
    world = World(vm("a"), vm("b"))
    predicted = world.plan(MaintenanceRequest(cause="predicted-failure", hosts=("host-1",)))
    restart = world.plan_one(RESTART)
    world.complete(world.force_start(world.plan_one(MaintenanceRequest(cause=cause, vms=("a",)))))
    assert [world.state_of(each) for each in (*predicted, restart)] == [S.CANCELED, S.SCHEDULED, S.SCHEDULED]
    assert [line.event_id for line in world.lines("vm:a")] == [world.event_of(restart).id]


def test_a_restart_leaves_a_predicted_failure_pending() -> None:
    """R72."""
    world = World(vm("a"))
    predicted = world.plan_one(MaintenanceRequest(cause="predicted-failure", vms=("a",)))
    world.complete(world.force_start(world.plan_one(RESTART)))
    assert world.state_of(predicted) is S.SCHEDULED


def test_the_end_of_a_vm_does_not_end_what_is_going_on_at_it() -> None:
    """R79: a hardware failure stays Started until it is over itself."""
    world = World(vm("a"))
    eviction = world.force_start(world.plan_one(EVICTION))
    failure = world.plan_one(MaintenanceRequest(cause="hardware-failure", hosts=("host-1",)))
    world.complete(eviction)
    assert world.state_of(failure) is S.STARTED
    assert world.line("vm:a").event_id == world.event_of(failure).id


def test_a_vm_that_is_gone_is_no_longer_waited_for() -> None:
    """R83, R86, R90: the maintenance of its host goes on, and starts when the other tenant has approved."""
    world = World(vm("a"), vm("b"))
    freeze = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    eviction = world.plan_one(EVICTION)
    mine, theirs = world.events_of(freeze)
    world.approve("b", theirs.id)
    world.complete(world.force_start(eviction))
    assert not world.events[mine.id].is_listed
    assert world.state_of(freeze) is S.STARTED


def test_a_host_maintenance_outlives_its_only_vm() -> None:
    """R90: the operator still wants to maintain the host; at NotBefore it starts."""
    world = World(vm("a"))
    freeze = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.complete(world.force_start(world.plan_one(EVICTION)))
    assert world.state_of(freeze) is S.SCHEDULED
    assert world.lines("vm:a") == ()
    world.advance(minutes(16))
    assert world.state_of(freeze) is S.STARTED
