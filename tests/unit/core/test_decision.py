from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.maintenance.decision import ChangeSet, DecisionRules, Draft, WorkingSet
from forewarn.core.maintenance.enablement import disable_audience, enable_audience
from forewarn.core.maintenance.lifecycle import Trigger
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.planning import plan_maintenance
from forewarn.core.maintenance.settlement import settle_maintenances
from forewarn.core.model import EntryKind, EventStatus, MaintenanceState
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import an_event, availability_set, maintenance, vm

S = MaintenanceState
RESTART = MaintenanceRequest(cause="user-restart", vms=("a",))


def a_draft(state: WorkingSet) -> Draft:
    return Draft(
        state, now=NOW, rules=DecisionRules(), new_id=lambda kind: kind, new_sequence=lambda: 1, actor="operator:ann"
    )


def web() -> World:
    return World(
        vm("web-0", scope="web", update_domain=0),
        vm("web-1", scope="web", update_domain=1),
        vm("db", host="host-2"),
        scopes=(availability_set(),),
    )


def test_a_decision_that_changes_nothing_is_empty() -> None:
    """R43."""
    changes = World(vm("a")).draft().finish()
    assert changes.is_empty
    assert changes.documents == []


def test_any_change_makes_a_decision_worth_committing() -> None:
    assert not ChangeSet(vms={"a": vm("a")}).is_empty
    assert not ChangeSet(maintenances={"m": maintenance()}).is_empty
    assert not ChangeSet(events={"e": an_event()}).is_empty


def test_the_next_time_to_look_is_the_earliest() -> None:
    spans = (("m", 9), ("n", 5))
    due = {name: replace(maintenance(id=name), due_at=NOW + minutes(after)) for name, after in spans}
    undue = replace(maintenance(id="o"), due_at=None)
    assert ChangeSet(maintenances=due | {"o": undue}).next_due_at == NOW + minutes(5)
    check = AlertCheck(maintenance_id="m", at=NOW + minutes(2))
    assert ChangeSet(maintenances=due, alert_checks={"m": check, "n": None}).next_due_at == NOW + minutes(2)
    assert ChangeSet(maintenances={"o": undue}, alert_checks={"n": None}).next_due_at is None


def test_a_decision_leaves_what_was_loaded_as_it_was() -> None:
    world = World(vm("a"))
    state = world.state()
    draft = Draft(
        state, now=NOW, rules=DecisionRules(), new_id=lambda kind: kind, new_sequence=lambda: 1, actor="operator:ann"
    )
    plan_maintenance(draft, RESTART)
    draft.finish()
    assert state == world.state()


def test_several_events_of_one_decision_count_once() -> None:
    """R42, R43."""
    world = web()
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert len(world.lines("scope:web")) == 2
    assert world.incarnation("scope:web") == 2
    world.force_start(made)
    assert world.incarnation("scope:web") == 3
    world.complete(made)
    assert world.incarnation("scope:web") == 4


def test_an_audience_that_sees_nothing_new_keeps_its_incarnation() -> None:
    """R42, R44."""
    world = web()
    world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert world.incarnation("vm:db") == 1
    assert [document.audience.key for document in world.changes.documents] == ["scope:web"]


def test_the_clock_alone_changes_no_document() -> None:
    """R43."""
    world = web()
    world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    world.advance(minutes(14))
    assert world.incarnation("scope:web") == 2


def test_events_made_and_dropped_in_one_decision_were_never_there() -> None:
    """R42: same information, same incarnation."""
    world = World(vm("a"))
    draft = world.draft()
    (made,) = plan_maintenance(draft, RESTART)
    draft.apply_trigger(made, Trigger.CANCEL)
    changes = world.commit(draft)
    assert (world.incarnation("vm:a"), changes.documents) == (1, [])


def test_one_added_and_one_removed_is_one_change() -> None:
    """R42, R43."""
    world = World(vm("a"))
    first = world.plan_one(RESTART)
    draft = world.draft()
    draft.apply_trigger(draft.maintenances[first.id], Trigger.CANCEL)
    plan_maintenance(draft, RESTART)
    world.commit(draft)
    assert (world.incarnation("vm:a"), len(world.lines("vm:a"))) == (3, 1)


def test_a_document_lists_current_events_in_order_of_creation() -> None:
    """R27, R29."""
    world = World(vm("a"))
    made = [world.plan_one(MaintenanceRequest(cause=f"user-{what}", vms=("a",))) for what in ("restart", "redeploy")]
    made.append(world.plan_one(MaintenanceRequest(cause="live-migration", vms=("a",))))
    world.cancel(made[0])
    world.force_start(made[2])
    assert [line.event_id for line in world.lines("vm:a")] == [world.event_of(each).id for each in made[1:]]
    assert [line.status for line in world.lines("vm:a")] == [EventStatus.SCHEDULED, EventStatus.STARTED]


def test_the_order_in_which_events_were_loaded_does_not_matter() -> None:
    """R28, R29."""
    world = World(vm("a"))
    made = [world.plan_one(MaintenanceRequest(cause=f"user-{what}", vms=("a",))) for what in ("restart", "redeploy")]
    world.events = dict(reversed(world.events.items()))
    world.plan(MaintenanceRequest(cause="live-migration", vms=("a",)))
    assert [line.event_id for line in world.lines("vm:a")][:2] == [world.event_of(each).id for each in made]


def test_disabled_and_enabled_in_one_decision_is_a_new_epoch() -> None:
    """R45, R46, R70b: the incarnation does not count on; what waits is shown from the first document on."""
    world = World(vm("a"))
    world.plan(RESTART)
    shown = world.lines("vm:a")
    draft = world.draft()
    enable_audience(draft, disable_audience(draft, draft.audiences["vm:a"]))
    world.commit(draft)
    assert (world.incarnation("vm:a"), world.audiences["vm:a"].epoch, world.lines("vm:a")) == (1, 2, shown)


def test_the_next_deadline_is_the_earliest_of_what_changed() -> None:
    world = World(vm("a"), vm("b"))
    world.plan(MaintenanceRequest(cause="predicted-failure", vms=("a", "b"), notice=timedelta(days=1)))
    assert world.changes.next_due_at == NOW + timedelta(days=1)
    world.plan(RESTART)
    assert world.changes.next_due_at == NOW + minutes(15)


def test_what_has_ended_has_no_deadline() -> None:
    world = World(vm("a"))
    world.cancel(world.plan_one(RESTART))
    assert world.changes.next_due_at is None


def test_changes_say_which_maintenances_are_new() -> None:
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    assert world.changes.created == {made.id, world.event_of(made).id}
    world.cancel(made)
    assert world.changes.created == set()
    assert set(world.changes.maintenances) == {made.id}


def test_neighbours_are_active_and_share_a_vm_or_scope_oldest_first() -> None:
    mine = maintenance(vm("web-0", scope="web"), sequence=9)
    others = [
        maintenance(vm("web-1", scope="web"), id="younger", sequence=3),
        maintenance(vm("web-0", scope="web"), id="older", sequence=2),
        maintenance(vm("web-0", scope="web"), id="over", sequence=1, state=S.CANCELED),
        maintenance(vm("db"), id="elsewhere", sequence=4),
    ]
    draft = a_draft(WorkingSet(maintenances={each.id: each for each in (mine, *others)}))
    assert [each.id for each in draft.find_neighbours(mine)] == ["older", "younger"]


def test_a_maintenance_made_after_the_first_look_is_found_as_a_neighbour() -> None:
    mine, later = maintenance(vm("a"), sequence=1), maintenance(vm("a"), id="later", sequence=2)
    draft = a_draft(WorkingSet(maintenances={mine.id: mine}))
    assert draft.find_neighbours(mine) == []
    draft.put(later)
    assert draft.find_neighbours(mine) == [later]


def test_the_audit_log_tells_every_step_with_its_actor() -> None:
    world = World(vm("a"))
    made = world.plan_one(RESTART)
    world.approve("a", world.event_of(made).id)
    world.complete(made)
    told = [(entry.kind, entry.actor) for entry in world.entries if entry.maintenance_id == made.id]
    assert told == [
        (EntryKind.SCHEDULED, "operator:ann"),
        (EntryKind.APPROVED, "vm:a"),
        (EntryKind.STARTED, "vm:a"),
        (EntryKind.COMPLETED, "operator:ann"),
    ]


def test_only_what_is_in_focus_is_settled() -> None:
    """R76: the store decides what is complete enough to be started."""
    world = World(vm("a"), vm("b"))
    first, second = world.plan(MaintenanceRequest(cause="user-restart", vms=("a", "b")))
    state = world.state()
    state.focus = {second.id}
    world.now += minutes(15)
    draft = Draft(
        state, now=world.now, rules=DecisionRules(), new_id=lambda kind: kind, new_sequence=lambda: 1, actor="forewarn"
    )
    settle_maintenances(draft)
    changes = draft.finish()
    assert set(changes.maintenances) == {second.id}
    assert first.id not in changes.maintenances
    assert [document.audience.key for document in changes.documents] == ["vm:b"]
