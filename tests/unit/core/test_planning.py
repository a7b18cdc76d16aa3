from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forewarn.core.causes import CAUSES
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.start_groups import split_into_groups
from forewarn.core.model import (
    EventSource,
    EventStatus,
    EventType,
    MaintenanceState,
    PowerState,
    Scope,
    ScopeKind,
    VirtualMachine,
)
from forewarn.core.policy import Policy
from forewarn.errors import (
    BelowMinimumNotice,
    CallerError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    QuietHoursConflict,
)
from tests.support.quiet import quiet_hours
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, vm

S = MaintenanceState


def names(groups: list[list[VirtualMachine]]) -> list[list[str]]:
    return [[each.name for each in group] for group in groups]


def two_fault_domains() -> tuple[VirtualMachine, ...]:
    return (
        vm("web-0", scope="web", fault_domain=0),
        vm("web-1", scope="web", fault_domain=1),
        vm("web-2", scope="web", fault_domain=0, host="host-2"),
    )


def test_a_request_without_wishes_gets_the_defaults_of_its_cause() -> None:
    """R37, R38, R39, R89."""
    made = World(vm("a")).plan_one(MaintenanceRequest(cause="live-migration", vms=("a",)))
    cause = CAUSES["live-migration"]
    assert (made.type, made.impact, made.source) == (EventType.FREEZE, EventType.FREEZE, EventSource.PLATFORM)
    assert (made.duration_s, made.description) == (5, cause.description)
    assert (made.created_at, made.not_before) == (NOW, NOW + minutes(15))


def test_wishes_replace_the_defaults() -> None:
    """R37, R38, R39."""
    wish = MaintenanceRequest(
        cause="host-maintenance",
        type=EventType.REBOOT,
        source=EventSource.USER,
        description="",
        duration_s=0,
        impact=EventType.FREEZE,
        vms=("a",),
    )
    made = World(vm("a")).plan_one(wish)
    assert (made.type, made.impact, made.source) == (EventType.REBOOT, EventType.FREEZE, EventSource.USER)
    assert (made.description, made.duration_s) == ("", 0)


def test_another_type_than_the_usual_has_an_unknown_duration() -> None:
    """R39."""
    made = World(vm("a")).plan_one(MaintenanceRequest(cause="host-maintenance", type=EventType.REDEPLOY, vms=("a",)))
    assert made.duration_s == -1


@pytest.mark.parametrize(
    ("cause", "event_type", "source"),
    [
        ("user-restart", EventType.REBOOT, EventSource.USER),
        ("user-redeploy", EventType.REDEPLOY, EventSource.USER),
        ("platform-redeploy", EventType.REDEPLOY, EventSource.PLATFORM),
        ("spot-eviction", EventType.PREEMPT, EventSource.PLATFORM),
    ],
)
def test_an_operation_announces_its_type_and_source(cause: str, event_type: EventType, source: EventSource) -> None:
    """R87, R89, R90."""
    world = World(vm("a"))
    world.plan(MaintenanceRequest(cause=cause, vms=("a",)))
    assert (world.line("vm:a").type, world.line("vm:a").source) == (event_type.value, source.value)


def test_autoscale_deletes_as_the_platform() -> None:
    """R91 and the table of 1.12."""
    world = World(vm("a", terminate_timeout=minutes(5)))
    made = world.plan_one(MaintenanceRequest(cause="scale-set-delete", source=EventSource.PLATFORM, vms=("a",)))
    assert (made.type, made.source) == (EventType.TERMINATE, EventSource.PLATFORM)


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (
            MaintenanceRequest(cause="magic", vms=("a",)),
            InvalidRequest,
            "unknown cause 'magic': expected one of live-migration",
        ),
        (MaintenanceRequest(cause="user-restart"), InvalidRequest, "name either hosts or VMs, not both"),
        (MaintenanceRequest(cause="user-restart", hosts=("host-1",), vms=("a",)), InvalidRequest, "not both"),
        (MaintenanceRequest(cause="host-maintenance", hosts=("host-9",)), NotFound, "host 'host-9' does not exist"),
        (MaintenanceRequest(cause="user-restart", vms=("a", "b")), NotFound, "vm 'b' does not exist"),
        (MaintenanceRequest(cause="user-restart", vms=("gone",)), Conflict, "vm 'gone' is deleted"),
        (MaintenanceRequest(cause="user-restart", vms=("off",)), Conflict, "vm 'off' is deallocated"),
        (
            MaintenanceRequest(cause="user-restart", type=EventType.FREEZE, vms=("a",)),
            InvalidRequest,
            "cause user-restart means Reboot, not Freeze",
        ),
        (
            MaintenanceRequest(cause="user-redeploy", impact=EventType.FREEZE, vms=("a",)),
            InvalidRequest,
            "a Redeploy cannot have the impact Freeze",
        ),
        (
            MaintenanceRequest(cause="live-migration", impact=EventType.REBOOT, vms=("a",)),
            InvalidRequest,
            "a Freeze cannot have the impact Reboot",
        ),
        (
            MaintenanceRequest(cause="live-migration", duration_s=-2, vms=("a",)),
            InvalidRequest,
            "invalid duration of -2 s",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    request_: MaintenanceRequest, error: type[CallerError], words: str
) -> None:
    world = World(vm("a"), vm("gone", power_state=PowerState.DELETED), vm("off", power_state=PowerState.DEALLOCATED))
    with pytest.raises(error, match=words):
        world.plan(request_)


def test_a_reboot_may_turn_out_as_a_freeze_and_still_says_reboot() -> None:
    """R81."""
    world = World(vm("a"))
    made = world.plan_one(MaintenanceRequest(cause="user-restart", impact=EventType.FREEZE, vms=("a",)))
    assert made.impact is EventType.FREEZE
    assert world.line("vm:a").type == "Reboot"


def test_maintenance_of_a_host_concerns_its_running_vms_only() -> None:
    """R33: in the order of the hosts that were named, then of names."""
    world = World(
        vm("b", host="host-1"),
        vm("a", host="host-1"),
        vm("c", host="host-2"),
        vm("d", host="host-3"),
        vm("e", host="host-1", power_state=PowerState.DELETED),
    )
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-2", "host-1")))
    assert made.vms == ("c", "a", "b")
    assert made.hosts == ("host-2", "host-1")


def test_naming_a_vm_or_host_twice_changes_nothing() -> None:
    world = World(vm("a"))
    assert world.plan_one(MaintenanceRequest(cause="user-restart", vms=("a", "a"))).vms == ("a",)
    assert world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1", "host-1"))).hosts == ("host-1",)


def test_maintenance_of_an_empty_host_starts_at_once_unless_a_time_was_given() -> None:
    """R70a: no VM is hit, so none waits."""
    world = World(vm("a"), hosts=("host-0",))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-0",)))
    assert (made.state, made.hosts, made.vms) == (S.STARTED, ("host-0",), ())
    assert world.lines("vm:a") == ()
    later = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-0",), notice=minutes(60)))
    assert (later.state, later.not_before) == (S.SCHEDULED, NOW + minutes(60))


NOW_PLEASE = MaintenanceRequest(cause="host-maintenance", vms=("a", "b"), is_now=True)


def test_now_starts_at_once_where_no_vm_asks() -> None:
    """R70a."""
    world = World(vm("a"), vm("b"), is_enabled=False)
    made = world.plan_one(NOW_PLEASE)
    assert (made.state, made.not_before) == (S.STARTED, NOW)


def test_now_is_refused_where_a_vm_asks_and_forcing_it_shows_that_vm_what_starts() -> None:
    """R70a, R71."""
    world = World(vm("a"), vm("b"), is_enabled=False)
    world.enable("vm:b")
    with pytest.raises(BelowMinimumNotice, match="b must be warned, and a Freeze needs at least 15m") as caught:
        world.plan(NOW_PLEASE)
    assert caught.value.details == {"minimum_s": 900, "vms": ["b"]}
    made = world.plan_one(replace(NOW_PLEASE, force_reason="fire"))
    assert made.state is S.STARTED
    assert [line.status for line in world.lines("vm:b")] == [EventStatus.STARTED]


@pytest.mark.parametrize("said", [{"notice": minutes(20)}, {"not_before": NOW + minutes(20)}])
def test_now_and_a_time_contradict_each_other(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="an immediate start cannot be combined"):
        World(vm("a"), vm("b")).plan(replace(NOW_PLEASE, force_reason="fire", **said))


def test_now_does_not_mean_after_quiet_hours() -> None:
    """R70a: who says now is told that it would be later."""
    quiet = Policy(quiet_hours=(quiet_hours("sat", "09:00", "12:00", "UTC"),))
    world = World(vm("a"), replace(vm("b"), policy=quiet), is_enabled=False)
    with pytest.raises(QuietHoursConflict, match=r"before 2026-11-21T12:00.*: quiet hours of b moved") as caught:
        world.plan(NOW_PLEASE)
    assert caught.value.details["scopes"] == ["b"]
    assert world.plan_one(replace(NOW_PLEASE, force_reason="fire")).state is S.STARTED


def test_who_waits_in_the_queue_and_asks_meanwhile_has_full_notice_in_spite_of_now() -> None:
    """R61, R70a."""
    world = World(*two_fault_domains(), scopes=(availability_set(),), is_enabled=False)
    first, second = world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1", "host-2"), is_now=True))
    assert (first.state, second.state) == (S.STARTED, S.QUEUED)
    world.enable("scope:web")
    world.complete(first)
    assert (world.state_of(second), world.get(second).not_before) == (S.SCHEDULED, NOW + minutes(15))


def test_an_empty_host_belongs_to_the_first_part_of_a_request() -> None:
    """R61."""
    world = World(*two_fault_domains(), scopes=(availability_set(),), hosts=("host-0",))
    parts = world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1", "host-0")))
    assert [part.hosts for part in parts] == [("host-1", "host-0"), ("host-1",)]


def test_fault_domains_of_one_scope_are_taken_one_after_the_other() -> None:
    """R61: the parts share the id of the request."""
    world = World(*two_fault_domains(), scopes=(availability_set(),))
    first, second = world.plan(MaintenanceRequest(cause="host-maintenance", hosts=("host-1", "host-2")))
    assert (first.vms, first.state) == (("web-0", "web-2"), S.SCHEDULED)
    assert (second.vms, second.state, second.not_before) == (("web-1",), S.QUEUED, None)
    assert first.request_id == second.request_id == first.id
    assert first.id != second.id
    assert world.line("scope:web").resources == ("web-0", "web-2")


def test_a_host_stays_together_unless_it_holds_two_fault_domains_of_a_scope() -> None:
    """R61, R83."""
    tenants = [
        vm("web-1", scope="web", fault_domain=1),
        vm("web-0", scope="web", fault_domain=0),
        vm("db"),
        vm("web-2", scope="web", fault_domain=1, host="host-2"),
        vm("api", host="host-2"),
    ]
    groups = split_into_groups(tenants, CAUSES["host-maintenance"], EventSource.PLATFORM, by_host=True)
    assert names(groups) == [["web-0", "db"], ["web-1", "web-2", "api"]]


def test_vms_named_one_by_one_are_grouped_by_fault_domain() -> None:
    """R61."""
    tenants = [vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), vm("db", fault_domain=1)]
    groups = split_into_groups(tenants, CAUSES["live-migration"], EventSource.PLATFORM, by_host=False)
    assert names(groups) == [["web-0", "db"], ["web-1"]]


def test_fault_domains_of_different_scopes_do_not_part_a_host() -> None:
    """R61."""
    tenants = [vm("web-0", scope="web", fault_domain=0), vm("api-1", scope="api", fault_domain=1)]
    assert names(split_into_groups(tenants, CAUSES["host-maintenance"], EventSource.PLATFORM, by_host=True)) == [
        ["web-0", "api-1"]
    ]


def limited_scope(most: int) -> Scope:
    return replace(availability_set(), policy=Policy(unavailable_max=most))


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, [["a-0", "db"], ["a-1"], ["a-2"], ["b-0"], ["c-0"]]),
        (2, [["a-0", "a-1", "db"], ["a-2", "b-0"], ["c-0"]]),
        (3, [["a-0", "a-1", "a-2", "db"], ["b-0", "c-0"]]),
        (5, [["a-0", "a-1", "a-2", "db", "b-0", "c-0"]]),
    ],
)
def test_a_request_is_split_so_that_a_scope_keeps_enough_vms(most: int, expected: list[list[str]]) -> None:
    """X7: the VMs of a host stay together if the limit allows it."""
    tenants = [
        *(vm(f"a-{n}", scope="web") for n in range(3)),
        vm("db"),
        vm("b-0", scope="web", host="host-2"),
        vm("c-0", scope="web", host="host-3"),
    ]
    cause = CAUSES["host-maintenance"]
    groups = split_into_groups(
        tenants, cause, EventSource.PLATFORM, by_host=True, unavailable_max={"web": most, "other": 1}
    )
    assert names(groups) == expected
    assert names(split_into_groups(tenants, cause, EventSource.USER, by_host=True, unavailable_max={"web": most})) == [
        [each.name for each in tenants]
    ]


def test_fault_domains_and_the_limit_of_a_scope_hold_together() -> None:
    """R61, X7."""
    tenants = [vm(f"web-{n}", scope="web", fault_domain=n % 2) for n in range(6)]
    groups = split_into_groups(
        tenants, CAUSES["host-maintenance"], EventSource.PLATFORM, by_host=True, unavailable_max={"web": 2}
    )
    assert names(groups) == [["web-0", "web-2"], ["web-4"], ["web-1", "web-3"], ["web-5"]]


def test_a_scope_keeps_enough_vms_across_requests_and_causes() -> None:
    """X7: each part gets its full notice when its turn comes."""
    tenants = [vm(f"web-{n}", scope="web", host=f"host-{n}") for n in range(4)]
    world = World(*tenants, scopes=(limited_scope(2),))
    restart = world.plan_one(MaintenanceRequest(cause="user-restart", vms=("web-3",), notice=minutes(15)))
    assert restart.state is S.SCHEDULED
    names = ("host-0", "host-1", "host-2")
    first, second = world.plan(MaintenanceRequest(cause="host-maintenance", hosts=names))
    assert [first.vms, second.vms] == [("web-0", "web-1"), ("web-2",)]
    assert [first.state, second.state] == [S.QUEUED, S.QUEUED], "with the restart, three would be unavailable"
    world.advance(minutes(15))
    assert world.state_of(restart) is S.STARTED
    assert world.state_of(first) is S.QUEUED
    world.complete(restart)
    announced = world.get(first)
    assert (announced.state, announced.not_before) == (S.SCHEDULED, NOW + minutes(30))
    assert world.state_of(second) is S.QUEUED
    world.cancel(first)
    assert world.state_of(second) is S.SCHEDULED


@pytest.mark.parametrize(
    ("cause", "source"), [("hardware-failure", EventSource.PLATFORM), ("host-maintenance", EventSource.USER)]
)
def test_neither_failures_nor_user_operations_are_taken_one_after_the_other(cause: str, source: EventSource) -> None:
    """R61."""
    tenants = list(two_fault_domains())
    assert split_into_groups(tenants, CAUSES[cause], source, by_host=True) == [tenants]


@pytest.mark.parametrize(
    "request_",
    [
        MaintenanceRequest(cause="spot-eviction", vms=("a", "spot")),
        MaintenanceRequest(cause="spot-eviction", hosts=("host-1",)),
    ],
)
def test_only_spot_vms_are_evicted(request_: MaintenanceRequest) -> None:
    """R90."""
    world = World(vm("a", priority="Regular"), vm("b"), vm("spot", priority="Spot"), rules=DecisionRules())
    with pytest.raises(InvalidRequest, match="only a Spot VM can be evicted, and a"):
        world.plan(request_)
    (made,) = world.plan(MaintenanceRequest(cause="spot-eviction", vms=("spot",)))
    assert made.vms == ("spot",)


@pytest.mark.parametrize("force_reason", [None, "burning"])
def test_a_reason_is_recorded_whether_it_forces_or_not(force_reason: str | None) -> None:
    scopes = (availability_set("web"),)
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), scopes=scopes)
    wanted = MaintenanceRequest(
        cause="host-maintenance", hosts=("host-1",), reason="fan is loud", force_reason=force_reason
    )
    first, second = world.plan(wanted)
    for made, kind in ((first, "scheduled"), (second, "queued")):
        entry = next(entry for entry in world.entries if entry.maintenance_id == made.id)
        assert (entry.kind.value, entry.reason) == (kind, force_reason or "fan is loud")
        assert made.force_reason == force_reason


def test_a_test_may_evict_a_vm_whose_priority_it_does_not_declare() -> None:
    """R90."""
    world = World(vm("a"), vm("b", priority="Regular"), rules=DecisionRules(assumes_spot=True))
    assert world.plan_one(MaintenanceRequest(cause="spot-eviction", vms=("a",))).type is EventType.PREEMPT
    with pytest.raises(InvalidRequest, match="and b is not declared"):
        world.plan(MaintenanceRequest(cause="spot-eviction", vms=("b",)))


@pytest.mark.parametrize("cause", ["user-restart", "user-redeploy", "spot-eviction", "predicted-failure"])
def test_an_operation_on_single_vms_makes_one_maintenance_each(cause: str) -> None:
    """R72, R87, R90."""
    world = World(vm("a"), vm("b"))
    assert [part.vms for part in world.plan(MaintenanceRequest(cause=cause, vms=("b", "a")))] == [("b",), ("a",)]


def test_the_same_operation_twice_on_one_vm_is_refused() -> None:
    world = World(vm("a"), vm("b"))
    pending = world.plan_one(MaintenanceRequest(cause="user-restart", vms=("a",)))
    with pytest.raises(Conflict, match=f"maintenance {pending.id} .* is active for vm a") as caught:
        world.plan(MaintenanceRequest(cause="user-restart", vms=("a",)))
    assert caught.value.details == {"id": pending.id}


def test_the_eleventh_user_operation_is_refused_where_the_limit_is_ten() -> None:
    """R88."""
    tenants = [vm(f"web-{i}", scope="web") for i in range(12)]
    world = World(*tenants, scopes=(availability_set(),), rules=DecisionRules(user_operations_max=10))
    pending = world.plan(MaintenanceRequest(cause="user-restart", vms=tuple(each.name for each in tenants[:10])))
    with pytest.raises(LimitExceeded, match=r"10 user operations are pending .* limit is 10") as caught:
        world.plan(MaintenanceRequest(cause="user-restart", vms=("web-10",)))
    assert caught.value.details == {"limit": 10}
    world.cancel(pending[0])
    assert world.plan_one(MaintenanceRequest(cause="user-restart", vms=("web-10",))).state is S.SCHEDULED


def test_a_started_user_operation_no_longer_counts_for_the_limit() -> None:
    """R88."""
    world = World(
        *(vm(f"web-{i}", scope="web") for i in range(2)),
        scopes=(availability_set(),),
        rules=DecisionRules(user_operations_max=1),
    )
    first = world.plan_one(MaintenanceRequest(cause="user-restart", vms=("web-0",)))
    world.approve("web-1", world.event_of(first).id)
    assert world.plan_one(MaintenanceRequest(cause="user-restart", vms=("web-1",))).state is S.SCHEDULED


def test_neither_other_scopes_nor_the_platform_count_for_the_limit() -> None:
    """R88."""
    world = World(
        vm("web-0", scope="web"), vm("db"), scopes=(availability_set(),), rules=DecisionRules(user_operations_max=1)
    )
    states = [
        world.plan_one(MaintenanceRequest(cause=cause, vms=(name,))).state
        for cause, name in [
            ("live-migration", "web-0"),
            ("user-restart", "web-0"),
            ("predicted-failure", "web-0"),
            ("user-restart", "db"),
        ]
    ]
    assert states == [S.SCHEDULED] * 4


def test_there_is_no_limit_of_user_operations_unless_one_is_set() -> None:
    """R88."""
    world = World(*(vm(f"web-{i}", scope="web") for i in range(20)), scopes=(availability_set(),))
    made = world.plan(MaintenanceRequest(cause="user-restart", vms=tuple(f"web-{i}" for i in range(20))))
    assert {part.state for part in made} == {S.SCHEDULED}


def test_a_hardware_failure_takes_no_notice() -> None:
    """R73: it has happened."""
    world = World(vm("a"))
    with pytest.raises(InvalidRequest, match="has already happened"):
        world.plan(MaintenanceRequest(cause="hardware-failure", hosts=("host-1",), notice=minutes(15)))


def test_the_vms_of_a_standalone_scope_do_not_wait_for_each_other() -> None:
    """R58, R61: such a scope only says that there is none."""
    scope = Scope(name="alone", kind=ScopeKind.STANDALONE)
    world = World(vm("a", scope="alone"), vm("b", scope="alone", fault_domain=1), scopes=(scope,))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert made.vms == ("a", "b")
