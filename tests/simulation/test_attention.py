"""What no transition says, on virtual time: a VM has not seen what was announced, a maintenance is late."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from forewarn.actuators import Simulate
from forewarn.config.settings import Settings
from forewarn.control.board import read_board
from forewarn.core.maintenance.alert_schedule import AlertThresholds
from forewarn.core.maintenance.approval import Approver
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.forecast import MaintenanceProblem
from forewarn.core.model import AuditEntry, EntryKind, Maintenance
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.world import NOW, minutes
from tests.unit.core.builders import availability_set, vm

pytestmark = pytest.mark.anyio

VIGILANCE = AlertThresholds(unseen_before=minutes(5), late_start_after=timedelta(seconds=30), late_end_after=minutes(2))
WORLD = inventory(
    vm("db", addresses=("10.0.0.1",)),
    vm("web-0", scope="web", addresses=("10.0.0.2",)),
    vm("web-1", scope="web", update_domain=1, addresses=("10.0.0.3",)),
    scopes=[availability_set("web")],
)


async def a_world(alert_thresholds: AlertThresholds = VIGILANCE, complete_after: timedelta | None = None) -> Simulated:
    actuator = Simulate(timedelta(seconds=7), complete_after)
    made = await simulated(WORLD, rules=DecisionRules(alert_thresholds=alert_thresholds), actuator=actuator)
    await made.advance(minutes(1))
    return made


def said(world: Simulated, of: Maintenance, kind: EntryKind) -> list[AuditEntry]:
    return [entry for entry in world.entries(of) if entry.kind is kind]


async def test_a_vm_that_has_not_asked_since_the_announcement_is_told_of_once_per_event() -> None:
    world = await a_world()
    announced = world.now
    maintenance = await world.schedule_one("host-maintenance", "db", "web-0", "web-1")
    await world.advance(minutes(2))
    await world.get("web-1")
    await world.advance_to(announced + minutes(10) - timedelta(seconds=1))
    assert said(world, maintenance, EntryKind.UNSEEN) == []
    await world.advance(timedelta(seconds=2))
    (entry,) = said(world, maintenance, EntryKind.UNSEEN)
    assert (entry.audience, entry.at) == ("vm:db", announced + minutes(10))
    assert entry.event_id in {event.id for event in world.events_of(maintenance) if event.audience == "vm:db"}
    assert entry.reason == "not polled since the announcement; 300 s left until NotBefore"
    await world.advance(minutes(10))
    assert len(said(world, maintenance, EntryKind.UNSEEN)) == 1


async def test_an_approved_event_and_one_that_is_gone_were_seen() -> None:
    world = await a_world()
    one, other = (
        await world.schedule_one("host-maintenance", "db"),
        await world.schedule_one("host-maintenance", "web-0"),
    )
    await world.engine.authority.approve([e.id for e in world.events_of(one)], Approver(actor="operator:ann"))
    await world.cancel(other)
    await world.advance(minutes(14))
    assert said(world, one, EntryKind.UNSEEN) + said(world, other, EntryKind.UNSEEN) == []


async def test_a_short_notice_is_looked_at_when_half_of_it_is_over_and_the_shortest_not_at_all() -> None:
    world = await a_world()
    short = await world.schedule_one("host-maintenance", "db", notice=minutes(4), force_reason="now")
    shortest = await world.schedule_one("host-maintenance", "web-0", notice=timedelta(seconds=80), force_reason="now")
    announced = world.now
    await world.advance(minutes(30))
    (entry,) = said(world, short, EntryKind.UNSEEN)
    assert entry.at - announced == minutes(2)
    assert said(world, shortest, EntryKind.UNSEEN) == []


async def test_a_maintenance_that_may_not_start_is_late_once() -> None:
    """Held by another one at the same VM, which does not end."""
    world = await a_world(AlertThresholds(late_start_after=timedelta(seconds=30)))
    first = await world.schedule_one("host-maintenance", "db", notice=minutes(15))
    second = await world.schedule_one("user-restart", "db")
    await world.advance(minutes(40))
    late = [(m.id, entry.at - NOW) for m in (first, second) for entry in said(world, m, EntryKind.LATE)]
    states = {world.state(first), world.state(second)}
    assert states >= {"started"}
    assert len(late) == len({i for i, _ in late})
    if "scheduled" in states:
        assert len(late) == 1


async def test_a_maintenance_that_takes_longer_than_announced_is_late_once_and_one_in_time_is_not() -> None:
    world = await a_world(complete_after=None)
    started = await world.schedule_one("host-maintenance", "db")
    await world.advance(minutes(15))
    assert world.state(started) == "started"
    at = world.get_maintenance(started).started_at
    assert at is not None
    await world.advance(minutes(20))
    (entry,) = said(world, started, EntryKind.LATE)
    # The impact began 7 s after the start.
    assert entry.at - at == timedelta(seconds=7 + 9) + minutes(2)
    assert entry.reason == "not completed 136 s after the start; announced duration: 9 s"

    quick = await a_world(complete_after=minutes(1))
    done = await quick.schedule_one("host-maintenance", "db")
    await quick.advance(minutes(40))
    assert quick.state(done) == "completed"
    assert said(quick, done, EntryKind.LATE) == []


async def test_a_look_survives_a_crash() -> None:
    world = await a_world()
    maintenance = await world.schedule_one("host-maintenance", "db")
    await world.crash()
    await world.advance(minutes(11))
    assert len(said(world, maintenance, EntryKind.UNSEEN)) == 1
    assert world.read(lambda reader: reader.next_alert_check_at()) is not None
    await world.cancel(maintenance)
    assert world.read(lambda reader: reader.next_alert_check_at()) is None


async def test_nothing_is_looked_for_where_nothing_is_wanted() -> None:
    world = await a_world(AlertThresholds())
    maintenance = await world.schedule_one("host-maintenance", "db")
    assert world.read(lambda reader: reader.next_alert_check_at()) is None
    await world.advance(minutes(60))
    kinds = {entry.kind for entry in world.entries(maintenance)}
    assert not kinds & {EntryKind.UNSEEN, EntryKind.LATE}


async def test_what_was_put_off_is_looked_at_as_late_as_it_is_due() -> None:
    world = await a_world()
    announced = world.now
    until = announced + minutes(120)
    maintenance = await world.schedule_one("host-maintenance", "db", latest_start=until)
    await world.engine.maintenances.defer(maintenance.id, by=minutes(60), actor="operator:ann")
    await world.advance_to(announced + minutes(70) - timedelta(seconds=1))
    assert said(world, maintenance, EntryKind.UNSEEN) == []
    assert said(world, maintenance, EntryKind.LATE) == []
    await world.advance(timedelta(seconds=2))
    (entry,) = said(world, maintenance, EntryKind.UNSEEN)
    assert entry.reason == "not polled since the announcement; 300 s left until NotBefore"


KINDS = {
    MaintenanceProblem.UNSEEN: EntryKind.UNSEEN,
    MaintenanceProblem.LATE: EntryKind.LATE,
    MaintenanceProblem.OVERRUN: EntryKind.LATE,
}


def problems(world: Simulated, of: Maintenance) -> set[MaintenanceProblem]:
    """What the dashboard says of it, of the kinds that the audit log knows."""
    thresholds = world.engine.committer.rules.alert_thresholds
    board = world.read(lambda reader: read_board(reader, world.feed.last_polled_at, world.now, thresholds))
    (found,) = (item for item in board.items if item.maintenance.id == of.id)
    return set(found.forecast.problems) & KINDS.keys()


async def check_begin(world: Simulated, of: Maintenance, problem: MaintenanceProblem, at: datetime) -> None:
    """Check that dashboard and audit log call it so from that moment on, and not before."""
    kind = KINDS[problem]
    await world.advance_to(at - timedelta(seconds=1))
    assert (problem in problems(world, of), len(said(world, of, kind))) == (False, 0)
    await world.advance_to(at)
    assert (problem in problems(world, of), [entry.at for entry in said(world, of, kind)]) == (True, [at])


@pytest.mark.parametrize("thresholds", [VIGILANCE, Settings().rules.alert_thresholds], ids=["set", "default"])
async def test_dashboard_and_audit_log_call_it_unseen_late_and_overrun_at_the_same_moment(
    thresholds: AlertThresholds,
) -> None:
    unseen_before, start_after, end_after = (
        thresholds.unseen_before or minutes(0),
        thresholds.late_start_after or minutes(0),
        thresholds.late_end_after or minutes(0),
    )
    world = await a_world(thresholds)
    first = await world.schedule_one("host-maintenance", "db", duration_s=60)
    assert first.not_before is not None
    await check_begin(world, first, MaintenanceProblem.UNSEEN, first.not_before - unseen_before)
    # Held by the first, which does not end.
    second = await world.schedule_one("user-restart", "db", notice=minutes(6), force_reason="now")
    assert second.not_before is not None
    await check_begin(world, second, MaintenanceProblem.LATE, second.not_before + start_after)
    impacted_at = world.get_maintenance(first).impacted_at
    assert impacted_at is not None
    await check_begin(world, first, MaintenanceProblem.OVERRUN, impacted_at + minutes(1) + end_after)


async def test_what_is_not_wanted_is_no_problem_on_the_dashboard_either() -> None:
    world = await a_world(AlertThresholds())
    it = await world.schedule_one("host-maintenance", "db")
    other = await world.schedule_one("user-restart", "db")
    for _ in range(12):
        await world.advance(minutes(5))
        assert problems(world, it) | problems(world, other) == set()
    assert "started" in {world.state(it), world.state(other)}


async def test_a_vm_that_asked_before_a_maintenance_was_put_off_has_seen_it() -> None:
    world = await a_world()
    announced = world.now
    maintenance = await world.schedule_one("host-maintenance", "db", latest_start=announced + minutes(120))
    await world.advance(minutes(1))
    await world.get("db")
    await world.advance(minutes(1))
    await world.engine.maintenances.defer(maintenance.id, by=minutes(60), actor="operator:ann")
    await world.advance_to(announced + minutes(74))
    assert said(world, maintenance, EntryKind.UNSEEN) == []
    assert problems(world, maintenance) == set()


async def test_what_was_late_before_its_impact_is_reported_once() -> None:
    actuator = Simulate(minutes(5), None)
    world = await simulated(WORLD, rules=DecisionRules(alert_thresholds=VIGILANCE), actuator=actuator)
    await world.advance(minutes(1))
    it = await world.schedule_one("host-maintenance", "db", duration_s=60)
    assert it.not_before is not None
    await check_begin(world, it, MaintenanceProblem.OVERRUN, it.not_before + minutes(3))
    await world.advance(minutes(3))
    assert world.get_maintenance(it).impacted_at == it.not_before + minutes(5)
    assert problems(world, it) == set()
    await world.advance_to(it.not_before + minutes(8))
    assert problems(world, it) == {MaintenanceProblem.OVERRUN}
    await world.advance(minutes(30))
    assert len(said(world, it, EntryKind.LATE)) == 1
