"""A tenant can neither push operators' entries out of the audit log, nor take more than its share of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from forewarn.core.access import Ownership
from forewarn.core.audit_chain import ChainVerifier
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import AuditEntry, EntryKind
from forewarn.errors import LimitExceeded
from forewarn.scheduling.scheduler import SchedulerSettings
from forewarn.store import MemoryStore, SqlStore
from forewarn.store.contract import Reader, Store
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS
from tests.support.world import minutes

pytestmark = pytest.mark.anyio

K = EntryKind
DECLARED = inventory(*VMS, scopes=SCOPES)
RED = Ownership(vms=frozenset({"db"}))
BLUE = Ownership(scopes=frozenset({"web"}))
DAY = timedelta(days=1)


@pytest.fixture(params=[MemoryStore, lambda: SqlStore("sqlite://")], ids=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> Store:
    make: Callable[[], Store] = request.param
    return make()


async def restart(made: Simulated, vm: str = "db", actor: str = "tenant:red", owned: Ownership = RED) -> str:
    (maintenance,) = await made.engine.maintenances.schedule(
        MaintenanceRequest(cause="user-restart", vms=(vm,)), actor=actor, owned=owned
    )
    return maintenance.id


async def restart_and_cancel(made: Simulated, times: int) -> None:
    for _ in range(times):
        await made.engine.maintenances.cancel(await restart(made), actor="tenant:red")


def of_operators(made: Simulated) -> list[AuditEntry]:
    return [entry for entry in made.entries() if entry.actor.startswith("operator:")]


def is_whole(made: Simulated) -> bool:
    def follow(reader: Reader) -> ChainVerifier:
        verifier = ChainVerifier()
        verifier.verify_page(reader.get_link_page(None, 100_000))
        return verifier

    verifier: ChainVerifier = made.read(follow)
    return verifier.findings == []


async def test_a_loop_of_restart_and_cancel_does_not_push_out_what_operators_did(store: Store) -> None:
    pace = SchedulerSettings(history=timedelta(days=2), entries_max=20)
    made = await simulated(DECLARED, store=store, pace=pace)
    maintenance = await made.schedule_one("user-redeploy", "web-0")
    await made.cancel(maintenance)
    before = of_operators(made)
    assert len(before) >= 2
    for _ in range(4):
        await restart_and_cancel(made, 50)
        await made.advance(timedelta(hours=1))
    assert len(made.entries()) < 150, "the loop has pushed out its own"
    await made.advance(30 * DAY)
    assert of_operators(made) == before
    assert is_whole(made)
    await made.advance(340 * DAY)
    assert [entry for entry in of_operators(made) if entry in before] == [], "by age they are forgotten"
    assert is_whole(made)


async def test_a_tenant_that_has_filled_its_share_of_a_day_starts_nothing_more(store: Store) -> None:
    made = await simulated(DECLARED, store=store, rules=DecisionRules(tenant_entries_max=10))
    await restart_and_cancel(made, 4)
    await made.advance(minutes(60))
    await restart_and_cancel(made, 1)
    with pytest.raises(
        LimitExceeded, match=r"this tenant caused 10 audit log entries.*audit_log_entries_per_tenant_per_day"
    ) as no:
        await restart(made)
    assert no.value.details["retry_after_s"] == 23 * 3600
    await restart(made, "web-0", "tenant:blue", BLUE)
    await made.advance(23 * DAY / 24)
    await restart(made)


async def test_several_tokens_of_one_tenant_share_its_quota(store: Store) -> None:
    made = await simulated(DECLARED, store=store, rules=DecisionRules(tenant_entries_max=4))
    await made.engine.maintenances.cancel(await restart(made, actor="tenant:red-1"), actor="tenant:red-2")
    await made.engine.maintenances.cancel(await restart(made, actor="tenant:red-3"), actor="tenant:red-1")
    with pytest.raises(LimitExceeded):
        await restart(made, actor="tenant:red-4")
    await made.advance(DAY)
    await restart(made, actor="tenant:red-4")


async def test_tenants_whose_tokens_have_the_same_name_have_their_own_quotas(store: Store) -> None:
    made = await simulated(DECLARED, store=store, rules=DecisionRules(tenant_entries_max=1))
    await restart(made, actor="tenant:ci")
    with pytest.raises(LimitExceeded):
        await restart(made, actor="tenant:ci")
    await restart(made, "web-0", "tenant:ci", BLUE)


async def test_what_operators_do_with_a_tenants_operation_does_not_use_up_its_quota(store: Store) -> None:
    made = await simulated(DECLARED, store=store, rules=DecisionRules(tenant_entries_max=2))
    await made.engine.maintenances.cancel(await restart(made), actor="operator:ann")
    await restart(made)
    with pytest.raises(LimitExceeded):
        await restart(made)


async def test_a_tenant_that_has_filled_its_share_still_cancels_and_approves(store: Store) -> None:
    made = await simulated(DECLARED, store=store, rules=DecisionRules(tenant_entries_max=1))
    mine = await restart(made)
    with pytest.raises(LimitExceeded):
        await restart(made)
    (event_id,) = await made.event_ids("db")
    await made.approve_all("db")
    assert K.APPROVED in {entry.kind for entry in made.entries() if entry.event_id == event_id}
    assert mine
