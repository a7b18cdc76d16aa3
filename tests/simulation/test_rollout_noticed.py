"""The hint that a rollout may be active: what sets it, and what clears it."""

from typing import Any

import pytest

from forewarn.core.rollout.rollout import RolloutSpec
from tests.support.simulated import Simulated, inventory, simulated
from tests.support.simulated_world import SCOPES, VMS
from tests.support.world import minutes

pytestmark = pytest.mark.anyio

DECLARED = inventory(*VMS, scopes=SCOPES)
SPEC = RolloutSpec(name="kernel", cause="host-maintenance", hosts=("host-2",))


async def idle() -> Simulated:
    made = await simulated(DECLARED)
    await made.advance(minutes(1))
    assert not made.engine.rollouts.may_be_active, "without rollouts, driving them finds nothing"
    return made


async def test_a_rollout_that_is_created_here_is_noticed_before_other_listeners_hear_of_it() -> None:
    made = await idle()
    noticed: list[bool] = []
    made.engine.listeners.append(lambda _changes: noticed.append(made.engine.rollouts.may_be_active))
    await made.engine.rollouts.create(SPEC, actor="operator:ann")
    assert noticed == [True]


async def test_a_rollout_that_another_replica_has_created_is_noticed_with_its_commit() -> None:
    made = await idle()
    other = await simulated(DECLARED, store=made.store, clock=made.clock, enabled=())
    await made.engine.committer.catch_up()
    assert not made.engine.rollouts.may_be_active
    await other.engine.rollouts.create(SPEC, actor="operator:ann")
    assert await made.engine.committer.catch_up()
    assert made.engine.rollouts.may_be_active


async def test_a_rollout_that_is_created_while_it_is_checked_whether_any_is_active_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = await simulated(DECLARED)
    read = made.engine.committer.read

    async def create_meanwhile(function: Any) -> Any:  # noqa: ANN401 - as `Committer.read`
        found = await read(function)
        await made.engine.rollouts.create(SPEC, actor="operator:ann")
        return found

    monkeypatch.setattr(made.engine.committer, "read", create_meanwhile)
    await made.engine.rollouts.drive({})
    assert made.engine.rollouts.may_be_active
