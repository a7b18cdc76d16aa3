from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from forewarn.core.maintenance import settlement
from forewarn.core.maintenance.approval import Approver, approve_events
from forewarn.core.maintenance.decision import DecisionRules, Draft, WorkingSet
from forewarn.core.maintenance.ending import complete_maintenance
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.settlement import get_ready_time, is_approved_by_all, settle_maintenances
from forewarn.core.model import EntryKind, EventStatus, Maintenance, MaintenanceState, Scope
from forewarn.errors import Conflict, IllegalTransition
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import an_event, availability_set, maintenance, scale_set, vm

S = MaintenanceState
RESTART = MaintenanceRequest(cause="user-restart", vms=("a",))


def shared_host(rules: DecisionRules | None = None) -> World:
    return World(
        vm("web-0", scope="web"),
        vm("web-1", scope="web", host="host-2"),
        vm("db"),
        scopes=(availability_set(),),
        rules=rules,
    )


def actors(world: World, made: Maintenance) -> list[tuple[str, str]]:
    """Return kind and actor of the entries of a maintenance."""
    return [(entry.kind.value, entry.actor) for entry in world.entries if entry.maintenance_id == made.id]


def approve_all(world: World, made: Maintenance) -> None:
    for event in world.events_of(made):
        world.approve(event.resources[0], event.id)


def test_without_a_focus_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most approvals of a fleet start nothing, so nothing is looked up for them."""
    looked_up: list[str] = []

    def note(_: Draft, each: Maintenance) -> list[Maintenance]:
        looked_up.append(each.id)
        return []

    monkeypatch.setattr(Draft, "find_on_same_vms", note)
    event, m = an_event("a", audience="vm:a"), maintenance(vm("a"), vm("b"), not_before=NOW + minutes(15))
    state = WorkingSet(maintenances={m.id: m}, events={event.id: event})
    draft = Draft(state, now=NOW, rules=DecisionRules(), new_id=lambda kind: kind, new_sequence=lambda: 1, actor="vm:a")
    approve_events(draft, [event.id], Approver(actor="vm:a", audience="vm:a", vm="a"))
    settle_maintenances(draft)
    assert looked_up == []
    assert draft.events[event.id].is_approved


@pytest.mark.parametrize(
    ("cause", "scopes"),
    [
        ("user-restart", []),
        ("user-restart", [availability_set("web")]),
        ("scale-set-delete", [scale_set("web")]),
        ("scale-set-delete", [scale_set("web", couples_deletes=True)]),
    ],
)
def test_a_batch_of_approvals_checks_each_maintenance_a_few_times(
    cause: str, scopes: list[Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R92. A decision settles after each of its approvals, and may have those of a whole fleet or scope."""
    scope = scopes[0].name if scopes else None
    names = [f"vm-{number}" for number in range(50)]
    vms = [vm(name, host=f"on-{name}", scope=scope, terminate_timeout=minutes(5)) for name in names]
    world = World(*vms, scopes=tuple(scopes))
    for name in names:
        world.plan_one(MaintenanceRequest(cause=cause, vms=(name,)))
    checked: list[str] = []
    settle_maintenance = settlement._settle_maintenance

    def count(draft: Draft, maintenance: Maintenance) -> None:
        checked.append(maintenance.id)
        settle_maintenance(draft, maintenance)

    monkeypatch.setattr(settlement, "_settle_maintenance", count)
    draft = world.draft()
    checked.clear()
    for event in world.events.values():
        approve_events(draft, [event.id], Approver(actor=f"vm:{event.resources[0]}", audience=event.audience))
        settle_maintenances(draft)
    world.commit(draft)
    assert {each.state for each in world.maintenances.values()} == {S.STARTED}
    assert max(Counter(checked).values()) <= 4


def test_the_service_is_the_actor_of_what_one_maintenance_causes_in_another() -> None:
    """The actuator that ended a restart has not announced the maintenance that waited for it."""
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), scopes=(availability_set(),))
    first, second = world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.force_start(first)
    draft = world.draft("actuator")
    complete_maintenance(draft, draft.maintenances[first.id])
    world.commit(draft)
    assert actors(world, first)[1:] == [("started", "operator:ann"), ("completed", "actuator")]
    assert actors(world, second) == [("queued", "operator:ann"), ("scheduled", "forewarn")]
    # The approval is the VM's, and so is the start that it brings.
    world.approve("web-1", world.event_of(second).id)
    assert actors(world, second)[2:] == [("approved", "vm:web-1"), ("started", "vm:web-1")]


def test_the_service_is_the_actor_of_a_start_that_was_held_back() -> None:
    world = World(vm("a"), vm("b"))
    both = MaintenanceRequest(cause="host-maintenance", hosts=("host-1",))
    held = world.plan_one(both)
    blocking = world.force_start(world.plan_one(MaintenanceRequest(cause="user-restart", vms=("a",))))
    if world.state_of(blocking) is not S.STARTED:
        raise AssertionError("the restart was to begin first")
    approve_all(world, held)
    world.complete(blocking)
    assert actors(world, held)[-1] == ("started", "forewarn")


@pytest.mark.parametrize("command", ["cancel", "restart"])
def test_a_command_is_not_the_actor_of_what_was_due_before_it(command: str) -> None:
    world = World(vm("a"), vm("b"))
    due = world.plan_one(RESTART)
    other = world.plan_one(MaintenanceRequest(cause="user-restart", vms=("b",), notice=minutes(60)))
    world.now += minutes(15)
    if command == "cancel":
        world.cancel(other)
    else:
        world.plan_one(MaintenanceRequest(cause="user-redeploy", vms=("a",)))
    assert actors(world, due)[-1] == ("started", "forewarn")


def test_each_vm_of_a_batch_of_approvals_is_the_actor_of_its_own_start() -> None:
    world = World(vm("a"), vm("b"))
    for name in ("a", "b"):
        world.plan_one(MaintenanceRequest(cause="user-restart", vms=(name,)))
    draft = world.draft()
    for event in world.events.values():
        draft.actor = f"vm:{event.resources[0]}"
        approve_events(draft, [event.id], Approver(actor=draft.actor, audience=event.audience))
        settle_maintenances(draft)
    world.commit(draft)
    for made in world.maintenances.values():
        assert actors(world, made)[-1] == ("started", f"vm:{made.vms[0]}")


def test_without_events_there_is_no_vote() -> None:
    """R70, R86."""
    assert not is_approved_by_all([])
    assert not is_approved_by_all([an_event(is_listed=False, approved_at=NOW)])


def test_a_withdrawn_event_has_no_vote() -> None:
    """R70, R86."""
    assert is_approved_by_all([an_event(approved_at=NOW), an_event(id="B", is_listed=False)])
    assert not is_approved_by_all([an_event(approved_at=NOW), an_event(id="B")])


def test_a_start_happens_at_not_before_with_the_same_event() -> None:
    """R30, R36, R40, R76: only status and NotBefore change."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    before = world.line("vm:a")
    assert (before.status, before.not_before) == (EventStatus.SCHEDULED, NOW + minutes(15))
    world.advance(minutes(15))
    after = world.line("vm:a")
    assert (after.status, after.not_before) == (EventStatus.STARTED, None)
    assert (after.event_id, after.resources, after.type, after.source, after.description, after.duration_s) == (
        before.event_id,
        before.resources,
        before.type,
        before.source,
        before.description,
        before.duration_s,
    )
    assert world.get(made).started_at == NOW + minutes(15)


def test_the_actuator_is_due_at_the_moment_of_the_start() -> None:
    """R82."""
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    assert made.due_at == NOW + minutes(15)
    world.advance(minutes(16))
    assert world.get(made).due_at == NOW + minutes(16)


def test_a_start_may_follow_the_last_approval_after_a_delay() -> None:
    """R57a, R83 (A24)."""
    world = shared_host(DecisionRules(start_delay=minutes(2)))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    first, last = world.events_of(made)
    world.approve(first.resources[0], first.id)
    world.advance(minutes(5))
    world.approve(last.resources[0], last.id)
    assert (world.state_of(made), world.get(made).due_at) == (S.SCHEDULED, NOW + minutes(7))
    world.advance(minutes(2))
    assert world.state_of(made) is S.STARTED


def test_a_late_approval_does_not_move_the_start_past_not_before() -> None:
    """R84 (A24)."""
    world = World(vm("a"), rules=DecisionRules(start_delay=minutes(5)))
    made = world.plan_one(RESTART)
    world.now += minutes(14)
    world.approve("a", world.event_of(made).id)
    assert world.get(made).due_at == made.not_before


def test_tenants_that_do_not_approve_hold_the_others_until_not_before() -> None:
    """R83, R84."""
    world = shared_host()
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.approve("db", world.line("vm:db").event_id)
    world.advance(minutes(14))
    assert {world.line(key).status for key in ("scope:web", "vm:db")} == {EventStatus.SCHEDULED}
    world.advance(minutes(1))
    assert {world.line(key).status for key in ("scope:web", "vm:db")} == {EventStatus.STARTED}
    assert world.get(made).started_at == made.not_before


def test_a_tenant_without_the_service_has_no_vote() -> None:
    """R86."""
    world = shared_host()
    world.disable("scope:web")
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert [event.audience for event in world.events_of(made)] == ["vm:db"]
    approve_all(world, made)
    assert world.state_of(made) is S.STARTED


def test_a_tenant_that_falls_silent_loses_its_vote() -> None:
    """R70, R86."""
    world = shared_host()
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.approve("db", world.line("vm:db").event_id)
    world.disable("scope:web")
    assert world.state_of(made) is S.STARTED


def test_two_impacts_on_one_vm_come_one_after_the_other() -> None:
    """R82: the second waits at the gate, however late it gets, and shows its old NotBefore."""
    world = World(vm("a"))
    restart, redeploy = (
        world.plan_one(MaintenanceRequest(cause=f"user-{what}", vms=("a",))) for what in ("restart", "redeploy")
    )
    world.advance(minutes(20))
    assert (world.state_of(redeploy), world.state_of(restart)) == (S.STARTED, S.SCHEDULED)
    assert world.get(restart).due_at is None
    world.advance(minutes(20))
    assert world.state_of(restart) is S.SCHEDULED
    world.complete(redeploy)
    assert world.state_of(restart) is S.STARTED


def test_a_hardware_failure_waits_for_nothing() -> None:
    """R73."""
    world = World(vm("a"))
    restart = world.plan_one(RESTART)
    world.approve("a", world.event_of(restart).id)
    failure = world.plan_one(MaintenanceRequest(cause="hardware-failure", hosts=("host-1",)))
    assert (world.state_of(restart), failure.state) == (S.STARTED, S.STARTED)
    assert [line.event_id for line in world.lines("vm:a")] == [world.event_of(m).id for m in (restart, failure)]


def fleet(*, couples_deletes: bool) -> World:
    return World(
        vm("fleet_0", scope="fleet", terminate_timeout=minutes(5)),
        vm("fleet_1", scope="fleet", terminate_timeout=minutes(10)),
        scopes=(scale_set(couples_deletes=couples_deletes),),
    )


def test_an_approved_delete_waits_for_the_other_pending_deletes_of_a_coupled_scope() -> None:
    """R92."""
    world = fleet(couples_deletes=True)
    first, second = world.plan(MaintenanceRequest(cause="scale-set-delete", vms=("fleet_0", "fleet_1")))
    world.approve("fleet_1", world.event_of(second).id)
    assert (world.state_of(second), world.get(second).due_at) == (S.SCHEDULED, NOW + minutes(5))
    world.approve("fleet_0", world.event_of(first).id)
    assert (world.state_of(first), world.state_of(second)) == (S.STARTED, S.STARTED)


def test_a_coupled_delete_waits_no_longer_than_its_own_not_before() -> None:
    """R74, R92."""
    world = fleet(couples_deletes=True)
    first, second = world.plan(MaintenanceRequest(cause="scale-set-delete", vms=("fleet_0", "fleet_1")))
    world.approve("fleet_0", world.event_of(first).id)
    world.advance(minutes(5))
    assert (world.state_of(first), world.state_of(second)) == (S.STARTED, S.SCHEDULED)


def test_a_timed_out_delete_frees_the_approved_one() -> None:
    """R92."""
    world = fleet(couples_deletes=True)
    first, second = world.plan(MaintenanceRequest(cause="scale-set-delete", vms=("fleet_0", "fleet_1")))
    world.approve("fleet_1", world.event_of(second).id)
    world.advance(minutes(5))
    assert (world.state_of(first), world.state_of(second)) == (S.STARTED, S.STARTED)


def test_deletes_are_not_coupled_by_default() -> None:
    """R92."""
    world = fleet(couples_deletes=False)
    first, second = world.plan(MaintenanceRequest(cause="scale-set-delete", vms=("fleet_0", "fleet_1")))
    world.approve("fleet_1", world.event_of(second).id)
    assert (world.state_of(first), world.state_of(second)) == (S.SCHEDULED, S.STARTED)


@pytest.mark.parametrize("wait", [0, 1, 4.9])
def test_a_delete_keeps_its_not_before_once_announced(wait: float) -> None:
    """R74."""
    world = fleet(couples_deletes=False)
    made = world.plan_one(MaintenanceRequest(cause="scale-set-delete", vms=("fleet_0",)))
    world.advance(minutes(wait))
    assert world.get(made).not_before == NOW + minutes(5)
    world.advance(minutes(5 - wait))
    assert world.state_of(made) is S.STARTED


def test_an_operator_may_start_before_not_before_and_the_reason_stands_in_the_audit_log() -> None:
    """Invariant 4 of the design; R84: for all tenants together."""
    world = shared_host()
    made = world.force_start(world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",))))
    assert (made.state, made.started_at, made.due_at) == (S.STARTED, NOW, NOW)
    assert {world.line(key).status for key in ("scope:web", "vm:db")} == {EventStatus.STARTED}
    assert [(entry.kind, entry.reason) for entry in world.changes.entries] == [(EntryKind.STARTED, "now or never")]


def test_not_even_an_operator_may_start_what_another_holds() -> None:
    """R82."""
    world = World(vm("a"))
    restart, redeploy = (
        world.plan_one(MaintenanceRequest(cause=f"user-{what}", vms=("a",))) for what in ("restart", "redeploy")
    )
    world.force_start(restart)
    with pytest.raises(Conflict, match="cannot start: another one is in progress on one of its VMs; wait for it"):
        world.force_start(redeploy)
    world.complete(restart)
    assert world.force_start(redeploy).state is S.STARTED


def test_a_queued_maintenance_cannot_be_forced_to_start() -> None:
    """R61, R75."""
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), scopes=(availability_set(),))
    _, second = world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    with pytest.raises(Conflict, match="only a scheduled one can be started"):
        world.force_start(second)


def test_of_two_that_are_late_the_one_that_fell_due_first_starts_first() -> None:
    """R76."""
    world = World(vm("a"))
    late = world.plan_one(MaintenanceRequest(cause="user-restart", vms=("a",), notice=minutes(30)))
    early = world.plan_one(MaintenanceRequest(cause="user-redeploy", vms=("a",)))
    world.advance(timedelta(days=1))
    assert (world.state_of(early), world.state_of(late)) == (S.STARTED, S.SCHEDULED)


def test_looking_again_changes_nothing() -> None:
    """R28, R43."""
    world = shared_host()
    world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.advance(minutes(1))
    assert world.changes.is_empty
    assert world.changes.documents == []


def test_a_queued_maintenance_has_no_time_to_be_ready_at() -> None:
    draft = Draft(
        WorkingSet(), now=NOW, rules=DecisionRules(), new_id=lambda kind: kind, new_sequence=lambda: 1, actor="forewarn"
    )
    with pytest.raises(IllegalTransition, match="maintenance-a is queued and has no NotBefore"):
        get_ready_time(draft, maintenance(state=S.QUEUED))
