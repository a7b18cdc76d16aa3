from __future__ import annotations

import pytest

from forewarn.core.maintenance.conflicts import (
    cannot_overlap,
    find_duplicate,
    is_held,
    is_routine,
    must_queue,
)
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventSource, Maintenance, MaintenanceState, VirtualMachine
from tests.support.world import World
from tests.unit.core.builders import availability_set, maintenance, vm

S = MaintenanceState
WEB_0 = vm("web-0", scope="web", fault_domain=0)
WEB_1 = vm("web-1", scope="web", fault_domain=1)
WEB_2 = vm("web-2", scope="web", fault_domain=0)
API_1 = vm("api-1", scope="api", fault_domain=1)
DB = vm("db", fault_domain=1)


@pytest.mark.parametrize(
    ("cause", "source", "expected"),
    [
        ("host-maintenance", EventSource.PLATFORM, True),
        ("host-maintenance", EventSource.USER, False),
        ("hardware-failure", EventSource.PLATFORM, False),
        ("user-restart", EventSource.USER, False),
        ("predicted-failure", EventSource.PLATFORM, False),
    ],
)
def test_routine_is_what_the_platform_planned(cause: str, source: EventSource, expected: bool) -> None:
    """R61."""
    assert is_routine(maintenance(cause=cause, source=source)) is expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((WEB_0,), (WEB_1,), True),
        ((WEB_0,), (WEB_2,), False),
        ((WEB_0,), (WEB_0,), True),
        ((WEB_0,), (API_1,), False),
        ((WEB_0,), (DB,), False),
        ((DB,), (DB,), True),
        ((DB,), (vm("other", fault_domain=0),), False),
        ((WEB_0, API_1), (DB, WEB_1), True),
        ((), (WEB_0,), False),
    ],
)
def test_routine_maintenance_excludes_other_fault_domains_of_its_scopes(
    ours: tuple[VirtualMachine, ...], theirs: tuple[VirtualMachine, ...], expected: bool
) -> None:
    """R61: in both directions alike."""
    one, other = maintenance(*ours), maintenance(*theirs, id="maintenance-b", sequence=2)
    assert cannot_overlap(one, other) is expected
    assert cannot_overlap(other, one) is expected


@pytest.mark.parametrize("cause", ["hardware-failure", "user-restart", "predicted-failure"])
def test_what_is_not_routine_excludes_nothing(cause: str) -> None:
    """R61."""
    assert not cannot_overlap(maintenance(WEB_0), maintenance(WEB_1, cause=cause))
    assert not cannot_overlap(maintenance(WEB_1, cause=cause), maintenance(WEB_0))


def test_only_an_older_maintenance_makes_wait() -> None:
    """R61: first come, first served."""
    older, younger = maintenance(WEB_0, sequence=1), maintenance(WEB_1, id="maintenance-b", sequence=2)
    assert must_queue(younger, [older])
    assert not must_queue(older, [younger])
    assert not must_queue(younger, [])


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (maintenance(WEB_0, id="maintenance-b", state=S.STARTED), True),
        (maintenance(WEB_0, id="maintenance-b", state=S.SCHEDULED), False),
        (maintenance(WEB_1, id="maintenance-b", state=S.STARTED), False),
        (maintenance(WEB_0, id="maintenance-a", state=S.STARTED), False),
    ],
)
def test_a_start_is_held_while_another_goes_on_at_one_of_its_vms(other: Maintenance, expected: bool) -> None:
    """R82."""
    assert is_held(maintenance(WEB_0, DB), [other]) is expected


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        (
            maintenance(DB, cause="user-restart", source=EventSource.USER),
            maintenance(DB, id="b", cause="user-restart", source=EventSource.USER),
            True,
        ),
        (
            maintenance(DB, cause="user-restart", source=EventSource.USER),
            maintenance(WEB_0, id="b", cause="user-restart", source=EventSource.USER),
            False,
        ),
        (
            maintenance(DB, cause="user-restart", source=EventSource.USER),
            maintenance(DB, id="b", cause="user-redeploy", source=EventSource.USER),
            False,
        ),
        (
            maintenance(DB, cause="host-maintenance", source=EventSource.USER),
            maintenance(DB, id="b", cause="host-maintenance"),
            False,
        ),
        (maintenance(DB), maintenance(DB, id="b"), False),
        (
            maintenance(DB, cause="user-restart", source=EventSource.USER),
            maintenance(DB, cause="user-restart", source=EventSource.USER),
            False,
        ),
    ],
)
def test_a_duplicate_is_the_same_cause_from_the_same_source_on_a_shared_vm(
    mine: Maintenance, other: Maintenance, expected: bool
) -> None:
    assert find_duplicate(mine, [other]) == (other if expected else None)


def two_domains() -> World:
    return World(WEB_0, WEB_1, WEB_2, scopes=(availability_set(),))


def test_the_next_fault_domain_is_announced_when_the_previous_one_is_done() -> None:
    """R61: both changes are one change of the document (R43)."""
    world = two_domains()
    first = world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=("web-0",)))
    second = world.plan_one(MaintenanceRequest(cause="live-migration", vms=("web-1",)))
    assert second.state is S.QUEUED
    world.approve("web-0", world.event_of(first).id)
    before = world.incarnation("scope:web")
    world.complete(first)
    assert world.state_of(second) is S.SCHEDULED
    assert world.line("scope:web").event_id == world.event_of(second).id
    assert world.incarnation("scope:web") == before + 1


def test_the_same_fault_domain_need_not_wait() -> None:
    """R61."""
    world = two_domains()
    made = [world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=(name,))) for name in ("web-0", "web-2")]
    assert [each.state for each in made] == [S.SCHEDULED, S.SCHEDULED]


@pytest.mark.parametrize("cause", ["hardware-failure", "user-restart"])
def test_failures_and_user_operations_do_not_wait_for_another_fault_domain(cause: str) -> None:
    """R61."""
    world = two_domains()
    world.plan(MaintenanceRequest(cause="host-maintenance", vms=("web-0",)))
    assert world.plan_one(MaintenanceRequest(cause=cause, vms=("web-1",))).state is not S.QUEUED


def test_the_queue_is_first_come_first_served() -> None:
    """R61: the third could be announced beside the first, but must not overtake the second."""
    world = two_domains()
    made = [
        world.plan_one(MaintenanceRequest(cause="host-maintenance", vms=(name,)))
        for name in ("web-0", "web-1", "web-2")
    ]
    assert [each.state for each in made] == [S.SCHEDULED, S.QUEUED, S.QUEUED]
    world.cancel(made[0])
    assert [world.state_of(each) for each in made] == [S.CANCELED, S.SCHEDULED, S.QUEUED]
