"""Actuators that fail, hang, lie or never end, under the real scheduler on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from forewarn.actuators import Actuator, Progress, Simulate
from forewarn.core.maintenance.actuator_result import RetryPolicy
from forewarn.core.model import EntryKind, Maintenance, MaintenanceState
from forewarn.errors import ActuationFailed, ActuatorError
from forewarn.scheduling.scheduler import SchedulerSettings
from tests.support.observed import Observed
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS, seconds
from tests.support.world import NOW, minutes

pytestmark = pytest.mark.anyio

K = EntryKind
S = MaintenanceState

DONE = Progress(is_impacted=True, is_complete=True)
HURRY = timedelta(0)
"""A time-out that leaves an actuator no moment to wait, so that no test has to either."""


class Scripted(Observed):
    """Does what it is told, call by call; then the last again."""

    def __init__(self, *steps: Callable[[], Progress] | Progress | Exception) -> None:
        self.steps = list(steps)
        self.calls: list[tuple[str, datetime]] = []

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        self.calls.append((maintenance.id, now))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, Progress) else step()


class Hanging(Observed):
    """Never answers."""

    def __init__(self) -> None:
        self.calls = 0

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        self.calls += 1
        answer: asyncio.Future[Progress] = asyncio.get_running_loop().create_future()
        return await answer


def fails(times: int) -> list[Exception]:
    return [ActuatorError(f"hypervisor says no ({n})") for n in range(1, times + 1)]


async def begun(actuator: Actuator, pace: SchedulerSettings | None = None) -> tuple[Simulated, Maintenance]:
    """A world in which a maintenance of `db` has been approved, and the actuator is due."""
    made = await simulated(inventory(*VMS, scopes=SCOPES), actuator=actuator, pace=pace)
    maintenance = await made.schedule_one("host-maintenance", "db")
    await made.approve_all("db")
    return made, maintenance


async def test_an_actuator_that_fails_a_few_times_is_asked_again_later_and_later() -> None:
    actuator = Scripted(*fails(4), DONE)
    made, maintenance = await begun(actuator)
    await made.advance(minutes(5))
    asked = [0, 5, 15, 35, 75]
    assert [(now - made.get_maintenance(maintenance).created_at).total_seconds() for _, now in actuator.calls] == asked
    story = made.story(maintenance)
    assert story[3:] == [
        *((K.ATTEMPT_FAILED, seconds(moment)) for moment in asked[:4]),
        (K.IMPACTED, seconds(75)),
        (K.COMPLETED, seconds(75)),
    ]
    reasons = [entry.reason for entry in made.entries(maintenance) if entry.kind is K.ATTEMPT_FAILED]
    assert reasons[0] == "hypervisor says no (1)"


async def test_an_actuator_that_never_works_is_given_up_and_the_events_go_away() -> None:
    """R79."""
    actuator = Scripted(ActuatorError("hypervisor says no"))
    made, maintenance = await begun(actuator, SchedulerSettings(retry=RetryPolicy(attempts_max=3, pause=seconds(5))))
    await made.advance(minutes(1))
    assert made.state(maintenance) == S.FAILED
    assert len(actuator.calls) == 3
    assert made.shown("db") == {"DocumentIncarnation": 4, "Events": []}
    last = made.entries(maintenance)[-1]
    assert (last.kind, last.reason) == (K.FAILED, "the actuator failed 3 times; last error: hypervisor says no")
    await made.advance(minutes(60))
    assert len(actuator.calls) == 3


async def test_an_actuator_that_has_failed_for_good_is_not_asked_again() -> None:
    """R79."""
    actuator = Scripted(ActuatorError("no route"), ActuationFailed("no capacity"))
    made, maintenance = await begun(actuator)
    await made.advance(minutes(60))
    assert made.state(maintenance) == S.FAILED
    assert len(actuator.calls) == 2
    assert made.shown("db") == {"DocumentIncarnation": 4, "Events": []}
    last = made.entries(maintenance)[-1]
    assert (last.kind, last.reason) == (K.FAILED, "no capacity")


async def test_a_success_in_between_counts_the_failures_anew() -> None:
    actuator = Scripted(*fails(2), Progress(check_at=NOW + minutes(1)), *fails(2), DONE)
    made, maintenance = await begun(actuator, SchedulerSettings(retry=RetryPolicy(attempts_max=3, pause=seconds(5))))
    await made.advance(seconds(30))
    assert made.get_maintenance(maintenance).attempts == 0
    await made.advance(minutes(2))
    assert made.state(maintenance) == S.COMPLETED


async def test_an_actuator_that_hangs_is_a_failed_attempt() -> None:
    actuator = Hanging()
    pace = SchedulerSettings(call_timeout=HURRY, retry=RetryPolicy(attempts_max=2, pause=seconds(5)))
    made, maintenance = await begun(actuator, pace)
    await made.advance(seconds(4))
    assert [kind for kind, _ in made.story(maintenance)][-1] is K.ATTEMPT_FAILED
    await made.advance(seconds(1))
    assert made.state(maintenance) == S.FAILED
    assert "no answer within" in str(made.entries(maintenance)[-1].reason)
    assert actuator.calls == 2


async def test_one_that_hangs_does_not_keep_the_others_from_their_moments() -> None:
    class HangsForOne(Simulate):
        async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
            if "db" in maintenance.vms:
                await asyncio.get_running_loop().create_future()
            return await super().observe(maintenance, now)

    made, _stuck = await begun(
        HangsForOne(), SchedulerSettings(call_timeout=HURRY, retry=RetryPolicy(attempts_max=1000))
    )
    other = await made.schedule_one("user-redeploy", "lone")
    await made.advance(minutes(30))
    assert made.story(other)[1:] == [
        (K.STARTED, minutes(10)),
        (K.IMPACTED, minutes(10) + seconds(7)),
        (K.COMPLETED, minutes(20)),
    ]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("x"), TimeoutError()])
async def test_an_actuator_with_a_bug_is_a_failed_attempt(error: Exception) -> None:
    actuator = Scripted(error, DONE)
    made, maintenance = await begun(actuator)
    await made.advance(seconds(5))
    assert made.state(maintenance) == S.COMPLETED
    assert [kind for kind, _ in made.story(maintenance)].count(K.ATTEMPT_FAILED) == 1


async def test_impact_and_completion_are_taken_over_once_however_often_they_are_told() -> None:
    """R82."""
    made, maintenance = await begun(Scripted(Progress(is_impacted=True, check_at=None)))
    await made.advance(seconds(1))
    for _ in range(3):
        await made.engine.deadlines.record_results({maintenance.id: Progress(is_impacted=True)}, RetryPolicy())
    for _ in range(2):
        await made.engine.deadlines.record_results({maintenance.id: DONE, "unknown": DONE}, RetryPolicy())
    assert [kind for kind, _ in made.story(maintenance)][2:] == [K.STARTED, K.IMPACTED, K.COMPLETED]


async def test_left_to_a_person_it_goes_on_until_that_person_says_it_is_over() -> None:
    """R98."""
    made, maintenance = await begun(Simulate(complete_after=None))
    await made.advance(timedelta(hours=5))
    assert made.state(maintenance) == S.STARTED
    done = await made.engine.maintenances.complete(maintenance.id, actor="operator:ann")
    assert done.state is S.COMPLETED
    assert made.shown("db")["Events"] == []


async def test_a_completion_without_an_impact_before_it_is_both() -> None:
    made, maintenance = await begun(Simulate(impact_after=minutes(9), complete_after=minutes(1)))
    await made.advance(minutes(1))
    assert made.story(maintenance)[-2:] == [(K.IMPACTED, minutes(1)), (K.COMPLETED, minutes(1))]


async def test_more_maintenances_than_one_batch_and_more_calls_than_slots_all_get_done() -> None:
    made = await simulated(
        inventory(*VMS, scopes=SCOPES),
        pace=SchedulerSettings(batch_max=2, calls_max=1),
        enabled=["db", "lone", "spot", "fleet-0"],
    )
    all_of_them = [
        await made.schedule_one("user-redeploy", name) for name in ("db", "lone", "spot", "fleet-0", "fleet-1")
    ]
    await made.advance(minutes(20))
    for maintenance in all_of_them:
        assert made.story(maintenance)[1:] == [
            (K.STARTED, minutes(10)),
            (K.IMPACTED, minutes(10) + seconds(7)),
            (K.COMPLETED, minutes(20)),
        ]


async def test_a_repeated_call_after_a_crash_has_the_same_id_and_no_further_effect() -> None:
    """Invariant 3: the answer was lost with the process, so the actuator is asked again."""
    actuator = Scripted(Progress(check_at=None))
    made, maintenance = await begun(actuator)
    due = await made.engine.deadlines.handle_due(10)
    assert [job.id for job in due.jobs] == [maintenance.id]
    await made.crash()
    await made.advance(seconds(0))
    await made.crash()
    await made.advance(seconds(1))
    assert {id_ for id_, _ in actuator.calls} == {maintenance.id}
    assert [kind for kind, _ in made.story(maintenance)].count(K.STARTED) == 1


class Stoppable(Simulate):
    """Remembers what it was told to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted: list[tuple[str, MaintenanceState]] = []
        self.complaint: Exception | None = None

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:
        self.aborted.append((maintenance.id, maintenance.state))
        if self.complaint is not None:
            raise self.complaint


async def test_what_an_operator_completes_is_stopped_and_what_completes_by_itself_is_not() -> None:
    actuator = Stoppable()
    made, maintenance = await begun(actuator)
    await made.advance(seconds(1))
    assert actuator.aborted == []
    await made.engine.maintenances.complete(maintenance.id, actor="operator:ann")
    await asyncio.sleep(0)
    assert actuator.aborted == [(maintenance.id, S.COMPLETED)]
    other = await made.schedule_one("host-maintenance", "db")
    await made.approve_all("db")
    await made.advance(minutes(30))
    await asyncio.sleep(0)
    assert made.state(other) == S.COMPLETED
    assert actuator.aborted == [(maintenance.id, S.COMPLETED)]


@pytest.mark.parametrize("complaint", [ActuatorError("no"), RuntimeError("a bug")])
async def test_one_that_cannot_be_stopped_is_over_all_the_same(complaint: Exception) -> None:
    actuator = Stoppable()
    actuator.complaint = complaint
    made, maintenance = await begun(actuator)
    await made.advance(seconds(1))
    await made.engine.maintenances.complete(maintenance.id, actor="operator:ann")
    await asyncio.sleep(0)
    assert (made.state(maintenance), actuator.aborted) == (S.COMPLETED, [(maintenance.id, S.COMPLETED)])


async def test_what_has_failed_is_stopped() -> None:
    class Fails(Stoppable):
        async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
            raise ActuatorError("no")

    actuator = Fails()
    made, maintenance = await begun(actuator, SchedulerSettings(retry=RetryPolicy(attempts_max=2, pause=seconds(5))))
    await made.advance(minutes(1))
    await asyncio.sleep(0)
    assert (made.state(maintenance), actuator.aborted) == (S.FAILED, [(maintenance.id, S.FAILED)])


class Told(Observed):
    """Cannot be observed before it was told, and counts how often it was."""

    is_observable = False

    def __init__(self, *, fails: int = 0) -> None:
        self.executed: list[str] = []
        self.observed: list[str] = []
        self._fails = fails

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        self.executed.append(maintenance.id)
        if len(self.executed) <= self._fails:
            raise ActuatorError("it could not be begun")
        return Progress(is_impacted=True, check_at=now + seconds(30))

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress:
        self.observed.append(maintenance.id)
        return Progress(is_impacted=True, is_complete=True, impact_s=4.25)


async def test_one_that_cannot_be_observed_is_told_once_and_then_observed() -> None:
    actuator = Told()
    made, maintenance = await begun(actuator)
    await made.advance(seconds(1))
    assert made.get_maintenance(maintenance).begun_at is not None
    await made.crash()
    await made.advance(minutes(5))
    assert (actuator.executed, actuator.observed) == ([maintenance.id], [maintenance.id])
    assert made.state(maintenance) == S.COMPLETED
    [measured] = [entry for entry in made.entries(maintenance) if entry.kind is K.IMPACT_MEASURED]
    assert str(measured.reason).startswith("the impact lasted 4.2 s; announced duration: ")


async def test_one_that_has_begun_nothing_is_told_again() -> None:
    actuator = Told(fails=2)
    made, maintenance = await begun(actuator)
    await made.advance(minutes(5))
    assert actuator.executed == [maintenance.id] * 3
    assert made.state(maintenance) == S.COMPLETED


async def test_one_that_did_not_answer_in_time_is_not_told_again() -> None:
    class Slow(Told):
        async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
            self.executed.append(maintenance.id)
            answer: asyncio.Future[Progress] = asyncio.get_running_loop().create_future()
            return await answer

    actuator = Slow()
    made, maintenance = await begun(
        actuator, SchedulerSettings(call_timeout=HURRY, retry=RetryPolicy(attempts_max=1000))
    )
    await made.advance(seconds(1))
    made.scheduler._settings.call_timeout = seconds(10)
    await made.advance(minutes(5))
    assert (actuator.executed, made.state(maintenance)) == ([maintenance.id], S.COMPLETED)
