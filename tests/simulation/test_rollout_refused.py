"""A host whose maintenance is refused when its turn comes: the rollout goes on, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.policy import Policy
from forewarn.core.rollout.rollout import RolloutHostState, RolloutSpec, RolloutState
from tests.support.quiet import ALL_DAYS, quiet_hours
from tests.support.simulated import inventory, simulated
from tests.support.world import minutes
from tests.unit.core.builders import vm

pytestmark = pytest.mark.anyio

VMS = [vm(f"vm-{n}", host=f"host-{n}", addresses=(f"10.9.0.{n}",)) for n in (1, 2, 3)]
SPEC = RolloutSpec(name="kernel", cause="host-maintenance", batch_size=1, failures_max=2)


async def test_quiet_hours_that_leave_no_moment_refuse_a_host_of_a_rollout() -> None:
    made = await simulated(inventory(*VMS), rules=DecisionRules(notice_max=minutes(60)))
    started = await made.engine.rollouts.create(SPEC, actor="operator:ann")
    long = Policy(quiet_hours=(quiet_hours(ALL_DAYS, "10:00", "20:00", "UTC"),))
    later = inventory(VMS[0], replace(VMS[1], policy=long), VMS[2])
    await made.engine.inventory.apply(later, "quiet", actor="operator:ann")
    await made.advance(minutes(120))
    shown, _ = await made.engine.rollouts.read(started.id)
    assert shown.state is RolloutState.FAILED
    states = {host.name: host.state for host in shown.hosts}
    assert states == {
        "host-1": RolloutHostState.DONE,
        "host-2": RolloutHostState.FAILED,
        "host-3": RolloutHostState.DONE,
    }
    assert "is outside the quiet hours of vm-2" in (shown.hosts[1].reason or "")
