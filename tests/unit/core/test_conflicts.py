from __future__ import annotations

import pytest

from forewarn.core.maintenance.conflicts import (
    cannot_overlap,
    find_blockers,
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
    assert find_blockers(younger, [older], {}) == [older]
    assert must_queue(younger, [older], {})
    assert find_blockers(older, [younger], {}) == []
    assert not must_queue(older, [younger], {})
    assert find_blockers(younger, [], {}) == []


OLD_2 = maintenance(WEB_0, WEB_2, id="old", sequence=1, state=S.STARTED)
USERS = maintenance(WEB_1, id="users", sequence=9, cause="user-restart", source=EventSource.USER, state=S.SCHEDULED)
YOUNGER_QUEUED = maintenance(WEB_1, id="younger", sequence=8, state=S.QUEUED)
NEW = vm("web-9", scope="web", fault_domain=0)


@pytest.mark.parametrize(
    ("most", "active", "blockers"),
    [
        (3, [OLD_2], []),
        (2, [OLD_2], ["old"]),
        (1, [], []),
        (1, [USERS], ["users"]),
        (2, [USERS], []),
        (1, [YOUNGER_QUEUED], []),
        (3, [OLD_2, USERS], ["old", "users"]),
        (4, [OLD_2, USERS, YOUNGER_QUEUED], []),
        (1, [maintenance(API_1, id="api", sequence=1)], []),
    ],
)
def test_a_scope_limits_how_many_of_its_vms_are_unavailable(
    most: int, active: list[Maintenance], blockers: list[str]
) -> None:
    """X7: whatever makes them unavailable; only what the platform planned waits."""
    mine = maintenance(NEW, sequence=5, state=S.QUEUED)
    assert [each.id for each in find_blockers(mine, active, {"web": most})] == blockers
    assert must_queue(mine, active, {"web": most}) is bool(blockers)
    restart = maintenance(NEW, sequence=5, cause="user-restart", source=EventSource.USER)
    assert find_blockers(restart, active, {"web": most}) == []


def test_only_the_scope_that_is_full_makes_wait() -> None:
    """X7."""
    domain_0, domain_1 = maintenance(WEB_0, id="web", sequence=1), maintenance(API_1, id="api", sequence=2)
    mine = maintenance(WEB_1, vm("api-2", scope="api", fault_domain=1), sequence=5)
    assert find_blockers(mine, [domain_0, domain_1], {"web": 9, "api": 9}) == [domain_0]
    assert find_blockers(mine, [domain_0, domain_1], {"web": 9, "api": 1}) == [domain_0, domain_1]


def test_the_first_reason_to_wait_is_enough() -> None:
    """X7: a scope may have a thousand maintenances in the queue."""
    for limits in ({"web": 1}, {}):
        active = iter([maintenance(WEB_1, sequence=1, state=S.STARTED), OLD_2])
        assert must_queue(maintenance(NEW, sequence=5, id="mine"), active, limits)
        assert next(active) is OLD_2


def test_one_vm_under_two_maintenances_counts_once() -> None:
    """X7."""
    active = [OLD_2, maintenance(WEB_0, id="users", sequence=2, cause="user-restart", source=EventSource.USER)]
    mine = maintenance(NEW, sequence=5)
    assert find_blockers(mine, active, {"web": 3}) == []
    assert len(find_blockers(mine, active, {"web": 2})) == 2


def test_what_has_more_vms_than_a_lowered_limit_waits_until_it_is_alone() -> None:
    """X7."""
    mine = maintenance(WEB_0, WEB_2, NEW, sequence=5)
    other = maintenance(vm("web-7", scope="web"), id="other", sequence=1)
    assert find_blockers(mine, [other], {"web": 2}) == [other]
    assert find_blockers(mine, [], {"web": 2}) == []


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
