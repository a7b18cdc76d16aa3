from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.causes import CAUSES
from forewarn.core.maintenance.announcement import ceil_to_second
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.maintenance.notice import get_minimum_notice
from forewarn.core.model import EventSource, EventType, MaintenanceState
from forewarn.errors import BelowMinimumNotice, InvalidRequest
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, vm

S = MaintenanceState


@pytest.mark.parametrize(
    ("cause", "event_type", "notice"),
    [
        ("live-migration", EventType.FREEZE, minutes(15)),
        ("host-maintenance", EventType.REBOOT, minutes(15)),
        ("host-maintenance", EventType.REDEPLOY, minutes(10)),
        ("user-restart", EventType.REBOOT, minutes(15)),
        ("user-redeploy", EventType.REDEPLOY, minutes(10)),
        ("spot-eviction", EventType.PREEMPT, timedelta(seconds=30)),
        ("predicted-failure", EventType.REDEPLOY, timedelta(days=7)),
        ("predicted-failure", EventType.FREEZE, timedelta(days=7)),
    ],
)
def test_the_notice_is_that_of_the_type_unless_the_cause_gives_more(
    cause: str, event_type: EventType, notice: timedelta
) -> None:
    """R71, R72."""
    made = World(vm("a")).plan_one(MaintenanceRequest(cause=cause, type=event_type, vms=("a",)))
    assert made.not_before == NOW + notice


@pytest.mark.parametrize("count", [5, 7, 15])
def test_a_delete_has_the_notice_that_its_vm_was_brought_to(count: int) -> None:
    """R71, R91."""
    made = World(vm("a", terminate_timeout=minutes(count))).plan_one(
        MaintenanceRequest(cause="scale-set-delete", vms=("a",))
    )
    assert made.not_before == NOW + minutes(count)


def test_the_longest_of_several_timeouts_is_the_least_notice() -> None:
    """R91."""
    tenants = [vm("a", terminate_timeout=minutes(5)), vm("b", terminate_timeout=minutes(9)), vm("c")]
    assert get_minimum_notice(CAUSES["scale-set-delete"], EventType.TERMINATE, tenants) == minutes(9)
    assert get_minimum_notice(CAUSES["scale-set-delete"], EventType.TERMINATE, tenants[2:]) == minutes(5)


@pytest.mark.parametrize(
    ("microsecond", "later"),
    [(0, timedelta(0)), (1, timedelta(seconds=1)), (999_999, timedelta(seconds=1))],
)
def test_a_moment_is_rounded_up_to_a_whole_second(microsecond: int, later: timedelta) -> None:
    """R71."""
    assert ceil_to_second(NOW.replace(microsecond=microsecond)) == NOW + later


def test_not_before_is_a_whole_second_and_never_too_early() -> None:
    """R71."""
    world = World(vm("a"))
    world.now = NOW + timedelta(microseconds=250)
    made = world.plan_one(MaintenanceRequest(cause="user-restart", vms=("a",)))
    assert made.not_before == NOW + minutes(15) + timedelta(seconds=1)


def test_a_longer_notice_is_given_as_asked() -> None:
    """R71."""
    made = World(vm("a")).plan_one(MaintenanceRequest(cause="user-restart", vms=("a",), notice=minutes(45)))
    assert made.not_before == NOW + minutes(45)


def test_a_predicted_failure_of_higher_risk_is_told_less_ahead() -> None:
    """R72."""
    made = World(vm("a")).plan_one(MaintenanceRequest(cause="predicted-failure", vms=("a",), notice=timedelta(days=2)))
    assert made.not_before == NOW + timedelta(days=2)


def test_a_named_moment_is_not_before_rounded_up() -> None:
    """R71."""
    moment = NOW + minutes(60) + timedelta(milliseconds=1)
    made = World(vm("a")).plan_one(MaintenanceRequest(cause="user-restart", vms=("a",), not_before=moment))
    assert made.not_before == NOW + minutes(60) + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            MaintenanceRequest(cause="user-restart", vms=("a",), notice=minutes(14)),
            "notice of 14m: a Reboot needs at least 15m",
        ),
        (MaintenanceRequest(cause="user-restart", vms=("a",), notice=timedelta(seconds=90)), "notice of 90s: a Reboot"),
        (
            MaintenanceRequest(cause="spot-eviction", vms=("a",), notice=timedelta(0)),
            "notice of 0s: a Preempt .* least 30s",
        ),
        (
            MaintenanceRequest(cause="user-redeploy", vms=("a",), not_before=NOW + minutes(9)),
            "a Redeploy needs at least 10m",
        ),
        (
            MaintenanceRequest(cause="user-restart", vms=("a",), not_before=NOW - minutes(120)),
            "NotBefore is 2h in the past",
        ),
        (MaintenanceRequest(cause="scale-set-delete", vms=("a",), notice=minutes(5)), "a Terminate needs at least 7m"),
    ],
)
def test_less_than_the_minimum_notice_is_refused(request_: MaintenanceRequest, words: str) -> None:
    """R71, R91."""
    with pytest.raises(BelowMinimumNotice, match=words) as caught:
        World(vm("a", terminate_timeout=minutes(7))).plan(request_)
    assert caught.value.details["minimum_s"] > 0


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            MaintenanceRequest(cause="user-restart", vms=("a",), notice=minutes(20), not_before=NOW + minutes(20)),
            "a notice or a NotBefore, not both",
        ),
        (MaintenanceRequest(cause="user-restart", vms=("a",), notice=timedelta(days=91)), "more than the limit of 90d"),
        (MaintenanceRequest(cause="user-restart", vms=("a",), not_before=NOW + timedelta(days=91)), r"\(notice_max\)"),
        (
            MaintenanceRequest(cause="scale-set-delete", vms=("a",), notice=minutes(16)),
            "notice of 16m exceeds the maximum of 15m",
        ),
    ],
)
def test_more_than_the_longest_notice_is_refused(request_: MaintenanceRequest, words: str) -> None:
    """R91, and the limit of the settings."""
    with pytest.raises(InvalidRequest, match=words):
        World(vm("a", terminate_timeout=minutes(5))).plan(request_)


def test_the_longest_notice_is_a_setting() -> None:
    world = World(vm("a"), rules=DecisionRules(notice_max=minutes(30)))
    with pytest.raises(InvalidRequest, match="notice of 31m is more than the limit of 30m"):
        world.plan(MaintenanceRequest(cause="user-restart", vms=("a",), notice=minutes(31)))


@pytest.mark.parametrize(
    "request_",
    [
        MaintenanceRequest(cause="user-restart", vms=("a",), notice=minutes(2), force_reason="drill"),
        MaintenanceRequest(cause="user-restart", vms=("a",), not_before=NOW + minutes(2), force_reason="drill"),
    ],
)
def test_a_reason_undercuts_the_minimum_notice_and_stands_in_the_audit_log(request_: MaintenanceRequest) -> None:
    """R71 (A21)."""
    world = World(vm("a"))
    made = world.plan_one(request_)
    assert (made.state, made.not_before) == (S.SCHEDULED, NOW + minutes(2))
    assert [entry.reason for entry in world.changes.entries] == ["drill"]


def test_a_forced_moment_in_the_past_means_now() -> None:
    """R71 (A21)."""
    world = World(vm("a"))
    made = world.plan_one(
        MaintenanceRequest(cause="user-restart", vms=("a",), not_before=NOW - minutes(5), force_reason="drill")
    )
    assert (made.state, made.not_before) == (S.STARTED, NOW)


def test_what_makes_no_event_needs_no_notice() -> None:
    """R91."""
    made = World(vm("a")).plan_one(MaintenanceRequest(cause="scale-set-delete", vms=("a",), notice=timedelta(0)))
    assert made.state is S.STARTED


def waiting_world() -> World:
    """Two fault domains, of which the first is under maintenance."""
    world = World(vm("web-0", scope="web"), vm("web-1", scope="web", fault_domain=1), scopes=(availability_set(),))
    world.plan(MaintenanceRequest(cause="host-maintenance", vms=("web-0",)))
    return world


@pytest.mark.parametrize(
    ("request_", "not_before_minutes"),
    [
        (MaintenanceRequest(cause="host-maintenance", vms=("web-1",)), 75),
        (MaintenanceRequest(cause="host-maintenance", vms=("web-1",), notice=minutes(20)), 80),
        (MaintenanceRequest(cause="host-maintenance", vms=("web-1",), not_before=NOW + minutes(30)), 75),
        (MaintenanceRequest(cause="host-maintenance", vms=("web-1",), not_before=NOW + minutes(90)), 90),
        (MaintenanceRequest(cause="host-maintenance", vms=("web-1",), notice=minutes(2), force_reason="drill"), 62),
        (
            MaintenanceRequest(
                cause="host-maintenance", vms=("web-1",), not_before=NOW + minutes(2), force_reason="drill"
            ),
            62,
        ),
        (
            MaintenanceRequest(
                cause="host-maintenance", vms=("web-1",), not_before=NOW + minutes(90), force_reason="drill"
            ),
            90,
        ),
    ],
)
def test_what_had_to_queue_gets_its_full_notice_when_its_turn_comes(
    request_: MaintenanceRequest, not_before_minutes: int
) -> None:
    """R61, R71: the wait for the other fault domain takes an hour here."""
    world = waiting_world()
    (first,) = world.maintenances.values()
    second = world.plan_one(request_)
    assert second.state is S.QUEUED
    world.advance(minutes(60))
    world.complete(first)
    assert world.get(second).not_before == NOW + minutes(not_before_minutes)


def test_a_user_operation_that_the_platform_would_queue_has_its_notice_from_now_on() -> None:
    """R61, R71."""
    made = waiting_world().plan_one(
        MaintenanceRequest(cause="host-maintenance", source=EventSource.USER, vms=("web-1",))
    )
    assert (made.state, made.not_before) == (S.SCHEDULED, NOW + minutes(15))
