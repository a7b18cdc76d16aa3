from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.control.board import BoardItem
from forewarn.core.maintenance.alert_schedule import AlertThresholds
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.forecast import MaintenanceProblem, forecast_maintenance
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import Maintenance, MaintenanceState
from forewarn.dashboard import wording
from tests.support.world import World, minutes
from tests.unit.core.builders import availability_set, vm

WEB_0 = vm("web-0", scope="web", fault_domain=0)
WEB_1 = vm("web-1", host="host-2", scope="web", fault_domain=1)
DB = vm("db")
THRESHOLDS = AlertThresholds(late_start_after=minutes(1), late_end_after=minutes(2))


def world() -> World:
    return World(WEB_0, WEB_1, DB, scopes=(availability_set(),))


def item(made: World, it: Maintenance) -> BoardItem:
    current = made.maintenances[it.id]
    events = tuple(event for event in made.events.values() if event.maintenance_id == it.id)
    others = [m for m in made.maintenances.values() if m.is_active and m.id != it.id]
    found = forecast_maintenance(current, events, others, lambda _key: made.now, made.now, THRESHOLDS)
    return BoardItem(current, events, found)


def say(made: World, it: Maintenance) -> str:
    """What is said of it; AHEAD and BACK stand for a time."""
    text, at, is_ahead = wording.describe_next_step(item(made, it))
    if at is None:
        return text
    assert is_ahead is (at > made.now), "a sentence about the future has a time in the future"
    return f"{text} {'AHEAD' if is_ahead else 'BACK'}"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
    ],
)
def test_a_few_names_and_how_many_more(names: list[str], expected: str) -> None:
    assert wording.join_names(names) == expected


def test_it_says_whom_a_scheduled_one_waits_for() -> None:
    made = world()
    it = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert say(made, it) == "It starts as soon as db and web approve, at the latest AHEAD"
    made.approve("db", next(event.id for event in made.events.values() if event.audience == "vm:db"))
    assert say(made, it) == "It starts as soon as web approves, at the latest AHEAD"
    assert wording.count_approvals(item(made, it).events) == "1 of 2"


def test_it_says_behind_whom_a_queued_one_waits() -> None:
    made = world()
    first = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    second = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-2",)))
    assert say(made, second) == f"It is announced when {first.id} is over"
    named = replace(item(made, second), blocked_by=(first,))
    assert wording.describe_next_step(named).text == "It is announced when Freeze of host-1 is over"
    same = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    named = replace(item(made, same), blocked_by=(first,))
    assert wording.describe_next_step(named).text == "It is announced when the other Freeze of host-1 is over"
    assert wording.count_approvals(item(made, second).events) == "none needed"


def test_it_says_what_becomes_of_one_under_way_and_of_one_that_is_over() -> None:
    made = world()
    it = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",), duration_s=60))
    made.force_start(it)
    assert say(made, it) == "It is under way and expected to end AHEAD"
    made.advance(minutes(1))
    assert say(made, it) == "It is under way and was expected to end BACK"
    made.advance(minutes(3))
    assert say(made, it) == "It is under way and should have ended BACK"
    made.complete(it)
    assert say(made, it) == "It is over"
    other = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    made.cancel(other)
    assert say(made, other) == "It was canceled"


def test_a_time_is_named_only_where_the_sentence_has_one() -> None:
    made = world()
    first = made.plan_one(MaintenanceRequest(cause="user-restart", vms=("db",), notice=minutes(60)))
    second = made.plan_one(MaintenanceRequest(cause="user-redeploy", vms=("db",)))
    made.force_start(first)
    end = f"It starts when {first.id} is over"
    assert say(made, second) == f"{end} and db has approved. Its notice ends AHEAD"
    made.approve("db", made.event_of(second).id)
    assert say(made, second) == end
    made.advance(minutes(20))
    assert say(made, second) == end
    third = made.plan_one(MaintenanceRequest(cause="user-restart", vms=("web-0",)))
    made.now += minutes(15)
    assert say(made, third) == "It is due to start"
    made.now += minutes(1)
    assert say(made, third) == "It should have started BACK"


def test_without_a_missing_approval_it_says_when_it_starts() -> None:
    made = World(WEB_0, DB, scopes=(availability_set(),), rules=DecisionRules(start_delay=minutes(1)))
    it = made.plan_one(MaintenanceRequest(cause="user-restart", vms=("db",)))
    made.approve("db", made.event_of(it).id)
    assert say(made, it) == "All tenants have approved. It starts AHEAD"
    assert wording.describe_next_step(item(made, it)).at == made.now + minutes(1)
    unseen = World(DB, is_enabled=False)
    it = unseen.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    assert say(unseen, it) == "No approval is needed. It starts AHEAD"


def test_a_tenant_is_not_sent_to_a_history_that_hides_the_cause_from_it() -> None:
    made = world()
    it = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    made.force_start(it)
    made.fail(it)
    for_operator = item(made, it)
    for_tenant = replace(for_operator, is_redacted=True)
    assert wording.describe_next_step(for_operator).text == "It failed and is not retried. See History for the cause"
    assert wording.describe_next_step(for_tenant).text == "It failed and is not retried. Ask the operator for the cause"
    for problem in MaintenanceProblem:
        assert "History" not in wording.describe_problem(problem, for_tenant)
    problem = MaintenanceProblem.FAILING
    assert wording.describe_problem(problem, for_operator).endswith("retried. See History for the cause.")


def test_one_fact_has_one_badge() -> None:
    made = world()
    it = made.plan_one(MaintenanceRequest(cause="host-maintenance", hosts=("host-1",)))
    made.now += minutes(17)
    assert wording.find_badge(item(made, it)) is MaintenanceProblem.LATE
    made.force_start(it)
    made.fail(it)
    assert (item(made, it).worst_problem, wording.find_badge(item(made, it))) == (MaintenanceProblem.FAILED, None)


def test_every_state_and_trouble_has_a_sign_or_a_word() -> None:
    assert set(wording.STATES) == set(MaintenanceState)
    assert len(set(wording.STATES.values())) == len(wording.STATES)
    assert set(wording.TROUBLES) == set(MaintenanceProblem)
    assert len({word for word, _ in wording.TROUBLES.values()}) == len(wording.TROUBLES)
