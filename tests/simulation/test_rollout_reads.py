"""A rollout reads the hosts that it compares, not the fleet: a write that reads 100,000 VMs delays every approval."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from forewarn.core.rollout.rollout import RolloutHostState, RolloutSpec, RolloutState
from forewarn.engine import rollouts
from forewarn.store.reader import Reader
from forewarn.store.transaction import Transaction
from tests.support.simulated import inventory, simulated
from tests.support.simulated_world import SCOPES, VMS
from tests.support.world import minutes

pytestmark = pytest.mark.anyio

DECLARED = inventory(*VMS, scopes=SCOPES)
SPEC = RolloutSpec(name="kernel", cause="host-maintenance", batch_size=3)


def refuse(_reader: Reader) -> NoReturn:
    pytest.fail("the whole inventory was read")


@pytest.mark.parametrize("compared_max", [1, 100])
async def test_a_rollout_goes_to_its_end_and_is_shown_without_a_read_of_the_whole_inventory(
    monkeypatch: pytest.MonkeyPatch, compared_max: int
) -> None:
    monkeypatch.setattr(rollouts, "_COMPARED_MAX", compared_max)
    made = await simulated(DECLARED)
    started = await made.engine.rollouts.create(SPEC, actor="operator:ann")
    monkeypatch.setattr(Reader, "get_inventory", refuse)
    await made.advance(minutes(600))
    shown, wait = await made.engine.rollouts.read(started.id)
    assert (shown.state, wait) == (RolloutState.COMPLETED, None)
    assert {host.state for host in shown.hosts} == {RolloutHostState.DONE}


async def test_the_inventory_of_a_plan_is_read_before_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await simulated(DECLARED)
    monkeypatch.setattr(Transaction, "get_inventory", refuse)
    started = await made.engine.rollouts.create(SPEC, actor="operator:ann")
    assert [host.name for host in started.hosts] == [host.name for host in DECLARED.hosts]


async def test_a_plan_is_made_from_the_inventory_of_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await simulated(DECLARED)
    read = made.engine.committer.read_long
    fewer = inventory(*(vm for vm in VMS if vm.host != "host-3"), scopes=SCOPES)

    async def declare_meanwhile(function: Any) -> Any:  # noqa: ANN401 - as `Committer.read_long`
        found = await read(function)
        monkeypatch.undo()
        await made.engine.inventory.apply(fewer, "fewer", actor="operator:ann", removals=None)
        return found

    monkeypatch.setattr(made.engine.committer, "read_long", declare_meanwhile)
    started = await made.engine.rollouts.create(SPEC, actor="operator:ann")
    assert [host.name for host in started.hosts] == [host.name for host in fewer.hosts]
    assert len(fewer.hosts) < len(DECLARED.hosts)
