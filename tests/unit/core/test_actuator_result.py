from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.maintenance.actuator_result import PAUSE_MIN, RETRY_MAX, ActuatorFailure, Progress, RetryPolicy
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState, PowerState
from tests.support.world import NOW, World, minutes
from tests.unit.core.builders import vm

S = MaintenanceState
RETRY = RetryPolicy(attempts_max=3, pause=timedelta(seconds=5))


def started(cause: str = "user-restart") -> tuple[World, Maintenance]:
    world = World(vm("a"))
    return world, world.force_start(world.plan_one(MaintenanceRequest(cause=cause, vms=("a",))))


def test_an_actuator_that_is_not_done_is_asked_again_when_it_says() -> None:
    """R79: the event stays Started."""
    world, made = started()
    asked = world.hear(made, Progress(check_at=NOW + minutes(1)), RETRY)
    assert (asked.state, asked.due_at, asked.impacted_at) == (S.STARTED, NOW + minutes(1), None)
    assert world.changes.documents == []


def test_an_actuator_that_names_no_moment_waits_for_an_operator() -> None:
    world, made = started()
    assert world.hear(made, Progress(), RETRY).due_at is None
    world.advance(minutes(600))
    assert world.state_of(made) is S.STARTED


def test_an_impact_is_taken_over_once_however_often_it_is_reported() -> None:
    """R82."""
    world, made = started()
    world.hear(made, Progress(is_impacted=True, check_at=NOW + minutes(1)), RETRY)
    world.now += minutes(1)
    again = world.hear(made, Progress(is_impacted=True, check_at=NOW + minutes(2)), RETRY)
    assert again.impacted_at == NOW
    assert [entry.kind for entry in world.entries].count(EntryKind.IMPACTED) == 1


def test_an_answer_that_it_is_over_completes_the_maintenance() -> None:
    """R79, R82: the impact lies within Started."""
    world, made = started("spot-eviction")
    done = world.hear(made, Progress(is_impacted=True, is_complete=True), RETRY)
    assert (done.state, done.due_at, done.impacted_at, done.ended_at) == (S.COMPLETED, None, NOW, NOW)
    assert world.vms["a"].power_state is PowerState.DEALLOCATED
    assert world.lines("vm:a") == ()


def test_a_failed_call_is_repeated_after_a_growing_pause() -> None:
    world, made = started()
    pauses = []
    for _ in range(RETRY.attempts_max - 1):
        waiting = world.hear(made, ActuatorFailure(reason="no route to host"), RETRY)
        assert waiting.due_at is not None
        pauses.append((waiting.due_at - NOW).total_seconds())
    assert pauses == [5, 10]
    assert world.get(made).attempts == 2
    assert (world.changes.entries[0].kind, world.changes.entries[0].reason) == (
        EntryKind.ATTEMPT_FAILED,
        "no route to host",
    )
    assert world.changes.documents == []


@pytest.mark.parametrize("attempts", [7, 50])
def test_the_pause_has_a_limit(attempts: int) -> None:
    world, made = started()
    for _ in range(attempts):
        world.hear(made, ActuatorFailure(reason="away"), RetryPolicy(attempts_max=1000))
    assert world.get(made).due_at == NOW + RETRY_MAX


def test_an_answer_after_failures_counts_them_from_the_start_again() -> None:
    world, made = started()
    world.hear(made, ActuatorFailure(reason="away"), RETRY)
    assert world.hear(made, Progress(check_at=NOW), RETRY).attempts == 0


def test_a_maintenance_fails_when_its_actuator_gave_no_answer_too_often() -> None:
    """R79: the events go away all the same."""
    world, made = started()
    for _ in range(RETRY.attempts_max):
        world.hear(made, ActuatorFailure(reason="away"), RETRY)
    failed = world.get(made)
    assert (failed.state, failed.attempts, failed.due_at) == (S.FAILED, 3, None)
    assert world.lines("vm:a") == ()
    assert world.entries[-1].reason == "the actuator failed 3 times; last error: away"


def test_a_maintenance_fails_at_once_when_nothing_more_can_come_of_it() -> None:
    """R79."""
    world, made = started()
    failed = world.hear(made, ActuatorFailure(reason="exit status 3", is_final=True), RETRY)
    assert (failed.state, failed.due_at) == (S.FAILED, None)
    assert world.lines("vm:a") == ()
    assert world.entries[-1].reason == "exit status 3"


def test_an_actuator_that_wants_to_be_asked_at_once_is_asked_after_a_pause() -> None:
    """Otherwise it would be asked again and again at the same moment, for ever."""
    world = World(vm("a"))
    made = world.force_start(world.plan_one(MaintenanceRequest(cause="user-restart", vms=("a",))))
    asked_again = world.hear(made, Progress(check_at=world.now), RetryPolicy())
    assert asked_again.due_at == world.now + PAUSE_MIN
