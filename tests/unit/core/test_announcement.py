from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.maintenance.announcement import is_announcing, makes_event
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Audience, EntryKind, EventStatus, MaintenanceState, PowerState, Scope, ScopeKind
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, scale_set, vm

S = MaintenanceState
RESTART = MaintenanceRequest(cause="user-restart", vms=("a",))


def test_an_event_names_the_affected_vms_only_and_keeps_their_order() -> None:
    """R33, R58, R60: the whole scope sees it, also who is not in Resources."""
    world = World(
        vm("web-0", scope="web"), vm("web-1", scope="web"), vm("web-2", scope="web"), scopes=(availability_set(),)
    )
    world.plan(MaintenanceRequest(cause="host-maintenance", vms=("web-2", "web-0")))
    assert world.line("scope:web").resources == ("web-2", "web-0")


def test_one_event_stays_within_one_update_domain() -> None:
    """R34."""
    world = World(
        vm("web-0", scope="web", update_domain=0),
        vm("web-1", scope="web", update_domain=1),
        vm("web-2", scope="web", update_domain=0),
        scopes=(availability_set(),),
    )
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert [event.resources for event in world.events_of(made)] == [("web-0", "web-2"), ("web-1",)]
    assert [event.update_domain for event in world.events_of(made)] == [0, 1]


def test_each_tenant_of_a_host_has_an_event_of_its_own() -> None:
    """R83, R84, R85: own id, own Resources, one NotBefore."""
    world = World(vm("web-0", scope="web"), vm("db"), scopes=(availability_set(),))
    made = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    web, db = world.line("scope:web"), world.line("vm:db")
    assert (web.resources, db.resources) == (("web-0",), ("db",))
    assert web.event_id != db.event_id
    assert web.not_before == db.not_before == made.not_before == NOW + minutes(15)


def test_gpu_vms_of_one_fault_domain_see_only_events_that_name_them() -> None:
    """R58."""
    world = World(
        *(vm(f"fleet_{i}", scope="fleet", size="Standard_NC6") for i in range(2)),
        scopes=(scale_set(fault_domain_count=1),),
    )
    world.plan(MaintenanceRequest(cause="host-maintenance", vms=("fleet_1",)))
    assert world.lines("vm:fleet_0") == ()
    assert world.line("vm:fleet_1").resources == ("fleet_1",)


@pytest.mark.parametrize(
    ("kind", "is_iaas"),
    [(ScopeKind.CLOUD_SERVICE, False), (ScopeKind.AVAILABILITY_SET, True), (ScopeKind.SCALE_SET, True)],
)
def test_only_role_instances_of_a_cloud_service_are_not_iaas(kind: ScopeKind, is_iaas: bool) -> None:
    """R20."""
    world = World(vm("a", scope="web"), scopes=(Scope(name="web", kind=kind),))
    assert world.event_of(world.plan_one(RESTART)).is_iaas is is_iaas


def test_a_lone_vm_is_iaas() -> None:
    """R20."""
    world = World(vm("a"))
    assert world.event_of(world.plan_one(RESTART)).is_iaas


def test_a_hardware_failure_is_started_from_the_first_moment() -> None:
    """R36, R73, R78: for all affected VMs, without notice."""
    world = World(vm("web-0", scope="web"), vm("db"), scopes=(availability_set(),))
    made = world.plan_one(MaintenanceRequest(cause="hardware-failure", hosts=("host-1",)))
    assert (made.state, made.due_at, made.started_at) == (S.STARTED, NOW, NOW)
    for key in ("scope:web", "vm:db"):
        assert (world.line(key).status, world.line(key).not_before) == (EventStatus.STARTED, None)
        assert world.line(key).type == "Reboot"
        assert world.incarnation(key) == 2


def test_an_audience_that_never_asked_gets_no_event_and_delays_nothing() -> None:
    """R67, R70, R86."""
    world = World(vm("a"), is_enabled=False)
    made = world.plan_one(RESTART)
    assert (made.state, made.not_before, world.events_of(made)) == (S.STARTED, NOW, [])


def test_an_unknown_audience_is_not_announced_to() -> None:
    """R67."""
    assert not is_announcing(None, NOW, timedelta(0))


@pytest.mark.parametrize(("age_s", "is_shown"), [(0, False), (299, False), (300, True)])
def test_events_begin_to_arrive_some_time_after_enabling(age_s: int, is_shown: bool) -> None:
    """R68."""
    audience = Audience(key="vm:a", enabled_at=NOW - timedelta(seconds=age_s))
    assert is_announcing(audience, NOW, minutes(5)) is is_shown


def test_what_begins_before_events_arrive_is_neither_announced_nor_delayed() -> None:
    """R68."""
    world = World(vm("a"), rules=DecisionRules(announce_delay=minutes(5)))
    early = world.plan_one(RESTART)
    assert (early.state, world.lines("vm:a")) == (S.STARTED, ())
    world.complete(early)
    world.advance(minutes(5))
    assert world.plan_one(RESTART).state is S.SCHEDULED


def test_a_named_moment_is_kept_even_when_nobody_is_told() -> None:
    """R70a, R71."""
    world = World(vm("a"), is_enabled=False)
    moment = NOW + minutes(3) + timedelta(milliseconds=5)
    made = world.plan_one(replace(RESTART, not_before=NOW + minutes(20)))
    assert (made.state, made.not_before, world.events_of(made)) == (S.SCHEDULED, NOW + minutes(20), [])
    other = world.plan_one(
        MaintenanceRequest(cause="user-redeploy", vms=("a",), not_before=moment, force_reason="drill")
    )
    assert (other.state, other.not_before) == (S.SCHEDULED, NOW + timedelta(seconds=181))


PLATFORM = ("live-migration", "host-maintenance", "platform-redeploy", "predicted-failure")
USER = ("user-restart", "user-redeploy", "spot-eviction")


@pytest.mark.parametrize("cause", [*PLATFORM, *USER])
def test_a_notice_holds_for_a_vm_that_does_not_ask(cause: str) -> None:
    """R70a."""
    world = World(vm("a"), is_enabled=False)
    made = world.plan_one(MaintenanceRequest(cause=cause, vms=("a",), notice=timedelta(hours=4)))
    assert (made.state, made.not_before, world.events_of(made)) == (S.SCHEDULED, NOW + timedelta(hours=4), [])
    world.advance(timedelta(hours=4) - timedelta(microseconds=1))
    assert world.state_of(made) is S.SCHEDULED
    world.advance(timedelta(microseconds=1))
    assert world.state_of(made) is S.STARTED


@pytest.mark.parametrize(
    ("cause", "notice"),
    [
        ("live-migration", minutes(15)),
        ("host-maintenance", minutes(15)),
        ("platform-redeploy", minutes(10)),
        ("predicted-failure", timedelta(days=7)),
    ],
)
def test_platform_maintenance_keeps_its_usual_notice_where_nobody_asks(cause: str, notice: timedelta) -> None:
    """R70a, R71, R72."""
    made = World(vm("a"), is_enabled=False).plan_one(MaintenanceRequest(cause=cause, vms=("a",)))
    assert (made.state, made.not_before) == (S.SCHEDULED, NOW + notice)


@pytest.mark.parametrize("cause", USER)
def test_what_a_user_asks_for_and_an_eviction_do_not_wait_where_nobody_asks(cause: str) -> None:
    """R70a."""
    assert World(vm("a"), is_enabled=False).plan_one(MaintenanceRequest(cause=cause, vms=("a",))).state is S.STARTED


def test_an_operation_that_its_scope_has_not_opted_in_to_does_not_wait_unless_a_time_was_given() -> None:
    """R70a, R93."""
    world = World(vm("fleet_0", scope="fleet"), scopes=(scale_set(),))
    upgrade = MaintenanceRequest(cause="os-upgrade", vms=("fleet_0",))
    assert world.complete(world.plan_one(upgrade)).state is S.COMPLETED
    later = world.plan_one(replace(upgrade, notice=minutes(3)))
    assert (later.state, later.not_before) == (S.SCHEDULED, NOW + minutes(3))


def test_a_forced_notice_of_nothing_starts_at_once_where_nobody_asks() -> None:
    """R70a."""
    request = MaintenanceRequest(cause="host-maintenance", vms=("a",), notice=timedelta(0), force_reason="fire")
    assert World(vm("a"), is_enabled=False).plan_one(request).state is S.STARTED


@pytest.mark.parametrize(
    ("timeout", "priority", "is_shown"),
    [(None, "", False), (minutes(5), "", True), (minutes(5), "Spot", False)],
)
def test_a_delete_makes_an_event_only_after_opt_in_and_not_for_spot(
    timeout: timedelta | None, priority: str, is_shown: bool
) -> None:
    """R91."""
    doomed = vm("a", scope="fleet", terminate_timeout=timeout, priority=priority)
    assert makes_event("scale-set-delete", doomed, scale_set()) is is_shown


@pytest.mark.parametrize("cause", ["user-restart", "user-redeploy", "reimage", "host-maintenance"])
def test_the_opt_in_for_deletes_is_for_nothing_else(cause: str) -> None:
    """R91: it gives no other operation another notice."""
    world = World(vm("a", terminate_timeout=minutes(7)))
    made = world.plan_one(MaintenanceRequest(cause=cause, vms=("a",)))
    assert made.notice in {minutes(10), minutes(15)}


def test_a_vm_keeps_the_timeout_that_it_was_brought_to() -> None:
    """R91: the scope's profile alone changes nothing."""
    scope = replace(scale_set(), terminate_notification=vm("x", terminate_timeout=minutes(9)).terminate_notification)
    assert not makes_event("scale-set-delete", vm("a", scope="fleet"), scope)


@pytest.mark.parametrize(
    ("size", "opted_in", "is_shown"),
    [
        ("Standard_D2s_v3", True, True),
        ("Standard_D2s_v3", False, False),
        ("", True, True),
        ("Standard_GS5", True, False),
        ("Standard_M64", True, False),
        ("Standard_NC6", True, False),
        ("Standard_HB120", True, False),
    ],
)
@pytest.mark.parametrize("cause", ["os-upgrade", "reimage"])
def test_os_image_changes_make_events_after_opt_in_for_general_purpose_sizes(
    cause: str, size: str, opted_in: bool, is_shown: bool
) -> None:
    """R93."""
    scope = scale_set(notifies_of_os_image=opted_in)
    assert makes_event(cause, vm("a", scope="fleet", size=size), scope) is is_shown


def test_a_lone_vm_cannot_opt_in_to_events_for_os_images() -> None:
    """R93."""
    assert not makes_event("os-upgrade", vm("a"), None)


def test_an_os_upgrade_that_is_announced_has_fifteen_minutes_notice() -> None:
    """R93."""
    world = World(vm("a", scope="fleet"), scopes=(scale_set(notifies_of_os_image=True),))
    made = world.plan_one(MaintenanceRequest(cause="os-upgrade", vms=("a",)))
    assert made.not_before == NOW + minutes(15)


@pytest.mark.parametrize("cause", ["user-restart", "user-redeploy"])
def test_a_scope_may_approve_user_operations_by_itself(cause: str) -> None:
    """X5: the event goes straight to Started, in one change of the document."""
    world = World(vm("a", scope="web"), scopes=(availability_set(approves_user_operations=True),))
    made = world.plan_one(MaintenanceRequest(cause=cause, vms=("a",)))
    assert (made.state, world.event_of(made).approved_by) == (S.STARTED, "policy")
    assert (world.line("scope:web").status, world.incarnation("scope:web")) == (EventStatus.STARTED, 2)
    approvals = [entry for entry in world.changes.entries if entry.kind is EntryKind.APPROVED]
    assert [(entry.actor, entry.event_id) for entry in approvals] == [("policy", world.event_of(made).id)]


@pytest.mark.parametrize("cause", ["host-maintenance", "spot-eviction"])
def test_a_scope_that_approves_user_operations_approves_nothing_else(cause: str) -> None:
    """X5."""
    world = World(vm("a", scope="web"), scopes=(availability_set(approves_user_operations=True),))
    assert world.plan_one(MaintenanceRequest(cause=cause, vms=("a",))).state is S.SCHEDULED


def test_a_vm_that_is_gone_when_its_turn_comes_is_in_no_event() -> None:
    """R33: it was evicted while the maintenance of its host was in the queue."""
    world = World(
        vm("web-0", scope="web", fault_domain=0),
        vm("web-1", scope="web", fault_domain=1, host="host-2"),
        vm("spot", host="host-2", priority="Spot"),
        scopes=(availability_set(),),
    )
    first = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    second = world.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-2",)))
    eviction = world.plan_one(MaintenanceRequest(cause="spot-eviction", vms=("spot",)))
    world.approve("spot", world.event_of(eviction).id)
    world.complete(eviction)
    assert world.vms["spot"].power_state is PowerState.DEALLOCATED
    world.cancel(first)
    assert [event.resources for event in world.events_of(second)] == [("web-1",)]
