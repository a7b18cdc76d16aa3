"""Whole lives of events in the real engine, scheduler, feed and store, on virtual time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.causes import CAUSES
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, EventSource, EventType, Maintenance, MaintenanceState
from forewarn.errors import BelowMinimumNotice, Conflict, LimitExceeded
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import CAUSE_VM, SCOPES, VMS, at, live, seconds
from tests.support.world import NOW, minutes
from tests.unit.core.builders import scale_set

pytestmark = pytest.mark.anyio

K = EntryKind
S = MaintenanceState

NOTICE = {
    "live-migration": minutes(15),
    "host-maintenance": minutes(15),
    "platform-redeploy": minutes(10),
    "predicted-failure": timedelta(days=7),
    "user-restart": minutes(15),
    "user-redeploy": minutes(10),
    "spot-eviction": seconds(30),
    "scale-set-delete": minutes(9),
    "os-upgrade": minutes(15),
    "reimage": minutes(15),
}


async def world(rules: DecisionRules | None = None) -> Simulated:
    return await simulated(inventory(*VMS, scopes=SCOPES, hosts=["host-0"]), rules=rules)


def shown(made: Simulated, vm: str) -> list[tuple[str, str]]:
    return [(event["EventStatus"], event["NotBefore"]) for event in made.shown(vm)["Events"]]


@pytest.mark.parametrize("cause", NOTICE)
async def test_without_approval_each_thing_happens_at_its_own_moment(cause: str) -> None:
    """R42, R71, R75, R76, R79, R82, R98, X4: Started at NotBefore, 7 s later the impact, after 10 min over."""
    made = await world()
    name, notice = CAUSE_VM[cause], NOTICE[cause]
    maintenance = await made.schedule_one(cause, name)
    assert made.shown(name)["DocumentIncarnation"] == 2
    (event,) = made.shown(name)["Events"]
    assert event["EventStatus"] == "Scheduled"
    assert event["EventType"] == CAUSES[cause].type
    assert event["Resources"] == [name]

    await live(made, notice - seconds(1), name)
    assert made.shown(name)["DocumentIncarnation"] == 2
    await made.advance(seconds(1))
    assert shown(made, name) == [("Started", "")]
    assert made.shown(name)["Events"][0]["EventId"] == event["EventId"]
    await made.advance(minutes(10))
    assert made.shown(name) == {"DocumentIncarnation": 4, "Events": []}

    end = notice + minutes(10)
    expected = [(K.SCHEDULED, seconds(0)), (K.STARTED, notice), (K.IMPACTED, notice + seconds(7)), (K.COMPLETED, end)]
    if cause in {"spot-eviction", "scale-set-delete"}:
        expected.append((K.VM_CHANGED, end))
    assert made.story(maintenance) == expected
    assert made.lateness == [0.0]


@pytest.mark.parametrize("cause", NOTICE)
async def test_an_approval_starts_it_at_once(cause: str) -> None:
    """R49, R76, A20."""
    made = await world()
    name = CAUSE_VM[cause]
    maintenance = await made.schedule_one(cause, name)
    await made.advance(seconds(20))
    await made.approve_all(name)
    assert shown(made, name) == [("Started", "")]
    await made.advance(minutes(10))
    assert [kind for kind, _ in made.story(maintenance)][:5] == [
        K.SCHEDULED,
        K.APPROVED,
        K.STARTED,
        K.IMPACTED,
        K.COMPLETED,
    ]
    assert [when for _, when in made.story(maintenance)][:5] == [
        seconds(0),
        seconds(20),
        seconds(20),
        seconds(27),
        minutes(10) + seconds(20),
    ]
    (approved,) = [entry for entry in made.entries(maintenance) if entry.kind is K.APPROVED]
    assert (approved.actor, approved.vm, approved.source_address) == (f"vm:{name}", name, at(name))
    assert approved.api_version == "2020-07-01"


async def test_a_hardware_failure_starts_without_notice_for_all_vms_of_the_host() -> None:
    """R73, R78."""
    made = await world()
    (failure,) = await made.engine.maintenances.schedule(
        MaintenanceRequest(cause="hardware-failure", hosts=("host-1",)), actor="operator:ann"
    )
    for name in ("web-0", "db"):
        assert shown(made, name) == [("Started", "")]
        assert made.shown(name)["DocumentIncarnation"] == 2
    assert shown(made, "web-1") == [("Started", "")], "it sees the events of its scope"
    await made.advance(minutes(10))
    assert made.story(failure) == [(K.STARTED, seconds(0)), (K.IMPACTED, seconds(7)), (K.COMPLETED, minutes(10))]
    assert made.lateness == []


async def test_a_canceled_maintenance_goes_away_and_never_happens() -> None:
    """R77."""
    made = await world()
    maintenance = await made.schedule_one("host-maintenance", "db")
    await made.advance(minutes(8))
    await made.cancel(maintenance)
    assert made.shown("db") == {"DocumentIncarnation": 3, "Events": []}
    await made.advance(minutes(60))
    assert made.story(maintenance) == [(K.SCHEDULED, seconds(0)), (K.CANCELED, minutes(8))]
    with pytest.raises(Conflict, match="only a queued or scheduled one can be canceled"):
        await made.cancel(maintenance)


async def test_advancing_far_carries_out_everything_in_order_at_its_own_moment() -> None:
    made = await world()
    first = await made.schedule_one("live-migration", "db")
    second = await made.schedule_one("spot-eviction", "spot")
    third = await made.schedule_one("user-redeploy", "lone")
    await made.advance(timedelta(hours=1))
    times = [entry.at for entry in made.entries()]
    assert times == sorted(times)
    starts = [(e.maintenance_id, e.at - NOW) for e in made.entries() if e.kind is K.STARTED]
    assert starts == [(second.id, seconds(30)), (third.id, minutes(10)), (first.id, minutes(15))]
    assert made.now == NOW + timedelta(hours=1)


async def test_the_eleventh_user_operation_of_a_scope_is_refused() -> None:
    """R88, A16."""
    machines = [replace(VMS[1], name=f"web-{n}", addresses=(f"10.1.0.{n}",)) for n in range(12)]
    made = await simulated(inventory(*machines, VMS[-1], scopes=SCOPES), rules=DecisionRules(user_operations_max=10))
    made_ones = [await made.schedule_one("user-restart", f"web-{n}") for n in range(10)]
    for cause in ("user-restart", "user-redeploy"):
        with pytest.raises(LimitExceeded, match="user_operations_max"):
            await made.schedule_one(cause, "web-10")
    await made.schedule_one("user-restart", VMS[-1].name)
    await made.schedule_one("live-migration", "web-10")
    await made.cancel(made_ones[0])
    await made.schedule_one("user-restart", "web-10")


async def test_a_user_who_redeploys_makes_a_predicted_failure_go_away() -> None:
    """R72."""
    made = await world()
    predicted = await made.schedule_one("predicted-failure", "db")
    redeploy = await made.schedule_one("user-redeploy", "db")
    assert [event["EventSource"] for event in made.shown("db")["Events"]] == ["Platform", "User"]
    await made.approve("db", (await made.event_ids("db"))[1])
    await made.advance(minutes(10))
    assert made.state(redeploy) == S.COMPLETED
    assert made.story(predicted)[-1] == (K.CANCELED, minutes(10))
    assert made.shown("db")["Events"] == []


@pytest.mark.parametrize("kind", [None, EventType.FREEZE])
async def test_a_predicted_failure_is_a_redeploy_unless_its_vms_are_migrated_live(kind: EventType | None) -> None:
    """R72, A15."""
    made = await world()
    await made.schedule_one("predicted-failure", "db", type=kind)
    assert [event["EventType"] for event in made.shown("db")["Events"]] == [kind or "Redeploy"]


async def test_an_evicted_vm_is_gone_and_so_is_what_was_planned_for_it() -> None:
    """R90."""
    made = await world()
    planned = await made.schedule_one("live-migration", "spot")
    eviction = await made.schedule_one("spot-eviction", "spot")
    await made.advance(minutes(11))
    assert made.state(eviction) == S.COMPLETED
    assert made.state(planned) == S.CANCELED
    assert made.read(lambda reader: reader.list_vms(name="spot"))[0].power_state == "deallocated"
    with pytest.raises(Conflict, match="deallocated"):
        await made.schedule_one("user-restart", "spot")
    assert made.shown("spot")["Events"] == []


async def test_two_maintenances_of_one_vm_never_run_at_once() -> None:
    """R82: the second waits at the gate, although it is approved."""
    made = await world()
    first = await made.schedule_one("user-restart", "db")
    second = await made.schedule_one("host-maintenance", "db")
    await made.approve_all("db")
    assert (made.state(first), made.state(second)) == (S.STARTED, S.SCHEDULED)
    await made.advance(minutes(9))
    assert made.state(second) == S.SCHEDULED
    await made.advance(minutes(1))
    assert dict(made.story(second))[K.STARTED] == minutes(10)


async def test_a_forced_start_stands_in_the_audit_log_with_its_reason() -> None:
    made = await world()
    maintenance = await made.schedule_one("host-maintenance", "db")
    await made.engine.maintenances.start(maintenance.id, actor="operator:ann", reason="fire")
    assert shown(made, "db") == [("Started", "")]
    (started,) = [entry for entry in made.entries(maintenance) if entry.kind is K.STARTED]
    assert (started.actor, started.reason) == ("operator:ann", "fire")
    with pytest.raises(Conflict, match="only a scheduled one"):
        await made.engine.maintenances.start(maintenance.id, actor="operator:ann", reason="fire")


async def test_less_than_the_minimum_notice_wants_a_reason() -> None:
    """R71."""
    made = await world()
    with pytest.raises(BelowMinimumNotice):
        await made.schedule_one("host-maintenance", "db", notice=minutes(1))
    assert made.entries()[-1].kind is K.ENABLED, "nothing was kept of it"
    forced = await made.schedule_one("host-maintenance", "db", notice=minutes(1), force_reason="drill")
    await made.advance(minutes(1))
    assert made.story(forced) == [(K.SCHEDULED, minutes(0)), (K.STARTED, minutes(1))]


async def test_a_reboot_that_impact_a_freeze_shows_as_a_reboot_to_its_end() -> None:
    """R81."""
    made = await world()
    maintenance = await made.schedule_one(
        "host-maintenance", "db", type=EventType.REBOOT, impact=EventType.FREEZE, source=EventSource.PLATFORM
    )
    for _ in range(2):
        assert [event["EventType"] for event in made.shown("db")["Events"]] == ["Reboot"]
        await made.approve_all("db")
    await made.advance(minutes(10))
    assert made.state(maintenance) == S.COMPLETED
    assert made.read(lambda reader: reader.list_vms(name="db"))[0].power_state == "running"


async def test_further_impacts_are_in_the_audit_log_and_in_no_document() -> None:
    """R43, R80."""
    made = await world()
    maintenance: Maintenance = await made.schedule_one("live-migration", "db")
    await made.approve_all("db")
    before = made.shown("db")
    await made.advance(seconds(30))
    await made.engine.maintenances.impact(maintenance.id, 3, actor="operator:ann")
    assert made.shown("db") == before
    assert [kind for kind, _ in made.story(maintenance)][-2:] == [K.IMPACTED, K.IMPACTED]


async def test_the_start_may_be_a_while_after_the_last_approval_but_not_after_notbefore() -> None:
    """R57a, A24."""
    made = await simulated(
        inventory(*VMS, scopes=(SCOPES[0], scale_set())), rules=DecisionRules(start_delay=minutes(2))
    )
    early = await made.schedule_one("host-maintenance", "db")
    await made.approve_all("db")
    assert made.state(early) == S.SCHEDULED
    late = await made.schedule_one("host-maintenance", "lone")
    await made.advance(minutes(14))
    await made.approve_all("lone")
    await made.advance(minutes(2))
    assert dict(made.story(early))[K.STARTED] == minutes(2)
    assert dict(made.story(late))[K.STARTED] == minutes(15)
