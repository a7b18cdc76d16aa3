"""A host fails, keeps the mark whatever is declared, is left out of rollouts, and recovers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forewarn.core.inventory import HostDeclaration
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EntryKind, Host
from forewarn.core.rollout.rollout import RolloutHostState, RolloutSpec
from forewarn.errors import Conflict, NotFound
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS

pytestmark = pytest.mark.anyio

DECLARED = inventory(*VMS, scopes=SCOPES, hosts=("empty",))


async def failed(name: str = "host-1", reason: str | None = "power supply burnt") -> Simulated:
    made = await simulated(DECLARED)
    await fail(made, name, reason)
    return made


async def fail(made: Simulated, name: str, reason: str | None = None) -> None:
    request = MaintenanceRequest(cause="hardware-failure", hosts=(name,), force_reason=reason)
    await made.engine.maintenances.schedule(request, actor="operator:ann")


def host(made: Simulated, name: str = "host-1") -> Host:
    found: Host = made.read(lambda reader: reader.find_hosts([name]))[name]
    return found


async def test_a_host_that_failed_is_marked_with_moment_and_reason() -> None:
    made = await failed()
    assert host(made) == Host(name="host-1", failed_at=made.now, failure_reason="power supply burnt")
    (entry,) = [entry for entry in made.entries() if entry.kind is EntryKind.HOST_FAILED]
    assert (entry.actor, entry.reason) == ("operator:ann", "host host-1: power supply burnt")


async def test_so_is_one_without_vms() -> None:
    made = await failed("empty", None)
    assert host(made, "empty").failed_at == made.now


async def test_a_second_failure_keeps_the_first_moment() -> None:
    made = await failed("empty")
    first = made.now
    await made.advance(timedelta(hours=1))
    await fail(made, "empty")
    assert host(made, "empty") == Host(name="empty", failed_at=first, failure_reason="power supply burnt")


async def test_the_mark_outlives_the_maintenance_an_inventory_a_declaration_and_a_restart() -> None:
    made = await failed()
    await made.advance(timedelta(hours=1))
    await made.engine.inventory.apply(DECLARED, "again", actor="operator:ann")
    await made.engine.inventory.apply_host(
        HostDeclaration(host="host-1", vms=tuple(vm for vm in VMS if vm.host == "host-1")), actor="operator:ann"
    )
    await made.crash()
    assert host(made).failed_at is not None


async def test_it_recovers_when_that_is_said_and_not_twice() -> None:
    made = await failed()
    await made.engine.inventory.recover_host("host-1", actor="operator:ann", reason="repaired")
    assert host(made) == Host(name="host-1")
    assert (made.entries()[-1].kind, made.entries()[-1].reason) == (EntryKind.HOST_RECOVERED, "host host-1: repaired")
    with pytest.raises(Conflict, match="host 'host-1' has not failed"):
        await made.engine.inventory.recover_host("host-1", actor="operator:ann")
    with pytest.raises(NotFound):
        await made.engine.inventory.recover_host("nowhere", actor="operator:ann")


def spec(hosts: tuple[str, ...] | None) -> RolloutSpec:
    return RolloutSpec(name="kernel", cause="host-maintenance", hosts=hosts)


async def test_a_rollout_over_all_hosts_leaves_a_failed_one_out() -> None:
    made = await failed("host-3")
    planned = await made.engine.rollouts.plan(spec(None))
    assert sorted(name for batch in planned.batches for name in batch.hosts) == ["empty", "host-1", "host-2"]


async def test_a_rollout_that_names_one_is_refused() -> None:
    made = await failed("host-3")
    with pytest.raises(Conflict, match="host 'host-3' has failed: leave it out, or run 'forewarn host recover host-3'"):
        await made.engine.rollouts.create(spec(("host-2", "host-3")), actor="operator:ann")


async def test_one_that_fails_before_its_turn_is_skipped() -> None:
    made = await simulated(DECLARED)
    created = await made.engine.rollouts.create(spec(("host-2", "empty")), actor="operator:ann")
    await fail(made, "empty")
    await made.advance(timedelta(days=1))
    rollout, _ = await made.engine.rollouts.read(created.id)
    (skipped,) = [each for each in rollout.hosts if each.name == "empty"]
    assert (skipped.state, skipped.reason) == (RolloutHostState.SKIPPED, "it has failed and is not marked as recovered")
