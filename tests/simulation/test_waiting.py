"""Who waits for whom: fault domains, tenants, deletes; in the real engine on virtual time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, MaintenanceState
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS, seconds
from tests.support.world import NOW, minutes
from tests.unit.core.builders import availability_set

pytestmark = pytest.mark.anyio

K = EntryKind
S = MaintenanceState


async def world(rules: DecisionRules | None = None) -> Simulated:
    return await simulated(inventory(*VMS, scopes=SCOPES, hosts=["host-0"]), rules=rules)


def shown(made: Simulated, vm: str) -> list[tuple[str, str]]:
    return [(event["EventStatus"], event["NotBefore"]) for event in made.shown(vm)["Events"]]


async def test_the_next_fault_domain_is_announced_when_the_one_before_is_over_with_full_notice() -> None:
    """R61."""
    made = await world()
    first, second = await made.schedule("host-maintenance", "web-0", "web-1")
    assert (made.state(first), made.state(second)) == (S.SCHEDULED, S.QUEUED)
    assert [event["Resources"] for event in made.shown("web-0")["Events"]] == [["web-0"]]
    await made.advance(minutes(25))
    assert made.state(first) == S.COMPLETED
    assert made.story(second) == [(K.QUEUED, minutes(0)), (K.SCHEDULED, minutes(25))]
    assert made.get_maintenance(second).not_before == NOW + minutes(40)
    # One document change: the one went and the other came in the same moment.
    assert made.shown("web-0")["DocumentIncarnation"] == 4
    await made.advance(minutes(25))
    assert made.story(second)[2:] == [
        (K.STARTED, minutes(40)),
        (K.IMPACTED, minutes(40) + seconds(7)),
        (K.COMPLETED, minutes(50)),
    ]


async def test_a_maintenance_of_two_tenants_waits_for_both_and_starts_for_both_at_once() -> None:
    """R50, R83, R84, R85."""
    made = await world()
    (shared,) = await made.engine.maintenances.schedule(
        MaintenanceRequest(cause="live-migration", hosts=("host-1",)), actor="operator:ann"
    )
    (web_id,) = await made.event_ids("web-1")
    (db_id,) = await made.event_ids("db")
    await made.advance(minutes(1))
    assert (await made.approve("web-1", web_id)).approved == (web_id,)
    assert shown(made, "web-0") == [("Scheduled", shown(made, "db")[0][1])]
    assert made.shown("web-0")["DocumentIncarnation"] == 2
    assert (await made.approve("web-0", db_id)).unknown == (db_id,)
    assert (await made.approve("web-0", web_id, db_id)).unknown == (db_id,)
    assert made.state(shared) == S.SCHEDULED
    await made.advance(minutes(1))
    await made.approve("db", db_id)
    assert shown(made, "web-0") == shown(made, "db") == [("Started", "")]
    assert made.shown("web-0")["DocumentIncarnation"] == made.shown("db")["DocumentIncarnation"] == 3
    assert dict(made.story(shared))[K.STARTED] == minutes(2)


async def test_a_tenant_that_never_asked_has_no_vote() -> None:
    """R67, R86."""
    made = await simulated(inventory(*VMS, scopes=SCOPES), enabled=["web-0"])
    (shared,) = await made.engine.maintenances.schedule(
        MaintenanceRequest(cause="live-migration", hosts=("host-1",)), actor="operator:ann"
    )
    await made.approve_all("web-0")
    assert made.state(shared) == S.STARTED
    assert made.lateness == []


async def test_a_time_that_was_given_holds_where_nobody_asked() -> None:
    """R70a."""
    made = await simulated(inventory(*VMS, scopes=SCOPES), enabled=[])
    maintenance = await made.schedule_one("host-maintenance", "db", notice=timedelta(hours=4))
    await made.advance(timedelta(hours=4) - seconds(1))
    assert made.state(maintenance) == S.SCHEDULED
    await made.advance(seconds(1))
    assert made.state(maintenance) == S.STARTED


async def test_what_a_user_asked_for_happens_at_once_where_nobody_asked_for_events() -> None:
    """R70a."""
    made = await simulated(inventory(*VMS, scopes=SCOPES), enabled=[])
    maintenance = await made.schedule_one("user-restart", "db")
    assert made.state(maintenance) == S.STARTED
    await made.get("db")
    assert made.shown("db") == {"DocumentIncarnation": 1, "Events": []}


async def test_the_first_get_of_a_scope_shows_what_waits_for_it() -> None:
    """R67, R70b: in the very answer that enables it, and an approval counts."""
    made = await simulated(inventory(*VMS, scopes=SCOPES), enabled=[])
    maintenance = await made.schedule_one("host-maintenance", "web-0", notice=timedelta(hours=4))
    await made.advance(timedelta(hours=1))
    document = await made.get("web-1")
    assert document["DocumentIncarnation"] == 1
    (event,) = document["Events"]
    assert (event["EventStatus"], event["Resources"]) == ("Scheduled", ["web-0"])
    assert event["NotBefore"] == "Sat, 21 Nov 2026 14:00:00 GMT"
    await made.approve("web-1", event["EventId"])
    assert made.state(maintenance) == S.STARTED


async def test_a_scope_that_approves_user_operations_shows_them_as_started() -> None:
    """X5."""
    scopes = (availability_set("web", approves_user_operations=True), *SCOPES[1:])
    made = await simulated(inventory(*VMS, scopes=scopes))
    restart = await made.schedule_one("user-restart", "web-0")
    assert shown(made, "web-1") == [("Started", "")]
    assert made.shown("web-1")["DocumentIncarnation"] == 2, "it was never Scheduled"
    assert [(e.kind, e.actor) for e in made.entries(restart)] == [
        (K.SCHEDULED, "operator:ann"),
        (K.APPROVED, "policy"),
        (K.STARTED, "operator:ann"),
    ]
    platform = await made.schedule_one("host-maintenance", "web-0")
    assert made.state(platform) == S.SCHEDULED


async def test_coupled_deletes_wait_for_each_other_and_start_together() -> None:
    """R92: an approved delete waits until the other is approved."""
    scopes = (SCOPES[0], replace(SCOPES[1], couples_deletes=True))
    made = await simulated(inventory(*VMS, scopes=scopes))
    one, other = await made.schedule("scale-set-delete", "fleet-0", "fleet-1")
    first, second = await made.event_ids("fleet-0")
    await made.approve("fleet-1", second)
    assert (made.state(one), made.state(other)) == (S.SCHEDULED, S.SCHEDULED)
    await made.advance(minutes(1))
    await made.approve("fleet-0", first)
    assert (made.state(one), made.state(other)) == (S.STARTED, S.STARTED)


async def test_a_coupled_delete_starts_when_the_other_has_timed_out_or_was_canceled() -> None:
    """R74, R92."""
    scopes = (SCOPES[0], replace(SCOPES[1], couples_deletes=True))
    for is_canceled in (False, True):
        made = await simulated(inventory(*VMS, scopes=scopes))
        one, other = await made.schedule("scale-set-delete", "fleet-0", "fleet-1")
        first, _ = await made.event_ids("fleet-0")
        await made.approve("fleet-0", first)
        await made.advance(minutes(2))
        assert made.state(one) == S.SCHEDULED
        if is_canceled:
            await made.cancel(other)
            assert dict(made.story(one))[K.STARTED] == minutes(2)
        else:
            await made.advance(minutes(7))
            assert dict(made.story(one))[K.STARTED] == dict(made.story(other))[K.STARTED] == minutes(9)


async def test_deletes_that_are_not_coupled_start_alone() -> None:
    made = await world()
    one, other = await made.schedule("scale-set-delete", "fleet-0", "fleet-1")
    first, _ = await made.event_ids("fleet-0")
    await made.approve("fleet-0", first)
    assert (made.state(one), made.state(other)) == (S.STARTED, S.SCHEDULED)
