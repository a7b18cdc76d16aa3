"""An aborted rollout cancels what has not started, and whatever waited for that goes on."""

from __future__ import annotations

from functools import partial

import pytest

from forewarn.core.rollout.rollout import RolloutSpec
from forewarn.core.rollout.rollout_commands import abort_rollout
from tests.support.simulated import inventory, simulated
from tests.support.world import minutes
from tests.unit.core.builders import vm

pytestmark = pytest.mark.anyio


async def test_a_maintenance_that_waits_for_one_of_an_aborted_rollout_is_announced() -> None:
    made = await simulated(inventory(vm("vm-1", host="host-1", addresses=("10.9.0.1",))))
    await made.get("vm-1")
    await made.advance(minutes(15))
    rollout = await made.engine.rollouts.create(
        RolloutSpec(name="kernel", cause="host-maintenance"), actor="operator:ann"
    )
    await made.advance(minutes(1))
    waiting = await made.schedule_one("live-migration", "vm-1")
    assert made.state(waiting) == "queued"
    abort = partial(abort_rollout, reason="wrong kernel")
    await made.engine.rollouts.change(rollout.id, abort, "aborted", actor="operator:ann")
    await made.advance(minutes(1))
    assert made.state(waiting) == "scheduled"
