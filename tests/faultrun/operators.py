"""Operators: random commands through random replicas, each repeated under its key until it is answered."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import httpx

from forewarn.clock import RealClock
from tests.faultrun.fleet import Fleet
from tests.faultrun.records import Command, Try
from tests.faultrun.world import REPLICAS, World

__all__ = ["Operator", "Steward"]

_CLOCK = RealClock()
_PATIENCE_S = 2.5
_SERVER_ERROR = 500
_OK = 200
_VERBS = {"schedule": 10, "restart": 8, "cancel": 4, "complete": 3, "start": 2, "fail": 1}


class Operator:
    """One of them.

    Args:
        world: Where the replicas are.
        rng: Decides everything.
        number: Makes its keys its own.

    Attributes:
        commands: All that it ever wanted.
    """

    def __init__(self, world: World, rng: random.Random, number: int) -> None:
        self.commands: list[Command] = []
        self._world = world
        self._rng = rng
        self._keys = (f"key-{number}-{count}" for count in itertools.count())
        self._made: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """New commands until `stop`; then only until the last one is answered."""
        while not stop.is_set():
            command = self._next()
            self.commands.append(command)
            await self._carry(command)
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))

    def _next(self) -> Command:
        rng, key = self._rng, next(self._keys)
        verb = rng.choices(list(_VERBS), list(_VERBS.values()))[0]
        if verb in {"cancel", "complete", "start"} and self._made:
            target = rng.choice(self._made[-6:])
            body: dict[str, Any] = {} if verb == "complete" else {"reason": key}
            path = f"/v1/maintenance/{target}/{verb}"
            return Command(key=key, verb=verb, path=path, body=body, target=target)
        forced = {"notice_s": rng.choice([0.3, 0.6, 1.2]), "force": True, "reason": key}
        if verb == "restart":
            vm = rng.choice(self._world.fleet.names)
            return Command(key=key, verb=verb, path=f"/v1/vms/{vm}/restart", body=forced)
        if verb == "fail":
            path = f"/v1/hosts/{rng.choice(self._world.hosts)}/fail"
            return Command(key=key, verb=verb, path=path, body={"reason": key})
        return Command(key=key, verb="schedule", path="/v1/maintenance", body=forced | self._wanted())

    def _wanted(self) -> dict[str, Any]:
        """Maintenance of a host or two, or of some VMs."""
        rng = self._rng
        kind = {"type": rng.choice(["Freeze", "Reboot"])}
        if rng.random() < 0.15:
            return kind | {"hosts": rng.sample(self._world.hosts, rng.randint(1, min(2, len(self._world.hosts))))}
        names = self._world.fleet.names
        return kind | {"vms": rng.sample(names, rng.randint(1, min(3, len(names))))}

    async def _carry(self, command: Command) -> None:
        """Ask one replica after another, until one answers otherwise than that it cannot."""
        while command.answer is None:
            sent_at = _CLOCK.now()
            status, answer = await _ask(self._world, self._rng.randrange(REPLICAS), "POST", command)
            command.tries.append(Try(sent_at=sent_at, answered_at=_CLOCK.now(), status=status))
            if status is None or status >= _SERVER_ERROR:
                await asyncio.sleep(self._rng.uniform(0.1, 0.4))
                continue
            command.answer = answer
            if command.verb in {"schedule", "restart", "fail"} and command.is_acknowledged:
                self._made += [item["id"] for item in command.answer["items"]]


class Steward:
    """Who adds, moves and removes VMs: one at a time, each repeated under its key until it is answered.

    Args:
        world: Where the replicas and the VMs are.
        rng: Decides everything.

    Attributes:
        taken: How many changes were made.
        refused: How many were not, for a VM was held by a maintenance.
        put_off: How many were not asked for, since a VM would have come back to a host that knows it still.
    """

    def __init__(self, world: World, rng: random.Random) -> None:
        self.taken = 0
        self.refused = 0
        self.put_off = 0
        self._left: dict[str, set[str]] = {}
        self._world = world
        self._rng = rng

    async def run(self, stop: asyncio.Event) -> None:
        """New changes until `stop`; then only until the last one is answered."""
        for count in itertools.count():
            if stop.is_set():
                return
            await self._change(f"key-inventory-{count}")
            await asyncio.sleep(self._rng.uniform(0.3, 1.5))

    async def _change(self, key: str) -> None:
        world, fleet = self._world, self._world.fleet.changed(self._rng)
        if not await self._may_come_back(fleet):
            self.put_off += 1
            return
        for vm in fleet.numbers.keys() - world.fleet.numbers.keys():
            world.addresses[vm] = world.network.vm(fleet.numbers[vm])
        world.fleet.passing |= fleet.passing
        command = Command(key=key, verb="inventory", path="/v1/inventory", body=fleet.inventory(world.addresses))
        is_in_doubt = False
        while True:
            status, _ = await _ask(world, self._rng.randrange(REPLICAS), "PUT", command)
            if status == _OK:
                self.taken += 1
                await self._follow(fleet)
                return
            if status is None or status >= _SERVER_ERROR:
                is_in_doubt = True
            elif not is_in_doubt:
                self.refused += 1
                return
            # A try without an answer may yet be carried out, also after another one was refused since a maintenance
            # held a VM: so it is repeated until it is taken.
            await asyncio.sleep(self._rng.uniform(0.1, 0.4))

    async def _may_come_back(self, fleet: Fleet) -> bool:
        """Whether no VM would return to a host that has not heard yet that it had left.

        A host that is cut off all the while would show it what was true when it left. Nobody can tell such a host.
        """
        for vm in sorted(fleet.numbers):
            host = fleet.places[vm].host
            is_back = host in self._left.get(vm, set()) and self._world.fleet.places[vm].host != host
            if is_back and not await self._world.has_forgotten(vm, host):
                return False
        return True

    async def _follow(self, fleet: Fleet) -> None:
        """Have VMs be where they are declared now: each leaves before it arrives."""
        world, before = self._world, self._world.fleet
        world.fleet = fleet
        for vm in sorted(before.numbers.keys() | fleet.numbers.keys()):
            was = before.places[vm].host if vm in before.numbers else None
            now = fleet.places[vm].host if vm in fleet.numbers else None
            if was == now:
                continue
            left: dict[str, Any] = {"known": [], "votes": []}
            if was is not None:
                left = await world.crowds[was].leave(vm)
                self._left.setdefault(vm, set()).add(was)
            if now is not None:
                await world.admit(vm, self._rng.getrandbits(32), **left)


async def _ask(world: World, number: int, method: str, command: Command) -> tuple[int | None, dict[str, Any]]:
    """Status and body of the answer; None: there was none."""
    try:
        async with world.operator(number, _PATIENCE_S) as client:
            headers = {"idempotency-key": command.key}
            answer = await client.request(method, command.path, json=command.body, headers=headers)
            return answer.status_code, answer.json()
    except (httpx.HTTPError, ValueError):
        return None, {}
