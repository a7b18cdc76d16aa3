from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from forewarn.core.maintenance.actuator_result import ActuatorFailure, RetryPolicy, apply_result
from forewarn.core.maintenance.alert_schedule import AlertThresholds
from forewarn.core.maintenance.forecast import (
    Forecast,
    MaintenanceProblem,
    MissingVote,
    MissingVoteReason,
    NextStep,
    forecast_maintenance,
    restrict_forecast,
)
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Maintenance, MaintenanceState
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import availability_set, vm

WEB_0 = vm("web-0", scope="web", fault_domain=0)
WEB_1 = vm("web-1", host="host-2", scope="web", fault_domain=1)
DB = vm("db")
SECOND = timedelta(seconds=1)
THRESHOLDS = AlertThresholds(unseen_before=minutes(5), late_start_after=minutes(1), late_end_after=minutes(2))
UNSEEN_AFTER = minutes(10)
"""Time after the announcement of a notice of 15 minutes."""


def world() -> World:
    made = World(WEB_0, WEB_1, DB, scopes=(availability_set(),))
    made.now += minutes(60)  # enabled long ago
    return made


def look(made: World, it: Maintenance, asked: dict[str, datetime] | None = None) -> Forecast:
    """What is said of it, when everybody asked just now but for those in `asked`."""
    current = made.maintenances[it.id]
    events = [event for event in made.events.values() if event.maintenance_id == it.id]
    neighbours = [m for m in made.maintenances.values() if m.is_active and m.id != it.id]
    return forecast_maintenance(
        current, events, neighbours, lambda key: (asked or {}).get(key, made.now), made.now, THRESHOLDS
    )


def reboot(made: World, **more: object) -> Maintenance:
    return made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",), **more))  # type: ignore[arg-type] # of any field


def test_it_names_every_tenant_that_has_not_approved_and_when_it_starts_at_the_latest() -> None:
    made = world()
    it = reboot(made)
    found = look(made, it)
    assert found.next_step is NextStep.STARTED
    assert found.at == it.not_before
    assert [(vote.audience, vote.reason) for vote in found.votes] == [
        ("vm:db", MissingVoteReason.NOT_APPROVED),
        ("scope:web", MissingVoteReason.NOT_APPROVED),
    ]
    assert found.problems == ()


@pytest.mark.parametrize(("minutes_left", "is_pressing"), [(15, False), (3.75 + 0.02, False), (3.75, True), (0, True)])
def test_a_missing_approval_is_pressing_in_the_last_quarter_of_the_notice(
    minutes_left: float, is_pressing: bool
) -> None:
    made = world()
    it = reboot(made)
    assert it.not_before is not None
    assert it.not_before - it.created_at == minutes(15)
    made.now = it.not_before - minutes(minutes_left)
    assert (MaintenanceProblem.UNAPPROVED in look(made, it).problems) is is_pressing


def test_of_a_longer_notice_the_quarter_is_longer() -> None:
    made = world()
    it = made.defer(reboot(made, latest_start=made.now + timedelta(days=5)), by=timedelta(days=4) - minutes(15))
    made.now += timedelta(days=3)
    assert it.not_before == it.created_at + timedelta(days=4)
    assert look(made, it).problems == (MaintenanceProblem.UNAPPROVED,)
    made.now -= minutes(1)
    assert look(made, it).problems == ()


def test_who_has_approved_is_waited_for_no_more() -> None:
    made = world()
    it = reboot(made)
    mine = next(event for event in made.events.values() if event.audience == "vm:db")
    made.approve("db", mine.id)
    assert [vote.audience for vote in look(made, it).votes] == ["scope:web"]


@pytest.mark.parametrize(
    ("asked_before_s", "passed", "why"),
    [
        (-1, UNSEEN_AFTER, MissingVoteReason.NOT_APPROVED),
        (1, UNSEEN_AFTER - SECOND, MissingVoteReason.NOT_APPROVED),
        (1, UNSEEN_AFTER, MissingVoteReason.NEVER_SEEN),
        (3600, UNSEEN_AFTER, MissingVoteReason.NEVER_SEEN),
    ],
)
def test_who_has_not_asked_since_it_was_announced_cannot_know(
    asked_before_s: float, passed: timedelta, why: MissingVoteReason
) -> None:
    made = world()
    it = reboot(made)
    asked = {"vm:db": it.created_at - timedelta(seconds=asked_before_s)}
    made.now += passed
    found = look(made, it, asked)
    assert {vote.audience: vote.reason for vote in found.votes}["vm:db"] is why
    assert (MaintenanceProblem.UNSEEN in found.problems) == (why is MissingVoteReason.NEVER_SEEN)


def test_who_never_asked_at_all_has_not_seen_it() -> None:
    made = world()
    it = reboot(made)
    made.now += UNSEEN_AFTER
    events = [event for event in made.events.values() if event.maintenance_id == it.id]
    found = forecast_maintenance(made.maintenances[it.id], events, [], lambda _key: None, made.now, THRESHOLDS)
    assert {vote.reason for vote in found.votes} == {MissingVoteReason.NEVER_SEEN}
    assert found.problems == (MaintenanceProblem.UNSEEN,)


def test_one_that_waits_its_turn_says_behind_whom() -> None:
    made = world()
    first = reboot(made)
    second = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-2",)))
    assert second.state is MaintenanceState.QUEUED
    assert look(made, second) == Forecast(next_step=NextStep.ANNOUNCED, blocked_by=(first.id,))


def test_what_goes_on_at_a_vm_holds_the_next_one_there() -> None:
    made = world()
    first = made.plan_one(MaintenanceRequest(cause="user-restart", vms=("db",)))
    second = made.plan_one(MaintenanceRequest(cause="user-redeploy", vms=("db",)))
    made.force_start(first)
    assert look(made, second).blocked_by == (first.id,)


def test_one_whose_time_has_come_and_that_has_not_started_is_late() -> None:
    made = world()
    it = reboot(made)
    assert it.not_before is not None
    made.now = it.not_before + minutes(1) - SECOND
    assert MaintenanceProblem.LATE not in look(made, it).problems
    made.now += SECOND
    assert look(made, it).problems[0] is MaintenanceProblem.LATE


@pytest.mark.parametrize(("duration_s", "expected"), [(60, 60), (0, 0), (-1, None)])
def test_one_under_way_is_expected_to_end_after_what_was_announced(duration_s: int, expected: int | None) -> None:
    made = world()
    it = made.force_start(reboot(made, duration_s=duration_s))
    found = look(made, it)
    assert found.next_step is NextStep.OVER
    assert found.at == (None if expected is None else made.now + timedelta(seconds=expected))
    assert found.votes == ()
    # An unknown duration counts as 0, so that an endless maintenance is still reported.
    made.now += timedelta(seconds=expected or 0) + minutes(2) - SECOND
    assert look(made, it).problems == ()
    made.now += SECOND
    assert look(made, it).problems == (MaintenanceProblem.OVERRUN,)


def test_the_announced_duration_counts_from_the_impact() -> None:
    made = world()
    it = made.force_start(reboot(made, duration_s=60))
    made.now += minutes(5)
    made.impact(it)
    assert look(made, it).at == made.now + minutes(1)


def test_an_actuator_that_has_failed_is_told() -> None:
    made = world()
    it = made.force_start(reboot(made))
    draft = made.draft()
    apply_result(draft, made.maintenances[it.id], ActuatorFailure(reason="no answer"), RetryPolicy())
    made.commit(draft)
    assert look(made, it).problems == (MaintenanceProblem.FAILING,)


@pytest.mark.parametrize("state", [MaintenanceState.COMPLETED, MaintenanceState.CANCELED, MaintenanceState.FAILED])
def test_of_what_is_over_nothing_more_is_expected(state: MaintenanceState) -> None:
    made = world()
    it = replace(reboot(made), state=state, started_at=NOW, ended_at=NOW)
    found = forecast_maintenance(it, [], [], lambda _key: None, NOW, THRESHOLDS)
    assert found.next_step is NextStep.NOTHING
    assert found.at is None
    assert found.problems == ((MaintenanceProblem.FAILED,) if state is MaintenanceState.FAILED else ())


def test_a_maintenance_that_had_to_queue_was_announced_when_its_turn_came() -> None:
    made = world()
    first = reboot(made)
    second = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-2",)))
    asked = {"scope:web": made.now + minutes(1)}  # after it was asked for, and before it was announced
    made.now += minutes(2)
    made.force_start(first)
    made.complete(first)
    assert made.maintenances[second.id].state is MaintenanceState.SCHEDULED
    made.now += UNSEEN_AFTER
    assert look(made, second, asked).problems == (MaintenanceProblem.UNSEEN,)


def test_one_that_was_put_off_was_announced_before() -> None:
    made = world()
    it = made.defer(reboot(made, latest_start=made.now + timedelta(days=5)), by=timedelta(days=2))
    assert it.not_before is not None
    made.now = it.not_before - minutes(5)
    asked = {"scope:web": it.created_at - SECOND}
    assert {vote.audience: vote.reason for vote in look(made, it, asked).votes}[
        "scope:web"
    ] is MissingVoteReason.NEVER_SEEN


@pytest.mark.parametrize("left", [minutes(60 * 10), minutes(16), minutes(15), minutes(6), minutes(5), minutes(1)])
def test_one_that_quiet_hours_have_moved_was_announced_before(left: timedelta) -> None:
    """Its notice began when it was announced, however short the notice is that was asked for."""
    made = world()
    it = replace(reboot(made), not_before=made.now + timedelta(hours=16))
    assert it.not_before is not None
    made.now = it.not_before - left
    events = [event for event in made.events.values() if event.maintenance_id == it.id]
    looked_once = forecast_maintenance(it, events, [], lambda _key: NOW + minutes(61), made.now, THRESHOLDS)
    assert {vote.reason for vote in looked_once.votes} == {MissingVoteReason.NOT_APPROVED}
    assert (MaintenanceProblem.UNAPPROVED in looked_once.problems) is (left <= timedelta(hours=4))
    never_looked = forecast_maintenance(it, events, [], lambda _key: NOW - SECOND, made.now, THRESHOLDS)
    reason = MissingVoteReason.NEVER_SEEN if left <= minutes(5) else MissingVoteReason.NOT_APPROVED
    assert {vote.reason for vote in never_looked.votes} == {reason}


def test_one_that_had_to_queue_and_was_put_off_was_announced_at_its_turn() -> None:
    made = world()
    first = reboot(made)
    second = made.plan_one(
        MaintenanceRequest(cause="host-maintenance", hosts=("host-2",), latest_start=made.now + timedelta(days=3))
    )
    assert second.announced_at is None
    made.now += timedelta(hours=5)
    made.force_start(first)
    made.complete(first)
    second = made.defer(made.maintenances[second.id], by=timedelta(hours=2))
    assert second.announced_at == made.now
    assert second.not_before is not None
    made.now = second.not_before - minutes(5)
    assert MaintenanceProblem.UNSEEN not in look(made, second).problems
    asked_in_the_queue = {"scope:web": second.created_at + minutes(1)}
    assert MaintenanceProblem.UNSEEN in look(made, second, asked_in_the_queue).problems


# What a tenant may see of it

SEEN = MissingVote(event_id="E1", audience="web", reason=MissingVoteReason.NOT_APPROVED)
NEVER_SEEN = MissingVote(event_id="E2", audience="db", reason=MissingVoteReason.NEVER_SEEN)
PROBLEMS = (MaintenanceProblem.LATE, MaintenanceProblem.UNSEEN, MaintenanceProblem.UNAPPROVED)
WHOLE = Forecast(next_step=NextStep.STARTED, votes=(SEEN, NEVER_SEEN), blocked_by=("m", "n"), problems=PROBLEMS)


def test_a_tenant_who_may_see_everything_is_shown_everything() -> None:
    assert restrict_forecast(WHOLE, {"E1", "E2"}, {"m", "n"}) == WHOLE


@pytest.mark.parametrize(
    ("events", "maintenances", "expected"),
    [
        ({"E1"}, {"m", "n"}, replace(WHOLE, votes=(SEEN,), problems=(PROBLEMS[0], PROBLEMS[2]))),
        ({"E2"}, {"m", "n"}, replace(WHOLE, votes=(NEVER_SEEN,))),
        ({"E1", "E2"}, {"n"}, replace(WHOLE, blocked_by=("n",))),
        (set[str](), set[str](), replace(WHOLE, votes=(), blocked_by=(), problems=(PROBLEMS[0],))),
    ],
)
def test_a_tenant_learns_only_that_there_is_more(events: set[str], maintenances: set[str], expected: Forecast) -> None:
    assert restrict_forecast(WHOLE, events, maintenances) == replace(expected, has_hidden_blockers=True)
