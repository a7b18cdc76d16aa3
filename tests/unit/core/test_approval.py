from __future__ import annotations

import pytest

from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, Event, EventStatus, Maintenance, MaintenanceState
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, scale_set, vm

S = MaintenanceState
UNKNOWN = "FFFFFFFF-FFFF-4FFF-8FFF-FFFFFFFFFFFF"


def shared_host() -> tuple[World, Maintenance, Event, Event]:
    """A host with two tenants, and its maintenance."""
    world = World(
        vm("web-0", scope="web"), vm("web-1", scope="web", host="host-2"), vm("db"), scopes=(availability_set(),)
    )
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    web, db = sorted(world.events_of(made), key=lambda event: event.audience)
    return world, made, web, db


def test_an_approval_counts_for_all_resources_and_starts_the_event() -> None:
    """R49, R50, R76."""
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web"), scopes=(availability_set(),))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    event = world.event_of(made)
    assert world.approve("web-0", event.id) == ApprovalResult(approved=(event.id,))
    assert world.state_of(made) is S.STARTED
    assert world.line("scope:web").event_id == event.id
    assert world.line("scope:web").status is EventStatus.STARTED
    assert world.line("scope:web").resources == ("web-0", "web-1")


def test_a_vm_that_is_not_among_the_resources_may_approve() -> None:
    """R51."""
    world, _, web, _ = shared_host()
    assert web.resources == ("web-0",)
    assert world.approve("web-1", web.id).approved == (web.id,)


def test_a_second_approval_is_fine_and_changes_nothing() -> None:
    """R43, R49."""
    world, _, web, _ = shared_host()
    world.approve("web-0", web.id)
    world.now += minutes(1)
    assert world.approve("web-1", web.id) == ApprovalResult(unchanged=(web.id,))
    assert world.changes.is_empty
    assert (world.events[web.id].approved_at, world.events[web.id].approved_by) == (NOW, "vm:web-0")


def test_approving_a_started_event_is_fine_and_changes_nothing() -> None:
    """R49."""
    world, made, web, db = shared_host()
    world.advance(minutes(15))
    assert world.state_of(made) is S.STARTED
    assert world.approve("db", db.id) == ApprovalResult(unchanged=(db.id,))
    assert world.changes.is_empty
    assert world.events[web.id].approved_at is None


def test_approving_a_finished_event_is_fine_and_changes_nothing() -> None:
    """R49, R55."""
    world, made, web, _ = shared_host()
    world.cancel(made)
    assert world.approve("web-0", web.id) == ApprovalResult(unchanged=(web.id,))
    assert world.changes.is_empty


def test_approving_a_withdrawn_event_is_fine_and_changes_nothing() -> None:
    """R55, R70."""
    world, made, web, _ = shared_host()
    world.disable("scope:web")
    assert world.approve("web-0", web.id) == ApprovalResult(unchanged=(web.id,))
    assert world.state_of(made) is S.SCHEDULED


def test_an_event_that_came_back_can_be_approved() -> None:
    """R49, R70b."""
    world, _, web, _ = shared_host()
    world.disable("scope:web")
    world.enable("scope:web")
    assert world.approve("web-0", web.id) == ApprovalResult(approved=(web.id,))


def test_several_events_are_approved_at_once_and_repeats_count_once() -> None:
    """R52."""
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", update_domain=1), scopes=(availability_set(),))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    first, second = (event.id for event in world.events_of(made))
    assert world.approve("web-0", first, second, first) == ApprovalResult(approved=(first, second))
    assert [entry.kind for entry in world.changes.entries] == [
        EntryKind.APPROVED,
        EntryKind.APPROVED,
        EntryKind.STARTED,
    ]
    assert world.incarnation("scope:web") == 3
    assert world.approve("web-0", first, first) == ApprovalResult(unchanged=(first,))


def test_one_unknown_id_spoils_the_whole_list() -> None:
    """R55."""
    world, _, web, _ = shared_host()
    assert world.approve("web-0", web.id, UNKNOWN) == ApprovalResult(unknown=(UNKNOWN,))
    assert world.changes.is_empty
    assert not world.events[web.id].is_approved


def test_an_event_of_another_tenant_is_unknown() -> None:
    """R55, R85, and invariant 8 of the design."""
    world, _, _, db = shared_host()
    assert world.approve("web-0", db.id) == ApprovalResult(unknown=(db.id,))
    assert not world.events[db.id].is_approved


def test_an_event_of_the_scope_that_does_not_name_a_gpu_vm_of_one_fault_domain_is_unknown_to_it() -> None:
    """R51, R58."""
    world = World(
        *(vm(f"fleet_{i}", scope="fleet", size="Standard_NC6") for i in range(2)),
        scopes=(scale_set(fault_domain_count=1),),
    )
    event = world.event_of(world.plan_one(MaintenanceRequest(cause="user-restart", vms=("fleet_1",))))
    assert world.approve("fleet_0", event.id).unknown == (event.id,)
    assert world.approve("fleet_1", event.id).approved == (event.id,)


def test_no_ids_at_all_is_no_approval() -> None:
    """R56."""
    world, _, _, _ = shared_host()
    assert world.approve("db") == ApprovalResult()
    assert world.changes.is_empty


def test_an_operator_may_approve_for_every_tenant() -> None:
    """X6."""
    world, made, web, db = shared_host()
    approval = world.approve_as(Approver(actor="operator:ann"), web.id, db.id)
    assert set(approval.approved) == {web.id, db.id}
    assert world.state_of(made) is S.STARTED
    assert world.events[web.id].approved_by == "operator:ann"


def test_an_operator_who_names_an_unknown_id_approves_nothing() -> None:
    """R55, X6."""
    world, _, web, _ = shared_host()
    assert world.approve_as(Approver(actor="operator:ann"), UNKNOWN, web.id).unknown == (UNKNOWN,)
    assert world.changes.is_empty


def test_the_audit_log_says_who_approved_from_where_and_with_which_version() -> None:
    world, made, web, _ = shared_host()
    world.approve("web-1", web.id)
    (entry,) = world.changes.entries
    assert (entry.kind, entry.at, entry.actor, entry.vm) == (EntryKind.APPROVED, NOW, "vm:web-1", "web-1")
    assert (entry.maintenance_id, entry.event_id, entry.audience) == (made.id, web.id, "scope:web")
    assert (entry.source_address, entry.api_version) == ("10.0.0.1", "2020-07-01")


def test_the_first_of_two_tenants_changes_no_document_by_approving() -> None:
    """R43, R57a, R83: accepted is not started."""
    world, made, web, _ = shared_host()
    before = {key: (world.lines(key), world.incarnation(key)) for key in ("scope:web", "vm:db")}
    world.approve("web-0", web.id)
    assert world.state_of(made) is S.SCHEDULED
    assert world.changes.documents == []
    assert {key: (world.lines(key), world.incarnation(key)) for key in ("scope:web", "vm:db")} == before


def test_the_last_approval_starts_all_tenants_together() -> None:
    """R84: each document changes once."""
    world, made, web, db = shared_host()
    world.approve("web-0", web.id)
    world.approve("db", db.id)
    assert world.state_of(made) is S.STARTED
    assert {world.line(key).status for key in ("scope:web", "vm:db")} == {EventStatus.STARTED}
    assert [world.incarnation(key) for key in ("scope:web", "vm:db")] == [3, 3]


@pytest.mark.parametrize("cause", ["user-restart", "user-redeploy", "spot-eviction", "host-maintenance"])
def test_what_nobody_approves_does_not_start_before_not_before(cause: str) -> None:
    """R76: user operations wait too."""
    world = World(vm("a"))
    made = world.plan_one(MaintenanceRequest(cause=cause, vms=("a",)))
    assert made.not_before is not None
    world.advance(made.not_before - NOW - minutes(0.1))
    assert world.state_of(made) is S.SCHEDULED
    world.advance(minutes(0.1))
    assert world.state_of(made) is S.STARTED


def test_an_approval_has_no_result_but_those_that_are_named() -> None:
    result = ApprovalResult()
    assert (result.unknown, result.approved, result.unchanged, result.refused) == ((), (), (), ())
