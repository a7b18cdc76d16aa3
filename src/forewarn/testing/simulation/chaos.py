"""Faults of a run: which kinds there are is drawn from the seed, and when each happens.

Each seed draws only some kinds. So in some worlds two rare kinds happen often, and meet. And in half of the worlds, the
busy ones, faults closely follow other facts, and operators do several things at the same time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.testing.simulation.network import NetworkFaults
from forewarn.util.failpoint import FailPoint

if TYPE_CHECKING:
    from forewarn.testing.simulation.machine import Machine
    from forewarn.testing.simulation.world import World

__all__ = ["KINDS", "Chaos", "Plan", "draw_plan"]

_KINDS_MAX = 6
"""Maximum number of kinds, apart from strikes and those of `_LATER`."""

_PAUSES_S = (2.0, 10.0, 30.0)
_LOST_HINTS = 0.8
_STRUCK = 0.5
"""Share of the worlds with faults that get strikes in any case: what they hit is rare, and worth most."""

_BUSY = 0.5
_LATER = ("abort-commits", "slow-database", "strand-endpoint")
"""Kinds that only busy worlds have: they came later, and seeds that once failed have to keep their worlds."""

_LATE = 0.3
"""Probability of each of these kinds, in a busy world with faults."""

_ACTIVITY = frozenset({"host", "vm", "restart", "cancel", "rollout", "approved", "document", "execute", "step-end"})
"""Kinds of facts after which faults happen in busy worlds, because something is under way then."""

_SOON_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Faults of a world, and their timing.

    Attributes:
        kinds: Kinds of faults.
        is_busy: True if faults closely follow other facts, and operators do several things at once.
    """

    kinds: tuple[str, ...]
    is_busy: bool


def draw_plan(rng: random.Random, busy_rng: random.Random, kinds: Sequence[str] | None = None) -> Plan:
    """Draw up to ten kinds of faults, and whether the world is busy.

    Args:
        rng: Source of the kinds.
        busy_rng: Source of the rest.
        kinds: Kinds of faults; None to draw them.
    """
    is_busy = busy_rng.random() < _BUSY
    drawn = rng.sample(sorted(KINDS.keys() - set(_LATER)), rng.randint(0, _KINDS_MAX))
    if drawn and "strike" not in drawn and rng.random() < _STRUCK:
        drawn.append("strike")
    if drawn and is_busy:
        drawn += [kind for kind in _LATER if busy_rng.random() < _LATE]
    return Plan(kinds=tuple(drawn if kinds is None else kinds), is_busy=is_busy)


class Chaos:
    """Makes trouble until it is stopped, then heals everything.

    Args:
        world: The world that it troubles.
        rng: Source of moments and victims.
        plan: Faults of the world, and their timing.
    """

    def __init__(self, world: World, rng: random.Random, plan: Plan) -> None:
        self._plan = plan
        self._world = world
        self._rng = rng
        self._pause_s = rng.choice(_PAUSES_S)

    async def run(self) -> None:
        """Let faults happen, until cancelled."""
        if not self._plan.kinds:
            return
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
                if self._plan.is_busy:
                    await self._world.trace.wait_for(_ACTIVITY, self._pause_s)
                    await asyncio.sleep(self._rng.uniform(0, _SOON_S))
                kind = self._rng.choice(self._plan.kinds)
                group.create_task(self._cause(kind))

    async def _cause(self, kind: str) -> None:
        self._world.trace.note("chaos", kind)
        await KINDS[kind](self._world, self._rng)
        self._world.trace.note("chaos", "over", fault=kind)

    def heal(self) -> None:
        """End every fault and start everything that is down."""
        world = self._world
        world.trace.note("chaos", "heal")
        world.network.heal_all()
        world.database.hint_is_lost = lambda: False
        world.database.delay_s_max = world.delay_s_max
        world.hypervisor.failures = world.receiver.failures = 0.0
        for replica in world.replicas:
            replica.link.heal()
            replica.clock.correct()
        for vm in world.vms:
            vm.failures = 0.0
            vm.is_disk_full = False
            vm.clock.correct()
        for machine in world.machines:
            machine.resume()
            machine.start()


Act = Callable[["World", random.Random], Coroutine[None, None, None]]


async def _kill(machine: Machine, rng: random.Random, *, is_power_loss: bool) -> None:
    machine.kill(is_power_loss=is_power_loss)
    await asyncio.sleep(rng.choice([0.5, 5.0, 30.0, 120.0]))
    machine.start()


async def _kill_replica(world: World, rng: random.Random) -> None:
    await _kill(rng.choice(world.replicas), rng, is_power_loss=False)


async def _lose_replica(world: World, rng: random.Random) -> None:
    await _kill(rng.choice(world.replicas), rng, is_power_loss=True)


async def _kill_at_commit(world: World, rng: random.Random) -> None:
    replica = rng.choice(world.replicas)
    replica.link.dies_at_commit = replica.kill
    await asyncio.sleep(rng.choice([5.0, 30.0]))
    replica.link.dies_at_commit = None
    replica.start()


async def _kill_endpoint(world: World, rng: random.Random) -> None:
    await _kill(rng.choice(world.hosts), rng, is_power_loss=rng.choice([False, True]))


async def _strand_endpoint(world: World, rng: random.Random) -> None:
    """Start a host endpoint while it cannot reach a replica, so that it has only the copy on its disk."""
    host = rng.choice(world.hosts)
    pairs = [(replica.name, host.name) for replica in world.replicas]
    pairs += [(target, source) for source, target in pairs]
    for pair in pairs:
        world.network.cut(*pair)
    await _kill(host, rng, is_power_loss=rng.choice([False, True]))
    await asyncio.sleep(rng.choice([15.0, 60.0]))
    for pair in pairs:
        world.network.heal(*pair)


async def _kill_agent(world: World, rng: random.Random) -> None:
    await _kill(rng.choice(world.vms), rng, is_power_loss=rng.choice([False, True]))


async def _halt(world: World, rng: random.Random) -> None:
    machine = rng.choice(world.machines)
    machine.halt()
    await asyncio.sleep(rng.choice([0.5, 5.0, 20.0, 60.0]))
    machine.note("resume")
    machine.resume()


async def _cut_database(world: World, rng: random.Random) -> None:
    link = rng.choice(world.replicas).link
    link.is_cut = True
    await asyncio.sleep(rng.choice([1.0, 6.0, 40.0]))
    link.is_cut = False


async def _trouble_database(world: World, rng: random.Random) -> None:
    for replica in world.replicas:
        replica.link.refuses = rng.choice([0.0, 0.1])
        replica.link.loses_answer = rng.choice([0.0, 0.1, 0.3])
        replica.link.aborts = rng.choice([0.0, 0.1])
    await asyncio.sleep(rng.choice([5.0, 30.0]))
    for replica in world.replicas:
        replica.link.refuses = replica.link.loses_answer = replica.link.aborts = 0.0


async def _abort_commits(world: World, rng: random.Random) -> None:
    """Roll back half of the transactions of a replica, like a database that is being restarted."""
    link = rng.choice(world.replicas).link
    link.aborts = 0.5
    await asyncio.sleep(rng.choice([2.0, 10.0]))
    link.aborts = 0.0


async def _slow_database(world: World, rng: random.Random) -> None:
    world.database.delay_s_max = rng.choice([0.5, 2.0])
    await asyncio.sleep(rng.choice([5.0, 20.0]))
    world.database.delay_s_max = world.delay_s_max


async def _lose_hints(world: World, rng: random.Random) -> None:
    world.database.hint_is_lost = lambda: rng.random() < _LOST_HINTS
    await asyncio.sleep(60.0)
    world.database.hint_is_lost = lambda: False


async def _cut_network(world: World, rng: random.Random) -> None:
    source, target = rng.sample(world.machines, 2)
    pairs = [(source.name, target.name)] + [(target.name, source.name)] * rng.randint(0, 1)
    for pair in pairs:
        world.network.cut(*pair)
    await asyncio.sleep(rng.choice([2.0, 15.0, 60.0, 200.0]))
    for pair in pairs:
        world.network.heal(*pair)


async def _isolate(world: World, rng: random.Random) -> None:
    machine = rng.choice(world.machines)
    pairs = [(machine.name, "*"), ("*", machine.name)]
    for pair in rng.choice([pairs, pairs[:1], pairs[1:]]):
        world.network.cut(*pair)
    await asyncio.sleep(rng.choice([2.0, 15.0, 60.0]))
    for pair in pairs:
        world.network.heal(*pair)


async def _trouble_network(world: World, rng: random.Random) -> None:
    world.network.faults = NetworkFaults(
        refused=rng.choice([0.0, 0.2]), reset=rng.choice([0.0, 0.05]), slow=rng.choice([0.0, 0.1, 0.3])
    )
    await asyncio.sleep(rng.choice([10.0, 60.0]))
    world.network.faults = NetworkFaults()


async def _strike(world: World, rng: random.Random) -> None:
    point, is_halt = rng.choice(list(FailPoint)), rng.random() < 0.5  # noqa: PLR2004 - a coin
    with suppress(TimeoutError), world.strikes.arm(point, is_halt=is_halt) as struck:
        async with asyncio.timeout(rng.choice([30.0, 120.0])):
            machine = await struck
        await asyncio.sleep(rng.choice([0.5, 5.0, 20.0, 60.0]))
        machine.resume()
        machine.start()


async def _set_replica_clock(world: World, rng: random.Random) -> None:
    clock = rng.choice(world.replicas).clock
    clock.offset = timedelta(seconds=rng.choice([-20.0, -1.5, 1.5, 20.0, 600.0]))
    await asyncio.sleep(rng.choice([10.0, 60.0]))
    clock.correct()


async def _drift_clock(world: World, rng: random.Random) -> None:
    clock = rng.choice([*world.replicas, *world.vms]).clock
    clock.set_drift(rng.choice([-0.02, -0.0002, 0.0002, 0.02]))
    await asyncio.sleep(rng.choice([10.0, 60.0, 200.0]))
    clock.set_drift(0.0)


async def _set_vm_clock(world: World, rng: random.Random) -> None:
    clock = rng.choice(world.vms).clock
    clock.offset = timedelta(seconds=rng.choice([-7200.0, -30.0, 30.0, 7200.0]))


async def _fail_steps(world: World, rng: random.Random) -> None:
    vm = rng.choice(world.vms)
    vm.failures = rng.choice([0.3, 1.0])
    await asyncio.sleep(60.0)
    vm.failures = 0.0


async def _fill_disk(world: World, rng: random.Random) -> None:
    vm = rng.choice(world.vms)
    vm.is_disk_full = True
    await asyncio.sleep(rng.choice([5.0, 60.0]))
    vm.is_disk_full = False


async def _fail_hypervisor(world: World, rng: random.Random) -> None:
    world.hypervisor.failures = rng.choice([0.2, 0.8])
    await asyncio.sleep(30.0)
    world.hypervisor.failures = 0.0


async def _fail_receiver(world: World, rng: random.Random) -> None:
    world.receiver.failures = rng.choice([0.3, 1.0])
    await asyncio.sleep(rng.choice([10.0, 60.0]))
    world.receiver.failures = 0.0


async def _kill_receiver(world: World, rng: random.Random) -> None:
    await _kill(world.receiver, rng, is_power_loss=rng.random() < 0.5)  # noqa: PLR2004 - a coin


KINDS: dict[str, Act] = {
    "kill-replica": _kill_replica,
    "lose-replica": _lose_replica,
    "kill-at-commit": _kill_at_commit,
    "kill-endpoint": _kill_endpoint,
    "kill-agent": _kill_agent,
    "halt": _halt,
    "cut-database": _cut_database,
    "trouble-database": _trouble_database,
    "lose-hints": _lose_hints,
    "cut-network": _cut_network,
    "isolate": _isolate,
    "strike": _strike,
    "trouble-network": _trouble_network,
    "replica-clock": _set_replica_clock,
    "vm-clock": _set_vm_clock,
    "clock-drift": _drift_clock,
    "fail-steps": _fail_steps,
    "fill-disk": _fill_disk,
    "fail-hypervisor": _fail_hypervisor,
    "fail-receiver": _fail_receiver,
    "kill-receiver": _kill_receiver,
    "abort-commits": _abort_commits,
    "slow-database": _slow_database,
    "strand-endpoint": _strand_endpoint,
}
"""Faults by name."""
